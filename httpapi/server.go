// Package httpapi is the HTTP door on a Unix socket of its own: curl is a client. It
// carries requests of HTTP to the messages of package wire and their answers back; what
// they mean, the limits of a client and the errors are those of package session, as for
// the other doors. openapi.json describes it, and the tests hold the two together.
//
// A connection is a session: it is opened by the first request that needs one, works on
// one request at a time, and ends with the connection. Nothing that a client sends is
// kept beyond its request, and what it makes the process hold is taken from the same
// [session.Budget].
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

// setting names the path of this door's socket.
const setting = "WALSIDECAR_HTTP"

// Limits of the door, beside those of package session.
const (
	// MaxConnections is how many clients the door takes at once.
	MaxConnections = 256

	// MaxBodyBytes is the longest body of a request. A single record has less, and a
	// batch has to fit one frame of the log, see docs/protocol.md.
	MaxBodyBytes = 8 << 20

	// MaxLines is how many records the body of one request may have as lines.
	MaxLines = 65536

	// maxHeaderBytes bounds the request line with the headers. Headers of a record
	// take up to wire.MaxHeadersBytes of it.
	maxHeaderBytes = 32 << 10

	// connectionBytes is what a connection takes of the budget for as long as it is
	// open: the buffers of fasthttp and a stack. Its session takes its own.
	connectionBytes = maxHeaderBytes + 32<<10
)

// Times after which a connection is ended. A zero field of Options.Times takes the
// value named here.
type Times struct {
	Request time.Duration // RequestWithin
	Idle    time.Duration // IdleAfter
	Slow    time.Duration // session.SlowAfter
}

// The default times.
const (
	// RequestWithin is how long a request may take from its first byte to its last.
	RequestWithin = 30 * time.Second

	// IdleAfter is how long a connection may wait between two requests.
	IdleAfter = time.Minute
)

// Options of a Server. Path, Host and Budget must be given.
type Options struct {
	Path   string         // of the socket, at most uds.MaxPathBytes
	Mode   fs.FileMode    // of the socket; 0: uds.DefaultMode
	Access session.Access // who may connect; see uds.OwnAccess
	Host   *session.Host
	Budget *session.Budget // that of Host
	Logger *slog.Logger    // nil: slog.Default()
	Times  Times           // where they differ from the defaults
}

// Server is one listening socket with its connections. It is safe for concurrent use.
type Server struct {
	options  Options
	listener *uds.Listener
	http     fasthttp.Server
	turning  chan struct{} // has a place for each client that is being turned away
	serving  sync.WaitGroup

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
	stop     context.CancelFunc // ends the waiting of Drain
	closed   sync.Once
}

// maxTurnedAway is how many clients are told at once why they may not connect; others
// are cut without a word.
const maxTurnedAway = 16

// Listen makes the socket; clients can connect, and wait until Serve runs. The error
// wraps uds.ErrInUse, uds.ErrPathTooLong or uds.ErrNotASocket where it is one of those.
func Listen(o Options) (*Server, error) {
	if o.Mode == 0 {
		o.Mode = uds.DefaultMode
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.Times.Request, RequestWithin)
	set(&o.Times.Idle, IdleAfter)
	set(&o.Times.Slow, session.SlowAfter)
	l, err := uds.NewListener(o.Path, o.Mode, setting)
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, listener: l, turning: make(chan struct{}, maxTurnedAway), conns: map[*conn]struct{}{}}
	s.http = fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.unreadable,
		Concurrency:                  2 * MaxConnections, // accept keeps the limit
		ReadBufferSize:               maxHeaderBytes,
		ReadTimeout:                  o.Times.Request,
		IdleTimeout:                  o.Times.Idle,
		MaxRequestBodySize:           MaxBodyBytes,
		StreamRequestBody:            true, // memory for it is asked for first
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		Logger:                       quiet{o.Logger},
	}
	return s, nil
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.options.Path }

// Serve accepts connections until Drain or Close, and returns nil then. It is called
// once.
func (s *Server) Serve() error {
	if err := s.http.Serve(acceptor{s}); err != nil {
		return fmt.Errorf("accept on socket %s: %w", s.options.Path, err)
	}
	return nil
}

