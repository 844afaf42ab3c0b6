package uds

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
)

// conn is one connection and its session.
type conn struct {
	net     *net.UnixConn
	raw     syscall.RawConn
	peer    session.Peer
	session *session.Session

	// Of the writing goroutine, reused.
	parts   [2][]byte
	buffers net.Buffers

	// Of send.
	now     []byte
	went    int
	sendNow func(fd uintptr) bool
}

func newConn(nc *net.UnixConn) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{net: nc, raw: raw}
	c.sendNow = func(fd uintptr) bool {
		// An error comes again in the write, or the read, that follows.
		n, _ := unix.Write(int(fd), c.now)
		c.went = max(n, 0)
		return true
	}
	if c.peer, err = PeerOf(raw); err != nil {
		return nil, err
	}
	return c, nil
}

// PeerOf asks the kernel who connected a Unix socket (SO_PEERCRED).
func PeerOf(raw syscall.RawConn) (session.Peer, error) {
	var cred *unix.Ucred
	var err error
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return session.Peer{}, cerr
	}
	if err != nil {
		return session.Peer{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return session.Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}

// serve moves bytes until the session or the client ends.
func (c *conn) serve() {
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
		c.shutdown() // ends the reads
	}()
	if err := c.read(); !errors.Is(err, session.ErrEnded) {
		c.session.Gone()
	}
	<-written
	// The client must not wait for what is left to do here.
	_ = c.net.Close()
	c.session.Finish()
}

// read reads until the session takes no more (session.ErrEnded) or the client
// ends (io.EOF, or an error).
//
// It reads until the socket is empty, also after a read that did not fill the
// buffer: when the client has sent and hung up at once, the kernel tells of both
// only once.
func (c *conn) read() (err error) {
	cerr := c.raw.Read(func(fd uintptr) bool {
		for {
			var b []byte
			if b, err = c.session.ReadBuffer(); err != nil {
				return true
			}
			n, rerr := unix.Read(int(fd), b)
			switch {
			case rerr == nil && n > 0:
				if err = c.session.Received(n); err != nil {
					return true
				}
				continue
			case rerr == nil:
				err = io.EOF
				return true
			case errors.Is(rerr, unix.EINTR):
				continue
			case !errors.Is(rerr, unix.EAGAIN):
				err = os.NewSyscallError("read", rerr)
				return true
			}
			err = c.session.Received(0)
			return err != nil
		}
	})
	if err == nil {
		err = cerr
	}
	return err
}

// write writes what the session has for the client until its end.
func (c *conn) write() {
	for {
		first, second, err := c.session.NextWrite()
		if err != nil {
			return
		}
		files := c.session.Handover()
		switch {
		case files != nil:
			err = c.writeWith(files, first, second)
		case len(second) == 0:
			_, err = c.net.Write(first)
		case len(first) == 0:
			_, err = c.net.Write(second)
		default:
			c.parts = [2][]byte{first, second}
			c.buffers = c.parts[:]
			_, err = c.buffers.WriteTo(c.net)
		}
		c.session.Written(err)
	}
}

// send writes what the socket takes of b at once.
func (c *conn) send(b []byte) int {
	c.now, c.went = b, 0
	_ = c.raw.Write(c.sendNow) // fails when the socket is closed
	c.now = nil
	return c.went
}

// writeWith writes both slices, with descriptors at the first byte.
func (c *conn) writeWith(files *shm.Files, first, second []byte) error {
	defer files.Close()
	n, _, err := c.net.WriteMsgUnix(first, unix.UnixRights(files[:]...), nil)
	for _, b := range [][]byte{first[n:], second} {
		if err == nil && len(b) > 0 {
			_, err = c.net.Write(b)
		}
	}
	return err
}

// shutdown makes reads and writes of both sides return.
func (c *conn) shutdown() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}
