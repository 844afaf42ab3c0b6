package session_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// takeAll acts as a commit loop: it takes what is there and returns how many
// requests that was. It answers none.
func takeAll(s *session.Session) (requests int) {
	for c := s.PopChunk(); c != nil; c = s.PopChunk() {
		for _, _, ok := c.Next(); ok; _, _, ok = c.Next() {
			requests++
		}
		c.Release()
	}
	return requests
}

// await takes requests until there are want, and then those that come for a while yet.
func await(s *session.Session, b *held, want int) (requests int) {
	for requests = takeAll(s); ; {
		patience := 30 * time.Second
		if requests >= want {
			patience = 100 * time.Millisecond
		}
		select {
		case <-b.ready:
			requests += takeAll(s)
		case <-time.After(patience):
			return requests
		}
	}
}

// The session takes exactly MaxRequests without an answer, and goes on after some.
func TestP12_RequestsInFlightAreBounded(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{}).connect()
	const n = session.MaxRequests + 500
	var talk []byte
	for i := uint64(1); i <= n; i++ {
		talk = oneAppend(1, nil).AppendTo(talk, i)
	}
	go d.write(talk)
	if got := await(d.s, b, session.MaxRequests); got != session.MaxRequests {
		t.Fatalf("took %d requests, want %d", got, session.MaxRequests)
	}
	// The session's other messages wait behind them, but nothing is lost.
	for i := uint64(1); i <= session.MaxRequests; i++ {
		d.s.AckAppend(i, 1, i-1, 1, 64*i)
	}
	d.s.Flush(true)
	if got := await(d.s, b, 500); got != 500 {
		t.Fatalf("took %d requests after the answers, want 500", got)
	}
}

// The bytes in flight are bounded too; a quarter more than one message is not
// taken.
func TestP12_BytesInFlightAreBounded(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{}).connect()
	const payload = 100 << 10
	one := len(oneAppend(1, make([]byte, payload)).AppendTo(nil, 1))
	go func() {
		for i := uint64(1); i <= 60; i++ {
			d.write(oneAppend(1, make([]byte, payload)).AppendTo(nil, i))
		}
	}()
	want := session.MaxRequestBytes / one
	if got := await(d.s, b, want); got != want {
		t.Fatalf("took %d requests of %d bytes, want %d", got, one, want)
	}
}

// A client that takes no answers is not given more of them than the bound, even
// if it asks for nothing but pings; and is dropped after the stated time.
func TestP9_SlowClientIsDropped(t *testing.T) {
	b := newHeld()
	h := newHost(t, b, testBudget, session.Times{Slow: 300 * time.Millisecond, Goodbye: 50 * time.Millisecond})
	d := h.dialSlow()
	d.write(hello.AppendTo(nil, 0))
	sent := 0
	for i := uint64(1); d.tryWrite((&wire.Status{}).AppendTo(nil, i)); i++ {
		sent++
	}
	if sent < 1000 || sent > session.MaxOutputBytes/32+session.ReadBufferBytes/16 {
		t.Errorf("the session took %d requests of a client that reads nothing", sent)
	}
	start := time.Now()
	<-d.hangUp
	if waited := time.Since(start); waited > 2*time.Second {
		t.Errorf("dropped after %v", waited)
	}
	if h.budget.Used() > session.SessionBytes+3*session.MaxOutputBytes {
		t.Errorf("held %d bytes", h.budget.Used())
	}
	ended(t, h, wire.CodeSlowClient, 1)
}

// ended checks how many sessions ended with a code.
func ended(t *testing.T, h *host, code wire.Code, want uint64) {
	t.Helper()
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		var got uint64
		h.Ended(func(c wire.Code, n uint64) {
			if c == code {
				got = n
			}
		})
		if got == want {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d sessions ended with %s, want %d", got, code, want)
		}
	}
}

// Each way to keep the sidecar waiting ends after its time.
func TestP9_ClientsThatKeepTheSidecarWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		times session.Times
		send  []byte
		code  wire.Code
	}{
		"no hello":     {session.Times{Hello: 100 * time.Millisecond}, nil, wire.CodeSlowClient},
		"half a hello": {session.Times{Hello: 100 * time.Millisecond}, hello.AppendTo(nil, 0)[:20], wire.CodeSlowClient},
		"half a message": {session.Times{Message: 100 * time.Millisecond}, append(hello.AppendTo(nil, 0),
			oneAppend(1, make([]byte, 100)).AppendTo(nil, 1)[:40]...), wire.CodeSlowClient},
		"half a large message": {session.Times{Message: 100 * time.Millisecond}, append(hello.AppendTo(nil, 0),
			oneAppend(1, make([]byte, 1<<20)).AppendTo(nil, 1)[:1<<19]...), wire.CodeSlowClient},
		"silence": {session.Times{Idle: 100 * time.Millisecond}, hello.AppendTo(nil, 0), wire.CodeIdleClient},
	} {
		t.Run(name, func(t *testing.T) {
			d := newHost(t, newHeld(), testBudget, c.times).dial()
			if c.send != nil {
				d.write(c.send)
			}
			d.goodbye(c.code)
		})
	}
}

