package session_test

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// encoder is any message.
type encoder interface {
	AppendTo(dst []byte, request uint64) []byte
}

type decoder interface {
	Decode(h wire.Header, body []byte) error
}

// held is a Backend that decides nothing by itself: the test is its commit loop.
type held struct {
	ready  chan *session.Session
	closed chan *session.Session
	refuse error
}

func newHeld() *held {
	return &held{ready: make(chan *session.Session, 1<<16), closed: make(chan *session.Session, 16)}
}

func (b *held) Welcome() wire.Welcome         { return wire.Welcome{Node: "held", Durable: 4096} }
func (b *held) Reader() *reader.Reader        { return nil }
func (b *held) StatusJSON() []byte            { return []byte(`{"held":true}`) }
func (b *held) Opened(*session.Session) error { return b.refuse }
func (b *held) Closed(s *session.Session)     { b.closed <- s }
func (b *held) Ready(s *session.Session)      { b.ready <- s }
func (b *held) Serve(s *session.Session)      { b.ready <- s }

func (b *held) Listen(bell *shm.Bell, heard func() time.Duration) func() {
	return session.ListenApart(bell, heard)
}

// host is a Host over one Backend that is checked at the test's end.
type host struct {
	*session.Host
	t      testing.TB
	budget *session.Budget
}

const testBudget = 64 << 20

func newHost(t testing.TB, b session.Backend, budget int64, times session.Times) *host {
	t.Helper()
	h := &host{t: t, budget: session.NewBudget(budget)}
	h.Host = session.NewHost(session.Options{
		Log: func(selector string) session.Backend {
			if selector != "" && selector != "held" {
				return nil
			}
			return b
		},
		Budget: h.budget, Server: "walsidecar test", Logger: slog.New(slog.DiscardHandler), Times: times,
	})
	t.Cleanup(func() {
		h.Close()
		if n := h.Stats().Sessions; n != 0 {
			t.Errorf("%d sessions are left", n)
		}
		// The ring of a client that was sent away stays for two seconds.
		used := h.budget.Used()
		for until := time.Now().Add(10 * time.Second); used != 0 && time.Now().Before(until); used = h.budget.Used() {
			time.Sleep(10 * time.Millisecond)
		}
		if used != 0 {
			t.Errorf("%d bytes of the budget are in use after the last session", used)
		}
	})
	return h
}

// door is both ends of a session without a transport: the test is the client.
type door struct {
	t       testing.TB
	s       *session.Session
	next    uint64
	wg      sync.WaitGroup
	hold    chan struct{} // closed: writes to the client go on
	hangUp  chan struct{} // closed by the session's shutdown
	kick    sync.Once
	left    sync.Once
	send    chan []byte
	answers chan answer
	in      []byte // of a message that is not whole yet
}

type answer struct {
	h    wire.Header
	body []byte
}

// dial connects a client that takes its answers at once.
func (h *host) dial() *door {
	d := h.dialSlow()
	close(d.hold)
	return d
}

// dialSlow connects a client that takes nothing until hold is closed.
func (h *host) dialSlow() *door {
	h.t.Helper()
	d := &door{t: h.t, next: 1, hold: make(chan struct{}), hangUp: make(chan struct{}), send: make(chan []byte), answers: make(chan answer, 1<<17)}
	s, err := h.New(session.Peer{PID: 1, UID: 2, GID: 3}, func() { d.kick.Do(func() { close(d.hangUp) }) })
	if err != nil {
		h.t.Fatal(err)
	}
	d.s = s
	d.wg.Add(2)
	go d.reading()
	go d.writing()
	h.t.Cleanup(d.leave)
	return d
}

// reading is the door's reading goroutine.
func (d *door) reading() {
	defer d.wg.Done()
	var in []byte
	for {
		b, err := d.s.ReadBuffer()
		if err != nil {
			return
		}
		if len(in) == 0 {
			if d.s.Received(0) != nil {
				return
			}
			select {
			case in = <-d.send:
			case <-d.hangUp:
				d.s.Gone()
				return
			}
			if b, err = d.s.ReadBuffer(); err != nil {
				return
			}
		}
		n := copy(b, in)
		in = in[n:]
		if err := d.s.Received(n); err != nil {
			return
		}
	}
}

