package ringwal

import (
	"errors"
	"testing"
)

func TestNewLogWaitsForItsFirstCheckpoint(t *testing.T) {
	r := newRig(t, tiny, 0)
	if err := r.begin(false); err != nil {
		t.Fatal(err)
	}
	r.superblocks()
	if _, err := r.tryPut('a', 1); !errors.Is(err, ErrWait) {
		t.Fatalf("no checkpoint: %v", err)
	}
	if err := r.log.Checkpoint(make([]byte, 20<<10)); err != nil { // two frames
		t.Fatal(err)
	}
	for r.log.CheckpointUnderWay() || r.log.InFlight() > 0 {
		f := r.log.Next(0)
		if _, err := r.tryPut('a', 1); !errors.Is(err, ErrWait) {
			t.Fatalf("checkpoint not durable: %v", err)
		}
		r.land(f)
		r.log.Complete(f, nil, 0)
	}
	if _, err := r.tryPut('a', 1); !errors.Is(err, ErrWait) || r.log.RecordedDurable() != 0 {
		t.Fatalf("checkpoint not recorded: %v", err)
	}
	r.superblocks()
	if _, err := r.tryPut('a', 1); err != nil || r.log.RecordedDurable() != 24<<10 {
		t.Fatalf("checkpoint recorded up to %d: %v", r.log.RecordedDurable(), err)
	}
}

func (r *rig) trimToCheckpoint() {
	r.t.Helper()
	m, _ := r.log.NewestCheckpoint()
	if err := r.log.SetTrim(m.Start, m.PrevSum); err != nil {
		r.t.Fatal(err)
	}
	r.superblocks()
}

func TestCheckpointIsLastIgnoresSeals(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.checkpoint([]byte("the newest state"))
	r.log.RecordDurable()
	r.superblocks()
	r.holds("")
	if !r.rec.CheckpointIsLast {
		t.Fatal("the checkpoint is the last frame")
	}
	r.write('a', 1)
	r.log.Seal(0)
	r.drain()
	r.holds("a")
	if r.rec.CheckpointIsLast {
		t.Fatal("a record follows the checkpoint")
	}
	r.checkpoint([]byte("the newest state"))
	r.log.proven = 0 // so that a seal is due in spite of the superblock
	r.log.Seal(0)
	r.drain()
	r.holds("a")
	if !r.rec.CheckpointIsLast || r.rec.Frames != 6 {
		t.Fatalf("only a seal follows the checkpoint: %+v", r.rec)
	}
	// The next start writes nothing but superblocks.
	end := r.rec.End
	r.start(false)
	if r.log.Head() != end {
		t.Fatalf("the start moved the head from %d to %d", end, r.log.Head())
	}
}

func TestCheckpointInParts(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	state := make([]byte, 40<<10)
	for i := range state {
		state[i] = byte(i * 7)
	}
	r.write('a', 10)
	before := r.durable[len(r.durable)-1]
	if err := r.log.Checkpoint(state); err != nil {
		t.Fatal(err)
	}
	if err := r.log.Checkpoint(state); !errors.Is(err, ErrWait) {
		t.Fatalf("a second checkpoint: %v", err)
	}
	if _, err := r.tryPut('b', 1); !errors.Is(err, ErrWait) {
		t.Fatalf("an item between the parts: %v", err)
	}
	r.drain()
	want := CheckpointMark{Start: before.End(), End: r.log.Durable(), PrevSum: before.Sum}
	if got, ok := r.log.NewestCheckpoint(); !ok || got != want || want.End-want.Start != 44<<10 {
		t.Fatalf("%+v, want %+v", got, want)
	}
	var starts []uint64
	var newest []byte
	if _, err := r.recover(Visitor{Checkpoint: func(start uint64, b []byte) error {
		starts, newest = append(starts, start), append([]byte(nil), b...)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if len(starts) != 2 || starts[1] != want.Start || string(newest) != string(state) || r.rec.Checkpoint != want {
		t.Fatalf("checkpoints at %v, %+v", starts, r.rec.Checkpoint)
	}
	if err := r.log.Checkpoint(make([]byte, tiny.CheckpointMaxBytes+1)); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("over the limit: %v", err)
	}
}

func TestTrimIsRefusedWhereItWouldLoseTheLog(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	m, _ := r.log.NewestCheckpoint()
	if err := r.log.SetTrim(m.Start, 1); err != nil || r.log.SuperblockInForce() == false {
		t.Fatalf("a trim to where the log begins does nothing: %v", err)
	}
	r.checkpoint([]byte("0123456789abcdef"))
	m, _ = r.log.NewestCheckpoint()
	for name, err := range map[string]error{
		"behind the checkpoint": r.log.SetTrim(m.Start+4096, 0),
		"inside a block":        r.log.SetTrim(m.Start-1, 0),
		"another frame's sum":   r.log.SetTrim(m.Start, m.PrevSum+1),
	} {
		if !errors.Is(err, ErrTrim) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !r.log.SuperblockInForce() {
		t.Fatal("a refused trim asked for a superblock")
	}
	r.trimToCheckpoint()
	if r.log.Trim() != m.Start {
		t.Fatalf("trim is %d", r.log.Trim())
	}
	r.holds("")
}

func TestTrimGivesRoomOnlyWhenItIsInForce(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	for range 20 {
		r.write('a', 10000)
	}
	r.checkpoint([]byte("0123456789abcdef"))
	m, _ := r.log.NewestCheckpoint()
	room := r.log.Room(ClassAppend)
	if err := r.log.SetTrim(m.Start, m.PrevSum); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := r.log.Room(ClassAppend); got != room || r.log.Trim() != 0 {
			t.Fatalf("room grew to %d before the superblock was in force", got)
		}
		offset, b, ok := r.log.NextSuperblock(0)
		if !ok {
			t.Fatal("no superblock to write")
		}
		r.log.SuperblockDone(r.d.WriteSync(b, offset), 0)
	}
	if got := r.log.Room(ClassAppend); got != room+m.Start || r.log.Trim() != m.Start {
		t.Fatalf("room is %d, trim %d", got, r.log.Trim())
	}
}
