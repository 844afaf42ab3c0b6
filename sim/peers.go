package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/fence/simfence"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// landsWithin is how long a write that the device has accepted may take to land, where
// nobody aborts it: the design's T.
const landsWithin = int64(5 * time.Minute)

// machine is a host that the device is attached to. It outlives its processes.
type machine struct {
	name    string
	boot    [16]byte
	process *host // has the device open, exclusively; nil: none
}

// peer is what a host has of the world of several machines; nil in the others.
type peer struct {
	machine     *machine
	fence       *fence.Fence
	key         fence.Key
	incarnation [16]byte
	outcome     fence.Outcome // of its acquisition

	held bool // it has been the holder
	lost bool // it was, and is no more
	up   bool // its start has succeeded

	// While it starts it is a coroutine: it stops before each of its operations.
	yield  func(struct{}) bool
	resume func() (struct{}, bool)
	wakeAt int64

	paused bool
	// A former owner is still at work, or will wake up: the fence has moved on.
	limit int64 // entries of its that were recovered; -1: nobody has recovered yet
	over  bool  // the takeover from it has returned
	asked int

	heldAt    uint64 // the log is not trimmed beyond, before heldUntil
	heldUntil int64
}

// fleet is all machines, and who is at work on them beside the owner.
type fleet struct {
	w        *World
	target   *simfence.Target
	eye      *simfence.Attachment // of the oracle
	machines []*machine
	takers   []*host // starting
	former   []*host // owners that were superseded, and live
	begun    map[*simdev.Write]int64
}

func newFleet(w *World) *fleet {
	p := w.profile
	f := &fleet{w: w, begun: map[*simdev.Write]int64{}}
	transport := fence.SCSI
	if p.abort {
		transport = fence.NVMe
	}
	f.target = simfence.New(simfence.Config{Transport: transport, Disk: w.disk, Volatile: p.volatile, AbortHangs: p.abortHangs})
	f.eye = f.target.Attach("oracle", nil)
	for i := range 3 {
		m := &machine{name: fmt.Sprintf("machine%d", i+1)}
		m.reboot(w)
		f.machines = append(f.machines, m)
	}
	return f
}

func (m *machine) reboot(w *World) { binary.LittleEndian.PutUint64(m.boot[:], w.rng.Uint64()|1) }

// step lets one of all who are at work take a step.
func (f *fleet) step() {
	w := f.w
	w.late()
	if w.bucket != nil {
		w.bucket.late()
		w.bucket.mishap()
	}
	f.event()
	if w.host == nil && len(f.takers) == 0 {
		w.pass(w.rng.Int64N(1e9))
		f.launch()
	}
	var weights []int
	var actors []func()
	add := func(weight int, act func()) { weights, actors = append(weights, weight), append(actors, act) }
	if h := w.host; h != nil {
		f.addProcess(add, h, 12, func() { w.ownerStep(h) })
	}
	for _, h := range f.former {
		f.addProcess(add, h, 5, h.formerStep)
	}
	var soonest int64
	for _, h := range f.takers {
		if at := h.peer.wakeAt; at > w.now {
			if soonest == 0 || at < soonest {
				soonest = at
			}
			continue
		}
		add(6, func() { f.advance(h) })
	}
	switch {
	case soonest > 0 && (len(actors) == 0 || w.chance(0.02)):
		f.elapse(soonest)
	case len(actors) > 0:
		actors[w.pick(weights...)]()
	}
}

func (f *fleet) addProcess(add func(int, func()), h *host, weight int, act func()) {
	if h.peer.paused {
		add(1, h.finish) // the disk goes on without it
		return
	}
	add(weight, act)
}

// elapse lets the time go by until a taker wakes up. Most owners see their writes end
// meanwhile.
func (f *fleet) elapse(until int64) {
	w := f.w
	if h := w.host; h != nil && !h.peer.paused && w.chance(0.8) {
		for range 2 * len(h.flights) {
			h.finish()
			h.deliver()
		}
		h.superblockStep()
	}
	w.pass(min(until-w.now, 1+w.rng.Int64N(1e9)))
}

// event is what befalls machines and their processes.
func (f *fleet) event() {
	w, p := f.w, f.w.profile
	if w.quiet {
		return
	}
	if w.chance(p.takeover) {
		f.launch()
	}
	if h := w.host; h != nil && !h.peer.paused && len(h.flights) == 0 && h.super == nil && len(f.takers) == 0 && w.chance(p.idle) {
		w.pass(w.rng.Int64N(2 * landsWithin)) // a long time without anything
	}
	live := f.processes()
	if len(live) == 0 {
		return
	}
	h := live[w.rng.IntN(len(live))]
	switch {
	case w.chance(p.crash):
		f.die(h)
	case w.chance(p.pause):
		if h.peer.paused = !h.peer.paused; h.peer.paused {
			w.tracef("%s is paused", h.name)
		} else {
			w.tracef("%s goes on", h.name)
		}
	case p.volatile && len(f.former) == 0 && !f.holds() && w.chance(0.003):
		w.tracef("the target is reset")
		f.target.Reset()
	}
}

// holds reports whether a start holds the reservation.
func (f *fleet) holds() bool {
	return slices.ContainsFunc(f.takers, func(h *host) bool { return h.peer.held })
}

// processes are those that are up.
func (f *fleet) processes() []*host {
	live := slices.Clone(f.former)
	if f.w.host != nil {
		live = append(live, f.w.host)
	}
	return live
}

