package ringwal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// fates are what a crash can do to a write of a block: how many of its first sectors it
// keeps.
var fates = []int{0, 1, 4, 7, 8}

// startUpTo runs a start that crashes in its write number k, of which only the first
// sectors land. It returns false when the start has fewer writes.
func (r *rig) startUpTo(jump bool, k, sectors int) bool {
	r.t.Helper()
	if err := r.begin(jump); err != nil {
		r.t.Fatalf("start: %v", err)
	}
	torn := func(b []byte, offset int64) { copy(r.d.b[offset:], b[:min(len(b), sectors*sectorBytes)]) }
	for {
		offset, b, ok := r.log.NextSuperblock(0)
		if !ok {
			break
		}
		if k--; k < 0 {
			torn(b, offset)
			return true
		}
		r.log.SuperblockDone(r.d.WriteSync(b, offset), 0)
	}
	if r.rec.CheckpointIsLast {
		return false
	}
	if err := r.log.Checkpoint(make([]byte, 13<<10)); err != nil { // two frames
		r.t.Fatal(err)
	}
	for f := r.log.Next(0); f != nil; f = r.log.Next(0) {
		if k--; k < 0 {
			torn(f.Buf, f.Offset)
			return true
		}
		r.log.Complete(f, r.d.WriteSync(f.Buf, f.Offset), 0)
	}
	return false
}

// A start that crashes in any write, of which any part lands, is repeated by another,
// which may crash too, and the log is what it was.
func TestP2_CrashAtEveryWriteOfAStart(t *testing.T) {
	g := randomGeometry
	g.CapacityBytes = 100 * 4096 // room for a few jumps
	r := newRig(t, g, 0).start(false)
	r.write('a', 10)
	r.write('b', 5000)
	r.issue('Y', 10)
	r.land(r.issue('Z', 10))
	base := r.d.clone()
	runs := 0
	for _, jumps := range []int{0, 1, 2, 3} {
		for k := range 4 {
			for _, sectors := range fates {
				r.d = base.clone()
				if !r.startUpTo(jumps&1 != 0, k, sectors) {
					t.Fatalf("a start has only %d writes", k)
				}
				r.holds("ab")
				once := r.d.clone()
				for k2 := range 4 {
					for _, sectors2 := range []int{0, 1, 4, 8} {
						r.d = once.clone()
						r.startUpTo(jumps&2 != 0, k2, sectors2)
						r.holds("ab")
						r.start(false).write('c', 10)
						r.holds("abc")
						runs++
					}
				}
			}
		}
	}
	if runs != 4*4*5*4*4 {
		t.Fatalf("%d runs", runs)
	}
}

// A trim that crashes in either of its writes leaves the old trim or the new one, and
// everything above it.
func TestP2_CrashAtEveryWriteOfATrim(t *testing.T) {
	for k := range 2 {
		for _, sectors := range fates {
			r := newRig(t, tiny, 0).start(false)
			r.write('a', 10)
			r.write('b', 10)
			r.checkpoint([]byte("0123456789abcdef"))
			r.write('c', 10)
			m, _ := r.log.NewestCheckpoint()
			if err := r.log.SetTrim(m.Start, m.PrevSum); err != nil {
				t.Fatal(err)
			}
			for i := range k + 1 {
				offset, b, ok := r.log.NextSuperblock(0)
				if !ok {
					t.Fatal("no superblock to write")
				}
				if i == k {
					copy(r.d.b[offset:], b[:sectors*sectorBytes])
					break
				}
				r.log.SuperblockDone(r.d.WriteSync(b, offset), 0)
			}
			got, err := r.items()
			if err != nil || got != "abc" && got != "c" || k == 1 && got != "c" || k == 0 && sectors == 0 && got != "abc" {
				t.Fatalf("write %d, %d sectors: %q, %v", k, sectors, got, err)
			}
			r.start(false).write('d', 10)
			r.holds(got + "d")
		}
	}
}

// One copy of the superblock holds the new trim, the other the old one. Until both do,
// nothing between the two is written over: the log may have to begin at the old one.
func TestP3_HalfUpdatedSuperblockReusesNothing(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	want := ""
	for range 30 {
		r.write('a', 10000)
		want += "a"
	}
	r.checkpoint([]byte("0123456789abcdef"))
	m, _ := r.log.NewestCheckpoint()
	if err := r.log.SetTrim(m.Start, m.PrevSum); err != nil {
		t.Fatal(err)
	}
	offset, b, _ := r.log.NextSuperblock(0)
	r.log.SuperblockDone(r.d.WriteSync(b, offset), 0)
	after := ""
	for {
		if _, err := r.tryPut('b', 10000); errors.Is(err, ErrFull) {
			break
		}
		r.log.CloseFrame(0)
		f := r.log.Next(0)
		r.land(f)
		r.log.Complete(f, nil, 0)
		after += "b"
	}
	r.holds(after)
	clear(r.d.b[offset : offset+4096]) // the copy with the new trim rots
	r.holds(want + after)
}

