package walsidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/walsidecar/walsidecar/wire"
	"maps"
	"slices"
)

const (
	// readBufferBytes is what one read of the socket takes at most; the buffer
	// grows for a larger message.
	readBufferBytes = 256 << 10
	// loneBytes is how large an append may be that its own goroutine writes: the
	// socket takes it without waiting, as nothing else is in flight.
	loneBytes = 32 << 10
	// handshakeTimeout bounds the introduction on a new connection. A sidecar that
	// is there but recovers a large log does not take connections yet.
	handshakeTimeout = 30 * time.Second
	// reconnectFirst and reconnectLongest bound the wait between two attempts to connect.
	reconnectFirst   = 5 * time.Millisecond
	reconnectLongest = time.Second
)

// connectionGoroutines is how many a connection has at most: one reads, one writes,
// one takes acks out of shared memory.
const connectionGoroutines = 3

// connection is one connected socket, with its shared memory. Its goroutines end when
// it is closed.
type connection struct {
	net      net.Conn
	in       []byte // read and not handled
	buf      []byte // in lies in it
	welcome  wire.Welcome
	nextID   uint64
	ring     *ringDoor         // nil: appends go over the socket
	handover *[]int            // takes descriptors that come with a message; nil: none is awaited
	producer wire.ProducerInfo // of the session's producer, where it had one
	renewed  bool              // producer is a new one

	kick     chan struct{}  // capacity 1: wakes the writer
	idle     bool           // the writer waits for a kick; guarded by the client's mutex
	segments [][]byte       // of the write under way
	lone     sync.WaitGroup // writes in the place of the writing goroutine; begun under the client's mutex
	gone     chan struct{}  // closed by close
	finished chan error     // capacity connectionGoroutines: why each goroutine ended
}

// close makes both goroutines end. It is called under the client's mutex, or
// before the connection is installed.
func (n *connection) close() {
	select {
	case <-n.gone:
	default:
		close(n.gone)
		_ = n.net.Close() // nothing is lost that was not lost anyway
		if n.ring != nil {
			n.ring.Interrupt()
		}
	}
}

// connect opens a connection and introduces the client.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, disconnected("dial", fmt.Sprintf("no sidecar at %s: %s", c.path, brief(err)), err)
	}
	n := &connection{
		net: socket, buf: make([]byte, readBufferBytes), nextID: 1,
		kick: make(chan struct{}, 1), gone: make(chan struct{}), finished: make(chan error, connectionGoroutines), idle: true,
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	err = c.introduce(n)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		n.close()
		if n.ring != nil {
			n.ring.Detach()
		}
		var refusal *Error
		if errors.As(err, &refusal) {
			return nil, err
		}
		return nil, disconnected("dial", fmt.Sprintf("introduction to the sidecar at %s: %s", c.path, brief(err)), err)
	}
	return n, nil
}

func disconnected(op, message string, cause error) *Error {
	e := newError(wire.CodeDisconnected, op, "", message)
	e.cause = cause
	return e
}

// introduce exchanges Hello and Welcome and finds out what became of the session's
// producer. The first connection has none.
func (c *Client) introduce(n *connection) error {
	hello := wire.Hello{
		VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Features: wire.Features,
		Log: c.options.log, Client: c.options.name,
	}
	if err := n.exchange(hello.AppendTo(nil, 0), wire.TypeWelcome, 0, n.welcome.Decode); err != nil {
		return err
	}
	c.mu.Lock()
	known, log, producer := c.limits.Version != 0, c.limits.Log, c.producer
	c.mu.Unlock()
	if known && n.welcome.Log != log {
		return newError(wire.CodeWrongLog, "reconnect", "", fmt.Sprintf("the socket %s now serves another log, %x, not %x", c.path, n.welcome.Log, log))
	}
	if seen := c.durable.Load(); known && n.welcome.Durable < seen && !n.welcome.NotDurable {
		return wentBack(fmt.Sprintf("the log is durable up to position %d, and was up to %d before", n.welcome.Durable, seen))
	}
	if err := c.openRing(n); err != nil {
		return err
	}
	if err := c.claimProducers(n); err != nil {
		return err
	}
	if goesOn, err := n.goOn(&producer); goesOn || err != nil {
		return err
	}
	n.renewed = true
	open := wire.ProducerOpen{Window: uint32(c.options.inFlight)}
	return n.request(&open, wire.TypeProducerInfo, n.producer.Decode)
}

