package stream

import (
	"maps"
	"slices"
	"sort"
)

// model is the contract in its simplest form: maps, whole histories, no log.
type model struct {
	streams  map[ID]modelStream
	nextID   ID
	named    map[string]modelNamed
	sessions map[ProducerID]modelSession
	nextName ProducerID
	clock    int // counts what was logged
	share    uint64
}

type modelStream struct {
	name          string
	first, next   uint64
	created, last int64
	sealed        bool
	token         string
}

type modelNamed struct {
	id   ProducerID
	last uint64
}

type modelSession struct {
	window, live, used int
	last, base         uint64
	results            map[uint64]modelAnswer
}

// modelAnswer is everything that an answer to a batch says beside positions.
type modelAnswer struct {
	placed    []Placed
	duplicate bool
	last      uint64
	err       error
	entry     int
	actual    uint64
	logged    bool
}

func newModel(share uint64) *model {
	return &model{streams: map[ID]modelStream{}, nextID: 1, named: map[string]modelNamed{}, nextName: 1,
		sessions: map[ProducerID]modelSession{}, share: share}
}

func (m *model) clone() *model {
	c := *m
	c.streams, c.named, c.sessions = maps.Clone(m.streams), maps.Clone(m.named), maps.Clone(m.sessions)
	for id, s := range c.sessions {
		s.results = maps.Clone(s.results)
		c.sessions[id] = s
	}
	return &c
}

func (m *model) missing(id ID) error {
	if _, found := m.streams[id]; found {
		return nil
	}
	if id > 0 && id < m.nextID {
		return ErrStreamDeleted
	}
	return ErrStreamNotFound
}

// try appends entries and returns the streams as they would be.
func (m *model) try(now int64, list []Entry) (map[ID]modelStream, modelAnswer) {
	after, order := maps.Clone(m.streams), []ID{}
	refuse := func(i int, err error, actual uint64) (map[ID]modelStream, modelAnswer) {
		return nil, modelAnswer{err: err, entry: i, actual: actual}
	}
	for i, e := range list {
		s, found := after[e.Stream]
		switch {
		case !found:
			return refuse(i, m.missing(e.Stream), uint64(e.Stream))
		case s.sealed:
			return refuse(i, ErrSealed, s.next)
		case s.token != string(e.Token):
			return refuse(i, ErrTokenMismatch, tokenSum([]byte(s.token)))
		case e.HasExpect && e.Expect != s.next:
			return refuse(i, ErrOffsetMismatch, s.next)
		}
		s.next++
		s.last = max(s.last, now)
		after[e.Stream] = s
		if !slices.Contains(order, e.Stream) {
			order = append(order, e.Stream)
		}
	}
	var a modelAnswer
	for _, id := range order {
		a.placed = append(a.placed, Placed{id, m.streams[id].next, uint32(after[id].next - m.streams[id].next)})
	}
	return after, a
}

func (m *model) append(now int64, b *Batch) modelAnswer {
	switch {
	case b.Producer == 0:
		after, a := m.try(now, b.Entries)
		if a.err == nil {
			m.streams = after
			m.clock++
		}
		return a
	case b.Producer.IsSession():
		return m.appendSession(now, b)
	}
	for name, p := range m.named {
		if p.id != b.Producer {
			continue
		}
		if b.Sequence <= p.last {
			return modelAnswer{duplicate: true, last: p.last}
		}
		after, a := m.try(now, b.Entries)
		if a.err == nil {
			m.streams, a.last = after, b.Sequence
			m.named[name] = modelNamed{p.id, b.Sequence}
			m.clock++
		}
		return a
	}
	return modelAnswer{err: ErrProducerNotFound}
}

func (m *model) appendSession(now int64, b *Batch) modelAnswer {
	p, found := m.sessions[b.Producer]
	switch {
	case !found:
		return modelAnswer{err: ErrProducerExpired}
	case b.Sequence > p.last+1:
		return modelAnswer{err: ErrOutOfSequence, actual: p.last}
	case b.Sequence < p.base:
		return modelAnswer{err: ErrSequenceExpired, actual: p.base}
	case b.Sequence <= p.last:
		a := p.results[b.Sequence]
		a.duplicate, a.last = true, p.last
		return a
	}
	after, a := m.try(now, b.Entries)
	used, need := 0, max(1, len(a.placed))
	for sequence, kept := range p.results {
		if sequence >= b.Acked {
			used += max(1, len(kept.placed))
		}
	}
	if need > p.window {
		return modelAnswer{err: ErrTooLarge, actual: uint64(need)}
	}
	if used+need > p.window {
		return modelAnswer{err: ErrWindowExceeded, actual: uint64(used)}
	}
	a.logged = a.err != nil
	if a.err == nil {
		m.streams = after
	}
	m.clock++
	p.last, p.base, p.used = b.Sequence, max(p.base, b.Acked), m.clock
	p.results[b.Sequence] = a
	maps.DeleteFunc(p.results, func(sequence uint64, _ modelAnswer) bool { return sequence < p.base })
	m.sessions[b.Producer] = p
	a.last = p.last
	return a
}

func (m *model) open(id ProducerID, window int) bool {
	live, all := sessionBound(uint32(window)), sessionBound(uint32(window))
	var idle []ProducerID
	for id, p := range m.sessions {
		all += sessionBound(uint32(p.window))
		if p.live > 0 {
			live += sessionBound(uint32(p.window))
		} else {
			idle = append(idle, id)
		}
	}
	if live > m.share {
		return false
	}
	sort.Slice(idle, func(i, j int) bool { return m.sessions[idle[i]].used < m.sessions[idle[j]].used })
	for ; all > m.share; idle = idle[1:] {
		all -= sessionBound(uint32(m.sessions[idle[0]].window))
		delete(m.sessions, idle[0])
	}
	m.clock++
	m.sessions[id] = modelSession{window: window, live: 1, used: m.clock, base: 1, results: map[uint64]modelAnswer{}}
	return true
}
