package walsidecar

// chunkBytes is the unit in which memory for outgoing messages is taken. A larger
// message gets a chunk of its own.
const chunkBytes = 256 << 10

// chunk holds consecutive encoded messages. Its bytes are not moved or changed
// until it is empty: they may be in a write.
type chunk struct {
	buf  []byte // len is what is encoded
	sent int    // of buf, handed to a write
	live int    // messages that may be needed again, and writes that use the chunk

	mapped bool // a ring in shared memory: none of this struct's business but buf
}

// outgoing is the memory of everything that was submitted and not answered: what
// is to be written, and what would have to be sent again. Messages are appended to
// the last chunk; a chunk is reused as soon as nothing in it is needed, last in,
// first out, so that a client with little in flight stays in few cache lines. It
// is guarded by the client's mutex.
type outgoing struct {
	queue   []*chunk // with bytes to send, and the last one, in order
	writing []*chunk // used by the write under way
	free    []*chunk
}

// reserve returns the chunk that has room for a message of n bytes at its end.
func (o *outgoing) reserve(n int) *chunk {
	if len(o.queue) > 0 {
		last := o.queue[len(o.queue)-1]
		if last.live == 0 && last.sent == len(last.buf) {
			last.buf, last.sent = last.buf[:0], 0
		}
		if len(last.buf)+n <= cap(last.buf) {
			return last
		}
		if last.sent == len(last.buf) {
			o.queue = o.queue[:len(o.queue)-1]
			o.recycle(last)
		}
	}
	var c *chunk
	switch {
	case n > chunkBytes:
		c = &chunk{buf: make([]byte, 0, n)}
	case len(o.free) > 0:
		c = o.free[len(o.free)-1]
		o.free = o.free[:len(o.free)-1]
	default:
		c = &chunk{buf: make([]byte, 0, chunkBytes)}
	}
	o.queue = append(o.queue, c)
	return c
}

// gather appends to segments what is to be written now, and pins it until written.
func (o *outgoing) gather(segments [][]byte) [][]byte {
	for _, c := range o.queue {
		if c.sent == len(c.buf) {
			continue
		}
		segments = append(segments, c.buf[c.sent:])
		c.sent = len(c.buf)
		c.live++
		o.writing = append(o.writing, c)
	}
	if n := len(o.queue); n > 1 {
		copy(o.queue, o.queue[n-1:])
		clear(o.queue[1:])
		o.queue = o.queue[:1]
	}
	return segments
}

// written unpins what gather gave out.
func (o *outgoing) written() {
	for i, c := range o.writing {
		o.release(c)
		o.writing[i] = nil
	}
	o.writing = o.writing[:0]
}

// release gives up one message of c, or one write that used it.
func (o *outgoing) release(c *chunk) {
	if c.mapped {
		return
	}
	c.live--
	if n := len(o.queue); n > 0 && o.queue[n-1] == c {
		return // still appended to; reserve starts it over when it is empty
	}
	o.recycle(c)
}

// recycle puts c up for reuse unless something in it is needed.
func (o *outgoing) recycle(c *chunk) {
	if c.live > 0 || c.sent < len(c.buf) || cap(c.buf) != chunkBytes {
		return
	}
	c.buf, c.sent = c.buf[:0], 0
	o.free = append(o.free, c)
}

// restart forgets what is queued. Messages keep their chunks until released; the
// write under way must have ended.
func (o *outgoing) restart() {
	for _, c := range o.queue {
		c.sent = len(c.buf)
	}
	old := o.queue
	o.queue = nil
	for _, c := range old {
		o.recycle(c)
	}
}

// request is one append that was submitted and not answered.
type request struct {
	pending  *pending     // nil: answered
	serial   uint64       // grows from submission to submission
	stream   *streamRef   // of a single record
	streams  []*streamRef // of a batch: the distinct ones, in order of first appearance; else nil
	chunk    *chunk       // where the message is
	at, size int          // the message is chunk.buf[at : at+size]
	end      uint64       // of the message in the ring, where it lies there; else 0
	id       uint64       // on this connection; 0: it was not enqueued on one
	sequence uint64       // under the session producer; 0: it has a named one
	slots    int          // of the session producer's window
	sent     bool         // on an earlier connection, and not known to be refused there
	held     bool         // refused without using up its sequence; is sent again after the stall
	absent   bool         // the log is known not to have it
}

// answered reports whether the answer on this connection has come.
func (r *request) answered() bool { return r.pending == nil || r.held }

func (r *request) message() []byte { return r.chunk.buf[r.at : r.at+r.size] }

// label names the stream for errors; a batch over several has none.
func (r *request) label() string {
	if r.stream != nil {
		return r.stream.name
	}
	if len(r.streams) == 1 {
		return r.streams[0].name
	}
	return ""
}

// flight holds the requests in flight in the order in which they were submitted.
// All before next were answered on this connection. It is guarded by the client's
// mutex.
type flight struct {
	ring  []request // length a power of two
	head  uint64    // number of the oldest
	tail  uint64    // number of the next
	next  uint64    // number of the oldest that is not answered
	bytes int       // of messages
	slots int       // of the session producer's window
}

func newFlight(limit int) flight {
	n := 1
	for n < limit {
		n *= 2
	}
	return flight{ring: make([]request, n)}
}

func (f *flight) len() int                  { return int(f.tail - f.head) }
func (f *flight) at(number uint64) *request { return &f.ring[number&uint64(len(f.ring)-1)] }

// push takes the next slot, which is empty; the caller fills in the rest.
func (f *flight) push(size, slots int) *request {
	r := f.at(f.tail)
	r.size, r.slots = size, slots
	f.tail++
	f.bytes += size
	f.slots += slots
	return r
}

// advance moves next behind what was answered.
func (f *flight) advance() {
	for f.next < f.tail && f.at(f.next).answered() {
		f.next++
	}
}

// drop empties the oldest slot. Its chunk was released before.
func (f *flight) drop() {
	r := f.at(f.head)
	f.bytes -= r.size
	f.slots -= r.slots
	*r = request{}
	f.head++
	f.next = max(f.next, f.head)
}
