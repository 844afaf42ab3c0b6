package walsidecar

import (
	"fmt"
	"sort"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// stall is the time after a request was refused without using up its sequence: the
// sidecar then refuses every later one of the session's producer too, until that
// sequence comes again. Nothing is submitted until all that were in flight have
// been answered; those to be sent again are held, and then sent in order under
// new sequences. So a sequence is never used for other bytes while a request that
// carried it is on its way.
type stall struct {
	active  bool
	certain bool   // what follows in flight is refused, whatever becomes of the connection
	pausing bool   // a timer will send the held ones again
	full    *Error // log_full: what follows fails like this; nil: it is held
	doubt   bool   // the outcome of one under the producer that expired is unknown
	retries int    // in a row without an append that succeeded
}

// The wait before held requests are sent again.
const (
	retryFirst   = 10 * time.Millisecond
	retryLongest = time.Second
)

func (s *stall) begin() { s.active = true }

func (s *stall) end() { *s = stall{retries: s.retries} }

// handle takes one message of the sidecar. An error ends the connection.
func (c *Client) handle(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeAppendAck:
		return c.handleAck(h, body)
	case wire.TypeAppendResult:
		return c.handleResult(h, body)
	case wire.TypeError:
		return c.handleError(h, body)
	case wire.TypeRecords, wire.TypeReplayBatches, wire.TypeGap, wire.TypeCaughtUp, wire.TypeHeartbeat, wire.TypeEnd:
		return c.handleRead(h, body)
	case wire.TypeGoodbye:
		var m wire.Goodbye
		if err := m.Decode(h, body); err != nil {
			return err
		}
		why := goodbye(&m, "connection")
		c.mu.Lock()
		c.lost = why
		c.mu.Unlock()
		return why
	}
	c.mu.Lock()
	k := c.calls[h.Request]
	delete(c.calls, h.Request)
	c.mu.Unlock()
	if k == nil {
		return fmt.Errorf("%w: %s for request %d, which did not ask for it", wire.ErrMalformed, h.Type, h.Request)
	}
	k.settle(h, body, nil)
	return nil
}

