package reader

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/walsidecar/walsidecar/upload"
)

// coldReplay reads the log from the store in commit order.
type coldReplay struct {
	turn turn // for the upload.Replay, which goes on behind held
	// held is an event that was read and is yet to be shown: it did not fit. What it
	// refers to is nobody else's, also once the upload.Replay is gone.
	held     upload.Event
	holds    bool
	heldNext uint64 // the position behind held
	open     bool
}

// fetch reads batches, or finds a gap, in the store. An Event of no kind: look again.
func (p *Replay) fetch(ctx context.Context, v *replayView, maxBytes int) (Event, error) {
	p.walk.close()
	p.placed = false
	p.cold.open = true
	held, err := p.cold.turn.enter(ctx)
	if err != nil {
		return Event{}, err
	}
	source, _ := held.(*upload.Replay)
	if source == nil {
		from := p.next
		if p.cold.holds {
			from = p.cold.heldNext
		}
		source = p.r.archive.Replay(from)
	}
	e, err := p.collect(ctx, source, v, maxBytes)
	p.cold.turn.leave(source)
	if err != nil {
		p.cold.close()
		return Event{}, fmt.Errorf("replay from position %d: %w", p.next, err)
	}
	return e, nil
}

// close frees what the replay holds.
func (s *coldReplay) close() {
	if s.open {
		s.turn.release()
		s.open, s.holds, s.held = false, false, upload.Event{}
	}
}

// read returns the next event and the position behind it.
func (s *coldReplay) read(ctx context.Context, source *upload.Replay) (*upload.Event, uint64, error) {
	if s.holds {
		s.holds = false
		return &s.held, s.heldNext, nil
	}
	e, err := source.Next(ctx)
	return e, source.NextPosition(), err
}

// hold keeps an event for the next read.
func (s *coldReplay) hold(e *upload.Event, next uint64) { s.held, s.heldNext, s.holds = *e, next, true }

// collect takes whole batches of about maxBytes, or gaps that follow each other.
func (p *Replay) collect(ctx context.Context, source *upload.Replay, v *replayView, maxBytes int) (Event, error) {
	p.records = p.records[:0]
	var gap Missing
	bytes := 0
	made := func() bool { return len(p.records) > 0 || gap.Kind != 0 }
	for p.left > 0 {
		e, next, err := p.cold.read(ctx, source)
		if err != nil {
			if made() {
				break // it comes again
			}
			if errors.Is(err, io.EOF) {
				return Event{}, p.ended(next)
			}
			return Event{}, coldError(err)
		}
		if !p.q.Follow && e.Position >= p.until {
			p.next = max(p.next, p.until)
			break
		}
		kind, size := p.kindOf(e), eventBytes(e)
		fits := len(p.records) == 0 || bytes+size <= maxBytes
		if kind != 0 {
			fits = len(p.records) == 0 && (gap.Kind == 0 || gap.Kind == kind)
		} else if len(e.Records) > 0 {
			fits = fits && gap.Kind == 0
		}
		if !fits {
			p.cold.hold(e, next)
			break
		}
		if kind != 0 && gap.Kind == 0 {
			gap = Missing{Kind: kind, From: max(p.next, e.Position)}
		}
		p.next = next
		if gap.Kind != 0 {
			gap.To = next
			continue
		}
		p.append(e)
		bytes += size
	}
	switch {
	case gap.Kind != 0:
		return Event{Kind: Gap, Gap: gap, Durable: v.durable}, nil
	case len(p.records) > 0:
		return Event{Kind: Records, Records: p.records, Durable: v.durable}, nil
	}
	return Event{}, nil
}

// append takes the records of a batch.
func (p *Replay) append(e *upload.Event) {
	for i := range e.Records {
		p.records = append(p.records, coldRecord(&e.Records[i]))
	}
	if n := len(p.records); n > 0 {
		p.records[n-1].BatchEnd = true // the last one may be missing
	}
	p.left -= min(p.left, uint64(len(e.Records)))
}

func eventBytes(e *upload.Event) (n int) {
	for i := range e.Records {
		n += recordOverheadBytes + len(e.Records[i].Headers) + len(e.Records[i].Payload)
	}
	return n
}

// kindOf says which gap an event is; 0: none.
func (p *Replay) kindOf(e *upload.Event) GapKind {
	if e.GapTo == 0 {
		if len(e.Records) == 0 && e.Missing > 0 {
			return Trimmed
		}
		return 0
	}
	m := p.r.archive.Manifest()
	if e.GapTo <= m.Origin {
		return Trimmed
	}
	for i := range m.Retired {
		if lost := &m.Retired[i]; e.Position < lost.Origin && e.GapTo > lost.Uploaded {
			return DataLost
		}
	}
	return 0 // an epoch jumped there: it was never used
}

// ended says what it means that the store has nothing from next on, where it ends.
func (p *Replay) ended(next uint64) error {
	if next > p.next {
		p.next = next
		return nil
	}
	if uploaded := p.r.archive.Manifest().Uploaded; uploaded <= p.next && p.next < p.r.Trim() {
		return fmt.Errorf("%w: the store holds the log up to position %d, and the device from %d on: run `walsidecar verify` on the store",
			ErrLost, uploaded, p.r.Trim())
	}
	return nil
}
