package ringwal

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

func TestLogWritesAndRecovers(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	first := r.write('a', 100)
	r.put('b', 100)
	second := r.put('c', 50)
	r.drain()
	// One block holds the checkpoint; the frame of a follows, then that of b and c.
	if first != 4096+FrameHeaderBytes || second != 2*4096+FrameHeaderBytes+104 {
		t.Fatalf("items at %d and %d", first, second)
	}
	r.holds("ab")
	if r.rec.End != 3*4096 || r.rec.Frames != 3 || r.rec.Records != 3 || r.rec.CheckpointIsLast {
		t.Fatalf("%+v", r.rec)
	}
}

func TestNoFrameBeforeTheSuperblockIsInForce(t *testing.T) {
	r := newRig(t, tiny, 0)
	if err := r.begin(false); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if _, _, err := r.log.Reserve(ClassAppend, 1, 1); !errors.Is(err, ErrWait) {
			t.Fatalf("%s: Reserve: %v", when, err)
		}
		if err := r.log.Checkpoint(nil); !errors.Is(err, ErrWait) {
			t.Fatalf("%s: Checkpoint: %v", when, err)
		}
		if r.log.Seal(0) || r.log.Next(0) != nil || r.log.SuperblockInForce() {
			t.Fatalf("%s: the log was ready", when)
		}
	}
	refused("before the first copy")
	offset, b, _ := r.log.NextSuperblock(0)
	_ = r.d.WriteSync(b, offset)
	refused("the first copy under way")
	r.log.SuperblockDone(nil, 0)
	refused("one copy")
	r.superblocks()
	if !r.log.SuperblockInForce() {
		t.Fatal("both copies are written")
	}
	r.checkpoint(nil)
	// The same in the second epoch of a log that has its checkpoint.
	if err := r.begin(false); err != nil {
		t.Fatal(err)
	}
	refused("the second start")
}

// A new log opens its doors only after a superblock in force records its first
// checkpoint as durable.
func TestDurableMovesOverTheContiguousPrefix(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	base := r.log.Durable()
	a, b, c := r.issue('a', 10), r.issue('b', 10), r.issue('c', 10)
	if got := r.log.Complete(c, nil, 0); got != base {
		t.Fatalf("durable moved to %d over a hole", got)
	}
	if got := r.log.Complete(a, nil, 0); got != a.End() {
		t.Fatalf("durable is %d, want %d", got, a.End())
	}
	if f := r.log.PopDurable(); f != a || r.log.PopDurable() != nil {
		t.Fatalf("popped %v", f)
	}
	if got := r.log.Complete(b, nil, 0); got != c.End() {
		t.Fatalf("durable is %d, want %d", got, c.End())
	}
	if x, y := r.log.PopDurable(), r.log.PopDurable(); x != b || y != c {
		t.Fatal("popped out of order")
	}
	if a.Durable != base || c.Durable != base || b.PrevSum != a.Sum || c.PrevSum != b.Sum {
		t.Fatal("the chain is wrong")
	}
}

func TestP10_FailedWriteStopsTheLog(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	base := r.log.Durable()
	a, b := r.issue('a', 10), r.issue('b', 10)
	cause := &device.Error{Op: device.OpWrite, Path: "/dev/test", Err: device.ErrIO}
	r.log.Complete(b, cause, 0)
	if err := r.log.Err(); !errors.Is(err, ErrWriteFailed) || !errors.Is(err, device.ErrIO) {
		t.Fatalf("sticky error is %v", err)
	}
	// a completes afterwards; nothing becomes durable, nothing more is written.
	if got := r.log.Complete(a, nil, 0); got != base || r.log.PopDurable() != nil {
		t.Fatalf("durable moved to %d after the failure", got)
	}
	if _, err := r.tryPut('c', 10); !errors.Is(err, ErrWriteFailed) {
		t.Fatalf("Reserve: %v", err)
	}
	if err := r.log.Checkpoint(nil); !errors.Is(err, ErrWriteFailed) {
		t.Fatalf("Checkpoint: %v", err)
	}
	if err := r.log.MarkClean(); !errors.Is(err, ErrWriteFailed) {
		t.Fatalf("MarkClean: %v", err)
	}
	if err := r.log.SetTrim(4096, 0); !errors.Is(err, ErrWriteFailed) {
		t.Fatalf("SetTrim: %v", err)
	}
	r.log.RecordDurable()
	r.log.CloseFrame(0)
	if _, _, ok := r.log.NextSuperblock(0); ok || r.log.Next(0) != nil || r.log.Seal(0) {
		t.Fatal("the log went on")
	}
	r.log.Fail(errors.New("later"))
	if !errors.Is(r.log.Err(), ErrWriteFailed) {
		t.Fatal("the first error did not stay")
	}
}

