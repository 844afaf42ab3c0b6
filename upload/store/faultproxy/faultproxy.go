// Package faultproxy stands between an S3 client and its server in tests and does what
// networks and servers do: loses answers, delays, throttles, truncates, hangs, resets.
// Faults are scripted (Inject) or drawn from a seed (Randomly).
package faultproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what happens to one request.
type Fault uint8

// The faults. "Carried out" means that the server did what it was asked.
const (
	None Fault = iota
	// Slow carries it out after Rule.Delay.
	Slow
	// SlowDown answers 503 SlowDown; not carried out.
	SlowDown
	// InternalError answers 500; not carried out.
	InternalError
	// InternalErrorAfter answers 500; carried out all the same.
	InternalErrorAfter
	// BadGateway answers 502 without a body, as a load balancer does; carried out.
	BadGateway
	// Conflict answers 409 ConditionalRequestConflict; not carried out.
	Conflict
	// Denied answers 403 AccessDenied; not carried out.
	Denied
	// Skewed answers 403 RequestTimeTooSkewed, by a clock an hour ahead; not carried out.
	Skewed
	// Reset breaks the connection; not carried out.
	Reset
	// DropResponse breaks the connection; carried out.
	DropResponse
	// Late breaks the connection at once; carried out after Rule.Delay.
	Late
	// Hang never answers; not carried out.
	Hang
	// HangAfter never answers; carried out.
	HangAfter
	// Truncate breaks the connection in the middle of the answer's body; carried out.
	Truncate
	// HangBody stops in the middle of the answer's body, for ever; carried out.
	HangBody
	faults
)

// String names the fault.
func (f Fault) String() string {
	return [...]string{"none", "slow", "slow down", "internal error", "internal error after", "bad gateway", "conflict",
		"denied", "skewed", "reset", "drop response", "late", "hang", "hang after", "truncate", "hang body"}[f]
}

// Rule is a fault for the requests it matches.
type Rule struct {
	Method string // empty: any
	// Path is a part of bucket and key as the client sent them; empty: any.
	Path  string
	Fault Fault
	Delay time.Duration // of Slow and Late
	// Skip lets that many matching requests pass first.
	Skip int
	// Times is how many requests it is for; 0: one; negative: all.
	Times int
}

// Request is one that the proxy saw.
type Request struct {
	Method, Path, Query, Range string
	Fault                      Fault
}

// Proxy is a running one. Its methods may be called at any time.
type Proxy struct {
	// Endpoint is http://127.0.0.1:port.
	Endpoint string

	upstream *url.URL
	client   *http.Transport
	closed   context.Context
	late     sync.WaitGroup

	mu     sync.Mutex
	rules  []Rule
	random *rand.Rand
	rates  map[Fault]float64
	slow   time.Duration
	seen   []Request
}

// Start starts a proxy before the server at upstream; it ends with the test.
func Start(t testing.TB, upstream string) *Proxy {
	t.Helper()
	target, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed, closeAll := context.WithCancel(context.Background())
	p := &Proxy{Endpoint: "http://" + listener.Addr().String(), upstream: target, closed: closed,
		client: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	server := &http.Server{Handler: p}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		closeAll()
		_ = server.Close()
		<-served
		p.WaitLate()
		p.client.CloseIdleConnections()
	})
	return p
}

// Inject adds rules; of several that match, the first counts.
func (p *Proxy) Inject(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range rules {
		if r.Times == 0 {
			r.Times = 1
		}
		p.rules = append(p.rules, r)
	}
}

// Randomly draws a fault for each request that no rule matches, each with its rate (0 to
// 1); Slow and Late delay by up to delay. The same seed and the same order of requests give
// the same faults.
func (p *Proxy) Randomly(seed uint64, delay time.Duration, rates map[Fault]float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random, p.rates, p.slow = rand.New(rand.NewPCG(seed, 0)), rates, delay
}

// Heal ends all faults.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.random, p.rates = nil, nil, nil
}

// Requests are all that came so far.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Request(nil), p.seen...)
}

// Count is how many requests came with that method (empty: any) and that part of the path.
func (p *Proxy) Count(method, path string) int {
	n := 0
	for _, r := range p.Requests() {
		if (method == "" || r.Method == method) && strings.Contains(r.Path, path) {
			n++
		}
	}
	return n
}

