package node

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// request is the memory that decoding one request needs; reused.
type request struct {
	append wire.Append
	batch  stream.Batch
	result stream.Result
	list   []stream.StreamInfo
	copied []byte // headers and tokens of a message that its client can still change
}

// roundBytes is how many bytes of requests are decided before the loop looks at
// completions again: decided requests must not wait for a flood of new ones.
const roundBytes = 1 << 20

// decide takes requests from the sessions in turn, one chunk each, until none is
// left, roundBytes were taken, or the log has to wait for the device. It reports
// whether it decided any.
func (n *Node) decide() bool {
	l := &n.loop
	decided := false
	for taken := 0; n.wal.Err() == nil; {
		if taken >= roundBytes {
			return true
		}
		if l.chunk == nil {
			if len(l.ready) == 0 {
				return decided
			}
			s := l.ready[0]
			if l.chunk = s.PopChunk(); l.chunk == nil {
				n.drained(s)
				l.look.Emptied(s)
				l.ready = l.ready[:copy(l.ready, l.ready[1:])]
				continue
			}
		}
		taken += l.chunk.Bytes()
		some, done := n.decideChunk(l.chunk)
		decided = decided || some
		if !done {
			return decided
		}
		l.chunk.Release()
		l.chunk = nil
		// Its turn is over: the session goes to the end of the row.
		s := l.ready[0]
		l.ready = append(l.ready[:copy(l.ready, l.ready[1:])], s)
		if n.wal.QueuedBytes() > 0 {
			n.issue() // a full frame need not wait for the rest
		}
	}
	n.refuseAll()
	return decided
}

// decideChunk decides the chunk's requests; done is false when the next one has to
// wait for the log.
func (n *Node) decideChunk(c *session.Chunk) (some, done bool) {
	now, wall := n.loop.nowNS, time.Now().UnixNano()
	for {
		h, body, ok := c.Next()
		if !ok {
			return some, true
		}
		err := n.decideOne(c.Session(), h, body, now, wall)
		if errors.Is(err, ringwal.ErrWait) || (errors.Is(err, ringwal.ErrFull) && n.freesSoon()) {
			c.Unread()
			return some, false
		}
		some = true
		if err != nil {
			if h.Type == wire.TypeAppend && errors.Is(err, ringwal.ErrFull) {
				n.loop.passed(&n.loop.request.batch, true)
			}
			n.refuse(c.Session(), h, err)
		}
	}
}

// refuse answers a request with the error that decided it.
func (n *Node) refuse(s *session.Session, h wire.Header, err error) {
	request, e := h.Request, new(wire.Error)
	session.FillError(e, err)
	if h.Type != wire.TypeAppend {
		e.Known &^= wire.FlagEntry // commands have no entries
		if e.Code == wire.CodeNotFound {
			e.Known &^= wire.FlagActual // that is what was asked for
		}
	}
	if errors.Is(err, ringwal.ErrFull) {
		n.explainFull(e)
	}
	n.stats.refused(e.Code)
	n.reply(s, request, func() { s.AnswerError(request, e) })
}

// reply sends when the durable position covers what was decided so far.
func (n *Node) reply(s *session.Session, request uint64, send func()) {
	n.loop.answers.push(answer{at: n.committer.DecidedAt(), session: s, request: request, send: send})
}

// refuseAll answers everything that comes after the log has stopped.
func (n *Node) refuseAll() {
	l := &n.loop
	e := n.stopError()
	for len(l.ready) > 0 {
		s := l.ready[0]
		if l.chunk == nil {
			l.chunk = s.PopChunk()
		}
		if l.chunk == nil {
			n.drained(s)
			l.ready = l.ready[:copy(l.ready, l.ready[1:])]
			continue
		}
		for h, _, ok := l.chunk.Next(); ok; h, _, ok = l.chunk.Next() {
			s.AnswerError(h.Request, e)
		}
		l.answered(s)
		l.chunk.Release()
		l.chunk = nil
	}
}