func TestP10_FailedSuperblockWriteStopsTheLog(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.log.RecordDurable()
	_, _, _ = r.log.NextSuperblock(0)
	r.log.SuperblockDone(&device.Error{Op: device.OpWrite, Err: device.ErrReservationConflict}, 0)
	if err := r.log.Err(); !errors.Is(err, ErrWriteFailed) || !errors.Is(err, device.ErrReservationConflict) {
		t.Fatalf("sticky error is %v", err)
	}
}

func TestStallThresholds(t *testing.T) {
	const second = int64(time.Second)
	r := newRig(t, tiny, 0).start(false) // L is 10 s
	if got := r.log.CheckStall(1 << 60); got != StallNone {
		t.Fatalf("idle: %v", got)
	}
	r.now = 100 * second
	f := r.issue('a', 10)
	for _, c := range []struct {
		after time.Duration
		want  StallState
	}{{0, StallNone}, {999 * time.Millisecond, StallNone}, {time.Second, StallDegraded}, {9999 * time.Millisecond, StallDegraded}, {10 * time.Second, StallFatal}} {
		if got := r.log.CheckStall(r.now + int64(c.after)); got != c.want {
			t.Fatalf("after %s: state %d, want %d", c.after, got, c.want)
		}
	}
	if !errors.Is(r.log.Err(), ErrStalled) {
		t.Fatalf("sticky error is %v", r.log.Err())
	}
	if r.log.Complete(f, nil, r.now+11*second); r.log.PopDurable() != nil {
		t.Fatal("a frame became durable after the stall")
	}
}

// A machine that was paused sees the completion late: the write has failed, though
// the device says it did not, because another owner may have the log by now.
func TestP10_CompletionSeenAfterTheLimitIsAFailure(t *testing.T) {
	limit := int64(DefaultStallAfter)
	r := newRig(t, tiny, 0).start(false)
	base := r.log.Durable()
	f := r.issue('a', 10)
	if got := r.log.Complete(f, nil, limit); got != base || !errors.Is(r.log.Err(), ErrStalled) {
		t.Fatalf("durable %d, %v", got, r.log.Err())
	}

	r = newRig(t, tiny, 0).start(false)
	f = r.issue('a', 10)
	if got := r.log.Complete(f, nil, limit-1); got != f.End() {
		t.Fatalf("in time: %v", r.log.Err())
	}
	r.log.RecordDurable()
	_, _, _ = r.log.NextSuperblock(0)
	if got := r.log.CheckStall(limit / DegradedShare); got != StallDegraded {
		t.Fatalf("a slow superblock: state %d", got)
	}
	r.log.SuperblockDone(nil, limit)
	if !errors.Is(r.log.Err(), ErrStalled) {
		t.Fatalf("superblock seen late: %v", r.log.Err())
	}

	r = newRig(t, tiny, 0).start(false)
	_ = r.issue('a', 10)
	r.put('b', 10)
	r.log.CloseFrame(0)
	if r.log.Next(limit) != nil || !errors.Is(r.log.Err(), ErrStalled) {
		t.Fatal("a frame went out behind a stalled one")
	}
}

func TestWindowIsNeverExceeded(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 1))
	r := newRig(t, tiny, 0).start(false)
	var flight []*Frame
	for range 20000 {
		if head, durable := r.log.Head(), r.log.Durable(); head-durable > tiny.WindowBytes {
			t.Fatalf("head %d, durable %d", head, durable)
		}
		switch rng.IntN(4) {
		case 0, 1:
			if _, err := r.tryPut('x', 1+rng.IntN(tiny.MaxItemBytes())); err != nil && !errors.Is(err, ErrWait) && !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
		case 2:
			r.log.CloseFrame(0)
			if f := r.log.Next(0); f != nil {
				if f.End()-f.Durable > tiny.WindowBytes {
					t.Fatalf("frame [%d, %d) issued at durable %d", f.Position, f.End(), f.Durable)
				}
				flight = append(flight, f)
			}
		case 3:
			if len(flight) == 0 {
				continue
			}
			i := rng.IntN(len(flight))
			r.land(flight[i])
			r.log.Complete(flight[i], nil, 0)
			flight = append(flight[:i], flight[i+1:]...)
			for f := r.log.PopDurable(); f != nil; f = r.log.PopDurable() {
				r.log.Release(f)
			}
		}
		if r.log.Room(ClassAppend) < 64<<10 && len(flight) == 0 {
			r.drain()
			r.checkpoint([]byte("0123456789abcdef"))
			r.trimToCheckpoint()
		}
	}
	if _, err := r.items(); err != nil {
		t.Fatal(err)
	}
}