// goOn reports whether the client goes on with the producer on this connection: not if it
// must not, or the log has forgotten one that it answered nothing for, but for a client
// that has none. The error is that of a log which has lost what it had answered.
func (n *connection) goOn(p *sessionProducer) (bool, error) {
	if p.id == 0 {
		return true, nil
	}
	if p.renew && p.usedUp == 0 {
		return false, nil
	}
	err := n.request(&wire.ProducerGet{ID: p.id}, wire.TypeProducerInfo, n.producer.Decode)
	switch last := n.producer.LastSequence; {
	case errors.Is(err, ErrProducerExpired) && p.usedUp > 0:
		return false, wentBack(fmt.Sprintf("the log does not know the client's producer any more, under which it had answered up to sequence %d", p.usedUp))
	case errors.Is(err, ErrProducerExpired):
		return false, nil
	case err != nil:
		return false, err
	case last < p.usedUp:
		return false, wentBack(fmt.Sprintf("the last sequence of the client's producer is %d, and the log had answered up to %d", last, p.usedUp))
	default:
		return !p.renew && last < p.next, nil // one that was never sent is the work of somebody else
	}
}

// wentBack is the error of a log that has lost what it had answered.
func wentBack(message string) *Error { return newError(wire.CodeLogWentBack, "reconnect", "", message) }

// claimProducers opens the named producers that this client appends under anew: what
// an earlier connection left behind is refused from here on, and may be sent again.
func (c *Client) claimProducers(n *connection) error {
	c.mu.Lock()
	names := slices.Collect(maps.Keys(c.producers))
	c.mu.Unlock()
	for _, name := range names {
		var info wire.ProducerInfo
		if err := n.request(&wire.ProducerOpen{Name: name}, wire.TypeProducerInfo, info.Decode); err != nil {
			return err
		}
		c.mu.Lock()
		c.producers[name] = info.ID
		c.mu.Unlock()
	}
	return nil
}

func (n *connection) request(m encoder, want wire.Type, decode func(wire.Header, []byte) error) error {
	id := n.nextID
	n.nextID++
	return n.exchange(m.AppendTo(nil, id), want, id, decode)
}

// exchange writes one message and reads its answer, before the goroutines run.
func (n *connection) exchange(message []byte, want wire.Type, id uint64, decode func(wire.Header, []byte) error) error {
	_, werr := n.net.Write(message)
	// A sidecar that turns a client away says why and closes, perhaps before it was
	// written to: the reason is worth more than the broken pipe.
	h, body, err := n.next()
	if err != nil {
		return errors.Join(werr, err)
	}
	switch {
	case h.Type == want && h.Request == id:
		return decode(h, body)
	case h.Type == wire.TypeGoodbye:
		var m wire.Goodbye
		if err := m.Decode(h, body); err != nil {
			return err
		}
		return goodbye(&m, "dial")
	case h.Type == wire.TypeError:
		var m wire.Error
		if err := m.Decode(h, body); err != nil {
			return err
		}
		return fromWire(&m, "dial", "")
	}
	return fmt.Errorf("%w: %s where %s was expected", wire.ErrMalformed, h.Type, want)
}

// goodbye is why the sidecar ended the connection.
func goodbye(m *wire.Goodbye, op string) *Error { return newError(m.Code, op, "", m.Message) }

