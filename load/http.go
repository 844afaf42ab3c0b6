package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/httpapi"
	"github.com/walsidecar/walsidecar/wire"
)

// doorHTTP is the door on which each record is a request, and each record in flight has
// a connection of its own.
const doorHTTP = "http"

// MaxOverHTTP is how many records of all producers together can be in flight over HTTP.
// A few connections are left to others.
const MaxOverHTTP = httpapi.MaxConnections - 16

// httpSuffix makes the path of the HTTP door's socket of the path of the other.
const httpSuffix = ".http"

// web is a client of the HTTP door.
type web struct{ client fasthttp.HostClient }

func newWeb(socket string, connections int) *web {
	return &web{fasthttp.HostClient{
		Addr: "wal", MaxConns: connections, NoDefaultUserAgentHeader: true, DisablePathNormalizing: true,
		Dial:       func(string) (net.Conn, error) { return net.Dial("unix", socket) },
		RetryIfErr: func(*fasthttp.Request, int, error) (resetTimeout, retry bool) { return false, false },
	}}
}

// fullPause is how long a producer waits before it tries a full log again.
const fullPause = time.Millisecond

// append appends a record and returns its offset once it is durable.
func (w *web) append(ctx context.Context, stream string, payload []byte) (uint64, error) {
	for {
		status, body, err := w.do(fasthttp.MethodPost, "/v1/streams/"+url.PathEscape(stream)+"/records", payload)
		switch {
		case err != nil:
			return 0, err
		case status == fasthttp.StatusOK:
			_, rest, _ := bytes.Cut(body, []byte(`"offset":`))
			digits, _, _ := bytes.Cut(rest, []byte(","))
			return strconv.ParseUint(string(digits), 10, 64)
		case status != wire.CodeLogFull.Info().HTTPStatus:
			return 0, fmt.Errorf("append over HTTP: status %d: %s", status, body)
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(fullPause):
		}
	}
}

// ping asks whether the door serves, which takes a round trip and no more.
func (w *web) ping() error {
	status, body, err := w.do(fasthttp.MethodGet, "/v1/health", nil)
	if err == nil && status != fasthttp.StatusOK {
		err = fmt.Errorf("health over HTTP: status %d: %s", status, body)
	}
	return err
}

func (w *web) do(method, path string, payload []byte) (status int, body []byte, err error) {
	q, a := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(q)
	defer fasthttp.ReleaseResponse(a)
	q.Header.SetMethod(method)
	q.SetRequestURI("http://wal" + path)
	q.SetBodyRaw(payload)
	if err := w.client.Do(q, a); err != nil {
		return 0, nil, fmt.Errorf("%s %s over HTTP: %w", method, path, err)
	}
	return a.StatusCode(), bytes.Clone(a.Body()), nil
}

// overHTTP keeps InFlight requests in flight, each of a goroutine of its own: as many as
// go through, or at the times that the rate gives.
func (p *producer) overHTTP(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent atomic.Int64
	var group sync.WaitGroup
	for range p.g.cell.InFlight {
		group.Go(func() {
			for ctx.Err() == nil {
				n := int(sent.Add(1)) - 1
				due := time.Now()
				if p.g.cell.RatePerSecond > 0 {
					due = p.due(n)
				}
				if !due.Before(p.until) {
					return
				}
				time.Sleep(time.Until(due))
				offset, err := p.g.web.append(ctx, p.g.streams[p.session], p.record(n))
				if err != nil {
					cancel(err)
					return
				}
				p.count(due, time.Now(), offset)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		p.err = err
	}
}
