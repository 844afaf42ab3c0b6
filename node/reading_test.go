package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// payloadOf is what record offset of a stream holds: told by its number alone.
func payloadOf(stream, offset uint64) []byte {
	rng := rand.New(rand.NewPCG(stream, offset))
	b := make([]byte, 16+rng.IntN(60_000))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
}

// fillStreams appends count records in turn over the streams, pipelined.
func fillStreams(t *testing.T, d *door, streams []uint64, count int) {
	t.Helper()
	acked := 0
	for i := range count {
		stream, offset := streams[i%len(streams)], uint64(i/len(streams))
		d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payloadOf(stream, offset)}}})
		for i-acked > 50 {
			acked += d.acks()
		}
	}
	for acked < count {
		acked += d.acks()
	}
}

func (d *door) acks() (n int) {
	d.t.Helper()
	var ack wire.AppendAck
	d.decode(d.next(), &ack)
	for _, e := range ack.Extents {
		n += int(e.Requests)
	}
	return n
}

func bigRig(t *testing.T) *rig {
	t.Helper()
	r := newRigOf(t, 160<<20)
	r.cfg.MemoryBytes = 1 // the least hot tail
	return r
}

// Old records come from the device, new ones from memory, in one read without a seam,
// before and after a restart.
func TestReadAcrossMemoryAndDevice(t *testing.T) {
	r := bigRig(t)
	r.reopen()
	d := r.dial()
	var streams []uint64
	for _, name := range []string{"a", "b", "c"} {
		streams = append(streams, d.create(name).ID)
	}
	const perStream = 800 // about 70 MB, the tail holds 20
	fillStreams(t, d, streams, 3*perStream)
	for round := range 2 {
		for _, stream := range streams {
			for _, from := range []uint64{0, 1, perStream / 2, perStream - 1} {
				records, gaps := d.readAll(stream, from)
				if len(records) != int(perStream-from) || len(gaps) != 0 {
					t.Fatalf("round %d, stream %d from %d: %d records, gaps %+v", round, stream, from, len(records), gaps)
				}
				for i := range records {
					rec := &records[i]
					if rec.Offset != from+uint64(i) || !bytes.Equal(rec.Payload, payloadOf(stream, rec.Offset)) || wire.RecordChecksum(rec) != rec.Checksum {
						t.Fatalf("round %d, stream %d: record %d is not what was appended", round, stream, rec.Offset)
					}
				}
			}
		}
		r.reopen()
		d = r.dial()
	}
	r.close()
}

// A replay shows every record of every stream once, in commit order, from any batch.
func TestReplayIsTheLogInCommitOrder(t *testing.T) {
	r := bigRig(t)
	r.reopen()
	d := r.dial()
	streams := []uint64{d.create("a").ID, d.create("b").ID}
	fillStreams(t, d, streams, 1000)
	all := replayAll(t, r.node.Reader(), 0)
	if len(all) != 1000 {
		t.Fatalf("replayed %d records", len(all))
	}
	next := map[stream.ID]uint64{}
	for i, rec := range all {
		if rec.Offset != next[rec.Stream] || i > 0 && rec.Position <= all[i-1].Position || !rec.BatchEnd {
			t.Fatalf("record %d: %+v after position %d", i, rec, all[max(i, 1)-1].Position)
		}
		next[rec.Stream]++
	}
	for _, from := range []int{1, 17, 500, 999} {
		if part := replayAll(t, r.node.Reader(), all[from].Position); len(part) != 1000-from || part[0].Position != all[from].Position {
			t.Fatalf("from record %d: %d records", from, len(part))
		}
		if part := replayAll(t, r.node.Reader(), all[from-1].Position+1); len(part) != 1000-from {
			t.Fatalf("behind record %d: %d records", from-1, len(part))
		}
	}
	r.close()
}

