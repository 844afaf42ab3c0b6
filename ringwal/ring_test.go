package ringwal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestRecordEndingExactlyAtTheRingEnd(t *testing.T) {
	r := newRig(t, tiny, tiny.CapacityBytes-4*4096).start(false) // the checkpoint takes one block
	r.write('a', 3*4096-FrameHeaderBytes)                        // to the last byte of the ring
	if r.log.Head()%tiny.CapacityBytes != 0 {
		t.Fatalf("head is %d", r.log.Head())
	}
	b := r.write('b', 10)
	if kinds := r.kinds(); kinds != "checkpoint data data" || r.offset(b-FrameHeaderBytes) != RingStart {
		t.Fatalf("frames: %s", kinds)
	}
	r.holds("ab")
	// The trim position lies exactly at the ring's end.
	r = newRig(t, tiny, tiny.CapacityBytes-4*4096).start(false)
	r.write('a', 3*4096-FrameHeaderBytes)
	r.checkpoint([]byte("0123456789abcdef"))
	r.trimToCheckpoint()
	if r.log.Trim()%tiny.CapacityBytes != 0 {
		t.Fatalf("trim is %d", r.log.Trim())
	}
	r.write('b', 10)
	r.holds("b")
	r.start(false).write('c', 10)
	r.holds("bc")
}

// kinds are the kinds of the durable frames, in order.
func (r *rig) kinds() string {
	s := ""
	for i, f := range r.durable {
		if i > 0 {
			s += " "
		}
		s += f.Kind.String()
	}
	return s
}

func TestPadFillsTheRingsEnd(t *testing.T) {
	for gap := range 4 { // blocks between the checkpoint and the ring's end
		r := newRig(t, tiny, tiny.CapacityBytes-uint64(1+gap)*4096).start(false)
		r.write('a', 4*4096-FrameHeaderBytes)
		want := "checkpoint pad data"
		if gap == 0 {
			want = "checkpoint data"
		}
		if got := r.kinds(); got != want {
			t.Fatalf("gap of %d blocks: %s", gap, got)
		}
		if gap > 0 {
			pad := r.durable[1]
			if len(pad.Buf) != 4096 || int(pad.LengthBytes) != gap*4096 || pad.End()%tiny.CapacityBytes != 0 {
				t.Fatalf("gap of %d blocks: %+v", gap, pad.FrameHeader)
			}
		}
		r.holds("a")
	}
}

// What is refused uses up nothing: no pad either.
func TestFullLogWritesNoPad(t *testing.T) {
	r := newRig(t, tiny, tiny.CapacityBytes-2*4096).start(false)
	r.log.limits[ClassAppend] = 3 * 4096
	if _, err := r.tryPut('a', 5000); !errors.Is(err, ErrFull) || r.log.QueuedBytes() != 0 || r.log.Used() != 4096 {
		t.Fatalf("%v, used %d", err, r.log.Used())
	}
}

// A pad may be where the log begins.
func TestPadAtTheTrimPosition(t *testing.T) {
	r := newRig(t, tiny, tiny.CapacityBytes-3*4096).start(false)
	r.write('a', 10)
	r.write('b', 4*4096-FrameHeaderBytes)
	pad := r.durable[2]
	r.checkpoint([]byte("0123456789abcdef"))
	if pad.Kind != FramePad {
		t.Fatal(r.kinds())
	}
	if err := r.log.SetTrim(pad.Position, pad.PrevSum); err != nil {
		t.Fatal(err)
	}
	r.superblocks()
	r.holds("b")
	r.start(true)
	r.holds("b")
}

func TestCheckpointAcrossTheRingEnd(t *testing.T) {
	for off := range uint64(16) {
		r := newRig(t, tiny, tiny.CapacityBytes-(off+1)*4096).start(false)
		state := make([]byte, 40<<10)
		for i := range state {
			state[i] = byte(i / 100)
		}
		r.write('a', 10)
		r.checkpoint(state)
		r.write('b', 10)
		got := ""
		if _, err := r.recover(Visitor{Checkpoint: func(_ uint64, b []byte) error { got = string(b); return nil }}); err != nil || got != string(state) {
			t.Fatalf("%d blocks before the end: %d bytes of state, %v", off, len(got), err)
		}
		r.holds("ab")
	}
}

