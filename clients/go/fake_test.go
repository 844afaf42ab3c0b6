package walsidecar

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// fakeLog is what survives a restart of a fakeSidecar: a small log with the rules
// of the real one for streams, sequences, duplicates and refusals.
type fakeLog struct {
	mu        sync.Mutex
	uuid      [16]byte
	streams   []*fakeStream // id is index+1
	sessions  map[uint64]*fakeProducer
	named     map[string]*fakeProducer
	nextID    uint64
	position  uint64
	roomFor   int // appends until the log is full; -1: no limit
	committed int // appends
	records   []wire.Record
}

type fakeStream struct {
	wire.Stream
	token   []byte
	records []wire.Record
}

type fakeProducer struct {
	id      uint64
	name    string
	window  uint32
	last    uint64
	results map[uint64]message // by sequence
	bytes   map[uint64]string  // that the sequences of results are bound to
}

type message interface {
	AppendTo(dst []byte, request uint64) []byte
}

func newFakeLog() *fakeLog {
	return &fakeLog{uuid: [16]byte{1}, sessions: map[uint64]*fakeProducer{}, named: map[string]*fakeProducer{}, nextID: 100, roomFor: -1}
}

// payloads returns what was appended to a stream.
func (l *fakeLog) payloads(name string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, s := range l.streams {
		if s.Name == name && !s.Deleted {
			for i := range s.records {
				all = append(all, string(s.records[i].Payload))
			}
		}
	}
	return all
}

func (l *fakeLog) stream(id uint64) *fakeStream {
	if id == 0 || id > uint64(len(l.streams)) {
		return nil
	}
	return l.streams[id-1]
}

func refusal(code wire.Code, message string) *wire.Error {
	return &wire.Error{Code: code, Message: message}
}

// append decides one Append.
func (l *fakeLog) append(m *wire.Append) message {
	var session, named *fakeProducer
	if m.HasProducer {
		session = l.sessions[m.Producer]
		for _, p := range l.named {
			if p.id == m.Producer {
				named = p
			}
		}
		switch {
		case session == nil && named == nil:
			return refusal(wire.CodeProducerExpired, "unknown producer")
		case named != nil && m.Sequence <= named.last:
			return &wire.AppendResult{Duplicate: true, LastSequence: named.last}
		case session != nil && m.Acked > m.Sequence:
			return refusal(wire.CodeBadRequest, fmt.Sprintf("sequence %d acknowledges itself", m.Sequence))
		case session != nil && m.Sequence <= session.last:
			return duplicate(session, m)
		case session != nil && m.Sequence > session.last+1:
			return refusal(wire.CodeOutOfSequence, fmt.Sprintf("%d after %d", m.Sequence, session.last))
		}
	}
	for i := range m.Entries {
		if len(m.Entries[i].Payload) > 0 && m.Entries[i].Payload[0] == '!' { // a record that no log would take
			return refusal(wire.CodeTooLarge, "refused by the test")
		}
	}
	if l.roomFor == 0 {
		return refusal(wire.CodeLogFull, "no room")
	}
	answer := l.check(m)
	if e, refused := answer.(*wire.Error); refused {
		if session != nil {
			e.Logged = true
			session.keep(m, e)
		}
		return e
	}
	if l.roomFor > 0 {
		l.roomFor--
	}
	result := l.commit(m)
	switch {
	case session != nil:
		session.keep(m, result)
	case named != nil:
		named.last = m.Sequence
	}
	return result
}

// keep remembers the result of a sequence and forgets those that were acked.
func (p *fakeProducer) keep(m *wire.Append, result message) {
	for sequence := range p.results {
		if sequence < m.Acked {
			delete(p.results, sequence)
			delete(p.bytes, sequence)
		}
	}
	p.last = m.Sequence
	p.results[m.Sequence] = result
	p.bytes[m.Sequence] = string(m.Entries[0].Payload)
	if uint32(len(p.results)) > p.window {
		panic(fmt.Sprintf("%d results are kept, the window is %d", len(p.results), p.window))
	}
}

// duplicate answers a sequence that was answered before.
func duplicate(p *fakeProducer, m *wire.Append) message {
	if bound, ok := p.bytes[m.Sequence]; ok && bound != string(m.Entries[0].Payload) {
		panic(fmt.Sprintf("sequence %d came with %q and again with %q", m.Sequence, bound, m.Entries[0].Payload))
	}
	switch r := p.results[m.Sequence].(type) {
	case *wire.AppendResult:
		again := *r
		again.Duplicate = true
		return &again
	case *wire.Error:
		return r
	}
	return refusal(wire.CodeSequenceExpired, "forgotten")
}

