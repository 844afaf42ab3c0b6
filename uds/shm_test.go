package uds

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// ringClient is a client whose appends go through shared memory.
type ringClient struct {
	*client
	*shm.Client
	nextID uint64
}

// ask asks for shared memory on a new connection; e is why not.
func askShm(t testing.TB, path string, features, ringBytes uint64) (c *ringClient, e *wire.Error) {
	t.Helper()
	c = &ringClient{client: dial(t, path), nextID: shm.FirstRequest}
	c.send((&wire.Hello{VersionMin: 1, VersionMax: 1, Features: features, Client: "ring"}).AppendTo(nil, 0))
	var w wire.Welcome
	c.expect(wire.TypeWelcome, &w)
	if w.Features != features&wire.FeatureShm {
		t.Fatalf("features %d of %d", w.Features, features)
	}
	c.send((&wire.ShmOpen{RingBytes: ringBytes}).AppendTo(nil, c.request()))
	b, oob := make([]byte, 4096), make([]byte, 256)
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(b, oob)
	if err != nil || flags&unix.MSG_CTRUNC != 0 {
		t.Fatalf("%v, flags %d", err, flags)
	}
	h, body, rest, ok, err := wire.Message(b[:n])
	if !ok || err != nil || len(rest) != 0 {
		t.Fatalf("%+v, %v, %d bytes more", h, err, len(rest))
	}
	if h.Type == wire.TypeError {
		e = new(wire.Error)
		if err := e.Decode(h, body); err != nil {
			t.Fatal(err)
		}
		return nil, e
	}
	var info wire.ShmInfo
	if err := info.Decode(h, body); err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d control messages, %v", len(messages), err)
	}
	files, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	if c.Client, err = shm.Attach(&info, files, shm.Adaptive, 0); err != nil {
		t.Fatal(err)
	}
	return c, nil
}

func connectRing(t testing.TB, path string, ringBytes uint64) *ringClient {
	t.Helper()
	c, e := askShm(t, path, wire.FeatureShm, ringBytes)
	if e != nil {
		t.Fatal(e)
	}
	return c
}

// put publishes an append and rings where that is needed.
func (c *ringClient) put(stream uint64, payload []byte) (id uint64) {
	m := wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payload}}}
	id = c.nextID
	c.nextID++
	dst, _ := c.Reserve(m.Bytes())
	m.AppendTo(dst[:0], id)
	c.Publish()
	if c.Kick(c.Position()) {
		c.RingBell()
	}
	return id
}

