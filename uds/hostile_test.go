package uds

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0: WALSIDECAR_SEED, else a new one")

// random returns the test's random source and says how to repeat it.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	n := *seed
	if n == 0 {
		n, _ = strconv.ParseUint(os.Getenv("WALSIDECAR_SEED"), 10, 64)
	}
	if n == 0 {
		n = rand.Uint64()
	}
	t.Logf("seed %d", n)
	return rand.New(rand.NewPCG(n, 1))
}

// bystander appends one record after the other and remembers how long each took.
type bystander struct {
	c      *client
	stream uint64
	stop   chan struct{}
	took   chan []time.Duration
}

func newBystander(t *testing.T, path string) *bystander {
	b := &bystander{c: connect(t, path)}
	b.stream = b.c.stream("bystander")
	return b
}

// measure appends until the returned function is called, which tells the times.
func (b *bystander) measure() func() []time.Duration {
	b.stop, b.took = make(chan struct{}), make(chan []time.Duration)
	go func() {
		var all []time.Duration
		for {
			select {
			case <-b.stop:
				b.took <- all
				return
			default:
			}
			start := time.Now()
			b.c.appendTo(b.stream, []byte("bystander"))
			all = append(all, time.Since(start))
			time.Sleep(200 * time.Microsecond)
		}
	}()
	return func() []time.Duration { close(b.stop); return <-b.took }
}

// keepsItsLatency runs hostile while another session appends. That session must
// not become slower than a busy machine explains: its median is compared with the
// one before, its maximum with a bound that no blocked session would keep.
func keepsItsLatency(t *testing.T, s *sidecar, hostile func()) {
	t.Helper()
	b := newBystander(t, s.Path())
	done := b.measure()
	time.Sleep(300 * time.Millisecond)
	before := done()
	done = b.measure()
	hostile()
	during := done()
	slices.Sort(before)
	slices.Sort(during)
	p50, p50Before, worst := during[len(during)/2], before[len(before)/2], during[len(during)-1]
	t.Logf("median %v before, %v meanwhile, maximum %v of %d", p50Before, p50, worst, len(during))
	if p50 > 10*p50Before+5*time.Millisecond || worst > 10*time.Second {
		t.Errorf("the other session suffered")
	}
}

// settled waits until no session but those of want is left, and no goroutine of
// others.
func settled(t *testing.T, s *sidecar, sessions, goroutines int) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		n, g, used := s.host.Stats().Sessions, runtime.NumGoroutine(), s.budget.Used()
		if n == sessions && g <= goroutines && used <= int64(sessions)*session.SessionBytes {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d sessions, %d goroutines (want %d), %d bytes of the budget are left", n, g, goroutines, used)
		}
	}
}

// Random bytes instead of a Hello, and instead of requests.
func TestP9_Garbage(t *testing.T) {
	r := random(t)
	s := start(t, testBudget, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		for i := range 300 {
			c := dial(t, s.Path())
			b := make([]byte, r.IntN(4096))
			for j := range b {
				b[j] = byte(r.Uint32())
			}
			if i%2 == 0 {
				b = append((&wire.Hello{VersionMin: 1, VersionMax: 1}).AppendTo(nil, 0), b...)
			}
			_, _ = c.conn.Write(b)
			_ = c.conn.CloseWrite()
			for _, _, err := c.receive(); err == nil; _, _, err = c.receive() {
			}
			_ = c.conn.Close()
		}
		settled(t, s, 1, goroutines)
	})
}

// Real requests with one field changed: answered, or the end of that session.
func TestP9_BrokenRequests(t *testing.T) {
	r := random(t)
	s := start(t, testBudget, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		for range 300 {
			c := connect(t, s.Path())
			var talk []byte
			for i := uint64(1); i <= 20; i++ {
				talk = (&wire.Append{HasProducer: i%2 == 0, Entries: []wire.Entry{{Stream: 1, HasExpect: i%3 == 0, Token: []byte("t"),
					Headers: wire.AppendHeader(nil, "k", []byte("v")), Payload: make([]byte, r.IntN(300))}}}).AppendTo(talk, i)
			}
			for range 1 + r.IntN(3) {
				talk[r.IntN(len(talk))] ^= 1 << r.IntN(8)
			}
			_, _ = c.conn.Write(talk)
			_ = c.conn.CloseWrite()
			for _, _, err := c.receive(); err == nil; _, _, err = c.receive() {
			}
			_ = c.conn.Close()
		}
		settled(t, s, 1, goroutines)
	})
}

// Lengths that are wrong end that connection with a reason.
func TestP9_WrongLengths(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		for _, length := range []uint32{0, 1, 8, 15, 17, 23, wire.MaxMessageBytes + 8, 1 << 31, 1<<32 - 1} {
			c := connect(t, s.Path())
			b := (&wire.Ping{}).AppendTo(nil, 1)
			b[0], b[1], b[2], b[3] = byte(length), byte(length>>8), byte(length>>16), byte(length>>24)
			c.send(b)
			if bye := c.goodbye(); bye.Code != wire.CodeBadRequest {
				t.Errorf("length %d: goodbye %s", length, bye.Code)
			}
		}
	})
}

