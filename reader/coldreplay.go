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
	// held is an event that was read and is yet to be shown: a gap behind records, or the
	// other way round.
	held     upload.Event
	holds    bool
	heldNext uint64 // the position behind held
	open     bool
	chunk    []byte // memory for what is shown
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
func (s *coldReplay) hold(e *upload.Event, next uint64) {
	s.held, s.heldNext, s.holds = *e, next, true
	s.held.Records = append([]upload.Record{}, e.Records...)
	for i := range s.held.Records {
		r := &s.held.Records[i]
		r.Headers, r.Payload = s.copy(r.Headers), s.copy(r.Payload)
	}
}

// copy copies b to memory of the replay's own. The records of an upload.Replay refer to
// whole blocks, of any number of streams: a client that takes its time, and has lost its
// turn, would keep them all.
func (s *coldReplay) copy(b []byte) []byte {
	if len(b) > cap(s.chunk)-len(s.chunk) {
		s.chunk = make([]byte, 0, max(CursorBytes, len(b)))
	}
	at := len(s.chunk)
	s.chunk = append(s.chunk, b...)
	return s.chunk[at:len(s.chunk):len(s.chunk)]
}

// collect takes whole batches, until they have maxBytes or the log ends, or gaps that
// follow each other.
func (p *Replay) collect(ctx context.Context, source *upload.Replay, v *replayView, maxBytes int) (Event, error) {
	p.records = p.records[:0]
	if cap(p.cold.chunk) > CursorBytes || p.cold.holds {
		p.cold.chunk = nil
	}
	p.cold.chunk = p.cold.chunk[:0]
	var gap Missing
	bytes := 0
	made := func() bool { return len(p.records) > 0 || gap.Kind != 0 }
	for p.left > 0 && bytes < maxBytes {
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
		kind := p.kindOf(e)
		if kind != 0 && (len(p.records) > 0 || gap.Kind != 0 && gap.Kind != kind) || gap.Kind != 0 && len(e.Records) > 0 {
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
		bytes += p.append(e)
	}
	switch {
	case gap.Kind != 0:
		return Event{Kind: Gap, Gap: gap, Durable: v.durable}, nil
	case len(p.records) > 0:
		return Event{Kind: Records, Records: p.records, Durable: v.durable}, nil
	}
	return Event{}, nil
}

// append takes the records of a batch, and returns what they count for.
func (p *Replay) append(e *upload.Event) (bytes int) {
	for i := range e.Records {
		r := coldRecord(&e.Records[i])
		r.Headers, r.Payload = p.cold.copy(r.Headers), p.cold.copy(r.Payload)
		p.records = append(p.records, r)
		bytes += recordOverheadBytes + len(r.Headers) + len(r.Payload)
	}
	if n := len(p.records); n > 0 {
		p.records[n-1].BatchEnd = true // the last one may be missing
	}
	p.left -= min(p.left, uint64(len(e.Records)))
	return bytes
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
