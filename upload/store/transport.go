package store

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Times of a connection.
const (
	connectTimeout = 5 * time.Second
	// idleTimeout is below what load balancers allow, so that a kept connection is rarely
	// one that the other end has just closed.
	idleTimeout = 20 * time.Second
)

// newTransport makes the HTTP/1.1 client of one store. stall is how long a connection may
// take to come about, and to have acknowledged what was sent.
func newTransport(connections int, stall time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: min(connectTimeout, stall), KeepAlive: 15 * time.Second,
		Control: func(_, _ string, raw syscall.RawConn) error {
			var set error
			err := raw.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(stall.Milliseconds()))
			})
			return errors.Join(err, set)
		},
	}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   min(connectTimeout, stall),
		ResponseHeaderTimeout: mostPatience * stall,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   connections,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
		DisableCompression:    true,
	}
}

// attempt is one request on its way.
type attempt struct {
	counters *Counters
	class    Class
	sent     atomic.Bool // a connection was there: the server may have seen it
	watchdog *time.Timer
	stall    time.Duration
}

type attemptKey struct{}

var errStalled = errors.New("no byte moved for too long")

// start gives the context of an attempt, with its deadline and its watchdog, and what ends
// both.
func (a *attempt) start(ctx context.Context, bytes int64, timeout time.Duration, patience float64) (context.Context, context.CancelFunc) {
	deadline := time.Duration(patience * float64(timeout+time.Duration(bytes)*time.Second/slowestBytesPerSecond))
	ctx, cancelDeadline := context.WithTimeoutCause(ctx, deadline, errTooSlow)
	ctx, cancel := context.WithCancelCause(ctx)
	a.stall = time.Duration(patience * float64(timeout))
	a.watchdog = time.AfterFunc(a.stall, func() { cancel(errStalled) })
	ctx = context.WithValue(ctx, attemptKey{}, a)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { a.sent.Store(true) }})
	return ctx, func() {
		a.watchdog.Stop()
		cancel(nil)
		cancelDeadline()
	}
}

var errTooSlow = errors.New("the request took too long")

// slowestBytesPerSecond is what a body may take on top of the first byte.
const slowestBytesPerSecond = 2_000_000

// attempts is the client given to the SDK: it counts, watches bodies move, and follows no
// redirects.
type attempts struct {
	transport http.RoundTripper
}

func (t attempts) Do(request *http.Request) (*http.Response, error) {
	a, ok := request.Context().Value(attemptKey{}).(*attempt)
	if !ok {
		return t.transport.RoundTrip(request)
	}
	if request.Body != nil && request.ContentLength > 0 {
		request.Body = &watched{ReadCloser: request.Body, a: a, count: &a.counters.SentBytes[a.class]}
		if get := request.GetBody; get != nil {
			request.GetBody = func() (io.ReadCloser, error) {
				body, err := get()
				if err != nil {
					return nil, err
				}
				return &watched{ReadCloser: body, a: a, count: &a.counters.SentBytes[a.class]}, nil
			}
		}
	}
	response, err := t.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	a.watchdog.Reset(a.stall)
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		a.counters.skewNanos.Store(int64(time.Until(date)))
	}
	response.Body = &watched{ReadCloser: response.Body, a: a, count: &a.counters.ReceivedBytes[a.class]}
	return response, nil
}

// watched is a body that tells the watchdog when it moves.
type watched struct {
	io.ReadCloser
	a     *attempt
	count *atomic.Uint64
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.count.Add(uint64(n))
		w.a.watchdog.Reset(w.a.stall)
	}
	return n, err
}
