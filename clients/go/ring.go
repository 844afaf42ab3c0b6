package walsidecar

import (
	"errors"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// Door is the way by which appends go to the sidecar.
type Door uint8

const (
	// DoorAuto is shared memory where the sidecar offers it and has the memory for it,
	// else the socket.
	DoorAuto Door = iota
	// DoorShm is shared memory; without it Dial fails, and a lost client keeps trying.
	DoorShm
	// DoorSocket is the Unix socket alone.
	DoorSocket
)

// Waiting is how the client waits for acks in shared memory before it sleeps.
type Waiting = shm.Waiting

const (
	// WaitAdaptive looks for some microseconds as long as that pays. The default.
	WaitAdaptive = shm.Adaptive
	// WaitSpin looks longer, each time: for a process that has a core of its own.
	WaitSpin = shm.Spin
	// WaitBlock sleeps at once.
	WaitBlock = shm.Block
)

// ringDoor is the shared memory of a connection. It is guarded by the client's mutex,
// but for looking for acks and dozing.
//
// Acks are handled by whoever comes by: a goroutine that submits, or one that waits for
// a ticket. A goroutine of its own, which sleeps otherwise, does it when the sidecar
// wakes it, which it is asked to unless many are in flight and nobody waits.
type ringDoor struct {
	*shm.Client
	chunk       *chunk // the ring's bytes, in the place of a chunk of outgoing
	nextID      uint64
	maxRequests int
	bell        bool // the sidecar sleeps: ring after unlocking
	extents     []wire.AckExtent
	looking     bool           // one of those who wait looks for acks without sleeping
	lookers     sync.WaitGroup // that one
}

const (
	// lazyAppends is how many appends must be in flight for their acks to be left until
	// somebody comes by, when nobody waits for any.
	lazyAppends = 32
	// lazyFor is the longest that they are left.
	lazyFor = 5 * time.Millisecond
	// dozeFor bounds a sleep that the sidecar is to end, idleFor one when nothing is in
	// flight.
	dozeFor = time.Second
	idleFor = 10 * time.Second
)

// openRing asks for shared memory, as the first request of the connection. Where it
// is not to be had the connection goes on without, unless the client insists.
func (c *Client) openRing(n *connection) error {
	if c.options.door == DoorSocket {
		return nil
	}
	insists := c.options.door == DoorShm
	if n.welcome.Features&wire.FeatureShm == 0 {
		if insists {
			return newError(wire.CodeUnsupported, "dial", "", "the sidecar offers no shared memory")
		}
		return nil
	}
	var files []int
	var info wire.ShmInfo
	n.handover = &files
	err := n.request(&wire.ShmOpen{}, wire.TypeShmInfo, info.Decode)
	n.handover = nil
	if err != nil {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
		if !insists && (errors.Is(err, ErrOutOfMemory) || errors.Is(err, ErrUnsupported)) {
			return nil
		}
		return err
	}
	memory, err := shm.Attach(&info, files, c.options.waiting, n.sidecar())
	if err != nil {
		if insists {
			return err
		}
		return nil
	}
	n.ring = &ringDoor{Client: memory, nextID: shm.FirstRequest, maxRequests: int(info.MaxRequests),
		chunk: &chunk{buf: memory.Ring(), sent: math.MaxInt, mapped: true}}
	return nil
}

// read reads from the socket, and takes descriptors where some are awaited.
func (n *connection) read(b []byte) (int, error) {
	if n.handover == nil {
		return n.net.Read(b)
	}
	var oob [64]byte
	got, size, _, _, err := n.net.(*net.UnixConn).ReadMsgUnix(b, oob[:])
	if err != nil {
		return 0, err
	}
	messages, _ := syscall.ParseSocketControlMessage(oob[:size])
	for i := range messages {
		if files, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			*n.handover = append(*n.handover, files...)
		}
	}
	return got, nil
}

// place encodes a message into the ring and shows it to the sidecar.
func (d *ringDoor) place(r *request, m *wire.Append) {
	dst, index := d.Reserve(r.size)
	m.AppendTo(dst[:0], r.id)
	r.chunk, r.at, r.end = d.chunk, index, d.Position()
	d.Publish()
	d.bell = d.bell || d.Kick(d.Position())
}

// byteLimit is how many bytes may be in the ring, so that all of it could be written
// once more behind itself, with a pad.
func (d *ringDoor) byteLimit() int { return len(d.Ring()) - d.MaxMessageBytes() }

// takes reports whether everything in flight could be put into the empty ring.
func (d *ringDoor) takes(f *flight) bool {
	if f.bytes > d.byteLimit() || f.len() > d.maxRequests {
		return false
	}
	for number := f.head; number < f.tail; number++ {
		if f.at(number).size > d.MaxMessageBytes() {
			return false
		}
	}
	return true
}

