package ringwal

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// fullOfJumps is a log that appends have filled, with a checkpoint half-way if half, and whose
// starts have jumped and died until another one has no room. kept is how many of its items
// lie behind the checkpoint.
func fullOfJumps(t *testing.T, half bool) (r *rig, want string, kept int) {
	t.Helper()
	r = newRig(t, tiny, 0).start(false)
	for n := 0; ; n++ {
		if _, err := r.tryPut(byte('a'+n%26), 3000); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		r.drain()
		if kept++; half && n == 40 {
			r.checkpoint([]byte("half-way"))
			kept = 0
		}
	}
	for {
		if err := r.begin(true); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		r.superblocks()
	}
	want, err := r.items()
	if err != nil {
		t.Fatal(err)
	}
	return r, want, kept
}

// beginAnyway is begin of a start that makes room by itself.
func (r *rig) beginAnyway() error {
	err := r.begin(true)
	if !errors.Is(err, ErrFull) {
		return err
	}
	r.log, err = Start(r.sbs, r.rec, Epoch{Number: r.epoch, Incarnation: incarnation(r.epoch), Jump: true, CheckpointStateBytes: 16, MakesRoom: true}, r.buf)
	return err
}

// makeRoom is the rest of that start, up to its first checkpoint.
func (r *rig) makeRoom() {
	r.t.Helper()
	r.superblocks()
	if r.log.RoomToBegin() != nil {
		m, _ := r.log.NewestCheckpoint()
		if err := r.log.SetTrim(m.Start, m.PrevSum); err != nil {
			r.t.Fatal(err)
		}
		for range 2 { // the first copy alone would not be enough
			if r.log.RoomToBegin() == nil {
				r.t.Fatal("there is room that not every copy knows of")
			}
			r.superblock()
		}
	}
	if r.log.RoomToBegin() != nil { // a trim frees nothing, or too little
		if err := r.log.Unjump(); err != nil {
			r.t.Fatal(err)
		}
		r.superblocks()
	}
	if err := r.log.RoomToBegin(); err != nil {
		r.t.Fatal(err)
	}
	r.checkpoint([]byte("sixteen bytes..."))
}

// goesOn makes room, and has the log hold the items from the newest checkpoint on and take
// more.
func (r *rig) goesOn(want string, kept int) {
	r.t.Helper()
	r.makeRoom()
	r.d.journal = nil
	got, err := r.items()
	if rest := strings.TrimRight(got, "!"); err != nil || !strings.HasSuffix(want, rest) || len(rest) < kept {
		r.t.Fatalf("it holds %q, %v; want the last %d or more of %q", got, err, kept, want)
	}
	if r.log.Room(ClassAppend) < 8192 {
		r.trimToCheckpoint()
	}
	r.write('!', 100)
	if got, err := r.items(); err != nil || !strings.HasSuffix(got, "!") {
		r.t.Fatalf("it holds %q, %v", got, err)
	}
}

// A start without room writes no frame before it has made some, and then takes appends.
// Wherever it dies, between two writes or in the middle of one, the next start finds every
// item from the newest checkpoint on, and goes on with making room.
func TestP2_AStartThatMakesRoomLosesNothing(t *testing.T) {
	for name, half := range map[string]bool{"by a trim": true, "where it does not jump": false} {
		t.Run(name, func(t *testing.T) {
			r, want, kept := fullOfJumps(t, half)
			var writes []journaled
			for n := 0; n < 3 && !half; n++ { // so that the epoch would begin where the log is, a lap behind
				if err := r.beginAnyway(); err != nil {
					t.Fatal(err)
				}
				r.superblocks()
			}
			before := r.d.clone()
			if err := r.beginAnyway(); err != nil {
				t.Fatal(err)
			}
			r.d.journal = &writes
			if err := r.log.RoomToBegin(); !errors.Is(err, ErrFull) {
				t.Fatalf("there is room: %v", err)
			}
			r.superblocks()
			if _, _, err := r.log.Reserve(ClassFree, 100, 1); !errors.Is(err, ErrFull) {
				t.Fatalf("an item before there is room: %v", err)
			}
			if !half {
				if err := r.log.Checkpoint([]byte("sixteen bytes...")); !errors.Is(err, ErrFull) {
					t.Fatalf("a checkpoint before there is room: %v", err)
				}
			}
			if r.log.Seal(0) {
				t.Fatal("a seal before there is room")
			}
			r.goesOn(want, kept)
			for i := range writes {
				for _, torn := range []bool{false, true} {
					dies := r.on(before.clone())
					for _, w := range writes[:i] {
						copy(dies.d.b[w.offset:], w.b)
					}
					if torn {
						copy(dies.d.b[writes[i].offset:], writes[i].b[:len(writes[i].b)/2])
					}
					if err := dies.beginAnyway(); err != nil {
						t.Fatalf("after %d writes: %v", i, err)
					}
					dies.goesOn(want, kept)
				}
			}
		})
	}
}

// However often such a start dies, the room that it finds at the end is the same.
func TestAStartThatDiesWhileItMakesRoomUsesUpNone(t *testing.T) {
	r, _, _ := fullOfJumps(t, true)
	ring := bytes.Clone(r.d.b[RingStart:])
	for range 100 {
		if err := r.beginAnyway(); err != nil {
			t.Fatal(err)
		}
		r.superblocks()
	}
	if !bytes.Equal(ring, r.d.b[RingStart:]) {
		t.Fatal("something was written to the ring")
	}
	r.makeRoom()
	r.write('!', 100)
	if got, err := r.items(); err != nil || !strings.HasSuffix(got, "!") {
		t.Fatalf("it holds %q, %v", got, err)
	}
}

// Frames wait for the superblock that says where the epoch begins, and once there is one it
// cannot be moved. What an earlier owner had written into the window is void.
func TestUnjump(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 3000)
	ghost := r.issue('g', 3000)
	if err := r.begin(true); err != nil {
		t.Fatal(err)
	}
	if err := r.log.Unjump(); !errors.Is(err, ErrWait) {
		t.Fatalf("before its superblock is in force: %v", err)
	}
	r.superblocks()
	r.land(ghost)
	end := r.rec.End
	if err := r.log.Unjump(); err != nil {
		t.Fatal(err)
	}
	if r.log.Head() != end || r.log.Next(0) != nil || r.log.CheckpointUnderWay() {
		t.Fatalf("head at %d, the log ends at %d", r.log.Head(), end)
	}
	if err := r.log.Checkpoint([]byte("sixteen bytes...")); !errors.Is(err, ErrWait) {
		t.Fatalf("a checkpoint before the superblock is in force: %v", err)
	}
	r.holds("a")
	r.superblocks()
	r.holds("a")
	r.checkpoint([]byte("sixteen bytes..."))
	if err := r.log.Unjump(); !errors.Is(err, ErrWait) {
		t.Fatalf("behind its first frame: %v", err)
	}
	r.write('b', 3000)
	r.holds("ab")
}
