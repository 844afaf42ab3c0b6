package sim

import (
	"bytes"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/stream"
)

// model is the state of a log as the contract says it is. It is kept apart from
// stream.Table on purpose: it shares no code with it, is slow, and keeps the records.
type model struct {
	checkpointMax uint64
	maxItem       int // bytes of the longest item

	nextStream stream.ID
	nextNamed  stream.ProducerID
	streams    []*modelStream  // ascending by name
	sessions   []*modelSession // ascending by id
	named      []*modelNamed   // ascending by name

	deletedIDs   map[stream.ID]int64 // ordinal behind the entry that deleted it
	deletedNames map[string]int64
	gone         map[stream.ProducerID]int64 // producers that expired or were removed
	goneNames    map[string]int64
	changed      int64 // ordinal behind the last entry that changed any stream
}

// modelStream is one stream. touched is the ordinal behind the entry that changed it
// last: an answer about the stream may leave only once that entry is durable.
type modelStream struct {
	id      stream.ID
	name    string
	first   uint64
	created int64
	last    int64
	sealed  bool
	token   []byte
	records []*record // all of them ever: the offset is the index
	touched int64
}

func (s *modelStream) next() uint64 { return uint64(len(s.records)) }

// record is one record as it was submitted.
type record struct {
	stream    stream.ID
	offset    uint64
	timestamp int64
	payload   noise
	headers   []byte
}

// modelSession is a session producer: the results of [base, base+len(results)).
type modelSession struct {
	id      stream.ProducerID
	window  uint32
	base    uint64
	results []*entry
	used    *entry // what used it last, or opened it
	live    int    // attached; forgotten by a restart
	touched int64
}

func (p *modelSession) last() uint64 { return p.base + uint64(len(p.results)) - 1 }

type modelNamed struct {
	id      stream.ProducerID
	name    string
	last    uint64
	touched int64
}

// entry is one item of the log as it was submitted.
type entry struct {
	kind     stream.Kind
	position uint64 // 0 until known
	bytes    int    // with padding; 0 for a batch until known

	producer        stream.ProducerID
	sequence, acked uint64
	records         []*record
	code            stream.Code
	at              int
	actual          uint64

	stream    stream.ID
	name      string
	timestamp int64
	first     uint64
	token     []byte
	window    uint32
}

func newModel(checkpointMax uint64, maxItem int) *model {
	return &model{checkpointMax: checkpointMax, maxItem: maxItem, nextStream: 1, nextNamed: 1,
		deletedIDs: map[stream.ID]int64{}, deletedNames: map[string]int64{},
		gone: map[stream.ProducerID]int64{}, goneNames: map[string]int64{}}
}

// clone copies the state; nobody is attached to the copy's session producers.
func (m *model) clone() *model {
	c := *m
	c.streams = make([]*modelStream, len(m.streams))
	for i, s := range m.streams {
		copied := *s
		copied.records = slices.Clip(s.records)
		c.streams[i] = &copied
	}
	c.sessions = make([]*modelSession, len(m.sessions))
	for i, p := range m.sessions {
		copied := *p
		copied.results, copied.live = slices.Clip(p.results), 0
		c.sessions[i] = &copied
	}
	c.named = make([]*modelNamed, len(m.named))
	for i, p := range m.named {
		copied := *p
		c.named[i] = &copied
	}
	c.deletedIDs, c.deletedNames = cloneMap(m.deletedIDs), cloneMap(m.deletedNames)
	c.gone, c.goneNames = cloneMap(m.gone), cloneMap(m.goneNames)
	return &c
}

