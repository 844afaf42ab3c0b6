package session_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

func TestWelcomeTellsTheLimits(t *testing.T) {
	h := newHost(t, newHeld(), testBudget, session.Times{Idle: time.Minute, Slow: 3 * time.Second})
	d := h.dial()
	d.write((&wire.Hello{VersionMin: 1, VersionMax: 9, Features: 1<<63 | wire.Features, Log: "held", Client: "payments"}).AppendTo(nil, 0))
	var w wire.Welcome
	d.expect(wire.TypeWelcome, &w)
	want := wire.Welcome{Version: 1, Features: wire.Features &^ wire.FeatureShm, Session: 1, Node: "held", Durable: 4096, Server: "walsidecar test",
		MaxMessageBytes: 1_310_720, MaxRequests: 8192, MaxRequestBytes: 4 << 20, MaxReads: 64, HeartbeatMS: 5000, IdleMS: 60_000, SlowMS: 3000}
	if w != want {
		t.Fatalf("got %+v\nwant %+v", w, want)
	}
	if d.s.Client() != "payments" || d.s.Peer() != (session.Peer{PID: 1, UID: 2, GID: 3}) || d.s.ID() != 1 {
		t.Fatalf("session %d of %s, %+v", d.s.ID(), d.s.Client(), d.s.Peer())
	}
}

// Hellos that are turned away, each with its own code.
func TestHelloRefused(t *testing.T) {
	full := newHeld()
	full.refuse = &wire.Error{Code: wire.CodeNotReady, Message: "recovering"}
	for name, c := range map[string]struct {
		backend *held
		budget  int64
		hello   []byte
		code    wire.Code
		says    string
	}{
		"newer version":   {newHeld(), testBudget, (&wire.Hello{VersionMin: 2, VersionMax: 7}).AppendTo(nil, 0), wire.CodeUnsupported, "versions 2 to 7"},
		"another log":     {newHeld(), testBudget, (&wire.Hello{VersionMin: 1, VersionMax: 1, Log: "other"}).AppendTo(nil, 0), wire.CodeWrongLog, `"other"`},
		"no memory":       {newHeld(), session.SessionBytes - 1, hello.AppendTo(nil, 0), wire.CodeOutOfMemory, "WALSIDECAR_MEMORY"},
		"backend refuses": {full, testBudget, hello.AppendTo(nil, 0), wire.CodeNotReady, "recovering"},
		"an HTTP client":  {newHeld(), testBudget, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), wire.CodeBadRequest, "not a client"},
		"wrong magic":     {newHeld(), testBudget, bytes.Replace(hello.AppendTo(nil, 0), []byte("WALS"), []byte("wals"), 1), wire.CodeBadRequest, "hello"},
		"a request first": {newHeld(), testBudget, (&wire.Ping{}).AppendTo(nil, 1), wire.CodeBadRequest, "hello"},
		"a huge hello":    {newHeld(), testBudget, (&wire.Hello{VersionMin: 1, VersionMax: 1, Client: strings.Repeat("x", 2000)}).AppendTo(nil, 0), wire.CodeBadRequest, "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newHost(t, c.backend, c.budget, session.Times{}).dial()
			d.write(c.hello)
			if bye := d.goodbye(c.code); !strings.Contains(bye.Message, c.says) {
				t.Errorf("goodbye says %q, want %q in it", bye.Message, c.says)
			}
		})
	}
}

// The conversation of one client arrives the same, however its bytes are cut.
func TestFramingDoesNotDependOnReads(t *testing.T) {
	talk := hello.AppendTo(nil, 0)
	talk = (&wire.StreamOpen{Create: true, Name: "orders"}).AppendTo(talk, 1)
	talk = (&wire.Ping{}).AppendTo(talk, 2)
	for i := range uint64(20) {
		talk = oneAppend(1, bytes.Repeat([]byte{byte(i)}, int(i*37))).AppendTo(talk, 3+i)
	}
	for _, size := range []int{1, 2, 3, 5, 7, 16, 17, 64, 100, 1000, len(talk)} {
		null := session.NewNull()
		d := newHost(t, null, testBudget, session.Times{}).dial()
		for rest := talk; len(rest) > 0; {
			n := min(size, len(rest))
			d.write(rest[:n])
			rest = rest[n:]
		}
		acked, others := 0, map[wire.Type]int{}
		for acked < 20 || others[wire.TypeStreamInfo] == 0 || others[wire.TypePong] == 0 {
			a, ok := d.receive()
			if !ok {
				t.Fatalf("pieces of %d bytes: the session ended", size)
			}
			if a.h.Type != wire.TypeAppendAck {
				others[a.h.Type]++
				continue
			}
			var ack wire.AppendAck
			if err := ack.Decode(a.h, a.body); err != nil {
				t.Fatal(err)
			}
			for _, e := range ack.Extents {
				if e.Request != uint64(3+acked) || e.Offset != uint64(acked) {
					t.Fatalf("pieces of %d bytes: extent %+v after %d acks", size, e, acked)
				}
				acked += int(e.Requests)
			}
		}
		d.leave()
		null.Close()
	}
}