// WaitLate waits until all Late requests were carried out; requests that come meanwhile wait
// too.
func (p *Proxy) WaitLate() {
	p.mu.Lock() // after whatever was chosen before
	defer p.mu.Unlock()
	p.late.Wait()
}

func (p *Proxy) choose(r *http.Request) (Fault, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fault, delay := p.match(r)
	p.seen = append(p.seen, Request{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("Range"), fault})
	if fault == Late {
		p.late.Add(1)
	}
	return fault, delay
}

func (p *Proxy) match(r *http.Request) (Fault, time.Duration) {
	for i := range p.rules {
		rule := &p.rules[i]
		if (rule.Method != "" && rule.Method != r.Method) || !strings.Contains(r.URL.Path, rule.Path) || rule.Times == 0 {
			continue
		}
		if rule.Skip > 0 {
			rule.Skip--
			continue
		}
		if rule.Times > 0 {
			rule.Times--
		}
		return rule.Fault, rule.Delay
	}
	if p.random != nil {
		draw, delay := p.random.Float64(), time.Duration(p.random.Int64N(int64(p.slow)+1))
		for f := None; f < faults; f++ {
			if draw -= p.rates[f]; draw < 0 {
				return f, delay
			}
		}
	}
	return None, 0
}

// ServeHTTP carries out one request, or does not.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault, delay := p.choose(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		if fault == Late {
			p.late.Done()
		}
		panic(http.ErrAbortHandler)
	}
	switch fault {
	case Slow:
		p.sleep(r.Context(), delay)
	case SlowDown:
		answer(w, http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
		return
	case InternalError:
		answer(w, http.StatusInternalServerError, "InternalError", "We encountered an internal error. Please try again.")
		return
	case Conflict:
		answer(w, http.StatusConflict, "ConditionalRequestConflict", "A conflicting operation is under way.")
		return
	case Denied:
		answer(w, http.StatusForbidden, "AccessDenied", "Access Denied")
		return
	case Skewed:
		w.Header().Set("Date", time.Now().UTC().Add(time.Hour).Format(http.TimeFormat))
		answer(w, http.StatusForbidden, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.")
		return
	case Reset:
		reset(w)
	case Hang:
		p.hang(r)
	case Late:
		out, err := p.outgoing(r, body)
		go func() {
			defer p.late.Done()
			p.sleep(context.Background(), delay)
			if err != nil {
				return
			}
			if response, err := p.client.RoundTrip(out); err == nil {
				response.Body.Close()
			}
		}()
		reset(w)
	}
	p.carryOut(w, r, body, fault)
}

func (p *Proxy) carryOut(w http.ResponseWriter, r *http.Request, body []byte, fault Fault) {
	out, err := p.outgoing(r, body)
	if err != nil {
		reset(w)
	}
	response, err := p.client.RoundTrip(out)
	if err != nil {
		reset(w)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		reset(w)
	}
	switch fault {
	case DropResponse:
		reset(w)
	case HangAfter:
		p.hang(r)
	case InternalErrorAfter:
		answer(w, http.StatusInternalServerError, "InternalError", "We encountered an internal error. Please try again.")
		return
	case BadGateway:
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	if r.Method != http.MethodHead {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	}
	w.WriteHeader(response.StatusCode)
	if (fault == Truncate || fault == HangBody) && r.Method != http.MethodHead {
		_, _ = w.Write(content[:len(content)/2])
		_ = http.NewResponseController(w).Flush()
		if fault == HangBody {
			p.hang(r)
		}
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(content)
}

// outgoing is the request to the server, with the host that the client signed. It goes on
// when the client has given up meanwhile: "carried out" is a promise to tests.
func (p *Proxy) outgoing(r *http.Request, body []byte) (*http.Request, error) {
	target := *r.URL
	target.Scheme, target.Host = p.upstream.Scheme, p.upstream.Host
	out, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header, out.Host, out.ContentLength = r.Header.Clone(), r.Host, int64(len(body))
	return out, nil
}

func answer(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, message)
}

// reset breaks the connection with an RST and ends the handler.
func reset(w http.ResponseWriter) {
	if connection, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if tcp, ok := connection.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		connection.Close()
	}
	panic(http.ErrAbortHandler)
}

// hang waits until the client gives up or the proxy ends, and ends the handler.
func (p *Proxy) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-p.closed.Done():
	}
	panic(http.ErrAbortHandler)
}

func (p *Proxy) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-p.closed.Done():
	}
}
