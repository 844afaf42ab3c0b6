package ringwal

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

func TestTornTailIsCutOff(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.issue('b', 10) // never lands
	r.holds("a")
	r.start(false).write('c', 10)
	r.holds("ac")
}

// A frame beyond a hole was never acked. It does not come back when the hole is
// filled later, nor after another crash.
func TestP3_GhostsStayAway(t *testing.T) {
	for _, jump := range []bool{false, true} {
		t.Run(fmt.Sprintf("jump=%v", jump), func(t *testing.T) {
			r := newRig(t, tiny, 0).start(false)
			r.write('a', 10)
			r.issue('b', 10)         // the hole
			r.land(r.issue('X', 10)) // the ghost: landed, behind the hole
			r.land(r.issue('Y', 10)) // another
			r.holds("a")
			if r.rec.GhostFrames != 2 {
				t.Fatalf("%d ghosts", r.rec.GhostFrames)
			}
			// The second epoch is the same length as the hole: it ends where the
			// ghost begins, and crashes.
			r.start(jump)
			r.holds("a")
			if !r.rec.CheckpointIsLast {
				t.Fatal("the checkpoint fills the hole")
			}
			// And again, twice, and a record in between.
			r.start(jump)
			r.holds("a")
			r.start(jump).write('c', 10)
			r.holds("ac")
			r.start(jump)
			r.holds("ac")
		})
	}
}

// A ghost whose hole is filled by the very frame that its owner meant to put there
// still is void: the write landed late, when the next epoch had begun elsewhere.
func TestP3_LateWritesOfTheFormerOwnerAreVoid(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	old := r.issue('b', 10)
	r.start(true)
	if r.log.Head() < old.Position+tiny.WindowBytes {
		t.Fatalf("the start did not jump: head %d", r.log.Head())
	}
	r.write('c', 10)
	r.land(old) // late
	r.holds("ac")
	r.start(false).write('d', 10)
	r.holds("acd")
}

func TestJumpWithTheWindowAtTheRingEnd(t *testing.T) {
	for off := range uint64(20) {
		r := newRig(t, tiny, tiny.CapacityBytes-off*4096).start(false)
		r.write('a', 10)
		b := r.issue('b', 9000)
		r.land(r.issue('X', 10))
		r.start(true)
		r.write('c', 9000)
		r.write('d', 9000)
		r.land(b)
		r.holds("acd")
		r.start(true).start(true).start(false)
		r.holds("acd")
	}
}

// A start that crashes before its first frame leaves a boundary that follows the same
// frame as the next one: only the newest is kept.
func TestStartsThatWriteNothing(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.issue('b', 10)
	r.land(r.issue('X', 10))
	next := r.log.Durable()
	for i, jump := range []bool{false, true, false, true} {
		if err := r.begin(jump); err != nil {
			t.Fatal(err)
		}
		if i == 1 || i == 3 {
			next += tiny.WindowBytes
		}
		r.superblocks()
		sbs, _ := ReadSuperblocks(r.d)
		boundaries := sbs.Newest.Boundaries
		newest := boundaries[len(boundaries)-1]
		if len(boundaries) != 2 || newest.FollowEnd != 2*4096 || newest.Start != next || newest.Epoch != r.epoch {
			t.Fatalf("start %d: boundaries %+v, want the newest at %d", i, boundaries, next)
		}
		if sbs.Newest.Durable != 2*4096 {
			t.Fatalf("start %d recorded %d as durable", i, sbs.Newest.Durable)
		}
		r.holds("a")
		if r.rec.End != 2*4096 || r.rec.Next != next {
			t.Fatalf("start %d: end %d, next %d", i, r.rec.End, r.rec.Next)
		}
		// A tick in between must not call durable what was jumped over.
		r.log.RecordDurable()
		r.superblocks()
		r.holds("a")
	}
	r.start(false).write('c', 10)
	r.holds("ac")
}