// awaited returns the unanswered request with this id. Answers come in the order
// of the requests, but for refusals that do not get as far as the log.
func (c *Client) awaited(id uint64) (*request, error) {
	f := &c.flight
	number := f.next
	if number < f.tail && f.at(number).id != id {
		number += uint64(sort.Search(int(f.tail-number), func(i int) bool { return f.at(number+uint64(i)).id >= id }))
	}
	if number < f.tail {
		if r := f.at(number); r.id == id && !r.answered() {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: an answer for append request %d, which is not awaited", wire.ErrMalformed, id)
}

func (c *Client) handleAck(h wire.Header, body []byte) error {
	if err := c.ack.Decode(h, body); err != nil { // used by this goroutine alone
		return err
	}
	c.mu.Lock()
	defer c.unlockAndKick()
	return c.acked(c.ack.Extents)
}

// acked gives the requests of the extents their results.
func (c *Client) acked(extents []wire.AckExtent) error {
	for e := range extents {
		extent := &extents[e]
		for i := range extent.Requests {
			r, err := c.awaited(extent.Request + uint64(i))
			if err != nil {
				return err
			}
			offset, position := extent.At(i)
			result := Result{Offset: offset, Position: position}
			if r.streams != nil {
				result.Placed = []Placed{{Stream: r.streams[0].name, First: offset, Count: extent.Records}}
			}
			c.succeed(r, result)
		}
		_, last := extent.At(extent.Requests - 1)
		c.sawDurable(last)
	}
	c.settle()
	return nil
}

func (c *Client) handleResult(h wire.Header, body []byte) error {
	var m wire.AppendResult
	if err := m.Decode(h, body); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlockAndKick()
	r, err := c.awaited(h.Request)
	if err != nil {
		return err
	}
	result := Result{Position: m.Position}
	if len(m.Placed) > 0 {
		result.Offset = m.Placed[0].Offset
	}
	if r.sequence == 0 && m.Duplicate && r.absent {
		c.finish(r, Result{}, newError(wire.CodeOutOfSequence, opAppend, r.label(),
			"not appended: while the log was full for it, a later sequence of the producer was accepted"))
		c.flight.advance()
		c.settle()
		return nil
	}
	if r.sequence == 0 && m.Duplicate {
		result = Result{Duplicate: true, LastSequence: m.LastSequence}
	} else if r.streams != nil {
		result.Placed = make([]Placed, len(m.Placed))
		for i, p := range m.Placed {
			result.Placed[i] = Placed{Stream: r.nameOf(p.Stream), First: p.Offset, Count: p.Count}
		}
	}
	c.succeed(r, result)
	c.sawDurable(m.Position)
	c.settle()
	return nil
}

// nameOf returns the name of one of the streams of a batch.
func (r *request) nameOf(id uint64) string {
	for _, ref := range r.streams {
		if ref.id == id {
			return ref.name
		}
	}
	return ""
}

// succeed gives the request that was awaited its result.
func (c *Client) succeed(r *request, result Result) {
	c.usedUp(r)
	c.stall.retries = 0
	c.finish(r, result, nil)
	c.flight.advance()
}

// usedUp notes that the log has used up the sequence of r.
func (c *Client) usedUp(r *request) { c.producer.usedUp = max(c.producer.usedUp, r.sequence) }

func (c *Client) handleError(h wire.Header, body []byte) error {
	var m wire.Error
	if err := m.Decode(h, body); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlockAndKick()
	if k := c.calls[h.Request]; k != nil {
		delete(c.calls, h.Request)
		k.settle(wire.Header{}, nil, fromWire(&m, k.op, k.stream))
		return nil
	}
	if r := c.reads[h.Request]; r != nil {
		delete(c.reads, h.Request)
		r.refuse(&m)
		return nil
	}
	r, err := c.awaited(h.Request)
	if err != nil {
		return err
	}
	c.refused(r, &m)
	c.flight.advance()
	c.settle()
	return nil
}

// refused decides what becomes of an append that was refused.
func (c *Client) refused(r *request, m *wire.Error) {
	err := fromWire(m, opAppend, r.label())
	if r.streams == nil {
		err.Entry = -1
	}
	c.forget(r, m.Code)
	session := r.sequence != 0
	switch {
	case m.Logged, m.Code == wire.CodeSequenceExpired && session:
		c.usedUp(r)
		c.finish(r, Result{}, err)
	case session && c.stall.certain:
		c.refusedBehind(r) // for whatever reason now
	case passes(m.Code), m.Code == wire.CodeLogFull && c.options.waitWhileFull:
		// It says nothing of what became of the request on an earlier connection.
		sent := m.Code != wire.CodeLogFull && (r.sent || err.OutcomeUnknown)
		c.hold(r)
		r.sent, r.absent = sent, !sent
	case session:
		c.sessionRefused(r, m.Code, err)
	default:
		c.finish(r, Result{}, err)
	}
}

// sessionRefused decides about an append under the session's producer whose
// sequence was not used up.
func (c *Client) sessionRefused(r *request, code wire.Code, err *Error) {
	switch {
	case code == wire.CodeOutOfSequence && c.stall.active:
		c.refusedBehind(r)
	case code == wire.CodeOutOfSequence:
		// The log is behind what it had answered, or another connection used the producer.
		c.producer.renew = true
		c.hold(r)
	case code == wire.CodeProducerExpired:
		c.producer.renew = true
		err.OutcomeUnknown = r.sent
		switch {
		case r.sent:
			c.stall.begin()
			c.stall.doubt = true
			c.finish(r, Result{}, err)
		case c.stall.doubt:
			c.finish(r, Result{}, err)
		default:
			c.hold(r)
		}
	default:
		c.stall.begin()
		c.stall.certain = !err.OutcomeUnknown
		c.producer.renew = c.producer.renew || err.OutcomeUnknown
		if code == wire.CodeLogFull {
			c.stall.full = err
			c.room.refuse(err)
		}
		c.finish(r, Result{}, err)
	}
}

// refusedBehind decides about a request that was, or will be, refused because of
// an earlier one.
func (c *Client) refusedBehind(r *request) {
	if c.stall.full == nil {
		c.hold(r)
		return
	}
	c.finish(r, Result{}, c.stall.full.behind(r.label()))
}

// behind is the error of what was to follow a record for which the log was full.
func (e *Error) behind(stream string) *Error {
	next := *e
	next.Message = "not appended: the log was full for a record before it"
	next.Entry, next.Actual = -1, nil
	if next.Stream == "" {
		next.Stream = stream
	}
	return &next
}

// hold keeps a request that the log is known not to have, to be sent again.
func (c *Client) hold(r *request) {
	c.stall.begin()
	r.takeOut()
	r.held, r.sent, r.absent = true, false, true
}

// passes tells the refusals that have to do with the sidecar, not with the
// request: it is about to end, or the log has stopped. What was refused so is sent
// again, on the next connection or this one.
func passes(code wire.Code) bool {
	switch code {
	case wire.CodeDraining, wire.CodeNotReady, wire.CodeBusy, wire.CodeOutOfMemory,
		wire.CodeFenced, wire.CodeLogFailed, wire.CodeOutcomeUnknown:
		return true
	}
	return false
}

// forget drops what the client knows of a stream or producer that is gone, so that
// the next append asks for the name again.
func (c *Client) forget(r *request, code wire.Code) {
	switch code {
	case wire.CodeDeleted, wire.CodeNotFound:
		for _, ref := range r.streams {
			c.forgetStream(ref)
		}
		if r.stream != nil {
			c.forgetStream(r.stream)
		}
		if r.sequence == 0 {
			clear(c.producers)
		}
	case wire.CodeProducerExpired:
		if r.sequence == 0 {
			clear(c.producers)
		}
	}
}

func (c *Client) forgetStream(ref *streamRef) {
	if c.streams[ref.name] == ref {
		delete(c.streams, ref.name)
	}
	if c.last == ref {
		c.last = nil
	}
}

// settle follows up on answers: it frees what the oldest requests held, ends
// flushes and stalls, and lets those go on who wait for room.
func (c *Client) settle() {
	f := &c.flight
	for f.head < f.tail && f.at(f.head).pending == nil {
		// What is dropped is answered, and so is everything before it; a command at
		// the head must not hide that.
		c.producer.acked = max(c.producer.acked, min(f.at(f.head).sequence, c.producer.usedUp)+1)
		if d := c.ring(); d != nil {
			d.Free(f.at(f.head).end)
		}
		f.drop()
	}
	if f.len() == 0 {
		c.producer.acked = c.producer.usedUp + 1
	}
	if c.producer.acked > c.producer.keptUpTo {
		c.producer.kept = 0
	}
	c.endFlushes()
	if c.stall.active && f.next == f.tail && c.conn != nil {
		c.endStall()
	}
	c.madeRoom()
}

func (c *Client) endFlushes() {
	for len(c.flushes) > 0 {
		f := &c.flight
		if f.len() > 0 && f.at(f.head).serial <= c.flushes[0].upTo {
			return
		}
		close(c.flushes[0].done)
		c.flushes = c.flushes[1:]
	}
}

// endStall is called once everything in flight has been answered.
func (c *Client) endStall() {
	if c.producer.renew {
		c.conn.close() // the next connection begins with a new producer
		return
	}
	if c.flight.len() == 0 {
		c.rebuild()
		return
	}
	if c.stall.pausing {
		return
	}
	c.stall.pausing = true
	pause := backoff(c.stall.retries, retryFirst, retryLongest)
	c.stall.retries++
	n := c.conn
	time.AfterFunc(pause, func() {
		c.mu.Lock()
		if c.conn == n && c.stall.pausing {
			c.rebuild()
			c.settle()
		}
		c.unlockAndKick()
	})
}