// A client that waits for an answer is not idle, however long that takes.
func TestWaitingForAnAnswerIsNotIdle(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{Idle: 100 * time.Millisecond}).connect()
	d.ask(oneAppend(1, nil))
	s := <-b.ready
	takeAll(s)
	time.Sleep(800 * time.Millisecond)
	s.AckAppend(1, 1, 0, 1, 0)
	s.Flush(true)
	var ack wire.AppendAck
	d.expect(wire.TypeAppendAck, &ack)
	d.goodbye(wire.CodeIdleClient)
}

// A large message without memory for it is refused by name; those around it, and
// another session, go on. With memory it is taken.
func TestP12_LargeMessageWithoutMemory(t *testing.T) {
	null := session.NewNull()
	defer null.Close()
	h := newHost(t, null, 2*session.SessionBytes+(1<<20), session.Times{})
	d := h.connect()
	other := h.connect()
	d.ask(&wire.StreamOpen{Create: true, Name: "a"})
	var info wire.StreamInfo
	d.expect(wire.TypeStreamInfo, &info)
	talk := oneAppend(1, make([]byte, 1<<20)).AppendTo(nil, 2)
	talk = (&wire.Ping{}).AppendTo(talk, 3)
	talk = oneAppend(1, []byte("small")).AppendTo(talk, 4)
	d.write(talk)
	other.ask(&wire.Ping{})
	var pong wire.Pong
	other.expect(wire.TypePong, &pong)
	var e wire.Error
	if hd := d.expect(wire.TypeError, &e); hd.Request != 2 || e.Code != wire.CodeOutOfMemory {
		t.Fatalf("request %d: %s", hd.Request, e.Code)
	}
	d.expect(wire.TypePong, &pong)
	var ack wire.AppendAck
	d.expect(wire.TypeAppendAck, &ack)
	if ack.Extents[0].Request != 4 || ack.Extents[0].Offset != 0 {
		t.Fatalf("%+v", ack.Extents)
	}
	other.leave() // its memory is enough for the large one
	d.next = 5
	d.ask(oneAppend(1, make([]byte, 1<<20)))
	d.expect(wire.TypeAppendAck, &ack)
}

// The memory of a large message is given back when the client is quiet.
func TestLargeBuffersAreGivenBack(t *testing.T) {
	null := session.NewNull()
	defer null.Close()
	h := newHost(t, null, testBudget, session.Times{})
	d := h.connect()
	d.ask(oneAppend(1, make([]byte, 1<<20)))
	d.refused(wire.CodeNotFound)
	if used := h.budget.Used(); used < session.SessionBytes+session.LargeBufferBytes-session.ReadBufferBytes {
		t.Fatalf("%d bytes of the budget in use for a large message", used)
	}
	for until := time.Now().Add(5 * time.Second); h.budget.Used() != session.SessionBytes; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d bytes in use, want %d", h.budget.Used(), session.SessionBytes)
		}
	}
	d.ask(oneAppend(1, []byte("x")))
	d.refused(wire.CodeNotFound)
}

// Answers that the client does not take count under the budget, and a client for
// which there is none left is dropped; others are not.
func TestP9_AnswersCountUnderTheBudget(t *testing.T) {
	b := newHeld()
	h := newHost(t, b, 2*session.SessionBytes+(64<<10), session.Times{})
	other := h.connect()
	d := h.dialSlow()
	d.write(hello.AppendTo(nil, 0))
	var talk []byte
	for i := uint64(1); i <= 4000; i++ {
		talk = oneAppend(1, nil).AppendTo(talk, i)
	}
	go d.write(talk)
	if got := await(d.s, b, 4000); got != 4000 {
		t.Fatalf("took %d requests", got)
	}
	e := wire.Error{Code: wire.CodeSealed, Message: strings.Repeat("x", 200)}
	for i := uint64(1); i <= 4000; i++ {
		d.s.AnswerError(i, &e)
		if i%100 == 0 {
			d.s.Flush(true)
		}
	}
	if used := h.budget.Used(); used > h.budget.Total() {
		t.Errorf("%d of %d bytes in use", used, h.budget.Total())
	}
	ended(t, h, wire.CodeOutOfMemory, 1)
	other.ask(&wire.Ping{})
	var pong wire.Pong
	other.expect(wire.TypePong, &pong)
	close(d.hold)
	d.goodbye(wire.CodeOutOfMemory)
}