// check checks the preconditions of a batch, each entry seeing the ones before it.
func (l *fakeLog) check(m *wire.Append) message {
	next := map[uint64]uint64{}
	for i := range m.Entries {
		e := &m.Entries[i]
		s := l.stream(e.Stream)
		refuse := func(code wire.Code, actual uint64) message {
			return &wire.Error{Code: code, Known: wire.FlagEntry | wire.FlagActual, Entry: uint32(i), Actual: actual}
		}
		switch {
		case s == nil:
			return refuse(wire.CodeNotFound, 0)
		case s.Deleted:
			return refuse(wire.CodeDeleted, 0)
		case s.Sealed:
			return refuse(wire.CodeSealed, s.NextOffset)
		case len(s.token) > 0 && !bytes.Equal(s.token, e.Token):
			return refuse(wire.CodeTokenMismatch, 0)
		}
		at := cmp.Or(next[e.Stream], s.NextOffset)
		if e.HasExpect && e.Expect != at {
			return refuse(wire.CodePreconditionFailed, at)
		}
		next[e.Stream] = at + 1
	}
	return nil
}

func (l *fakeLog) commit(m *wire.Append) *wire.AppendResult {
	l.committed++
	l.position += 64
	result := &wire.AppendResult{Position: l.position}
	for i := range m.Entries {
		e := &m.Entries[i]
		s := l.stream(e.Stream)
		r := wire.Record{
			Stream: e.Stream, Offset: s.NextOffset, Position: l.position, TimestampNS: int64(l.position), BatchEnd: i == len(m.Entries)-1,
			Headers: slices.Clone(e.Headers), Payload: slices.Clone(e.Payload),
		}
		r.Checksum = wire.RecordChecksum(&r)
		s.NextOffset++
		s.LastNS = r.TimestampNS
		s.records = append(s.records, r)
		l.records = append(l.records, r)
		if k := slices.IndexFunc(result.Placed, func(p wire.Placed) bool { return p.Stream == e.Stream }); k >= 0 {
			result.Placed[k].Count++
		} else {
			result.Placed = append(result.Placed, wire.Placed{Stream: e.Stream, Offset: r.Offset, Count: 1})
		}
	}
	l.position += uint64(64 * len(m.Entries))
	return result
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// fate is what a fakeSidecar does with an append.
type fate int

const (
	serve            fate = iota // decide and answer
	dieBefore                    // close the connection without deciding
	dieAfter                     // decide, close without the answer
	dieHalfway                   // decide, send half of the answer, close
	drain                        // refuse this and all that follows on the connection
	refuseOnce                   // with out_of_memory, without deciding
	refuseAndDieLate             // with log_full; what the connection has sent behind it is decided late: after the next connection's first append
)

// fakeSidecar serves one fakeLog on a Unix socket.
type fakeSidecar struct {
	stopped  bool // guarded by mu: connections that come are closed
	errorf   func(format string, args ...any)
	log      *fakeLog
	path     string
	listener net.Listener
	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	late     []wire.Append                          // that a dead connection has left behind
	appends  int                                    // that came, on all connections
	fate     func(n int) fate                       // of append n, from 1; nil: serve
	welcome  func(*wire.Welcome)                    // changes what clients are told
	seen     func(h wire.Header, body []byte)       // of every message
	onRead   func(c *fakeConn, request uint64) bool // true: it served the read
	wg       sync.WaitGroup
}

func newFakeSidecar(t *testing.T) *fakeSidecar {
	f := startFakeSidecar(filepath.Join(t.TempDir(), "wal.sock"), t.Errorf)
	t.Cleanup(f.stop)
	return f
}

func startFakeSidecar(path string, errorf func(format string, args ...any)) *fakeSidecar {
	f := &fakeSidecar{errorf: errorf, log: newFakeLog(), path: path, conns: map[net.Conn]struct{}{}}
	f.start()
	return f
}

func (f *fakeSidecar) start() {
	listener, err := net.Listen("unix", f.path)
	must(err)
	f.mu.Lock()
	f.listener, f.stopped = listener, false
	f.mu.Unlock()
	f.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			if f.stopped { // it came while the sidecar was being stopped
				f.mu.Unlock()
				_ = conn.Close()
				return
			}
			f.conns[conn] = struct{}{}
			f.mu.Unlock()
			f.wg.Go(func() {
				(&fakeConn{f: f, net: conn, reads: map[uint64]*fakeRead{}}).run()
				_ = conn.Close()
				f.mu.Lock()
				delete(f.conns, conn)
				f.mu.Unlock()
			})
		}
	})
}

// stop ends the sidecar as a crash would: whatever was not answered stays so.
func (f *fakeSidecar) stop() {
	f.mu.Lock()
	f.stopped = true
	_ = f.listener.Close()
	for conn := range f.conns {
		_ = conn.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fakeSidecar) restart() {
	f.stop()
	f.start()
}

// kick closes the connections; the sidecar stays.
func (f *fakeSidecar) kick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.conns {
		_ = conn.Close()
	}
}

// fakeConn is one connection of a fakeSidecar.
type fakeConn struct {
	f     *fakeSidecar
	net   net.Conn
	in    []byte
	out   []byte
	acks  wire.AppendAck
	next  uint64 // request id that must come
	reads map[uint64]*fakeRead

	draining bool
}