// A request that cannot be understood is answered; the session goes on.
func TestBadRequestsAreAnswered(t *testing.T) {
	null := session.NewNull()
	defer null.Close()
	d := newHost(t, null, testBudget, session.Times{}).connect()
	bad := func(m encoder, change func([]byte), code wire.Code) {
		t.Helper()
		b := m.AppendTo(nil, d.next)
		change(b)
		d.next++
		d.write(b)
		if a := d.refused(code); a.Message == "" {
			t.Error("no reason")
		}
	}
	bad(&wire.Ping{}, func(b []byte) { b[4] = 40 }, wire.CodeUnsupported)                       // a type nobody knows
	bad(&wire.Ping{}, func(b []byte) { b[6] = 1 }, wire.CodeBadRequest)                         // a flag
	bad(&wire.StreamSeal{}, func(b []byte) { b[6] = 1 }, wire.CodeUnsupported)                  // of the null log
	bad(&wire.Append{}, func([]byte) {}, wire.CodeBadRequest)                                   // no entries
	bad(oneAppend(1, []byte("x")), func([]byte) {}, wire.CodeNotFound)                          // no such stream
	bad(oneAppend(1, []byte("x")), func(b []byte) { b[39] = 255 }, wire.CodeBadRequest)         // entry flags
	bad(&wire.StreamOpen{Name: strings.Repeat("n", 256)}, func([]byte) {}, wire.CodeBadRequest) // name too long
	bad(&wire.Read{Stream: 1, Credit: 1}, func([]byte) {}, wire.CodeUnsupported)                // nothing to read
	bad(&wire.Read{From: 9}, func([]byte) {}, wire.CodeBadRequest)                              // from where?
	bad(&wire.Replay{}, func(b []byte) { b[6] = 8 }, wire.CodeBadRequest)                       // a flag
	bad(&wire.Status{}, func(b []byte) { b[6] = 8 }, wire.CodeBadRequest)                       // a flag
	d.write((&wire.Credit{Bytes: 1}).AppendTo(nil, 12345))                                      // of a read that is over
	d.write((&wire.Cancel{}).AppendTo(nil, 12345))                                              // the same
	id := d.ask(&wire.Ping{})
	var pong wire.Pong
	if h := d.expect(wire.TypePong, &pong); h.Request != id {
		t.Errorf("pong of request %d, want %d", h.Request, id)
	}
}

// A client that does not keep to the framing is told so and dropped.
func TestP9_BadFramingEndsTheSession(t *testing.T) {
	for name, b := range map[string][]byte{
		"id left out":      (&wire.Ping{}).AppendTo(nil, 2),
		"id repeated":      (&wire.Ping{}).AppendTo((&wire.Ping{}).AppendTo(nil, 1), 1),
		"an append's id":   oneAppend(1, nil).AppendTo(nil, 7),
		"hello again":      hello.AppendTo(nil, 0),
		"a server message": (&wire.Pong{}).AppendTo(nil, 1),
		"length 0":         make([]byte, 16),
		"length 20":        {20, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"length 2 GiB":     {0, 0, 0, 128, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := newHost(t, newHeld(), testBudget, session.Times{}).connect()
			d.write(b)
			d.goodbye(wire.CodeBadRequest)
		})
	}
}

func TestStatusAndPing(t *testing.T) {
	d := newHost(t, newHeld(), testBudget, session.Times{}).connect()
	d.ask(&wire.Status{})
	var status wire.StatusJSON
	d.expect(wire.TypeStatusJSON, &status)
	if string(status.JSON) != `{"held":true}` {
		t.Errorf("status %s", status.JSON)
	}
	d.ask(&wire.Ping{})
	var pong wire.Pong
	d.expect(wire.TypePong, &pong)
	if pong.Durable != 4096 {
		t.Errorf("durable %d", pong.Durable)
	}
}

// The commit loop sees its messages in order, can put one back, and sees nothing
// of what the session answers itself.
func TestChunks(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{}).connect()
	var talk []byte
	for i := uint64(1); i <= 9; i += 3 {
		talk = (&wire.Ping{}).AppendTo(talk, i)
		talk = oneAppend(i, nil).AppendTo(talk, i+1)
		talk = (&wire.StreamTrim{Stream: i}).AppendTo(talk, i+2)
	}
	d.write(talk)
	s := <-b.ready
	var got []string
	for c := s.PopChunk(); c != nil; c = s.PopChunk() {
		if c.Session() != s {
			t.Error("a chunk of another session")
		}
		again := true
		for h, body, ok := c.Next(); ok; h, body, ok = c.Next() {
			if h.Request == 5 && again {
				again = false
				c.Unread()
				continue
			}
			if len(body) != int(h.Length)-wire.HeaderBytes {
				t.Errorf("request %d has a body of %d bytes", h.Request, len(body))
			}
			got = append(got, fmt.Sprintf("%s %d", h.Type, h.Request))
		}
		c.Release()
	}
	if want := "[append 2 stream_trim 3 append 5 stream_trim 6 append 8 stream_trim 9]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	for range got {
		s.AnswerTrimmed(1, &wire.Trimmed{})
	}
	s.Flush(true)
}

