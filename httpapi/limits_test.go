package httpapi

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

// ended counts the sessions and clients that ended with a code.
func (r *rig) ended(code wire.Code) (n uint64) {
	r.host.Ended(func(c wire.Code, m uint64) {
		if c == code {
			n = m
		}
	})
	return n
}

// Whatever a client sends, it gets an answer or its end, and the door serves others.
func TestP9_Garbage(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Times.Request = 700 * time.Millisecond })
	for name, c := range map[string]struct{ send, want string }{
		"nothing of HTTP":      {"WALSDCRP\x00\x00\x01\x02\r\n\r\n", "HTTP/1.1 400"},
		"a header too many":    {"GET /v1/health HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 2*maxHeaderBytes) + "\r\n\r\n", "HTTP/1.1 431"},
		"a path too long":      {"GET /" + strings.Repeat("a", 2*maxHeaderBytes) + " HTTP/1.1\r\n\r\n", "HTTP/1.1 431"},
		"a negative length":    {"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", "HTTP/1.1 400"},
		"two lengths":          {"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde", "HTTP/1.1 400"},
		"length and chunks":    {"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"},
		"a body too long":      {"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + strings.Repeat("a", 8<<10), "HTTP/1.1 413"},
		"a record too long":    {"POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1048577\r\n\r\n" + strings.Repeat("a", 1048577), "HTTP/1.1 413"},
		"broken chunks":        {"POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "HTTP/1.1 400"},
		"half a request":       {"GET /v1/health HT", "HTTP/1.1 408"},
		"half a body":          {"POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", "HTTP/1.1 408"},
		"half a chunk":         {"POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "HTTP/1.1 408"},
		"half a long body":     {"POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("a", 10000), "HTTP/1.1 408"},
		"half of its lines":    {"POST /v1/streams/lines/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("a\n", 5000), "HTTP/1.1 200"},
		"multipart":            {"POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=a\r\nContent-Length: 3\r\n\r\n--a", "HTTP/1.1 200"},
		"percent at the end":   {"GET /v1/streams/a% HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404"},
		"zero byte in a name":  {"PUT /v1/streams/a%00b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"},
		"a name of no UTF-8":   {"PUT /v1/streams/%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"},
		"a proxy's request":    {"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 40"},
		"a body that is a lie": {"GET /v1/health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", "HTTP/1.1 408"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := r.raw(c.send); !strings.HasPrefix(got, c.want) {
				t.Errorf("got %.300q, want %s", got, c.want)
			}
			r.do("GET", "/v1/health", "").ok()
		})
	}
	if all := objects[line](t, r.do("GET", "/v1/streams/s/records", "").ok().body); len(all) != 1 {
		t.Errorf("%d records, want the one of the multipart body", len(all))
	}
	if all := objects[line](t, r.do("GET", "/v1/streams/lines/records", "").ok().body); len(all) != 5000 {
		t.Errorf("%d records of the lines that came", len(all))
	}
}

// What a request leaves unread is not the next request.
func TestP9_AnUnreadBodyIsNoRequest(t *testing.T) {
	r := newRig(t)
	r.append("victim", "x")
	inner := "DELETE /v1/streams/victim HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, pad := range []int{0, 9 << 10, 300 << 10, 2 << 20} {
		body := strings.Repeat("\n", pad) + inner
		for _, framing := range []string{
			fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
			fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
		} {
			for _, head := range []string{"PUT /v1/streams/other", "POST /v1/nothing", "GET /v1/health", "POST /v1/batch", "PUT /v1/streams/a?b=c"} {
				r.raw(head + " HTTP/1.1\r\nHost: x\r\n" + framing + "GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			}
		}
	}
	r.do("GET", "/v1/streams/victim", "").ok()
}

// A client that takes nothing holds up its own connection for the stated time.
func TestP9_ASlowFollowerIsDropped(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Times.Slow = 300 * time.Millisecond })
	payload := strings.Repeat("x", 500<<10)
	for range 8 {
		r.append("s", payload)
	}
	r.client.CloseIdleConnections()
	r.awaitBudget(0)
	c := r.dial()
	_, _ = io.WriteString(c, "GET /v1/streams/s/records?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
	r.await(func() bool { return r.host.Stats().Sessions == 1 }, func() string { return "no session" })
	most := int64(0)
	r.await(func() bool { most = max(most, r.budget.Used()); return r.host.Stats().Sessions == 0 }, func() string { return "it is not dropped" })
	if most > 8<<20 {
		t.Errorf("it held %d bytes", most)
	}
	if n := r.ended(wire.CodeSlowClient); n != 1 {
		t.Errorf("%d sessions ended for it", n)
	}
	r.append("s", "others go on")
}

// One that does not even hang up after it stopped reading, and sends on the connection of
// its follow, is dropped by the same time.
func TestP9_AFollowerThatSendsOn(t *testing.T) {
	r := newRig(t)
	r.append("s", "0")
	c := r.dial()
	_, _ = io.WriteString(c, "GET /v1/streams/s/records?follow=true HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/health HTTP/1.1\r\n")
	b := make([]byte, 4096)
	if n, err := c.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200") {
		t.Fatalf("%q %v", b[:n], err)
	}
	_, _ = io.WriteString(c, "Host: x\r\n\r\n")
	_ = c.Close()
	r.append("s", "1") // found by the write
	r.await(func() bool { return r.host.Stats().Sessions <= 1 }, func() string { return "it is still there" })
}

// A panic costs the client its connection and nobody else anything.
func TestP9_APanicIsOneClientsOwn(t *testing.T) {
	answer := func(s *session.Session, h wire.Header, _ []byte) {
		if !openAs(s, h) {
			s.AckAppend(h.Request, 7, 0, 1, 4096)
		}
	}
	r := newRigOver(t, newScripted(answer), session.NewBudget(testBudget))
	saved := routes[1].serve
	routes[1].serve = func(x *exchange) error {
		if _, err := x.link(); err != nil {
			return err
		}
		panic("planted")
	}
	defer func() { routes[1].serve = saved }()
	for range 3 {
		if a := r.do("GET", "/v1/health", ""); a.refused(wire.CodeInternal).Message != "the request could not be served" || !a.closed {
			t.Fatalf("%+v", a)
		}
		r.do("POST", "/v1/streams/s/records", "x").ok()
	}
}

func TestP9_ConnectionsAreLimited(t *testing.T) {
	r := newRig(t)
	var all []net.Conn
	for range MaxConnections {
		all = append(all, r.dial())
	}
	r.await(func() bool { return r.budget.Used() == MaxConnections*connectionBytes }, func() string { return "not all are accepted" })
	if e := r.do("GET", "/v1/health", "").refused(wire.CodeTooManySessions); !e.Retriable {
		t.Fatalf("%+v", e)
	}
	_ = all[0].Close()
	r.await(func() bool { return r.do("GET", "/v1/health", "").status == 200 }, func() string { return "no client is let in again" })
}

// Memory that a request takes is asked for first, and comes back.
func TestP9_MemoryIsBounded(t *testing.T) {
	const small = connectionBytes + session.SessionBytes + 3<<20
	budget := session.NewBudget(small)
	answer := func(s *session.Session, h wire.Header, _ []byte) {
		if !openAs(s, h) {
			s.AckAppend(h.Request, 7, 0, 1, 4096)
		}
	}
	r := newRigOver(t, newScripted(answer), budget)
	r.do("POST", "/v1/batch", `{"entries":[{"stream":"s","payload":"`+strings.Repeat("x", 1<<20)+`"}]}`).refused(wire.CodeOutOfMemory)
	r.do("POST", "/v1/streams/s/records", strings.Repeat("x", 100<<10)).ok()
	r.awaitBudget(connectionBytes + session.SessionBytes + session.LargeBufferBytes - session.ReadBufferBytes)
	r.await(func() bool { return budget.Used() == connectionBytes+session.SessionBytes }, func() string { return "the large buffer is kept" })
	if !budget.Take(3 << 20) {
		t.Fatal("the budget does not add up")
	}
	if e := r.raw("GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(e, "HTTP/1.1 503") || !strings.Contains(e, "out_of_memory") {
		t.Error(e)
	}
	budget.Give(3 << 20)
}

// Idle connections end after their time, and at once in a drain; a request under way is
// answered.
func TestConnectionsInADrain(t *testing.T) {
	asked, b := make(chan struct{}), newScripted(nil)
	b.release = make(chan struct{})
	b.answer = func(s *session.Session, h wire.Header, _ []byte) {
		if !openAs(s, h) {
			s.AckAppend(h.Request, 7, 0, 1, 4096)
			close(asked)
		}
	}
	r := newRigOver(t, b, session.NewBudget(testBudget))
	r.do("GET", "/v1/health", "").ok() // its connection stays, with a session
	answered := make(chan reply)
	other := *r.client
	go func() {
		q := &rig{t: t, client: &other}
		answered <- q.do("POST", "/v1/streams/s/records", "x")
	}()
	close(b.release)
	<-asked
	if a := <-answered; a.status != 200 {
		t.Fatal(a.body)
	}
	if r.host.Stats().Sessions == 0 {
		t.Fatal("no idle session")
	}
	r.server.Drain()
	r.await(func() bool { return r.host.Stats().Sessions == 0 }, func() string { return "idle sessions are left" })
	if _, err := net.Dial("unix", r.options.Path); err == nil {
		t.Error("a client got in")
	}
}

func TestUnauthorisedClientsAreToldSo(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Access = session.Access{UIDs: []uint32{4_000_000_000}} })
	r.do("GET", "/v1/health", "").refused(wire.CodeUnauthorized)
	if n := r.ended(wire.CodeUnauthorized); n != 1 {
		t.Errorf("%d are counted", n)
	}
}

func TestTheSocketIsLikeThatOfTheOtherDoor(t *testing.T) {
	mask := unix.Umask(0)
	defer unix.Umask(mask)
	r := newRig(t, func(o *Options) { o.Mode = 0o600 })
	info, err := os.Lstat(r.options.Path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	_, err = Listen(r.options)
	if err == nil || !strings.Contains(err.Error(), setting) {
		t.Errorf("a live socket was taken: %v", err)
	}
	if _, err := Listen(Options{Path: strings.Repeat("x", uds.MaxPathBytes+1)}); err == nil {
		t.Error("a path that is too long was taken")
	}
	r.do("GET", "/v1/health", "").ok()
}

// A record for which there is no room as JSON fails its read and nothing else: the
// connection serves on.
func TestP9_ARecordWithoutRoomFailsItsReadAlone(t *testing.T) {
	r := newRig(t)
	r.append("s", strings.Repeat("\x01", 900<<10), "small") // as JSON 6 times as long
	r.client.CloseIdleConnections()
	r.awaitBudget(0)
	taken := r.budget.Total() - (connectionBytes + session.SessionBytes + 5<<20)
	if !r.budget.Take(taken) {
		t.Fatal("the budget does not add up")
	}
	for range 3 {
		r.do("GET", "/v1/streams/s/records", "").refused(wire.CodeOutOfMemory)
		if got := objects[line](t, r.do("GET", "/v1/streams/s/records?offset=1", "").ok().body); len(got) != 1 || *got[0].Payload != "small" {
			t.Fatalf("%+v", got)
		}
	}
	r.budget.Give(taken)
	if got := objects[line](t, r.do("GET", "/v1/streams/s/records", "").ok().body); len(got) != 2 {
		t.Fatalf("%d records", len(got))
	}
}
