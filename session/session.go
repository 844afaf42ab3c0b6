// Package session is one client of the sidecar: its handshake, limits, flow
// control, requests and answers. It knows no transport: a door brings the bytes
// and takes them away. Messages for the commit loop go to a [Backend] in chunks
// of the receive buffer, without being copied; reads are served here.
//
// Three parties use a Session, each with its own methods:
//
//   - The door, with two goroutines. One loops over [Session.ReadBuffer] and
//     [Session.Received] until ErrEnded, or [Session.Gone] at the client's end;
//     the other over [Session.NextWrite] and [Session.Written] until io.EOF. When
//     both have ended the door calls [Session.Finish].
//   - The commit loop of the Backend, with one goroutine: [Session.PopChunk],
//     [Session.AckAppend], the Answer methods and [Session.Flush].
//   - Anybody: [Session.Goodbye] and what only tells something.
//
// Nothing that a client sends, or does not take, makes any other session or the
// commit loop wait: what a session holds is bounded, and taken from a [Budget].
package session

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// ErrEnded is returned to the door when the session takes no more bytes: the
// door stops reading, and goes on writing until NextWrite returns io.EOF.
var ErrEnded = errors.New("session: ended")

// Session is one connected client.
type Session struct {
	host     *Host
	peer     Peer
	id       uint64
	shutdown func()

	// The door's reading goroutine. cur and parsed change under mu too, for the
	// watch that takes an unused large buffer away.
	cur         *buffer
	parsed, end int    // cur.b[parsed:end] was received and not yet understood
	nextRequest uint64 // id that the next request must have
	skip        int    // bytes of a refused message that are still to come
	chargeTail  uint32 // next charge to be set
	hello       [wire.MaxHelloBytes]byte
	admitted    bool               // Hello was accepted
	handsOver   bool               // the door can pass descriptors
	direct      func(b []byte) int // see OfferDirect
	shmAllowed  bool               // negotiated
	backend     Backend
	client      string

	// The commit loop.
	extents       []wire.AckExtent // not yet encoded
	ack           wire.AppendAck   // reused
	stage         []byte           // encoded, not yet flushed
	stageRequests int              // answered since the last Flush
	stageBytes    int              // charges of those
	chargeHead    uint32           // next charge to be given back

	// charges has the bytes of each unanswered request of the commit loop, in
	// order. It is written by the reading goroutine and read by the commit loop,
	// which learns of the request by way of mu.
	charges []uint32

	mu         sync.Mutex
	readable   sync.Cond // the reading goroutine waits for room
	writable   sync.Cond // the writing goroutine waits for answers
	buffers    [2]*buffer
	queue      []*Chunk
	freeChunks []*Chunk
	popped     int // chunks with the commit loop
	requests   int // unanswered, of the commit loop
	bytes      int // charges of those
	out        output
	reads      reads
	held       int64 // bytes taken from the budget
	ended      bool  // takes no more bytes from the client
	finished   bool  // the door is gone
	goodbye    wire.Code
	ring       *ring      // nil: all messages come from the door
	files      *shm.Files // to be handed over with the next write
	passing    *shm.Files // to be handed over with the write that NextWrite returned
	// The reading goroutine waits for room: for a message of the commit loop, or not.
	blocked, blockedLoop bool

	// What the watch looks at, guarded by mu. A zero time means: not now.
	waiting   time.Time // the door has nothing to read since
	partial   time.Time // the first byte of an unfinished message came
	writing   time.Time // a write began
	endedAt   time.Time
	connected time.Time
}

func newSession(h *Host, peer Peer, shutdown func()) *Session {
	s := &Session{host: h, peer: peer, id: h.nextID.Add(1), shutdown: shutdown, nextRequest: 1, connected: time.Now()}
	s.readable.L, s.writable.L = &s.mu, &s.mu
	s.reads.init(&s.mu)
	return s
}

// ID is the number of the session in this process, from 1.
func (s *Session) ID() uint64 { return s.id }

// Peer tells which process the client is.
func (s *Session) Peer() Peer { return s.peer }

// Client is the name that the client gave itself in Hello.
func (s *Session) Client() string { return s.client }

// Goodbye ends the session: code and message are the last thing that its client
// is told, chunks that were not popped are dropped, and answers that were not
// flushed before. It does not block. Only the first Goodbye counts.
func (s *Session) Goodbye(code wire.Code, message string) {
	s.mu.Lock()
	first := s.endLocked(code, message)
	s.mu.Unlock()
	if first {
		s.report(code, message)
	}
}

// endLocked is Goodbye with s.mu held, without the log line. It reports whether it
// was the first.
func (s *Session) endLocked(code wire.Code, message string) bool {
	if s.ended {
		return false
	}
	s.ended, s.endedAt, s.goodbye = true, time.Now(), code
	bye := wire.Goodbye{Code: code, Message: message}
	s.out.pending = bye.AppendTo(s.out.pending, 0)
	s.discard()
	if s.ring != nil {
		s.ring.door.End(code)
	}
	s.reads.cancelAll()
	s.readable.Broadcast()
	s.writable.Broadcast()
	return true
}

// Gone says that the client has left or cannot be reached. What it sent before is
// still decided; answers go nowhere.
func (s *Session) Gone() {
	s.mu.Lock()
	if !s.ended {
		s.ended, s.endedAt = true, time.Now()
	}
	s.out.lost = true
	s.reads.cancelAll()
	s.readable.Broadcast()
	s.writable.Broadcast()
	s.mu.Unlock()
}

