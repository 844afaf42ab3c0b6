package sim

import (
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// outcomesOnly leaves the rules of the log unchecked, so that a bug has to break a
// promise to be found. The mutation test sets it.
var outcomesOnly bool

// healRounds is how often the log may be driven until a request that has to be
// possible is carried out.
const healRounds = 200

// heal brings a history to its end: the disk does its work from now on, the
// application trims everything, and then the log has to take appends again (P12).
func (w *World) heal() {
	w.quiet = true
	w.disk.HealAll()
	if w.fleet != nil {
		w.fleet.quiet()
	}
	if w.host != nil && (w.host.log.Err() != nil || w.host.closing || w.profile.kind == Failing || w.chance(0.5)) {
		w.kill()
	}
	for range 10 {
		if w.host != nil || w.over {
			break
		}
		w.start()
	}
	if w.over {
		return
	}
	h := w.host
	if h == nil {
		w.fail("P12", "the log did not start, with a disk that does its work")
	}
	if h.peer != nil {
		h.settle()
		w.pass(h.peer.heldUntil - min(w.now, h.peer.heldUntil))
		w.fleet.landOld()
	}
	h.settle()
	for i := 0; i < len(w.oracle.now.streams); i++ {
		s := w.oracle.now.streams[i]
		if s.first < s.next() {
			h.must(&request{kind: doTrim, stream: s.id, before: s.next()})
			h.settle()
			h.log.Seal(w.now) // so slowly that each is sealed
			h.settle()
			if h.log.Err() != nil || w.over {
				break
			}
		}
	}
	for range 4 {
		if w.over {
			return
		}
		h.settle()
		if h.log.Err() != nil {
			break
		}
		h.maintain()
	}
	if h.log.Err() != nil {
		if w.profile.kind != Lying {
			w.fail("P12", "the log stopped while it was being emptied: %v", h.log.Err())
		}
		return
	}
	if h.appendsAgain(); w.over {
		return
	}
	h.settle()
	if h.log.Err() != nil && w.profile.kind != Lying {
		w.fail("P12", "the log stopped: %v", h.log.Err())
	}
	w.healedStarts()
	w.stats.Healed++
}

// healedStarts sees that the healed log starts again, and that its store is whole.
func (w *World) healedStarts() {
	w.kill()
	w.start()
	if w.host == nil && !w.over {
		w.fail("P12", "the log did not start again, with a disk that does its work")
	}
	if w.bucket != nil && w.host != nil {
		w.host.settle()
		w.bucket.archive.verify()
	}
}

// appendsAgain sees that the emptied log takes as much as it has room for.
func (h *host) appendsAgain() {
	w, g := h.w, h.log.Geometry()
	if g.Limit(ringwal.ClassAppend) < 3*g.CheckpointBytes(int(g.CheckpointMaxBytes))+2*uint64(g.MaxFrameBytes)+4*uint64(g.BlockBytes) {
		return // so small that two checkpoints fill it
	}
	var target *modelStream
	for _, s := range w.oracle.now.streams {
		if !s.sealed {
			target = s
		}
	}
	if target == nil {
		h.must(&request{kind: doCreate, name: "healed"})
		if target = w.oracle.now.streamNamed("healed"); target == nil {
			return // no room in a checkpoint for one more stream
		}
	}
	q := &request{kind: doAppend, entries: []write{{stream: target.id, payload: newNoise(w.rng, 1000), token: target.token}}}
	h.must(q)
}

// must carries out a request that has to be possible by driving the log on alone.
func (h *host) must(q *request) {
	w := h.w
	was := w.quiet
	w.quiet = true
	defer func() { w.quiet = was }()
	for range healRounds {
		full := w.stats.Full
		if wait := h.ask(q); !wait && w.stats.Full == full || h.log.Err() != nil {
			return
		}
		h.settle()
		h.maintain()
		h.settle()
	}
	if h.tooSmall() {
		w.tracef("too small a log for %s", q)
		w.over = true
		return
	}
	w.fail("P12", "%s is not possible in a log that does nothing else: %d used of %d, room %d, to free space %d, trim %d, wanted from %d on", q, h.log.Used(),
		h.log.Geometry().CapacityBytes, h.log.Room(ringwal.ClassAppend), h.log.Room(ringwal.ClassFree), h.log.Trim(), h.planTrim(h.log.Trim()).Records)
}

// tooSmall reports whether the share of the ring that is kept for emptying streams is
// less than they need. A log of legal size has room for some hundred.
func (h *host) tooSmall() bool {
	g, streams := h.log.Geometry(), uint64(len(h.w.oracle.now.streams))
	return g.CapacityBytes/stream.TrimReserveShare < (streams+1)*2*uint64(g.BlockBytes)
}

// settle drives the log until nothing is on its way and every answer has left.
func (h *host) settle() {
	for range 10 * healRounds {
		if h.log.Err() != nil {
			return
		}
		h.issue()
		for range len(h.flights) {
			h.finish()
		}
		h.deliver()
		h.publish()
		h.superblockStep()
		if h.waiting != nil {
			h.decide()
		}
		if h.waiting == nil && len(h.flights) == 0 && h.super == nil && len(h.answers) == 0 && h.log.SuperblockInForce() &&
			h.log.OpenBytes()+h.log.QueuedBytes() == 0 && !h.log.CheckpointUnderWay() {
			if h.uploads != nil && h.w.quiet {
				h.uploadAll()
			}
			return
		}
	}
	h.w.fail("P12", "the log does not come to rest: waiting %t, %d in flight, %d answers, open %d, queued %d", h.waiting != nil, len(h.flights),
		len(h.answers), h.log.OpenBytes(), h.log.QueuedBytes())
}
