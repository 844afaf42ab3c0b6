package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

var (
	// ErrStore says that records are in the object store alone, and that it could not be
	// asked for them now. The same read works once the store does.
	ErrStore = errors.New("the object store could not be read")
	// ErrLost says that records which should be in the object store are missing there, or
	// damaged. They were not returned.
	ErrLost = errors.New("records in the object store are missing or damaged")
)

// coldError says what an error of the archive means to who reads.
func coldError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrDenied), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrStore, err)
	case errors.Is(err, upload.ErrDamagedObject), errors.Is(err, upload.ErrMissingObject), errors.Is(err, upload.ErrManifest),
		errors.Is(err, upload.ErrNotArchived):
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// reaches reports whether a frame at position can be read without the store: the device
// has it, or the tail still does. Called with mu held.
func (r *Reader) reaches(position uint64) bool {
	return position >= r.trim || r.tail.Holds(position, 1)
}

// kept is where the index and the marks begin for a log that is trimmed to trim: at the
// oldest frame that the tail holds, where that lies lower. Called with mu held.
func (r *Reader) kept(trim uint64) uint64 {
	if r.archive == nil {
		return trim // what was trimmed is not to be read, in memory or not
	}
	if at, ok := r.marks.above(r.tail.Low()); ok {
		return min(at, trim)
	}
	return trim
}

// part is where in the store the record of a stream lies: under the stream's own id, or
// under that of a stream of a lost log that it goes on from. to is where the part ends,
// MaxUint64 for the stream's own.
type part struct {
	id stream.ID
	to uint64
}

func (r *Reader) part(id stream.ID, offset uint64) part {
	p := part{id: id, to: math.MaxUint64}
	for {
		join, found := r.joins[p.id]
		if !found || offset >= join.At {
			return p
		}
		p = part{id: join.Before, to: join.At}
	}
}

// coldScan reads the records of one stream from the store. The zero value with r is
// closed.
type coldScan struct {
	r     *Reader
	turn  turn
	fresh *upload.Scan // was asked once at most, and does not read ahead yet
	open  bool
	id    stream.ID
	next  uint64
	to    uint64
	// uploaded is how far the store reached at least when the scan began: what it does
	// not find is not in a frame below.
	uploaded uint64
}

// read returns records of [from, to) of a stream, in order and at least one, or io.EOF
// where the store has none. They are valid until the next call.
func (s *coldScan) read(ctx context.Context, id stream.ID, from, to uint64, maxBytes int) ([]upload.Record, error) {
	if !s.open || s.id != id || s.next != from || from >= s.to {
		s.close()
		s.open, s.id, s.next, s.to = true, id, from, to
		s.begin()
		return s.took(s.fresh.Next(ctx, maxBytes))
	}
	held, err := s.turn.enter(ctx)
	if err != nil {
		return nil, err
	}
	scan, _ := held.(*upload.Scan)
	if scan == nil {
		if s.fresh == nil { // the turn was lost, and with it the scan
			s.begin()
		}
		scan, s.fresh = s.fresh, nil
	}
	records, err := scan.Next(ctx, maxBytes)
	s.turn.leave(scan)
	return s.took(records, err)
}

// begin makes the scan that goes on at next.
func (s *coldScan) begin() {
	s.uploaded = s.r.archive.Manifest().Uploaded
	s.fresh = s.r.archive.Read(s.id, s.next, s.to)
}

func (s *coldScan) took(records []upload.Record, err error) ([]upload.Record, error) {
	if err != nil {
		s.close()
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, coldError(err)
	}
	s.next = records[len(records)-1].Offset + 1
	return records, nil
}

// close frees what the scan holds; what it returned stays valid until the next read.
func (s *coldScan) close() {
	if !s.open {
		return
	}
	if s.fresh != nil {
		s.fresh.Close()
	}
	s.turn.release()
	s.open, s.fresh = false, nil
}

