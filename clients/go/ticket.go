package walsidecar

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Result tells where an appended batch stands. Offsets and positions are for
// ever: they never name another record.
type Result struct {
	// Offset of the first record in its stream.
	Offset uint64
	// Position of the batch: the byte address in the log from which Replay finds it.
	Position uint64
	// Placed has one element per distinct stream of an AppendBatch, in the order
	// in which the batch first names them; nil for a single record.
	Placed []Placed
	// Duplicate says that the named producer had already got as far as this
	// sequence: nothing was appended, and Offset and Position are zero.
	Duplicate bool
	// LastSequence is the last sequence of the named producer, where Duplicate is set.
	LastSequence uint64
}

// Placed tells where the records of one stream of a batch stand: at the offsets
// [First, First+Count).
type Placed struct {
	Stream string
	First  uint64
	Count  uint32
}

// Ticket stands for a submitted batch. It is a small value to be copied and kept
// in slices; a ticket that is dropped costs nothing more than its memory. The
// zero Ticket is spent.
type Ticket struct {
	p   *pending
	use uint32 // of p, when the ticket was made
}

// Wait returns the result once the batch is durable, or why it was refused.
// The first Wait that returns a final answer spends the ticket; another one
// then returns ErrTicketSpent.
//
// A context that ends first abandons the wait, not the record: Wait returns an
// error that matches both ErrOutcomeUnknown and the context's, the record may
// or may not become durable, and the same ticket can be waited for again to
// learn which. One goroutine at a time may wait for a ticket.
func (t Ticket) Wait(ctx context.Context) (Result, error) {
	if t.p == nil || t.p.use.Load() != t.use {
		return Result{}, ErrTicketSpent
	}
	if err := t.p.wait(ctx); err != nil {
		return Result{}, err
	}
	result, err := t.p.result, t.p.err
	t.p.recycle()
	return result, err
}

// States of a pending. The connection's goroutine moves it to answered exactly once.
const (
	pendingOpen     uint32 = iota // not answered, nobody waits
	pendingAwaited                // not answered, a waiter blocks on wake
	pendingAnswered               // result and err are set
)

// pending is where the answer of one request meets the goroutine that waits for
// it. It is recycled by the waiter that took the answer.
type pending struct {
	state  atomic.Uint32
	use    atomic.Uint32
	wake   chan struct{} // capacity 1
	result Result
	err    error
	next   *pending // chain of answered ones whose waiters are to be woken
	reaper *Client  // whose acks a waiter handles itself; nil: the socket brings the answer
}

var pendings = sync.Pool{New: func() any { return &pending{wake: make(chan struct{}, 1)} }}

func (c *Client) newPending() *pending {
	p := pendings.Get().(*pending)
	if c.ring() != nil {
		p.reaper = c
	}
	return p
}

func (p *pending) ticket() Ticket { return Ticket{p, p.use.Load()} }

// wait blocks until the answer is there or ctx ends.
func (p *pending) wait(ctx context.Context) error {
	if p.state.Load() == pendingAnswered {
		return nil
	}
	if c := p.reaper; c != nil {
		c.await(p)
		defer c.waiting.Add(-1)
	}
	if !p.state.CompareAndSwap(pendingOpen, pendingAwaited) {
		return nil // answered meanwhile
	}
	select {
	case <-p.wake:
		return nil
	case <-ctx.Done():
	}
	if p.state.CompareAndSwap(pendingAwaited, pendingOpen) {
		return fmt.Errorf("%w: gave up waiting: %w", ErrOutcomeUnknown, context.Cause(ctx))
	}
	<-p.wake // the answer came at the same moment
	return nil
}

// answer sets the final answer and reports whether a waiter must be woken with
// wakeUp, which may be done later and without a lock.
func (p *pending) answer(result Result, err error) bool {
	p.result, p.err = result, err
	return p.state.Swap(pendingAnswered) == pendingAwaited
}

func (p *pending) wakeUp() { p.wake <- struct{}{} }

// recycle gives p back; only who took the answer may call it.
func (p *pending) recycle() {
	p.use.Add(1)
	p.result, p.err, p.next, p.reaper = Result{}, nil, nil, nil
	p.state.Store(pendingOpen)
	pendings.Put(p)
}