// randomLog drives a log at random and crashes it at random.
type randomLog struct {
	t    *testing.T
	rng  *rand.Rand
	rig  *rig
	note []string // the last steps

	items  []submitted // of the log as it stands, the open frame's included
	acked  int         // of items
	nextID uint64

	flight []*Frame // not landed
	landed []*Frame // landed, not completed
	sbAt   int64    // superblock copy on its way
	sb     []byte
}

type submitted struct{ id, position uint64 }

// randomGeometry is small, so that a history wraps often.
var randomGeometry = Geometry{BlockBytes: 4096, MaxFrameBytes: 12 << 10, CapacityBytes: 44 * 4096, WindowBytes: 24 << 10, CheckpointMaxBytes: 14 << 10}

func (x *randomLog) step(format string, args ...any) {
	x.note = append(x.note, fmt.Sprintf(format, args...))
	if len(x.note) > 30 {
		x.note = x.note[1:]
	}
}

func (x *randomLog) fail(format string, args ...any) {
	x.t.Helper()
	for _, n := range x.note {
		x.t.Log(n)
	}
	x.t.Fatalf(format, args...)
}

// recover reads the log after a crash and compares it with what was submitted.
func (x *randomLog) recover() {
	x.t.Helper()
	var ids []uint64
	_, err := x.rig.recover(Visitor{Frame: func(f *FrameView) error {
		if f.Kind == FrameData {
			for at := 0; at < len(f.Body); at += 16 {
				ids = append(ids, binary.LittleEndian.Uint64(f.Body[at:]))
			}
		}
		return nil
	}})
	if err != nil {
		x.fail("recovery after a crash: %v", err)
	}
	trim := x.rig.sbs.Newest.Trim
	first := 0
	for first < len(x.items) && x.items[first].position < trim {
		first++
	}
	if first+len(ids) > len(x.items) || first+len(ids) < x.acked {
		x.fail("trim %d: %d items recovered, %d submitted, %d acked", trim, len(ids), len(x.items)-first, x.acked-first)
	}
	for i, id := range ids {
		if x.items[first+i].id != id {
			x.fail("item %d is %d, want %d", first+i, id, x.items[first+i].id)
		}
	}
	x.items = x.items[:first+len(ids)]
	x.acked = len(x.items) // a reader may have seen them
}

func (x *randomLog) start() {
	x.t.Helper()
	x.recover()
	jump := x.rng.IntN(3) == 0
	err := x.rig.begin(jump)
	if errors.Is(err, ErrFull) && jump {
		err = x.rig.begin(false)
	}
	if err != nil {
		x.fail("start: %v", err)
	}
	x.step("start epoch %d at %d, jump %v", x.rig.epoch, x.rig.log.Head(), jump)
}

// crash gives every write on its way a fate.
func (x *randomLog) crash() {
	x.step("crash: %d frames not landed, %d landed", len(x.flight), len(x.landed))
	for _, f := range x.flight {
		x.fate(f.Buf, f.Offset)
	}
	if x.sb != nil {
		x.fate(x.sb, x.sbAt)
	}
	x.flight, x.landed, x.sb = nil, nil, nil
	x.start()
}

func (x *randomLog) fate(b []byte, offset int64) {
	switch x.rng.IntN(4) {
	case 0: // lost
	case 1:
		copy(x.rig.d.b[offset:], b)
	default: // torn
		for s := 0; s < len(b); s += sectorBytes {
			if x.rng.IntN(3) > 0 {
				copy(x.rig.d.b[offset+int64(s):], b[s:s+sectorBytes])
			}
		}
	}
}

func (x *randomLog) act() {
	l := x.rig.log
	switch x.rng.IntN(12) {
	case 0, 1, 2:
		for range 1 + x.rng.IntN(60) {
			x.put()
		}
	case 3, 4:
		l.CloseFrame(0)
		if f := l.Next(0); f != nil {
			x.step("issue %s [%d, %d) durable %d", f.Kind, f.Position, f.End(), f.Durable)
			x.flight = append(x.flight, f)
		}
	case 5, 6:
		if len(x.flight) > 0 {
			i := x.rng.IntN(len(x.flight))
			x.rig.land(x.flight[i])
			x.landed = append(x.landed, x.flight[i])
			x.flight = append(x.flight[:i], x.flight[i+1:]...)
		}
	case 7, 8:
		x.complete()
	case 9:
		x.superblock()
	case 10:
		if err := l.Checkpoint(make([]byte, x.rng.IntN(14<<10))); err != nil && !errors.Is(err, ErrWait) && !errors.Is(err, ErrFull) {
			x.fail("checkpoint: %v", err)
		}
		l.Seal(0)
	case 11:
		if m, ok := l.NewestCheckpoint(); ok && x.rng.IntN(2) == 0 {
			if err := l.SetTrim(m.Start, m.PrevSum); err != nil {
				x.fail("trim: %v", err)
			}
		} else {
			l.RecordDurable()
		}
	}
}

