package walsidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// sessionProducer is the producer that the log issued to this client. Sequences
// grow by one from request to request, in the order of the flight.
type sessionProducer struct {
	id     uint64 // 0: none yet
	next   uint64 // sequence of the next request
	usedUp uint64 // the highest sequence that the log is known to have used up
	acked  uint64 // every sequence below it was answered
	window int    // slots
	renew  bool   // the id must not be used on another connection

	// Results that the log keeps beside those of the flight: of requests that were answered
	// while one before them was not, and that a rebuild has dropped.
	kept     int    // their slots
	keptUpTo uint64 // the highest of their sequences
}

// keep notes that an answered request leaves the flight before acked has passed it.
func (p *sessionProducer) keep(r *request) {
	if r.sequence >= p.acked && r.sequence <= p.usedUp {
		p.kept += r.slots
		p.keptUpTo = max(p.keptUpTo, r.sequence)
	}
}

// run keeps the client connected until it ends.
func (c *Client) run(n *connection) {
	for n != nil {
		why := <-n.finished
		c.mu.Lock()
		n.close()
		c.mu.Unlock()
		for range n.goroutines() - 1 {
			if next := n.ended(); why == nil {
				why = next
			}
		}
		c.uninstall(n, why)
		if n = c.reconnect(); n != nil {
			c.install(n)
		}
	}
	c.failAll()
	c.retire()
	close(c.stopped)
}

