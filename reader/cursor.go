package reader

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// FromKind says what From.Value means.
type FromKind uint8

// The ways to say where to start.
const (
	FromOffset FromKind = iota // the first record with offset ≥ Value
	FromTime                   // the first record with timestamp ≥ Value, ns since the Unix epoch
	FromLast                   // the last Value records
)

// From is where a read starts.
type From struct {
	Kind  FromKind
	Value uint64
}

// Query asks for the records of one stream.
type Query struct {
	Stream     stream.ID
	From       From
	MaxRecords uint64 // 0: no limit
	Follow     bool   // wait for more at the durable end instead of ending there
}

// recordOverheadBytes is what a record counts for beside its payload and headers, so
// that an event of empty records is bounded too.
const recordOverheadBytes = 64

// errTrimmed says that the place looked at was trimmed away meanwhile.
var errTrimmed = errors.New("trimmed meanwhile")

// Cursor is a read under way. One goroutine; Close frees its memory.
type Cursor struct {
	r     *Reader
	q     Query
	walk  walker
	cold  coldScan
	items stream.ItemReader

	next     uint64 // offset of the next record to deliver
	since    int64  // deliver nothing older (FromTime), until the first hit
	until    uint64 // without Follow: the stream's end when the read began
	position uint64 // no record from next on lies in a frame below it
	left     uint64 // records that may still be delivered
	crossing bool   // next is the first record behind what a lost log held
	caughtUp bool
	done     bool
	records  []Record
}

// Open starts a read. The error is stream.ErrStreamDeleted or
// stream.ErrStreamNotFound.
func (r *Reader) Open(q Query) (*Cursor, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.failed != nil {
		return nil, r.failed
	}
	info, err := r.dir.Lookup(q.Stream)
	if err != nil {
		return nil, err
	}
	c := &Cursor{r: r, q: q, walk: walker{r: r}, until: info.Next, left: q.MaxRecords, since: math.MinInt64}
	c.cold.r, c.cold.turn.of = r, &r.scans
	if c.left == 0 {
		c.left = math.MaxUint64
	}
	switch q.From.Kind {
	case FromTime:
		c.next, c.since = info.First, int64(min(q.From.Value, math.MaxInt64))
		if r.archive == nil {
			c.position, _ = r.index.FindTime(q.Stream, c.since)
		}
	case FromLast:
		c.next = max(info.First, info.Next-min(info.Next, q.From.Value))
	default:
		c.next = q.From.Value
	}
	return c, nil
}

// Close frees the cursor's memory and ends its requests; what it returned is no longer
// valid.
func (c *Cursor) Close() {
	c.walk.close()
	c.cold.close()
}

// NextOffset is the offset to go on from with a new read.
func (c *Cursor) NextOffset() uint64 { return c.next }

// Next returns what comes next: records of about maxBytes (at least one), a gap,
// or, when following, CaughtUp once per catching up and a Heartbeat every
// HeartbeatEvery; End, again and again, when nothing more will come. It waits when
// following, and for the store: what is neither in memory nor on the device comes from
// there, after a wait for a turn where it reads ahead (MaxColdScans). The error is
// ctx's, the reason why the log stopped, a damaged frame (ErrUnreadable), or that of the
// store: ErrStore, after which Next may be called again, or ErrLost.
func (c *Cursor) Next(ctx context.Context, maxBytes int) (Event, error) {
	for !c.done {
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		v := c.look()
		switch {
		case v.failed != nil:
			return Event{}, v.failed
		case errors.Is(v.err, stream.ErrStreamDeleted):
			c.done = true
			return c.gap(Deleted, math.MaxUint64, v), nil
		case v.err != nil:
			return Event{}, v.err
		case c.next < v.info.First:
			e := c.gap(Trimmed, v.info.First, v)
			c.next, c.crossing = v.info.First, false
			return e, nil
		case c.crossing && c.left > 0:
			c.crossing = false
			return c.gap(DataLost, c.next, v), nil
		case c.left == 0 || (!c.q.Follow && c.next >= c.until):
			c.done = true
		case c.next < v.info.Next:
			c.caughtUp = false
			e, err := c.find(ctx, &v, maxBytes)
			if errors.Is(err, errTrimmed) || (err == nil && e.Kind == 0) {
				continue
			}
			return e, err
		case v.info.Sealed:
			c.done = true
			return c.gap(Sealed, math.MaxUint64, v), nil
		case !c.caughtUp:
			c.caughtUp = true
			return Event{Kind: CaughtUp, Durable: v.durable}, nil
		default:
			moved, err := c.r.wait(ctx, v.version)
			if err != nil {
				return Event{}, err
			}
			if !moved {
				return Event{Kind: Heartbeat, Durable: c.r.Durable()}, nil
			}
		}
	}
	return Event{Kind: End, Durable: c.r.Durable()}, nil
}

func (c *Cursor) gap(kind GapKind, to uint64, v view) Event {
	return Event{Kind: Gap, Gap: Missing{Kind: kind, From: c.next, To: to}, Durable: v.durable}
}

// find returns records, from where they are. An Event of no kind: look again.
func (c *Cursor) find(ctx context.Context, v *view, maxBytes int) (Event, error) {
	if !v.local {
		return c.fetch(ctx, v, maxBytes)
	}
	c.cold.close()
	return c.scan(v, maxBytes)
}

