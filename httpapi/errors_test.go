package httpapi

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// scripted is a backend that answers each request of the commit loop as the test says.
// Answers are not flushed before release is closed.
type scripted struct {
	mu      sync.Mutex
	answer  func(s *session.Session, h wire.Header, body []byte)
	release chan struct{}
}

func newScripted(answer func(s *session.Session, h wire.Header, body []byte)) *scripted {
	b := &scripted{answer: answer, release: make(chan struct{})}
	close(b.release)
	return b
}

func (b *scripted) Welcome() wire.Welcome         { return wire.Welcome{Node: "scripted"} }
func (b *scripted) Reader() *reader.Reader        { return nil }
func (b *scripted) StatusJSON() []byte            { return []byte(`{}`) }
func (b *scripted) Opened(*session.Session) error { return nil }
func (b *scripted) Closed(*session.Session)       {}

func (b *scripted) Serve(s *session.Session) { b.Ready(s) }

// Listen is not called: HTTP has no shared memory.
func (b *scripted) Listen(*shm.Bell, func() time.Duration) func() { panic("no bells here") }

func (b *scripted) Ready(s *session.Session) {
	go func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for c := s.PopChunk(); c != nil; c = s.PopChunk() {
			for h, body, ok := c.Next(); ok; h, body, ok = c.Next() {
				b.answer(s, h, body)
			}
			c.Release()
			<-b.release
			s.Flush(true)
		}
	}()
}

// openAs answers what comes before an append, and reports whether it did.
func openAs(s *session.Session, h wire.Header) bool {
	switch h.Type {
	case wire.TypeStreamOpen:
		s.AnswerStream(h.Request, &wire.StreamInfo{Stream: wire.Stream{ID: 7, Name: "s"}})
	case wire.TypeProducerOpen:
		s.AnswerProducer(h.Request, &wire.ProducerInfo{ID: 9, Name: "p"})
	default:
		return false
	}
	return true
}

// Every error of the table has its status here, and keeps all that is known of it.
func TestEveryErrorOfTheTable(t *testing.T) {
	var code wire.Code
	r := newRigOver(t, newScripted(func(s *session.Session, h wire.Header, _ []byte) {
		if !openAs(s, h) {
			s.AnswerError(h.Request, &wire.Error{Code: code, Known: wire.FlagEntry | wire.FlagActual | wire.FlagOffset | wire.FlagPosition,
				Entry: 3, Actual: 1<<64 - 1, Offset: 5, Position: 6, Name: "pin", Message: "the message of " + code.String()})
		}
	}), session.NewBudget(testBudget))
	for _, info := range wire.Errors() {
		if info.Code == wire.CodeOK || info.Code == wire.CodeDuplicate {
			continue // no error is answered with them
		}
		code = info.Code
		a := r.do("POST", "/v1/streams/s/records", "x")
		e := a.refused(code)
		if *e.Entry != 3 || *e.Actual != 1<<64-1 || *e.Offset != 5 || *e.Position != 6 || e.Stream != "pin" || e.Hint != info.Hint ||
			e.Message != "the message of "+info.Name || e.Retriable != info.Retriable || e.OutcomeUnknown != info.OutcomeUnknown {
			t.Errorf("%s: %s", info.Name, a.body)
		}
		if again := a.header.Get("Retry-After"); (again != "") != info.Retriable {
			t.Errorf("%s: Retry-After %q", info.Name, again)
		}
	}
}

