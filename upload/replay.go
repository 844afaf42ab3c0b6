package upload

import (
	"context"
	"errors"
	"io"

	"github.com/walsidecar/walsidecar/stream"
)

const (
	// replayWholeBytes: the objects of a group are read whole, with one request each, if
	// they are not larger than that together; else block by block, in rows.
	replayWholeBytes = 16 << 20
	// replayAheadBytes: the group behind is read ahead if it is not larger than that.
	replayAheadBytes = 4 << 20
	// replayOpenBytes is how much a replay holds of uncompressed blocks.
	replayOpenBytes = 12 << 20
	// replayRowBytes is how much one request reads of a stream in a large group.
	replayRowBytes = 1 << 20
)

// Event is what a replay shows next: one item of the log, or a gap.
type Event struct {
	Position uint64 // of the item, or where the gap begins
	// GapTo: nothing of [Position, GapTo) is in the store. 0: no gap.
	GapTo uint64
	// Item is a control item as it is on the device, for a stream.ItemReader.
	Item []byte
	// Producer, Sequence and Acked are of a batch; Producer 0: without one.
	Producer stream.ProducerID
	Sequence uint64
	Acked    uint64
	// Records are a batch's, in the order of its entries.
	Records []Record
	// Missing counts those that were trimmed, or whose stream was deleted, and that
	// compaction left out.
	Missing int
}

// Replay reads the log in commit order. It holds up to replayWholeBytes +
// replayAheadBytes + replayOpenBytes. One goroutine; Close frees its memory and ends
// its requests.
type Replay struct {
	a      *Archive
	next   uint64
	start  uint64          // where it was last planned to begin
	ctx    context.Context // of what is read ahead
	cancel context.CancelFunc

	v       *view // nil: to be planned
	group   int
	open    *openGroup
	ahead   *futureGroup
	replans int

	journal *openStream
	block   int // of the journal, the next one
	reader  journalReader
	reading bool
	event   Event
}

type futureGroup struct {
	group int
	done  chan struct{}
	open  *openGroup
	err   error
}

// Replay starts with the first item at or above position.
func (a *Archive) Replay(position uint64) *Replay {
	ctx, cancel := context.WithCancel(context.Background())
	return &Replay{a: a, next: position, ctx: ctx, cancel: cancel}
}

// Close ends the replay; what it returned is no longer valid.
func (r *Replay) Close() { r.cancel() }

// NextPosition is the position to go on from with a new replay: above that of the last
// item, and not above that of the next.
func (r *Replay) NextPosition() uint64 { return r.next }

// Next returns the next item or gap, valid until the call after it; io.EOF where the
// store has no more. Errors: as Scan.Next.
func (r *Replay) Next(ctx context.Context) (*Event, error) {
	for {
		e, err := r.step(ctx)
		if err == nil {
			r.replans = 0
			return e, nil
		}
		r.restart()
		if !errors.Is(err, ErrMissingObject) || r.replans == maxReplans {
			return nil, err
		}
		r.replans++
		if err := r.a.refresh(ctx); err != nil {
			return nil, err
		}
	}
}

func (r *Replay) restart() { r.v, r.open, r.ahead, r.reading = nil, nil, nil, false }

func (r *Replay) step(ctx context.Context) (*Event, error) {
	if r.v == nil {
		v, err := r.a.look(ctx)
		if err != nil {
			return nil, err
		}
		r.v, r.group, r.start = v, v.at(r.next), r.next
		if r.next < v.m.Origin {
			return r.gap(v.m.Origin), nil
		}
	}
	for {
		if r.open == nil {
			if r.group == r.v.groups() {
				return nil, io.EOF
			}
			g := r.v.group(r.group)
			if len(g.Objects) == 0 {
				r.group++
				return r.gap(g.To), nil
			}
			if err := r.enter(ctx); err != nil {
				return nil, err
			}
		}
		entry, err := r.entry(ctx)
		if err != nil {
			return nil, err
		}
		if entry != nil {
			return r.show(ctx, entry)
		}
		r.next = max(r.next, r.open.g.To)
		r.open = nil
		r.group++
	}
}

