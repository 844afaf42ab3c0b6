package sim

import (
	"bytes"
	"slices"

	"github.com/walsidecar/walsidecar/stream"
)

// outcome is an answer, as the model predicts it or as the committer gave it.
type outcome struct {
	err       error // a sentinel of package stream; nil: carried out
	entry     int
	actual    uint64
	logged    bool
	duplicate bool

	placed   []stream.Placed
	last     uint64 // sequence
	position uint64
	info     stream.StreamInfo
	list     []stream.StreamInfo
	more     bool
	producer stream.ProducerInfo
	created  bool

	// Of a prediction alone.

	of     *entry   // whose position the answer names
	writes []*entry // what goes into the log
	needs  int64    // entries that have to be durable before the answer leaves
}

func refused(err error, needs int64) outcome { return outcome{err: err, needs: needs} }

// predict says what q is answered, decided now at that wall clock.
func (m *model) predict(q *request, wall int64) outcome {
	switch q.kind {
	case doAppend:
		return m.predictAppend(q, wall)
	case doCreate:
		return m.predictCreate(q, wall)
	case doSeal, doTrim, doDelete, doToken, doStat:
		return m.predictStream(q)
	case doStatName:
		if s := m.streamNamed(q.name); s != nil {
			return outcome{info: s.info(), needs: s.touched}
		}
		return refused(stream.ErrStreamNotFound, m.deletedNames[q.name])
	case doList:
		return m.predictList(q)
	case doOpenSession:
		return m.predictOpenSession(q)
	case doAttach:
		p := m.session(q.producer)
		if p == nil {
			return m.unknownProducer(q.producer)
		}
		return outcome{producer: p.info(), needs: p.touched}
	}
	return m.predictNamed(q)
}

func (s *modelStream) info() stream.StreamInfo {
	return stream.StreamInfo{ID: s.id, Name: s.name, First: s.first, Next: s.next(), Created: s.created,
		Last: s.last, Sealed: s.sealed, Token: s.token}
}

func (p *modelSession) info() stream.ProducerInfo {
	return stream.ProducerInfo{ID: p.id, Window: p.window, Last: p.last()}
}

func (p *modelNamed) info() stream.ProducerInfo {
	return stream.ProducerInfo{ID: p.id, Name: p.name, Last: p.last}
}

func (m *model) unknownStream(id stream.ID) outcome {
	if id == 0 || id >= m.nextStream {
		return refused(stream.ErrStreamNotFound, 0)
	}
	return refused(stream.ErrStreamDeleted, m.deletedIDs[id])
}

func (m *model) unknownProducer(id stream.ProducerID) outcome {
	if id.IsSession() {
		return refused(stream.ErrProducerExpired, m.gone[id])
	}
	return refused(stream.ErrProducerNotFound, m.gone[id])
}

func (m *model) predictCreate(q *request, wall int64) outcome {
	if s := m.streamNamed(q.name); s != nil {
		return outcome{info: s.info(), needs: s.touched}
	}
	if stream.ValidateName(q.name) != nil {
		return refused(stream.ErrBadName, 0)
	}
	if all, _ := m.bound(); all+boundOfStream(q.name) > m.checkpointMax {
		return refused(stream.ErrCheckpointFull, 0)
	}
	e := &entry{kind: stream.KindStreamCreate, bytes: align(8 + 16 + len(q.name)), stream: m.nextStream, name: q.name, timestamp: wall}
	return outcome{created: true, writes: []*entry{e},
		info: stream.StreamInfo{ID: e.stream, Name: q.name, Created: wall}}
}

func align(n int) int { return (n + 7) &^ 7 }

func (m *model) predictStream(q *request) outcome {
	s := m.stream(q.stream)
	if s == nil {
		return m.unknownStream(q.stream)
	}
	o := outcome{info: s.info(), needs: s.touched}
	e := &entry{stream: s.id, bytes: 16}
	switch q.kind {
	case doSeal:
		if s.sealed {
			return o
		}
		e.kind, o.info.Sealed = stream.KindStreamSeal, true
	case doTrim:
		first := min(q.before, s.next())
		if first <= s.first {
			return o
		}
		e.kind, e.first, e.bytes, o.info.First = stream.KindStreamTrim, first, 24, first
	case doDelete:
		e.kind, o.info = stream.KindStreamDelete, stream.StreamInfo{}
	case doToken:
		switch {
		case len(q.token) > stream.MaxTokenBytes:
			return refused(stream.ErrBadRequest, 0)
		case !bytes.Equal(s.token, q.old):
			return outcome{err: stream.ErrTokenMismatch, actual: tokenSum(s.token), needs: s.touched}
		case bytes.Equal(q.old, q.token):
			return o
		}
		e.kind, e.token, e.bytes, o.info.Token = stream.KindStreamToken, q.token, align(16+len(q.token)), q.token
	default: // doStat
		return o
	}
	o.writes = []*entry{e}
	return o
}

