package ringwal

import (
	"errors"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

func TestVerifyTailFindsWhatWasOnlyInACache(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.land(r.issue('b', 10)) // seen by reads, and then the cache loses it
	r.holds("ab")
	if err := VerifyTail(r.d, r.sbs, r.rec); err != nil {
		t.Fatal(err)
	}
	r.wipe(2 * 4096)
	if err := VerifyTail(r.d, r.sbs, r.rec); !errors.Is(err, ErrTailChanged) {
		t.Fatal(err)
	}
	r.holds("a")
	if err := VerifyTail(r.d, r.sbs, r.rec); err != nil {
		t.Fatal(err)
	}
	r.d.badTo = int64(len(r.d.b))
	if err := VerifyTail(r.d, r.sbs, r.rec); !errors.Is(err, device.ErrRead) {
		t.Fatal(err)
	}
}

func TestVerifyTailFindsASuperblockThatWasOnlyInACache(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	before := r.d.clone()
	r.log.RecordDurable()
	r.superblocks() // seen by reads, and then the cache loses a copy of it
	r.holds("a")
	copy(r.d.b[2*SlotBytes:3*SlotBytes], before.b[2*SlotBytes:])
	if err := VerifyTail(r.d, r.sbs, r.rec); !errors.Is(err, ErrTailChanged) {
		t.Fatal(err)
	}
	r.holds("a")
	if err := VerifyTail(r.d, r.sbs, r.rec); err != nil {
		t.Fatal(err)
	}
	r.d.b[2*SlotBytes+300] ^= 1
	if err := VerifyTail(r.d, r.sbs, r.rec); !errors.Is(err, ErrTailChanged) {
		t.Fatal(err)
	}
}

func TestVerifyTailReadsOnlyWhatIsNotProven(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	for range 100 {
		r.write('a', 3000)
	}
	r.land(r.issue('b', 10))
	r.land(r.issue('c', 10))
	if _, err := r.items(); err != nil {
		t.Fatal(err)
	}
	if r.rec.Proven != r.log.Durable() || len(r.rec.tail) != 3 || r.rec.tail[0].position != r.rec.Proven {
		t.Fatalf("proven %d of %d, %d marks from %d", r.rec.Proven, r.rec.End, len(r.rec.tail), r.rec.tail[0].position)
	}
	// Across a jump: what is proven is the end before it.
	if err := r.begin(true); err != nil {
		t.Fatal(err)
	}
	r.superblocks()
	if err := r.log.Checkpoint(nil); err != nil {
		t.Fatal(err)
	}
	f := r.log.Next(0)
	r.land(f)
	if _, err := r.items(); err != nil || r.rec.End != f.End() {
		t.Fatal(err)
	}
	if err := VerifyTail(r.d, r.sbs, r.rec); err != nil {
		t.Fatal(err)
	}
	r.wipe(f.Position)
	if err := VerifyTail(r.d, r.sbs, r.rec); !errors.Is(err, ErrTailChanged) {
		t.Fatal(err)
	}
}