// wrapAround drives a log until it has wrapped that often, trimming as it goes, with
// restarts, and checks the items that recovery finds now and then.
func wrapAround(t *testing.T, g Geometry, origin uint64, wraps int) {
	rng := rand.New(rand.NewPCG(testSeed(t), 2))
	r := newRig(t, g, origin).start(false)
	end := origin + uint64(wraps)*g.CapacityBytes
	var kept string
	starts := 0
	for r.log.Head() < end {
		value := byte('a' + rng.IntN(26))
		n := 1 + rng.IntN(g.MaxItemBytes())
		if _, err := r.tryPut(value, n); err == nil {
			kept += string(value)
			r.drain()
			continue
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		r.checkpoint([]byte("0123456789abcdef"))
		if rng.IntN(10) == 0 {
			r.holds(kept)
			r.log.Seal(0)
			r.drain()
			jump := rng.IntN(2) == 0
			if jump && errors.Is(r.begin(jump), ErrFull) {
				jump = false
			}
			r.start(jump)
			starts++
			if r.log.Used() > g.Limit(ClassControl) {
				r.trimToCheckpoint()
				kept = ""
			}
			continue
		}
		r.trimToCheckpoint()
		kept = ""
	}
	r.holds(kept)
	if starts == 0 {
		t.Fatal("no restart")
	}
}

func TestLogWrapsAThousandTimes(t *testing.T) {
	g := Geometry{BlockBytes: 4096, MaxFrameBytes: 8 << 10, CapacityBytes: 33 * 4096, WindowBytes: 16 << 10, CheckpointMaxBytes: 64}
	wrapAround(t, g, 0, 1000)
}

func TestPositionsNearTwoToThe63(t *testing.T) {
	g := tiny
	g.CapacityBytes -= 5 * 4096 // so that the ring's end is no round number
	wrapAround(t, g, 1<<63, 50)
	wrapAround(t, g, 1<<63-3*4096, 50)
}

// A frame may fill the ring but for one block, which the checkpoint before it takes.
func TestFrameThatFillsTheRingButForOneBlock(t *testing.T) {
	for origin := range uint64(16) {
		capacity := uint64(64 << 10)
		g := Geometry{BlockBytes: 4096, MaxFrameBytes: uint32(capacity), CapacityBytes: capacity, WindowBytes: capacity}
		r := newRig(t, g, (capacity-4096)+capacity*origin) // the checkpoint takes the ring's last block
		if err := r.begin(false); err != nil {
			t.Fatal(err)
		}
		r.superblocks()
		r.checkpoint(nil)
		r.log.limits[ClassAppend] = capacity // no reserves
		if _, err := r.tryPut('x', int(capacity)-FrameHeaderBytes); !errors.Is(err, ErrFull) {
			t.Fatalf("a frame that fills all of the ring: %v", err)
		}
		r.write('a', int(capacity-4096)-FrameHeaderBytes)
		if r.log.Used() != capacity {
			t.Fatalf("used %d", r.log.Used())
		}
		r.holds("a")
		if _, err := r.tryPut('b', 1); !errors.Is(err, ErrFull) || r.log.Seal(0) {
			t.Fatalf("a full ring: %v", err)
		}
		if err := r.log.Checkpoint(nil); !errors.Is(err, ErrFull) {
			t.Fatalf("a full ring: %v", err)
		}
		// A start has no room to jump, and says so before it writes anything. Without a jump it
		// needs none: the checkpoint that it found will do.
		before := fmt.Sprintf("%x", r.d.b[:RingStart])
		if err := r.begin(true); !errors.Is(err, ErrFull) || fmt.Sprintf("%x", r.d.b[:RingStart]) != before {
			t.Fatalf("a start without room: %v", err)
		}
		if err := r.begin(false); err != nil {
			t.Fatalf("a start that needs no room: %v", err)
		}
	}
}

func TestSmallestLegalLog(t *testing.T) {
	d := newDisk(MinLogBytes, 4096)
	sb, err := Format(d, FormatOptions{UUID: testUUID, Node: "small"})
	if err != nil {
		t.Fatal(err)
	}
	r := (&rig{t: t, d: d}).start(false)
	n := 0
	for ; ; n++ {
		if _, err := r.tryPut('x', 64<<10); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			r.drain()
		}
	}
	r.drain()
	// A full one can be started again, with a jump, and then it takes the largest
	// checkpoint and a trim.
	r.start(true)
	r.checkpoint(make([]byte, sb.CheckpointMaxBytes))
	r.trimToCheckpoint()
	r.write('y', 64<<10)
	r.holds("y")
	if n < 150 {
		t.Fatalf("only %d records of 64 KiB fit the smallest log", n)
	}
}

// Starts of a full log, each crashing before it could trim, come to an end where there
// is no room, and say so; a checkpoint that is the last frame is not written again.
func TestStartsOfAFullLog(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	for {
		if _, err := r.tryPut('x', 3000); errors.Is(err, ErrFull) {
			break
		}
		r.drain()
	}
	want, err := r.items()
	if err != nil {
		t.Fatal(err)
	}
	r.start(false)
	head := r.log.Head()
	for range 100 { // ordinary restarts use up nothing
		r.start(false)
	}
	if r.log.Head() != head {
		t.Fatalf("head moved from %d to %d", head, r.log.Head())
	}
	jumps := 0
	for ; ; jumps++ {
		if err := r.begin(true); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		r.superblocks()
	}
	r.holds(want)
	if jumps < 2 {
		t.Fatalf("room for %d jumps only", jumps)
	}
	r.start(false).checkpoint([]byte("0123456789abcdef"))
	r.trimToCheckpoint()
	r.write('y', 10)
	r.holds("y")
}
