package walsidecar

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/walsidecar/walsidecar/wire"
)

// reading is one read on one connection. The connection's goroutine puts messages
// in, the iteration takes them out; the credit of the read bounds what waits
// between them, so that a slow iteration holds up nothing but itself.
type reading struct {
	id        uint64 // request id
	op        string
	stream    string
	readAhead int
	cancelled bool // guarded by the client's mutex
	consumed  int  // bytes not yet granted again; the iteration's

	mu    sync.Mutex
	queue []arrived
	state readingState
	err   error         // why it ended, when state is readingEnded
	ready chan struct{} // capacity 1
}

// arrived is one message of a read.
type arrived struct {
	header wire.Header
	body   []byte
}

type readingState uint8

const (
	readingMessage     readingState = iota // there is a message, or there will be
	readingEnded                           // the sidecar ended it
	readingInterrupted                     // the connection was lost, or the sidecar is about to end
	readingGivenUp                         // the context of the iteration ended
)

// put adds a message whose body the reading may keep.
func (r *reading) put(h wire.Header, body []byte) {
	r.mu.Lock()
	last := len(r.queue) - 1
	if h.Type == wire.TypeCaughtUp && last >= 0 && r.queue[last].header.Type == h.Type {
		r.queue = r.queue[:last] // only the newest mark counts
	}
	r.queue = append(r.queue, arrived{h, body})
	r.mu.Unlock()
	r.signal()
}

// stop ends the reading once the messages before are taken.
func (r *reading) stop(state readingState, err error) {
	r.mu.Lock()
	if r.state == readingMessage {
		r.state, r.err = state, err
	}
	r.mu.Unlock()
	r.signal()
}

func (r *reading) signal() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// next waits for a message.
func (r *reading) next(ctx context.Context) (arrived, readingState) {
	for {
		r.mu.Lock()
		if len(r.queue) > 0 {
			m := r.queue[0]
			r.queue[0] = arrived{}
			r.queue = r.queue[1:]
			r.mu.Unlock()
			return m, readingMessage
		}
		r.queue = nil
		state := r.state
		r.mu.Unlock()
		if state != readingMessage {
			return arrived{}, state
		}
		select {
		case <-r.ready:
		case <-ctx.Done():
			return arrived{}, readingGivenUp
		}
	}
}

// openRead asks for a read, as soon as there is a connection.
func (c *Client) openRead(ctx context.Context, s *scan, question encoder) (*reading, error) {
	for {
		c.mu.Lock()
		if c.err != nil {
			err := c.err
			c.mu.Unlock()
			return nil, err
		}
		if c.conn != nil {
			r := &reading{op: s.op, stream: s.stream, readAhead: s.options.readAhead, ready: make(chan struct{}, 1)}
			r.id = c.send(question)
			c.reads[r.id] = r
			c.unlockAndKick()
			return r, nil
		}
		online := c.online
		c.mu.Unlock()
		select {
		case <-online:
		case <-c.ended:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", s.op, context.Cause(ctx))
		}
	}
}

// grant gives the sidecar credit for n bytes that the iteration is done with.
func (c *Client) grant(r *reading, n int) {
	r.consumed += n
	if r.consumed < (r.readAhead+1)/2 {
		return
	}
	c.mu.Lock()
	if c.reads[r.id] == r {
		c.sendFor(&wire.Credit{Bytes: uint64(r.consumed)}, r.id)
	}
	c.unlockAndKick()
	r.consumed = 0
}

// cancelRead ends a read that nobody takes from any more.
func (c *Client) cancelRead(r *reading) {
	c.mu.Lock()
	if c.reads[r.id] == r && !r.cancelled {
		r.cancelled = true
		c.sendFor(&wire.Cancel{}, r.id)
	}
	c.unlockAndKick()
}

// handleRead passes a message of a read on.
func (c *Client) handleRead(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeHeartbeat:
		var m wire.Heartbeat
		if err := m.Decode(h, body); err != nil {
			return err
		}
		c.sawDurable(m.Durable)
	case wire.TypeCaughtUp:
		var m wire.CaughtUp
		if err := m.Decode(h, body); err != nil {
			return err
		}
		c.sawDurable(m.Durable)
	case wire.TypeEnd:
		var m wire.End
		if err := m.Decode(h, body); err != nil {
			return err
		}
		c.sawDurable(m.Durable)
	}
	c.mu.Lock()
	r := c.reads[h.Request]
	cancelled := r != nil && r.cancelled
	if h.Type == wire.TypeEnd {
		delete(c.reads, h.Request)
	}
	c.mu.Unlock()
	switch {
	case r == nil:
		return fmt.Errorf("%w: %s for request %d, which is no read", wire.ErrMalformed, h.Type, h.Request)
	case cancelled || h.Type == wire.TypeHeartbeat:
	case h.Type == wire.TypeEnd:
		r.stop(readingEnded, nil)
	default:
		r.put(h, slices.Clone(body))
	}
	return nil
}

// refuse ends a read with the error that the sidecar gave. One that has to do
// with the sidecar, not with the read, makes the iteration ask again.
func (r *reading) refuse(m *wire.Error) {
	if passes(m.Code) {
		r.stop(readingInterrupted, nil)
		return
	}
	r.stop(readingEnded, fromWire(m, r.op, r.stream))
}
