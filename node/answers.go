package node

import (
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// answer is one that waits for the durable position (P11). An append of one stream
// needs no memory beside it; every other answer is a function.
type answer struct {
	at       uint64 // leaves when the durable position has reached it
	session  *session.Session
	request  uint64
	placed   stream.Placed
	position uint64
	atNS     int64  // when it was decided, CLOCK_BOOTTIME
	send     func() // nil: the acknowledgement of placed
}

// answers is a queue in the order of decision, and so of position.
type answers struct {
	ring       []answer // length is a power of two
	head, tail uint64
}

func (q *answers) len() int { return int(q.tail - q.head) }

func (q *answers) push(a answer) {
	if q.len() == len(q.ring) {
		q.grow()
	}
	q.ring[q.tail&uint64(len(q.ring)-1)] = a
	q.tail++
}

// grow doubles the ring. Its size is bounded by what all sessions together may have
// unanswered.
func (q *answers) grow() {
	bigger := make([]answer, max(1024, 2*len(q.ring)))
	for i := q.head; i < q.tail; i++ {
		bigger[i&uint64(len(bigger)-1)] = q.ring[i&uint64(len(q.ring)-1)]
	}
	q.ring = bigger
}

// release sends every answer that was decided on a state below durable. f is the
// frame that just became durable, nil when none did.
func (q *answers) release(n *Node, durable uint64, f *ringwal.Frame, nowNS int64) {
	for q.head < q.tail {
		a := &q.ring[q.head&uint64(len(q.ring)-1)]
		if a.at > durable {
			return
		}
		if a.send != nil {
			a.send()
		} else {
			if f != nil {
				n.observe(a, f, nowNS)
			}
			a.session.AckAppend(a.request, uint64(a.placed.Stream), a.placed.First, a.placed.Count, a.position)
		}
		n.loop.answered(a.session)
		*a = answer{}
		q.head++
	}
}

// fail answers everything that waits with e: its outcome is unknown.
func (q *answers) fail(n *Node, e *wire.Error) {
	for ; q.head < q.tail; q.head++ {
		a := &q.ring[q.head&uint64(len(q.ring)-1)]
		a.session.AnswerError(a.request, e)
		n.loop.answered(a.session)
		*a = answer{}
	}
}

// observe notes how long an append took, and logs a slow one with its stages.
func (n *Node) observe(a *answer, f *ringwal.Frame, nowNS int64) {
	total := nowNS - a.atNS
	n.stats.Stages[StageTotal].observe(total)
	if n.cfg.SlowAfter <= 0 || total < int64(n.cfg.SlowAfter) || nowNS-n.stats.slowLoggedNS < int64(slowLogEvery) {
		return
	}
	n.stats.slowLoggedNS = nowNS
	n.log.Warn("slow append", "stream_id", a.placed.Stream, "offset", a.placed.First, "position", a.position,
		"total_ms", ms(total), "build_ms", ms(f.ClosedNS-a.atNS), "queue_ms", ms(f.IssuedNS-f.ClosedNS),
		"device_ms", ms(f.CompletedNS-f.IssuedNS), "order_ms", ms(nowNS-f.CompletedNS),
		"frame_bytes", f.LengthBytes, "frames_in_flight", n.wal.InFlight())
}

// slowLogEvery is the least time between two lines about slow appends.
const slowLogEvery = time.Second

func ms(ns int64) float64 { return float64(ns) / 1e6 }
