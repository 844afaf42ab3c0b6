package sim

import (
	"errors"
	"slices"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// saved is an old snapshot of the disk, with what the oracle knew then.
type saved struct {
	disk   *simdev.Snapshot
	oracle *oracle
}

// faultHits is how many operations were hit by a fault so far.
func (w *World) faultHits() int {
	n := 0
	for id := 1; id <= w.stats.Faults; id++ {
		n += w.disk.Hits(id)
	}
	return n
}

func (w *World) inject(f simdev.Fault) {
	f.Times = 1
	if f.Kind == simdev.ReadError {
		// A bad place, until it is healed: a single error is gone when the log asks
		// for less at a time.
		f.Times, f.Skip = 0, 0
		f.From = w.rng.Int64N(ringwal.RingStart + int64(w.profile.geometry.CapacityBytes))
		if frames := w.oracle.frames; len(frames) > 0 && w.chance(0.8) {
			r := frames[len(frames)-1-w.rng.IntN(min(8, len(frames)))]
			f.From = r.offset + w.rng.Int64N(int64(r.stored))
		}
		f.To = f.From + 1
	}
	w.stats.Faults++
	w.disk.Inject(f)
	w.tracef("armed: %s in [%d, %d)", f.Kind, f.From, f.To)
}

// mishap is what a bad disk does, by the kind of the history.
func (w *World) mishap() {
	switch w.profile.kind {
	case Failing:
		kinds := []simdev.Kind{simdev.WriteError, simdev.ShortWrite, simdev.NoSpace, simdev.Conflict, simdev.Stall, simdev.ReadError, simdev.FlushError}
		w.inject(simdev.Fault{Kind: kinds[w.rng.IntN(len(kinds))], Skip: w.rng.IntN(4)})
	case Lying:
		w.lie()
	case Restored:
		if w.saved == nil || w.chance(0.5) {
			w.saved = &saved{disk: w.disk.Snapshot(), oracle: w.oracle.clone()}
			w.tracef("snapshot")
			return
		}
		w.tracef("the disk is put back to the snapshot")
		h := w.host
		w.disk.Restore(w.saved.disk)
		w.oracle = w.saved.oracle.clone()
		w.host = nil
		w.former = nil
		h.close()
	}
}

// lie damages something silently.
func (w *World) lie() {
	g := w.profile.geometry
	slots := simdev.Fault{From: 0, To: ringwal.RingStart}
	ring := simdev.Fault{From: ringwal.RingStart, To: ringwal.RingStart + int64(g.CapacityBytes)}
	switch w.rng.IntN(8) {
	case 0:
		ring.Kind = simdev.LostWrite
		w.inject(ring)
	case 1:
		ring.Kind = simdev.MisdirectedWrite
		w.inject(ring)
	case 2:
		slots.Kind = simdev.LostWrite
		w.inject(slots)
	case 3, 4:
		slot := w.oracle.newestSlot()
		if w.chance(0.3) {
			slot = w.rng.Int64N(ringwal.SlotCount)
		}
		w.rot(slot*ringwal.SlotBytes, slot*ringwal.SlotBytes+int64(w.oracle.slots[slot].length))
		if w.host != nil && w.chance(0.5) {
			w.kill() // before it is written again
		}
	case 5:
		w.rot(ringwal.RingStart, ring.To)
	default:
		w.rotFrame()
	}
}

// newestSlot is the slot of the newest superblock copy.
func (o *oracle) newestSlot() (newest int64) {
	for i, s := range o.slots {
		n := o.slots[newest]
		if s.known && (s.epoch > n.epoch || s.epoch == n.epoch && max(s.durable, s.trim) >= max(n.durable, n.trim)) {
			newest = int64(i)
		}
	}
	return newest
}

// rotFrame flips a bit in a frame of the log: in any of them, in the newest, or in a
// checkpoint.
func (w *World) rotFrame() {
	frames := w.oracle.frames
	if len(frames) == 0 {
		return
	}
	r := frames[w.rng.IntN(len(frames))]
	switch w.rng.IntN(3) {
	case 0:
		r = frames[len(frames)-1-w.rng.IntN(min(3, len(frames)))]
	case 1:
		for _, f := range frames {
			if f.kind == ringwal.FrameCheckpoint && f.position >= w.oracle.trim {
				r = f
				break
			}
		}
	}
	w.rot(r.offset, r.offset+int64(r.stored))
}

func (w *World) rot(from, to int64) {
	at := w.disk.RotIn(from, to)
	w.tracef("rot at offset %d", at)
}

// between is the time while no host is up.
func (w *World) between() {
	w.pass(w.rng.Int64N(1e9))
	w.late()
	if w.profile.kind == Lying && w.chance(0.05) {
		w.lie()
	}
	if w.profile.kind == Failing && w.chance(0.1) {
		w.inject(simdev.Fault{Kind: []simdev.Kind{simdev.ReadError, simdev.FlushError, simdev.WriteError}[w.rng.IntN(3)], Skip: w.rng.IntN(6)})
	}
}

// salvage reads what survives of a log that was refused: nothing that is not of the
// log, and everything that was proven durable and is whole.
func (w *World) salvage(h *host) {
	v := w.disk.Open("salvage")
	sbs, err := ringwal.ReadSuperblocks(v)
	if sbs == nil || sbs.Newest == nil || errors.Is(err, ringwal.ErrFormat) {
		return
	}
	o, got := w.oracle, map[uint64]bool{}
	sound, _ := o.badSlots()
	last := uint64(0)
	_, err = ringwal.Salvage(v, sbs, ringwal.SalvageVisitor{
		Frame: func(f *ringwal.FrameView) error {
			i, found := o.frameAt(f.Position)
			if sound == 0 && (!found || o.frames[i].sum != f.Sum) {
				w.fail("P7", "salvage returned a frame at %d that is not one of the log", f.Position)
			}
			if f.Position < last {
				w.fail("P7", "salvage returned the frame at %d out of order", f.Position)
			}
			last, got[f.Position] = f.End(), true
			return nil
		},
		Gap: func(g ringwal.Gap) error {
			if g.From < last || g.To < g.From {
				w.fail("P7", "salvage returned the gap [%d, %d) out of order", g.From, g.To)
			}
			last = g.To
			return nil
		},
	})
	if err != nil {
		w.fail("P7", "salvage failed: %v", err)
	}
	w.stats.Salvaged++
	if sound > 0 || merged(sbs.Newest) {
		return // salvage is careful then: it may leave out a frame that stands alone
	}
	proven := sbs.Newest.Durable
	for _, r := range o.frames {
		if r.position >= sbs.Newest.Trim && o.survives(r) {
			proven = max(proven, r.durable)
		}
	}
	for _, r := range o.frames {
		if r.position >= sbs.Newest.Trim && r.end <= proven && o.survives(r) && !got[r.position] {
			w.fail("P7", "salvage left out the frame [%d, %d), which is whole", r.position, r.end)
		}
	}
}

// merged reports whether boundaries of several epochs became one.
func merged(sb *ringwal.Superblock) bool {
	return slices.ContainsFunc(sb.Boundaries, func(b ringwal.Boundary) bool { return b.IncarnationHash == 0 })
}

// clone copies what the oracle knows, for a snapshot.
func (o *oracle) clone() *oracle {
	c := *o
	c.base, c.now, c.durable = o.base.clone(), o.now.clone(), o.durable.clone()
	c.entries = append([]*entry(nil), o.entries...)
	c.frames = nil
	for _, r := range o.frames {
		copied := *r
		c.frames = append(c.frames, &copied)
	}
	c.forEver = make(map[place]noise, len(o.forEver))
	for k, v := range o.forEver {
		c.forEver[k] = v
	}
	return &c
}