// acks waits for some.
func (c *ringClient) acks() []wire.AckExtent {
	c.t.Helper()
	if !c.Wait() {
		c.t.Fatal("interrupted")
	}
	all, err := c.Take(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

func TestAppendsThroughTheRing(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	c := connectRing(t, s.Path(), shm.MinRingBytes)
	defer c.Detach()
	if used := s.budget.Used(); used < shm.DoorBytes(shm.MinRingBytes) {
		t.Errorf("%d bytes of the budget are used", used)
	}
	id := c.stream("s")
	next, payload := uint64(0), make([]byte, 1000)
	for range 1000 { // some laps
		first := c.put(id, payload)
		for got := c.acks(); len(got) > 0; got = nil {
			e := got[0]
			if len(got) != 1 || e.Request != first || e.Stream != id || e.Offset != next || e.Requests != 1 || e.Records != 1 {
				t.Fatalf("%+v, want request %d, offset %d", got, first, next)
			}
		}
		next++
		if c.Released() != c.Position() {
			t.Fatalf("released %d of %d", c.Released(), c.Position())
		}
		c.Free(c.Position())
	}
	// A refusal comes over the socket, with the id of the ring, and releases the message.
	bad := c.put(99, nil)
	var e wire.Error
	if h := c.expect(wire.TypeError, &e); h.Request != bad || e.Code != wire.CodeNotFound {
		t.Errorf("%+v: %v", h, &e)
	}
	if c.Released() != c.Position() {
		t.Errorf("the refused message is not released")
	}
}

// Commands on the socket see everything that was published before them.
// However the sidecar waits, it finds what several clients publish, one at a time and
// many, with pauses and without, and serves the socket meanwhile.
func TestEveryWayOfWaiting(t *testing.T) {
	for name, waiting := range shm.Waitings {
		t.Run(name, func(t *testing.T) {
			s := startWaiting(t, testBudget, session.Times{}, nil, waiting)
			var group sync.WaitGroup
			for n := range 3 {
				c := connectRing(t, s.Path(), shm.MinRingBytes)
				stream := c.stream(fmt.Sprint("s", n))
				group.Go(func() {
					defer func() { c.Detach(); _ = c.conn.Close() }()
					sent, acked := 0, 0
					for round := range 100 {
						for range 1 + round%7*n {
							c.put(stream, []byte("x"))
							sent++
						}
						for acked < sent {
							c.Wait()
							extents, err := c.Take(nil)
							if err != nil {
								t.Error(err)
								return
							}
							for _, e := range extents {
								acked += int(e.Requests)
							}
						}
						c.Free(c.Position())
						if round%40 == 39 {
							time.Sleep(3 * time.Millisecond) // longer than anybody looks
						}
					}
					if lost := c.LostWakeUps(); lost > 0 {
						t.Errorf("%d wake-ups were lost", lost)
					}
				})
			}
			socket := connect(t, s.Path())
			stream := socket.stream("socket")
			for range 100 {
				socket.appendTo(stream, []byte("x"))
			}
			group.Wait()
		})
	}
}

func TestCommandsWaitForTheRing(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	c := connectRing(t, s.Path(), 0)
	defer c.Detach()
	id := c.stream("s")
	for round := range 50 {
		for range 20 {
			c.put(id, make([]byte, 5000))
		}
		c.send((&wire.StreamOpen{Name: "s"}).AppendTo(nil, c.request()))
		var info wire.StreamInfo
		c.expect(wire.TypeStreamInfo, &info)
		if want := uint64(20 * (round + 1)); info.NextOffset != want {
			t.Fatalf("the stream ends at %d, %d were published before", info.NextOffset, want)
		}
		c.Free(c.Position())
	}
}

func TestShmIsRefusedByName(t *testing.T) {
	s := start(t, session.SessionBytes*4, session.Times{}, nil)
	if _, e := askShm(t, s.Path(), wire.FeatureShm, 0); e == nil || e.Code != wire.CodeOutOfMemory {
		t.Errorf("without memory: %v", e)
	}
	if _, e := askShm(t, s.Path(), 0, 0); e == nil || e.Code != wire.CodeUnsupported {
		t.Errorf("without the feature bit: %v", e)
	}
	c := connect(t, s.Path()) // an old client
	id := c.stream("s")
	c.appendTo(id, []byte("x"))

	roomy := start(t, testBudget, session.Times{}, nil)
	r := connectRing(t, roomy.Path(), 0)
	defer r.Detach()
	r.send((&wire.ShmOpen{}).AppendTo(nil, r.request()))
	var e wire.Error
	if r.expect(wire.TypeError, &e); e.Code != wire.CodeBadRequest {
		t.Errorf("a second one: %v", &e)
	}
}

func TestP9_ViolationsEndTheSessionWithAReason(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	for name, do := range map[string]func(c *ringClient){
		"zeros":      func(c *ringClient) { c.Reserve(64) },
		"no request": func(c *ringClient) { c.nextID += 5; c.put(1, nil) },
		"a hello": func(c *ringClient) {
			dst, _ := c.Reserve(64)
			binary.LittleEndian.PutUint64(dst, 64|uint64(wire.TypeHello)<<32)
		},
	} {
		c := connectRing(t, s.Path(), shm.MinRingBytes)
		do(c)
		c.Publish()
		if c.Kick(c.Position()) {
			c.RingBell()
		}
		if bye := c.goodbye(); bye.Code != wire.CodeBadRequest || !strings.Contains(bye.Message, "shared memory") {
			t.Errorf("%s: goodbye %v %q", name, bye.Code, bye.Message)
		}
		if c.State() != wire.CodeBadRequest {
			t.Errorf("%s: state %v", name, c.State())
		}
		c.Detach()
	}
	s.host.Ended(func(code wire.Code, n uint64) {
		if code == wire.CodeBadRequest && n != 3 {
			t.Errorf("%d sessions are counted as ended for %v", n, code)
		}
	})
	settled(t, s, 0, runtime.NumGoroutine())
}

// The environment variables that make TestMain a client of the ring.
const (
	ringVictimSocket = "WALSIDECAR_TEST_RING_VICTIM"
	scribblerSocket  = "WALSIDECAR_TEST_SCRIBBLER"
	scribblerSeed    = "WALSIDECAR_TEST_SCRIBBLER_SEED"
)

// ringVictim appends as fast as it can.
func ringVictim(path string) {
	c := connectRing(&testing.B{}, path, 1<<20)
	var ends []uint64
	var extents []wire.AckExtent
	for n := 0; ; n++ {
		payload := make([]byte, n%5000)
		for !c.Fits(64+len(payload)) || len(ends) > 1000 {
			if !c.Wait() {
				os.Exit(1)
			}
			extents, _ = c.Take(extents[:0])
			for _, e := range extents {
				c.Free(ends[e.Requests-1])
				ends = ends[e.Requests:]
			}
		}
		c.put(1, payload)
		ends = append(ends, c.Position())
	}
}

// killAfter runs this test binary as a client of the kind that env says, and kills it a
// while after the sidecar has got to know it.
func killAfter(t *testing.T, s *sidecar, d time.Duration, env ...string) {
	t.Helper()
	before := s.host.Stats().Opened
	cmd := exec.Command(os.Args[0], "-test.run=none")
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(30 * time.Second); s.host.Stats().Opened == before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Error("the client did not say hello within 30 s")
			break
		}
	}
	time.Sleep(d)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// times is how often a costly thing is done: n, unless the variable says otherwise.
func times(variable string, n int) int {
	if v, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return v
	}
	return n
}

