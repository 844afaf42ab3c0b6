package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
)

// Sleep waits for the world's time to go by.
func (c peerClock) Sleep(_ context.Context, d time.Duration) error { return c.h.sleep(d) }

// takeOver is the one routine of start and takeover, as package node goes through it. It
// runs as a coroutine, so that anything can happen between any two of its operations.
func (h *host) takeOver() {
	w, f := h.w, h.w.fleet
	state, err := h.acquire()
	if err == nil {
		err = h.begin(state, state.outcome.Jump)
	}
	switch {
	case h.port.dead:
	case err == nil:
		h.isUp()
	default:
		w.tracef("%s did not start: %v", h.name, err)
		if h.superblocks == 0 && h.port.writes == 0 {
			_ = fence.HandBack(h.peer.fence, h.peer.outcome)
		}
		if !h.peer.lost && !lostRace(err) && !errors.Is(err, errStoreDown) && !errors.Is(err, ringwal.ErrTailChanged) && !errors.Is(err, ringwal.ErrStalled) {
			w.oracle.judgeRefusal(h, err)
		}
		f.die(h)
	}
}

// isUp makes the host the owner: its takeover has returned (P6).
func (h *host) isUp() {
	w, f, o := h.w, h.w.fleet, h.w.oracle
	w.tracef("%s is up: epoch %d, trim %d, durable %d, head %d", h.name, h.log.Superblock().Epoch, h.log.Trim(), h.log.Durable(), h.log.Head())
	w.stats.Takeovers++
	h.peer.up = true
	if !h.peer.lost {
		o.speaks(h)
		o.keep(o.baseCount)
	}
	if h.peer.lost { // another was faster, and it has not noticed yet
		f.former = append(f.former, h)
		return
	}
	if w.host != nil {
		w.fail("P6", "%s is up, and %s still is the owner", h.name, w.host.name)
	}
	if o.ackedCount > o.count() {
		w.fail("P6", "entry %d was acked by a former owner while it was taken over, and %d were recovered", o.ackedCount-1, o.count())
	}
	for _, x := range f.former {
		x.peer.over = true
	}
	w.host = h
	o.tail = tail{}
}

// acquire is the routine up to the recovery.
func (h *host) acquire() (*recovered, error) {
	w, f, p := h.w, h.w.fleet, h.peer
	att := f.target.Attach(p.machine.name, h.view)
	att.Before = func(string) error { return h.port.before() }
	att.After = func(string) error {
		f.moved(h) // before it stops
		return h.port.before()
	}
	p.fence = fence.New(att, f.target.Capabilities())
	if err := h.port.Flush(); err != nil {
		return nil, err
	}
	if _, err := h.owner(context.Background()); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(p.incarnation[:], w.rng.Uint64())
	binary.LittleEndian.PutUint64(p.incarnation[8:], w.rng.Uint64())
	p.key = fence.KeyOf(simNode, p.incarnation)
	// Where an abort never returns, the operator says sooner or later that it is not to be used.
	abort := w.profile.abort && !(w.profile.abortHangs && (w.quiet || w.chance(0.3)))
	take := fence.TakeForced
	if w.chance(0.3) && !w.quiet {
		take = fence.TakeQuiet
	}
	outcome, err := fence.Acquire(context.Background(), p.fence, fence.Request{Key: p.key, Boot: p.machine.boot, Exclusive: true,
		Abort: abort, Take: take, Newest: h.owner, Progress: h.progress, Clock: peerClock{h}})
	p.outcome = outcome
	if err != nil {
		return nil, err
	}
	w.tracef("%s has the fence: jump %t, victim %s, replaced %s, aborted %t: %s", h.name, outcome.Jump, outcome.Victim, outcome.Replaced, outcome.Aborted, outcome.Why)
	now, err := h.owner(context.Background())
	if err != nil {
		return nil, err
	}
	if now.Epoch != outcome.Owner.Epoch || now.Key != outcome.Owner.Key {
		return nil, fmt.Errorf("%w: a superblock of epoch %d landed, it was %d", fence.ErrLostRace, now.Epoch, outcome.Owner.Epoch)
	}
	state, err := h.recover()
	if err != nil {
		return nil, err
	}
	state.outcome = outcome
	h.judge(state)
	return state, nil
}