// writing is the door's writing goroutine.
func (d *door) writing() {
	defer d.wg.Done()
	defer d.kick.Do(func() { close(d.hangUp) })
	defer close(d.answers)
	for {
		first, second, err := d.s.NextWrite()
		if errors.Is(err, io.EOF) {
			return
		}
		select {
		case <-d.hold:
		case <-d.hangUp:
			d.s.Written(io.ErrClosedPipe)
			continue
		}
		sound := d.took(first) && d.took(second)
		d.s.Written(nil)
		if !sound {
			return
		}
	}
}

// took takes what the session has sent. No other call is under way.
func (d *door) took(b []byte) bool {
	d.in = append(d.in, b...)
	for {
		h, body, rest, ok, err := wire.Message(d.in)
		if err != nil {
			d.t.Errorf("the session wrote garbage: %v", err)
			return false
		}
		if !ok {
			return true
		}
		d.answers <- answer{h, append([]byte(nil), body...)}
		d.in = rest
	}
}

// leave ends the client, as a closed socket does.
func (d *door) leave() {
	d.left.Do(func() {
		d.kick.Do(func() { close(d.hangUp) })
		d.s.Gone()
		d.wg.Wait()
		d.s.Finish()
	})
}

// write sends bytes. It gives up when the session has ended.
func (d *door) write(b []byte) {
	select {
	case d.send <- b:
	case <-d.hangUp:
	}
}

// tryWrite sends bytes unless the session takes none for a while.
func (d *door) tryWrite(b []byte) bool {
	select {
	case d.send <- b:
		return true
	case <-time.After(50 * time.Millisecond):
		return false
	}
}

// ask sends a request and returns its id.
func (d *door) ask(m encoder) uint64 {
	d.write(m.AppendTo(nil, d.next))
	d.next++
	return d.next - 1
}

// receive returns the next message; ok is false at the end of the connection.
func (d *door) receive() (a answer, ok bool) {
	d.t.Helper()
	select {
	case a, ok = <-d.answers:
		return a, ok
	case <-time.After(20 * time.Second):
		d.t.Fatal("no message within 20 s")
	}
	return
}

// expect receives a message of the type into m.
func (d *door) expect(typ wire.Type, m decoder) wire.Header {
	d.t.Helper()
	a, ok := d.receive()
	if !ok {
		d.t.Fatalf("the session ended, want %s", typ)
	}
	if a.h.Type != typ {
		var e wire.Error
		_ = e.Decode(a.h, a.body)
		d.t.Fatalf("got %s, want %s: %s %v", a.h.Type, typ, e.Code, &e)
	}
	if err := m.Decode(a.h, a.body); err != nil {
		d.t.Fatal(err)
	}
	return a.h
}

// refused expects an Error with the code and returns it.
func (d *door) refused(code wire.Code) wire.Error {
	d.t.Helper()
	var e wire.Error
	d.expect(wire.TypeError, &e)
	if e.Code != code {
		d.t.Fatalf("refused with %s (%s), want %s", e.Code, e.Message, code)
	}
	return e
}

// goodbye skips to the Goodbye, which must be the last message.
func (d *door) goodbye(code wire.Code) wire.Goodbye {
	d.t.Helper()
	for {
		a, ok := d.receive()
		if !ok {
			d.t.Fatalf("the session ended without a goodbye, want %s", code)
		}
		if a.h.Type != wire.TypeGoodbye {
			continue
		}
		var bye wire.Goodbye
		if err := bye.Decode(a.h, a.body); err != nil {
			d.t.Fatal(err)
		}
		if bye.Code != code {
			d.t.Fatalf("goodbye with %s (%s), want %s", bye.Code, bye.Message, code)
		}
		if a, ok := d.receive(); ok {
			d.t.Fatalf("%s after the goodbye", a.h.Type)
		}
		return bye
	}
}

var hello = wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Client: "a test"}

// connect dials and introduces itself.
func (h *host) connect() *door {
	h.t.Helper()
	d := h.dial()
	d.write(hello.AppendTo(nil, 0))
	var w wire.Welcome
	d.expect(wire.TypeWelcome, &w)
	return d
}

// oneAppend is a batch of one record.
func oneAppend(stream uint64, payload []byte) *wire.Append {
	return &wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payload}}}
}

// put gives a session without a transport what its client sends.
func put(t *testing.T, s *session.Session, in []byte) {
	t.Helper()
	for len(in) > 0 {
		into, err := s.ReadBuffer()
		if err != nil {
			t.Fatal(err)
		}
		n := copy(into, in)
		in = in[n:]
		if err := s.Received(n); err != nil {
			t.Fatal(err)
		}
	}
}
