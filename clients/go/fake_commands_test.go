package walsidecar

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/walsidecar/walsidecar/wire"
)

// command decides what is neither an append nor a read.
func (l *fakeLog) command(h wire.Header, body []byte) message {
	switch h.Type {
	case wire.TypePing:
		return &wire.Pong{Durable: l.position}
	case wire.TypeStatus:
		return &wire.StatusJSON{JSON: []byte(`{"state":"serving"}`)}
	case wire.TypeStreamOpen:
		var m wire.StreamOpen
		must(m.Decode(h, body))
		return l.openStream(m.Name, m.Create)
	case wire.TypeStreamList:
		var m wire.StreamList
		must(m.Decode(h, body))
		return l.list(&m)
	case wire.TypeProducerOpen, wire.TypeProducerGet, wire.TypeProducerRemove:
		return l.producer(h, body)
	}
	return l.streamCommand(h, body)
}

func (l *fakeLog) openStream(name string, create bool) message {
	for _, s := range l.streams {
		if s.Name == name && !s.Deleted {
			return &wire.StreamInfo{Stream: s.Stream}
		}
	}
	if !create {
		return &wire.Error{Code: wire.CodeNotFound, Name: name, Message: "no such stream"}
	}
	s := &fakeStream{Stream: wire.Stream{ID: uint64(len(l.streams) + 1), Name: name, CreatedNS: 1}}
	l.streams = append(l.streams, s)
	info := wire.StreamInfo{Stream: s.Stream}
	info.Created = true
	return &info
}

// list gives pages of three.
func (l *fakeLog) list(m *wire.StreamList) message {
	var all []wire.Stream
	for _, s := range l.streams {
		if !s.Deleted && s.Name > m.After && len(s.Name) >= len(m.Prefix) && s.Name[:len(m.Prefix)] == m.Prefix {
			all = append(all, s.Stream)
		}
	}
	slices.SortFunc(all, func(a, b wire.Stream) int { return cmp.Compare(a.Name, b.Name) })
	page := &wire.StreamPage{Streams: all[:min(3, len(all))]}
	if len(all) > 3 {
		page.Next = all[2].Name
	}
	return page
}

func (l *fakeLog) streamCommand(h wire.Header, body []byte) message {
	var id, before uint64
	var token wire.StreamToken
	switch h.Type {
	case wire.TypeStreamSeal:
		var m wire.StreamSeal
		must(m.Decode(h, body))
		id = m.Stream
	case wire.TypeStreamDelete:
		var m wire.StreamDelete
		must(m.Decode(h, body))
		id = m.Stream
	case wire.TypeStreamToken:
		must(token.Decode(h, body))
		id = token.Stream
	case wire.TypeStreamTrim:
		var m wire.StreamTrim
		must(m.Decode(h, body))
		id, before = m.Stream, m.Before
	}
	s := l.stream(id)
	if s == nil || s.Deleted {
		return refusal(wire.CodeDeleted, "gone")
	}
	switch h.Type {
	case wire.TypeStreamSeal:
		s.Sealed = true
	case wire.TypeStreamDelete:
		s.Deleted = true
	case wire.TypeStreamToken:
		if !bytes.Equal(s.token, token.Old) {
			return refusal(wire.CodeTokenMismatch, "another token is in force")
		}
		s.token = slices.Clone(token.New)
		s.HasToken = len(s.token) > 0
	case wire.TypeStreamTrim:
		s.FirstOffset = max(s.FirstOffset, min(before, s.NextOffset))
		l.roomFor = -1
		return &wire.Trimmed{Stream: id, FirstOffset: s.FirstOffset}
	}
	return &wire.StreamInfo{Stream: s.Stream}
}

func (l *fakeLog) producer(h wire.Header, body []byte) message {
	switch h.Type {
	case wire.TypeProducerOpen:
		var m wire.ProducerOpen
		must(m.Decode(h, body))
		p := l.named[m.Name]
		if p == nil {
			l.nextID++
			p = &fakeProducer{id: l.nextID, name: m.Name, window: m.Window, results: map[uint64]message{}, bytes: map[uint64]string{}}
			if m.Name == "" {
				l.sessions[p.id] = p
			} else {
				l.named[m.Name] = p
			}
		}
		return &wire.ProducerInfo{ID: p.id, LastSequence: p.last, Window: p.window, Name: p.name}
	case wire.TypeProducerGet:
		var m wire.ProducerGet
		must(m.Decode(h, body))
		p := l.named[m.Name]
		if m.Name == "" {
			if p = l.sessions[m.ID]; p == nil {
				return refusal(wire.CodeProducerExpired, "unknown producer")
			}
		}
		if p == nil {
			return refusal(wire.CodeNotFound, "no such producer")
		}
		return &wire.ProducerInfo{ID: p.id, LastSequence: p.last, Window: p.window, Name: p.name}
	}
	var m wire.ProducerRemove
	must(m.Decode(h, body))
	p := l.named[m.Name]
	if p == nil {
		return refusal(wire.CodeNotFound, "no such producer")
	}
	delete(l.named, m.Name)
	return &wire.ProducerInfo{ID: p.id, Name: p.name, Removed: true}
}