func TestP7_HoleBelowWhatALaterFrameCarries(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	b := r.write('b', 10) - FrameHeaderBytes
	c := r.write('c', 10) - FrameHeaderBytes // carries the end of b as durable
	r.holds("abc")
	r.wipe(b)
	r.damaged(b, c)

	// Torn, not damaged, if what follows carries no more than the hole's position.
	r = newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.issue('b', 10)
	r.land(r.issue('c', 10))
	r.holds("a")
}

// One surviving header is enough: it was written by the owner, and its header's sum
// covers the durable position.
func TestP7_HeaderOfATornFrameProves(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	b := r.write('b', 5000) - FrameHeaderBytes
	c := r.write('c', 5000) - FrameHeaderBytes
	r.wipe(b + 4096) // the second block of b
	r.wipe(c + 4096) // and of c
	r.damaged(b, c)
}

func TestP7_HoleBelowTheSuperblocksDurablePosition(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	b := r.write('b', 10) - FrameHeaderBytes
	r.log.RecordDurable()
	r.superblocks()
	r.holds("b")
	r.wipe(b)
	r.damaged(b, b+4096)
}

func TestP7_HoleBelowABoundary(t *testing.T) {
	for _, jump := range []bool{false, true} {
		r := newRig(t, tiny, 0).start(false)
		b := r.write('b', 10) - FrameHeaderBytes
		if err := r.begin(jump); err != nil {
			t.Fatal(err)
		}
		r.superblocks()
		// No durable position may help here, only the boundary.
		for i := range r.sbs.Slots {
			if sb := decodeSlot(r.d.b[i*SlotBytes : (i+1)*SlotBytes]).Superblock; sb != nil {
				sb.Durable = sb.Trim
				EncodeSuperblock(r.d.b[i*SlotBytes:], sb)
			}
		}
		r.holds("b")
		r.wipe(b)
		r.damaged(b, b+4096)
	}
}

func TestP7_FrameBeforeABoundaryIsAnotherOne(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('b', 10)
	end := r.log.Durable()
	r.start(false)
	for i := range r.sbs.Slots {
		if sb := decodeSlot(r.d.b[i*SlotBytes : (i+1)*SlotBytes]).Superblock; sb != nil && sb.Epoch == 2 {
			sb.Boundaries[len(sb.Boundaries)-1].FollowSum++
			EncodeSuperblock(r.d.b[i*SlotBytes:], sb)
		}
	}
	r.damaged(end, end)
}

func TestP7_NoCompleteCheckpoint(t *testing.T) {
	// The only checkpoint rots, with everything after it: not an empty log.
	r := newRig(t, tiny, 0).start(false)
	r.wipe(0)
	r.damaged(0, 4096)

	// A new log that crashed before its first checkpoint was recorded is empty.
	r = newRig(t, tiny, 0)
	if err := r.begin(true); err != nil {
		t.Fatal(err)
	}
	r.superblocks()
	if err := r.log.Checkpoint(make([]byte, 40<<10)); err != nil {
		t.Fatal(err)
	}
	f := r.log.Next(0)
	r.land(f)
	r.log.Complete(f, nil, 0)
	r.log.RecordDurable() // a heartbeat must not promise a checkpoint
	r.superblocks()
	r.holds("")
	if r.rec.HasCheckpoint || r.rec.Frames != 1 {
		t.Fatalf("%+v", r.rec)
	}
	r.start(false).write('a', 10)
	r.holds("a")
}

// With a checkpoint of the log trimmed away by a superblock that says so, what is left
// is no log, though every frame of it is whole.
func TestP7_CheckpointTrimmedAway(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	f := r.durable[len(r.durable)-1]
	r.log.checkpoint.newest.Start = f.Position // the bug
	r.log.checkpoint.newest.PrevSum = f.PrevSum
	r.trimToCheckpoint()
	r.damaged(f.Position, f.End())
}

