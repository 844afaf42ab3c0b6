package stream

import (
	"errors"
	"fmt"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
)

// fill appends records of size bytes over ids, one by one, each in a frame of its own
// if alone, until the log is full, and returns how many went in.
func (w *world) fill(size int, alone bool, ids ...ID) (n int) {
	w.t.Helper()
	for ; ; n++ {
		_, err := w.append(&Batch{Entries: []Entry{{Stream: ids[n%len(ids)], Payload: make([]byte, size)}}})
		if errors.Is(err, ringwal.ErrFull) {
			return n
		}
		w.must(err)
		if alone {
			w.sync()
		}
	}
}

func TestPlanTrimNamesWhatHoldsTheLog(t *testing.T) {
	w := newWorld(t, 2<<20)
	a, b := w.stream("a"), w.stream("b")
	w.sync()
	if plan := w.trim(); plan.Pinned != 0 || plan.Records != w.log.Durable() {
		t.Errorf("without a record: %+v, durable %d", plan, w.log.Durable())
	}
	frame := func(id ID) uint64 { // a frame with one record
		r, err := w.append(&Batch{Entries: entries(id, 1)})
		w.must(err)
		w.sync()
		return r.Position - ringwal.FrameHeaderBytes
	}
	a0, b0, a1 := frame(a), frame(b), frame(a)
	mark, _ := w.log.NewestCheckpoint()
	for _, c := range []struct {
		id     ID
		before uint64
		want   TrimPlan
	}{
		{a, 0, TrimPlan{mark.Start, a0, a, "a", 0}},
		{b, 0, TrimPlan{mark.Start, a0, a, "a", 0}},
		{a, 1, TrimPlan{mark.Start, b0, b, "b", 0}},
		{b, 1, TrimPlan{mark.Start, a1, a, "a", 1}},
	} {
		_, err := w.c.Trim(c.id, c.before)
		w.must(err)
		was := PlanTrim(w.directory, w.index, mark.Start, w.log.Durable())
		w.sync()
		if got := PlanTrim(w.directory, w.index, mark.Start, w.log.Durable()); got != c.want {
			t.Errorf("after Trim(%d, %d): %+v, want %+v", c.id, c.before, got, c.want)
		}
		if was.Records > c.want.Records {
			t.Errorf("before Trim(%d, %d) was durable the plan was %+v", c.id, c.before, was)
		}
	}
	w.must(w.c.Delete(a))
	w.sync()
	if got := PlanTrim(w.directory, w.index, mark.Start, w.log.Durable()); got.Pinned != 0 || got.Records != w.log.Durable() {
		t.Errorf("after everything is trimmed or deleted: %+v", got)
	}
	if got := PlanTrim(w.directory, w.index, 1<<62, 12345); got.Target != 12345 {
		t.Errorf("beyond the durable position: %+v", got)
	}
}

// TestP5_NothingWantedIsTrimmed: whatever is trimmed, in whatever order, every record
// that its stream still shows lies at or above the planned position.
func TestP5_NothingWantedIsTrimmed(t *testing.T) {
	rng := random(t)
	w := newWorld(t, 2<<20)
	ids := []ID{w.stream("a"), w.stream("b"), w.stream("c")}
	at := map[ID][]uint64{} // frame position of every record
	for range 600 {
		id := ids[rng.IntN(len(ids))]
		if rng.IntN(4) == 0 {
			info, err := w.c.Stat(id)
			w.must(err)
			_, err = w.c.Trim(id, info.First+rng.Uint64N(info.Next-info.First+1))
			w.must(err)
		} else if r, err := w.append(&Batch{Entries: []Entry{{Stream: id, Payload: make([]byte, rng.IntN(9000))}}}); err == nil {
			at[id] = append(at[id], r.Position)
		} else if !errors.Is(err, ringwal.ErrFull) {
			t.Fatal(err)
		}
		if rng.IntN(3) == 0 {
			w.trim()
		}
		if rng.IntN(40) == 0 {
			w.sync()
			w.crash()
		}
		for _, id := range ids {
			info, err := w.directory.Lookup(id)
			if err != nil || info.First == info.Next {
				continue
			}
			if at[id][info.First] < w.log.Trim() {
				t.Fatalf("record %d of stream %d lies at %d, the log begins at %d", info.First, id, at[id][info.First], w.log.Trim())
			}
			if frame, found := w.index.Find(id, info.First); !found || frame < w.log.Trim() || frame > at[id][info.First] {
				t.Fatalf("the index finds record %d of stream %d at %d, %v; it lies at %d", info.First, id, frame, found, at[id][info.First])
			}
		}
	}
}