func (x *randomLog) put() {
	dst, position, err := x.rig.log.Reserve(ClassAppend, 16, 1)
	if err != nil {
		if !errors.Is(err, ErrWait) && !errors.Is(err, ErrFull) {
			x.fail("reserve: %v", err)
		}
		return
	}
	x.nextID++
	clear(dst)
	binary.LittleEndian.PutUint64(dst, x.nextID)
	x.items = append(x.items, submitted{x.nextID, position})
}

func (x *randomLog) complete() {
	if len(x.landed) == 0 {
		return
	}
	i := x.rng.IntN(len(x.landed))
	x.rig.log.Complete(x.landed[i], nil, 0)
	x.landed = append(x.landed[:i], x.landed[i+1:]...)
	for f := x.rig.log.PopDurable(); f != nil; f = x.rig.log.PopDurable() {
		for x.acked < len(x.items) && x.items[x.acked].position < f.End() {
			x.acked++
		}
		x.rig.log.Release(f)
	}
}

func (x *randomLog) superblock() {
	if x.sb != nil {
		copy(x.rig.d.b[x.sbAt:], x.sb)
		x.rig.log.SuperblockDone(nil, 0)
		x.sb = nil
		return
	}
	offset, b, ok := x.rig.log.NextSuperblock(0)
	if ok {
		x.step("superblock at %d", offset)
		x.sbAt, x.sb = offset, append([]byte(nil), b...)
	}
}

// forget drops the items below trim from the list, so that it stays short.
func (x *randomLog) forget() {
	trim := x.rig.log.Trim()
	for len(x.items) > 0 && x.acked > 0 && x.items[0].position < trim {
		x.items = x.items[1:]
		x.acked--
	}
}

func randomHistory(t *testing.T, seed uint64, steps int) *randomLog {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 4))
	origin := uint64(rng.IntN(44)) * 4096
	x := &randomLog{t: t, rng: rng, rig: newRig(t, randomGeometry, origin)}
	x.start()
	for range steps {
		if rng.IntN(60) == 0 {
			x.crash()
			continue
		}
		x.act()
		x.forget()
		if err := x.rig.log.Err(); err != nil {
			x.fail("the log stopped: %v", err)
		}
		if head, durable := x.rig.log.Head(), x.rig.log.Durable(); head-durable > randomGeometry.WindowBytes {
			x.fail("window: head %d, durable %d", head, durable)
		}
	}
	return x
}

func TestP3_RandomCrashes(t *testing.T) {
	seed := testSeed(t)
	wraps := uint64(0)
	for i := range uint64(300) {
		x := randomHistory(t, seed+i, 800)
		x.crash()
		wraps += x.rig.rec.End / randomGeometry.CapacityBytes
		if t.Failed() {
			t.Fatalf("history %d of seed %d", i, seed)
		}
	}
	if wraps < 300 {
		t.Fatalf("the histories wrapped only %d times", wraps)
	}
}

// After a random history, one block of what is proven rots: recovery must say so.
func TestP7_RandomRot(t *testing.T) {
	seed := testSeed(t)
	rotten := 0
	for i := range uint64(300) {
		x := randomHistory(t, seed+i, 300)
		x.crash()
		var frames []FrameHeader
		if _, err := x.rig.recover(Visitor{Frame: func(f *FrameView) error { frames = append(frames, f.FrameHeader); return nil }}); err != nil {
			t.Fatal(err)
		}
		proven := x.rig.rec.Proven
		for _, f := range frames {
			if f.End() > proven {
				break
			}
			n := int64(f.LengthBytes)
			if f.Kind == FramePad {
				n = FrameHeaderBytes
			}
			at := x.rig.offset(f.Position) + x.rng.Int64N(n)
			bit := byte(1) << x.rng.IntN(8)
			x.rig.d.b[at] ^= bit
			_, err := x.rig.recover(Visitor{})
			var damage *DamageError
			if !errors.As(err, &damage) || damage.From != f.Position {
				x.fail("seed %d: the frame at %d rotted below the proven %d: %v", seed+i, f.Position, proven, err)
			}
			x.rig.d.b[at] ^= bit
			rotten++
		}
	}
	if rotten < 300 {
		t.Fatalf("only %d frames rotted", rotten)
	}
}