// Client processes killed while they write to their rings: nobody else notices, and
// nothing of them is left. WALSIDECAR_TEST_KILLS=1000 for the full number.
func TestP9_KilledOnTheRing(t *testing.T) {
	r := random(t)
	s := start(t, testBudget, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		goroutines, fds, maps := runtime.NumGoroutine(), openFiles(t), mappings(t)
		killed := times("WALSIDECAR_TEST_KILLS", 30)
		for range killed {
			killAfter(t, s, time.Duration(r.IntN(80))*time.Millisecond, ringVictimSocket+"="+s.Path())
		}
		settled(t, s, 1, goroutines)
		nothingLeft(t, s, fds, maps)
	})
}

// mappings counts the mappings of shared memory.
func mappings(t *testing.T) int {
	t.Helper()
	all, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(all), "walsidecar-")
}

func nothingLeft(t *testing.T, s *sidecar, fds, maps int) {
	t.Helper()
	var nowFDs, nowMaps int
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if nowFDs, nowMaps = openFiles(t), mappings(t); nowFDs <= fds && nowMaps <= maps {
			return
		}
	}
	t.Errorf("%d open files and %d mappings, %d and %d before", nowFDs, nowMaps, fds, maps)
}

// scribble does at random whatever a process can do that owns a ring.
func scribble(path string) {
	seed, _ := strconv.ParseUint(os.Getenv(scribblerSeed), 10, 64)
	r := rand.New(rand.NewPCG(seed, 2))
	for {
		ended := make(chan struct{})
		go func() { // which ends when the sidecar hangs up
			defer close(ended)
			scribbleOnce(path, r)
		}()
		<-ended
	}
}

func scribbleOnce(path string, r *rand.Rand) {
	c, e := askShm(&testing.B{}, path, wire.FeatureShm, 1<<uint(16+r.IntN(5)))
	if e != nil {
		return
	}
	go changeWhileRead(c)
	all := c.Memory()
	until := time.Now().Add(time.Duration(r.IntN(30)) * time.Millisecond)
	for time.Now().Before(until) && c.State() == wire.CodeOK {
		mischief(r, c, all)
	}
	if r.IntN(2) == 0 {
		_ = c.conn.Close() // and keeps the memory
		for range 100 {
			mischief(r, c, all)
		}
	}
}

// changeWhileRead changes payloads and headers behind what is published.
func changeWhileRead(c *ringClient) {
	ring := c.Ring()
	for i := 0; c.State() == wire.CodeOK; i += 24 {
		ring[i%len(ring)]++
		if i%(1<<16) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func mischief(r *rand.Rand, c *ringClient, all []byte) {
	switch n := r.IntN(100); {
	case n < 90: // behave
		if size := r.IntN(4000); c.Fits(64 + size) {
			c.put(1, make([]byte, size))
		} else {
			c.Free(c.Released())
		}
	case n < 92:
		all[r.IntN(len(all))] = byte(r.Uint32())
	case n < 93: // the tail
		binary.LittleEndian.PutUint64(all[128:], r.Uint64()>>uint(r.IntN(64)))
	case n < 94: // a length
		binary.LittleEndian.PutUint32(c.Ring()[8*r.IntN(len(c.Ring())/8):], r.Uint32()>>uint(r.IntN(32)))
	case n < 95: // the wish to be woken
		binary.LittleEndian.PutUint32(all[256:], r.Uint32())
	case n < 97:
		c.RingBell()
	case n < 98:
		_ = unix.Madvise(all[:len(all)&^4095], unix.MADV_REMOVE)
	case n < 99:
		_, _ = c.conn.Write((&wire.Ping{}).AppendTo(nil, c.request()))
	default:
		time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
	}
}

// Processes that scribble over all they can write, punch holes, ring without reason,
// hang up and keep the memory: nobody else notices.
func TestP9_ScribblingClients(t *testing.T) {
	r := random(t)
	s := start(t, testBudget, session.Times{}, nil)
	keepsItsLatency(t, s, func() {
		goroutines, fds, maps := runtime.NumGoroutine(), openFiles(t), mappings(t)
		violations := func() (ended uint64) {
			s.host.Ended(func(code wire.Code, n uint64) {
				if code == wire.CodeBadRequest {
					ended = n
				}
			})
			return ended
		}
		const enough = 60
		began, ended := time.Now(), uint64(0)
		for i := range 1000 {
			if i >= times("WALSIDECAR_TEST_SCRIBBLERS", 6) && (ended >= enough || time.Since(began) > time.Minute) {
				break
			}
			killAfter(t, s, 700*time.Millisecond, scribblerSocket+"="+s.Path(), fmt.Sprintf("%s=%d", scribblerSeed, r.Uint64()))
			ended = violations()
		}
		if ended < enough {
			t.Errorf("only %d violations in %d sessions", ended, s.host.Stats().Opened)
		}
		t.Logf("%d sessions, %d violations", s.host.Stats().Opened, ended)
		settled(t, s, 1, goroutines)
		nothingLeft(t, s, fds, maps)
	})
}