// TestP12_AFullLogHealsByTrims: appends are refused, trims and deletes go through,
// and then appends do again. Many times over, so that nothing that is kept for one of
// them is used up by another.
func TestP12_AFullLogHealsByTrims(t *testing.T) {
	for _, c := range []struct {
		name string
		heal func(w *world, id ID, info StreamInfo) error
	}{
		{"trim to the end", func(w *world, id ID, _ StreamInfo) error { _, err := w.c.Trim(id, 1<<62); return err }},
		{"trim the older half", func(w *world, id ID, s StreamInfo) error {
			_, err := w.c.Trim(id, s.Next-(s.Next-s.First)/2)
			return err
		}},
		{"delete", func(w *world, id ID, s StreamInfo) error {
			if err := w.c.Delete(id); err != nil {
				return err
			}
			w.sync()
			_, _, err := w.c.CreateStream(1, s.Name)
			if errors.Is(err, ringwal.ErrFull) {
				w.trim()
				_, _, err = w.c.CreateStream(1, s.Name)
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2<<20)
			for _, name := range []string{"a", "b", "c"} {
				w.stream(name)
			}
			for round := range 30 {
				streams, _ := w.c.List("", "", 10, nil)
				var ids []ID
				for _, s := range streams {
					ids = append(ids, s.ID)
				}
				if n := w.fill(5000, round%2 == 0, ids...); n == 0 {
					t.Fatalf("round %d: no room for a single record", round)
				}
				for _, id := range ids {
					info, err := w.c.Stat(id)
					w.must(err)
					if err := w.retry(func() error { return c.heal(w, id, info) }); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					w.sync()
				}
				w.trim()
			}
		})
	}
}

// TestP12_EveryStreamCanBeEmptiedOneByOne: many streams share every frame of a full
// log, so that nothing is freed until the last of them is trimmed, each in a frame of
// its own.
func TestP12_EveryStreamCanBeEmptiedOneByOne(t *testing.T) {
	w := newWorld(t, 4<<20) // its control reserve, 256 KiB, is 64 frames
	var ids []ID
	for i := range 30 {
		ids = append(ids, w.stream(fmt.Sprint("s", i)))
	}
	w.fill(100, false, ids...)
	if room := w.c.AppendRoom(); room > 200 {
		t.Errorf("appends are refused with room for %d bytes", room)
	}
	for i := range 400 { // what is not for freeing may take what it finds
		if _, _, err := w.c.CreateStream(1, fmt.Sprint("x", i)); errors.Is(err, ringwal.ErrFull) {
			break
		}
		w.sync()
	}
	full, passed := 0, 0
	for range 5 { // and so may trims that leave something
		for _, id := range ids {
			info, err := w.c.Stat(id)
			w.must(err)
			_, err = w.c.Trim(id, info.First+(info.Next-info.First)/4)
			if !errors.Is(err, ringwal.ErrFull) {
				t.Fatalf("a trim of a quarter: %v, in a log without room for control items", err)
			}
			if _, err = w.c.Trim(id, info.Next-(info.Next-info.First)/2); errors.Is(err, ringwal.ErrFull) {
				full++
			} else if w.must(err); true {
				passed++
			}
			w.sync()
		}
	}
	if full == 0 || passed < len(ids) {
		t.Errorf("trims of one half: %d went through, %d did not; want at least one per stream, but not all", passed, full)
	}
	for i, id := range ids {
		var err error
		if i%2 == 1 {
			err = w.c.Delete(id)
		} else {
			_, err = w.c.Trim(id, 1<<62)
		}
		if err != nil {
			t.Fatalf("stream %d of %d: %v; room %d", i, len(ids), err, w.log.Room(ringwal.ClassFree))
		}
		w.sync()
		w.log.Seal(0) // so slowly that each is sealed
		w.sync()
	}
	if err := w.c.Delete(ids[0]); !errors.Is(err, ringwal.ErrFull) {
		t.Errorf("the delete of an empty stream, which frees nothing, took the room of what does: %v", err)
	}
	w.trim()
	if _, err := w.append(&Batch{Entries: entries(ids[0], 1)}); err != nil {
		t.Errorf("after everything was trimmed: %v", err)
	}
}