// view is one consistent look at the durable state.
type view struct {
	info    stream.StreamInfo
	err     error
	failed  error
	durable uint64
	version uint64

	local    bool   // a walk from position finds the next record, without the store
	position uint64 // no record from next on lies in a frame below it
	gone     bool   // the next record is certainly not on the device any more
	heldFrom uint64 // records from this offset on are on the device
}

func (c *Cursor) look() view {
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	info, err := c.r.dir.Lookup(c.q.Stream)
	v := view{info: info, err: err, failed: c.r.failed, durable: c.r.durable, version: c.r.version}
	if c.r.archive != nil {
		c.locate(&v)
		return v
	}
	v.local, v.position = true, max(c.position, c.r.check.Next(c.r.trim))
	if at, ok := c.r.index.Find(c.q.Stream, c.next); ok {
		v.position = max(v.position, at)
	}
	return v
}

// locate finds out where the next record is to be read. Called with r.mu held.
func (c *Cursor) locate(v *view) {
	at := c.r.index.Locate(c.q.Stream, c.next)
	if c.since != math.MinInt64 {
		switch t := c.r.index.LocateTime(c.q.Stream, c.since); {
		case t.Where == stream.Held:
			at, c.next = t, max(c.next, t.Offset)
		case c.next < t.HeldFrom:
			at = t // an older one than the index knows of may be new enough
		}
	}
	v.position = max(c.position, at.Position)
	v.local = c.r.reaches(v.position) && c.r.part(c.q.Stream, c.next).id == c.q.Stream
	v.gone, v.heldFrom = at.Where == stream.Gone, at.HeldFrom
}

// scan walks frames from v.position until records were found and the next frame
// is not in memory yet, or maxBytes are reached. An Event of no kind: look again,
// from further on.
func (c *Cursor) scan(v *view, maxBytes int) (Event, error) {
	c.records = c.records[:0]
	position, bytes := v.position, 0
	for position < v.durable {
		if len(c.records) > 0 && !c.walk.holds(position) {
			break
		}
		frame, err := c.walk.frame(position, v.durable)
		if err != nil {
			return Event{}, err
		}
		full := false
		if frame.Kind == ringwal.FrameData {
			if full, err = c.take(&frame, v.info.Next, maxBytes, &bytes); err != nil {
				return Event{}, err
			}
		}
		if full {
			break
		}
		position = c.r.check.Next(frame.End())
		if len(c.records) == 0 {
			c.position = position
			if c.skips(position) {
				return Event{}, nil
			}
		}
	}
	c.position = min(position, v.durable)
	if len(c.records) == 0 {
		if c.position < v.durable {
			return Event{}, nil
		}
		if c.since == math.MinInt64 {
			return Event{}, c.walk.unreadable(v.position, "its stream's records")
		}
		c.next = max(c.next, v.info.Next) // all are older
		return Event{}, nil
	}
	return Event{Kind: Records, Records: c.records, Durable: v.durable}, nil
}

// skips reports whether the index knows that the wanted record lies beyond the
// next frame, so that walking there would be a waste.
func (c *Cursor) skips(position uint64) bool {
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	at, ok := c.r.index.Find(c.q.Stream, c.next)
	return ok && at > position
}

// take appends the frame's wanted records; full says that maxBytes or the record
// limit was reached, in which case the frame may hold more.
func (c *Cursor) take(f *ringwal.FrameView, end uint64, maxBytes int, bytes *int) (full bool, err error) {
	c.items.Reset(f.Body, f.Position)
	var rec stream.Record
	for it := c.items.Next(); it != nil; it = c.items.Next() {
		if it.Kind != stream.KindBatch {
			continue
		}
		for n := 1; it.NextRecord(&rec); n++ {
			if rec.Stream != c.q.Stream || rec.Offset < c.next {
				continue
			}
			if rec.Offset != c.next && c.since == math.MinInt64 {
				return false, c.walk.unreadable(f.Position, "the order of its records")
			}
			if !c.q.Follow && rec.Offset >= c.until {
				c.next = c.until
				return true, nil
			}
			if rec.Timestamp < c.since {
				c.next = rec.Offset + 1
				continue
			}
			size := recordOverheadBytes + len(rec.Payload) + len(rec.Headers)
			if *bytes > 0 && *bytes+size > maxBytes || c.left == 0 {
				return true, nil
			}
			c.since = math.MinInt64
			*bytes += size
			c.left--
			c.next = rec.Offset + 1
			c.records = append(c.records, makeRecord(&rec, it.Position, n == it.Count))
		}
	}
	return false, c.items.Err()
}

func makeRecord(rec *stream.Record, position uint64, last bool) Record {
	return Record{Stream: rec.Stream, Offset: rec.Offset, Position: position, TimestampNS: rec.Timestamp,
		Headers: rec.Headers, Payload: rec.Payload, Checksum: rec.Checksum, BatchEnd: last}
}

// wait returns true once the durable state is newer than version, false after
// HeartbeatEvery.
func (r *Reader) wait(ctx context.Context, version uint64) (bool, error) {
	// Announced before the look: a change after it closes the channel.
	r.waiters.Add(1)
	defer r.waiters.Add(-1)
	r.mu.RLock()
	changed, now := r.changed, r.version
	r.mu.RUnlock()
	if now != version {
		return true, nil
	}
	timer := time.NewTimer(HeartbeatEvery)
	defer timer.Stop()
	select {
	case <-changed:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
