package ringwal_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// crashLoop is a process that appends one record and dies, over and over, on a log that
// nobody trims.
type crashLoop struct {
	t    *testing.T
	rng  *rand.Rand
	disk *simdev.Disk
	view *simdev.View

	sbs    *ringwal.Superblocks
	rec    *ringwal.Recovery
	log    *ringwal.Log
	next   uint64
	sure   []uint64 // items that are in the log for good, in order
	issued []uint64 // items written after them, not acked: a prefix may turn up
	most   int      // boundaries
}

// TestP2_CrashLoop starts a log 3,000 times. It is never refused, what was acked is
// there, and nothing that was lost ever comes back.
func TestP2_CrashLoop(t *testing.T) {
	seed := uint64(29)
	if s := os.Getenv("WALSIDECAR_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = v
	}
	t.Logf("seed %d", seed)
	g := ringwal.Geometry{BlockBytes: blockBytes, MaxFrameBytes: 8 << 10, CapacityBytes: 32 << 20, WindowBytes: 32 << 10, CheckpointMaxBytes: 64}
	disk := simdev.New(simdev.Config{Seed: seed, SizeBytes: ringwal.RingStart + int64(g.CapacityBytes)})
	l := &crashLoop{t: t, rng: rand.New(rand.NewPCG(seed, 0)), disk: disk}
	if _, err := ringwal.Format(disk.Open("host"), ringwal.FormatOptions{UUID: [16]byte{1}, Node: "loop", Geometry: &g}); err != nil {
		t.Fatal(err)
	}
	starts := 3000
	if testing.Short() {
		starts = 700
	}
	for range starts {
		l.life()
		l.disk.Crash()
	}
	l.view = l.disk.Open("host")
	l.recover()
	if l.most < 500 || l.most > 512 || len(l.sbs.Newest.Boundaries) > 512 || len(l.sure) < starts*3/4 {
		t.Fatalf("%d boundaries at most, %d in the end, %d items", l.most, len(l.sbs.Newest.Boundaries), len(l.sure))
	}
}

// life is one start, which may die in any write.
func (l *crashLoop) life() {
	l.view = l.disk.Open("host")
	l.recover()
	e := ringwal.Epoch{Number: l.sbs.MaxEpoch + 1}
	binary.LittleEndian.PutUint64(e.Incarnation[:], e.Number<<20|7)
	var err error
	if l.log, err = ringwal.Start(l.sbs, l.rec, e, memory{}); err != nil {
		l.t.Fatalf("start %d: %v", e.Number, err)
	}
	l.most = max(l.most, len(l.log.Superblock().Boundaries))
	if !l.drive() {
		return
	}
	if !l.rec.HasCheckpoint {
		l.must(l.log.Checkpoint([]byte("nothing")))
		if !l.drive() {
			return
		}
	}
	l.put()
	if !l.drive() {
		return
	}
	l.sure, l.issued = append(l.sure, l.issued...), nil
	for range l.rng.IntN(3) { // and some that were on their way
		l.put()
		f := l.log.Next(0)
		if _, err := l.view.Begin(f.Buf, f.Offset); err != nil {
			l.t.Fatal(err)
		}
	}
}

// recover reads the log as a start does, and compares it.
func (l *crashLoop) recover() {
	for {
		var err error
		l.sbs, err = ringwal.ReadSuperblocks(l.view)
		l.must(err)
		var items []uint64
		l.rec, err = ringwal.Recover(l.view, l.sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
			if f.Kind == ringwal.FrameData {
				items = append(items, binary.LittleEndian.Uint64(f.Body))
			}
			return nil
		}})
		l.must(err)
		l.must(l.view.Flush())
		if err := ringwal.VerifyTail(l.view, l.sbs, l.rec); errors.Is(err, ringwal.ErrTailChanged) {
			continue
		} else if err != nil {
			l.t.Fatal(err)
		}
		more := len(items) - len(l.sure)
		if more < 0 || more > len(l.issued) || !slices.Equal(items, append(slices.Clone(l.sure), l.issued[:max(0, more)]...)) {
			l.t.Fatalf("epoch %d: %d items, want %d and perhaps %d", l.sbs.MaxEpoch, len(items), len(l.sure), l.issued)
		}
		l.sure, l.issued = items, nil
		return
	}
}

func (l *crashLoop) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// put writes an item into a frame of its own.
func (l *crashLoop) put() {
	dst, _, err := l.log.Reserve(ringwal.ClassAppend, 8, 1)
	l.must(err)
	l.next++
	binary.LittleEndian.PutUint64(dst, l.next)
	l.issued = append(l.issued, l.next)
	l.log.CloseFrame(0)
}