// Clients that send half a message and wait hold little, and not for long.
func TestP9_HalfFrames(t *testing.T) {
	s := start(t, 64*(session.SessionBytes+session.LargeBufferBytes), session.Times{Message: 300 * time.Millisecond, Hello: 300 * time.Millisecond}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		whole := (&wire.Append{Entries: []wire.Entry{{Stream: 1, Payload: make([]byte, 1<<20)}}}).AppendTo(nil, 1)
		var all []*client
		for i := range 50 {
			if i%2 == 0 {
				c := dial(t, s.Path())
				c.send((&wire.Hello{VersionMin: 1, VersionMax: 1}).AppendTo(nil, 0)[:1+i%30])
				all = append(all, c)
				continue
			}
			c := connect(t, s.Path())
			c.send(whole[:1+i*200])
			all = append(all, c)
		}
		for _, c := range all {
			if bye := c.goodbye(); bye.Code != wire.CodeSlowClient {
				t.Errorf("goodbye %s", bye.Code)
			}
			_ = c.conn.Close()
		}
		settled(t, s, 1, goroutines)
	})
}

// Clients that send and send, and never read an answer, are dropped.
func TestP9_AcksNeverRead(t *testing.T) {
	s := start(t, testBudget, session.Times{Slow: 500 * time.Millisecond, Goodbye: 100 * time.Millisecond}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		var dropped atomic.Int32
		done := make(chan struct{})
		const clients = 10
		for i := range clients {
			c := connect(t, s.Path())
			kinds := []interface{ AppendTo([]byte, uint64) []byte }{&wire.Append{Entries: []wire.Entry{{Stream: 99}}}, &wire.Ping{}, &wire.Status{}, &wire.StreamOpen{Create: true, Name: "s"}}
			go func() {
				defer func() { done <- struct{}{} }()
				var out []byte
				for id := uint64(1); ; {
					out = out[:0]
					for range 100 {
						out = kinds[i%len(kinds)].AppendTo(out, id)
						id++
					}
					_ = c.conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
					if _, err := c.conn.Write(out); err != nil {
						if os.IsTimeout(err) {
							return
						}
						dropped.Add(1)
						_ = c.conn.Close()
						return
					}
				}
			}()
		}
		for range clients {
			<-done
		}
		if n := dropped.Load(); n != clients {
			t.Errorf("%d of %d were dropped", n, clients)
		}
		settled(t, s, 1, goroutines)
	})
}

// A thousand connections at once: those that fit are served, the rest is told why
// not; all memory comes back.
func TestP9_ThousandConnections(t *testing.T) {
	raiseFileLimit(t)
	const clients, fit = 1000, 500
	s := start(t, fit*session.SessionBytes, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		var all []*client
		served, refused := 0, 0
		for range clients {
			c := dial(t, s.Path())
			_, _ = c.conn.Write((&wire.Hello{VersionMin: 1, VersionMax: 1}).AppendTo(nil, 0))
			h, body, err := c.receive()
			switch {
			case err != nil:
				t.Fatal(err)
			case h.Type == wire.TypeWelcome:
				served++
			default:
				var bye wire.Goodbye
				if err := bye.Decode(h, body); err != nil || bye.Code != wire.CodeOutOfMemory {
					t.Fatalf("%s: %v %s", h.Type, err, bye.Code)
				}
				refused++
			}
			all = append(all, c)
		}
		if served != fit-1 || served+refused != clients { // the bystander is one too
			t.Errorf("%d served, %d refused", served, refused)
		}
		for _, c := range all {
			_ = c.conn.Close()
		}
		settled(t, s, 1, goroutines)
	})
}

// More connections than the process takes at all are turned away at once.
func TestP9_TooManyConnections(t *testing.T) {
	raiseFileLimit(t)
	s := start(t, testBudget, session.Times{Hello: time.Minute}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		var all []*client
		for range session.MaxSessions - 1 {
			all = append(all, dial(t, s.Path()))
		}
		if bye := dial(t, s.Path()).goodbye(); bye.Code != wire.CodeTooManySessions {
			t.Errorf("goodbye %s", bye.Code)
		}
		for _, c := range all {
			_ = c.conn.Close()
		}
		settled(t, s, 1, goroutines)
	})
}

// raiseFileLimit makes room for many sockets.
func raiseFileLimit(t *testing.T) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const need = 3*session.MaxSessions + 200
	if limit.Max < need {
		t.Skipf("at most %d open files, %d are needed", limit.Max, need)
	}
	limit.Cur = max(limit.Cur, need)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// The environment variable that makes TestMain a client to be killed.
const victimSocket = "WALSIDECAR_TEST_VICTIM"

func TestMain(m *testing.M) {
	if path := os.Getenv(victimSocket); path != "" {
		victim(path)
	}
	if path := os.Getenv(ringVictimSocket); path != "" {
		ringVictim(path)
	}
	if path := os.Getenv(scribblerSocket); path != "" {
		scribble(path)
	}
	os.Exit(m.Run())
}

// victim appends as fast as it can, in writes that end anywhere in a message.
func victim(path string) {
	c := connect(&testing.B{}, path)
	var out []byte
	for id := uint64(1); ; {
		for range 100 {
			out = (&wire.Append{Entries: []wire.Entry{{Stream: 1, Payload: make([]byte, id%5000)}}}).AppendTo(out, id)
			id++
		}
		n := len(out) - int(id%97)
		if _, err := c.conn.Write(out[:n]); err != nil {
			os.Exit(1)
		}
		out = append(out[:0], out[n:]...)
	}
}

// Client processes killed in the middle of a message: nobody else notices, and
// nothing of them is left.
func TestP9_KilledMidFrame(t *testing.T) {
	r := random(t)
	s := start(t, testBudget, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		goroutines := runtime.NumGoroutine()
		fds := openFiles(t)
		for range 20 {
			killAfter(t, s, time.Duration(r.IntN(60))*time.Millisecond, victimSocket+"="+s.Path())
		}
		settled(t, s, 1, goroutines)
		if now := openFiles(t); now > fds {
			t.Errorf("%d open files, %d before", now, fds)
		}
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