// The set that held the newest superblock is gone and the other one is older: its own
// idea of the log's end is not the end.
func TestP7_LogGoesOnBehindAnOldSuperblock(t *testing.T) {
	for _, jump := range []bool{false, true} {
		r := newRig(t, tiny, 0).start(false)
		r.write('a', 10)
		old := r.d.clone()
		r.start(jump)
		r.write('b', 10)
		copy(r.d.b[:RingStart], old.b[:RingStart]) // both copies were lost writes
		start := r.log.start
		r.damaged(2*4096, start)
	}

	// A lap later the bytes behind the old end are of positions far beyond it.
	r := newRig(t, tiny, 0).start(false)
	old := r.d.clone()
	for range 200 {
		r.write('x', 10000)
		if r.log.Room(ClassAppend) < 20000 {
			r.checkpoint([]byte("0123456789abcdef"))
			r.trimToCheckpoint()
		}
	}
	copy(r.d.b[:RingStart], old.b[:RingStart])
	if _, err := r.items(); !errors.Is(err, ErrDamaged) {
		t.Fatalf("an old superblock found %v", err)
	}
}

// A frame is a link of one chain: with another frame before it, it is none, though all
// else about it is right.
func TestP3_FrameOfAnotherHistory(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	base := r.d.clone()
	r.write('b', 10)
	other := r.issue('C', 10)
	r = r.on(base)
	if err := r.begin(false); err != nil {
		t.Fatal(err)
	}
	// Epoch 1 once more, as if a snapshot of the machine had gone on.
	r.log.identity.Epoch, r.log.identity.IncarnationHash = 1, other.IncarnationHash
	r.log.superblock.started, r.log.superblock.wanted = true, false
	r.write('x', 10)
	r.land(other)
	r.holds("ax")
}

// The frame at the trim position is accepted only from the epoch in force there.
func TestP3_OlderEpochAtTheTrimPosition(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.issue('b', 10)
	ghost := r.issue('X', 10)
	r.land(ghost)
	r.start(false) // its checkpoint fills the hole
	if r.log.Durable() != ghost.Position {
		t.Fatalf("the ghost lies at %d, the log ends at %d", ghost.Position, r.log.Durable())
	}
	r.checkpoint([]byte("0123456789abcdef")) // over the ghost
	r.trimToCheckpoint()
	trim := r.log.Trim()
	if trim != ghost.Position {
		t.Fatalf("trim at %d", trim)
	}
	sbs, _ := ReadSuperblocks(r.d)
	if got := sbs.Newest.Boundaries; len(got) != 1 || got[0].Epoch != 2 || got[0].FollowEnd >= trim {
		t.Fatalf("the boundary that says which epoch is in force at trim is gone: %+v", got)
	}
	// That write is lost, and the ghost is back, with a trim sum that it carries.
	r.land(ghost)
	for i := range r.sbs.Slots {
		if sb := decodeSlot(r.d.b[i*SlotBytes : (i+1)*SlotBytes]).Superblock; sb != nil && sb.Trim == trim {
			sb.TrimPrevSum = ghost.PrevSum
			EncodeSuperblock(r.d.b[i*SlotBytes:], sb)
		}
	}
	if got, err := r.items(); !errors.Is(err, ErrDamaged) {
		t.Fatalf("recovery returned %q, %v", got, err)
	}
}

func TestBoundariesThatAreKept(t *testing.T) {
	sb := &Superblock{Trim: 100}
	for _, b := range []Boundary{{1, 0, 0, 0, 0}, {2, 0, 50, 0, 60}, {3, 0, 100, 0, 100}, {4, 0, 150, 0, 170}, {5, 0, 200, 0, 200}} {
		sb.addBoundary(b)
	}
	epochs := func() (out []uint64) {
		for _, b := range sb.Boundaries {
			out = append(out, b.Epoch)
		}
		return out
	}
	is := func(want ...uint64) {
		t.Helper()
		if fmt.Sprint(epochs()) != fmt.Sprint(want) {
			t.Fatalf("epochs %v, want %v", epochs(), want)
		}
	}
	is(1, 2, 3, 4, 5)
	sb.dropBoundaries() // at or above trim, and the newest below it
	is(2, 3, 4, 5)
	sb.addBoundary(Boundary{Epoch: 6, FollowEnd: 150, Start: 180}) // voids what follows the same frame or a later one
	is(2, 3, 6)
	sb.Trim = 180
	sb.dropBoundaries()
	is(6)
	sb.dropBoundaries()
	is(6)
}

