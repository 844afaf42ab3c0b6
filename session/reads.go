package session

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// readBytes is what an open read takes of the budget: its cursor holds up to one
// frame, or as much from the store, and lists the records that it found. What reads read
// ahead in the store is not counted here: all together it is reader.ColdBytes at most.
const readBytes = wire.MaxFrameBytes + 256<<10

// reads are the reads and replays of a session. One goroutine serves each; they
// share one buffer for what they send, in turns. Guarded by the session's mutex
// but for turn and, while one has it, buf.
type reads struct {
	open map[uint64]*read
	n    int // goroutines
	done sync.WaitGroup

	turn  sync.Mutex // to send
	buf   []byte     // one message
	ready bool       // buf is to be written
	under bool       // buf is being written: since the last NextWrite
	sent  sync.Cond  // buf was written
}

// read is one open read or replay.
type read struct {
	request   uint64
	stream    uint64 // 0: a replay
	credit    int64
	granted   sync.Cond // credit, or cancelled
	cancelled bool
	cancel    context.CancelFunc
	next      uint64 // where it goes on after what was sent: an offset, or a position

	// Reused messages of the read's goroutine.
	records wire.Records
	batches wire.ReplayBatches
	named   map[stream.ID]struct{} // streams whose names a replay has sent
}

func (r *reads) init(mu *sync.Mutex) {
	r.open = map[uint64]*read{}
	r.sent.L = mu
}

// message returns what is to be written. Called with the session's mutex held.
func (r *reads) message() []byte {
	if r.under = r.ready; r.under {
		return r.buf
	}
	return nil
}

// wrote ends the write that the last message was part of. What became ready
// since then is still to be written. Called with the mutex held.
func (r *reads) wrote() {
	if r.under {
		r.ready, r.under = false, false
		r.sent.Broadcast()
	}
}

// cancelAll ends all reads. Called with the mutex held.
func (r *reads) cancelAll() {
	for _, one := range r.open {
		one.end()
	}
	r.sent.Broadcast()
}

func (r *reads) wait() { r.done.Wait() }

// end makes the read end soon. Called with the mutex held.
func (r *read) end() {
	r.cancelled = true
	r.cancel()
	r.granted.Broadcast()
}

// source is an open cursor of either kind.
type source interface {
	Next(ctx context.Context, maxBytes int) (reader.Event, error)
	Close()
}

// startRead opens a read or replay and starts its goroutine. The error is ErrEnded.
func (s *Session) startRead(h wire.Header, body []byte) error {
	var q wire.Read
	var p wire.Replay
	r := &read{request: h.Request}
	var err error
	if h.Type == wire.TypeRead {
		err = q.Decode(h, body)
		r.stream, r.credit = q.Stream, clampCredit(q.Credit)
	} else {
		err = p.Decode(h, body)
		r.credit, r.named = clampCredit(p.Credit), map[stream.ID]struct{}{}
	}
	from := s.backend.Reader()
	switch {
	case err != nil:
		return s.reply(&wire.Error{Code: wire.CodeBadRequest, Message: err.Error()}, h.Request)
	case from == nil:
		return s.reply(&wire.Error{Code: wire.CodeUnsupported, Message: "this log keeps nothing that could be read"}, h.Request)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	if e := s.addRead(r); e != nil {
		cancel()
		return s.reply(e, h.Request)
	}
	go func() {
		if h.Type == wire.TypeRead {
			c, err := from.Open(reader.Query{Stream: stream.ID(q.Stream), MaxRecords: q.MaxRecords, Follow: q.Follow,
				From: reader.From{Kind: fromKinds[q.From], Value: q.Value}})
			s.serveRead(ctx, r, from, c, err, func() uint64 { return c.NextOffset() })
		} else {
			c, err := from.OpenReplay(reader.ReplayQuery{Position: p.Position, MaxRecords: p.MaxRecords, Follow: p.Follow})
			s.serveRead(ctx, r, from, c, err, func() uint64 { return c.NextPosition() })
		}
	}()
	return nil
}

var fromKinds = [...]reader.FromKind{wire.FromOffset: reader.FromOffset, wire.FromTime: reader.FromTime, wire.FromLast: reader.FromLast}

var gapKinds = map[reader.GapKind]wire.GapKind{reader.Trimmed: wire.GapTrimmed, reader.Deleted: wire.GapDeleted, reader.Sealed: wire.GapSealed, reader.DataLost: wire.GapDataLost}

// clampCredit keeps sums of credit within an int64.
func clampCredit(bytes uint64) int64 { return int64(min(bytes, math.MaxInt64/2)) }

// addRead counts a read in, or says why not.
func (s *Session) addRead(r *read) *wire.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return &wire.Error{Code: wire.CodeDraining}
	case s.reads.n >= MaxReads:
		return &wire.Error{Code: wire.CodeBusy, Message: fmt.Sprintf("%d reads are open, which is the limit of a session", MaxReads)}
	case !s.take(readBytes):
		return &wire.Error{Code: wire.CodeOutOfMemory, Message: fmt.Sprintf("a read takes %d bytes, and %d of %d are in use", readBytes,
			s.host.options.Budget.Used(), s.host.options.Budget.Total())}
	}
	r.granted.L = &s.mu
	s.reads.open[r.request] = r
	s.reads.n++
	s.reads.done.Add(1)
	return nil
}

