package session

import (
	"fmt"
	"sync"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// Null is a log that keeps nothing: it answers appends at once, as if they were
// durable, and says in its Welcome that they are not. `bench --null` measures a
// door alone with it. It has a commit loop of its own, so that a request takes
// the same way through the process as one to a real log.
type Null struct {
	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	ready  []*Session // in the order in which they became ready
	queued map[*Session]struct{}

	// The commit loop.
	look     Look
	batch    wire.Append
	result   wire.AppendResult
	streams  []nullStream // by id - 1
	names    map[string]uint64
	position uint64
	producer uint64 // last id
}

type nullStream struct {
	name   string
	next   uint64
	placed int // index in the result of the batch being answered, plus 1
}

// maxNullStreams bounds the streams of a null log.
const maxNullStreams = 65536

// NewNull starts a null log. Close ends it.
func NewNull() *Null {
	n := &Null{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		queued: map[*Session]struct{}{}, names: map[string]uint64{}}
	go n.loop()
	return n
}

// Close ends the commit loop; requests after it are not answered.
func (n *Null) Close() {
	close(n.stop)
	<-n.done
}

// Welcome says that nothing is durable.
func (n *Null) Welcome() wire.Welcome {
	return wire.Welcome{NotDurable: true, Node: "null", MaxBatchRecords: wire.MaxBatchRecords, MaxBatchBytes: wire.MaxFrameBytes}
}

// Reader returns nil: there is nothing to read.
func (n *Null) Reader() *reader.Reader { return nil }

// StatusJSON says what this is.
func (n *Null) StatusJSON() []byte { return []byte(`{"log":"null","durable":false}`) }

// Opened admits every session.
func (n *Null) Opened(*Session) error { return nil }

// Closed has nothing to do.
func (n *Null) Closed(*Session) {}

// Ready queues s for the commit loop.
func (n *Null) Ready(s *Session) {
	n.mu.Lock()
	if _, ok := n.queued[s]; !ok {
		n.queued[s] = struct{}{}
		n.ready = append(n.ready, s)
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Serve is Ready.
func (n *Null) Serve(s *Session) { n.Ready(s) }

// Listen has a goroutine hear the bell.
func (n *Null) Listen(b *shm.Bell, heard func() time.Duration) (forget func()) {
	return ListenApart(b, heard)
}

func (n *Null) loop() {
	defer close(n.done)
	rung := func() bool { return len(n.wake) > 0 || n.stopped() }
	for {
		n.look.Before(rung)
		select {
		case <-n.stop:
			return
		case <-n.wake:
		}
		for s := n.next(); s != nil; s = n.next() {
			for c := s.PopChunk(); c != nil; c = s.PopChunk() {
				for h, body, ok := c.Next(); ok; h, body, ok = c.Next() {
					n.answer(s, h, body)
				}
				c.Release()
				s.Flush(true)
			}
			n.look.Emptied(s)
		}
	}
}

func (n *Null) stopped() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

// next takes the session that waits longest, nil when none does.
func (n *Null) next() *Session {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.ready) == 0 {
		return nil
	}
	s := n.ready[0]
	n.ready = n.ready[:copy(n.ready, n.ready[1:])]
	delete(n.queued, s)
	return s
}

func (n *Null) answer(s *Session, h wire.Header, body []byte) {
	switch h.Type {
	case wire.TypeAppend:
		n.append(s, h, body)
	case wire.TypeStreamOpen:
		var m wire.StreamOpen
		if err := m.Decode(h, body); err != nil {
			n.refuse(s, h, err)
			return
		}
		n.open(s, h, m.Name)
	case wire.TypeProducerOpen:
		n.producer++
		s.AnswerProducer(h.Request, &wire.ProducerInfo{Created: true, ID: n.producer, Window: wire.DefaultProducerWindow})
	default:
		s.AnswerError(h.Request, &wire.Error{Code: wire.CodeUnsupported, Message: fmt.Sprintf("a null log does not answer %s", h.Type)})
	}
}

func (n *Null) refuse(s *Session, h wire.Header, err error) {
	var e wire.Error
	FillError(&e, err)
	s.AnswerError(h.Request, &e)
}

func (n *Null) open(s *Session, h wire.Header, name string) {
	id, ok := n.names[name]
	if !ok {
		if len(n.streams) == maxNullStreams {
			s.AnswerError(h.Request, &wire.Error{Code: wire.CodeTooManyStreams, Message: "too many streams for a null log"})
			return
		}
		n.streams = append(n.streams, nullStream{name: name})
		id = uint64(len(n.streams))
		n.names[name] = id
	}
	s.AnswerStream(h.Request, &wire.StreamInfo{Stream: wire.Stream{ID: id, NextOffset: n.streams[id-1].next, Created: !ok, Name: name}})
}

func (n *Null) append(s *Session, h wire.Header, body []byte) {
	if err := n.batch.Decode(h, body); err != nil {
		n.refuse(s, h, err)
		return
	}
	for i := range n.batch.Entries {
		if id := n.batch.Entries[i].Stream; id == 0 || id > uint64(len(n.streams)) {
			s.AnswerError(h.Request, &wire.Error{Code: wire.CodeNotFound, Known: wire.FlagEntry | wire.FlagStream, Entry: uint32(i), Stream: id, Message: "no such stream"})
			return
		}
	}
	n.place()
	if placed := n.result.Placed; len(placed) == 1 {
		s.AckAppend(h.Request, placed[0].Stream, placed[0].Offset, placed[0].Count, n.position)
	} else {
		n.result.Position = n.position
		s.AnswerResult(h.Request, &n.result)
	}
	n.position += uint64(len(body))
}

// place gives the batch's records their offsets.
func (n *Null) place() {
	n.result.Placed = n.result.Placed[:0]
	for i := range n.batch.Entries {
		id := n.batch.Entries[i].Stream
		one := &n.streams[id-1]
		if one.placed == 0 {
			n.result.Placed = append(n.result.Placed, wire.Placed{Stream: id, Offset: one.next})
			one.placed = len(n.result.Placed)
		}
		n.result.Placed[one.placed-1].Count++
		one.next++
	}
	for i := range n.result.Placed {
		n.streams[n.result.Placed[i].Stream-1].placed = 0
	}
}