// report counts and logs why a session ended.
func (s *Session) report(code wire.Code, message string) {
	s.host.count(code)
	if s.host.mayLog() {
		s.host.options.Logger.Warn("session ended", "session", s.id, "client", s.client, "code", code.String(),
			"reason", message, "uid", s.peer.UID, "pid", s.peer.PID)
	}
}

// on reports whether the session was admitted to that log.
func (s *Session) on(b Backend) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admitted && s.backend == b
}

// Finish ends the books of a session. The door calls it once, when neither of
// its goroutines uses the session any more. It waits for reads in progress.
func (s *Session) Finish() {
	s.Gone()
	s.reads.wait()
	s.stopListening()
	s.mu.Lock()
	if s.goodbye == wire.CodeOK {
		s.host.count(wire.CodeOK)
	}
	admitted, shared := s.admitted, s.ring != nil
	s.finished = true
	s.settle()
	s.mu.Unlock()
	if shared {
		s.backend.Ready(s) // for what is left in the ring, and to give it back
	}
	if admitted {
		s.backend.Closed(s)
	}
	s.host.remove(s)
}

// LogEnded says that the commit loop has ended: no chunk is popped and nothing answered any
// more. It is Goodbye, and the session gives back what it holds once its door has finished.
// The Backend calls it, with no chunk popped, for every session that is ready then, and instead
// of whatever it does at a Ready or Closed that comes later. It does not block.
func (s *Session) LogEnded(code wire.Code, message string) {
	s.Goodbye(code, message)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard() // a client that left by itself may have sent something before
	if s.ring != nil && s.finished && s.popped == 0 {
		s.closeRing()
	}
	s.settle()
}

// settle gives back what a finished session holds, once the commit loop has
// released the last chunk. Called with s.mu held.
func (s *Session) settle() {
	if s.finished && s.popped == 0 && len(s.queue) == 0 && s.ring == nil && s.held > 0 {
		s.host.options.Budget.Give(s.held)
		s.held = 0
		s.buffers, s.cur, s.out = [2]*buffer{}, nil, output{lost: true}
	}
}

// take takes n bytes more from the budget. Called with s.mu held.
func (s *Session) take(n int64) bool {
	if !s.host.options.Budget.Take(n) {
		return false
	}
	s.held += n
	return true
}

// give gives n bytes back to the budget. Called with s.mu held.
func (s *Session) give(n int64) {
	s.host.options.Budget.Give(n)
	s.held -= n
}

// look ends the session if one of its times has run out, and takes back a large
// buffer that is not used. The Host calls it every tick.
func (s *Session) look(now time.Time) {
	s.mu.Lock()
	code, message := s.overdue(now)
	first := false
	if code != wire.CodeOK {
		first = s.endLocked(code, message)
		s.out.lost = s.out.lost || !s.writing.IsZero() // it does not take the Goodbye either
		s.writable.Broadcast()
	}
	kick := s.ended && now.Sub(s.endedAt) > s.host.times.Goodbye || s.out.lost
	if !s.ended && !s.waiting.IsZero() && now.Sub(s.waiting) > largeIdle {
		s.dropLarge()
	}
	s.mu.Unlock()
	if first {
		s.report(code, message)
	}
	if kick {
		s.shutdown()
	}
}

// overdue says which time has run out. Called with s.mu held.
func (s *Session) overdue(now time.Time) (wire.Code, string) {
	since := func(t time.Time, limit time.Duration) bool { return !t.IsZero() && now.Sub(t) > limit }
	t := &s.host.times
	switch {
	case s.ended:
		return wire.CodeOK, ""
	case !s.admitted && since(s.connected, t.Hello):
		return wire.CodeSlowClient, "the client did not introduce itself within " + t.Hello.String()
	case since(s.partial, t.Message):
		return wire.CodeSlowClient, "a message was not complete within " + t.Message.String()
	case since(s.writing, t.Slow):
		return wire.CodeSlowClient, "the client did not take its answers within " + t.Slow.String()
	case since(s.waiting, t.Idle) && s.requests == 0 && s.reads.n == 0:
		return wire.CodeIdleClient, "the client was silent for " + t.Idle.String()
	}
	return wire.CodeOK, ""
}

// Written tells the session how the last write went.
func (s *Session) Written(err error) {
	if err != nil {
		s.Gone()
		return
	}
	s.mu.Lock()
	s.writing = time.Time{}
	s.requests -= s.out.writingRequests
	s.bytes -= s.out.writingBytes
	s.out.written()
	s.chargeOutput()
	s.reads.wrote()
	if s.blocked && s.room() {
		s.readable.Signal()
	}
	again := s.ring != nil && s.ring.waiting && s.out.size() < MaxOutputBytes
	if again {
		s.ring.waiting = false
	}
	s.mu.Unlock()
	if again {
		s.backend.Ready(s)
	}
}

// NextWrite waits for something to send and returns it: up to two slices to be
// written in order, with one system call where the door can. They are valid
// until Written. It returns io.EOF when nothing more will come.
func (s *Session) NextWrite() (first, second []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.out.lost {
			return nil, nil, io.EOF
		}
		first = s.out.next()
		if !s.ended {
			second = s.reads.message()
		}
		if len(first)+len(second) > 0 {
			s.passing, s.files = s.files, nil
			s.writing = time.Now()
			return first, second, nil
		}
		if s.ended {
			s.out.lost = true
			return nil, nil, io.EOF
		}
		s.writable.Wait()
	}
}