// An append that was sent and not answered has an unknown outcome; a question has not.
func TestUnansweredRequestsHaveAnUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		bye          wire.Code
		method, path string
		want         wire.Code
	}{
		{wire.CodeDraining, "POST", "/v1/streams/s/records", wire.CodeOutcomeUnknown},
		{wire.CodeLogFailed, "POST", "/v1/streams/s/records", wire.CodeLogFailed},
		{wire.CodeDraining, "GET", "/v1/streams", wire.CodeDraining},
		{wire.CodeDraining, "DELETE", "/v1/streams/s", wire.CodeOutcomeUnknown},
	} {
		asked := make(chan struct{}, 1)
		r := newRigOver(t, newScripted(func(s *session.Session, h wire.Header, _ []byte) {
			if !openAs(s, h) {
				asked <- struct{}{}
			}
		}), session.NewBudget(testBudget))
		go func() {
			<-asked
			r.host.Goodbye(c.bye, "the end")
		}()
		if e := r.do(c.method, c.path, "x").refused(c.want); !strings.Contains(e.Message, "the end") {
			t.Errorf("%+v", e)
		}
		r.close()
	}
}

// No answer leaves before the log is durable up to what it was decided on: the door adds
// nothing of its own.
func TestP11_NoAnswerBeforeItsRelease(t *testing.T) {
	b := newScripted(func(s *session.Session, h wire.Header, _ []byte) {
		switch {
		case openAs(s, h):
		case h.Type == wire.TypeAppend:
			s.AckAppend(h.Request, 7, 0, 1, 4096)
		case h.Type == wire.TypeStreamList:
			s.AnswerPage(h.Request, &wire.StreamPage{})
		default:
			s.AnswerError(h.Request, &wire.Error{Code: wire.CodeNotFound})
		}
	})
	b.release = make(chan struct{})
	r := newRigOver(t, b, session.NewBudget(testBudget))
	answers := make(chan reply)
	requests := [][2]string{{"POST", "/v1/streams/s/records"}, {"PUT", "/v1/streams/s"}, {"GET", "/v1/streams"}, {"GET", "/v1/producers/p"}}
	for _, q := range requests {
		go func() { answers <- r.do(q[0], q[1], "x") }()
	}
	select {
	case a := <-answers:
		t.Fatalf("answered too early: %d %s", a.status, a.body)
	case <-time.After(200 * time.Millisecond):
	}
	close(b.release)
	for range requests {
		<-answers
	}
}

// A full log refuses with 507, names what pins it and what to do; it heals by a trim.
func TestP12_AFullLogSaysSoAndHeals(t *testing.T) {
	r := newRig(t)
	r.append("pin", "the first")
	payload := strings.Repeat("x", 500<<10)
	full := func() errorObject {
		for i := 0; ; i++ {
			if i > 1000 {
				t.Fatal("the log takes everything")
			}
			if a := r.do("POST", "/v1/streams/s/records", payload); a.status != 200 {
				return a.refused(wire.CodeLogFull)
			}
		}
	}
	for round := range 3 {
		e := full()
		if e.Stream != "pin" || *e.Offset != uint64(round) || !strings.Contains(e.Hint, "trim") || !e.Retriable || e.OutcomeUnknown {
			t.Fatalf("%+v", e)
		}
		lines := objects[errorObject](t, r.do("POST", "/v1/streams/s/records", payload+"\n"+payload, "Content-Type: application/x-ndjson").ok().body)
		if len(lines) != 2 || lines[0].Code != "log_full" || lines[1].Code != "log_full" {
			t.Fatalf("%+v", lines)
		}
		r.do("GET", "/v1/streams", "").ok() // a full log still answers
		r.do("POST", "/v1/streams/pin/trim", `{"before":1000000}`).ok()
		r.do("POST", "/v1/streams/s/trim", `{"before":1000000}`).ok()
		r.await(func() bool { return r.do("POST", "/v1/streams/pin/records", fmt.Sprint(round)).status == 200 }, func() string { return "it does not heal" })
	}
}

func TestAnUnknownLogIsRefused(t *testing.T) {
	r := newRig(t)
	r.do("GET", "/v1/health", "", "Walsidecar-Log: elsewhere").refused(wire.CodeWrongLog)
	r.do("GET", "/v1/health", "", "Walsidecar-Log: here").ok()
	r.do("GET", "/v1/health", "").ok()
	r.do("GET", "/v1/nothing", "").refused(wire.CodeNotFound)
	r.do("GET", "/v1/streams/", "").refused(wire.CodeNotFound)
}