// appendID returns the id of the next append on the present connection.
func (c *Client) appendID() (id uint64) {
	next := &c.nextID
	if d := c.ring(); d != nil {
		next = &d.nextID
	}
	id = *next
	*next++
	return id
}

// ring is that of the present connection, nil where there is none.
func (c *Client) ring() *ringDoor {
	if c.conn == nil {
		return nil
	}
	return c.conn.ring
}

// takeOut copies the message of a request that was answered, but is to be sent again,
// out of the ring: its place there is free now.
func (r *request) takeOut() {
	if r.chunk.mapped {
		own := slices.Clone(r.message())
		r.chunk, r.at, r.end = &chunk{buf: own, sent: len(own), live: 1}, 0, 0
	}
}

// sidecar is the process at the other end of the socket, 0 if that is not known.
func (n *connection) sidecar() (pid int) {
	raw, err := n.net.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// reap handles the acks that are there. What is wrong with them ends the connection.
func (c *Client) reap(n *connection) (err error) {
	d := n.ring
	if !d.Any() {
		return nil
	}
	if d.extents, err = d.Take(d.extents[:0]); err == nil {
		err = c.acked(d.extents)
	}
	if err != nil {
		n.close()
	}
	return err
}

// reapAndWant handles the acks that are there, and has the sidecar wake the reaping
// goroutine for the next ones.
func (c *Client) reapAndWant(n *connection) error {
	d := n.ring
	for {
		err := c.reap(n)
		if err != nil || d.looking { // the one who looks does it
			return err
		}
		if d.Want(); !d.Any() {
			return nil
		}
	}
}

// reapLazily is reapAndWant of the reaping goroutine, which says how long it may sleep.
func (c *Client) reapLazily(n *connection) (time.Duration, error) {
	d := n.ring
	if c.flight.len() < lazyAppends || c.waiting.Load() > 0 || len(c.room) > 0 || len(c.flushes) > 0 {
		err := c.reapAndWant(n)
		if c.flight.len() == 0 {
			return idleFor, err
		}
		return dozeFor, err
	}
	d.Unwant()
	return lazyFor, c.reap(n)
}

// await handles acks until p is answered, or there is nothing better to do than to sleep
// until it is. It counts in waiting from then on; the caller takes that back.
func (c *Client) await(p *pending) {
	c.mu.Lock()
	defer c.unlockAndKick()
	c.waiting.Add(1)
	for looked := false; ; looked = true {
		n := c.conn
		if n == nil || n.ring == nil || c.reap(n) != nil {
			return
		}
		answered := p.state.Load() == pendingAnswered
		if answered && !looked {
			return
		}
		if answered || n.ring.looking || !n.ring.Looks() || !c.look(n) {
			_ = c.reapAndWant(n) // the error has ended the connection
			return
		}
	}
}

// look looks for acks for a while, with the mutex released, and reports whether there
// are any.
func (c *Client) look(n *connection) bool {
	d := n.ring
	d.Unwant()
	d.looking = true
	d.lookers.Add(1)
	c.unlockAndKick()
	found := d.Look()
	d.lookers.Done()
	c.mu.Lock()
	d.looking = false
	return found
}

// unlockAndExpect releases the mutex after something began to wait for acks.
func (c *Client) unlockAndExpect() {
	if n := c.conn; n != nil && n.ring != nil {
		_ = c.reapAndWant(n) // the error has ended the connection
	}
	c.unlockAndKick()
}

// reapLoop handles acks when the sidecar wakes it, until the connection ends, and those
// that are there then.
func (c *Client) reapLoop(n *connection) error {
	d := n.ring
	for {
		c.mu.Lock()
		word := d.Word()
		rest, err := c.reapLazily(n)
		c.unlockAndKick()
		if err != nil || d.Interrupted() {
			return err
		}
		// Those who were just woken go first: this thread may be about to sleep in the
		// kernel, with the processor that they would run on.
		runtime.Gosched()
		d.Doze(word, rest)
	}
}

// ended waits for the next goroutine of a closed connection to end.
func (n *connection) ended() error {
	for {
		select {
		case err := <-n.finished:
			return err
		case <-time.After(time.Millisecond):
			if n.ring != nil {
				n.ring.Interrupt() // the one of close may have come just before the sleep
			}
		}
	}
}

// retire unmaps the ring of an earlier connection: nothing in flight lies in it any
// more.
func (c *Client) retire() {
	if c.retired != nil {
		c.retired.Detach()
		c.retired = nil
	}
}