var errDie = errors.New("the fake sidecar dies")

func (c *fakeConn) run() {
	buf := make([]byte, 1<<20)
	for {
		n, err := c.net.Read(buf)
		if err != nil {
			return
		}
		c.in = append(c.in, buf[:n]...)
		for {
			h, body, rest, ok, err := wire.Message(c.in)
			must(err)
			if !ok {
				break
			}
			if err := c.serve(h, body); err != nil {
				if errors.Is(err, errDie) {
					_, _ = c.net.Write(c.out)
				}
				return
			}
			c.in = rest
		}
		c.serveReads()
		c.flushAcks()
		if _, err := c.net.Write(c.out); err != nil {
			return
		}
		c.out = c.out[:0]
	}
}

// serve takes one message.
func (c *fakeConn) serve(h wire.Header, body []byte) error {
	f, l := c.f, c.f.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.seen != nil {
		f.seen(h, body)
	}
	if h.Type.UsesRequestID() {
		if c.next++; h.Request != c.next {
			f.errorf("request %d came where %d was due", h.Request, c.next)
			return io.ErrUnexpectedEOF
		}
	}
	switch h.Type {
	case wire.TypeHello:
		w := wire.Welcome{
			Version: 1, Session: 1, Log: l.uuid, Durable: l.position, MaxMessageBytes: wire.MaxMessageBytes, MaxBatchRecords: wire.MaxBatchRecords,
			MaxBatchBytes: wire.MaxFrameBytes, MaxRequests: 8192, MaxRequestBytes: 4 << 20, MaxReads: 64, Node: "fake", Server: "fake/1",
		}
		if f.welcome != nil {
			f.welcome(&w)
		}
		c.out = w.AppendTo(c.out, 0)
	case wire.TypeAppend:
		return c.serveAppend(h, body)
	case wire.TypeRead, wire.TypeReplay, wire.TypeCredit, wire.TypeCancel:
		c.serveRead(h, body)
	default:
		c.answer(l.command(h, body), h.Request)
	}
	return nil
}

func (c *fakeConn) serveAppend(h wire.Header, body []byte) error {
	var m wire.Append
	must(m.Decode(h, body))
	c.f.appends++
	what := serve
	if c.f.fate != nil {
		what = c.f.fate(c.f.appends)
	}
	switch what {
	case dieBefore:
		c.flushAcks()
		return errDie
	case drain:
		c.draining = true
	case refuseAndDieLate:
		c.answer(refusal(wire.CodeLogFull, "no room"), h.Request)
		c.f.late = c.rest(h)
		return errDie
	case refuseOnce:
		c.answer(refusal(wire.CodeOutOfMemory, "no memory"), h.Request)
		return nil
	}
	if c.draining {
		c.answer(refusal(wire.CodeDraining, "shutting down"), h.Request)
		return nil
	}
	answer := c.f.log.append(&m)
	for i := range c.f.late {
		c.f.log.append(&c.f.late[i])
	}
	c.f.late = nil
	switch what {
	case dieAfter:
		c.flushAcks()
		return errDie
	case dieHalfway:
		c.flushAcks()
		whole := answer.AppendTo(nil, h.Request)
		c.out = append(c.out, whole[:len(whole)/2]...)
		return errDie
	}
	c.answer(answer, h.Request)
	return nil
}

// rest decodes the appends that the connection has sent behind the message h.
func (c *fakeConn) rest(h wire.Header) []wire.Append {
	must(c.net.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
	more, _ := io.ReadAll(c.net)
	b := append(slices.Clone(c.in[h.Length:]), more...)
	var appends []wire.Append
	for {
		h, body, rest, ok, err := wire.Message(b)
		must(err)
		if !ok {
			return appends
		}
		b = rest
		if h.Type == wire.TypeAppend {
			var m wire.Append
			must(m.Decode(h, body))
			appends = append(appends, m)
		}
	}
}

// answer adds an answer; plain results become extents, as the real one does it.
func (c *fakeConn) answer(m message, request uint64) {
	if r, ok := m.(*wire.AppendResult); ok && !r.Duplicate && len(r.Placed) == 1 {
		p := r.Placed[0]
		if n := len(c.acks.Extents); n == 0 || !c.acks.Extents[n-1].Extend(request, p.Stream, p.Offset, p.Count, r.Position) {
			c.acks.Extents = append(c.acks.Extents, wire.AckExtent{
				Request: request, Stream: p.Stream, Offset: p.Offset, Position: r.Position, Requests: 1, Records: p.Count,
			})
		}
		return
	}
	c.flushAcks()
	c.out = m.AppendTo(c.out, request)
}

func (c *fakeConn) flushAcks() {
	if len(c.acks.Extents) > 0 {
		c.out = c.acks.AppendTo(c.out, 0)
		c.acks.Extents = c.acks.Extents[:0]
	}
}
