package session

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// ring is the shared memory of a session: its appends come out of the ring, and
// their acks go into the completion area. The commit loop is its consumer and
// reads the messages where they lie.
//
// s.ring is set by the reading goroutine before any request of the session reaches
// the commit loop, and taken away by the commit loop, or LogEnded, both with s.mu held.
type ring struct {
	door   *shm.Door
	bytes  int64  // taken from the budget
	forget func() // ends the listening to the bell

	// The commit loop.
	extents []wire.AckExtent // not yet published
	durable uint64           // highest position of those
	dirty   bool             // something was answered since the last Flush
	final   bool             // the tail was loaded for the last time
	broken  bool             // its client violated the protocol, maybe after it had left
	spinner shm.Spinner      // how Look looks at it

	waiting bool // nothing is popped until the client takes its answers; guarded by s.mu
}

const (
	// ringChunkBytes is how much of a ring is one chunk: as much as one receive
	// buffer of a socket, so that all sessions get turns of the same size.
	ringChunkBytes = ReadBufferBytes

	// ringWakeBytes is how much may wait in a ring for the completion of what was sent
	// before: the size quantum of the group commit (node.QuantumBytes).
	ringWakeBytes = 32 << 10

	// vainBells is how many bells may be rung for nothing before they are heard more slowly.
	vainBells = 8

	// vainPause is how long nothing is heard of a client that rings without reason.
	vainPause = time.Millisecond
)

// OfferShm says that the door can hand descriptors over with what NextWrite returns:
// see Handover. It is called before the first ReadBuffer.
func (s *Session) OfferShm() { s.handsOver = true }

// Handover returns the descriptors that must go with the first byte of what NextWrite
// returned last, as a rule nil. They are the door's to close.
func (s *Session) Handover() *shm.Files {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := s.passing
	s.passing = nil
	return files
}

// features are the feature bits that this session can have.
func (s *Session) features() uint64 {
	if s.handsOver {
		return wire.Features
	}
	return wire.Features &^ wire.FeatureShm
}

// openShm makes the shared memory of the session, or says why not: the client then
// goes on over the socket.
func (s *Session) openShm(h wire.Header, m *wire.ShmOpen) error {
	refuse := func(code wire.Code, message string) error {
		return s.reply(&wire.Error{Code: code, Message: message}, h.Request)
	}
	if !s.shmAllowed {
		return refuse(wire.CodeUnsupported, "this connection has no shared memory: it was not negotiated")
	}
	if h.Request != 1 {
		return refuse(wire.CodeBadRequest, "shm_open is the first request of a connection")
	}
	size := shm.RingBytesFor(m.RingBytes)
	need := shm.DoorBytes(size)
	if !s.takeRing(need) {
		return refuse(wire.CodeOutOfMemory, fmt.Sprintf("shared memory takes %d bytes, and %d of the %d for it are in use: raise WALSIDECAR_MEMORY",
			need, s.host.rings.Used(), s.host.rings.Total()))
	}
	door, files, err := shm.NewDoor(size)
	if err != nil {
		s.mu.Lock()
		s.give(need)
		s.mu.Unlock()
		s.host.rings.Give(need)
		return s.reply(noDoor(err), h.Request)
	}
	door.Arm(0)
	r := &ring{door: door, bytes: need, spinner: shm.NewSpinner(s.host.options.Waiting, int(s.peer.PID))}
	info := wire.ShmInfo{Layout: shm.Version, MaxMessageBytes: uint32(shm.MaxMessageBytes(size)), MaxRequests: shm.MaxRequests,
		RingBytes: uint64(size), CompletionBytes: shm.CompletionBytes}
	s.mu.Lock()
	s.ring, s.files = r, files
	if !s.ended {
		s.out.pending = info.AppendTo(s.out.pending, h.Request)
		s.writable.Signal()
	}
	s.mu.Unlock()
	r.forget = s.backend.Listen(door.Bell, s.hear(r))
	return nil
}

// noDoor is what a client is told when the kernel gave no memory to share.
func noDoor(err error) *wire.Error {
	e := &wire.Error{Code: wire.CodeOutOfMemory, Message: "no shared memory now: " + err.Error()}
	switch {
	case shm.Unsupported(err):
		e.Code, e.Message = wire.CodeUnsupported, "no shared memory on this host: "+err.Error()
		e.Hint = "append over the socket: the kernel under the sidecar, or its sandbox, does not share memory as walsidecar needs it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		e.Hint = "raise the sidecar's limit of open files, or use fewer clients"
	}
	return e
}

// takeRing takes n bytes from the part of the budget that is for shared memory, and
// from the budget. The other part stays for clients on the socket.
func (s *Session) takeRing(n int64) bool {
	if !s.host.rings.Take(n) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.take(n) {
		return true
	}
	s.host.rings.Give(n)
	return false
}

// hear returns what is done when the client rings: the session is ready for the commit
// loop, if that sleeps.
func (s *Session) hear(r *ring) func() (deaf time.Duration) {
	vain, last := 0, uint64(0)
	return func() time.Duration {
		if r.door.Disarm() {
			s.backend.Ready(s)
		}
		// A client rings once per sleep, for what it has published; one ring that crossed
		// with the loop's own look was not in vain.
		if tail := r.door.Tail(); tail != last {
			vain, last = 0, tail
		} else if vain++; vain > vainBells {
			vain -= 2 // the end of the deafness is heard as a ring, and is none
			return vainPause
		}
		return 0
	}
}

