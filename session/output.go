package session

import (
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// message is what every message of package wire can do.
type message interface {
	AppendTo(dst []byte, request uint64) []byte
}

// output is what waits to be written to the client, but for records. It is
// guarded by the session's mutex; sending is the door's from NextWrite to Written.
type output struct {
	pending      []byte // next to be written
	requests     int    // of the commit loop that pending answers
	requestBytes int    // charges of those

	sending         []byte // being written
	writingRequests int
	writingBytes    int

	stageCap int   // of Session.stage, at its last Flush
	extra    int64 // bytes of budget taken beyond outputBaseBytes
	lost     bool  // nothing can be written any more
}

// maxKeptBytes is the largest output buffer that is kept once it is empty.
const maxKeptBytes = 64 << 10

func (o *output) size() int { return len(o.pending) + len(o.sending) }

// next returns the answers to write now.
func (o *output) next() []byte {
	o.sending, o.pending = o.pending, o.sending[:0]
	o.writingRequests, o.writingBytes = o.requests, o.requestBytes
	o.requests, o.requestBytes = 0, 0
	return o.sending
}

// written ends a write.
func (o *output) written() {
	o.sending = o.sending[:0]
	o.writingRequests, o.writingBytes = 0, 0
	if cap(o.sending) > maxKeptBytes {
		o.sending = nil
	}
}

// chargeOutput takes the memory of grown output buffers from the budget, or gives
// it back. Where there is none left the client is dropped: it reads too slowly
// for what it asks. Called with s.mu held.
func (s *Session) chargeOutput() {
	extra := max(0, int64(cap(s.out.pending)+cap(s.out.sending)+s.out.stageCap)-outputBaseBytes)
	more := extra - s.out.extra
	switch {
	case more < 0:
		s.give(-more)
	case more == 0 || s.held == 0:
		return
	case extra > MaxUntakenBytes || !s.take(more):
		const message = "no memory for the answers that wait for the client"
		if s.endLocked(wire.CodeOutOfMemory, message) {
			go s.report(wire.CodeOutOfMemory, message) // the commit loop must not wait for a log line
		}
		return
	}
	s.out.extra = extra
}

// reply sends an answer of the session itself. The error is ErrEnded.
func (s *Session) reply(m message, request uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return ErrEnded
	}
	s.out.pending = m.AppendTo(s.out.pending, request)
	s.chargeOutput()
	s.writable.Signal()
	return nil
}

// pending returns how many bytes of answers wait for the client.
func (s *Session) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.size()
}

// AckAppend answers an Append whose records all went into one stream: count of
// them from firstOffset on, in the batch at position. Only the commit loop calls
// it; it leaves with the next Flush.
func (s *Session) AckAppend(request, stream, firstOffset uint64, count uint32, position uint64) {
	if s.answered(request) {
		s.ackRing(request, stream, firstOffset, count, position)
		return
	}
	if n := len(s.extents); n > 0 && s.extents[n-1].Extend(request, stream, firstOffset, count, position) {
		return
	}
	if len(s.extents) == maxExtents {
		s.stageExtents()
	}
	s.extents = append(s.extents, wire.AckExtent{Request: request, Stream: stream, Offset: firstOffset, Position: position, Requests: 1, Records: count})
}

// AnswerResult answers an Append that AckAppend cannot. Only the commit loop
// calls it; it leaves with the next Flush. r is not kept.
func (s *Session) AnswerResult(request uint64, r *wire.AppendResult) { s.answer(request, r) }

// AnswerError answers any request of the commit loop. Only the commit loop calls
// it; it leaves with the next Flush. e is not kept.
func (s *Session) AnswerError(request uint64, e *wire.Error) { s.answer(request, e) }

// AnswerStream answers the commands on one stream. Only the commit loop calls it;
// it leaves with the next Flush.
func (s *Session) AnswerStream(request uint64, m *wire.StreamInfo) { s.answer(request, m) }

// AnswerPage answers a StreamList, with at most wire.MaxPageBytes. Only the commit
// loop calls it; it leaves with the next Flush.
func (s *Session) AnswerPage(request uint64, m *wire.StreamPage) { s.answer(request, m) }

// AnswerProducer answers the commands on producers. Only the commit loop calls
// it; it leaves with the next Flush.
func (s *Session) AnswerProducer(request uint64, m *wire.ProducerInfo) { s.answer(request, m) }

// AnswerTrimmed answers a StreamTrim. Only the commit loop calls it; it leaves
// with the next Flush.
func (s *Session) AnswerTrimmed(request uint64, m *wire.Trimmed) { s.answer(request, m) }

// directBytes is the most that Flush sends itself: the acks of a few requests.
const directBytes = 4 << 10

// OfferDirect says that the door can send without waiting: send writes what goes now of b,
// and returns how much that was. It is called before the first ReadBuffer; send is not
// called while a write of NextWrite is under way.
func (s *Session) OfferDirect(send func(b []byte) int) { s.direct = send }

// Flush sends what was answered since the last Flush. Alone, no other session has answers
// now: a few bytes are then sent here and now, as waking the door's goroutine for them
// takes longer. Only the commit loop calls it.
func (s *Session) Flush(alone bool) {
	s.flushRing()
	s.stageExtents()
	if len(s.stage) == 0 {
		return
	}
	s.mu.Lock()
	switch {
	case s.ended:
		// The Goodbye is the last message.
		s.requests -= s.stageRequests
		s.bytes -= s.stageBytes
	case alone && s.sendDirect():
	default:
		if len(s.out.pending) == 0 {
			s.out.pending, s.stage = s.stage, s.out.pending
		} else {
			s.out.pending = append(s.out.pending, s.stage...)
		}
		s.out.requests += s.stageRequests
		s.out.requestBytes += s.stageBytes
		s.out.stageCap = cap(s.stage)
		s.chargeOutput()
		s.writable.Signal()
	}
	s.mu.Unlock()
	s.stage = s.stage[:0]
	s.stageRequests, s.stageBytes = 0, 0
}

// sendDirect sends what is staged, if nothing has to go before it, and reports whether all
// of it went; what did not is staged still. Called with s.mu held.
func (s *Session) sendDirect() bool {
	if s.direct == nil || len(s.stage) > directBytes || s.out.size() > 0 || !s.writing.IsZero() || s.files != nil {
		return false
	}
	n := s.direct(s.stage)
	if n < len(s.stage) {
		s.stage = s.stage[:copy(s.stage, s.stage[n:])]
		return false
	}
	s.requests -= s.stageRequests
	s.bytes -= s.stageBytes
	if s.blocked && s.room() {
		s.readable.Signal()
	}
	return true
}

func (s *Session) answer(request uint64, m message) {
	s.answered(request)
	s.stageExtents()
	s.stage = m.AppendTo(s.stage, request)
}

// answered notes that a request got its answer, and reports whether it came by the
// ring.
func (s *Session) answered(request uint64) (ring bool) {
	if request >= shm.FirstRequest {
		if s.ring != nil {
			s.ring.door.Answer(request)
			s.ring.dirty = true
		}
		return true
	}
	s.stageRequests++
	s.stageBytes += int(s.charges[s.chargeHead%MaxRequests])
	s.chargeHead++
	return false
}

// stageExtents encodes the acks that were collected.
func (s *Session) stageExtents() {
	if len(s.extents) == 0 {
		return
	}
	s.ack.Extents = s.extents
	s.stage = s.ack.AppendTo(s.stage, 0)
	s.extents = s.extents[:0]
}