// fetch reads records from the store. No records and no error: look again.
func (c *Cursor) fetch(ctx context.Context, v *view, maxBytes int) (Event, error) {
	c.walk.close()
	if c.since != math.MinInt64 {
		return Event{}, c.fetchTime(ctx, v)
	}
	p := c.r.part(c.q.Stream, c.next)
	to := min(p.to, v.info.Next)
	if !c.q.Follow {
		to = min(to, c.until)
	}
	if v.heldFrom > c.next {
		to = min(to, v.heldFrom)
	}
	uploaded := c.r.archive.Manifest().Uploaded
	records, err := c.cold.read(ctx, p.id, c.next, to, maxBytes)
	if errors.Is(err, io.EOF) {
		if c.cold.uploaded < uploaded {
			return Event{}, nil // the scan went by an older manifest: a new one knows more
		}
		return c.absent(v, p, to)
	}
	if err != nil {
		return Event{}, fmt.Errorf("stream %d, offset %d: %w", c.q.Stream, c.next, err)
	}
	if first := records[0].Offset; first != c.next {
		c.cold.close()
		v.gone = true // since what follows is in the store
		return c.absent(v, p, first)
	}
	c.records = c.records[:0]
	for i := range records {
		if records[i].Offset != c.next {
			c.cold.close() // a hole: to be looked at next
			break
		}
		if c.left == 0 {
			break
		}
		c.records = append(c.records, coldRecord(&records[i]))
		c.left--
		c.next++
	}
	c.crossing = p.id != c.q.Stream && c.next == p.to
	return Event{Kind: Records, Records: c.records, Durable: v.durable}, nil
}

func coldRecord(r *upload.Record) Record {
	return Record{Stream: r.Stream, Offset: r.Offset, Position: r.Position, TimestampNS: r.TimestampNS,
		Headers: r.Headers, Payload: r.Payload, Checksum: r.Checksum, BatchEnd: r.BatchEnd}
}

// absent says what it means that the store has no records [next, to).
func (c *Cursor) absent(v *view, p part, to uint64) (Event, error) {
	now := c.look()
	switch {
	case now.err != nil || now.failed != nil || c.next < now.info.First:
		return Event{}, nil //nolint:nilerr // deleted or trimmed meanwhile: the next look says so
	case p.id != c.q.Stream:
		// The lost log's own trims are not known any more.
		e := c.gap(Trimmed, to, now)
		c.next = to
		c.crossing = to == p.to
		return e, nil
	}
	// What is not in the store was never below the position that it reached.
	if position := c.r.check.Next(c.cold.uploaded); position > c.position && !v.gone {
		c.position = position
		return Event{}, nil
	}
	return Event{}, fmt.Errorf("stream %d: offsets [%d, %d): %w: the store holds the log up to position %d and has none of them: run `walsidecar verify` on the store",
		c.q.Stream, c.next, to, ErrLost, c.cold.uploaded)
}

// fetchTime asks the store for the first record that is not older than since.
func (c *Cursor) fetchTime(ctx context.Context, v *view) error {
	uploaded := c.r.archive.Manifest().Uploaded
	ids := []part{{id: c.q.Stream, to: math.MaxUint64}}
	for {
		join, found := c.r.joins[ids[len(ids)-1].id]
		if !found {
			break
		}
		ids = append(ids, part{id: join.Before, to: join.At})
	}
	for i := len(ids) - 1; i >= 0; i-- { // the oldest part first
		offset, found, err := c.r.archive.FindTime(ctx, ids[i].id, c.since)
		if err != nil {
			return fmt.Errorf("stream %d, by time: %w", c.q.Stream, coldError(err))
		}
		if found && offset < ids[i].to {
			c.next, c.since = max(c.next, offset), math.MinInt64
			return nil
		}
	}
	if join, found := c.r.joins[c.q.Stream]; found {
		c.next = max(c.next, join.At)
	}
	// It is not below what the store held at first. Should the log have been trimmed past
	// that meanwhile, the store is asked again.
	c.position = max(c.position, c.r.check.Next(uploaded))
	return nil
}
