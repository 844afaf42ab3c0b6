package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

const testBudget = 64 << 20

// rig is a door over a backend, and a client of it.
type rig struct {
	t       testing.TB
	node    *node.Node // nil over another backend
	host    *session.Host
	budget  *session.Budget
	server  *Server
	client  *http.Client
	options Options
	served  chan error
	once    bool
}

// newRig is a door over a log of the smallest size.
func newRig(t testing.TB, change ...func(*Options)) *rig {
	t.Helper()
	budget := session.NewBudget(testBudget)
	n, err := node.Open(context.Background(), node.Config{Path: filepath.Join(t.TempDir(), "wal"), SizeBytes: 32 << 20, Store: "none",
		MemoryBytes: 128 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := newRigOver(t, n, budget, change...)
	r.node = n
	return r
}

// newRigOver is a door over a backend. At its end nothing may be left.
func newRigOver(t testing.TB, b session.Backend, budget *session.Budget, change ...func(*Options)) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r := &rig{t: t, budget: budget, served: make(chan error, 1)}
	r.host = session.NewHost(session.Options{Budget: budget, Server: "walsidecar test", Logger: log, Times: session.Times{Goodbye: 100 * time.Millisecond},
		Log: func(selector string) session.Backend {
			if selector != "" && selector != "here" {
				return nil
			}
			return b
		}})
	access, err := uds.OwnAccess()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "h") // t.TempDir may be longer than a socket's path
	if err != nil {
		t.Fatal(err)
	}
	r.options = Options{Path: filepath.Join(dir, "s"), Access: access, Host: r.host, Budget: budget, Logger: log}
	for _, f := range change {
		f(&r.options)
	}
	if r.server, err = Listen(r.options); err != nil {
		t.Fatal(err)
	}
	go func() { r.served <- r.server.Serve() }()
	r.client = &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.options.Path)
		}}}
	t.Cleanup(func() {
		r.close()
		os.RemoveAll(dir)
	})
	return r
}

// close ends the door and checks that it left nothing.
func (r *rig) close() {
	r.t.Helper()
	if r.once {
		return
	}
	r.once = true
	r.client.CloseIdleConnections()
	r.server.Drain()
	r.host.Close()
	r.server.Close()
	if err := <-r.served; err != nil {
		r.t.Errorf("Serve: %v", err)
	}
	if n := r.host.Stats().Sessions; n != 0 {
		r.t.Errorf("%d sessions are left", n)
	}
	r.awaitBudget(0)
	if _, err := os.Lstat(r.options.Path); err == nil {
		r.t.Error("the socket is left")
	}
}

// awaitBudget waits until so much of the budget is in use.
func (r *rig) awaitBudget(want int64) {
	r.t.Helper()
	r.await(func() bool { return r.budget.Used() == want }, func() string {
		return fmt.Sprintf("%d bytes of the budget are in use, want %d", r.budget.Used(), want)
	})
}

func (r *rig) await(ok func() bool, what func() string) {
	r.t.Helper()
	for until := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			r.t.Fatal(what())
		}
	}
}

// reply is an answer, read to its end.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   string
	closed bool // the connection
}

// do sends a request; headers are "Name: value".
func (r *rig) do(method, path, body string, headers ...string) reply {
	r.t.Helper()
	q, err := http.NewRequest(method, "http://walsidecar"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Add(name, value)
	}
	a, err := r.client.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return reply{r.t, a.StatusCode, a.Header, string(b), a.Close}
}

// ok fails the test unless the status is 200, 201 or 204.
func (a reply) ok() reply {
	a.t.Helper()
	if a.status/100 != 2 {
		a.t.Fatalf("status %d: %s", a.status, a.body)
	}
	return a
}

// is fails the test unless the body is that JSON, but for white space.
func (a reply) is(want string) reply {
	a.t.Helper()
	if got := strings.TrimSpace(a.body); got != want {
		a.t.Fatalf("status %d\ngot  %s\nwant %s", a.status, got, want)
	}
	return a
}

// refused fails the test unless the answer is that error with its status, and returns it.
func (a reply) refused(code wire.Code) errorObject {
	a.t.Helper()
	var e errorObject
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Code != code.String() || a.status != code.Info().HTTPStatus || e.Hint == "" || e.Message == "" {
		a.t.Fatalf("status %d: %s, want %s", a.status, a.body, code)
	}
	return e
}

// objects decodes a body of lines.
func objects[T any](t testing.TB, body string) []T {
	t.Helper()
	var all []T
	for line := range strings.Lines(body) {
		var one T
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, one)
	}
	return all
}

// line is any line of a read.
type line struct {
	Stream        string
	Offset        uint64
	Position      uint64
	Payload       *string
	PayloadBase64 []byte `json:"payload_base64"`
	BatchEnd      bool   `json:"batch_end"`
	Headers       []headerRequest
	Gap           string
	From, To      uint64
	CaughtUp      bool `json:"caught_up"`
	Heartbeat     bool
	End           bool
	Next          uint64
	Code          string
}

// event is a server-sent event.
type event struct {
	kind, id string
	line
}

// follow is a request whose answer comes as events.
type follow struct {
	t      testing.TB
	body   io.ReadCloser
	in     *bufio.Reader
	status int
}

func (r *rig) follow(path string, headers ...string) *follow {
	r.t.Helper()
	q, err := http.NewRequest("GET", "http://walsidecar"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	q.Header.Set("Accept", "text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Set(name, value)
	}
	a, err := r.client.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	if kind := a.Header.Get("Content-Type"); a.StatusCode != 200 || kind != sseType {
		r.t.Fatalf("status %d, %s", a.StatusCode, kind)
	}
	r.t.Cleanup(func() { a.Body.Close() })
	return &follow{t: r.t, body: a.Body, in: bufio.NewReader(a.Body), status: a.StatusCode}
}

// next returns the next event; ok is false at the end.
func (f *follow) next() (e event, ok bool) {
	f.t.Helper()
	for {
		text, err := f.in.ReadString('\n')
		if err == io.EOF && text == "" {
			return e, false
		}
		if err != nil {
			f.t.Fatal(err)
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(text, "\n"), ": ")
		switch name {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e.line); err != nil {
				f.t.Fatal(err)
			}
		case "":
			return e, true
		}
	}
}

// until returns the events up to the first of a kind, heartbeats left out.
func (f *follow) until(kind string) []event {
	f.t.Helper()
	var all []event
	for {
		e, ok := f.next()
		if !ok {
			f.t.Fatalf("the end after %+v, want %s", all, kind)
		}
		if e.kind == "heartbeat" && kind != e.kind {
			continue
		}
		if all = append(all, e); e.kind == kind {
			return all
		}
	}
}

// dial is a raw connection.
func (r *rig) dial() *net.UnixConn {
	r.t.Helper()
	c, err := net.Dial("unix", r.options.Path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c.(*net.UnixConn)
}

// raw sends bytes on a connection of its own and returns what comes until it is closed.
func (r *rig) raw(request string) string {
	r.t.Helper()
	c := r.dial()
	_, _ = io.WriteString(c, request) // the door may have hung up already
	b, _ := io.ReadAll(c)
	return string(b)
}

// binary is a payload that is no UTF-8.
var binary = string(bytes.Repeat([]byte{0xff, 0, '\n', '"'}, 10))
