package node

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/fence/simfence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// reserved puts a disk with reservations in the place of the log's file: every start from
// now on is one of the same host.
func (r *rig) reserved(c simfence.Config) *simfence.Target {
	target := simfence.New(c)
	r.cfg.seams.fence = func() *fence.Fence { return fence.New(target.Attach("here", nil), target.Capabilities()) }
	return target
}

// Where a write of an earlier owner may still land, the log is not trimmed so far that it
// would be written again; after that it is, and what waited for room goes on.
func TestTheOldWindowIsKept(t *testing.T) {
	s, _ := newFencedRig(t, simfence.Config{Transport: fence.SCSI}, nil)
	d := s.dial()
	id := d.create("s").ID
	payload := bytes.Repeat([]byte{7}, 64<<10)
	for range 64 {
		d.append(id, payload)
	}
	s.close()
	s.cfg.StallAfter, s.cfg.Fencing.LateWrites = time.Second, 6*time.Second
	s.open() // L is that of the owner
	s.close()
	s.rebooted()
	s.open() // it waits, and jumps
	defer s.close()
	if !s.node.hold.outcome.Jump {
		t.Fatalf("no jump: %s", s.node.hold.outcome.Why)
	}
	started := time.Now()
	var window []ringwal.Boundary
	s.inLoop(func() { window = s.node.wal.Superblock().Boundaries })
	followEnd := window[len(window)-1].FollowEnd
	d = s.dial()
	refused, appended := 0, uint64(0)
	for time.Since(started) < 5*time.Second && refused == 0 {
		if _, e := d.appendOrRefused(id, payload); e != nil {
			refused++
			time.Sleep(50 * time.Millisecond)
		} else {
			appended++
		}
		if trim := s.node.Status().TrimPosition; trim >= followEnd {
			t.Fatalf("trimmed to %d, the old window begins at %d", trim, followEnd)
		}
	}
	if refused == 0 {
		t.Fatal("the log was never full")
	}
	if trim := s.node.Status().TrimPosition; trim == 0 {
		t.Error("nothing was trimmed at all")
	}
	eventually(t, "the old window is given up", func() bool { return s.node.Status().TrimPosition > followEnd })
	d.append(id, payload)
}

// newFencedRig is a rig whose log was reserved from its beginning, so that no start has to
// wait.
func newFencedRig(t *testing.T, c simfence.Config, faults func(simstore.Call) simstore.Fault) (*storeRig, *simfence.Target) {
	t.Helper()
	var target *simfence.Target
	s := newStoreRig(t, faults, func(s *storeRig) {
		s.cfg.Fencing.AcceptVolatile = c.Volatile
		target = s.reserved(c)
	})
	return s, target
}

