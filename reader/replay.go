package reader

import (
	"context"
	"errors"
	"math"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// ReplayQuery asks for the records of all streams in commit order.
type ReplayQuery struct {
	Position   uint64 // start with the first batch at or after it
	MaxRecords uint64 // end with the batch that reaches it; 0: no limit
	Follow     bool
}

// Replay is a replay under way. It shows what the log and its store hold, records that a
// stream has trimmed since included, as long as they are there: the store drops them in
// time. A batch that has lost some to that is shown with the others; where nothing is left
// of batches there is a gap. One goroutine; Close frees its memory.
type Replay struct {
	r     *Reader
	q     ReplayQuery
	walk  walker
	cold  coldReplay
	items stream.ItemReader

	next     uint64 // position of the next batch to deliver, at the earliest
	frame    uint64 // start of the frame where next lies, or of one before it
	placed   bool   // frame is valid
	until    uint64 // without Follow: the durable position when the replay began
	left     uint64
	caughtUp bool
	done     bool
	records  []Record
}

// OpenReplay starts a replay.
func (r *Reader) OpenReplay(q ReplayQuery) (*Replay, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.failed != nil {
		return nil, r.failed
	}
	p := &Replay{r: r, q: q, walk: walker{r: r}, next: q.Position, until: r.durable, left: q.MaxRecords}
	p.cold.turn.of = &r.replays
	if p.left == 0 {
		p.left = math.MaxUint64
	}
	return p, nil
}

// Close frees the replay's memory and ends its requests; what it returned is no longer
// valid.
func (p *Replay) Close() {
	p.walk.close()
	p.cold.close()
}

// NextPosition is the position to go on from with a new replay.
func (p *Replay) NextPosition() uint64 { return p.next }

// Next is as Cursor.Next, with whole batches and gaps in positions.
func (p *Replay) Next(ctx context.Context, maxBytes int) (Event, error) {
	for !p.done {
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		v := p.look()
		switch {
		case v.failed != nil:
			return Event{}, v.failed
		case p.next < v.trim && p.r.archive == nil:
			e := Event{Kind: Gap, Gap: Missing{Kind: Trimmed, From: p.next, To: v.trim}, Durable: v.durable}
			p.next, p.placed = v.trim, false
			return e, nil
		case p.left == 0 || (!p.q.Follow && p.next >= p.until):
			p.done = true
		case p.next < v.durable:
			p.caughtUp = false
			e, err := p.find(ctx, &v, maxBytes)
			if errors.Is(err, errTrimmed) {
				p.placed = false
				continue
			}
			if err == nil && e.Kind == 0 {
				continue
			}
			return e, err
		case !p.caughtUp:
			p.caughtUp = true
			return Event{Kind: CaughtUp, Durable: v.durable}, nil
		default:
			moved, err := p.r.wait(ctx, v.version)
			if err != nil {
				return Event{}, err
			}
			if !moved {
				return Event{Kind: Heartbeat, Durable: p.r.Durable()}, nil
			}
		}
	}
	return Event{Kind: End, Durable: p.r.Durable()}, nil
}

// find returns batches, from where they are. An Event of no kind: look again.
func (p *Replay) find(ctx context.Context, v *replayView, maxBytes int) (Event, error) {
	if !v.local {
		return p.fetch(ctx, v, maxBytes)
	}
	p.cold.close()
	return p.scan(v, maxBytes)
}

type replayView struct {
	failed        error
	trim, durable uint64
	version       uint64
	local         bool // a walk from frame finds the next batch, without the store
}

func (p *Replay) look() replayView {
	p.r.mu.RLock()
	defer p.r.mu.RUnlock()
	v := replayView{failed: p.r.failed, trim: p.r.trim, durable: p.r.durable, version: p.r.version}
	if p.r.archive == nil || len(p.r.archive.Manifest().Retired) == 0 {
		p.next = max(p.next, p.r.origin)
	}
	if p.placed && !p.r.reaches(p.frame) {
		p.placed = false
	}
	if !p.placed {
		p.place(v.trim)
	}
	v.local = p.placed
	return v
}

// place finds a frame where next lies, or one before it, that can be read without the
// store. Called with r.mu held.
func (p *Replay) place(trim uint64) {
	at, found := p.r.marks.below(p.next)
	if p.next >= trim {
		at, found = max(at, p.r.check.Next(trim)), true // the first start may have jumped
	}
	if p.frame, p.placed = at, found && p.r.reaches(at); !p.placed {
		p.frame = 0
	}
}

// scan walks frames until batches were found and the next frame is not in memory
// yet, or maxBytes are reached. An Event of no kind: look again.
func (p *Replay) scan(v *replayView, maxBytes int) (Event, error) {
	p.records = p.records[:0]
	bytes := 0
	for p.frame < v.durable && (p.q.Follow || p.frame < p.until) {
		if len(p.records) > 0 && !p.walk.holds(p.frame) {
			break
		}
		frame, err := p.walk.frame(p.frame, v.durable)
		if err != nil {
			return Event{}, err
		}
		if frame.Kind == ringwal.FrameData && frame.End() > p.next {
			full, err := p.take(&frame, maxBytes, &bytes)
			if err != nil {
				return Event{}, err
			}
			if full {
				break
			}
		}
		p.frame = p.r.check.Next(frame.End())
		p.next = max(p.next, p.frame)
	}
	if len(p.records) == 0 {
		return Event{}, nil
	}
	return Event{Kind: Records, Records: p.records, Durable: v.durable}, nil
}

// take appends the frame's batches from p.next on, whole ones only.
func (p *Replay) take(f *ringwal.FrameView, maxBytes int, bytes *int) (full bool, err error) {
	p.items.Reset(f.Body, f.Position)
	var rec stream.Record
	for it := p.items.Next(); it != nil; it = p.items.Next() {
		if it.Kind != stream.KindBatch || it.Position < p.next {
			continue
		}
		if p.left == 0 || (*bytes > 0 && *bytes+it.Bytes > maxBytes) {
			return true, nil
		}
		for n := 1; it.NextRecord(&rec); n++ {
			p.records = append(p.records, makeRecord(&rec, it.Position, n == it.Count))
		}
		*bytes += it.Bytes
		p.left -= min(p.left, uint64(it.Count))
		p.next = it.Position + uint64(it.Bytes)
	}
	return false, p.items.Err()
}
