// Package admin answers read-only HTTP requests about the sidecar on a listener of its
// own: /healthz, /readyz, /metrics, /status and, if asked for, /debug/pprof/. It changes
// nothing, so it needs no more protection than its address.
package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"
	"github.com/valyala/fasthttp/pprofhandler"
)

// Limits of the listener. They hold back a broken scraper, and are far above what one
// that works needs.
const (
	maxConnections  = 64
	maxRequestBytes = 16 << 10
	readTimeout     = 5 * time.Second
	idleTimeout     = 2 * time.Minute
	// writeTimeout must be longer than a profile takes (30 s unless asked otherwise).
	writeTimeout = 2 * time.Minute
)

// Options are what the server shows. All functions are called from several goroutines,
// and must return at once: a probe has a timeout.
type Options struct {
	Address  string              // HOST:PORT to listen on
	PProf    bool                // serve /debug/pprof/
	Parked   func() error        // the fatal error that the sidecar is parked on, nil while it works
	Ready    func() error        // why clients cannot be served now, nil when they can
	Status   func() any          // encoded as JSON for /status
	Gatherer prometheus.Gatherer // for /metrics
	Log      *slog.Logger
}

// Server is a listener with its handler. It serves from Listen to Close.
type Server struct {
	options  Options
	listener net.Listener
	http     fasthttp.Server
	metrics  fasthttp.RequestHandler
	done     chan struct{} // closed when Serve has returned
}

// Listen opens the listener and serves in the background.
func Listen(o Options) (*Server, error) {
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("admin address (WALSIDECAR_ADMIN): %w", err)
	}
	s := &Server{
		options:  o,
		listener: l,
		metrics:  fasthttpadaptor.NewFastHTTPHandler(promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 4})),
		done:     make(chan struct{}),
	}
	s.http = fasthttp.Server{
		Handler:               s.recovering,
		Concurrency:           maxConnections,
		MaxRequestBodySize:    maxRequestBytes,
		ReadTimeout:           readTimeout,
		WriteTimeout:          writeTimeout,
		IdleTimeout:           idleTimeout,
		NoDefaultServerHeader: true,
		CloseOnShutdown:       true,
		Logger:                quiet{o.Log},
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			o.Log.Error("the admin address is no longer served", "error", err.Error())
		}
	}()
	return s, nil
}

// Addr is the address listened on, with the port that the kernel chose for port 0.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close stops listening and waits for requests under way until ctx is done.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.ShutdownWithContext(ctx)
	// Shutdown knows nothing of a listener whose Serve has not begun yet.
	_ = s.listener.Close()
	select {
	case <-s.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recovering answers 500 when the handler panics: fasthttp would end the process, and a
// status page must never take the log down.
func (s *Server) recovering(ctx *fasthttp.RequestCtx) {
	defer func() {
		if cause := recover(); cause != nil {
			s.options.Log.Error("admin request panicked", "path", string(ctx.Path()), "cause", cause, "stack", string(debug.Stack()))
			ctx.ResetBody()
			answer(ctx, fasthttp.StatusInternalServerError, "internal error")
		}
	}()
	s.handle(ctx)
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	if !ctx.IsGet() && !ctx.IsHead() {
		ctx.Response.Header.Set("Allow", "GET, HEAD")
		answer(ctx, fasthttp.StatusMethodNotAllowed, "read-only: GET and HEAD")
		return
	}
	switch path := string(ctx.Path()); {
	case path == "/healthz":
		s.healthz(ctx)
	case path == "/readyz":
		s.readyz(ctx)
	case path == "/metrics":
		s.metrics(ctx)
	case path == "/status":
		s.status(ctx)
	case s.options.PProf && bytes.HasPrefix(ctx.Path(), []byte("/debug/pprof/")):
		pprofhandler.PprofHandler(ctx)
	default:
		answer(ctx, fasthttp.StatusNotFound, "here are /healthz, /readyz, /metrics and /status")
	}
}

// healthz says that the process is alive, no more: killing it would help against neither
// an unreachable store nor a slow device, and one that is parked was told to stay.
func (s *Server) healthz(ctx *fasthttp.RequestCtx) {
	if err := s.options.Parked(); err != nil {
		answer(ctx, fasthttp.StatusOK, "parked: "+err.Error())
		return
	}
	answer(ctx, fasthttp.StatusOK, "ok")
}

func (s *Server) readyz(ctx *fasthttp.RequestCtx) {
	if err := s.options.Ready(); err != nil {
		answer(ctx, fasthttp.StatusServiceUnavailable, "not ready: "+err.Error())
		return
	}
	answer(ctx, fasthttp.StatusOK, "ready")
}

func (s *Server) status(ctx *fasthttp.RequestCtx) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s.options.Status()); err != nil {
		answer(ctx, fasthttp.StatusInternalServerError, err.Error())
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(body.Bytes())
}

func answer(ctx *fasthttp.RequestCtx, status int, text string) {
	ctx.SetStatusCode(status)
	ctx.SetContentType("text/plain; charset=utf-8")
	ctx.SetBodyString(text + "\n")
}

// quiet passes fasthttp's own messages on at debug level: they are about clients that
// hang up or send garbage.
type quiet struct{ log *slog.Logger }

// Printf is what fasthttp calls.
func (q quiet) Printf(format string, args ...any) {
	q.log.Debug("admin listener", "message", fmt.Sprintf(format, args...))
}
