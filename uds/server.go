package uds

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// setting names the path of this door's socket.
const setting = "WALSIDECAR_SOCKET"

// Options of a Server. Path and Host must be given.
type Options struct {
	Path   string         // of the socket, at most MaxPathBytes
	Mode   fs.FileMode    // of the socket; 0: DefaultMode
	Access session.Access // who may open a session; see OwnAccess
	Host   *session.Host
	Logger *slog.Logger // nil: slog.Default()
}

// OwnAccess is the default access: the user and the groups of this process, and root.
func OwnAccess() (session.Access, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return session.Access{}, fmt.Errorf("groups of this process: %w", err)
	}
	a := session.Access{UIDs: []uint32{0, uint32(os.Geteuid())}, GIDs: []uint32{uint32(os.Getegid())}}
	for _, g := range groups {
		a.GIDs = append(a.GIDs, uint32(g))
	}
	return a, nil
}

// Server is one listening socket with its connections. It is safe for concurrent
// use.
type Server struct {
	options  Options
	listener *Listener
	serving  sync.WaitGroup // connections

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
	accepted chan struct{} // closed when Serve has returned
	closed   sync.Once
}

// Listen makes the socket; clients can connect, and wait until Serve runs. The
// error wraps ErrInUse, ErrPathTooLong or ErrNotASocket where it is one of those.
func Listen(o Options) (*Server, error) {
	if o.Mode == 0 {
		o.Mode = DefaultMode
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	l, err := NewListener(o.Path, o.Mode, setting)
	if err != nil {
		return nil, err
	}
	return &Server{options: o, listener: l, conns: map[*conn]struct{}{}, accepted: make(chan struct{})}, nil
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.options.Path }

// Serve accepts connections until Drain or Close, and returns nil then. It is
// called once.
func (s *Server) Serve() error {
	defer close(s.accepted)
	for {
		c, err := s.listener.Accept()
		switch {
		case err == nil:
			s.admit(c.(*net.UnixConn))
		case s.isDraining():
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
			// The client waits in the backlog until others have left.
			s.options.Logger.Error("cannot accept a client", "socket", s.options.Path, "error", err.Error())
			time.Sleep(acceptPause)
		case errors.Is(err, unix.ECONNABORTED):
		default:
			return fmt.Errorf("accept on socket %s: %w", s.options.Path, err)
		}
	}
}

// acceptPause is how long Serve waits when the process has no file descriptor or
// memory for a client.
const acceptPause = 100 * time.Millisecond

// admit opens a session for a connection, or turns it away with a Goodbye.
func (s *Server) admit(nc *net.UnixConn) {
	c, err := s.open(nc)
	if err != nil {
		var e *wire.Error
		if errors.As(err, &e) {
			turnAway(nc, e)
		}
		_ = nc.Close()
		return
	}
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
}

func (s *Server) open(nc *net.UnixConn) (*conn, error) {
	c, err := newConn(nc)
	if err != nil {
		return nil, err
	}
	if !s.options.Access.Allows(c.peer) {
		return nil, s.options.Host.Refuse(c.peer, wire.CodeUnauthorized,
			fmt.Sprintf("user %d, group %d may not use this socket: run as a user or group that the sidecar allows", c.peer.UID, c.peer.GID))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, s.options.Host.Refuse(c.peer, wire.CodeDraining, "the sidecar is shutting down")
	}
	if c.session, err = s.options.Host.New(c.peer, c.shutdown); err != nil {
		return nil, err
	}
	c.session.OfferShm()
	c.session.OfferDirect(c.send)
	s.conns[c] = struct{}{}
	return c, nil
}

// turnAway sends a Goodbye without waiting for anybody.
func turnAway(nc *net.UnixConn, e *wire.Error) {
	bye := wire.Goodbye{Code: e.Code, Message: e.Message}
	_ = nc.SetWriteDeadline(time.Now().Add(time.Millisecond))
	_, _ = nc.Write(bye.AppendTo(nil, 0))
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// Drain lets no new client in and removes the socket; sessions go on. The path
// stays locked until Close.
func (s *Server) Drain() {
	s.mu.Lock()
	first := !s.draining
	s.draining = true
	s.mu.Unlock()
	if first {
		s.listener.Stop()
	}
}

// Shutdown cuts all connections with shutdown(2). It does not wait.
func (s *Server) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.shutdown()
	}
}

// Close drains the server, cuts the connections that are left, waits for them and
// unlocks the path. Serve, if it runs, has returned.
func (s *Server) Close() {
	s.Drain()
	s.Shutdown()
	s.serving.Wait()
	s.closed.Do(s.listener.Unlock)
}
