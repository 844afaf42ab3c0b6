package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/walsidecar/walsidecar/wire"
)

// A position of a ring counts bytes and never wraps; the byte at position p lies at
// p mod size. A message is contiguous: where it does not fit before the end of the
// ring, a pad fills the rest.

// Producer is the client's end of a submission ring. It is for one goroutine at a
// time.
type Producer struct {
	ring     []byte
	tail     *atomic.Uint64
	position uint64 // behind the last message, published or not
	free     uint64 // everything below may be overwritten
}

// NewProducer returns the producer of an empty ring.
func NewProducer(submission Memory) (*Producer, error) {
	if err := submission.check(magicSubmission, len(submission)-headBytes); err != nil {
		return nil, err
	}
	ring := submission[headBytes:]
	if n := len(ring); n < MinRingBytes || n > MaxRingBytes || n&(n-1) != 0 {
		return nil, fmt.Errorf("%w: a ring of %d bytes", ErrViolation, n)
	}
	return &Producer{ring: ring, tail: submission.u64(offTail)}, nil
}

// MaxMessageBytes is the largest message that the ring takes.
func (p *Producer) MaxMessageBytes() int { return MaxMessageBytes(len(p.ring)) }

// pad is how many bytes are left unused before a message of n bytes.
func (p *Producer) pad(n int) int {
	if left := len(p.ring) - p.index(p.position); left < n {
		return left
	}
	return 0
}

func (p *Producer) index(position uint64) int { return int(position & uint64(len(p.ring)-1)) }

// Fits reports whether there is room for a message of n bytes, header included.
func (p *Producer) Fits(n int) bool {
	return n <= p.MaxMessageBytes() && int(p.position-p.free)+p.pad(n)+n <= len(p.ring)
}

// Reserve returns the place of a message of n bytes, a multiple of 8, for which
// Fits must have been true, and its index in the ring. The message is written there
// before Publish.
func (p *Producer) Reserve(n int) (dst []byte, index int) {
	if !p.Fits(n) || n < wire.HeaderBytes || n%wire.Align != 0 {
		panic(fmt.Sprintf("shm: %d bytes do not fit the ring", n))
	}
	if pad := p.pad(n); pad > 0 {
		b := p.ring[p.index(p.position):]
		binary.LittleEndian.PutUint64(b, uint64(pad)|uint64(wire.TypePad)<<32)
		p.position += uint64(pad)
	}
	index = p.index(p.position)
	p.position += uint64(n)
	return p.ring[index : index+n : index+n], index
}

// Position is the end of the newest message.
func (p *Producer) Position() uint64 { return p.position }

// Ring is the memory of the ring.
func (p *Producer) Ring() []byte { return p.ring }

// Publish shows the consumer everything that was written. The store is a full
// barrier, as all of sync/atomic: what follows it sees whether the sidecar slept.
func (p *Producer) Publish() { p.tail.Store(p.position) }

// Free gives up everything below position: it has its outcome, and that is known
// here. (What the sidecar says to have released is not enough: the ring is what a
// client sends again from.)
func (p *Producer) Free(position uint64) { p.free = max(p.free, min(position, p.position)) }

// Consumer is the sidecar's end of a submission ring. It is for one goroutine; Tail
// alone may be called by others.
type Consumer struct {
	ring  []byte
	tail  *atomic.Uint64
	limit uint64 // tail as it was loaded and checked last
	taken uint64 // everything below was returned by Next
	next  uint64 // id that the next message must have

	before         uint64 // taken before the last Next
	released       uint64
	requests       [MaxRequests]uint64 // ends of the unanswered messages, by id
	answered       uint64              // id of the oldest unanswered message
	maxMessageSize int
}

// NewConsumer returns the consumer of an empty ring.
func NewConsumer(submission Memory) *Consumer {
	ring := submission[headBytes:]
	return &Consumer{ring: ring, tail: submission.u64(offTail), next: FirstRequest, answered: FirstRequest,
		maxMessageSize: MaxMessageBytes(len(ring))}
}

