package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/httpapi"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

// openDoors serves the rig's node through all doors until the test ends.
func (r *rig) openDoors() (socket, web string) {
	r.t.Helper()
	quiet, budget := slog.New(slog.DiscardHandler), session.NewBudget(64<<20)
	host := session.NewHost(session.Options{Log: func(string) session.Backend { return r.node }, Budget: budget, Logger: quiet})
	access, err := uds.OwnAccess()
	if err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	socket, web = filepath.Join(dir, "s"), filepath.Join(dir, "h")
	server, err := uds.Listen(uds.Options{Path: socket, Access: access, Host: host, Logger: quiet})
	if err != nil {
		r.t.Fatal(err)
	}
	pages, err := httpapi.Listen(httpapi.Options{Path: web, Access: access, Host: host, Budget: budget, Logger: quiet})
	if err != nil {
		r.t.Fatal(err)
	}
	go func() { _ = server.Serve() }()
	go func() { _ = pages.Serve() }()
	r.t.Cleanup(func() {
		server.Close()
		pages.Close()
		host.Close()
		r.close()
	})
	return socket, web
}

// connected is a client through one door, for as long as the test.
func connected(ctx context.Context, t *testing.T, socket string, door walsidecar.Door) *walsidecar.Client {
	t.Helper()
	c, err := walsidecar.Dial(ctx, socket, walsidecar.WithDoor(door))
	if errors.Is(err, walsidecar.ErrUnsupported) {
		t.Skip(err) // an emulator, or a kernel that is too old
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// awaitState waits until the log says that it is in this state.
func awaitState(ctx context.Context, t *testing.T, c *walsidecar.Client, want string) {
	t.Helper()
	for {
		b, err := c.Status(ctx)
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		var status struct{ State string }
		if err := json.Unmarshal(b, &status); err != nil {
			t.Fatal(err)
		}
		if status.State == want {
			return
		}
		if status.State == "failed" {
			t.Fatalf("the log failed while it was to become %q", want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A device that takes long, but not longer than L, degrades the log: clients of both
// doors see that, wait, and go on as if nothing had been.
func TestP10_ADegradedDeviceIsSeenAndHeals(t *testing.T) {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "wal")}
	r.cfg = Config{Path: r.path, SizeBytes: testFileBytes, Store: "none", MemoryBytes: 128 << 20, Log: slog.New(slog.DiscardHandler),
		StallAfter: 20 * time.Second}
	r.open()
	socket, _ := r.openDoors()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	clients := map[string]*walsidecar.Client{"shm": connected(ctx, t, socket, walsidecar.DoorShm), "socket": connected(ctx, t, socket, walsidecar.DoorSocket)}
	for name, c := range clients {
		if _, err := c.Append(ctx, name, []byte("0")); err != nil {
			t.Fatal(err)
		}
		awaitState(ctx, t, c, "open")
	}
	var gate sync.Mutex
	held := true
	r.dev.set(func(int, int64) bool {
		gate.Lock()
		defer gate.Unlock()
		return held
	}, nil)
	tickets := map[string]walsidecar.Ticket{}
	for name, c := range clients {
		ticket, err := c.Submit(ctx, name, []byte("1"))
		if err != nil {
			t.Fatal(err)
		}
		tickets[name] = ticket
	}
	for name, c := range clients {
		awaitState(ctx, t, c, "degraded")
		short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
		if result, err := tickets[name].Wait(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: answered with %+v, %v, before the write was complete", name, result, err)
		}
		stop()
	}
	gate.Lock()
	held = false
	gate.Unlock()
	r.dev.set(nil, nil)
	for name, c := range clients {
		if result, err := tickets[name].Wait(ctx); err != nil || result.Offset != 1 {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
		if result, err := c.Append(ctx, name, []byte("2")); err != nil || result.Offset != 2 {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
		awaitState(ctx, t, c, "open")
	}
}

// hostileRing is a client that writes what it likes into its ring.
type hostileRing struct {
	*shm.Client
	conn *net.UnixConn
	next uint64
}

func openHostileRing(t *testing.T, socket string) *hostileRing {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	h := &hostileRing{conn: conn, next: shm.FirstRequest}
	hello := wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Features: wire.FeatureShm, Client: "hostile"}
	talk := (&wire.ShmOpen{}).AppendTo(hello.AppendTo(nil, 0), 1)
	if _, err := conn.Write(talk); err != nil {
		t.Fatal(err)
	}
	var in []byte
	var files []int
	for {
		b, oob := make([]byte, 4096), make([]byte, 128)
		n, size, _, _, err := conn.ReadMsgUnix(b, oob)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, b[:n]...)
		messages, _ := unix.ParseSocketControlMessage(oob[:size])
		for i := range messages {
			more, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, more...)
		}
		_, _, rest, ok, _ := wire.Message(in) // the welcome
		if !ok {
			continue
		}
		head, body, _, ok, err := wire.Message(rest)
		if !ok {
			continue
		}
		var info wire.ShmInfo
		if err == nil {
			err = info.Decode(head, body)
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Client, err = shm.Attach(&info, files, shm.Adaptive, 0); err != nil {
			t.Fatal(err)
		}
		return h
	}
}

// A client of shared memory that sends broken headers, and changes good ones while they
// are being read: each is refused, or is in the log as a record whose headers are whole.
func TestP9_HostileHeadersInTheRing(t *testing.T) {
	socket, _ := newRig(t).openDoors()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c := connected(ctx, t, socket, walsidecar.DoorShm)
	info, err := c.CreateStream(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	h := openHostileRing(t, socket)
	answers := make(chan struct{})
	go func() { // refusals come over the socket; it has to be read
		defer close(answers)
		for b := make([]byte, 64<<10); ; {
			if _, err := h.conn.Read(b); err != nil {
				return
			}
		}
	}()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	good := wire.AppendHeader(wire.AppendHeader(nil, "key", []byte("value")), "other", make([]byte, 200))
	const messages = 3000
	for n := range messages {
		headers := append([]byte(nil), good...)
		if n%3 == 1 { // broken before it is sent
			headers[random.IntN(len(headers))] = byte(random.Uint32())
		}
		m := wire.Append{Entries: []wire.Entry{{Stream: info.ID, Headers: headers, Payload: []byte("x")}}}
		for !h.Fits(m.Bytes()) {
			h.Free(h.Released())
		}
		dst, _ := h.Reserve(m.Bytes())
		m.AppendTo(dst[:0], h.next)
		h.next++
		h.Publish()
		if h.Kick(h.Position()) {
			h.RingBell()
		}
		from := len(dst) - len(headers) - 8 // the payload and its padding come last
		for range 20 * (n % 3) {            // broken while it is read
			dst[from+random.IntN(len(headers))] = byte(random.Uint32())
		}
	}
	for h.Released() != h.Position() {
		if ctx.Err() != nil || h.State() != wire.CodeOK {
			t.Fatalf("%d of %d bytes have an outcome; the session's state is %v", h.Released(), h.Position(), h.State())
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := c.Append(ctx, "bystander", []byte("x")); err != nil {
		t.Error(err)
	}
	whole := 0
	for record, err := range c.Read(ctx, "s") { // which checks the checksum
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.CheckHeaders(record.Headers); err != nil || string(record.Data) != "x" {
			t.Fatalf("record %d: %v, data %q", record.Offset, err, record.Data)
		}
		whole++
	}
	if whole < messages/3 || whole == messages {
		t.Errorf("%d of %d were appended", whole, messages)
	}
	h.Interrupt()
	_ = h.conn.Close()
	<-answers
	h.Detach()
}

// Headers over HTTP that a record cannot have are refused, and appended is only what the
// log's own rules allow.
func TestP9_HostileHeadersOverHTTP(t *testing.T) {
	socket, web := newRig(t).openDoors()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c := connected(ctx, t, socket, walsidecar.DoorSocket)
	many := strings.Repeat("Walsidecar-Header-A: b\r\n", wire.MaxHeaders+1)
	for name, test := range map[string]struct {
		headers string
		want    int // status; 0: any refusal, or the end of the connection
	}{
		"none":                {"", http.StatusOK},
		"as many as it takes": {strings.Repeat("Walsidecar-Header-A: b\r\n", wire.MaxHeaders), http.StatusOK},
		"one more":            {many, http.StatusBadRequest},
		"too many bytes":      {"Walsidecar-Header-A: " + strings.Repeat("x", wire.MaxHeadersBytes) + "\r\n", 0},
		"no name":             {"Walsidecar-Header-: b\r\n", 0},
		"a long name":         {"Walsidecar-Header-" + strings.Repeat("n", 300) + ": b\r\n", 0},
		"control characters":  {"Walsidecar-Header-A: \x00\x01\x7f\r\n", 0},
		"a name with a space": {"Walsidecar-Header-A B: c\r\n", 0},
		"half a line":         {"Walsidecar-Header-A", 0},
		"bytes above ASCII":   {"Walsidecar-Header-\xff\xfe: c\r\n", 0},
		"a stray line feed":   {"Walsidecar-Header-A: b\nWalsidecar-Header-B: c\r\n", 0},
		"a continued line":    {"Walsidecar-Header-A: b\r\n c\r\n", 0},
	} {
		status, err := rawPost(ctx, web, test.headers)
		if test.want != 0 && (err != nil || status != test.want) {
			t.Errorf("%s: status %d, %v; want %d", name, status, err, test.want)
		}
		if status >= 500 {
			t.Errorf("%s: status %d", name, status)
		}
	}
	if _, err := c.Append(ctx, "s", []byte("x")); err != nil {
		t.Error(err)
	}
	for record, err := range c.Read(ctx, "s") {
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.CheckHeaders(record.Headers); err != nil {
			t.Errorf("record %d: %v", record.Offset, err)
		}
	}
}

// rawPost appends "x" to the stream s with these header lines, as they are.
func rawPost(ctx context.Context, web, headers string) (status int, err error) {
	conn, err := net.Dial("unix", web)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintf(conn, "POST /v1/streams/s/records HTTP/1.1\r\nHost: wal\r\nConnection: close\r\n%sContent-Length: 1\r\n\r\nx", headers); err != nil {
		return 0, err
	}
	_ = conn.(*net.UnixConn).CloseWrite()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}
