package sim

import (
	"slices"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// port is a host's device while it starts: every operation may be the one at which it
// crashes, and in between writes of the host before it may land.
type port struct {
	w      *World
	view   *simdev.View
	host   *host // of a fleet; nil: the world has one machine
	quiet  bool  // no crash
	dead   bool
	writes int // begun
}

var _ device.Device = (*port)(nil)

func (p *port) Path() string     { return p.view.Path() }
func (p *port) SizeBytes() int64 { return p.view.SizeBytes() }
func (p *port) BlockBytes() int  { return p.view.BlockBytes() }
func (p *port) Close() error     { return p.view.Close() }

// ReadAt reads, unless the host crashes first.
func (p *port) ReadAt(b []byte, offset int64) (int, error) {
	if err := p.before(); err != nil {
		return 0, err
	}
	return p.view.ReadAt(b, offset)
}

// Flush flushes, unless the host crashes first.
func (p *port) Flush() error {
	if err := p.before(); err != nil {
		return err
	}
	return p.view.Flush()
}

// WriteSync writes; the host may crash before or in the middle of it.
func (p *port) WriteSync(b []byte, offset int64) error { return p.write(b, offset, nil) }

// writeFlight is WriteSync of a frame, which may land late.
func (p *port) writeFlight(f *flight) error { return p.write(f.frame.Buf, f.frame.Offset, f) }

func (p *port) write(b []byte, offset int64, f *flight) error {
	if err := p.before(); err != nil {
		return err
	}
	p.writes++
	late := p.host != nil && p.host.peer.lost
	write, err := p.view.Begin(b, offset)
	if err != nil {
		return err
	}
	p.w.begins(write)
	if f != nil {
		f.write = write
	}
	if write.Stalled() {
		p.w.pass(int64(p.w.profile.stall) + p.w.rng.Int64N(1e9))
	}
	if p.w.chance(0.2) {
		p.w.progress(p.view, write)
	}
	if err := p.before(); err != nil {
		return err
	}
	err = p.view.Finish(write)
	if late {
		p.host.getsThrough("a write", err)
	}
	return err
}

// before is the time between two operations.
func (p *port) before() error {
	if p.dead {
		return simdev.ErrDead
	}
	w := p.w
	w.pass(w.rng.Int64N(200_000))
	if p.host != nil {
		if p.host.stop(); p.dead {
			return simdev.ErrDead
		}
	} else {
		w.late()
	}
	if !p.quiet && !w.quiet && w.chance(w.profile.startCrash) {
		w.tracef("%s crashes while it starts", p.Path())
		p.dead = true
		if p.host != nil {
			w.fleet.die(p.host)
			return simdev.ErrDead
		}
		w.crash(p.view)
		return simdev.ErrDead
	}
	return nil
}

// pass lets time go by.
func (w *World) pass(ns int64) {
	w.now += ns
	w.wall += ns
}

// crash stops the host that sees the disk through v. Its writes in flight are settled
// by chance now or, where they may be late, land some time.
func (w *World) crash(v *simdev.View) {
	w.stats.Crashes++
	switch {
	case w.chance(w.profile.power):
		w.disk.Crash()
		for _, h := range w.former {
			h.close()
		}
		w.former = nil
		w.tracef("the disk lost its power too")
	case w.profile.kind == Late && w.chance(0.7):
		w.tracef("%d writes of %s may still land", len(v.InFlight()), v.Path())
	default:
		v.Crash()
	}
	if w.chance(0.3) { // the next host's wall clock
		w.wall += w.rng.Int64N(20e9) - 10e9
	}
}

// late moves on the writes of crashed hosts.
func (w *World) late() {
	if w.fleet != nil {
		w.fleet.landOld()
	}
	for _, h := range w.former {
		for _, write := range h.view.InFlight() {
			switch w.rng.IntN(w.profile.lateness) {
			case 0:
				w.progress(h.view, write)
			case 1:
				w.land(h, write)
			}
		}
	}
}

// progress lets a part of a write reach the disk's cache, once.
func (w *World) progress(v *simdev.View, write *simdev.Write) {
	if !w.progressed[write] {
		w.progressed[write] = true
		v.Progress(write)
	}
}

// land ends a late write: it lands whole, in part, or not at all. What a part of has
// been in the cache before lands whole: a flush may have found that part gone, and no
// disk brings it into its cache a second time.
func (w *World) land(h *host, write *simdev.Write) {
	w.tracef("late write %d of %s at offset %d ends", write.Number(), h.name, write.Offset())
	if w.progressed[write] || w.chance(0.5) {
		_ = h.view.Finish(write)
		return
	}
	_ = h.view.Fail(write, device.ErrIO)
}

// landWhole ends a late write without leaving half of it: what a recovery has read
// was on the medium, and the disk does not write a sector twice.
func (w *World) landWhole(h *host, write *simdev.Write) {
	w.tracef("late write %d of %s at offset %d ends whole", write.Number(), h.name, write.Offset())
	_ = h.view.Finish(write)
}

// landOver ends the late writes that overlap a place of the ring that is about to be
// written again: it is not reused before a time after which nothing lands.
func (w *World) landOver(offset int64, length int) {
	if w.fleet != nil {
		return // it holds the window back instead, and writes land within T
	}
	for _, h := range w.former {
		for _, write := range h.view.InFlight() {
			if write.Offset() < offset+int64(length) && offset < write.Offset()+int64(write.Length()) {
				w.land(h, write)
			}
		}
	}
}

// landBelow ends the late writes of frames that the recovered log contains.
func (w *World) landBelow(end uint64) {
	for _, h := range w.former {
		for _, f := range h.flights {
			if f.write != nil && f.record.end <= end && slices.Contains(h.view.InFlight(), f.write) {
				w.landWhole(h, f.write)
			}
		}
	}
}

// landOlder ends the late writes of all but the newest host that wrote: a start waits
// until those before the epoch before it have landed.
func (w *World) landOlder() {
	newest := -1
	for i, h := range w.former {
		if h.port.writes > 0 {
			newest = i
		}
	}
	for i, h := range w.former {
		if i >= newest {
			continue
		}
		for _, write := range h.view.InFlight() {
			w.land(h, write)
		}
		h.close()
	}
	if newest < 0 {
		return
	}
	w.former = slices.Clone(w.former[newest:])
	w.landUnseen(w.former[0])
}

// landUnseen ends the superblock write of a host that has not finished any. The next
// start may not see it, and then takes the same slots and the same epoch number: it
// relies on having waited long enough, since a copy that lands later could be taken
// for its own.
func (w *World) landUnseen(h *host) {
	for _, write := range h.view.InFlight() {
		if write.Offset() < ringwal.RingStart && h.superblocks == 0 {
			w.land(h, write)
		}
	}
}

// mayLand reports whether writes of a crashed host are on their way.
func (w *World) mayLand() bool {
	for _, h := range w.former {
		if len(h.view.InFlight()) > 0 {
			return true
		}
	}
	return false
}
