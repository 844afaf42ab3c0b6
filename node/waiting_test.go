package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/fence/simfence"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// rebooted makes it look as if the last owner had run under another boot of this host.
func (r *rig) rebooted() {
	r.t.Helper()
	sb := *r.superblock()
	sb.BootID[0]++
	sb.Sequence++
	r.landSuperblock(&sb)
}

// A start waits T behind one that died, whose superblock nobody has seen, and behind one that
// nobody knows of; it waits L behind the owner in the newest superblock, unless two changed
// hands within T. While it waits it says until when, why, and by which setting.
func TestP2_AStartWaitsForASuperblockThatNobodyHasSeen(t *testing.T) {
	const late = 5 * time.Second
	died := fence.KeyOf(testNode, [16]byte{9})
	for name, c := range map[string]struct {
		before  func(*testing.T, *storeRig, *simfence.Target)
		least   time.Duration
		setting string
	}{
		"a start that died": {func(t *testing.T, s *storeRig, target *simfence.Target) {
			if err := fence.New(target.Attach("here", nil), target.Capabilities()).Replace(s.node.hold.key, died); err != nil {
				t.Fatal(err)
			}
		}, late, "WALSIDECAR_LATE_WRITES"},
		"nobody held":       {func(_ *testing.T, _ *storeRig, target *simfence.Target) { target.Reset() }, late, "WALSIDECAR_LATE_WRITES"},
		"the host rebooted": {func(_ *testing.T, s *storeRig, _ *simfence.Target) { s.rebooted() }, time.Second + fence.Margin, "WALSIDECAR_STALL"},
		"the host rebooted twice": {func(_ *testing.T, s *storeRig, _ *simfence.Target) {
			s.rebooted()
			s.cfg.Fencing.LateWrites = time.Minute // what was jumped over is kept
			s.open()
			s.cfg.Fencing.LateWrites = late
			s.close()
			s.rebooted()
		}, late, "WALSIDECAR_LATE_WRITES"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, target := newFencedRig(t, simfence.Config{Transport: fence.SCSI, Volatile: true}, nil)
			s.close()
			s.cfg.StallAfter = time.Second
			s.open() // L is that of the owner
			s.close()
			s.cfg.Fencing.LateWrites = late
			c.before(t, s, target)
			var told []*Wait
			s.cfg.Waiting = func(w *Wait) { told = append(told, w) }
			began := time.Now()
			s.open()
			defer s.close()
			out := s.node.hold.outcome
			if out.Waited < c.least || !out.Jump || c.least < late && out.Waited >= late {
				t.Errorf("it waited %s, jumps %t: %s", out.Waited, out.Jump, out.Why)
			}
			if len(told) != 2 || told[0] == nil || told[1] != nil {
				t.Fatalf("told %v", told)
			}
			if w := told[0]; w.Setting != c.setting || w.Why == "" || w.Until.Before(began.Add(c.least)) || w.Until.After(time.Now().Add(time.Second)) {
				t.Errorf("told %s", w)
			}
		})
	}
}

// A restart within T of a start that jumped does not write its superblocks where the owner
// before that one wrote: one of that may still land there.
func TestP2_ARestartKeepsOffTheSlotsOfTheOwnerBeforeTheLast(t *testing.T) {
	s, _ := newFencedRig(t, simfence.Config{Transport: fence.SCSI}, nil)
	s.close()
	s.cfg.StallAfter = time.Second
	s.open()
	s.close()
	s.rebooted()
	before := s.slot()
	s.open()
	jumped := s.slot()
	if !s.node.hold.outcome.Jump || jumped == before {
		t.Fatalf("no jump, or it wrote the slots of its predecessor: %d, %d", before, jumped)
	}
	s.close()
	s.open()
	defer s.close()
	if out := s.node.hold.outcome; out.Jump || s.slot() != jumped {
		t.Errorf("jumps %t, wrote the slots %d, where the owner before the last wrote; the last wrote %d", out.Jump, s.slot(), jumped)
	}
}

// A start that is refused before it has written gives the reservation back to the key that
// held it: the next one is an ordinary restart.
func TestAStartThatIsRefusedIsNotTakenForOneThatDied(t *testing.T) {
	var down atomic.Bool
	s, target := newFencedRig(t, simfence.Config{Transport: fence.NVMe}, func(c simstore.Call) simstore.Fault {
		if down.Load() {
			return simstore.Unavailable
		}
		return simstore.None
	})
	key := s.node.hold.key
	s.close()
	s.cfg.StorePatience = time.Millisecond
	down.Store(true)
	if n, err := Open(context.Background(), s.cfg); err == nil {
		_ = n.Abandon()
		t.Fatal("it started without its store")
	}
	st, err := fence.New(target.Attach("there", nil), target.Capabilities()).Read()
	if err != nil || st.Holder != key {
		t.Fatalf("held by %s, %v; want the owner's key, %s", st.Holder, err, key)
	}
	down.Store(false)
	s.open()
	defer s.close()
	if out := s.node.hold.outcome; out.Waited != 0 || out.Jump || out.Replaced != key {
		t.Errorf("%+v", out)
	}
}

// Once it may have written a superblock, its key stays.
func TestAStartThatHasWrittenKeepsItsKey(t *testing.T) {
	var down atomic.Bool
	s, target := newFencedRig(t, simfence.Config{Transport: fence.NVMe}, func(c simstore.Call) simstore.Fault {
		if down.Load() && c.Op != simstore.Get {
			return simstore.Unavailable
		}
		return simstore.None
	})
	key := s.node.hold.key
	s.close()
	down.Store(true)
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if n, err := Open(ctx, s.cfg); err == nil {
		_ = n.Abandon()
		t.Fatal("it claimed the manifest of a store that takes nothing")
	}
	st, err := fence.New(target.Attach("there", nil), target.Capabilities()).Read()
	if err != nil || st.Holder == key || st.Holder != fence.Key(s.superblock().FenceKey) {
		t.Errorf("held by %s, %v; the superblock says %x", st.Holder, err, s.superblock().FenceKey)
	}
}

// Once T has passed, an idle log that is uploaded is known to have kept its owner for that
// long: the next start that must wait waits L.
func TestALogSettlesByItself(t *testing.T) {
	s, _ := newFencedRig(t, simfence.Config{Transport: fence.SCSI}, nil)
	s.close()
	s.cfg.StallAfter, s.cfg.Fencing.LateWrites = time.Second, time.Second
	s.open()
	d := s.dial()
	d.append(d.create("s").ID, []byte("one"))
	s.close()
	s.rebooted()
	s.open()
	if _, unsettled := s.superblock().Jumped(); !unsettled {
		t.Fatal("it did not jump")
	}
	eventually(t, "it is settled", func() bool { _, unsettled := s.superblock().Jumped(); return !unsettled })
	s.close()
}