// launch begins a start on a machine where none is at work.
func (f *fleet) launch() {
	w := f.w
	m := f.machines[w.rng.IntN(len(f.machines))]
	if m.process != nil {
		return
	}
	w.hosts++
	w.stats.Starts++
	h := &host{w: w, name: fmt.Sprintf("%s.%d", m.name, w.hosts)}
	h.view = w.disk.Open(h.name)
	h.peer = &peer{machine: m, limit: -1}
	h.port = &port{w: w, view: h.view, host: h}
	m.process = h
	next, _ := iter.Pull(func(yield func(struct{}) bool) {
		h.peer.yield = yield
		h.takeOver()
	})
	h.peer.resume = next
	f.takers = append(f.takers, h)
	w.tracef("%s begins to start", h.name)
}

// advance lets a start go on up to its next operation.
func (f *fleet) advance(h *host) {
	_, more := h.peer.resume()
	f.moved(h)
	if !more {
		f.takers = slices.DeleteFunc(f.takers, func(other *host) bool { return other == h })
		h.peer.yield = nil
	}
}

// die crashes a process alone, or with its machine: then its writes may land later.
func (f *fleet) die(h *host) {
	w := f.w
	w.stats.Crashes++
	h.port.dead = true
	m := h.peer.machine
	m.process = nil
	if w.host == h {
		w.host = nil
	}
	f.former = slices.DeleteFunc(f.former, func(other *host) bool { return other == h })
	if w.bucket != nil {
		w.bucket.goneWith(h)
	}
	if w.chance(w.profile.power) {
		m.reboot(w)
		w.tracef("%s crashes with its machine, %d writes may still land", h.name, len(h.view.InFlight()))
	} else {
		w.tracef("%s crashes", h.name)
		h.view.Crash()
	}
	if len(h.view.InFlight()) > 0 {
		w.former = append(w.former, h)
		return
	}
	h.close()
}

// moved notes that the reservation may have gone from one to another.
func (f *fleet) moved(by *host) {
	w := f.w
	st, err := f.eye.Read()
	if err != nil || st.Holder == 0 {
		return
	}
	if st.Holder == by.peer.key {
		by.peer.held = true
	}
	for _, h := range f.takers {
		if h.peer.held && h.peer.key != st.Holder && !h.peer.lost {
			w.tracef("%s has lost the reservation to %s", h.name, f.target.Holder())
			h.peer.lost = true
		}
	}
	if h := w.host; h != nil && h.peer.key != st.Holder {
		f.supersede(h)
	}
}

// supersede makes the owner a former one: what it begins to write from now on must
// not get through.
func (f *fleet) supersede(h *host) {
	w := f.w
	w.tracef("%s is superseded: durable %d, head %d, %d frames in flight", h.name, h.log.Durable(), h.log.Head(), len(h.flights))
	h.peer.lost, h.waiting = true, nil
	w.host = nil
	f.former = append(f.former, h)
}

// landOld ends writes that are so old that they have landed.
func (f *fleet) landOld() {
	w := f.w
	hosts := append(slices.Clone(w.former), f.former...)
	for _, h := range hosts {
		for _, write := range h.view.InFlight() {
			if at, known := f.begun[write]; known && w.now-at >= landsWithin {
				f.landOne(h, write)
			}
		}
	}
}

// landOnto lets late writes land where so many bytes have just been written: the worst time
// for it.
func (f *fleet) landOnto(from int64, length int) {
	w := f.w
	to := from + int64(length)
	for _, h := range slices.Clone(w.former) {
		for _, write := range h.view.InFlight() {
			if write.Offset() < to && from < write.Offset()+int64(write.Length()) && w.chance(0.5) {
				w.land(h, write)
			}
		}
	}
}

func (f *fleet) landOne(h *host, write *simdev.Write) {
	for _, fl := range h.flights {
		if fl.write == write && !fl.ended && !h.port.dead {
			fl.ended = true
			fl.err = h.view.Finish(write)
			return
		}
	}
	if h.port.dead {
		f.w.land(h, write)
	}
}

// peerClock is the time that an acquisition goes by.
type peerClock struct{ h *host }

// Now is the world's time.
func (c peerClock) Now() time.Duration { return time.Duration(c.h.w.now) }

// stop lets the others go on until it is the host's turn again.
func (h *host) stop() {
	if p := h.peer; p != nil && p.yield != nil && !h.port.dead {
		p.yield(struct{}{})
	}
}

// sleep waits for the world's time to go by.
func (h *host) sleep(d time.Duration) error {
	h.peer.wakeAt = h.w.now + int64(d)
	for h.w.now < h.peer.wakeAt && !h.port.dead {
		h.stop()
	}
	if h.port.dead {
		return simfence.ErrDead
	}
	return nil
}

// lostRace reports whether a start had to fail because another took the device.
func lostRace(err error) bool {
	for _, kind := range []error{fence.ErrHeld, fence.ErrLostRace, fence.ErrFenced, fence.ErrUnanswered, fence.ErrConflict, fence.ErrNotVerified, fence.ErrFailed, simfence.ErrDead} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// close ends what is still at work.
func (f *fleet) close() {
	for _, h := range f.former {
		h.close()
	}
	for _, h := range f.takers {
		h.port.dead = true
		for range 1000 {
			if _, more := h.peer.resume(); !more {
				break
			}
		}
		h.close()
	}
}
