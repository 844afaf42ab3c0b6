package session_test

import (
	"testing"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/tools/growth"
	"github.com/walsidecar/walsidecar/wire"
)

const (
	growthRequests    = 16 // that a session sends at once
	growthRecordBytes = 256
)

// crowd is sessions without a transport, and their commit loop, in one goroutine: nothing
// is ever woken.
type crowd struct {
	t       *testing.T
	backend *held
	all     []*session.Session
	sent    uint64 // requests of each
	acked   uint64 // records
	one     wire.Append
	batch   wire.Append
	message []byte
}

// forgetful is held without a look at who left.
type forgetful struct{ *held }

func (forgetful) Closed(*session.Session) {}

func newCrowd(t *testing.T, sessions int) *crowd {
	c := &crowd{t: t, backend: newHeld()}
	host := newHost(t, forgetful{c.backend}, 1<<30, session.Times{})
	for range sessions {
		s, err := host.New(session.Peer{}, func() {})
		c.must(err)
		t.Cleanup(func() { s.Gone(); s.Finish() })
		c.all = append(c.all, s)
		c.send(s, hello.AppendTo(nil, 0))
		c.take(s)
	}
	return c
}

// must has no Helper: that costs more than an append.
func (c *crowd) must(err error) {
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *crowd) send(s *session.Session, b []byte) {
	for len(b) > 0 {
		into, err := s.ReadBuffer()
		c.must(err)
		n := copy(into, b)
		b = b[n:]
		c.must(s.Received(n))
	}
}

// take is what a transport does with answers.
func (c *crowd) take(s *session.Session) {
	_, _, err := s.NextWrite()
	c.must(err)
	s.Written(nil)
}

// round has every session send, and every append answered.
func (c *crowd) round() {
	for _, s := range c.all {
		c.message = c.message[:0]
		for i := range uint64(growthRequests) {
			c.message = c.one.AppendTo(c.message, c.sent+i+1)
		}
		c.send(s, c.message)
	}
	c.sent += growthRequests
	for len(c.backend.ready) > 0 {
		s := <-c.backend.ready
		for chunk := s.PopChunk(); chunk != nil; chunk = s.PopChunk() {
			for h, body, ok := chunk.Next(); ok; h, body, ok = chunk.Next() {
				c.must(c.batch.Decode(h, body))
				s.AckAppend(h.Request, 1, c.acked, 1, 512*c.acked)
				c.acked++
			}
			chunk.Release()
		}
		s.Flush(true)
	}
	for _, s := range c.all {
		c.take(s)
	}
}

// What a session takes for an append does not depend on how many there are.
func TestInstructionsPerAppend(t *testing.T) {
	growth.InstructionsPerAppend(t, "sessions", []int{16, 256}, func(sessions, appends int) {
		c := newCrowd(t, sessions)
		c.one.Entries = []wire.Entry{{Stream: 1, Payload: make([]byte, growthRecordBytes)}}
		for n := 0; n < appends; n += sessions * growthRequests {
			c.round()
		}
	})
}
