package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// rig is a node on a file, with a host for sessions.
type rig struct {
	t    *testing.T
	path string
	node *Node
	host *session.Host
	cfg  Config
	dev  *gate // what the node writes to
}

// gate is a device whose writes can be held back or made to fail.
type gate struct {
	device.Device
	mu     sync.Mutex
	opened sync.Cond
	hold   func(n int, offset int64) bool // true: the write waits until hold says false
	fail   func(n int) error
	writes int
}

func newGate(d device.Device) *gate {
	g := &gate{Device: d}
	g.opened.L = &g.mu
	return g
}

// set replaces what is held and what fails; n counts writes from 1 again.
func (g *gate) set(hold func(n int, offset int64) bool, fail func(n int) error) {
	g.mu.Lock()
	g.hold, g.fail, g.writes = hold, fail, 0
	g.mu.Unlock()
	g.opened.Broadcast()
}

func (g *gate) WriteSync(p []byte, offset int64) error {
	g.mu.Lock()
	g.writes++
	n := g.writes
	for g.hold != nil && g.hold(n, offset) {
		g.opened.Wait()
	}
	fail := g.fail
	g.mu.Unlock()
	if fail != nil {
		if err := fail(n); err != nil {
			return err
		}
	}
	return g.Device.WriteSync(p, offset)
}

const testFileBytes = 32 << 20

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOf(t, testFileBytes)
}

func newRigOf(t *testing.T, sizeBytes int64) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "wal")}
	r.cfg = Config{Path: r.path, SizeBytes: sizeBytes, Store: "none", MemoryBytes: 128 << 20, Log: slog.New(slog.DiscardHandler)}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	if err := makeMissingFile(context.Background(), r.cfg); err != nil {
		r.t.Fatal(err)
	}
	dev, err := device.Open(r.path, device.OpenOptions{Exclusive: true})
	if err != nil {
		r.t.Fatal(err)
	}
	r.dev = newGate(dev)
	n, err := openOn(context.Background(), r.cfg, r.dev)
	if err != nil {
		r.t.Fatal(err)
	}
	r.node = n
	r.host = session.NewHost(session.Options{
		Log:    func(string) session.Backend { return n },
		Budget: session.NewBudget(64 << 20),
		Logger: slog.New(slog.DiscardHandler),
	})
}

func (r *rig) close() {
	r.t.Helper()
	r.host.Close()
	if err := r.node.Close(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// reopen closes the log in order and opens it again.
func (r *rig) reopen() {
	r.t.Helper()
	r.close()
	r.open()
}

// door is a client that speaks wire to a session without any transport.
type door struct {
	t        *testing.T
	s        *session.Session
	request  uint64
	messages chan message
}

type message struct {
	h    wire.Header
	body []byte
}

func (r *rig) dial() *door {
	r.t.Helper()
	s, err := r.host.New(session.Peer{}, func() {})
	if err != nil {
		r.t.Fatal(err)
	}
	d := &door{t: r.t, s: s, messages: make(chan message, 1<<16)}
	go d.read()
	d.write((&wire.Hello{VersionMin: 1, VersionMax: 1, Client: "test"}).AppendTo(nil, 0))
	if m := d.next(); m.h.Type != wire.TypeWelcome {
		r.t.Fatalf("no welcome but %v", m.h.Type)
	}
	return d
}

func (d *door) read() {
	defer close(d.messages)
	var in []byte
	for {
		first, second, err := d.s.NextWrite()
		if errors.Is(err, io.EOF) {
			d.s.Finish()
			return
		}
		in = append(append(in, first...), second...)
		d.s.Written(nil)
		for len(in) >= wire.HeaderBytes {
			h, err := wire.DecodeHeader(in)
			if err != nil || int(h.Length) > len(in) {
				break
			}
			d.messages <- message{h, append([]byte(nil), in[wire.HeaderBytes:h.Length]...)}
			in = in[h.Length:]
		}
	}
}

func (d *door) write(b []byte) {
	for len(b) > 0 {
		into, err := d.s.ReadBuffer()
		if err != nil {
			return
		}
		k := copy(into, b)
		b = b[k:]
		if err := d.s.Received(k); err != nil {
			return
		}
	}
}

// send sends a request and returns its id.
func (d *door) send(m interface {
	AppendTo(dst []byte, request uint64) []byte
}) uint64 {
	d.request++
	d.write(m.AppendTo(nil, d.request))
	return d.request
}

func (d *door) next() message {
	d.t.Helper()
	select {
	case m, ok := <-d.messages:
		if !ok {
			d.t.Fatal("the session ended")
		}
		return m
	case <-time.After(10 * time.Second):
		d.t.Fatal("no answer within 10 s")
	}
	panic("unreachable")
}

// create opens a stream by name and returns it.
func (d *door) create(name string) wire.Stream {
	d.t.Helper()
	d.send(&wire.StreamOpen{Create: true, Name: name})
	var info wire.StreamInfo
	d.decode(d.next(), &info)
	return info.Stream
}

func (d *door) decode(m message, into interface {
	Decode(h wire.Header, body []byte) error
}) {
	d.t.Helper()
	if m.h.Type == wire.TypeError {
		var e wire.Error
		if err := e.Decode(m.h, m.body); err != nil {
			d.t.Fatal(err)
		}
		d.t.Fatalf("refused: %v: %s (%s)", e.Code, e.Message, e.Hint)
	}
	if err := into.Decode(m.h, m.body); err != nil {
		d.t.Fatal(err)
	}
}

// append appends one record and returns its offset and position.
func (d *door) append(stream uint64, payload []byte) (offset, position uint64) {
	d.t.Helper()
	d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payload}}})
	var ack wire.AppendAck
	d.decode(d.next(), &ack)
	if len(ack.Extents) != 1 || ack.Extents[0].Requests != 1 {
		d.t.Fatalf("acked %+v", ack.Extents)
	}
	return ack.Extents[0].Offset, ack.Extents[0].Position
}

// read returns all records of a stream from offset on.
func (d *door) readAll(stream, offset uint64) (records []wire.Record, gaps []wire.Gap) {
	d.t.Helper()
	d.send(&wire.Read{Stream: stream, From: wire.FromOffset, Value: offset, Credit: 1 << 40})
	for {
		m := d.next()
		switch m.h.Type {
		case wire.TypeRecords:
			var page wire.Records
			d.decode(m, &page)
			records = append(records, page.Records...)
		case wire.TypeGap:
			var g wire.Gap
			d.decode(m, &g)
			gaps = append(gaps, g)
		case wire.TypeEnd:
			return records, gaps
		default:
			d.decode(m, &wire.End{})
			d.t.Fatalf("unexpected %v", m.h.Type)
		}
	}
}