// A chunk's bytes stay as they are until it is released, whatever comes meanwhile;
// with both receive buffers at the commit loop the session takes no more.
func TestChunkBytesStayUntilRelease(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{}).connect()
	message := func(i uint64) []byte {
		return oneAppend(i, bytes.Repeat([]byte{byte(i)}, 40_000)).AppendTo(nil, i)
	}
	d.write(message(1))
	s := <-b.ready
	first := s.PopChunk()
	d.write(message(2))
	<-b.ready
	second := s.PopChunk()
	if !d.tryWrite(message(3)) {
		t.Fatal("nothing was taken while a part of the second buffer is free")
	}
	if d.tryWrite(message(4)) {
		t.Error("more was taken than two buffers hold")
	}
	check := func(c *session.Chunk, want byte) {
		t.Helper()
		h, body, ok := c.Next()
		var m wire.Append
		if !ok || m.Decode(h, body) != nil || !bytes.Equal(m.Entries[0].Payload, bytes.Repeat([]byte{want}, 40_000)) {
			t.Errorf("message %d is not what was sent", want)
		}
		c.Release()
	}
	check(second, 2)
	check(first, 1)
	<-b.ready
	check(s.PopChunk(), 3)
	d.write(message(4))
	<-b.ready
	check(s.PopChunk(), 4)
}

// Acks of one flush are one message, with as few extents as can be; other answers
// keep their place between them.
func TestAcksCollapse(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{}).connect()
	var talk []byte
	for i := uint64(1); i <= 7; i++ {
		talk = oneAppend(1, nil).AppendTo(talk, i)
	}
	d.write(talk)
	s := <-b.ready
	s.AckAppend(1, 1, 10, 1, 4096)
	s.AckAppend(2, 1, 11, 1, 4160)
	s.AckAppend(3, 1, 12, 1, 4224)
	s.AckAppend(4, 2, 0, 2, 4288)
	s.AnswerError(5, &wire.Error{Code: wire.CodeSealed})
	s.AckAppend(6, 2, 2, 2, 4352)
	s.AnswerResult(7, &wire.AppendResult{Position: 4400, Placed: []wire.Placed{{Stream: 1, Offset: 13, Count: 1}, {Stream: 2, Offset: 4, Count: 1}}})
	s.Flush(true)
	var ack wire.AppendAck
	d.expect(wire.TypeAppendAck, &ack)
	want := []wire.AckExtent{{Request: 1, Stream: 1, Offset: 10, Position: 4096, Requests: 3, Records: 1, Step: 64},
		{Request: 4, Stream: 2, Offset: 0, Position: 4288, Requests: 1, Records: 2}}
	if fmt.Sprint(ack.Extents) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", ack.Extents, want)
	}
	d.refused(wire.CodeSealed)
	d.expect(wire.TypeAppendAck, &ack)
	var r wire.AppendResult
	if h := d.expect(wire.TypeAppendResult, &r); h.Request != 7 || len(r.Placed) != 2 {
		t.Errorf("result of request %d: %+v", h.Request, r)
	}
	drain(s)
}

// drain takes what is left for the commit loop, as a loop would at its end.
func drain(s *session.Session) {
	for c := s.PopChunk(); c != nil; c = s.PopChunk() {
		c.Release()
	}
}

// Answers that a flush sends itself, whole, in part or not at all, and those that the
// door's goroutine writes come in the order in which they were given.
func TestDirectAnswersKeepTheirPlace(t *testing.T) {
	b := newHeld()
	d := newHost(t, b, testBudget, session.Times{}).connect()
	const requests = 64
	var talk []byte
	for i := uint64(1); i <= requests; i++ {
		talk = (&wire.StreamTrim{Stream: 1, Before: i}).AppendTo(talk, i)
	}
	d.write(talk)
	s := <-b.ready
	whole, part := 0, 0
	s.OfferDirect(func(b []byte) int {
		n := []int{0, len(b) / 3, len(b)}[(whole+part)%3]
		if n == len(b) {
			whole++
		} else {
			part++
		}
		d.took(b[:n])
		return n
	})
	for i := uint64(1); i <= requests; i++ {
		s.AnswerTrimmed(i, &wire.Trimmed{FirstOffset: i})
		s.Flush(i%5 != 0)
		for i%2 == 0 && s.Pending() > 0 { // else the next one finds some before it
			runtime.Gosched()
		}
	}
	for i := uint64(1); i <= requests; i++ {
		var m wire.Trimmed
		if h := d.expect(wire.TypeTrimmed, &m); h.Request != i || m.FirstOffset != i {
			t.Fatalf("answer %d is of request %d", i, h.Request)
		}
	}
	if whole == 0 || part == 0 {
		t.Errorf("%d flushes sent all, %d a part: the test tests nothing", whole, part)
	}
	drain(s)
}
