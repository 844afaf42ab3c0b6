package session

import "github.com/walsidecar/walsidecar/wire"

// buffer is one receive buffer. Its fields are guarded by the session's mutex but
// for the bytes: those of a chunk belong to the commit loop, those behind them
// to the door's reading goroutine.
type buffer struct {
	b      []byte
	chunks int // queued, or with the commit loop
}

// Chunk is a piece of a receive buffer with whole, framed messages, on its way
// to the commit loop. Its bytes stay as they are until Release, unless it is Shared.
type Chunk struct {
	session  *Session
	buffer   *buffer
	from, to int // not yet read
	last     int // where the message that Next returned begins; of a ring: its length

	// Of a chunk of the ring, in place of the buffer.
	ring  *ring
	left  int    // bytes of this turn
	after uint64 // of a chunk of the socket: what the ring must have been taken up to before
}

// Session returns the session that received the chunk.
func (c *Chunk) Session() *Session { return c.session }

// Next returns the next message for the commit loop, in the order in which the
// client sent them; ok is false after the last. body is valid until Release.
func (c *Chunk) Next() (h wire.Header, body []byte, ok bool) {
	if c.ring != nil {
		return c.nextOfRing()
	}
	for c.from < c.to {
		b := c.buffer.b[c.from:c.to]
		h, _ = wire.DecodeHeader(b) // was checked when it came
		c.last = c.from
		c.from += int(h.Length)
		if h.Type.ForLoop() {
			return h, b[wire.HeaderBytes:h.Length], true
		}
	}
	return wire.Header{}, nil, false
}

// Unread takes the last Next back: the next one returns the same message again.
// It may be called once per Next.
func (c *Chunk) Unread() {
	if c.ring != nil {
		c.ring.door.Unread()
		c.left += c.last
		return
	}
	c.from = c.last
}

// Shared reports whether the bodies lie in memory that the client can change at any
// time: what is checked must be copied before (wire.Append.Detach), and payloads are
// read once.
func (c *Chunk) Shared() bool { return c.ring != nil }

// Bytes returns how many bytes are still to be read.
func (c *Chunk) Bytes() int {
	if c.ring != nil {
		return min(c.left, int(c.ring.door.Pending()))
	}
	return c.to - c.from
}

// Release gives the chunk's bytes back to the session. c must not be used again.
func (c *Chunk) Release() {
	s := c.session
	s.mu.Lock()
	if c.buffer != nil {
		c.buffer.chunks--
	}
	s.popped--
	c.buffer, c.ring = nil, nil
	s.freeChunks = append(s.freeChunks, c)
	s.readable.Signal()
	s.settle()
	s.mu.Unlock()
}

// PopChunk returns the next chunk for the commit loop, nil when there is none.
// Only the commit loop calls it.
func (s *Session) PopChunk() *Chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A command on the socket waits for what its client published before it.
	if s.ring != nil && (len(s.queue) == 0 || (s.queue[0].after > s.ring.door.Taken() && !s.ended)) {
		return s.popRing()
	}
	if len(s.queue) == 0 {
		return nil
	}
	c := s.queue[0]
	n := copy(s.queue, s.queue[1:])
	s.queue = s.queue[:n]
	s.popped++
	return c
}

// publish queues [from, to) of the current receive buffer for the commit loop,
// and reports whether there is anything for it. A chunk that was not popped yet
// grows, also by messages that the loop will skip. Called with s.mu held.
func (s *Session) publish(from, to int, forLoop bool) bool {
	after := uint64(0)
	if s.ring != nil {
		after = s.ring.door.Tail()
	}
	if n := len(s.queue); n > 0 {
		if last := s.queue[n-1]; last.buffer == s.cur && last.to == from {
			last.to, last.after = to, after
			return forLoop
		}
	}
	if !forLoop {
		return false
	}
	c := s.newChunk()
	*c = Chunk{session: s, buffer: s.cur, from: from, to: to, last: from, after: after}
	s.cur.chunks++
	s.queue = append(s.queue, c)
	return true
}

// newChunk returns a chunk to be filled in. Called with s.mu held.
func (s *Session) newChunk() *Chunk {
	n := len(s.freeChunks)
	if n == 0 {
		return new(Chunk)
	}
	c := s.freeChunks[n-1]
	s.freeChunks = s.freeChunks[:n-1]
	return c
}

// discard drops the chunks that nobody popped. Called with s.mu held.
func (s *Session) discard() {
	for _, c := range s.queue {
		c.buffer.chunks--
		c.buffer = nil
	}
	s.queue = s.queue[:0]
}