func (n *Node) decideOne(s *session.Session, h wire.Header, body []byte, now, wall int64) error {
	if h.Type == wire.TypeAppend {
		return n.decideAppend(s, h, body, now, wall)
	}
	if n.loop.closing != nil {
		return ErrDraining
	}
	switch h.Type {
	case wire.TypeStreamOpen, wire.TypeStreamStat, wire.TypeStreamSeal, wire.TypeStreamDelete, wire.TypeStreamToken, wire.TypeStreamTrim, wire.TypeStreamList:
		return n.decideStream(s, h, body, wall)
	default:
		return n.decideProducer(s, h, body)
	}
}

func (n *Node) decideAppend(s *session.Session, h wire.Header, body []byte, now, wall int64) error {
	q := &n.loop.request
	if n.loop.closing != nil {
		return ErrDraining
	}
	if err := q.append.Decode(h, body); err != nil {
		return err
	}
	if n.loop.chunk.Shared() {
		q.copied = q.append.Detach(q.copied)
	}
	b := &q.batch
	*b = stream.Batch{Entries: b.Entries[:0]}
	if q.append.HasProducer {
		b.Producer, b.Sequence, b.Acked = stream.ProducerID(q.append.Producer), q.append.Sequence, q.append.Acked
	}
	for i := range q.append.Entries {
		e := &q.append.Entries[i]
		b.Entries = append(b.Entries, stream.Entry{Stream: stream.ID(e.Stream), Payload: e.Payload, Headers: e.Headers,
			Expect: e.Expect, HasExpect: e.HasExpect, Token: e.Token})
	}
	if err := n.mayAppend(s, b); err != nil {
		return err
	}
	if err := n.committer.Append(wall, b, &q.result); err != nil {
		return err
	}
	n.loop.passed(b, false)
	r := &q.result
	n.stats.appended(q.append.Entries)
	if len(r.Placed) == 1 && !r.Duplicate {
		n.loop.answers.push(answer{at: n.committer.DecidedAt(), session: s, request: h.Request, placed: r.Placed[0], position: r.Position, atNS: now})
		return nil
	}
	answer := &wire.AppendResult{Duplicate: r.Duplicate, Position: r.Position, LastSequence: r.LastSequence}
	for _, p := range r.Placed {
		answer.Placed = append(answer.Placed, wire.Placed{Stream: uint64(p.Stream), Offset: p.First, Count: p.Count})
	}
	n.reply(s, h.Request, func() { s.AnswerResult(h.Request, answer) })
	return nil
}

func (n *Node) decideStream(s *session.Session, h wire.Header, body []byte, wall int64) error {
	var info stream.StreamInfo
	var err error
	var created, deleted bool
	switch h.Type {
	case wire.TypeStreamOpen:
		var m wire.StreamOpen
		if err = m.Decode(h, body); err == nil {
			if m.Create {
				info, created, err = n.committer.CreateStream(wall, m.Name)
			} else {
				info, err = n.committer.StatName(m.Name)
			}
		}
	case wire.TypeStreamStat:
		var m wire.StreamStat
		if err = m.Decode(h, body); err == nil {
			info, err = n.committer.Stat(stream.ID(m.Stream))
		}
	case wire.TypeStreamSeal:
		var m wire.StreamSeal
		if err = m.Decode(h, body); err == nil {
			info, err = n.committer.Seal(stream.ID(m.Stream))
		}
	case wire.TypeStreamToken:
		var m wire.StreamToken
		if err = m.Decode(h, body); err == nil {
			info, err = n.committer.SetToken(stream.ID(m.Stream), m.Old, m.New)
		}
	case wire.TypeStreamDelete:
		var m wire.StreamDelete
		if err = m.Decode(h, body); err == nil {
			if info, err = n.committer.Stat(stream.ID(m.Stream)); err == nil {
				deleted, err = true, n.committer.Delete(stream.ID(m.Stream))
				n.loop.wantTrim(n.committer.DecidedAt())
			}
		}
	case wire.TypeStreamTrim:
		return n.decideTrim(s, h, body)
	case wire.TypeStreamList:
		return n.decideList(s, h, body)
	}
	if err != nil {
		return err
	}
	answer := &wire.StreamInfo{Stream: wireStream(&info)}
	answer.Created, answer.Deleted = created, deleted
	n.reply(s, h.Request, func() { s.AnswerStream(h.Request, answer) })
	return nil
}

