package simdev

import "syscall"

// Reserve gives the reservation to v, or to nobody where v is nil. A write that
// another host begins from now on fails with a reservation conflict; one that is
// in flight already may still be finished, as on a real target.
func (d *Disk) Reserve(v *View) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holder = v
	d.note(v, "reserve", 0, 0, 0, "")
}

// PreemptAndAbort gives the reservation to v and ends the writes that all other hosts
// have in flight: what chance has let through so far is on the disk, nothing comes
// later, and their Finish returns a reservation conflict.
func (d *Disk) PreemptAndAbort(v *View) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holder = v
	d.note(v, "preempt and abort", 0, 0, 0, "")
	for _, other := range d.views {
		if other != v {
			d.abort(other)
		}
	}
}

// Abort ends the writes that victim has in flight, as PreemptAndAbort does; those of
// other hosts stay on their way, as with a real target, which aborts one host's.
func (d *Disk) Abort(victim *View) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abort(victim)
}

func (d *Disk) abort(victim *View) {
	for _, w := range victim.inFlight {
		w.ended, w.err = true, w.failure(syscall.EBADE, 0)
		d.uncache(w)
		d.note(victim, "aborted", w.number, w.offset, len(w.data), d.settle(w, d.odds.crash()))
	}
	victim.inFlight = nil
}