func replayAll(t *testing.T, r *reader.Reader, position uint64) (all []reader.Record) {
	t.Helper()
	p, err := r.OpenReplay(reader.ReplayQuery{Position: position})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for {
		e, err := p.Next(context.Background(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		switch e.Kind {
		case reader.Records:
			for _, rec := range e.Records {
				rec.Payload, rec.Headers = nil, nil
				all = append(all, rec)
			}
		case reader.End:
			return all
		default:
			t.Fatalf("event %+v", e)
		}
	}
}

func openCursor(t *testing.T, r *reader.Reader, q reader.Query) *reader.Cursor {
	t.Helper()
	c, err := r.Open(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func nextEvent(t *testing.T, c *reader.Cursor) reader.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := c.Next(ctx, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A follower is caught up, gets what comes, is told of a trim that passed it, and ends
// with the stream.
func TestFollow(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	s := d.create("s")
	c := openCursor(t, r.node.Reader(), reader.Query{Stream: stream.ID(s.ID), Follow: true})
	if e := nextEvent(t, c); e.Kind != reader.CaughtUp {
		t.Fatalf("an empty stream: %+v", e)
	}
	for i := range 3 {
		var sent sync.WaitGroup
		sent.Go(func() { d.send(one(s.ID, "record")) }) // while the follower waits
		if e := nextEvent(t, c); e.Kind != reader.Records || e.Records[0].Offset != uint64(i) || string(e.Records[0].Payload) != "record" {
			t.Fatalf("record %d: %+v", i, e)
		}
		sent.Wait()
		d.acks()
		if e := nextEvent(t, c); e.Kind != reader.CaughtUp {
			t.Fatalf("after record %d: %+v", i, e)
		}
	}
	d.append(s.ID, []byte("never seen"))
	d.append(s.ID, []byte("seen"))
	d.send(&wire.StreamTrim{Stream: s.ID, Before: 4})
	d.decode(d.next(), &wire.Trimmed{})
	if e := nextEvent(t, c); e.Kind != reader.Gap || e.Gap != (reader.Missing{Kind: reader.Trimmed, From: 3, To: 4}) {
		t.Fatalf("after the trim: %+v", e)
	}
	if e := nextEvent(t, c); e.Kind != reader.Records || e.Records[0].Offset != 4 {
		t.Fatalf("after the gap: %+v", e)
	}
	d.send(&wire.StreamSeal{Stream: s.ID})
	d.decode(d.next(), &wire.StreamInfo{})
	if e := nextEvent(t, c); e.Kind != reader.Gap || e.Gap.Kind != reader.Sealed || e.Gap.From != 5 {
		t.Fatalf("after the seal: %+v", e)
	}
	if e := nextEvent(t, c); e.Kind != reader.End {
		t.Fatalf("after the end: %+v", e)
	}
	r.close()
}

// A follower of a deleted stream is told so, and a reader of one that never was.
func TestReadOfDeletedAndUnknownStreams(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	s := d.create("s")
	c := openCursor(t, r.node.Reader(), reader.Query{Stream: stream.ID(s.ID), Follow: true})
	if e := nextEvent(t, c); e.Kind != reader.CaughtUp {
		t.Fatalf("an empty stream: %+v", e)
	}
	d.send(&wire.StreamDelete{Stream: s.ID})
	d.decode(d.next(), &wire.StreamInfo{})
	if e := nextEvent(t, c); e.Kind != reader.Gap || e.Gap.Kind != reader.Deleted {
		t.Fatalf("after the delete: %+v", e)
	}
	if _, err := r.node.Reader().Open(reader.Query{Stream: stream.ID(s.ID)}); !errors.Is(err, stream.ErrStreamDeleted) {
		t.Fatalf("a deleted stream: %v", err)
	}
	if _, err := r.node.Reader().Open(reader.Query{Stream: 99}); !errors.Is(err, stream.ErrStreamNotFound) {
		t.Fatalf("an unknown stream: %v", err)
	}
	r.close()
}

// Reading by time and from the end start at the right record.
func TestReadByTimeAndFromTheEnd(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	s, other := d.create("s"), d.create("other")
	for i := range 50 {
		d.append(s.ID, []byte{byte(i)})
		d.append(other.ID, []byte{byte(i)})
	}
	records, _ := d.readAll(s.ID, 0)
	for _, i := range []int{0, 1, 25, 49} {
		at := records[i].TimestampNS
		want := uint64(i)
		for want > 0 && records[want-1].TimestampNS == at {
			want--
		}
		c := openCursor(t, r.node.Reader(), reader.Query{Stream: stream.ID(s.ID), From: reader.From{Kind: reader.FromTime, Value: uint64(at)}})
		if e := nextEvent(t, c); e.Kind != reader.Records || e.Records[0].Offset != want {
			t.Fatalf("from the time of record %d: %+v", i, e)
		}
	}
	c := openCursor(t, r.node.Reader(), reader.Query{Stream: stream.ID(s.ID), From: reader.From{Kind: reader.FromTime, Value: uint64(records[49].TimestampNS + 1)}})
	if e := nextEvent(t, c); e.Kind != reader.End {
		t.Fatalf("from after the last record: %+v", e)
	}
	c = openCursor(t, r.node.Reader(), reader.Query{Stream: stream.ID(s.ID), From: reader.From{Kind: reader.FromLast, Value: 7}, MaxRecords: 3})
	if e := nextEvent(t, c); e.Kind != reader.Records || len(e.Records) != 3 || e.Records[0].Offset != 43 {
		t.Fatalf("three of the last seven: %+v", e)
	}
	if e := nextEvent(t, c); e.Kind != reader.End {
		t.Fatalf("after the limit: %+v", e)
	}
	r.close()
}

// Bytes that rot below the durable position are never returned as data.
func TestP7_RotIsNamedWhenItIsRead(t *testing.T) {
	r := bigRig(t)
	r.reopen()
	d := r.dial()
	s := d.create("s")
	fillStreams(t, d, []uint64{s.ID}, 1200) // the first records have left the memory
	flip(t, r, replayAll(t, r.node.Reader(), 0)[3].Position+4096)
	c := openCursor(t, r.node.Reader(), reader.Query{Stream: stream.ID(s.ID)})
	for {
		e, err := c.Next(context.Background(), 1<<20)
		if err != nil {
			if !errors.Is(err, reader.ErrUnreadable) {
				t.Fatalf("error %v", err)
			}
			break
		}
		if e.Kind != reader.Records {
			t.Fatalf("event %+v instead of an error", e)
		}
		for _, rec := range e.Records {
			if !bytes.Equal(rec.Payload, payloadOf(s.ID, rec.Offset)) {
				t.Fatalf("record %d is not what was appended", rec.Offset)
			}
		}
	}
	r.close()
}

// flip changes one bit of the log at position, behind the node's back.
func flip(t *testing.T, r *rig, position uint64) {
	t.Helper()
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	offset := r.node.wal.Geometry().DeviceOffset(position)
	if _, err := f.ReadAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}