func (m *model) predictList(q *request) outcome {
	o := outcome{needs: m.changed}
	for _, s := range m.streams {
		if len(s.name) < len(q.name) || s.name[:len(q.name)] != q.name || s.name <= q.cursor {
			continue
		}
		if len(o.list) == q.limit {
			o.more = true
			break
		}
		o.list = append(o.list, s.info())
	}
	return o
}

func (m *model) predictNamed(q *request) outcome {
	p := m.namedProducer(q.name)
	switch {
	case p == nil && q.kind != doOpenNamed:
		return refused(stream.ErrProducerNotFound, m.goneNames[q.name])
	case q.kind == doRemoveNamed:
		return outcome{writes: []*entry{{kind: stream.KindProducerRemove, producer: p.id, bytes: 16}}}
	case p != nil:
		return outcome{producer: p.info(), needs: p.touched}
	case stream.ValidateName(q.name) != nil:
		return refused(stream.ErrBadName, 0)
	}
	if all, _ := m.bound(); all+boundOfNamed(q.name) > m.checkpointMax {
		return refused(stream.ErrCheckpointFull, 0)
	}
	e := &entry{kind: stream.KindNamedCreate, producer: m.nextNamed, name: q.name, bytes: align(16 + len(q.name))}
	return outcome{created: true, writes: []*entry{e}, producer: stream.ProducerInfo{ID: e.producer, Name: q.name}}
}

// predictOpenSession makes room by expiring idle producers, the one used longest ago
// first.
func (m *model) predictOpenSession(q *request) outcome {
	window := q.window
	if window == 0 {
		window = stream.DefaultWindow
	}
	if window > stream.MaxWindow {
		return refused(stream.ErrBadRequest, 0)
	}
	var idle []*modelSession
	all, sessions := m.bound()
	var idleBound uint64
	for _, p := range m.sessions {
		if p.live == 0 {
			idle = append(idle, p)
			idleBound += boundOfSession(p.window)
		}
	}
	need, share := boundOfSession(window), m.checkpointMax/stream.SessionShare
	if sessions-idleBound+need > share || all-idleBound+need > m.checkpointMax {
		return refused(stream.ErrCheckpointFull, 0)
	}
	slices.SortFunc(idle, func(a, b *modelSession) int { return int(int64(a.used.position - b.used.position)) })
	var o outcome
	for sessions+need > share || all+need > m.checkpointMax {
		p := idle[0]
		idle = idle[1:]
		sessions, all = sessions-boundOfSession(p.window), all-boundOfSession(p.window)
		o.writes = append(o.writes, &entry{kind: stream.KindProducerExpired, producer: p.id, bytes: 16})
	}
	id := stream.ProducerID(q.random) | 1<<63
	e := &entry{kind: stream.KindSessionOpen, producer: id, window: window, bytes: 24}
	o.writes = append(o.writes, e)
	o.producer = stream.ProducerInfo{ID: id, Window: window}
	return o
}

func (m *model) predictAppend(q *request, wall int64) outcome {
	size, bad := m.checkBatch(q)
	if bad != nil {
		return *bad
	}
	var session *modelSession
	var touched int64
	if q.producer.IsSession() {
		if session = m.session(q.producer); session == nil {
			return m.unknownProducer(q.producer)
		}
		touched = session.touched
		if o, answered := session.answer(q); answered {
			return o
		}
	} else if q.producer != 0 {
		p := m.namedByID(q.producer)
		if p == nil {
			return m.unknownProducer(q.producer)
		}
		touched = p.touched
		if q.sequence <= p.last {
			return outcome{duplicate: true, last: p.last, needs: p.touched}
		}
	}
	e, o := m.place(q, wall)
	e.bytes = size
	if o.err != nil {
		if session == nil {
			o.needs = max(o.needs, touched)
			return o
		}
		e = &entry{kind: stream.KindRefusal, producer: q.producer, sequence: q.sequence, acked: q.acked,
			code: codes[o.err], at: o.entry, actual: o.actual, bytes: 48}
		o.logged = true
	}
	if session != nil {
		if full, is := session.full(q.acked, e.slots()); is {
			return full
		}
	}
	o.of, o.writes = e, []*entry{e}
	if o.err == nil {
		o.placed, o.last = e.placed(), q.sequence
	}
	return o
}