func cloneMap[K comparable](m map[K]int64) map[K]int64 {
	c := make(map[K]int64, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func (m *model) stream(id stream.ID) *modelStream {
	for _, s := range m.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (m *model) streamNamed(name string) *modelStream {
	for _, s := range m.streams {
		if s.name == name {
			return s
		}
	}
	return nil
}

func (m *model) session(id stream.ProducerID) *modelSession {
	for _, p := range m.sessions {
		if p.id == id {
			return p
		}
	}
	return nil
}

func (m *model) namedProducer(name string) *modelNamed {
	for _, p := range m.named {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (m *model) namedByID(id stream.ProducerID) *modelNamed {
	for _, p := range m.named {
		if p.id == id {
			return p
		}
	}
	return nil
}

// What a checkpoint takes at most, in bytes: see the layout in package stream.
func boundOfStream(name string) uint64    { return 44 + uint64(len(name)) + 64 }
func boundOfNamed(name string) uint64     { return 25 + uint64(len(name)) }
func boundOfSession(window uint32) uint64 { return 40 + 32*uint64(window) }

// bound is the bytes of a checkpoint at most, and those of session producers in it.
func (m *model) bound() (all, sessions uint64) {
	for _, p := range m.sessions {
		sessions += boundOfSession(p.window)
	}
	all = 40 + sessions
	for _, s := range m.streams {
		all += boundOfStream(s.name)
	}
	for _, p := range m.named {
		all += boundOfNamed(p.name)
	}
	return all, sessions
}

func tokenSum(token []byte) uint64 {
	if len(token) == 0 {
		return 0
	}
	return xxhash.Sum64(token)
}

// apply changes the state by an entry; ordinal is the number of entries in the log
// with this one.
func (m *model) apply(e *entry, ordinal int64) {
	switch e.kind {
	case stream.KindBatch:
		m.applyBatch(e, ordinal)
	case stream.KindRefusal:
		m.session(e.producer).use(e, ordinal)
	case stream.KindSessionOpen, stream.KindNamedCreate, stream.KindProducerRemove, stream.KindProducerExpired:
		m.applyProducer(e, ordinal)
	default:
		m.applyStream(e, ordinal)
	}
}

func (m *model) applyBatch(e *entry, ordinal int64) {
	for _, r := range e.records {
		s := m.stream(r.stream)
		s.records = append(s.records, r)
		s.last, s.touched = r.timestamp, ordinal
	}
	m.changed = ordinal
	if e.producer.IsSession() {
		m.session(e.producer).use(e, ordinal)
	} else if e.producer != 0 {
		p := m.namedByID(e.producer)
		p.last, p.touched = e.sequence, ordinal
	}
}

// use records that e took its producer's next sequence, after the results below
// e.acked were forgotten.
func (p *modelSession) use(e *entry, ordinal int64) {
	if e.acked > p.base {
		p.results = slices.Clone(p.results[min(e.acked-p.base, uint64(len(p.results))):])
		p.base = e.acked
	}
	p.results = append(p.results, e)
	p.used, p.touched = e, ordinal
}

func (m *model) applyStream(e *entry, ordinal int64) {
	m.changed = ordinal
	if e.kind == stream.KindStreamCreate {
		s := &modelStream{id: e.stream, name: e.name, created: e.timestamp, touched: ordinal}
		i, _ := slices.BinarySearchFunc(m.streams, e.name, func(s *modelStream, name string) int { return strings.Compare(s.name, name) })
		m.streams = slices.Insert(m.streams, i, s)
		m.nextStream = e.stream + 1
		return
	}
	s := m.stream(e.stream)
	s.touched = ordinal
	switch e.kind {
	case stream.KindStreamSeal:
		s.sealed = true
	case stream.KindStreamTrim:
		s.first = e.first
	case stream.KindStreamToken:
		s.token = e.token
	case stream.KindStreamDelete:
		m.streams = slices.DeleteFunc(m.streams, func(other *modelStream) bool { return other == s })
		m.deletedIDs[s.id], m.deletedNames[s.name] = ordinal, ordinal
	}
}

func (m *model) applyProducer(e *entry, ordinal int64) {
	switch e.kind {
	case stream.KindSessionOpen:
		p := &modelSession{id: e.producer, window: e.window, base: 1, used: e, touched: ordinal}
		i, _ := slices.BinarySearchFunc(m.sessions, e.producer, func(p *modelSession, id stream.ProducerID) int {
			if p.id < id {
				return -1
			}
			return 1
		})
		m.sessions = slices.Insert(m.sessions, i, p)
	case stream.KindNamedCreate:
		i, _ := slices.BinarySearchFunc(m.named, e.name, func(p *modelNamed, name string) int { return strings.Compare(p.name, name) })
		m.named = slices.Insert(m.named, i, &modelNamed{id: e.producer, name: e.name, touched: ordinal})
		m.nextNamed = e.producer + 1
	case stream.KindProducerRemove:
		p := m.namedByID(e.producer)
		m.gone[p.id], m.goneNames[p.name] = ordinal, ordinal
		m.named = slices.DeleteFunc(m.named, func(other *modelNamed) bool { return other == p })
	case stream.KindProducerExpired:
		m.gone[e.producer] = ordinal
		m.sessions = slices.DeleteFunc(m.sessions, func(p *modelSession) bool { return p.id == e.producer })
	}
}

// slots is what an entry takes of its producer's window: one per distinct stream.
func (e *entry) slots() int {
	if e.kind != stream.KindBatch {
		return 1
	}
	return len(e.placed())
}

// placed says where the records of each stream of a batch went, in order of first
// appearance.
func (e *entry) placed() []stream.Placed {
	var placed []stream.Placed
	for _, r := range e.records {
		i := slices.IndexFunc(placed, func(p stream.Placed) bool { return p.Stream == r.stream })
		if i < 0 {
			placed = append(placed, stream.Placed{Stream: r.stream, First: r.offset})
			i = len(placed) - 1
		}
		placed[i].Count++
	}
	return placed
}

// differs compares an entry with what was read from the log and says where they are
// not the same, "" if they are.
func (e *entry) differs(it *stream.Item) string {
	switch {
	case it.Kind != e.kind:
		return "kind"
	case e.position != 0 && e.position != it.Position:
		return "position"
	case it.Producer != e.producer || it.Sequence != e.sequence || it.Acked != e.acked:
		return "producer part"
	case it.Code != e.code || it.Entry != e.at || it.Actual != e.actual:
		return "refusal"
	case it.Stream != e.stream || string(it.Name) != e.name || it.Timestamp != e.timestamp || it.First != e.first || it.Window != e.window:
		return "stream or producer fields"
	case !bytes.Equal(it.Token, e.token):
		return "token"
	case it.Count != len(e.records):
		return "number of records"
	}
	it.Rewind()
	var got stream.Record
	for _, want := range e.records {
		switch {
		case !it.NextRecord(&got):
			return "number of records"
		case got.Stream != want.stream || got.Offset != want.offset || got.Timestamp != want.timestamp:
			return "stream, offset or timestamp of a record"
		case !bytes.Equal(got.Payload, want.payload.bytes()) || !bytes.Equal(got.Headers, want.headers):
			return "bytes of a record"
		case !got.Verify():
			return "checksum of a record"
		}
	}
	return ""
}