// Tail is the producer's tail, unchecked.
func (c *Consumer) Tail() uint64 { return c.tail.Load() }

// Taken is the position up to which messages were taken.
func (c *Consumer) Taken() uint64 { return c.taken }

// Pending is how many bytes the last Load saw that Next has not taken.
func (c *Consumer) Pending() uint64 { return c.limit - c.taken }

// Load looks for published messages and reports whether Next has any.
func (c *Consumer) Load() (bool, error) {
	tail := c.tail.Load()
	switch {
	case tail < c.limit:
		return false, fmt.Errorf("%w: the tail went back from %d to %d", ErrViolation, c.limit, tail)
	case tail%wire.Align != 0:
		return false, fmt.Errorf("%w: the tail %d is not a multiple of %d", ErrViolation, tail, wire.Align)
	case tail-c.released > uint64(len(c.ring)):
		return false, fmt.Errorf("%w: the tail %d is more than the ring ahead of %d, which is released", ErrViolation, tail, c.released)
	}
	c.limit = tail
	return c.taken < c.limit, nil
}

// Next takes the next message that Load saw; ok is false after the last. The body
// lies in the ring: its owner may change it at any time, so that every byte of it is
// to be read once, or copied first.
func (c *Consumer) Next() (h wire.Header, body []byte, ok bool, err error) {
	c.before = c.taken
	for c.taken < c.limit {
		at := int(c.taken & uint64(len(c.ring)-1))
		left := min(uint64(len(c.ring)-at), c.limit-c.taken)
		first := binary.LittleEndian.Uint64(c.ring[at:])
		h = wire.Header{Length: uint32(first), Type: wire.Type(uint16(first >> 32)), Flags: uint16(first >> 48)}
		if h.Type == wire.TypePad {
			if int(h.Length) != len(c.ring)-at || uint64(h.Length) > left || h.Flags != 0 {
				return h, nil, false, fmt.Errorf("%w: a pad of %d bytes, %d before the end of the ring", ErrViolation, h.Length, len(c.ring)-at)
			}
			c.taken += uint64(h.Length)
			continue
		}
		if h.Length < wire.HeaderBytes || h.Length%wire.Align != 0 || int(h.Length) > c.maxMessageSize || uint64(h.Length) > left {
			return h, nil, false, fmt.Errorf("%w: a message of %d bytes where %d are left", ErrViolation, h.Length, left)
		}
		h.Request = binary.LittleEndian.Uint64(c.ring[at+8:])
		switch {
		case h.Type != wire.TypeAppend:
			return h, nil, false, fmt.Errorf("%w: a message of type %d; the ring is for appends", ErrViolation, h.Type)
		case h.Request != c.next:
			return h, nil, false, fmt.Errorf("%w: request id %d, not %d: ids grow by 1", ErrViolation, h.Request, c.next)
		case c.next-c.answered >= MaxRequests:
			return h, nil, false, fmt.Errorf("%w: more than %d requests unanswered", ErrViolation, MaxRequests)
		}
		end := at + int(h.Length)
		c.taken += uint64(h.Length)
		c.requests[c.next%MaxRequests] = c.taken
		c.next++
		return h, c.ring[at+wire.HeaderBytes : end : end], true, nil
	}
	return wire.Header{}, nil, false, nil
}

// Unread takes the last Next back, which returned a message.
func (c *Consumer) Unread() {
	c.taken = c.before
	c.next--
}

// Answer notes the outcome of a request, and so of all before it: they are answered
// in order.
func (c *Consumer) Answer(request uint64) {
	if request < c.answered || request >= c.next {
		return
	}
	c.released = c.requests[request%MaxRequests]
	c.answered = request + 1
}

// Released is the end of what has its outcome.
func (c *Consumer) Released() uint64 { return c.released }

// Unanswered is how many messages were taken and not answered.
func (c *Consumer) Unanswered() int { return int(c.next - c.answered) }