// reconnect tries until there is a connection; nil when the client has ended.
func (c *Client) reconnect() *connection {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	since := time.Now()
	for failures := 0; ; failures++ {
		select {
		case <-c.ended:
			return nil
		default:
		}
		n, err := c.connect(ctx)
		if err == nil {
			return n
		}
		if errors.Is(err, ErrWrongLog) || errors.Is(err, ErrLogWentBack) {
			c.end(err) // ids, sequences, or what they stood for mean nothing there
		}
		c.mu.Lock()
		c.lost = err
		c.mu.Unlock()
		pause := backoff(failures, reconnectFirst, reconnectLongest)
		pause += time.Duration(rand.Int64N(int64(pause)/4 + 1))
		if limit := c.options.giveUpAfter; limit > 0 {
			left := limit - time.Since(since)
			if left <= 0 {
				c.end(disconnected("reconnect", fmt.Sprintf("gave up after %v: %s", limit, brief(err)), err))
			}
			pause = min(pause, max(left, 0))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// install makes n the connection: everything unanswered is put on it, in order.
func (c *Client) install(n *connection) {
	c.mu.Lock()
	if c.err != nil {
		n.close() // its goroutines end at once
	}
	if n.ring != nil && !n.ring.takes(&c.flight) {
		n.ring.Detach() // what is in flight was admitted by a connection without shared memory
		n.ring = nil
	}
	c.conn, c.nextID, c.limits, c.lost = n, n.nextID, n.welcome, nil
	c.sawDurable(n.welcome.Durable)
	if n.renewed {
		c.renewProducer(&n.producer)
	}
	c.out.restart()
	c.rebuild()
	c.retire()
	for _, k := range c.parked {
		c.sendCall(k)
	}
	c.parked = nil
	close(c.online)
	c.settle()
	c.start(n)
	c.unlockAndKick()
}

// renewProducer replaces the session's producer. What was sent under the old one
// and not answered may be in the log, and is not sent again.
func (c *Client) renewProducer(info *wire.ProducerInfo) {
	c.producer = sessionProducer{id: info.ID, next: 1, window: int(info.Window)}
	f, doubt := &c.flight, false
	for number := f.head; number < f.tail; number++ {
		r := f.at(number)
		switch {
		case r.pending == nil || r.sequence == 0:
		case r.sent:
			doubt = true
			err := newError(wire.CodeProducerExpired, opAppend, r.label(), "the log no longer knows the session that sent the record")
			err.OutcomeUnknown = true
			c.finish(r, Result{}, err)
		case doubt: // it must not follow one of which nobody knows
			err := newError(wire.CodeProducerExpired, opAppend, r.label(), "not appended: the outcome of a record before it is unknown")
			c.finish(r, Result{}, err)
		}
	}
}

// rebuild encodes every unanswered request anew, in order, for the present
// connection if there is one. Requests that may have reached the log keep their
// sequences; the others get those that follow.
func (c *Client) rebuild() {
	f := &c.flight
	keep := f.head
	f.bytes, f.slots = 0, 0
	if d := c.ring(); d != nil {
		d.Free(d.Position()) // all of it was answered
	}
	c.producer.next = c.producer.usedUp + 1
	for number := f.head; number < f.tail; number++ {
		r := *f.at(number)
		if r.pending == nil {
			c.producer.keep(&r)
			continue
		}
		h, body, _, _, err := wire.Message(r.message())
		if err == nil {
			err = c.encode.Decode(h, body)
		}
		if err != nil {
			panic(fmt.Sprintf("walsidecar: a message of the client's own cannot be decoded: %v", err))
		}
		if r.sequence != 0 {
			if !r.sent { // else it is bound to its sequence
				r.sequence = c.producer.next
			}
			c.producer.next = max(c.producer.next, r.sequence+1)
			c.encode.Producer, c.encode.Sequence, c.encode.Acked = c.producer.id, r.sequence, c.producer.acked
		}
		r.id, r.held = 0, false
		if c.conn != nil {
			r.id = c.appendID()
		}
		old := r.chunk
		c.place(&r)
		c.out.release(old)
		*f.at(keep) = r
		keep++
		f.bytes += r.size
		f.slots += r.slots
	}
	for number := keep; number < f.tail; number++ {
		*f.at(number) = request{}
	}
	f.tail, f.next = keep, f.head
	c.stall.end()
}

// takeOutAll copies what is unanswered out of the ring: a sidecar that lives on takes
// the ring's memory back soon after it has ended the session. A message that is gone
// already has an unknown outcome, and its producer cannot go on behind it.
func (c *Client) takeOutAll() {
	f := &c.flight
	for number := f.head; number < f.tail; number++ {
		r := f.at(number)
		if r.pending == nil || !r.chunk.mapped {
			continue
		}
		r.takeOut()
		h, body, _, _, err := wire.Message(r.message())
		if err == nil {
			err = c.encode.Decode(h, body)
		}
		if err != nil {
			r.sent, c.producer.renew = true, true
		}
	}
}

// uninstall takes the connection away. Requests that may have reached the sidecar
// are marked; calls that must not be repeated fail.
func (c *Client) uninstall(n *connection, why error) {
	c.mu.Lock()
	c.conn, c.retired = nil, n.ring
	c.online = make(chan struct{})
	c.mu.Unlock()
	n.lone.Wait() // no write uses the memory any more
	if n.ring != nil {
		n.ring.lookers.Wait()
	}
	c.mu.Lock()
	c.out.written()
	if c.lost == nil {
		message := brief(why)
		if errors.Is(why, io.EOF) {
			message = "the sidecar closed the connection"
		}
		c.lost = disconnected("connection", message, why)
	}
	f := &c.flight
	for ; f.next < f.tail; f.next++ {
		r := f.at(f.next)
		switch {
		case r.answered():
		case r.sequence != 0 && c.stall.active && c.stall.certain:
			// The sidecar refuses every one that follows. Should the connection have
			// ended before it read them all, it must not find the sequences used again.
			c.producer.renew = true
			c.refusedBehind(r)
		case r.id != 0 && r.chunk.sent > r.at:
			r.sent, r.absent = true, false
		}
	}
	c.takeOutAll()
	calls := c.calls
	c.calls = map[uint64]*call{}
	for _, id := range sortedKeys(calls) {
		k := calls[id]
		switch {
		case k.abandoned:
		case k.repeat:
			c.parked = append(c.parked, k)
		default:
			k.settle(wire.Header{}, nil, outcomeUnknown(k.op, k.stream, "the connection was lost before the answer", c.lost))
		}
	}
	for _, r := range c.reads {
		r.stop(readingInterrupted, nil)
	}
	clear(c.reads)
	c.unlockAndWake()
}

// failAll ends everything that still waits; the client has ended.
func (c *Client) failAll() {
	c.mu.Lock()
	f := &c.flight
	for number := f.head; number < f.tail; number++ {
		r := f.at(number)
		switch {
		case r.pending == nil:
		case r.sent:
			c.finish(r, Result{}, outcomeUnknown(opAppend, r.label(), "the client ended before the answer: "+brief(c.err), c.err))
		default:
			c.finish(r, Result{}, c.err)
		}
	}
	f.next = f.tail
	c.stall.end()
	c.settle()
	for _, k := range c.parked {
		k.settle(wire.Header{}, nil, c.err)
	}
	c.parked = nil
	c.unlockAndWake()
}
