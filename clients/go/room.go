package walsidecar

import (
	"slices"
	"sync"
)

// waiter is a goroutine that waits for room in flight.
type waiter struct {
	wake        chan struct{} // capacity 1
	size, slots int           // of what it wants to submit
	refused     *Error        // it need not wait: the log is full
}

// waiters stand in line for room. The first one stays in line until it has
// submitted or given up; nobody overtakes it. Guarded by the client's mutex.
type waiters []*waiter

var waiterPool = sync.Pool{New: func() any { return &waiter{wake: make(chan struct{}, 1)} }}

func (w *waiters) join(size, slots int) *waiter {
	one := waiterPool.Get().(*waiter)
	one.size, one.slots = size, slots
	*w = append(*w, one)
	return one
}

// leave takes one out of the line; it must not be used afterwards.
func (w *waiters) leave(one *waiter) {
	i := slices.Index(*w, one)
	*w = slices.Delete(*w, i, i+1)
	select {
	case <-one.wake:
	default:
	}
	one.refused = nil
	waiterPool.Put(one)
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // it is awake and will look again
	}
}

// refuse sends everybody away.
func (w waiters) refuse(err *Error) {
	for _, one := range w {
		one.refused = err
		one.signal()
	}
}

// hasRoom reports whether a message may go into flight.
func (c *Client) hasRoom(size, slots int) bool {
	f := &c.flight
	if c.stall.active {
		return false
	}
	if d := c.ring(); d != nil && !d.Fits(size) {
		return false
	}
	if f.len() == 0 {
		return true
	}
	return f.len() < c.requestLimit() && f.bytes+size <= c.byteLimit() && f.slots+c.producer.kept+slots <= c.slotLimit()
}

// requestLimit is how many appends may be in flight.
func (c *Client) requestLimit() int {
	limit := min(c.options.inFlight, max(int(c.limits.MaxRequests), 1))
	if d := c.ring(); d != nil {
		limit = min(limit, d.maxRequests)
	}
	return limit
}

// messageLimit is how large one append may be.
func (c *Client) messageLimit() int {
	limit := int(c.limits.MaxMessageBytes)
	if d := c.ring(); d != nil {
		limit = min(limit, d.MaxMessageBytes())
	}
	return limit
}

// byteLimit is how many bytes of appends may be in flight.
func (c *Client) byteLimit() int {
	limit := int(min(uint64(c.options.inFlightBytes), max(c.limits.MaxRequestBytes, 1)))
	if d := c.ring(); d != nil {
		limit = min(limit, d.byteLimit())
	}
	return limit
}

// slotLimit is how many slots of the session producer's window may be in use.
func (c *Client) slotLimit() int {
	if c.producer.window > 0 {
		return c.producer.window
	}
	return c.options.inFlight
}

// madeRoom lets the first in line go on, once an eighth of what may be in flight
// is free: it then submits many before it has to wait again.
func (c *Client) madeRoom() {
	if len(c.room) == 0 {
		return
	}
	first, f := c.room[0], &c.flight
	requests, bytes := c.requestLimit(), c.byteLimit()
	roomy := f.len() <= requests-requests/8 && f.bytes <= bytes-bytes/8
	if c.hasRoom(first.size, first.slots) && (roomy || f.len() == 0) {
		first.signal()
	}
}