func TestReadErrorIsNotATornTail(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	c := r.write('c', 9000) - FrameHeaderBytes
	end := r.log.Durable()
	r.holds("ac")
	for _, p := range []uint64{0, c, c + 8192, end, end + tiny.WindowBytes} {
		r.d.badFrom = r.offset(p)
		r.d.badTo = r.d.badFrom + 512
		if got, err := r.items(); !errors.Is(err, device.ErrRead) || errors.Is(err, ErrDamaged) {
			t.Errorf("bad sector at %d: %q, %v", p, got, err)
		}
	}
	// Behind everything that recovery has to know, a bad sector is nobody's business.
	r.d.badFrom = r.offset(end + tiny.WindowBytes + uint64(tiny.MaxFrameBytes) + 4096)
	r.d.badTo = int64(len(r.d.b))
	r.holds("ac")
}

func TestVisitorsErrorsEndTheRecovery(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	mine := errors.New("mine")
	if _, err := r.recover(Visitor{Frame: func(*FrameView) error { return mine }}); !errors.Is(err, mine) {
		t.Fatal(err)
	}
	if _, err := r.recover(Visitor{Checkpoint: func(uint64, []byte) error { return &DamageError{From: 1, To: 2, Reason: "differs"} }}); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
}

// A frame that ran past its window shows a bug of its writer: recovery could not have
// told its loss from a torn tail.
func TestFrameBeyondTheWindowIsDamage(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.log.g.WindowBytes = 1 << 20 // the bug
	var last *Frame
	for range 5 {
		last = r.issue('x', tiny.MaxItemBytes())
		r.land(last)
	}
	r.damaged(last.Position, last.End())
}

// A log of another UUID leaves whole frames behind; they are no frames of this one.
func TestFramesOfAnotherLog(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.write('b', 10)
	other := testUUID
	other[0]++
	g := tiny
	if _, err := Format(r.d, FormatOptions{UUID: other, Node: "test", Geometry: &g}); err != nil {
		t.Fatal(err)
	}
	r.holds("")
	r.start(false).write('c', 10)
	r.holds("c")
}

func TestUnfinishedCheckpointIsDropped(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	if err := r.log.Checkpoint(make([]byte, 40<<10)); err != nil {
		t.Fatal(err)
	}
	f := r.log.Next(0)
	r.land(f)
	r.log.Complete(f, nil, 0)
	r.holds("a")
	if r.rec.Checkpoint.Start != 0 || r.rec.CheckpointIsLast {
		t.Fatalf("%+v", r.rec)
	}
	r.start(false).write('b', 10)
	r.holds("ab")
	if r.rec.Checkpoint.Start != f.End() {
		t.Fatalf("%+v", r.rec.Checkpoint)
	}
}

func TestSumOfAFrame(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	f := r.durable[len(r.durable)-1]
	covered := append(append([]byte(nil), f.Buf[:112]...), f.Buf[128:]...)
	if got := xxhash.Sum64(covered); got != f.FrameSum {
		t.Fatalf("frame sum %016x, want %016x", f.FrameSum, got)
	}
	if got := xxhash.Sum64(f.Buf[:120]); got != f.Sum {
		t.Fatalf("header sum %016x, want %016x", f.Sum, got)
	}
}

