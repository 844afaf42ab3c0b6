package walsidecar

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// Record is one record as it is read. Its bytes belong to the caller; they share
// one block of memory with neighbouring records.
type Record struct {
	Stream    string // the name; "" in a replay for a stream that is deleted
	StreamID  uint64
	Offset    uint64
	Position  uint64    // of its batch in the log
	Timestamp time.Time // never before that of the record before it in the stream
	BatchEnd  bool      // the last record of its batch
	Headers   Headers
	Data      []byte
}

// Headers are the headers of a record as they are encoded.
type Headers []byte

// All iterates over the headers in their order. The values point into the record.
func (h Headers) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for key, value := range wire.Headers(h) {
			if !yield(string(key), value) {
				return
			}
		}
	}
}

// Get returns the value of the first header with this key.
func (h Headers) Get(key string) (value []byte, ok bool) {
	for k, v := range wire.Headers(h) {
		if string(k) == key {
			return v, true
		}
	}
	return nil, false
}

// Gap says that records are missing from an iteration. It is yielded as the error
// of a zero Record. The iteration goes on behind it if the caller does, but for a
// stream that is sealed or deleted, where nothing comes any more. It matches
// ErrTrimmed, ErrDeleted, ErrSealed or ErrDataLost.
type Gap struct {
	Kind   wire.GapKind
	Stream string // "" where the gap concerns the whole log
	// The records with these offsets are missing, or in the whole log those at
	// these positions: [From, To). Where a stream goes on behind a lost log, To is
	// From: how many records that one had beyond is not known.
	From, To uint64
}

// Error says what is missing and why.
func (g *Gap) Error() string {
	if g.Kind == wire.GapSealed {
		return fmt.Sprintf("stream %q is sealed: it ends at offset %d", g.Stream, g.From)
	}
	if g.Kind == wire.GapDataLost && g.From == g.To {
		return fmt.Sprintf("gap: what a lost log held of stream %q from offset %d on is lost; other records have these offsets now", g.Stream, g.From)
	}
	if g.Stream == "" {
		return fmt.Sprintf("gap: positions [%d, %d) are %s", g.From, g.To, g.Kind)
	}
	return fmt.Sprintf("gap: offsets [%d, %d) of stream %q are %s", g.From, g.To, g.Stream, g.Kind)
}

// Is matches the sentinel of the kind.
func (g *Gap) Is(target error) bool {
	switch g.Kind {
	case wire.GapTrimmed:
		return target == ErrTrimmed
	case wire.GapDeleted:
		return target == ErrDeleted
	case wire.GapSealed:
		return target == ErrSealed
	case wire.GapDataLost:
		return target == ErrDataLost
	}
	return false
}

type readStart uint8

const (
	startFirst readStart = iota // the first record that can be read
	startOffset
	startTime
	startLast
)

type readOptions struct {
	start      readStart
	value      uint64
	limit      uint64
	readAhead  int
	onCaughtUp func(next uint64)
}

func (o *readOptions) setStart(start readStart, value uint64) { o.start, o.value = start, value }

// Read iterates over the durable records of a stream, from the first one or where
// the options say, to the stream's end as it is then. Missing records are yielded
// as a *Gap; any other error ends the iteration: ErrStoreUnavailable where records are in the
// object store alone and it does not answer (the same read works once it does). A lost
// connection does not end it.
func (c *Client) Read(ctx context.Context, stream string, opts ...ReadOption) iter.Seq2[Record, error] {
	return c.readStream(ctx, "read", stream, false, opts)
}

// Follow is Read that waits at the stream's end for more, until ctx ends.
func (c *Client) Follow(ctx context.Context, stream string, opts ...ReadOption) iter.Seq2[Record, error] {
	return c.readStream(ctx, "follow", stream, true, opts)
}

// Replay iterates over the durable records of the whole log in commit order, from
// the first batch at or after position, to the end of the log as it is then.
// Options for a start have no meaning here.
func (c *Client) Replay(ctx context.Context, position uint64, opts ...ReadOption) iter.Seq2[Record, error] {
	return c.readLog(ctx, "replay", position, false, opts)
}

// FollowLog is Replay that waits at the end of the log for more, until ctx ends.
func (c *Client) FollowLog(ctx context.Context, position uint64, opts ...ReadOption) iter.Seq2[Record, error] {
	return c.readLog(ctx, "follow", position, true, opts)
}

func newReadOptions(opts []ReadOption) readOptions {
	o := readOptions{readAhead: DefaultReadAhead}
	for _, opt := range opts {
		opt(&o)
	}
	o.readAhead = max(o.readAhead, 1)
	return o
}

func (c *Client) readStream(ctx context.Context, op, stream string, follow bool, opts []ReadOption) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		info, err := c.openStream(ctx, op, stream, false)
		if err != nil {
			yield(Record{}, err)
			return
		}
		o := newReadOptions(opts)
		s := &scan{
			c: c, op: op, stream: stream, id: info.ID, follow: follow, options: o,
			start: o.start, value: o.value, yield: yield,
		}
		s.run(ctx)
	}
}

func (c *Client) readLog(ctx context.Context, op string, position uint64, follow bool, opts []ReadOption) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		o := newReadOptions(opts)
		s := &scan{
			c: c, op: op, follow: follow, options: o, start: startOffset, value: position,
			names: map[uint64]string{}, partial: map[uint64]uint64{}, yield: yield,
		}
		s.run(ctx)
	}
}