// A start that finds its fence gone ends, and says so: while it claims, and, before it has
// written anything, while it recovers.
func TestP6_AStartThatLosesItsFenceEnds(t *testing.T) {
	for name, at := range map[string]simstore.Op{"while it claims": simstore.Replace, "while it recovers": simstore.Get} {
		t.Run(name, func(t *testing.T) {
			var reset func()
			s, target := newFencedRig(t, simfence.Config{Transport: fence.SCSI, Volatile: true}, func(c simstore.Call) simstore.Fault {
				if c.Op == at && reset != nil {
					reset()
					if at == simstore.Replace {
						time.Sleep(fence.HeartbeatEvery * 5 / 2) // a beat of the start notices
					}
				}
				return simstore.None
			})
			s.close()
			before, _ := os.ReadFile(s.path)
			reset = target.Reset
			ended := make(chan error, 1)
			go func() {
				n, err := Open(context.Background(), s.cfg)
				if err == nil {
					err = n.Abandon()
				}
				ended <- err
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, fence.ErrFenced) {
					t.Errorf("it ended with: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("it never ended")
			}
			if after, _ := os.ReadFile(s.path); at == simstore.Get && !bytes.Equal(before, after) {
				t.Error("the log was written to")
			}
		})
	}
}

// An owner whose reservation is taken while it serves stops by itself, writing or not:
// nothing more is acked, and what it has is not given back.
func TestP6_AnOwnerThatLosesItsFenceStops(t *testing.T) {
	s, target := newFencedRig(t, simfence.Config{Transport: fence.NVMe}, nil)
	d := s.dial()
	id := d.create("s").ID
	d.append(id, []byte("mine"))
	rival, key := fence.New(target.Attach("there", nil), target.Capabilities()), fence.KeyOf(testNode, [16]byte{9})
	if err := rival.Register(key); err != nil {
		t.Fatal(err)
	}
	if err := rival.Preempt(key, s.node.hold.key, true); err != nil {
		t.Fatal(err)
	}
	s.stopsFenced(d, id)
	_ = s.node.Close(context.Background())
	if st, err := rival.Read(); err != nil || st.Holder != key {
		t.Errorf("the device is held by %+v, %v", st, err)
	}
}

// A log that was closed, in order or not, keeps its reservation, under the key in its
// superblock: a sleeping former owner stays shut out, and a restart of this host knows that
// it was the last and need not wait.
func TestP6_TheReservationOutlivesItsOwner(t *testing.T) {
	s, target := newFencedRig(t, simfence.Config{Transport: fence.NVMe}, nil)
	there := fence.New(target.Attach("there", nil), target.Capabilities())
	for name, end := range map[string]func(){"closed": s.close, "abandoned": func() { s.host.Close(); _ = s.node.Abandon() }} {
		key := s.node.hold.key
		end()
		st, err := there.Read()
		if err != nil || st.Holder != key || st.Type != fence.WriteExclusive {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
		if sb := s.superblock(); fence.Key(sb.FenceKey) != key {
			t.Errorf("%s: the superblock says key %x, not %s", name, sb.FenceKey, key)
		}
		s.open()
		if out := s.node.hold.outcome; out.Waited != 0 || out.Jump || out.Replaced != key || s.node.hold.key == key {
			t.Errorf("%s: the next start: %+v", name, out)
		}
	}
	s.close()
}

// A superblock of another owner that lands behind the last look of the fence, late, ends
// the start before it has written anything.
func TestP6_AnotherOwnersLateSuperblockEndsTheStart(t *testing.T) {
	s, target := newFencedRig(t, simfence.Config{Transport: fence.NVMe}, nil)
	s.close()
	reads := 0
	s.cfg.seams.fence = func() *fence.Fence {
		here := target.Attach("here", nil)
		here.After = func(command string) error {
			if command != "read" {
				return nil
			}
			if reads++; reads == 3 { // before and behind the replaced key, and to see that all is done
				late := *s.superblock()
				late.Epoch, late.FenceKey = late.Epoch+1, 9
				s.landSuperblock(&late)
			}
			return nil
		}
		return fence.New(here, target.Capabilities())
	}
	_, err := Open(context.Background(), s.cfg)
	if reads < 3 || !errors.Is(err, fence.ErrLostRace) {
		t.Errorf("after %d looks: %v", reads, err)
	}
}

// landSuperblock writes a superblock where the newest one is not.
func (r *rig) landSuperblock(sb *ringwal.Superblock) {
	r.t.Helper()
	d, err := device.Open(r.path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		r.t.Fatal(err)
	}
	sbs, err := ringwal.ReadSuperblocks(d)
	_ = d.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	b := make([]byte, ringwal.SlotBytes)
	n := ringwal.EncodeSuperblock(b, sb)
	f, err := os.OpenFile(r.path, os.O_WRONLY|syscall.O_SYNC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	slot := (sbs.NewestSlot + ringwal.SlotCount/2) % ringwal.SlotCount
	if _, err := f.WriteAt(b[:n], int64(slot)*ringwal.SlotBytes); err != nil {
		r.t.Fatal(err)
	}
}

// superblock is the newest one on the device.
func (r *rig) superblock() *ringwal.Superblock { return r.superblocks().Newest }

// slot is the first slot of the set that the newest superblock is on.
func (r *rig) slot() int { return r.superblocks().NewestSlot / 2 * 2 }

func (r *rig) superblocks() *ringwal.Superblocks {
	r.t.Helper()
	d, err := device.Open(r.path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		r.t.Fatal(err)
	}
	defer d.Close()
	sbs, err := ringwal.ReadSuperblocks(d)
	if err != nil {
		r.t.Fatal(err)
	}
	return sbs
}

// The owner of a block device shows life though nothing is appended.
func TestAnIdleOwnerShowsLife(t *testing.T) {
	s := newStoreRig(t, nil)
	s.inLoop(func() { s.node.info.Kind = device.KindBlock })
	before := s.superblock().Sequence
	eventually(t, "it has written two superblocks more", func() bool { return s.superblock().Sequence >= before+2 })
	s.inLoop(func() { s.node.info.Kind = device.KindFile })
	s.close()
}

// Several epochs may jump from one place, each further, with nothing written in between:
// uploads go on behind the last of them.
func TestUploadsGoOnWhereEpochsJumpedFromOnePlace(t *testing.T) {
	var frozen atomic.Bool
	s := newStoreRig(t, func(c simstore.Call) simstore.Fault {
		if c.Op == simstore.Put && frozen.Load() {
			return simstore.Unavailable
		}
		return simstore.None
	})
	frozen.Store(true)
	d := s.dial()
	id := d.create("s").ID
	d.append(id, []byte("one"))
	s.close()
	s.cfg.StallAfter, s.cfg.Fencing.LateWrites = time.Second, time.Second
	s.cfg.Fencing.AcceptVolatile = true
	target := s.reserved(simfence.Config{Transport: fence.SCSI, Volatile: true})
	jump := func() {
		t.Helper()
		target.Reset()
		s.open()
		if !s.node.hold.outcome.Jump {
			t.Fatalf("no jump: %s", s.node.hold.outcome.Why)
		}
	}
	jump() // writes a checkpoint
	s.close()
	jump() // need not
	frozen.Store(false)
	eventually(t, "all is uploaded", func() bool { return s.manifest().Uploaded > 0 && s.node.Status().Uploads.LagBytes == 0 })
	s.close()
	jump()
	defer s.close()
	d = s.dial()
	eventually(t, "there is room again", func() bool { _, refused := d.appendOrRefused(id, []byte("two")); return refused == nil })
	eventually(t, "the second record is uploaded", func() bool { return s.node.Status().Uploads.LagBytes == 0 })
	records, gaps := d.readAll(id, 0)
	if len(records) != 2 || len(gaps) != 0 {
		t.Fatalf("%d records, gaps %v", len(records), gaps)
	}
}
