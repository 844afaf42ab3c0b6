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
// to the commit loop. Its bytes stay as they are until Release.
type Chunk struct {
	session  *Session
	buffer   *buffer
	from, to int // not yet read
	last     int // where the message that Next returned begins
}

// Session returns the session that received the chunk.
func (c *Chunk) Session() *Session { return c.session }

// Next returns the next message for the commit loop, in the order in which the
// client sent them; ok is false after the last. body is valid until Release.
func (c *Chunk) Next() (h wire.Header, body []byte, ok bool) {
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
func (c *Chunk) Unread() { c.from = c.last }

// Bytes returns how many bytes are still to be read.
func (c *Chunk) Bytes() int { return c.to - c.from }

// Release gives the chunk's bytes back to the session. c must not be used again.
func (c *Chunk) Release() {
	s := c.session
	s.mu.Lock()
	c.buffer.chunks--
	s.popped--
	c.buffer = nil
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
	if n := len(s.queue); n > 0 {
		if last := s.queue[n-1]; last.buffer == s.cur && last.to == from {
			last.to = to
			return forLoop
		}
	}
	if !forLoop {
		return false
	}
	var c *Chunk
	if n := len(s.freeChunks); n > 0 {
		c = s.freeChunks[n-1]
		s.freeChunks = s.freeChunks[:n-1]
	} else {
		c = new(Chunk)
	}
	*c = Chunk{session: s, buffer: s.cur, from: from, to: to, last: from}
	s.cur.chunks++
	s.queue = append(s.queue, c)
	return true
}

// discard drops the chunks that nobody popped. Called with s.mu held.
func (s *Session) discard() {
	for _, c := range s.queue {
		c.buffer.chunks--
		c.buffer = nil
	}
	s.queue = s.queue[:0]
}