// drive writes what waits. It returns false when the process died.
func (l *crashLoop) drive() bool {
	for {
		if offset, b, ok := l.log.NextSuperblock(0); ok {
			w, err := l.view.Begin(b, offset)
			l.must(err)
			if l.rng.IntN(40) == 0 {
				return false
			}
			l.log.SuperblockDone(l.view.Finish(w), 0)
			continue
		}
		f := l.log.Next(0)
		if f == nil {
			l.must(l.log.Err())
			return true
		}
		w, err := l.view.Begin(f.Buf, f.Offset)
		l.must(err)
		if l.rng.IntN(40) == 0 {
			return false
		}
		l.log.Complete(f, l.view.Finish(w), 0)
	}
}

// mergedLog is a small log of several epochs, a jump among them, whose boundaries are
// merged, and part of it trimmed.
func mergedLog(t testing.TB) *world {
	g := ringwal.Geometry{BlockBytes: blockBytes, MaxFrameBytes: 32 << 10, CapacityBytes: 1 << 20, WindowBytes: 64 << 10, CheckpointMaxBytes: 36 << 10}
	w := newWorld(t, ringwal.RingStart+1<<20, ringwal.FormatOptions{Geometry: &g, Origin: 40 << 10})
	a := w.create("a")
	for i := range 9 {
		w.fill(a, 2)
		w.start(i == 5)
		if i == 2 {
			w.trim()
		}
	}
	w.fill(a, 2)
	w.log.Seal(0)
	w.drive()
	sbs, err := ringwal.ReadSuperblocks(w.view)
	w.must(err)
	ringwal.MergeBoundaries(sbs.Newest, sbs.Newest.Durable)
	b := make([]byte, ringwal.SlotBytes)
	n := ringwal.EncodeSuperblock(b, sbs.Newest)
	for i := range int64(2) {
		w.disk.Poke(b[:n], (int64(sbs.NewestSlot)&^1+i)*ringwal.SlotBytes)
	}
	return w
}

// The reader in docs/ reads a log with merged boundaries, and finds the same damage.
func TestReaderInDocsReadsMergedBoundaries(t *testing.T) {
	w := mergedLog(t)
	sbs, err := ringwal.ReadSuperblocks(w.view)
	w.must(err)
	if n := len(sbs.Newest.Boundaries); n != 5 {
		t.Fatalf("%d boundaries: %+v", n, sbs.Newest.Boundaries)
	}
	lines, exit := pythonReader(t, w)
	if exit != 0 {
		t.Fatalf("exit %d: %v", exit, lines[len(lines)-1])
	}
	var got []string
	var positions []uint64
	for _, line := range lines[ringwal.SlotCount:] {
		got = append(got, told(line))
		if p, ok := line["position"].(json.Number); ok && line["frame"] != nil {
			position, err := strconv.ParseUint(p.String(), 10, 64)
			w.must(err)
			positions = append(positions, position)
		}
	}
	if want := goReader(t, w); !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	for i := 0; i < len(positions)-1; i += 3 {
		p := positions[i]
		at := sbs.Newest.DeviceOffset(p) + 100
		w.disk.Rot(at, 8)
		w.sameDamage()
		w.disk.Rot(at, 8)
	}
	// A frame of another epoch of the range than the one before, or of none: change the
	// epoch of one and make its own sums hold.
	for _, p := range positions[4:7] {
		at, image := sbs.Newest.DeviceOffset(p), make([]byte, w.view.SizeBytes())
		w.disk.Peek(image, 0)
		was := slices.Clone(image)
		for _, epoch := range []uint64{0, 1, 3, 100} {
			copy(image, was)
			binary.LittleEndian.PutUint64(image[at+16:], epoch)
			ringwal.FixSums(image, at)
			w.disk.Poke(image, 0)
			w.sameDamage()
		}
		w.disk.Poke(was, 0)
	}
}

// sameDamage fails the test unless both readers find damage, and the same.
func (w *world) sameDamage() {
	w.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(w.view)
	w.must(err)
	_, err = ringwal.Recover(w.view, sbs, ringwal.Visitor{})
	var damage *ringwal.DamageError
	if !errors.As(err, &damage) {
		w.t.Fatalf("no damage: %v", err)
	}
	lines, exit := pythonReader(w.t.(*testing.T), w)
	last := lines[len(lines)-1]
	if exit != 11 || fmt.Sprint(last["from"], " ", last["to"]) != fmt.Sprint(damage.From, " ", damage.To) {
		w.t.Fatalf("exit %d, %v, want %v", exit, last, damage)
	}
}