// What the parts of a checkpoint may not be: of two checkpoints, of two epochs, out of
// order, with anything but a pad between.
func TestPartsThatMakeNoCheckpoint(t *testing.T) {
	sb := version(1, 1)
	part := func(start uint64, part, parts uint32, epoch uint64) *FrameView {
		v := &FrameView{Body: []byte("state")}
		v.Kind, v.Position, v.CheckpointStart, v.Part, v.Parts, v.Epoch = FrameCheckpoint, start+uint64(part)*4096, start, part, parts, epoch
		return v
	}
	kind := func(k FrameKind) *FrameView { return &FrameView{FrameHeader: FrameHeader{Kind: k}} }
	for name, c := range map[string]struct {
		frames []*FrameView
		want   bool
	}{
		"in order":           {[]*FrameView{part(0, 0, 2, 1), part(0, 1, 2, 1)}, true},
		"a pad between":      {[]*FrameView{part(0, 0, 2, 1), kind(FramePad), part(0, 1, 2, 1)}, true},
		"an unfinished one":  {[]*FrameView{part(0, 0, 3, 1), part(4096, 0, 2, 1), part(4096, 1, 2, 1)}, true},
		"no first part":      {[]*FrameView{part(0, 1, 2, 1)}, false},
		"a part left out":    {[]*FrameView{part(0, 0, 3, 1), part(0, 2, 3, 1)}, false},
		"a seal between":     {[]*FrameView{part(0, 0, 2, 1), kind(FrameSeal), part(0, 1, 2, 1)}, false},
		"items between":      {[]*FrameView{part(0, 0, 2, 1), kind(FrameData), part(0, 1, 2, 1)}, false},
		"of two checkpoints": {[]*FrameView{part(0, 0, 2, 1), part(4096, 1, 2, 1)}, false},
		"of two epochs":      {[]*FrameView{part(0, 0, 2, 1), part(0, 1, 2, 2)}, false},
		"of two sizes":       {[]*FrameView{part(0, 0, 3, 1), part(0, 1, 2, 1)}, false},
	} {
		var a assembly
		complete := false
		for _, f := range c.frames {
			var err error
			if complete, err = a.add(f, sb); err != nil {
				t.Fatal(err)
			}
		}
		if complete != c.want || complete && string(a.state) != "statestate" {
			t.Errorf("%s: complete %v, %q", name, complete, a.state)
		}
	}
	sb.CheckpointMaxBytes = 9
	var a assembly
	_, _ = a.add(part(0, 0, 2, 1), sb)
	if _, err := a.add(part(0, 1, 2, 1), sb); !errors.Is(err, ErrDamaged) {
		t.Errorf("over the limit: %v", err)
	}
}

// A frame never reaches over the place where the log itself begins, one lap on.
func TestFrameOverTheTrimPosition(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 5000) // two blocks, behind the checkpoint's one
	r.holds("a")
	for limit, want := range map[uint64]int{3 * 4096: 2, 2 * 4096: 1} {
		src, err := newSource(r.d, tiny, limit)
		if err != nil {
			t.Fatal(err)
		}
		c := newChain(src, NewFrameChecker(r.sbs.Newest), 0, 0)
		n := 0
		for h, _, err := c.step(); h != nil; h, _, err = c.step() {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != want {
			t.Errorf("limit %d: %d frames, want %d", limit, n, want)
		}
		src.close()
	}
}

// A recovery of ten thousand frames allocates what one of ten does.
func TestRecoveryTakesFixedMemory(t *testing.T) {
	allocated := func(frames int) uint64 {
		g := tiny
		g.CapacityBytes = 64 << 20
		r := newRig(t, g, 0).start(false)
		r.log.buffers = &oneBuffer{alignedBytes(int(g.MaxFrameBytes), 4096)}
		r.log.limits[ClassAppend] = 1 << 62
		for range frames {
			r.put('x', 1000)
			r.drain()
			r.durable = r.durable[:0]
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := r.recover(Visitor{Frame: func(*FrameView) error { return nil }}); err != nil || r.rec.Frames != uint64(frames)+1 {
			t.Fatalf("%+v, %v", r.rec, err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := allocated(10), allocated(10000)
	if many > few+16<<10 {
		t.Fatalf("10 frames: %d bytes, 10,000 frames: %d bytes", few, many)
	}
}