// trimToCheckpoint trims everything before the newest checkpoint.
func TestReserveWaitsForBuffers(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.buf.empty = true
	if _, err := r.tryPut('a', 10); !errors.Is(err, ErrWait) {
		t.Fatalf("no buffers: %v", err)
	}
	r.buf.empty = false
	r.write('a', 10)
	r.holds("a")
}

func TestItemSizes(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	for _, n := range []int{-1, 0, tiny.MaxItemBytes() + 1} {
		if _, _, err := r.log.Reserve(ClassAppend, n, 1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	r.write('a', tiny.MaxItemBytes())
	r.write('b', 1)
	r.holds("ab")
}

// Several items share a frame up to the limit; a longer one has a frame of its own.
func TestLimitedFrames(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.log.LimitFrames(2*4096 + 100)
	before := len(r.durable)
	for _, n := range []int{4000, 4000, 3000, 12_100, 100} {
		r.put('a', n)
	}
	if got := r.log.NextBytes(); got != 2*4096 {
		t.Errorf("the next frame has %d bytes", got)
	}
	r.drain()
	var lengths []uint32
	for _, f := range r.durable[before:] {
		lengths = append(lengths, f.LengthBytes)
	}
	if want := []uint32{2 * 4096, 4096, 12 << 10, 4096}; !slices.Equal(lengths, want) {
		t.Errorf("frames of %d bytes, want %d", lengths, want)
	}
	if got := r.log.NextBytes(); got != 0 {
		t.Errorf("nothing is left, and the next frame has %d bytes", got)
	}
}

// What is not filled of a frame is zero, whatever the buffer held.
func TestPaddingIsZero(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.put('a', 3)
	r.put('b', 5)
	r.drain()
	f := r.durable[len(r.durable)-1]
	body := f.Buf[FrameHeaderBytes:]
	if got := string(body[:16]); got != "aaa\x00\x00\x00\x00\x00bbbbb\x00\x00\x00" {
		t.Fatalf("body starts %q", got)
	}
	if strings.Trim(string(body[16:]), "\x00") != "" || f.BodyBytes != 16 || f.Items != 2 || f.Records != 2 || f.LengthBytes != 4096 {
		t.Fatalf("%+v", f.FrameHeader)
	}
}

func TestClassesOfRoom(t *testing.T) {
	g := tiny
	system := 2*g.CheckpointBytes(48<<10) + 64<<10 + 16<<10 + 4096
	if got := g.SystemReserveBytes(); got != system || g.CheckpointBytes(48<<10) != 52<<10 {
		t.Fatalf("system reserve %d", got)
	}
	if g.ControlReserveBytes() != 64<<10 {
		t.Fatalf("control reserve %d", g.ControlReserveBytes())
	}
	r := newRig(t, tiny, 0).start(false)
	fill := func(c Class) uint64 {
		for {
			_, _, err := r.log.Reserve(c, 4096-FrameHeaderBytes, 1) // one block each
			if errors.Is(err, ErrFull) {
				return r.log.Used()
			}
			if err != nil {
				t.Fatal(err)
			}
			r.drain()
		}
	}
	for _, c := range []struct {
		class Class
		used  uint64
	}{
		{ClassAppend, 1<<20 - system - 64<<10},
		{ClassControl, 1<<20 - system - 32<<10},
		{ClassFree, 1<<20 - 52<<10 - 16<<10 - 4096},
	} {
		if got := fill(c.class); got != c.used || r.log.Room(c.class) != 0 {
			t.Errorf("class %d filled the log up to %d, want %d", c.class, got, c.used)
		}
	}
	// The rest holds a checkpoint; after a trim there is room again.
	r.checkpoint(make([]byte, 48<<10))
	if r.log.Err() != nil || !r.log.Seal(0) {
		t.Fatal("no room left for a seal")
	}
	r.drain()
	r.trimToCheckpoint()
	r.write('z', 10)
	r.holds("z")
}

func TestP12_FullHealsAfterATrim(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	for range 50 {
		for {
			_, err := r.tryPut('x', 3000)
			if errors.Is(err, ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			r.drain()
		}
		head := r.log.Head()
		if _, err := r.tryPut('x', 3000); !errors.Is(err, ErrFull) || r.log.Head() != head {
			t.Fatalf("refused, and the head moved from %d to %d", head, r.log.Head())
		}
		r.checkpoint([]byte("0123456789abcdef"))
		r.trimToCheckpoint()
	}
	if _, err := r.items(); err != nil {
		t.Fatal(err)
	}
}

func TestSealProvesTheLastGroupOnce(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	if r.log.Seal(0) {
		t.Fatal("a seal behind a start, whose superblock is the proof")
	}
	r.write('a', 10)
	if !r.log.Seal(0) {
		t.Fatal("no seal behind a record")
	}
	if r.log.Seal(0) {
		t.Fatal("a seal while another is queued")
	}
	r.drain()
	seal := r.durable[len(r.durable)-1]
	if seal.Kind != FrameSeal || seal.Durable != seal.Position {
		t.Fatalf("%+v", seal.FrameHeader)
	}
	if r.log.Seal(0) {
		t.Fatal("a seal was sealed")
	}
	// A superblock is a proof too.
	r.write('b', 10)
	r.log.RecordDurable()
	r.superblocks()
	if r.log.Seal(0) {
		t.Fatal("a seal, though the superblock says durable")
	}
	f := r.issue('c', 10)
	if r.log.Seal(0) {
		t.Fatal("a seal while a frame is in flight")
	}
	r.land(f)
	r.log.Complete(f, nil, 0)
	if !r.log.Seal(0) {
		t.Fatal("no seal behind c")
	}
	r.drain()
	r.holds("abc")
}

func TestMarkClean(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	f := r.issue('a', 10)
	if err := r.log.MarkClean(); !errors.Is(err, ErrWait) {
		t.Fatalf("a frame is in flight: %v", err)
	}
	r.land(f)
	r.log.Complete(f, nil, 0)
	r.log.Seal(0)
	r.drain()
	if err := r.log.MarkClean(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Reserve":    func() error { _, err := r.tryPut('b', 1); return err }(),
		"Checkpoint": r.log.Checkpoint(nil),
		"SetTrim":    r.log.SetTrim(1<<20, 0),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after MarkClean: %v", name, err)
		}
	}
	r.superblocks()
	r.holds("a")
	if sb := r.sbs.Newest; !sb.Clean || sb.Durable != r.rec.End {
		t.Fatalf("clean %v, durable %d of %d", sb.Clean, sb.Durable, r.rec.End)
	}
	// The next start takes the mark away before it writes a frame.
	if err := r.begin(false); err != nil || r.log.Superblock().Clean {
		t.Fatalf("%v, %+v", err, r.log.Superblock())
	}
	r.superblocks()
	if sbs, _ := ReadSuperblocks(r.d); sbs.Newest.Clean || sbs.Newest.Epoch != 2 {
		t.Fatalf("%+v", sbs.Newest)
	}
}

// The write path allocates nothing per frame or record.
func TestNoAllocations(t *testing.T) {
	g := tiny
	r := newRig(t, g, 0).start(false)
	buffers := &oneBuffer{alignedBytes(int(g.MaxFrameBytes), 4096)}
	r.log.buffers = buffers
	r.log.limits[ClassAppend] = 1 << 62
	got := testing.AllocsPerRun(1000, func() {
		for range 8 {
			dst, _, err := r.log.Reserve(ClassAppend, 300, 1)
			if err != nil {
				panic(err)
			}
			dst[0] = 1
		}
		r.log.CloseFrame(1)
		for f := r.log.Next(2); f != nil; f = r.log.Next(2) {
			r.log.Complete(f, nil, 3)
		}
		for f := r.log.PopDurable(); f != nil; f = r.log.PopDurable() {
			r.log.Release(f)
		}
		r.log.CheckStall(4)
	})
	if got != 0 {
		t.Fatalf("%v allocations per frame of 8 records", got)
	}
}

type oneBuffer struct{ b []byte }

func (o *oneBuffer) Acquire(_ uint64, n int) []byte { return o.b[:n] }
func (o *oneBuffer) Shrink(uint64, int)             {}
