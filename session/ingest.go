package session

import (
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/wire"
)

// ReadBuffer returns where the door shall put the bytes that it reads next. It
// waits while the session holds as much as it may. The bytes belong to the door
// until Received. The error is ErrEnded.
func (s *Session) ReadBuffer() ([]byte, error) {
	if !s.admitted {
		return s.helloBuffer()
	}
	for {
		blocked, err := s.parse()
		if err != nil {
			return nil, err
		}
		if blocked {
			if err := s.waitRoom(); err != nil {
				return nil, err
			}
			continue
		}
		if b, err := s.space(); b != nil || err != nil {
			return b, err
		}
	}
}

// Received says that n bytes were put into what ReadBuffer returned; 0 means
// that there is nothing to read at present. The error is ErrEnded.
func (s *Session) Received(n int) error {
	if n == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting = time.Now()
		if s.admitted && s.end > s.parsed && s.partial.IsZero() {
			s.partial = s.waiting
		}
		if s.ended {
			return ErrEnded
		}
		return nil
	}
	s.end += n
	if !s.admitted {
		return s.receiveHello()
	}
	_, err := s.parse()
	return err
}

// helloBuffer makes the door read a Hello and not a byte more: the header first,
// then what its length says.
func (s *Session) helloBuffer() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, ErrEnded
	}
	s.waiting = time.Time{}
	want := wire.HeaderBytes
	if s.end >= wire.HeaderBytes {
		h, _ := wire.DecodeHeader(s.hello[:])
		want = int(h.Length)
	}
	return s.hello[s.end:want], nil
}

func (s *Session) receiveHello() error {
	if s.end < wire.HeaderBytes {
		return nil
	}
	h, err := wire.DecodeHeader(s.hello[:s.end])
	if err != nil || h.Type != wire.TypeHello || h.Length > wire.MaxHelloBytes {
		return s.fail(wire.CodeBadRequest, "the first message is no hello: not a client of walsidecar")
	}
	if s.end < int(h.Length) {
		return nil
	}
	var hello wire.Hello
	if err := hello.Decode(h, s.hello[wire.HeaderBytes:h.Length]); err != nil {
		return s.fail(wire.CodeBadRequest, err.Error())
	}
	return s.open(&hello)
}

// open admits the client: version, log, memory, backend; and welcomes it.
func (s *Session) open(hello *wire.Hello) error {
	if hello.VersionMin > wire.VersionMax || hello.VersionMax < wire.VersionMin {
		return s.fail(wire.CodeUnsupported, fmt.Sprintf("the client speaks versions %d to %d of the protocol, this sidecar %d to %d",
			hello.VersionMin, hello.VersionMax, wire.VersionMin, wire.VersionMax))
	}
	backend := s.host.options.Log(hello.Log)
	if backend == nil {
		return s.fail(wire.CodeWrongLog, fmt.Sprintf("this sidecar hosts no log %q", hello.Log))
	}
	s.mu.Lock()
	taken := s.take(SessionBytes)
	s.mu.Unlock()
	if !taken {
		return s.fail(wire.CodeOutOfMemory, fmt.Sprintf("a session takes %d bytes, and %d of %d are in use: raise WALSIDECAR_MEMORY",
			SessionBytes, s.host.options.Budget.Used(), s.host.options.Budget.Total()))
	}
	s.backend, s.client = backend, hello.Client
	s.charges = make([]uint32, MaxRequests)
	s.extents = make([]wire.AckExtent, 0, maxExtents)
	if err := backend.Opened(s); err != nil {
		var e wire.Error
		FillError(&e, err)
		return s.fail(e.Code, e.Message)
	}
	w := backend.Welcome()
	w.Version = min(hello.VersionMax, wire.VersionMax)
	w.Features = hello.Features & s.features()
	s.shmAllowed = w.Features&wire.FeatureShm != 0
	w.Session, w.Server = s.id, s.host.options.Server
	w.MaxMessageBytes, w.MaxRequests, w.MaxRequestBytes, w.MaxReads = wire.MaxMessageBytes, MaxRequests, MaxRequestBytes, MaxReads
	w.HeartbeatMS = uint32(reader.HeartbeatEvery.Milliseconds())
	w.IdleMS, w.SlowMS = uint32(s.host.times.Idle.Milliseconds()), uint32(s.host.times.Slow.Milliseconds())
	s.mu.Lock()
	s.admitted = true
	s.parsed, s.end = 0, 0
	s.buffers[0] = &buffer{b: make([]byte, ReadBufferBytes)}
	s.cur = s.buffers[0]
	s.mu.Unlock()
	s.host.opened.Add(1)
	return s.reply(&w, 0)
}

// fail ends the session for a fault of the client or of its handshake.
func (s *Session) fail(code wire.Code, message string) error {
	s.Goodbye(code, message)
	return ErrEnded
}

// allowance is what the session may still take from the door.
type allowance struct{ requests, bytes, output int }

// allow returns the allowance. Called with s.mu held.
func (s *Session) allow() allowance {
	return allowance{MaxRequests - s.requests, MaxRequestBytes - s.bytes, MaxOutputBytes - s.out.size()}
}