// next returns the next message; its body is valid until the next call.
func (n *connection) next() (wire.Header, []byte, error) {
	for {
		h, body, rest, ok, err := wire.Message(n.in)
		if err != nil {
			return h, nil, err
		}
		if ok {
			n.in = rest
			return h, body, nil
		}
		if err := n.fill(); err != nil {
			return h, nil, err
		}
	}
}

// fill reads more bytes behind those of n.in.
func (n *connection) fill() error {
	need := wire.HeaderBytes
	if len(n.in) >= need {
		h, err := wire.DecodeHeader(n.in)
		if err != nil {
			return err
		}
		need = int(h.Length)
	}
	held := len(n.in)
	if need > len(n.buf) {
		larger := make([]byte, need)
		copy(larger, n.in)
		n.buf = larger
	} else {
		copy(n.buf, n.in)
	}
	got, err := n.read(n.buf[held:])
	n.in = n.buf[:held+got]
	if got > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// goroutines is how many start runs.
func (n *connection) goroutines() int {
	if n.ring == nil {
		return connectionGoroutines - 1
	}
	return connectionGoroutines
}

// start runs the goroutines of an installed connection.
func (c *Client) start(n *connection) {
	go func() { n.finished <- c.readLoop(n) }()
	go func() { n.finished <- c.writeLoop(n) }()
	if n.ring != nil {
		go func() { n.finished <- c.reapLoop(n) }()
	}
}

// readLoop handles what the sidecar says until the connection ends.
func (c *Client) readLoop(n *connection) error {
	for {
		h, body, err := n.next()
		if err == nil {
			err = c.handle(h, body)
		}
		if err != nil {
			c.mu.Lock()
			n.close()
			c.mu.Unlock()
			return err
		}
	}
}

// writeLoop writes what was submitted, everything that is there in one write,
// and sends a sign of life when there is nothing.
func (c *Client) writeLoop(n *connection) error {
	quiet := time.Duration(n.welcome.IdleMS) * time.Millisecond / 3
	var alarm <-chan time.Time
	if quiet > 0 {
		ticker := time.NewTicker(quiet)
		defer ticker.Stop()
		alarm = ticker.C
	}
	wrote := false
	for {
		select {
		case <-n.kick:
		case <-alarm:
			if !wrote {
				c.pingUnanswered(n)
			}
			wrote = false
			continue
		case <-n.gone:
			return nil
		}
		wrote = true
		// Others that are about to submit go first, so that one write takes all.
		runtime.Gosched()
		if err := c.writeAll(n); err != nil {
			c.mu.Lock()
			n.close()
			c.mu.Unlock()
			return err
		}
	}
}

// unlockAndWrite writes what was submitted, once, in the place of the writing
// goroutine, which is idle: a lone append is on its way without waking anybody.
func (c *Client) unlockAndWrite(n *connection) {
	n.lone.Add(1)
	defer n.lone.Done()
	c.gather(n)
	c.mu.Unlock()
	if n.write() != nil {
		c.mu.Lock()
		n.close()
		c.mu.Unlock()
		return
	}
	c.mu.Lock()
	c.out.written()
	n.idle = true
	c.unlockAndKick()
}

// writeAll writes until nothing is left.
func (c *Client) writeAll(n *connection) error {
	for {
		c.mu.Lock()
		c.out.written()
		more := c.gather(n)
		c.mu.Unlock()
		if !more {
			return nil // from here on another may use the segments
		}
		if err := n.write(); err != nil {
			return err
		}
	}
}

// gather makes what is there the next write; the writer is idle when there is nothing.
func (c *Client) gather(n *connection) (more bool) {
	n.segments = c.out.gather(n.segments[:0])
	more = len(n.segments) > 0
	n.idle, c.dirty = !more, false
	return more
}

// write writes the segments, with one system call as a rule.
func (n *connection) write() error {
	if len(n.segments) == 1 {
		_, err := n.net.Write(n.segments[0])
		return err
	}
	buffers := net.Buffers(n.segments)
	_, err := buffers.WriteTo(n.net)
	return err
}
