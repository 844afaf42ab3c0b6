package uds

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// sidecar is a Server over the null log.
type sidecar struct {
	*Server
	host   *session.Host
	budget *session.Budget
}

// start serves a null log on a socket of its own until the test ends. change may
// adapt the options.
func start(t testing.TB, budgetBytes int64, times session.Times, change func(*Options)) *sidecar {
	t.Helper()
	return startWaiting(t, budgetBytes, times, change, shm.Adaptive)
}

func startWaiting(t testing.TB, budgetBytes int64, times session.Times, change func(*Options), waiting shm.Waiting) *sidecar {
	t.Helper()
	null := session.NewNull()
	s := &sidecar{budget: session.NewBudget(budgetBytes)}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	s.host = session.NewHost(session.Options{
		Log: func(selector string) session.Backend {
			if selector != "" {
				return nil
			}
			return null
		},
		Budget: s.budget, Server: "walsidecar test", Logger: quiet, Times: times, Waiting: waiting,
	})
	access, err := OwnAccess()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Path: filepath.Join(t.TempDir(), "wal.sock"), Access: access, Host: s.host, Logger: quiet}
	if change != nil {
		change(&o)
	}
	if s.Server, err = Listen(o); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		s.Drain()
		s.host.Close()
		s.Close()
		null.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		// The ring of a client that was sent away stays for two seconds.
		used := s.budget.Used()
		for until := time.Now().Add(10 * time.Second); used != 0 && time.Now().Before(until); used = s.budget.Used() {
			time.Sleep(10 * time.Millisecond)
		}
		if used != 0 {
			t.Errorf("%d bytes of the budget are in use after the last session", used)
		}
	})
	return s
}

// client is the other end, message by message.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	in   *bufio.Reader
	buf  []byte
	next uint64
}

// dial connects without a word.
func dial(t testing.TB, path string) *client {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	for range 1000 {
		if !errors.Is(err, unix.EAGAIN) { // the backlog is full
			break
		}
		time.Sleep(time.Millisecond)
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{t: t, conn: c, in: bufio.NewReaderSize(c, 64<<10), next: 1}
}

// connect dials and exchanges Hello and Welcome.
func connect(t testing.TB, path string) *client {
	t.Helper()
	c := dial(t, path)
	c.send((&wire.Hello{VersionMin: 1, VersionMax: 1, Client: t.Name()}).AppendTo(nil, 0))
	var w wire.Welcome
	c.expect(wire.TypeWelcome, &w)
	if !w.NotDurable {
		t.Fatal("a null log must say that it is not durable")
	}
	return c
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next message; the body is valid until the next call.
func (c *client) receive() (wire.Header, []byte, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	var head [wire.HeaderBytes]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return wire.Header{}, nil, err
	}
	h, err := wire.DecodeHeader(head[:])
	if err != nil {
		return h, nil, err
	}
	if n := int(h.Length); cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	body := c.buf[:h.Length-wire.HeaderBytes]
	_, err = io.ReadFull(c.in, body)
	return h, body, err
}

// expect receives a message of the type into m.
func (c *client) expect(t wire.Type, m interface {
	Decode(wire.Header, []byte) error
}) wire.Header {
	c.t.Helper()
	h, body, err := c.receive()
	if err != nil {
		c.t.Fatalf("waiting for %s: %v", t, err)
	}
	if h.Type != t {
		var e wire.Error
		_ = e.Decode(h, body)
		c.t.Fatalf("got %s, want %s: %v", h.Type, t, &e)
	}
	if err := m.Decode(h, body); err != nil {
		c.t.Fatal(err)
	}
	return h
}

// goodbye waits for the Goodbye, skipping what comes before, and then for the end
// of the connection.
func (c *client) goodbye() wire.Goodbye {
	c.t.Helper()
	var bye wire.Goodbye
	for {
		h, body, err := c.receive()
		if err != nil {
			c.t.Fatalf("waiting for goodbye: %v", err)
		}
		if h.Type == wire.TypeGoodbye {
			if err := bye.Decode(h, body); err != nil {
				c.t.Fatal(err)
			}
			break
		}
	}
	if _, _, err := c.receive(); err == nil {
		c.t.Fatal("a message after the goodbye")
	}
	return bye
}

// request takes the next request id.
func (c *client) request() uint64 {
	c.next++
	return c.next - 1
}

// stream opens a stream.
func (c *client) stream(name string) uint64 {
	c.t.Helper()
	c.send((&wire.StreamOpen{Create: true, Name: name}).AppendTo(nil, c.request()))
	var info wire.StreamInfo
	c.expect(wire.TypeStreamInfo, &info)
	return info.ID
}

// appendTo appends one record and waits for its ack.
func (c *client) appendTo(stream uint64, payload []byte) wire.AckExtent {
	c.t.Helper()
	m := wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payload}}}
	c.send(m.AppendTo(nil, c.request()))
	var ack wire.AppendAck
	c.expect(wire.TypeAppendAck, &ack)
	if len(ack.Extents) != 1 || ack.Extents[0].Requests != 1 {
		c.t.Fatalf("%d extents for one append", len(ack.Extents))
	}
	return ack.Extents[0]
}

const testBudget = 64 << 20

// One client, one stream: offsets are dense, acks carry the request.
func TestAppendAndAck(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	c := connect(t, s.Path())
	id := c.stream("orders")
	for i := range uint64(10) {
		e := c.appendTo(id, []byte("a record"))
		if e.Request != c.next-1 || e.Stream != id || e.Offset != i || e.Records != 1 {
			t.Fatalf("append %d was acked as %+v", i, e)
		}
	}
}

// Thousands in flight: the acks of one read come as few extents.
func TestPipelinedAcksCollapse(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	c := connect(t, s.Path())
	id := c.stream("orders")
	const n = 5000
	var out []byte
	m := wire.Append{Entries: []wire.Entry{{Stream: id, Payload: make([]byte, 100)}}}
	first := c.next
	for range n {
		out = m.AppendTo(out, c.request())
	}
	go func() { _, _ = c.conn.Write(out) }()
	var extents, acked int
	for acked < n {
		var ack wire.AppendAck
		c.expect(wire.TypeAppendAck, &ack)
		for _, e := range ack.Extents {
			if e.Request != first+uint64(acked) || e.Offset != uint64(acked) {
				t.Fatalf("extent %+v after %d acks", e, acked)
			}
			extents++
			acked += int(e.Requests)
		}
	}
	if acked != n || extents > n/100 {
		t.Fatalf("%d acks in %d extents", acked, extents)
	}
}

// A message above the receive buffer, up to the largest.
func TestLargeMessages(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	c := connect(t, s.Path())
	id := c.stream("large")
	for i, n := range []int{1, session.ReadBufferBytes - 100, session.ReadBufferBytes, session.ReadBufferBytes + 1, 300_000, 1 << 20, 3, 1 << 20, 100_000} {
		if e := c.appendTo(id, make([]byte, n)); e.Offset != uint64(i) {
			t.Fatalf("record %d of %d bytes: %+v", i, n, e)
		}
	}
}
