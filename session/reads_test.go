package session_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// newLog is a host over a real log in a file.
func newLog(t *testing.T, budget int64) *host {
	t.Helper()
	n, err := node.Open(context.Background(), node.Config{Path: filepath.Join(t.TempDir(), "wal"), SizeBytes: 32 << 20, Store: "none",
		MemoryBytes: 128 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return newHost(t, n, budget, session.Times{})
}

// stream opens a stream and appends records "0", "1", … to it.
func (d *door) stream(name string, records int) uint64 {
	d.t.Helper()
	d.ask(&wire.StreamOpen{Create: true, Name: name})
	var info wire.StreamInfo
	d.expect(wire.TypeStreamInfo, &info)
	d.fill(info.ID, 0, records)
	return info.ID
}

// fill appends the records from, from+1, … to a stream, one batch each.
func (d *door) fill(stream uint64, from, to int) {
	d.t.Helper()
	var talk []byte
	for i := from; i < to; i++ {
		talk = oneAppend(stream, fmt.Append(nil, i)).AppendTo(talk, d.next)
		d.next++
	}
	d.write(talk)
	for acked := from; acked < to; {
		var ack wire.AppendAck
		d.expect(wire.TypeAppendAck, &ack)
		for _, e := range ack.Extents {
			acked += int(e.Requests)
		}
	}
}

// reading is what came for one read so far.
type reading struct {
	records []wire.Record
	bytes   int // of Records and ReplayBatches messages
	names   map[uint64]string
	marks   []string // everything else, in order, with the number of records before
	done    bool
}

// collect receives messages of a read until enough says so, or its end.
func (d *door) collect(request uint64, enough func(*reading) bool) *reading {
	d.t.Helper()
	r := &reading{names: map[uint64]string{}}
	for !r.done && (enough == nil || !enough(r)) {
		a, ok := d.receive()
		if !ok {
			d.t.Fatal("the session ended")
		}
		if a.h.Request != request {
			d.t.Fatalf("%s for request %d, waiting for %d", a.h.Type, a.h.Request, request)
		}
		r.take(d.t, a)
	}
	return r
}

func (r *reading) take(t testing.TB, a answer) {
	t.Helper()
	decode := func(m decoder) {
		if err := m.Decode(a.h, a.body); err != nil {
			t.Fatal(err)
		}
	}
	mark := func(format string, args ...any) {
		r.marks = append(r.marks, fmt.Sprintf("%d: ", len(r.records))+fmt.Sprintf(format, args...))
	}
	switch a.h.Type {
	case wire.TypeRecords:
		var m wire.Records
		decode(&m)
		r.add(t, m.Records)
		r.bytes += int(a.h.Length)
	case wire.TypeReplayBatches:
		var m wire.ReplayBatches
		decode(&m)
		for _, n := range m.Names {
			if _, again := r.names[n.Stream]; again {
				t.Errorf("stream %d is named twice", n.Stream)
			}
			r.names[n.Stream] = n.Name
		}
		r.add(t, m.Records)
		r.bytes += int(a.h.Length)
	case wire.TypeGap:
		var m wire.Gap
		decode(&m)
		mark("gap %s [%d, %d)", m.Kind, m.From, m.To)
	case wire.TypeCaughtUp:
		var m wire.CaughtUp
		decode(&m)
		mark("caught up %d", m.Next)
	case wire.TypeEnd:
		var m wire.End
		decode(&m)
		mark("end %d", m.Next)
		r.done = true
	case wire.TypeError:
		var m wire.Error
		decode(&m)
		mark("error %s", m.Code)
		r.done = true
	case wire.TypeHeartbeat:
	default:
		t.Fatalf("%s in a read", a.h.Type)
	}
}

func (r *reading) add(t testing.TB, records []wire.Record) {
	for i := range records {
		if wire.RecordChecksum(&records[i]) != records[i].Checksum {
			t.Errorf("offset %d: checksum does not fit the record", records[i].Offset)
		}
		r.records = append(r.records, records[i])
	}
}

// isFrom checks payloads "first", "first+1", … with dense offsets.
func (r *reading) isFrom(t *testing.T, first, n int) {
	t.Helper()
	if len(r.records) != n {
		t.Fatalf("%d records, want %d", len(r.records), n)
	}
	for i := range r.records {
		if got := &r.records[i]; got.Offset != uint64(first+i) || string(got.Payload) != fmt.Sprint(first+i) || !got.BatchEnd {
			t.Fatalf("record %d: %+v", i, got)
		}
	}
}

func (r *reading) marked(t *testing.T, want ...string) {
	t.Helper()
	if got := strings.Join(r.marks, ", "); got != strings.Join(want, ", ") {
		t.Errorf("got %s; want %s", got, strings.Join(want, ", "))
	}
}

const plenty = math.MaxUint64 // of credit

func TestReadToTheEnd(t *testing.T) {
	d := newLog(t, testBudget).connect()
	id := d.stream("orders", 1000)
	r := d.collect(d.ask(&wire.Read{Stream: id, Credit: plenty}), nil)
	r.isFrom(t, 0, 1000)
	r.marked(t, "1000: end 1000")
	r = d.collect(d.ask(&wire.Read{Stream: id, Value: 990, Credit: plenty, MaxRecords: 5}), nil)
	r.isFrom(t, 990, 5)
	r.marked(t, "5: end 995")
	r = d.collect(d.ask(&wire.Read{Stream: id, From: wire.FromLast, Value: 3, Credit: plenty}), nil)
	r.isFrom(t, 997, 3)
	first := r.records[0].TimestampNS
	r = d.collect(d.ask(&wire.Read{Stream: id, From: wire.FromTime, Value: uint64(first), Credit: plenty}), nil)
	if n := len(r.records); n < 3 || r.records[0].TimestampNS < first {
		t.Errorf("%d records since %d", n, first)
	}
	// Where a new read goes on is behind what was too old, not before it.
	r = d.collect(d.ask(&wire.Read{Stream: id, From: wire.FromTime, Value: math.MaxUint64, Credit: plenty}), nil)
	r.isFrom(t, 0, 0)
	r.marked(t, "0: end 1000")
}

// A follow goes on at the end, says when it has caught up, and ends when asked to.
func TestFollowAndCancel(t *testing.T) {
	h := newLog(t, testBudget)
	d, writer := h.connect(), h.connect()
	id := writer.stream("orders", 10)
	request := d.ask(&wire.Read{Follow: true, Stream: id, Credit: plenty})
	r := d.collect(request, func(r *reading) bool { return len(r.marks) > 0 })
	r.isFrom(t, 0, 10)
	r.marked(t, "10: caught up 10")
	writer.fill(id, 10, 20)
	r = d.collect(request, func(r *reading) bool { return len(r.records) == 10 })
	r.isFrom(t, 10, 10)
	d.write((&wire.Cancel{}).AppendTo(nil, request))
	r = d.collect(request, nil)
	if last := r.marks[len(r.marks)-1]; last != "0: end 20" {
		t.Errorf("a cancelled follow ended with %q", last)
	}
}

// The server sends what was granted, and at most one message more.
func TestReadsKeepToTheirCredit(t *testing.T) {
	d := newLog(t, testBudget).connect()
	id := d.stream("orders", 500)
	const grant = 1000
	request := d.ask(&wire.Read{Stream: id, Credit: grant})
	got, next := 0, uint64(0)
	for granted := grant; next < 500; granted += grant {
		if got > granted+wire.RecordHeadBytes {
			t.Fatalf("%d bytes for a credit of %d", got, granted)
		}
		r := &reading{names: map[uint64]string{}}
		for patience := 20 * time.Second; patience > 0; { // once something has come, until it is quiet
			select {
			case a := <-d.answers:
				r.take(t, a)
				patience = 20 * time.Millisecond
			case <-time.After(patience):
				patience = 0
			}
		}
		if len(r.records) == 0 {
			t.Fatalf("nothing came for a credit of %d more", grant)
		}
		for i := range r.records {
			if r.records[i].Offset != next {
				t.Fatalf("offset %d, want %d", r.records[i].Offset, next)
			}
			next++
		}
		got += r.bytes
		if next >= 100 && granted < 10*grant { // enough of the slow way
			d.write((&wire.Credit{Bytes: plenty}).AppendTo(nil, request))
			r = d.collect(request, nil)
			r.isFrom(t, int(next), 500-int(next))
			return
		}
		d.write((&wire.Credit{Bytes: grant}).AppendTo(nil, request))
	}
}

// One record larger than the credit comes nevertheless, or reading would stop.
func TestALargeRecordOverdrawsTheCredit(t *testing.T) {
	d := newLog(t, testBudget).connect()
	id := d.stream("large", 0)
	d.ask(oneAppend(id, make([]byte, 900_000)))
	var ack wire.AppendAck
	d.expect(wire.TypeAppendAck, &ack)
	r := d.collect(d.ask(&wire.Read{Stream: id, Credit: 1}), func(r *reading) bool { return len(r.records) > 0 })
	if n := len(r.records[0].Payload); n != 900_000 {
		t.Errorf("%d bytes", n)
	}
}

// What was cancelled before it was sent is not passed over: End says where to go on.
func TestCancelledReadSaysWhereToGoOn(t *testing.T) {
	d := newLog(t, testBudget).connect()
	id := d.stream("orders", 300)
	// The cursor finds more records at once than the credit has room to send.
	request := d.ask(&wire.Read{Stream: id, Credit: 10 * 56})
	r := d.collect(request, func(r *reading) bool { return len(r.records) >= 9 })
	r.isFrom(t, 0, len(r.records))
	time.Sleep(20 * time.Millisecond)
	d.write((&wire.Cancel{}).AppendTo(nil, request))
	rest := d.collect(request, nil)
	n := len(r.records) + len(rest.records)
	if last := rest.marks[len(rest.marks)-1]; n > 20 || last != fmt.Sprintf("%d: end %d", len(rest.records), n) {
		t.Errorf("%d records, then %s", n, last)
	}

	request = d.ask(&wire.Replay{Credit: 1}) // one batch, of one record
	d.collect(request, func(r *reading) bool { return len(r.records) == 1 })
	d.write((&wire.Cancel{}).AppendTo(nil, request))
	end := d.collect(request, nil)
	var next uint64
	if _, err := fmt.Sscanf(end.marks[len(end.marks)-1], "0: end %d", &next); err != nil {
		t.Fatal(err, end.marks)
	}
	r = d.collect(d.ask(&wire.Replay{Position: next, Credit: plenty}), nil)
	r.isFrom(t, 1, 299)
}

// Records that are missing are said to be, with the reason.
func TestGaps(t *testing.T) {
	d := newLog(t, testBudget).connect()
	id := d.stream("orders", 100)
	d.ask(&wire.StreamTrim{Stream: id, Before: 40})
	var trimmed wire.Trimmed
	d.expect(wire.TypeTrimmed, &trimmed)
	r := d.collect(d.ask(&wire.Read{Stream: id, Value: 10, Credit: plenty}), nil)
	r.isFrom(t, 40, 60)
	r.marked(t, "0: gap trimmed [10, 40)", "60: end 100")

	d.ask(&wire.StreamSeal{Stream: id})
	var info wire.StreamInfo
	d.expect(wire.TypeStreamInfo, &info)
	r = d.collect(d.ask(&wire.Read{Follow: true, Stream: id, Value: 99, Credit: plenty}), nil)
	r.isFrom(t, 99, 1)
	r.marked(t, fmt.Sprintf("1: gap sealed [100, %d)", uint64(math.MaxUint64)), "1: end 100")

	d.ask(&wire.StreamDelete{Stream: id})
	d.expect(wire.TypeStreamInfo, &info)
	d.collect(d.ask(&wire.Read{Stream: id, Credit: plenty}), nil).marked(t, "0: error deleted")
	d.collect(d.ask(&wire.Read{Stream: 999, Credit: plenty}), nil).marked(t, "0: error not_found")
}

// A replay has all streams in commit order, their names once, and batch ends.
func TestReplay(t *testing.T) {
	d := newLog(t, testBudget).connect()
	a, b := d.stream("a", 3), d.stream("b", 0)
	d.ask(&wire.Append{Entries: []wire.Entry{{Stream: a, Payload: []byte("x")}, {Stream: b, Payload: []byte("y")}, {Stream: a, Payload: []byte("z")}}})
	var result wire.AppendResult
	d.expect(wire.TypeAppendResult, &result)
	d.fill(b, 1, 2)
	r := d.collect(d.ask(&wire.Replay{Credit: plenty}), nil)
	var got []string
	for _, rec := range r.records {
		got = append(got, fmt.Sprintf("%s%d=%s %v", r.names[rec.Stream], rec.Offset, rec.Payload, rec.BatchEnd))
	}
	if want := "a0=0 true, a1=1 true, a2=2 true, a3=x false, b0=y false, a4=z true, b1=1 true"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %v", got, want)
	}
	r = d.collect(d.ask(&wire.Replay{Position: result.Position, Credit: plenty, MaxRecords: 1}), nil)
	if len(r.records) != 3 || r.records[0].Position != result.Position || r.records[2].Position != result.Position {
		t.Errorf("the batch at %d came as %+v", result.Position, r.records)
	}
}

// Reads are bounded in number and memory, and give both back.
func TestP9_ReadsAreBounded(t *testing.T) {
	h := newLog(t, 256<<20)
	d := h.connect()
	id := d.stream("orders", 1)
	for i := range session.MaxReads {
		d.ask(&wire.Read{Follow: true, Stream: id, Value: uint64(i), Credit: 0})
	}
	d.ask(&wire.Read{Stream: id, Credit: plenty})
	d.refused(wire.CodeBusy)
	other := h.connect()
	other.collect(other.ask(&wire.Read{Stream: id, Credit: plenty}), nil).isFrom(t, 0, 1)
	d.leave()
	before := h.budget.Used()
	if before > 4<<20 {
		t.Errorf("%d bytes in use after the reads' session has ended", before)
	}
	poor := newLog(t, session.SessionBytes+100<<10).connect()
	id = poor.stream("orders", 1)
	poor.ask(&wire.Read{Stream: id, Credit: plenty})
	poor.refused(wire.CodeOutOfMemory)
}

// A reader that takes nothing does not keep the appends of another session waiting.
func TestP9_SlowReaderHindersNobody(t *testing.T) {
	h := newLog(t, testBudget)
	slow := h.dialSlow()
	writer := h.connect()
	id := writer.stream("orders", 5000)
	slow.write(hello.AppendTo(nil, 0))
	slow.write((&wire.Read{Follow: true, Stream: id, Credit: plenty}).AppendTo(nil, 1))
	for i := range 20 {
		writer.fill(id, 5000+500*i, 5000+500*(i+1))
	}
	close(slow.hold)
	var w wire.Welcome
	slow.expect(wire.TypeWelcome, &w)
	slow.collect(1, func(r *reading) bool { return len(r.records) >= 15000 }).isFrom(t, 0, 15000)
}
