package store

import (
	"sync/atomic"
	"time"
)

// Operation is a kind of request.
type Operation uint8

// The operations that are counted.
const (
	OpPut Operation = iota
	OpGet
	OpHead
	OpList
	OpDelete
	operations
)

// String is the metric label.
func (o Operation) String() string {
	return [...]string{"put", "get", "head", "list", "delete"}[o]
}

// Counters are what a store did so far; every field may be read at any time. The zero
// value is ready. Nothing ever counts down.
type Counters struct {
	// Requests counts attempts, answered or not.
	Requests [operations][classes]atomic.Uint64
	// Retries counts attempts after the first of an operation.
	Retries [classes]atomic.Uint64
	// Throttles counts answers that asked for fewer requests (503 SlowDown, 429).
	Throttles [classes]atomic.Uint64
	// Failures counts operations that failed with ErrUnavailable, ErrDenied or
	// ErrUnknownOutcome.
	Failures [classes]atomic.Uint64
	// SentBytes and ReceivedBytes count bodies.
	SentBytes, ReceivedBytes [classes]atomic.Uint64
	// Limit is the number of concurrent requests allowed right now; 0 in a directory.
	Limit [classes]atomic.Int64

	skewNanos   atomic.Int64
	expiresUnix atomic.Int64
	lastTrouble atomic.Pointer[Trouble]
}

// Trouble is the newest thing that went wrong, retried or not.
type Trouble struct {
	At    time.Time
	Error error
}

// LastTrouble is nil while nothing has gone wrong since the last success.
func (c *Counters) LastTrouble() *Trouble { return c.lastTrouble.Load() }

// ClockSkew is how far the server's clock is ahead of this host's, to the second or so,
// from the newest answer. Nothing depends on it except the signatures of requests.
func (c *Counters) ClockSkew() time.Duration { return time.Duration(c.skewNanos.Load()) }

// CredentialsExpire is when the credentials in use end, zero when they do not.
func (c *Counters) CredentialsExpire() time.Time {
	if unix := c.expiresUnix.Load(); unix != 0 {
		return time.Unix(unix, 0)
	}
	return time.Time{}
}
