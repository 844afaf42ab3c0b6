package session

import (
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// Limits of one session. The client is told those that concern it in Welcome.
const (
	// ReadBufferBytes is the size of a receive buffer: what one read from the door
	// takes at most. A session has two: one that the commit loop copies from, one
	// that is filled. Larger messages get a buffer of their own for the while.
	ReadBufferBytes = 64 << 10

	// LargeBufferBytes is the size of a receive buffer for messages above
	// ReadBufferBytes. It counts under the budget while it exists.
	LargeBufferBytes = wire.MaxMessageBytes

	// MaxRequests is how many requests for the commit loop may be unanswered.
	// Beyond it the session takes nothing more from the door. A power of two.
	MaxRequests = 8192

	// MaxRequestBytes is how many bytes of requests for the commit loop may be
	// unanswered; one message may go beyond.
	MaxRequestBytes = 4 << 20

	// MaxOutputBytes is how many bytes of answers may wait for the client. Beyond
	// it the session takes nothing more from the door; answers to what it took
	// before still come on top.
	MaxOutputBytes = 256 << 10

	// MaxUntakenBytes is how much memory the answers of a session may take beyond
	// SessionBytes, under the budget. A client that lets them grow further is
	// dropped. It is enough for a long refusal of each of MaxRequests.
	MaxUntakenBytes = 4 << 20

	// MaxReads is how many reads and replays a session may have open.
	MaxReads = 64

	// ReadMessageBytes is the size that messages of records are filled up to. One
	// that holds a single larger record is longer.
	ReadMessageBytes = 128 << 10

	// MaxSessions is how many connections a process takes, over all doors.
	MaxSessions = 4096

	// SessionBytes is what a session takes of the budget for as long as it is
	// open: two receive buffers, the books of its requests, its answers, stacks.
	SessionBytes = 2*ReadBufferBytes + 4*MaxRequests + outputBaseBytes + 16<<10

	// outputBaseBytes is the part of SessionBytes that is for answers.
	outputBaseBytes = 32 << 10

	// minReadBytes is the least room worth a read: with less the receive buffer is
	// changed for the other one.
	minReadBytes = 4 << 10

	// maxExtents is how many extents one AppendAck has at most.
	maxExtents = 128
)

// Times after which a session is ended. A zero field of Options.Times takes the
// value named here.
type Times struct {
	Hello   time.Duration // HelloWithin
	Message time.Duration // MessageWithin
	Idle    time.Duration // IdleAfter
	Slow    time.Duration // SlowAfter
	Goodbye time.Duration // GoodbyeWithin
}

// The default times.
const (
	// HelloWithin is how long a new connection may take to introduce itself.
	HelloWithin = 5 * time.Second

	// MessageWithin is how long a message may take from its first byte to its last.
	MessageWithin = 10 * time.Second

	// IdleAfter is how long a client that waits for nothing may be silent.
	IdleAfter = 5 * time.Minute

	// SlowAfter is how long the client may take to accept what one write has for
	// it: at most MaxOutputBytes and one message of records, as a rule.
	SlowAfter = 10 * time.Second

	// GoodbyeWithin is how long the last message may take to leave.
	GoodbyeWithin = time.Second

	// LargeWithin is how long a message above ReadBufferBytes waits for memory
	// before it is refused.
	LargeWithin = 2 * time.Second

	// largeIdle is how long an unused large buffer is kept.
	largeIdle = time.Second

	// tick is how often sessions are looked at for these times.
	tick = 250 * time.Millisecond
)

// or returns t with its zero fields set to the defaults.
func (t Times) or() Times {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&t.Hello, HelloWithin)
	set(&t.Message, MessageWithin)
	set(&t.Idle, IdleAfter)
	set(&t.Slow, SlowAfter)
	set(&t.Goodbye, GoodbyeWithin)
	return t
}