// parse understands the whole messages that were received: it checks their
// framing, serves those of the session and passes the others on. blocked says
// that a whole message is left because of a limit.
func (s *Session) parse() (blocked bool, err error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return false, ErrEnded
	}
	s.waiting = time.Time{}
	may := s.allow()
	s.mu.Unlock()

	s.skipRefused()
	from, requests, bytes := s.parsed, 0, 0
	for !blocked && s.end-s.parsed >= wire.HeaderBytes {
		h, err := s.checkHeader()
		if err != nil {
			return false, err
		}
		if s.end-s.parsed < int(h.Length) {
			break
		}
		if !h.Type.ForLoop() {
			if blocked = may.output <= 0; blocked {
				break
			}
			answered, err := s.serve(h, s.cur.b[s.parsed+wire.HeaderBytes:s.parsed+int(h.Length)])
			if err != nil {
				return false, err
			}
			may.output -= answered
		} else {
			n := charge(h)
			full := may.requests == requests || may.output <= 0
			if blocked = full || (bytes+n > may.bytes && may.requests-requests < MaxRequests); blocked {
				break
			}
			s.charges[s.chargeTail%MaxRequests] = uint32(n)
			s.chargeTail++
			requests++
			bytes += n
		}
		s.parsed += int(h.Length)
		if h.Type.UsesRequestID() {
			s.nextRequest++
		}
	}
	return blocked, s.pass(from, requests, bytes)
}

// pass hands the messages from from on to the commit loop.
func (s *Session) pass(from, requests, bytes int) error {
	if s.parsed == from {
		return nil
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return ErrEnded
	}
	s.partial = time.Time{}
	s.requests += requests
	s.bytes += bytes
	ready := s.publish(from, s.parsed, requests > 0)
	s.mu.Unlock()
	if ready {
		s.backend.Serve(s)
	}
	return nil
}

// charge is what a request takes of MaxRequestBytes: its length, or that of its
// answer where that may be the longer one.
func charge(h wire.Header) int {
	if h.Type == wire.TypeStreamList {
		return wire.MaxPageBytes
	}
	return int(h.Length)
}

// checkHeader decodes and checks the header of the next message.
func (s *Session) checkHeader() (wire.Header, error) {
	h, err := wire.DecodeHeader(s.cur.b[s.parsed:s.end])
	switch {
	case err != nil:
		return h, s.fail(wire.CodeBadRequest, err.Error())
	case h.Type >= wire.TypeWelcome || h.Type == wire.TypeHello:
		return h, s.fail(wire.CodeBadRequest, fmt.Sprintf("malformed message: a client does not send %s here", h.Type))
	case h.Type.UsesRequestID() && h.Request != s.nextRequest:
		return h, s.fail(wire.CodeBadRequest, fmt.Sprintf("malformed message: request id %d, not %d: ids grow by 1", h.Request, s.nextRequest))
	}
	return h, nil
}

// skipRefused drops the bytes of a message that was refused for its size.
func (s *Session) skipRefused() {
	n := min(s.skip, s.end-s.parsed)
	s.parsed += n
	s.skip -= n
}

// waitRoom waits until the session can take its next message.
func (s *Session) waitRoom() error {
	h, _ := wire.DecodeHeader(s.cur.b[s.parsed:s.end])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = true
	s.blockedLoop = h.Type.ForLoop()
	for !s.ended && !s.room() {
		s.readable.Wait()
	}
	s.blocked = false
	if s.ended {
		return ErrEnded
	}
	return nil
}

// room reports whether a blocked session can go on. For the commit loop's
// messages that takes a part of the limits, not to go on for a single message;
// the part of the bytes is longer than any message. Called with s.mu held.
func (s *Session) room() bool {
	a := s.allow()
	if a.output <= 0 {
		return false
	}
	return !s.blockedLoop || s.requests == 0 || (a.requests >= MaxRequests/4 && a.bytes >= MaxRequestBytes/2)
}

