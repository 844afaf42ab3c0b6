package session_test

import (
	"errors"
	"io"
	"testing"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// FuzzSession feeds a session arbitrary bytes after its Hello, in pieces of
// arbitrary size, with a commit loop that refuses everything. Whatever comes, the
// session answers with whole messages, holds no more than it may, and gives back
// all of it.
func FuzzSession(f *testing.F) {
	talk := (&wire.StreamOpen{Create: true, Name: "orders"}).AppendTo(nil, 1)
	talk = oneAppend(1, []byte("a record")).AppendTo(talk, 2)
	talk = (&wire.Ping{}).AppendTo(talk, 3)
	talk = (&wire.Read{Stream: 1, Credit: 100}).AppendTo(talk, 4)
	f.Add(talk, uint16(1))
	f.Add(talk[:len(talk)-3], uint16(40))
	f.Add(oneAppend(1, make([]byte, 100_000)).AppendTo(nil, 1), uint16(5000))
	f.Add(oneAppend(1, make([]byte, 100_000)).AppendTo(nil, 1)[:70_000], uint16(65535))
	f.Add((&wire.Ping{}).AppendTo(talk, 3), uint16(17))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, piece uint16) {
		b := newHeld()
		h := newHost(t, b, testBudget, session.Times{})
		s, err := h.New(session.Peer{}, func() {})
		if err != nil {
			t.Fatal(err)
		}
		feed(s, hello.AppendTo(nil, 0), 1024)
		loop := refuser{t: t, s: s}
		for n := int(piece) + 1; len(in) > 0; in = in[min(n, len(in)):] {
			feed(s, in[:min(n, len(in))], n)
			loop.run()
		}
		s.Goodbye(wire.CodeDraining, "the end")
		if used := h.budget.Used(); used > session.SessionBytes+session.LargeBufferBytes+session.MaxUntakenBytes {
			t.Fatalf("holds %d bytes", used)
		}
		checkOutput(t, s)
		s.Finish()
	})
}

// refuser is a commit loop that refuses everything.
type refuser struct {
	t    *testing.T
	s    *session.Session
	last uint64 // request
	m    wire.Append
}

func (r *refuser) run() {
	for c := r.s.PopChunk(); c != nil; c = r.s.PopChunk() {
		for h, body, ok := c.Next(); ok; h, body, ok = c.Next() {
			if h.Request <= r.last || !h.Type.ForLoop() {
				r.t.Fatalf("request %d of type %s after %d", h.Request, h.Type, r.last)
			}
			r.last = h.Request
			_ = r.m.Decode(h, body)
			r.s.AnswerError(h.Request, &wire.Error{Code: wire.CodeReadOnly})
		}
		c.Release()
	}
	r.s.Flush(true)
}

// feed acts as a door that reads pieces of at most n bytes.
func feed(s *session.Session, in []byte, n int) {
	for len(in) > 0 {
		into, err := s.ReadBuffer()
		if err != nil {
			return
		}
		k := copy(into, in[:min(n, len(in))])
		in = in[k:]
		if s.Received(k) != nil {
			return
		}
	}
}

// checkOutput reads all that the session has to say: whole messages, a Goodbye at
// the end.
func checkOutput(t *testing.T, s *session.Session) {
	var out []byte
	for {
		first, second, err := s.NextWrite()
		if errors.Is(err, io.EOF) {
			break
		}
		out = append(append(out, first...), second...)
		s.Written(nil)
	}
	last := wire.TypeHello
	for len(out) > 0 {
		h, _, rest, ok, err := wire.Message(out)
		if err != nil || !ok {
			t.Fatalf("%d bytes at the end are no message: %v", len(out), err)
		}
		last, out = h.Type, rest
	}
	if last != wire.TypeGoodbye {
		t.Fatalf("the last message is %s", last)
	}
}