var codes = map[error]stream.Code{stream.ErrStreamNotFound: stream.CodeStreamNotFound, stream.ErrStreamDeleted: stream.CodeStreamDeleted,
	stream.ErrSealed: stream.CodeSealed, stream.ErrOffsetMismatch: stream.CodeOffsetMismatch, stream.ErrTokenMismatch: stream.CodeTokenMismatch}

// checkBatch refuses what no state would take, and returns the bytes of the item.
func (m *model) checkBatch(q *request) (int, *outcome) {
	bad := func(err error, entry int) (int, *outcome) { return 0, &outcome{err: err, entry: entry} }
	if len(q.entries) == 0 || q.producer == 0 && (q.sequence != 0 || q.acked != 0) || q.producer != 0 && q.sequence == 0 || q.acked > q.sequence {
		return bad(stream.ErrBadRequest, 0)
	}
	size := 8
	if q.producer != 0 {
		size += 24
	}
	for i := range q.entries {
		e := &q.entries[i]
		if len(e.token) > stream.MaxTokenBytes {
			return bad(stream.ErrBadRequest, i)
		}
		if size += align(40 + len(e.headers) + int(e.payload.length)); size > m.maxItem {
			return bad(stream.ErrTooLarge, i)
		}
	}
	return size, nil
}

// answer is what a session producer's results say, if they do.
func (p *modelSession) answer(q *request) (outcome, bool) {
	switch {
	case q.sequence == p.last()+1:
		return outcome{}, false
	case q.sequence > p.last():
		return outcome{err: stream.ErrOutOfSequence, actual: p.last(), needs: p.touched}, true
	case q.sequence < p.base:
		return outcome{err: stream.ErrSequenceExpired, actual: p.base, needs: p.touched}, true
	}
	e := p.results[q.sequence-p.base]
	o := outcome{duplicate: true, of: e, needs: p.touched}
	if e.kind == stream.KindRefusal {
		o.err, o.entry, o.actual, o.logged = e.code.Err(), e.at, e.actual, true
		return o, true
	}
	o.placed, o.last = e.placed(), p.last()
	return o, true
}

// full refuses what needs more slots than the window has.
func (p *modelSession) full(acked uint64, slots int) (outcome, bool) {
	if slots > int(p.window) {
		return outcome{err: stream.ErrTooLarge, actual: uint64(slots)}, true
	}
	used := 0
	for i, e := range p.results {
		if p.base+uint64(i) >= acked {
			used += e.slots()
		}
	}
	if used+slots > int(p.window) {
		return outcome{err: stream.ErrWindowExceeded, actual: uint64(used), needs: p.touched}, true
	}
	return outcome{}, false
}

// place checks every entry as the ones before it leave the state, and makes the
// records.
func (m *model) place(q *request, wall int64) (*entry, outcome) {
	e := &entry{kind: stream.KindBatch, producer: q.producer, sequence: q.sequence, acked: q.acked}
	next := map[stream.ID]uint64{}
	for i := range q.entries {
		w := &q.entries[i]
		s := m.stream(w.stream)
		if s == nil {
			o := m.unknownStream(w.stream)
			o.entry, o.actual = i, uint64(w.stream)
			return e, o
		}
		if _, seen := next[s.id]; !seen {
			next[s.id] = s.next()
		}
		fail := outcome{entry: i, actual: next[s.id], needs: s.touched}
		switch {
		case s.sealed:
			fail.err = stream.ErrSealed
		case !bytes.Equal(s.token, w.token):
			fail.err, fail.actual = stream.ErrTokenMismatch, tokenSum(s.token)
		case w.hasExpect && w.expect != next[s.id]:
			fail.err = stream.ErrOffsetMismatch
		}
		if fail.err != nil {
			return e, fail
		}
		e.records = append(e.records, &record{stream: s.id, offset: next[s.id], timestamp: max(s.last, wall),
			payload: w.payload, headers: w.headers})
		next[s.id]++
	}
	return e, outcome{}
}
