package walsidecar

import (
	"context"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// scan is the state of one iteration; it outlives connections.
type scan struct {
	c       *Client
	op      string
	stream  string // "": the whole log
	id      uint64
	follow  bool
	options readOptions
	count   uint64 // yielded so far

	// Where it goes on: with start and value as in readOptions. Once a record or a
	// gap has come it is startOffset and the next offset, or for the whole log the
	// next position.
	start   readStart
	value   uint64
	began   bool
	names   map[uint64]string // of the streams of a replay
	partial map[uint64]uint64 // of the unfinished batch at value: the last offset yielded of each stream
	cut     uint64            // records of that batch that were yielded

	yield   func(Record, error) bool
	records []wire.Record // reused
}

// run iterates until the end, over as many connections as it takes.
func (s *scan) run(ctx context.Context) {
	for failures := 0; ; failures++ {
		question := s.question()
		if question == nil {
			return
		}
		r, err := s.c.openRead(ctx, s, question)
		if err != nil {
			s.yield(Record{}, err)
			return
		}
		before := s.value
		if done := s.drain(ctx, r); done {
			return
		}
		if s.value != before {
			failures = 0
		}
		select {
		case <-time.After(backoff(failures, retryFirst, retryLongest)):
		case <-ctx.Done():
		}
	}
}

// drain yields what comes on one connection; false: the rest must be asked for again.
func (s *scan) drain(ctx context.Context, r *reading) (done bool) {
	for {
		m, state := r.next(ctx)
		switch state {
		case readingMessage:
		case readingInterrupted:
			return false
		case readingEnded:
			if r.err != nil {
				s.yield(Record{}, r.err)
			}
			return true
		case readingGivenUp:
			s.c.cancelRead(r)
			s.yield(Record{}, fmt.Errorf("%s: %w", s.op, context.Cause(ctx)))
			return true
		}
		if !s.message(&m) {
			s.c.cancelRead(r)
			return true
		}
		s.c.grant(r, int(m.header.Length))
	}
}

// message yields what one message holds; false ends the iteration.
func (s *scan) message(m *arrived) bool {
	switch m.header.Type {
	case wire.TypeRecords:
		records := wire.Records{Records: s.records[:0]}
		if err := records.Decode(m.header, m.body); err != nil {
			return s.fail(err.Error())
		}
		s.records = records.Records
	case wire.TypeReplayBatches:
		batches := wire.ReplayBatches{Records: s.records[:0]}
		if err := batches.Decode(m.header, m.body); err != nil {
			return s.fail(err.Error())
		}
		s.records = batches.Records
		for _, name := range batches.Names {
			s.names[name.Stream] = name.Name
		}
	case wire.TypeGap:
		var gap wire.Gap
		if err := gap.Decode(m.header, m.body); err != nil {
			return s.fail(err.Error())
		}
		return s.gap(&gap)
	case wire.TypeCaughtUp:
		var mark wire.CaughtUp
		if err := mark.Decode(m.header, m.body); err != nil {
			return s.fail(err.Error())
		}
		if s.options.onCaughtUp != nil {
			s.options.onCaughtUp(mark.Next)
		}
		return true
	}
	for i := range s.records {
		if !s.record(&s.records[i]) {
			return false
		}
	}
	return true
}

func (s *scan) fail(message string) bool {
	s.yield(Record{}, newError(wire.CodeInternal, s.op, s.stream, message))
	return false
}

func (s *scan) record(r *wire.Record) bool {
	if wire.RecordChecksum(r) != r.Checksum {
		return s.fail(fmt.Sprintf("record %d at position %d does not match its checksum", r.Offset, r.Position))
	}
	name := s.stream
	if s.names != nil {
		if last, ok := s.partial[r.Stream]; ok && r.Position == s.value && r.Offset <= last {
			return true // yielded before the connection was lost
		}
		name = s.names[r.Stream]
		s.passed(r)
	} else {
		if s.began && r.Offset != s.value {
			return s.fail(fmt.Sprintf("record %d came where %d was due", r.Offset, s.value))
		}
		s.start, s.value = startOffset, r.Offset+1
	}
	s.began = true
	s.count++
	return s.yield(Record{
		Stream: name, StreamID: r.Stream, Offset: r.Offset, Position: r.Position,
		Timestamp: time.Unix(0, r.TimestampNS), BatchEnd: r.BatchEnd, Headers: r.Headers, Data: r.Payload,
	}, nil)
}

// passed notes how far a replay got.
func (s *scan) passed(r *wire.Record) {
	if r.BatchEnd {
		s.value, s.cut = r.Position+wire.Align, 0
		clear(s.partial)
		return
	}
	if r.Position != s.value {
		s.cut = 0
		clear(s.partial)
	}
	s.value = r.Position
	s.cut++
	s.partial[r.Stream] = r.Offset
}

// gap yields a gap, unless it is where the iteration begins or ends anyway.
func (s *scan) gap(g *wire.Gap) bool {
	first := !s.began && s.start == startFirst
	ends := g.Kind == wire.GapSealed || g.Kind == wire.GapDeleted
	if !ends && (s.names == nil || g.Stream == 0) {
		s.start, s.value, s.began = startOffset, g.To, true
	}
	if first && g.Kind == wire.GapTrimmed || g.Kind == wire.GapSealed && !s.follow {
		return true
	}
	name := s.stream
	if s.names != nil {
		name = s.names[g.Stream]
	}
	return s.yield(Record{}, &Gap{Kind: g.Kind, Stream: name, From: g.From, To: g.To})
}

// question is what to ask on the next connection; nil: nothing is left.
func (s *scan) question() encoder {
	left := uint64(0)
	if s.options.limit > 0 {
		if s.count >= s.options.limit && s.cut == 0 {
			return nil
		}
		left = s.cut + max(s.options.limit, s.count+1) - s.count
	}
	credit := uint64(s.options.readAhead)
	if s.names != nil {
		return &wire.Replay{Follow: s.follow, Position: s.value, MaxRecords: left, Credit: credit}
	}
	from := wire.FromOffset
	switch s.start {
	case startTime:
		from = wire.FromTime
	case startLast:
		from = wire.FromLast
	}
	return &wire.Read{Follow: s.follow, Stream: s.id, From: from, Value: s.value, MaxRecords: left, Credit: credit}
}