// space returns room for what the door reads next, nil if there may be more to
// understand first.
func (s *Session) space() ([]byte, error) {
	part := s.end - s.parsed
	need := wire.HeaderBytes
	if part >= wire.HeaderBytes {
		h, _ := wire.DecodeHeader(s.cur.b[s.parsed:s.end])
		need = int(h.Length)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if part > 0 && s.partial.IsZero() {
		s.partial = time.Now()
	}
	for !s.ended {
		b, free := s.cur.b, s.cur.chunks == 0
		if free && need <= len(b) && (part == 0 || s.parsed+need > len(b)) {
			s.move(s.cur)
			return b[s.end:], nil
		}
		if s.parsed+need <= len(b) && (part > 0 || len(b)-s.end >= minReadBytes) {
			return b[s.end:], nil
		}
		next, refused := s.otherBuffer(need)
		switch {
		case refused:
			s.refuse(need, part)
			return nil, nil
		case next != nil:
			s.move(next)
			return next.b[s.end:], nil
		}
		s.readable.Wait()
		s.partial = later(s.partial) // the wait was not the client's fault
	}
	return nil, ErrEnded
}

// later restarts a time that runs.
func later(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return time.Now()
}

// move makes b the current buffer, with the unfinished message at its front.
// Called with s.mu held.
func (s *Session) move(b *buffer) {
	n := copy(b.b, s.cur.b[s.parsed:s.end])
	s.cur, s.parsed, s.end = b, 0, n
}

// otherBuffer returns a buffer other than the current one, with room for need
// bytes and without chunks; nil if the commit loop has to release one first.
// refused says that there is no memory for it. Called with s.mu held.
func (s *Session) otherBuffer(need int) (b *buffer, refused bool) {
	i := 0
	if s.buffers[0] == s.cur {
		i = 1
	}
	b = s.buffers[i]
	switch {
	case b == nil && need <= ReadBufferBytes:
		b = &buffer{b: make([]byte, ReadBufferBytes)}
		s.buffers[i] = b
	case b != nil && b.chunks > 0:
		return nil, false
	case b == nil || len(b.b) < need:
		if !s.takeLarge() {
			return nil, !s.ended
		}
		b = &buffer{b: make([]byte, LargeBufferBytes)}
		s.buffers[i] = b
	}
	return b, false
}

// takeLarge takes what a large buffer needs beyond a small one from the budget,
// and waits for it a while. Called with s.mu held, which it releases meanwhile.
func (s *Session) takeLarge() bool {
	const pause = 10 * time.Millisecond
	for waited := time.Duration(0); !s.ended; waited += pause {
		if s.take(LargeBufferBytes - ReadBufferBytes) {
			return true
		}
		if waited >= LargeWithin {
			return false
		}
		s.mu.Unlock()
		time.Sleep(pause)
		s.mu.Lock()
		s.partial = later(s.partial)
	}
	return false
}

// refuse answers the unfinished message with out_of_memory and drops its bytes.
// Called with s.mu held.
func (s *Session) refuse(length, part int) {
	h, _ := wire.DecodeHeader(s.cur.b[s.parsed:s.end])
	e := wire.Error{Code: wire.CodeOutOfMemory, Message: fmt.Sprintf("no memory for a message of %d bytes: %d of %d bytes are in use",
		length, s.host.options.Budget.Used(), s.host.options.Budget.Total())}
	s.out.pending = e.AppendTo(s.out.pending, h.Request)
	s.writable.Signal()
	if h.Type.UsesRequestID() {
		s.nextRequest++
	}
	s.skip = length - part
	s.parsed = s.end
	s.partial = time.Time{}
}

// dropLarge takes large buffers away that nobody uses. The door must be waiting
// for bytes. Called with s.mu held.
func (s *Session) dropLarge() {
	for i, b := range s.buffers {
		if b == nil || b.chunks > 0 || len(b.b) <= ReadBufferBytes || (b == s.cur && s.end > s.parsed) {
			continue
		}
		s.buffers[i] = nil
		if b == s.cur {
			s.buffers[i] = &buffer{b: make([]byte, ReadBufferBytes)}
			s.cur, s.parsed, s.end = s.buffers[i], 0, 0
		}
		s.give(LargeBufferBytes - ReadBufferBytes)
	}
}

// serve carries out a message that is not for the commit loop, and returns how
// many bytes of answers that added.
func (s *Session) serve(h wire.Header, body []byte) (answered int, err error) {
	before := s.pending()
	switch h.Type {
	case wire.TypePing:
		var m wire.Ping
		if err := m.Decode(h, body); err != nil {
			return s.malformed(h, err)
		}
		err = s.reply(&wire.Pong{Durable: s.backend.Welcome().Durable}, h.Request)
	case wire.TypeStatus:
		var m wire.Status
		if err := m.Decode(h, body); err != nil {
			return s.malformed(h, err)
		}
		err = s.reply(&wire.StatusJSON{JSON: s.backend.StatusJSON()}, h.Request)
	case wire.TypeShmOpen:
		var m wire.ShmOpen
		if err := m.Decode(h, body); err != nil {
			return s.malformed(h, err)
		}
		err = s.openShm(h, &m)
	case wire.TypeRead, wire.TypeReplay:
		err = s.startRead(h, body)
	case wire.TypeCredit:
		var m wire.Credit
		if err := m.Decode(h, body); err != nil {
			return s.malformed(h, err)
		}
		s.grant(h.Request, m.Bytes)
	case wire.TypeCancel:
		var m wire.Cancel
		if err := m.Decode(h, body); err != nil {
			return s.malformed(h, err)
		}
		s.cancel(h.Request)
	default:
		err = s.reply(&wire.Error{Code: wire.CodeUnsupported, Message: "this sidecar does not know the message " + h.Type.String()}, h.Request)
	}
	return max(0, s.pending()-before), err
}

// malformed answers a message of the session that cannot be decoded.
func (s *Session) malformed(h wire.Header, err error) (int, error) {
	e := wire.Error{Code: wire.CodeBadRequest, Message: err.Error()}
	return wire.HeaderBytes, s.reply(&e, h.Request)
}