// ListenApart is Backend.Listen by a goroutine of its own.
func ListenApart(b *shm.Bell, heard func() (deaf time.Duration)) (forget func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Listen(func() {
			if deaf := heard(); deaf > 0 {
				time.Sleep(deaf)
			}
		})
	}()
	return func() {
		_ = b.Close() // ends Listen
		<-ended
	}
}

// stopListening ends the listening and closes descriptors that were not handed over. The
// door calls it by way of Finish.
func (s *Session) stopListening() {
	s.mu.Lock()
	r := s.ring
	for _, files := range []*shm.Files{s.files, s.passing} {
		if files != nil {
			files.Close()
		}
	}
	s.files, s.passing = nil, nil
	s.mu.Unlock()
	if r != nil {
		r.forget()
		_ = r.door.Bell.Close()
	}
}

// popRing returns the next chunk of the ring, nil when there is none: the client then
// rings the bell when there is. Called by the commit loop, with s.mu held.
func (s *Session) popRing() *Chunk {
	r := s.ring
	if !s.ended && s.out.size() >= MaxOutputBytes {
		r.waiting = true
		return nil
	}
	if s.ringHas(r) {
		return s.ringChunk(r)
	}
	if !s.ended {
		r.door.Arm(r.wakeAt())
		if !s.ringHas(r) {
			return nil
		}
		return s.ringChunk(r)
	}
	if s.finished && s.popped == 0 {
		s.closeRing()
	}
	return nil
}

// ringHas reports whether the ring has messages to be decided. What a client had
// published when it left still is; after a Goodbye nothing is.
func (s *Session) ringHas(r *ring) bool {
	if r.broken || (s.ended && s.goodbye != wire.CodeOK) {
		return false
	}
	if r.final {
		return r.door.Pending() > 0
	}
	r.final = s.finished // a client that kept the memory must not go on
	some, err := r.door.Load()
	if err != nil {
		s.violated(err)
		return false
	}
	return some
}

func (s *Session) ringChunk(r *ring) *Chunk {
	r.door.Disarm()
	c := s.newChunk()
	*c = Chunk{session: s, ring: r, left: ringChunkBytes}
	s.popped++
	return c
}

// ringGrace is how long the ring of a client that was sent away stays as it is. What
// the client has to send again lies there, and it needs a moment to copy it.
const ringGrace = 2 * time.Second

// closeRing gives the memory back. Called by the commit loop, or after its end, with s.mu
// held, when nobody else uses the ring any more.
func (s *Session) closeRing() {
	r, host := s.ring, s.host
	s.ring = nil
	if s.goodbye == wire.CodeOK { // the client has gone by itself
		go r.door.Close() // it takes a while, for which the commit loop must not wait
		host.rings.Give(r.bytes)
	} else {
		s.held -= r.bytes
		time.AfterFunc(ringGrace, func() {
			r.door.Close()
			host.rings.Give(r.bytes)
			host.options.Budget.Give(r.bytes)
		})
	}
	s.settle()
}

// violated ends the session for what its client did to the ring. Called by the commit
// loop, with s.mu held.
func (s *Session) violated(err error) {
	s.ring.broken = true
	if s.endLocked(wire.CodeBadRequest, err.Error()) {
		go s.report(wire.CodeBadRequest, err.Error()) // the commit loop must not wait for a log line
	}
}

// nextOfRing is Next of a chunk of the ring. The body lies in the client's memory.
func (c *Chunk) nextOfRing() (h wire.Header, body []byte, ok bool) {
	if c.left <= 0 {
		return wire.Header{}, nil, false
	}
	h, body, ok, err := c.ring.door.Next()
	if err != nil {
		c.session.mu.Lock()
		c.session.violated(err)
		c.session.mu.Unlock()
		return wire.Header{}, nil, false
	}
	c.last = int(h.Length)
	c.left -= c.last
	return h, body, ok
}

// ackRing is AckAppend of a request of the ring.
func (s *Session) ackRing(request, stream, firstOffset uint64, count uint32, position uint64) {
	r := s.ring
	if r == nil {
		return
	}
	r.durable = max(r.durable, position)
	if n := len(r.extents); n > 0 && r.extents[n-1].Extend(request, stream, firstOffset, count, position) {
		return
	}
	if len(r.extents) == maxExtents {
		s.flushRing()
	}
	r.extents = append(r.extents, wire.AckExtent{Request: request, Stream: stream, Offset: firstOffset, Position: position, Requests: 1, Records: count})
}

// flushRing publishes what was answered since the last Flush.
func (s *Session) flushRing() {
	r := s.ring
	if r == nil || !r.dirty {
		return
	}
	r.door.Publish(r.extents, r.durable)
	r.extents, r.dirty = r.extents[:0], false
	if r.door.Armed() && r.rearm() { // the log can take more now
		s.backend.Ready(s)
	}
}

// wakeAt is the position beyond which the client must wake the commit loop. While
// requests are under way, their completion wakes it, and less than what makes it send
// another frame before that can wait.
func (r *ring) wakeAt() uint64 {
	if r.door.Unanswered() > 0 {
		return r.door.Taken() + ringWakeBytes
	}
	return r.door.Taken()
}
