package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

func TestAppendReadRestartRead(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("orders")
	var positions []uint64
	for i := range 100 {
		offset, position := d.append(stream.ID, fmt.Appendf(nil, "record %d", i))
		if offset != uint64(i) {
			t.Fatalf("record %d got offset %d", i, offset)
		}
		if i > 0 && position <= positions[i-1] {
			t.Fatalf("position %d after %d", position, positions[i-1])
		}
		positions = append(positions, position)
	}
	for range 3 {
		records, gaps := d.readAll(stream.ID, 0)
		if len(records) != 100 || len(gaps) != 0 {
			t.Fatalf("read %d records, %d gaps", len(records), len(gaps))
		}
		for i, rec := range records {
			want := fmt.Appendf(nil, "record %d", i)
			if rec.Offset != uint64(i) || rec.Position != positions[i] || !bytes.Equal(rec.Payload, want) || wire.RecordChecksum(&rec) != rec.Checksum {
				t.Fatalf("record %d reads as offset %d, position %d, %q", i, rec.Offset, rec.Position, rec.Payload)
			}
		}
		r.reopen()
		d = r.dial()
		if again := d.create("orders"); again.ID != stream.ID || again.NextOffset != 100 {
			t.Fatalf("after a restart: %+v", again)
		}
	}
	r.close()
}

// slowReads takes a while for what a recovery of an empty log only fetches ahead.
type slowReads struct {
	device.Device
	busy *atomic.Int32
}

func (d slowReads) ReadAt(p []byte, offset int64) (int, error) {
	if offset >= 10<<20 { // beyond the window and a frame
		d.busy.Add(1)
		defer d.busy.Add(-1)
		time.Sleep(300 * time.Millisecond)
	}
	return d.Device.ReadAt(p, offset)
}

// A read that is on its way when the device is closed would keep it claimed, so none is
// once a log is open: who closes it can open it again at once.
func TestAStartLeavesNoReadBehind(t *testing.T) {
	r := newRig(t)
	r.close()
	dev, err := device.Open(r.path, device.OpenOptions{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	slow := slowReads{dev, new(atomic.Int32)}
	n, err := openOn(context.Background(), r.cfg, slow)
	if err != nil {
		t.Fatal(err)
	}
	if busy := slow.busy.Load(); busy != 0 {
		t.Errorf("%d reads of the recovery are on their way", busy)
	}
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// appendUntilFull appends records of size bytes until the log refuses, and returns
// the refusal and the number appended.
func appendUntilFull(t *testing.T, d *door, stream uint64, size int) (*wire.Error, int) {
	t.Helper()
	payload := bytes.Repeat([]byte{'x'}, size)
	for n := 0; ; n++ {
		d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payload}}})
		m := d.next()
		if m.h.Type == wire.TypeAppendAck {
			continue
		}
		e := new(wire.Error)
		if err := e.Decode(m.h, m.body); err != nil {
			t.Fatal(err)
		}
		return e, n
	}
}

// A full log refuses by name of the stream that pins it, and heals by a trim; many
// times over, so that the ring wraps.
func TestP12_FullLogHealsAfterTrim(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	pin, other := d.create("pin"), d.create("other")
	d.append(pin.ID, []byte("the first"))
	for round := range 8 {
		e, n := appendUntilFull(t, d, other.ID, 200<<10)
		if e.Code != wire.CodeLogFull || e.Stream != pin.ID || e.Name != "pin" {
			t.Fatalf("round %d: refused with %v, pinned by %q: %s", round, e.Code, e.Name, e.Hint)
		}
		if n == 0 {
			t.Fatalf("round %d: nothing fits after the trim", round)
		}
		for _, s := range []uint64{pin.ID, other.ID} {
			d.send(&wire.StreamTrim{Stream: s, Before: 1 << 40})
			d.decode(d.next(), &wire.Trimmed{})
		}
		d.append(pin.ID, fmt.Appendf(nil, "round %d", round))
		if round == 3 {
			r.reopen()
			d = r.dial()
		}
	}
	r.reopen()
	d = r.dial()
	if records, _ := d.readAll(pin.ID, 8); len(records) != 1 || string(records[0].Payload) != "round 7" {
		t.Fatalf("the pinning stream reads %d records", len(records))
	}
	if _, gaps := d.readAll(pin.ID, 0); len(gaps) != 1 || gaps[0].Kind != wire.GapTrimmed || gaps[0].To != 8 {
		t.Fatalf("gaps %+v", gaps)
	}
	r.close()
}

// Whatever stops the log, who waits for an append is told that its outcome is unknown.
func TestAStopLeavesOutcomesUnknown(t *testing.T) {
	for _, why := range []error{
		reader.ErrUnreadable, stream.ErrDamaged, ringwal.ErrDamaged, ringwal.ErrFull, ringwal.ErrWriteFailed, ringwal.ErrStalled,
		device.ErrRead, device.ErrReservationConflict, device.ErrInUse, errors.New("something new"),
	} {
		n := &Node{wal: new(ringwal.Log)}
		n.wal.Fail(fmt.Errorf("because: %w", why))
		e := n.stopError()
		if !e.Code.Info().OutcomeUnknown {
			t.Errorf("%v: clients are told %s, as if nothing had been appended", why, e.Code)
		}
		if !strings.Contains(e.Message, why.Error()) {
			t.Errorf("%v: the message is %q", why, e.Message)
		}
	}
}

// The time to full is told in whole seconds, and only while the log grows.
func TestStatusTellsWholeSecondsToFull(t *testing.T) {
	r := newRig(t)
	if s := r.node.Status(); s.SecondsToFull != nil {
		t.Errorf("a log that does not grow is full in %d s", *s.SecondsToFull)
	}
	var room uint64
	r.inLoop(func() {
		r.node.stats.bytesPerSec, r.node.stats.sampleNS = 1_000_000, device.NowNS()+int64(time.Hour) // so that it stays
		room = r.node.committer.AppendRoom()
	})
	var status struct {
		Seconds uint64 `json:"time_to_full_s"` // which no fraction can be read into
	}
	if err := json.Unmarshal(r.node.StatusJSON(), &status); err != nil || status.Seconds != room/1_000_000 {
		t.Errorf("%d bytes at 1 MB/s: full in %d s, %v", room, status.Seconds, err)
	}
	r.close()
}