func (s *Session) removeRead(r *read) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reads.open, r.request)
	s.reads.n--
	s.give(readBytes)
	r.cancel()
	s.reads.done.Done()
}

// grant adds to the credit of a read.
func (s *Session) grant(request, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.reads.open[request]; r != nil {
		r.credit = min(r.credit+clampCredit(bytes), math.MaxInt64/2)
		r.granted.Broadcast()
	}
}

// cancel ends a read.
func (s *Session) cancel(request uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.reads.open[request]; r != nil {
		r.end()
	}
}

// serveRead sends what the source finds until its end, and that of the session.
func (s *Session) serveRead(ctx context.Context, r *read, from *reader.Reader, src source, err error, next func() uint64) {
	defer s.removeRead(r)
	if err != nil {
		s.endRead(r, err)
		return
	}
	defer src.Close()
	r.next = next()
	for {
		credit, ok := s.awaitCredit(r)
		if !ok {
			break
		}
		e, err := src.Next(ctx, int(min(credit, ReadMessageBytes)))
		if err != nil && ctx.Err() == nil {
			s.endRead(r, err)
			return
		}
		if err != nil {
			break
		}
		// At its end too: a read by time may have passed over the whole stream.
		r.next = next()
		if e.Kind == reader.End {
			break
		}
		if err := s.sendEvent(r, from, &e); err != nil {
			s.endRead(r, err)
			return
		}
	}
	_ = s.sendRead(&wire.End{Durable: from.Durable(), Next: r.next}, r.request, wire.HeaderBytes)
}

// awaitCredit waits until the read may send, and returns how much; false when it
// was cancelled.
func (s *Session) awaitCredit(r *read) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r.credit <= 0 && !r.cancelled {
		r.granted.Wait()
	}
	return r.credit, !r.cancelled
}

// endRead sends the error that ended a read.
func (s *Session) endRead(r *read, err error) {
	var e wire.Error
	FillError(&e, err)
	if r.stream != 0 {
		e.Known |= wire.FlagStream
		e.Stream = r.stream
	}
	_ = s.sendRead(&e, r.request, wire.HeaderBytes)
}

