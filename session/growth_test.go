package session_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/session"
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

// growthVariable makes TestInstructionsPerAppend its own subject: SESSIONS,APPENDS.
const growthVariable = "WALSIDECAR_TEST_GROWTH_WORK"

// What a session takes for an append does not depend on how many there are. Instructions are
// counted by valgrind, in a process of its own, as the difference between many appends and few,
// so that starts do not count. WALSIDECAR_TEST_GROWTH asks for it.
func TestInstructionsPerAppend(t *testing.T) {
	if work := os.Getenv(growthVariable); work != "" {
		var sessions, appends int
		if _, err := fmt.Sscanf(work, "%d,%d", &sessions, &appends); err != nil {
			t.Fatal(err)
		}
		c := newCrowd(t, sessions)
		c.one.Entries = []wire.Entry{{Stream: 1, Payload: make([]byte, growthRecordBytes)}}
		for n := 0; n < appends; n += sessions * growthRequests {
			c.round()
		}
		return
	}
	if os.Getenv("WALSIDECAR_TEST_GROWTH") == "" {
		t.Skip("WALSIDECAR_TEST_GROWTH is not set: `make growth` does that")
	}
	const few, many = 100_000, 400_000
	perAppend := func(sessions int) float64 {
		return float64(instructions(t, sessions, many)-instructions(t, sessions, few)) / (many - few)
	}
	one := perAppend(1)
	t.Logf("1 session: %.0f instructions per append of %d B", one, growthRecordBytes)
	for _, sessions := range []int{16, 256} {
		got := perAppend(sessions)
		t.Logf("%d sessions: %.0f instructions per append, %.3f of one's", sessions, got, got/one)
		if got > 1.1*one {
			t.Errorf("%d sessions: %.0f instructions per append, with one session %.0f", sessions, got, one)
		}
	}
}

// instructions runs the work under valgrind and returns what it took.
func instructions(t *testing.T, sessions, appends int) uint64 {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", program, "-test.run=^"+t.Name()+"$")
	// One goroutine at a time, and no collection that comes when it likes.
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%d", growthVariable, sessions, appends), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no valgrind")
	}
	found := regexp.MustCompile(`I\s+refs:\s+([\d,]+)`).FindSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("valgrind: %v\n%s", err, out)
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(string(found[1]), ",", ""), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