func wireStream(i *stream.StreamInfo) wire.Stream {
	return wire.Stream{ID: uint64(i.ID), FirstOffset: i.First, NextOffset: i.Next, CreatedNS: i.Created, LastNS: i.Last,
		Sealed: i.Sealed, HasToken: len(i.Token) > 0, Name: i.Name}
}

func (n *Node) decideTrim(s *session.Session, h wire.Header, body []byte) error {
	var m wire.StreamTrim
	if err := m.Decode(h, body); err != nil {
		return err
	}
	first, err := n.committer.Trim(stream.ID(m.Stream), m.Before)
	if err != nil {
		return err
	}
	n.loop.wantTrim(n.committer.DecidedAt())
	answer := &wire.Trimmed{Stream: m.Stream, FirstOffset: first}
	n.reply(s, h.Request, func() { s.AnswerTrimmed(h.Request, answer) })
	return nil
}

func (n *Node) decideList(s *session.Session, h wire.Header, body []byte) error {
	var m wire.StreamList
	if err := m.Decode(h, body); err != nil {
		return err
	}
	limit := int(m.Limit)
	if limit == 0 || limit > stream.MaxListed {
		limit = stream.MaxListed
	}
	list, more := n.committer.List(m.Prefix, m.After, limit, n.loop.request.list[:0])
	n.loop.request.list = list[:0]
	page := &wire.StreamPage{}
	bytes := 0
	for i := range list {
		w := wireStream(&list[i])
		if bytes += w.Bytes(); bytes > wire.MaxPageBytes-wire.HeaderBytes-512 {
			more = true
			break
		}
		page.Streams = append(page.Streams, w)
	}
	if more {
		page.Next = page.Streams[len(page.Streams)-1].Name
	}
	n.reply(s, h.Request, func() { s.AnswerPage(h.Request, page) })
	return nil
}

func (n *Node) decideProducer(s *session.Session, h wire.Header, body []byte) error {
	var info stream.ProducerInfo
	var err error
	var created, removed bool
	switch h.Type {
	case wire.TypeProducerOpen:
		var m wire.ProducerOpen
		if err = m.Decode(h, body); err == nil {
			if m.Name != "" {
				if info, created, err = n.committer.OpenNamedProducer(m.Name); err == nil {
					n.loop.claim(info.ID, s)
				}
			} else {
				created = true
				info, err = n.openSession(s, m.Window)
			}
		}
	case wire.TypeProducerGet:
		var m wire.ProducerGet
		if err = m.Decode(h, body); err == nil {
			if m.Name != "" {
				info, err = n.committer.Producer(m.Name)
			} else if id := stream.ProducerID(m.ID); id.IsSession() {
				info, err = n.attach(s, id)
			} else {
				info, err = n.committer.ProducerByID(id)
			}
		}
	case wire.TypeProducerRemove:
		var m wire.ProducerRemove
		if err = m.Decode(h, body); err == nil {
			if info, err = n.committer.Producer(m.Name); err == nil {
				if removed, err = true, n.committer.RemoveProducer(m.Name); err == nil {
					n.loop.unclaim(info.ID)
				}
			}
		}
	}
	if err != nil {
		return err
	}
	answer := &wire.ProducerInfo{Created: created, Removed: removed, ID: uint64(info.ID), LastSequence: info.Last, Window: info.Window, Name: info.Name}
	n.reply(s, h.Request, func() { s.AnswerProducer(h.Request, answer) })
	return nil
}

func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
