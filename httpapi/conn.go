package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// conn is one connection. Its link is that of the goroutine that serves it; Close may
// come from another one only while that waits for a request.
type conn struct {
	net.Conn
	raw    syscall.RawConn
	peer   session.Peer
	server *Server
	link   *link // nil before the first request that needs a session
	held   int64 // bytes taken from the budget beyond connectionBytes, see take
	closed sync.Once
}

// Write writes all of p. A client that does not take it in time is dropped.
func (c *conn) Write(p []byte) (int, error) {
	slow := c.server.options.Times.Slow
	if err := c.Conn.SetWriteDeadline(time.Now().Add(slow)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) && c.link != nil {
		c.link.session.Goodbye(wire.CodeSlowClient, fmt.Sprintf("the client did not take its answers within %s", slow))
	}
	return n, err
}

// SetWriteDeadline does nothing: every Write has a deadline of its own.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets that of reads.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close closes the connection and ends its session.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.closed.Do(func() {
		// The client must not wait for what is left to do here.
		err = c.Conn.Close()
		c.drop()
		c.give(c.held)
		c.server.options.Budget.Give(connectionBytes)
		c.server.mu.Lock()
		delete(c.server.conns, c)
		c.server.mu.Unlock()
		c.server.serving.Done()
	})
	return err
}

// rest ends a request: it gives back what that took, and tells the session that nothing
// comes at present.
func (c *conn) rest() {
	c.give(c.held)
	if c.link != nil {
		c.link.idle()
	}
}

// take takes n bytes more from the budget for the present request, or reports that they
// are not there.
func (c *conn) take(n int64) bool {
	if !c.server.options.Budget.Take(n) {
		return false
	}
	c.held += n
	return true
}

func (c *conn) give(n int64) {
	c.server.options.Budget.Give(n)
	c.held -= n
}

// session returns the connection's link to the log that selector names, opened if need
// be. client is the name that the client gives itself.
func (c *conn) session(selector, client string) (*link, error) {
	if c.link != nil && (c.link.selector != selector || c.link.ended != nil) {
		c.drop()
	}
	if c.link == nil {
		l, err := openLink(c.server.options.Host, c.peer, c.shutdown, selector, client)
		if err != nil {
			return nil, err
		}
		c.link = l
	}
	return c.link, nil
}

// drop ends the session; the next request opens another one.
func (c *conn) drop() {
	if c.link != nil {
		c.link.close()
		c.link = nil
	}
}

// shutdown makes reads and writes of both sides return.
func (c *conn) shutdown() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// watch calls gone when the client hangs up, until stop is called, which waits for it.
// Meanwhile nothing else may read the connection. It sees no end behind bytes that the
// client sends in the meantime: that of such a client is found by a write.
func (c *conn) watch(gone func()) (stop func()) {
	_ = c.SetReadDeadline(time.Time{}) // that of the request is over
	done := make(chan struct{})
	go func() {
		defer close(done)
		var peek [1]byte
		var n int
		var err error
		waited := c.raw.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), peek[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
		})
		if waited == nil && n <= 0 {
			gone()
		}
	}()
	return func() {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // ends the wait
		<-done
		_ = c.SetReadDeadline(time.Time{})
	}
}

// turnAwayWithin is how long a client that is not served may take for its request and
// for the answer.
const turnAwayWithin = 500 * time.Millisecond

// turnAway answers the first request of a connection with an error and closes it. It
// reads the request first: a client that cannot send it reads no answer either.
func turnAway(nc *net.UnixConn, e *wire.Error) {
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(turnAwayWithin))
	request := make([]byte, 0, 4<<10)
	for !bytes.Contains(request, []byte("\r\n\r\n")) && len(request) < cap(request) {
		n, err := nc.Read(request[len(request):cap(request)])
		if request = request[:len(request)+n]; err != nil {
			break
		}
	}
	body := encode(newErrorObject(e))
	_, _ = fmt.Fprintf(nc, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		e.Code.Info().HTTPStatus, e.Code, jsonType, len(body), body)
}