// TestP12_AFullLogStartedAgainTakesWhatFreesSpace: the checkpoints of many starts do not
// take the room of trims. The log is the smallest legal one, with a state that makes its
// checkpoints long.
func TestP12_AFullLogStartedAgainTakesWhatFreesSpace(t *testing.T) {
	w := newWorld(t, 0)
	pinned, other := w.stream("pinned"), w.stream("other")
	for i := range 8000 {
		if err := w.retry(func() error {
			_, _, err := w.c.CreateStream(1, fmt.Sprintf("%0255d", i))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	w.trim()
	for range 1000 {
		_, err := w.append(&Batch{Entries: []Entry{{Stream: other, Payload: []byte("x")}}})
		w.must(err)
	}
	for {
		_, err := w.append(&Batch{Entries: []Entry{{Stream: pinned, Payload: make([]byte, 500_000)}}})
		if errors.Is(err, ringwal.ErrFull) {
			break
		}
		w.must(err)
	}
	w.sync()
	for i := range 9 { // a trim that frees nothing, so that something follows the checkpoint
		w.crash()
		info, err := w.c.Stat(other)
		w.must(err)
		if _, err := w.c.Trim(other, info.First+(info.Next-info.First+1)/2); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		w.sync()
	}
	w.crash()
	for _, id := range []ID{pinned, other} {
		if _, err := w.c.Trim(id, 1<<62); err != nil {
			t.Fatalf("%v; %d bytes used, room to free space %d", err, w.log.Used(), w.log.Room(ringwal.ClassFree))
		}
	}
	w.sync()
	w.crash()
	w.trim()
	if _, err := w.append(&Batch{Entries: []Entry{{Stream: pinned, Payload: make([]byte, 500_000)}}}); err != nil {
		t.Errorf("after everything was trimmed: %v", err)
	}
}

func TestCheckpointsAreWrittenWhenTheyFreeEnough(t *testing.T) {
	w := newWorld(t, 4<<20)
	a := w.stream("a")
	w.sync()
	if w.c.CheckpointDue(w.log.Durable()) {
		t.Error("due for the sake of one small frame")
	}
	checkpoints := func(appends int) (n int) {
		for range appends {
			_, err := w.append(&Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, 30_000)}}})
			w.must(err)
			_, err = w.c.Trim(a, 1<<62)
			w.must(err)
			w.sync()
			before, _ := w.log.NewestCheckpoint()
			w.trim()
			if after, _ := w.log.NewestCheckpoint(); after != before {
				n++
			}
		}
		return n
	}
	bytes := w.log.Head()
	n := checkpoints(600)
	bytes = w.log.Head() - bytes
	if share := w.log.Geometry().CapacityBytes / CheckpointShare; n == 0 || uint64(n) > bytes/share+1 {
		t.Errorf("%d checkpoints in %d bytes, want one in %d", n, bytes, share)
	}
	if used := w.log.Used(); used > w.log.Geometry().CapacityBytes/4 {
		t.Errorf("%d bytes used of a log whose records are trimmed at once", used)
	}
	w.must(w.c.Checkpoint())
	w.sync()
	if w.c.CheckpointDue(1 << 62) {
		t.Error("due behind a checkpoint that is the last thing in the log")
	}
}

func TestNoCheckpointWhileOneIsOnItsWay(t *testing.T) {
	w := newWorld(t, smallRing)
	w.stream("a")
	w.must(w.c.Checkpoint())
	if w.c.CheckpointDue(1 << 62) {
		t.Error("due while the one before is being queued")
	}
	w.sync()
	w.stream("b")
	w.must(w.c.Checkpoint())
	var frames []*ringwal.Frame
	for f := w.log.Next(0); f != nil; f = w.log.Next(0) {
		frames = append(frames, f)
	}
	w.stream("c")
	if w.log.CheckpointUnderWay() || w.c.CheckpointDue(1<<62) {
		t.Error("due while the one before is on its way to the device")
	}
	for _, f := range frames {
		w.log.Complete(f, w.disk.WriteSync(f.Buf, f.Offset), 0)
	}
	if !w.c.CheckpointDue(1 << 62) {
		t.Error("not due although a stream was made since")
	}
	state := w.state()
	w.sync()
	w.crash()
	if string(w.state()) != string(state) {
		t.Error("the checkpoints give another state")
	}
}