// Drain lets no new client in, removes the socket, and ends connections that wait for
// a request; requests under way go on, and their answers close the connection. The path
// stays locked until Close.
func (s *Server) Drain() {
	s.mu.Lock()
	first := !s.draining
	s.draining = true
	var ctx context.Context
	if first {
		ctx, s.stop = context.WithCancel(context.Background())
	}
	s.mu.Unlock()
	if first {
		s.listener.Stop()
		go func() { _ = s.http.ShutdownWithContext(ctx) }() // its error is that of ctx
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
// unlocks the path.
func (s *Server) Close() {
	s.Drain()
	s.Shutdown()
	s.serving.Wait()
	s.closed.Do(func() {
		s.stop()
		s.listener.Unlock()
	})
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// acceptor is the listener as fasthttp sees it: it returns connections of clients that
// may be served, and io.EOF when there will be no more.
type acceptor struct{ s *Server }

// acceptPause is how long Accept waits when the process has no file descriptor or
// memory for a client.
const acceptPause = 100 * time.Millisecond

// Accept is what fasthttp calls.
func (a acceptor) Accept() (net.Conn, error) {
	for {
		nc, err := a.s.listener.Accept()
		switch {
		case err == nil:
			if c := a.s.admit(nc.(*net.UnixConn)); c != nil {
				return c, nil
			}
		case a.s.isDraining():
			return nil, io.EOF
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
			// The client waits in the backlog until others have left.
			a.s.options.Logger.Error("cannot accept a client", "socket", a.s.options.Path, "error", err.Error())
			time.Sleep(acceptPause)
		case errors.Is(err, unix.ECONNABORTED):
		default:
			return nil, err
		}
	}
}

// Close and Addr are what fasthttp calls.
func (a acceptor) Close() error   { a.s.listener.Stop(); return nil }
func (a acceptor) Addr() net.Addr { return a.s.listener.Addr() }

// admit returns the connection of a client that may be served; others are told why not.
func (s *Server) admit(nc *net.UnixConn) *conn {
	c, err := s.open(nc)
	if err == nil {
		return c
	}
	var e *wire.Error
	if !errors.As(err, &e) {
		_ = nc.Close()
		return nil
	}
	select {
	case s.turning <- struct{}{}:
		go func() {
			turnAway(nc, e)
			<-s.turning
		}()
	default:
		_ = nc.Close()
	}
	return nil
}

func (s *Server) open(nc *net.UnixConn) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	peer, err := uds.PeerOf(raw)
	if err != nil {
		return nil, err
	}
	refuse := func(code wire.Code, message string) error { return s.options.Host.Refuse(peer, code, message) }
	if !s.options.Access.Allows(peer) {
		return nil, refuse(wire.CodeUnauthorized,
			fmt.Sprintf("user %d, group %d may not use this socket: run as a user or group that the sidecar allows", peer.UID, peer.GID))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, refuse(wire.CodeDraining, "the sidecar is shutting down")
	case len(s.conns) >= MaxConnections:
		return nil, refuse(wire.CodeTooManySessions, fmt.Sprintf("%d HTTP clients are connected, which is the limit", MaxConnections))
	case !s.options.Budget.Take(connectionBytes):
		return nil, refuse(wire.CodeOutOfMemory, fmt.Sprintf("a connection takes %d bytes, and %d of %d are in use",
			connectionBytes, s.options.Budget.Used(), s.options.Budget.Total()))
	}
	c := &conn{Conn: nc, raw: raw, peer: peer, server: s}
	s.conns[c] = struct{}{}
	s.serving.Add(1)
	return c, nil
}

// quiet passes fasthttp's own messages on at debug level: they are about clients that
// hang up or send garbage.
type quiet struct{ log *slog.Logger }

// Printf is what fasthttp calls.
func (q quiet) Printf(format string, args ...any) {
	q.log.Debug("HTTP door", "message", fmt.Sprintf(format, args...))
}