// What a client sent before it died can still be decided; its memory is given
// back when the commit loop has released the last of it.
func TestRequestsOutliveTheirClient(t *testing.T) {
	b := newHeld()
	h := newHost(t, b, testBudget, session.Times{})
	d := h.connect()
	d.ask(oneAppend(1, []byte("last words")))
	s := <-b.ready
	d.leave()
	if got := <-b.closed; got != s {
		t.Fatal("another session was closed")
	}
	c := s.PopChunk()
	hd, body, ok := c.Next()
	var m wire.Append
	if !ok || m.Decode(hd, body) != nil || !bytes.Equal(m.Entries[0].Payload, []byte("last words")) {
		t.Fatalf("got %+v", m)
	}
	if h.budget.Used() == 0 {
		t.Error("the memory was given back while the commit loop reads it")
	}
	s.AckAppend(1, 1, 0, 1, 0)
	s.Flush(true) // goes nowhere
	c.Release()
	if used := h.budget.Used(); used != 0 {
		t.Errorf("%d bytes in use", used)
	}
}

// The Goodbye is the last message; what was flushed before comes before it.
func TestGoodbyeIsLast(t *testing.T) {
	b := newHeld()
	h := newHost(t, b, testBudget, session.Times{})
	d := h.connect()
	d.ask(oneAppend(1, nil))
	d.ask(oneAppend(1, nil))
	s := <-b.ready
	await(s, b, 2)
	s.AckAppend(1, 1, 0, 1, 0)
	s.Flush(true)
	s.Goodbye(wire.CodeLogFailed, "a write to the log failed")
	s.AckAppend(2, 1, 1, 1, 0)
	s.Flush(true)
	s.Goodbye(wire.CodeDraining, "too late")
	var ack wire.AppendAck
	d.expect(wire.TypeAppendAck, &ack)
	if bye := d.goodbye(wire.CodeLogFailed); bye.Message != "a write to the log failed" {
		t.Errorf("said %q", bye.Message)
	}
	d.leave()
	<-b.closed
	select {
	case <-b.closed:
		t.Error("closed twice")
	default:
	}
	h.connect() // a Goodbye to one session does not close the host
}

// After the Goodbye to all, nobody comes in any more.
func TestHostGoodbye(t *testing.T) {
	h := newHost(t, newHeld(), testBudget, session.Times{})
	a, b := h.connect(), h.connect()
	h.Goodbye(wire.CodeFenced, "another host owns the log")
	a.goodbye(wire.CodeFenced)
	b.goodbye(wire.CodeFenced)
	_, err := h.New(session.Peer{}, func() {})
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != wire.CodeDraining {
		t.Errorf("a new client got %v", err)
	}
}

// An append costs no allocation on any path of the session: received, passed,
// acked, flushed, written.
func TestAppendsDoNotAllocate(t *testing.T) {
	b := newHeld()
	h := newHost(t, b, testBudget, session.Times{})
	s, err := h.New(session.Peer{}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	get := func() {
		if _, _, err := s.NextWrite(); err != nil {
			t.Fatal(err)
		}
		s.Written(nil)
	}
	put(t, s, hello.AppendTo(nil, 0))
	get()
	const perRound = 50
	var talk []byte
	var m wire.Append
	request, one := uint64(1), oneAppend(1, make([]byte, 1000))
	round := func() {
		talk = talk[:0]
		for i := range uint64(perRound) {
			talk = one.AppendTo(talk, request+i)
		}
		put(t, s, talk)
		for len(b.ready) > 0 {
			<-b.ready
		}
		for c := s.PopChunk(); c != nil; c = s.PopChunk() {
			for hd, body, ok := c.Next(); ok; hd, body, ok = c.Next() {
				if m.Decode(hd, body) != nil {
					t.Fatal("malformed")
				}
				s.AckAppend(hd.Request, 1, hd.Request, 1, 64*hd.Request*hd.Request) // extents of two
			}
			c.Release()
		}
		s.Flush(true)
		get()
		request += perRound
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n > 0 {
		t.Errorf("%v allocations per %d appends", n, perRound)
	}
	s.Written(io.EOF)
	s.Finish()
}

// The limits and times in docs/protocol.md are those of the code.
func TestLimitsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		fmt.Sprintf("| requests in flight of a session | %d |", session.MaxRequests),
		fmt.Sprintf("| bytes in flight of a session | %d bytes |", session.MaxRequestBytes),
		fmt.Sprintf("| reads open in a session | %d |", session.MaxReads),
		fmt.Sprintf("| sessions | %d |", session.MaxSessions),
		fmt.Sprintf("| time to say Hello | %.0f s |", session.HelloWithin.Seconds()),
		fmt.Sprintf("| time for one message | %.0f s |", session.MessageWithin.Seconds()),
		fmt.Sprintf("| time to take what is written | %.0f s |", session.SlowAfter.Seconds()),
		fmt.Sprintf("| time of silence | %.0f s |", session.IdleAfter.Seconds()),
	} {
		if !strings.Contains(strings.ReplaceAll(string(page), ",", ""), row) {
			t.Errorf("docs/protocol.md has no row %q", row)
		}
	}
}