func (r *Replay) gap(to uint64) *Event {
	r.event = Event{Position: r.next, GapTo: to, Records: r.event.Records[:0]}
	r.next = to
	return &r.event
}

// enter opens the group, and begins to read the one behind it.
func (r *Replay) enter(ctx context.Context) error {
	if f := r.ahead; f != nil && f.group == r.group {
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		r.ahead = nil
		if f.err != nil {
			return f.err
		}
		r.open = f.open
	} else {
		g, err := r.a.openGroup(ctx, r.v.group(r.group))
		if err != nil {
			return err
		}
		r.open = g
	}
	r.journal = r.open.stream(0)
	r.block, r.reading = 0, false
	if r.journal != nil {
		r.block = r.journal.from
		for r.block+1 < r.journal.to && r.journal.object.index.Block(r.block+1).First <= r.next {
			r.block++
		}
	}
	if n := r.group + 1; n < r.v.groups() && r.v.group(n).bytes() <= replayAheadBytes {
		f := &futureGroup{group: n, done: make(chan struct{})}
		r.ahead = f
		g := r.v.group(n)
		go func() {
			defer close(f.done)
			f.open, f.err = r.a.openGroup(r.ctx, g)
		}()
	}
	return nil
}

// entry returns the next entry of the group's journal at or above start, nil at its end.
func (r *Replay) entry(ctx context.Context) (*Entry, error) {
	for {
		if !r.reading {
			if r.journal == nil || r.block == r.journal.to {
				return nil, nil
			}
			info, raw, err := r.a.openBlock(ctx, r.journal, r.block)
			if err != nil {
				return nil, err
			}
			r.reader.reset(info, raw, r.open.g.To)
			r.block++
			r.reading = true
		}
		for e := r.reader.next(); e != nil; e = r.reader.next() {
			if e.Position < r.start {
				continue
			}
			if e.Position < r.next {
				return nil, inObject(r.journal.key, problem(ErrDamagedObject, "journal", 0,
					"an item at position %d, and the one before it reaches to %d at least", e.Position, r.next))
			}
			return e, nil
		}
		r.reading = false
		if r.reader.err != nil {
			return nil, inObject(r.journal.key, r.reader.err)
		}
	}
}

// show makes an event of an entry.
func (r *Replay) show(ctx context.Context, e *Entry) (*Event, error) {
	r.event = Event{Position: e.Position, Item: e.Item, Producer: e.Producer, Sequence: e.Sequence, Acked: e.Acked, Records: r.event.Records[:0]}
	r.next = e.Position + uint64(len(e.Item))
	if e.Item != nil {
		return &r.event, nil
	}
	bytes := 8 // of the batch on the device, at least: it may have a producer part there, and records that are gone
	for i := range e.Extents {
		x := &e.Extents[i]
		for n := range uint64(x.Count) {
			var rec Record
			found, err := r.a.openRecord(ctx, r.open, x.Stream, x.First+n, &rec)
			if err != nil {
				return nil, err
			}
			last := i == len(e.Extents)-1 && n+1 == uint64(x.Count)
			switch {
			case !found:
				r.event.Missing++
				continue
			case rec.Position != e.Position || rec.BatchEnd != last || n+1 == uint64(x.Count) && rec.TimestampNS != x.Timestamp:
				return nil, inObject(r.journal.key, problem(ErrDamagedObject, "journal", 0,
					"the batch at position %d has stream %d, offset %d; the record says that it is of the batch at %d", e.Position, x.Stream, rec.Offset, rec.Position))
			}
			bytes += rec.deviceBytes()
			r.event.Records = append(r.event.Records, rec)
		}
	}
	if r.event.Missing > 0 && !r.open.g.Pruned {
		return nil, inObject(r.journal.key, problem(ErrDamagedObject, "journal", 0,
			"the batch at position %d has %d records that no object of its group holds", e.Position, r.event.Missing))
	}
	r.next = e.Position + uint64(bytes)
	return &r.event, nil
}