// judge has the oracle judge what was recovered, unless another has overtaken the host.
func (h *host) judge(state *recovered) {
	w := h.w
	if h.peer.lost {
		return
	}
	w.oracle.judge(h, state)
	w.landBelow(state.recovery.End)
	for _, x := range w.fleet.takers {
		if x.peer.lost {
			x.peer.limit = w.oracle.count()
		}
	}
	for _, x := range w.fleet.former {
		x.peer.limit = w.oracle.count()
		for _, fl := range x.flights {
			if !fl.ended && !fl.record.late && fl.record.end <= state.recovery.End {
				fl.ended, fl.err = true, x.view.Finish(fl.write) // it was read, so it is on the medium
			}
		}
	}
}

func (h *host) owner(context.Context) (fence.Owner, error) {
	sbs, err := ringwal.ReadSuperblocks(h.port)
	if err != nil {
		return fence.Owner{}, err
	}
	sb := sbs.Newest
	_, unsettled := sb.Jumped()
	return fence.Owner{Node: sb.Node, Epoch: sb.Epoch, Key: fence.Key(sb.FenceKey), Boot: sb.BootID, StallAfter: sb.StallAfter, Clean: sb.Clean, Unsettled: unsettled}, nil
}

func (h *host) progress(context.Context) (uint64, error) {
	sbs, err := ringwal.ReadSuperblocks(h.port)
	if err != nil {
		return 0, err
	}
	return sbs.Newest.Sequence, nil
}

// hold keeps the window that was jumped over from being written before T: a trim to
// where it begins would free it, so that the last frame before it stays.
func (h *host) hold(state *recovered) {
	sb := h.log.Superblock()
	b, jumped := sb.Jumped()
	if !jumped {
		return
	}
	h.peer.heldAt, h.peer.heldUntil = sb.Trim, h.w.now+int64(fence.LateWrites)
	for i := range state.frames {
		if f := &state.frames[i]; f.End() <= b.FollowEnd {
			h.peer.heldAt = max(h.peer.heldAt, f.Position)
		}
	}
}

// heldBack is how far the log may be trimmed while an old window must not be written.
func (h *host) heldBack(target uint64) uint64 {
	if h.peer != nil && h.w.now < h.peer.heldUntil {
		return min(target, h.peer.heldAt)
	}
	return target
}

// checkFence is the owner's periodic look at its reservation.
func (h *host) checkFence() {
	if h.log.Err() != nil {
		return
	}
	st, err := h.peer.fence.Read()
	if err != nil || st.Type == fence.WriteExclusive && st.Holder == h.peer.key {
		return
	}
	h.w.tracef("%s is fenced", h.name)
	h.log.Fail(fence.ErrFenced)
}

// quiet brings the fleet to its end: whoever is not the owner is gone.
func (f *fleet) quiet() {
	w := f.w
	for _, h := range slices.Clone(f.former) {
		f.die(h)
	}
	for _, h := range slices.Clone(f.takers) {
		if !h.port.dead {
			f.die(h)
		}
		for slices.Contains(f.takers, h) {
			f.advance(h)
		}
	}
	if h := w.host; h != nil {
		h.peer.paused = false
		h.log.CheckStall(w.now)
		if f.target.Holder() != h.peer.machine.name { // after a reset: it finds out, and exits
			f.die(h)
		}
	}
}

// start runs one start to its end.
func (f *fleet) start() {
	w := f.w
	f.launch()
	for range 100_000 {
		if len(f.takers) == 0 {
			return
		}
		h := f.takers[0]
		if h.peer.wakeAt > w.now {
			w.pass(h.peer.wakeAt - w.now)
		}
		f.advance(h)
	}
	w.fail("P12", "a start does not come to an end")
}
