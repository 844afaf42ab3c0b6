package sim

import (
	"errors"
	"slices"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// decide takes the next request, or the one that waits for the log.
func (h *host) decide() {
	w := h.w
	if h.closing && h.waiting == nil {
		return
	}
	q := h.waiting
	if q == nil {
		if w.source != nil {
			q = w.source()
		} else {
			q = w.draw()
		}
		if q == nil {
			return
		}
		w.stats.Requests++
	}
	h.waiting = nil
	if h.ask(q) {
		h.waiting = q
	}
}

// ask has the committer decide q, compares what it says with the model, and queues
// the answer. wait says that the log has to be driven on first.
func (h *host) ask(q *request) (wait bool) {
	w := h.w
	wall := w.wall
	want := w.oracle.now.predict(q, wall)
	got, err := h.do(q, wall)
	stopped := h.log.Err() != nil
	switch {
	case err != nil && len(want.writes) == 0 && !stopped:
		w.fail("P12", "%s, which writes nothing, got %v", q, err)
	case errors.Is(err, ringwal.ErrWait):
		h.expired(want.writes)
		return true
	case errors.Is(err, ringwal.ErrFull):
		h.full(q, &want)
		return false
	case stopped && len(want.writes) > 0:
		if err == nil {
			w.fail("P10", "%s was taken by a log that has stopped: %v", q, h.log.Err())
		}
		return false
	case err != nil:
		w.fail("P12", "%s got %v", q, err)
	}
	if what := got.differs(&want); what != "" {
		w.fail("P11", "%s was answered wrong: %s; got %+v, want %+v", q, what, got, want)
	}
	a := &answer{q: q, at: h.committer.DecidedAt(), needs: want.needs, got: got}
	if len(want.writes) > 0 {
		h.took(&want, &got, a.at)
		a.needs = w.oracle.count()
	}
	w.tracef("%s: %v, position %d, decided at %d, needs %d", q, got.err, got.position, a.at, a.needs)
	if got.err != nil {
		w.stats.Refused++
	}
	h.attached(q, &got)
	h.answers = append(h.answers, a)
	return false
}

// took makes what was written part of the log. It was decided at the end of its last
// item.
func (h *host) took(want, got *outcome, decidedAt uint64) {
	for i, e := range want.writes {
		switch {
		case want.of != nil:
			e.position = got.position
		case i == len(want.writes)-1:
			e.position = decidedAt - uint64(e.bytes)
		}
		h.w.oracle.submitted(e)
	}
}

// expired adds the expiries that went into the log although the session producer
// they make room for has to wait.
func (h *host) expired(writes []*entry) {
	for _, e := range writes {
		if e.kind != stream.KindProducerExpired {
			return
		}
		if _, err := h.committer.ProducerByID(e.producer); err == nil {
			return
		}
		h.w.oracle.submitted(e)
	}
}

// full notes that there is no room.
func (h *host) full(q *request, want *outcome) {
	w := h.w
	w.stats.Full++
	w.tracef("%s: full, %d used", q, h.log.Used())
	h.expired(want.writes)
	if h.frees(q) && !w.quiet {
		h.must(q)
		return
	}
	h.answers = append(h.answers, &answer{q: q, at: h.committer.DecidedAt(), got: outcome{err: ringwal.ErrFull}})
}

// frees reports whether q lets go of all that its stream holds: there always is room
// for that, at the latest when what can be trimmed has been (P12).
func (h *host) frees(q *request) bool {
	s := h.w.oracle.now.stream(q.stream)
	return q.kind == doDelete && s.first < s.next() || q.kind == doTrim && q.before >= s.next()
}

// attached notes what a client has from the host and not from the log.
func (h *host) attached(q *request, got *outcome) {
	if got.err != nil || q.kind != doAttach && q.kind != doOpenSession {
		return
	}
	h.w.oracle.now.session(got.producer.ID).live++
}

// hear tells the client the answer that left.
func (q *request) hear(got *outcome) {
	switch {
	case q.client == nil:
	case q.kind == doOpenSession && got.err == nil:
		q.client.producer = got.producer.ID
	case q.kind == doAppend && q.producer == q.client.producer && (got.err == nil || got.logged):
		q.client.hears(q.sequence)
	}
	if q.probe != nil {
		q.probe(*got)
	}
}

// differs says where an answer is not as predicted, "" if it is.
func (got *outcome) differs(want *outcome) string {
	switch {
	case !errors.Is(got.err, want.err) || (got.err == nil) != (want.err == nil):
		return "error"
	case got.entry != want.entry || got.logged != want.logged || got.duplicate != want.duplicate:
		return "entry, logged or duplicate"
	case want.actual != 0 && got.actual != want.actual:
		return "actual value"
	case want.of != nil && want.of.position != 0 && got.position != want.of.position:
		return "position"
	case got.err != nil:
		return ""
	case !slices.Equal(got.placed, want.placed) || got.last != want.last:
		return "offsets or sequence"
	case !sameInfo(&got.info, want.info) || got.created != want.created || got.more != want.more:
		return "stream"
	case got.producer.ID != want.producer.ID || got.producer.Name != want.producer.Name || got.producer.Last != want.producer.Last ||
		got.producer.Window != want.producer.Window:
		return "producer"
	case !slices.EqualFunc(got.list, want.list, func(a, b stream.StreamInfo) bool { return sameInfo(&a, b) }):
		return "list"
	}
	return ""
}

// do asks the committer. The error is the log's; a refusal is an outcome.
func (h *host) do(q *request, wall int64) (got outcome, err error) {
	c := h.committer
	switch q.kind {
	case doAppend:
		return h.append(q, wall)
	case doCreate:
		got.info, got.created, err = c.CreateStream(wall, q.name)
	case doSeal:
		got.info, err = c.Seal(q.stream)
	case doTrim:
		if got.info, err = c.Stat(q.stream); err == nil {
			got.info.First, err = c.Trim(q.stream, q.before)
		}
	case doDelete:
		err = c.Delete(q.stream)
	case doToken:
		got.info, err = c.SetToken(q.stream, q.old, q.token)
	case doStat:
		got.info, err = c.Stat(q.stream)
	case doStatName:
		got.info, err = c.StatName(q.name)
	case doList:
		got.list, got.more = c.List(q.name, q.cursor, q.limit, nil)
	case doOpenSession:
		got.producer, err = c.OpenSessionProducer(q.window, q.random)
	case doAttach:
		got.producer, err = c.Attach(q.producer)
	case doOpenNamed:
		got.producer, got.created, err = c.OpenNamedProducer(q.name)
	case doGetNamed:
		got.producer, err = c.Producer(q.name)
	case doRemoveNamed:
		err = c.RemoveProducer(q.name)
	}
	return got.refusal(err)
}

// refusal is the outcome with the refusal that err is, or with the log's own error.
func (got outcome) refusal(err error) (outcome, error) {
	var r *stream.Refusal
	if errors.As(err, &r) {
		got.err, got.entry, got.actual, got.logged, got.duplicate, got.position = r.Err, r.Entry, r.Actual, r.Logged, r.Duplicate, r.Position
		return got, nil
	}
	return got, err
}

// answerOf is the outcome of an append.
func answerOf(r *stream.Result, err error) (outcome, error) {
	return outcome{placed: r.Placed, duplicate: r.Duplicate, last: r.LastSequence, position: r.Position}.refusal(err)
}

func (h *host) append(q *request, wall int64) (got outcome, err error) {
	b := stream.Batch{Producer: q.producer, Sequence: q.sequence, Acked: q.acked}
	for i := range q.entries {
		e := &q.entries[i]
		b.Entries = append(b.Entries, stream.Entry{Stream: e.stream, Payload: e.payload.bytes(), Headers: e.headers,
			Expect: e.expect, HasExpect: e.hasExpect, Token: e.token})
	}
	var r stream.Result
	return answerOf(&r, h.committer.Append(wall, &b, &r))
}
