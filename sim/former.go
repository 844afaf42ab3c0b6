package sim

import (
	"math"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// formerStep is one step of an owner that was superseded: it goes on as if nothing had
// happened, until it finds out.
func (h *host) formerStep() {
	w := h.w
	if h.log.Err() != nil {
		if w.chance(0.1) {
			w.tracef("%s exits: %v", h.name, h.log.Err())
			w.fleet.die(h)
			return
		}
	}
	switch w.pick(8, 6, 10, 10, 8, 6, 10, 1, 4) {
	case 0:
		h.formerAsk()
	case 1:
		h.issue()
	case 2:
		h.finish()
	case 3:
		h.deliver()
	case 4:
		h.publish()
	case 5:
		h.superblockStep()
	case 6:
		h.upload()
	case 7:
		h.checkFence()
	case 8:
		h.tick()
	}
}

// formerAsk appends a record. It can be acked only if its write gets through.
func (h *host) formerAsk() {
	w := h.w
	if h.log.Err() != nil || h.closing || h.peer.asked > 20 || len(w.oracle.now.streams) == 0 {
		return
	}
	s := w.oracle.now.streams[w.rng.IntN(len(w.oracle.now.streams))]
	q := &request{kind: doAppend, entries: []write{{stream: s.id, payload: newNoise(w.rng, 100), token: s.token}}}
	var r stream.Result
	b := stream.Batch{Entries: []stream.Entry{{Stream: s.id, Payload: q.entries[0].payload.bytes(), Token: s.token}}}
	if h.committer.Append(w.wall, &b, &r) != nil {
		return
	}
	h.peer.asked++
	h.answers = append(h.answers, &answer{q: q, at: h.committer.DecidedAt(), needs: math.MaxInt64})
}

// superseded reports whether the host is an owner, or a start, whose fence has moved on.
func (h *host) superseded() bool { return h.peer != nil && h.peer.lost }

// recoveredFrom reports whether somebody has recovered what the host wrote.
func (h *host) recoveredFrom() bool { return h.superseded() && h.peer.limit >= 0 }

// formerLeaves checks an answer of a former owner: what it shows is in the log that was
// recovered from it.
func (o *oracle) formerLeaves(h *host, a *answer) {
	if a.needs <= h.peer.limit {
		return
	}
	if h.peer.over {
		o.w.fail("P6", "%s answers %s, and entry %d that it shows is not in the log that was taken over from it: %d are", h.name, a.q, a.needs-1, h.peer.limit)
	}
	o.ackedCount = max(o.ackedCount, a.needs)
}

// getsThrough checks the end of a write that was begun when the fence had moved on.
func (h *host) getsThrough(what string, err error) {
	if err == nil {
		h.w.fail("P6", "%s of %s was begun after the device had another owner, and got through", what, h.name)
	}
}

// formerFrame is the record of a frame that a former owner begins to write.
func formerFrame(f *ringwal.Frame) *frameRecord {
	return &frameRecord{position: f.Position, end: f.End(), offset: f.Offset, stored: len(f.Buf), kind: f.Kind, epoch: f.Epoch, late: true}
}