// sendEvent sends one event of a cursor.
func (s *Session) sendEvent(r *read, from *reader.Reader, e *reader.Event) error {
	switch e.Kind {
	case reader.Gap:
		return s.sendRead(&wire.Gap{Kind: gapKinds[e.Gap.Kind], Stream: r.stream, From: e.Gap.From, To: e.Gap.To}, r.request, wire.HeaderBytes)
	case reader.CaughtUp:
		return s.sendRead(&wire.CaughtUp{Durable: e.Durable, Next: r.next}, r.request, wire.HeaderBytes)
	case reader.Heartbeat:
		return s.sendRead(&wire.Heartbeat{Durable: e.Durable}, r.request, wire.HeaderBytes)
	}
	for records := e.Records; len(records) > 0; {
		credit, ok := s.awaitCredit(r)
		if !ok {
			if r.next = records[0].Offset; r.named != nil {
				r.next = records[0].Position
			}
			return nil
		}
		var m message
		var size int
		if r.named == nil {
			m, size, records = r.fillRecords(records, min(credit, ReadMessageBytes))
		} else {
			m, size, records = r.fillBatches(from, records, min(credit, ReadMessageBytes))
		}
		if err := s.sendRead(m, r.request, size); err != nil {
			return err
		}
		s.mu.Lock()
		r.credit -= int64(size)
		s.mu.Unlock()
	}
	return nil
}

// fillRecords makes a message of the first records: as many as fit limit, but one
// at least. It returns the message, its length and the rest.
func (r *read) fillRecords(from []reader.Record, limit int64) (message, int, []reader.Record) {
	into, size := r.records.Records[:0], wire.RecordsFixedBytes
	for len(from) > 0 {
		one := wireRecord(&from[0])
		if len(into) > 0 && int64(size+one.Bytes()) > limit {
			break
		}
		size += one.Bytes()
		into, from = append(into, one), from[1:]
	}
	r.records.Records = into
	return &r.records, size, from
}

// fillBatches is fillRecords for a replay, which names streams on first use.
func (r *read) fillBatches(names *reader.Reader, from []reader.Record, limit int64) (message, int, []reader.Record) {
	m := &r.batches
	m.Names, m.Records = m.Names[:0], m.Records[:0]
	size := wire.RecordsFixedBytes
	for len(from) > 0 {
		one := wireRecord(&from[0])
		more := one.Bytes()
		name := wire.StreamName{Stream: one.Stream}
		_, known := r.named[from[0].Stream]
		if !known {
			// A stream that was deleted since has no name any more: "".
			if info, err := names.Lookup(from[0].Stream); err == nil {
				name.Name = info.Name
			}
			more += name.Bytes()
		}
		if len(m.Records) > 0 && int64(size+more) > limit {
			break
		}
		if !known {
			r.named[from[0].Stream] = struct{}{}
			m.Names = append(m.Names, name)
		}
		size += more
		m.Records, from = append(m.Records, one), from[1:]
	}
	return m, size, from
}

func wireRecord(r *reader.Record) wire.Record {
	return wire.Record{Stream: uint64(r.Stream), Offset: r.Offset, Position: r.Position, TimestampNS: r.TimestampNS,
		Checksum: r.Checksum, BatchEnd: r.BatchEnd, Headers: r.Headers, Payload: r.Payload}
}

// errNoBuffer says that the budget has no room for a message of records.
var errNoBuffer = &wire.Error{Code: wire.CodeOutOfMemory, Message: "no memory to send a record that large"}

// sendRead sends one message of a read of about size bytes and waits until the
// door has written it. After the end of the session it does nothing.
func (s *Session) sendRead(m message, request uint64, size int) error {
	s.reads.turn.Lock()
	defer s.reads.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	if err := s.growReads(size); err != nil {
		return err
	}
	s.reads.buf = m.AppendTo(s.reads.buf[:0], request)
	s.reads.ready = true
	s.writable.Signal()
	for s.reads.ready && !s.ended {
		s.reads.sent.Wait()
	}
	return nil
}

// growReads makes the buffer for messages of reads hold size bytes and takes it
// from the budget. Called with s.mu held.
func (s *Session) growReads(size int) error {
	if size <= cap(s.reads.buf) {
		return nil
	}
	size = max(size, ReadMessageBytes)
	if !s.take(int64(size - cap(s.reads.buf))) {
		return errNoBuffer
	}
	s.reads.buf = make([]byte, 0, size)
	return nil
}
