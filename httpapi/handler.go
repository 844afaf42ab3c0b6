package httpapi

import (
	"errors"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// Content types.
const (
	jsonType   = "application/json"
	ndjsonType = "application/x-ndjson"
	sseType    = "text/event-stream"
)

// Names of the headers that a request may carry. One that begins with headerPrefix and
// is not known is refused: it may be a condition with a typing error.
const (
	headerPrefix   = "Walsidecar-"
	headerLog      = "Walsidecar-Log"
	headerExpect   = "Walsidecar-Expect-Offset"
	headerToken    = "Walsidecar-Token"
	headerProducer = "Walsidecar-Producer"
	headerSequence = "Walsidecar-Sequence"
	headerRecord   = "Walsidecar-Header-" // and the key of a header of the record
	headerLastID   = "Last-Event-ID"
)

// route is one method of one path. A segment "{name}" stands for any name, percent-encoded.
type route struct {
	method, path string
	query        []string // parameters that it knows
	headers      []string // of headerPrefix that it knows, beside headerLog
	serve        func(*exchange) error
}

var appendHeaders = []string{headerExpect, headerToken, headerProducer, headerSequence, headerRecord}

// routes are all there is; openapi.json describes each.
var routes = []route{
	{method: "GET", path: "/v1/openapi.json", serve: (*exchange).openAPI},
	{method: "GET", path: "/v1/health", serve: (*exchange).health},
	{method: "GET", path: "/v1/status", serve: (*exchange).status},
	{method: "GET", path: "/v1/streams", query: []string{"prefix", "after", "limit"}, serve: (*exchange).listStreams},
	{method: "GET", path: "/v1/streams/{name}", serve: (*exchange).statStream},
	{method: "PUT", path: "/v1/streams/{name}", serve: (*exchange).createStream},
	{method: "DELETE", path: "/v1/streams/{name}", serve: (*exchange).deleteStream},
	{method: "POST", path: "/v1/streams/{name}/seal", serve: (*exchange).sealStream},
	{method: "PUT", path: "/v1/streams/{name}/token", serve: (*exchange).setToken},
	{method: "POST", path: "/v1/streams/{name}/trim", serve: (*exchange).trim},
	{method: "GET", path: "/v1/streams/{name}/records", query: []string{"offset", "since", "last", "max", "follow"}, serve: (*exchange).read},
	{method: "POST", path: "/v1/streams/{name}/records", query: []string{"create"}, headers: appendHeaders, serve: (*exchange).append},
	{method: "POST", path: "/v1/batch", query: []string{"create"}, serve: (*exchange).appendBatch},
	{method: "GET", path: "/v1/replay", query: []string{"position", "max", "follow"}, serve: (*exchange).replay},
	{method: "GET", path: "/v1/producers/{name}", serve: (*exchange).statProducer},
	{method: "PUT", path: "/v1/producers/{name}", serve: (*exchange).openProducer},
	{method: "DELETE", path: "/v1/producers/{name}", serve: (*exchange).removeProducer},
}

// exchange is one request and its answer.
type exchange struct {
	server *Server
	ctx    *fasthttp.RequestCtx
	conn   *conn
	name   string // of the path, a copy
}

// handle answers a request. A panic costs the client its connection and nobody else
// anything.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	x := &exchange{server: s, ctx: ctx, conn: ctx.Conn().(*conn)}
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked(cause)
			x.conn.drop()
			ctx.Response.Reset()
			x.fail(&wire.Error{Code: wire.CodeInternal, Message: "the request could not be served"})
			ctx.SetConnectionClose()
		}
		if !ctx.Response.IsBodyStream() { // that goes on when this has returned
			x.conn.rest()
		}
	}()
	if err := x.dispatch(); err != nil {
		x.discard()
		x.fail(err)
	}
}

func (s *Server) panicked(cause any) {
	s.options.Logger.Error("HTTP request panicked", "cause", cause, "stack", string(debug.Stack()))
}

// dispatch finds the route of the request and serves it.
func (x *exchange) dispatch() error {
	segments := strings.Split(string(x.ctx.Request.URI().PathOriginal()), "/")
	method := string(x.ctx.Method())
	var allowed []string
	for i := range routes {
		r := &routes[i]
		name, ok := match(r.path, segments)
		switch {
		case !ok:
		case r.method != method:
			allowed = append(allowed, r.method)
		default:
			x.name = name
			if err := x.check(r); err != nil {
				return err
			}
			return r.serve(x)
		}
	}
	if allowed == nil {
		return &wire.Error{Code: wire.CodeNotFound, Message: "there is nothing at this path", Hint: "GET /v1/openapi.json lists what there is"}
	}
	x.ctx.Response.Header.Set("Allow", strings.Join(allowed, ", "))
	x.fail(&wire.Error{Code: wire.CodeBadRequest, Message: "this path does not take " + method, Hint: "GET /v1/openapi.json lists what there is"})
	x.ctx.SetStatusCode(fasthttp.StatusMethodNotAllowed)
	return nil
}

// match reports whether a path has the segments, and returns what stands for its name.
func match(path string, segments []string) (name string, ok bool) {
	i := 0
	for want := range strings.SplitSeq(path, "/") {
		switch {
		case i >= len(segments):
			return "", false
		case want == "{name}":
			var err error
			if name, err = url.PathUnescape(segments[i]); err != nil || name == "" {
				return "", false
			}
		case want != segments[i]:
			return "", false
		}
		i++
	}
	return name, i == len(segments)
}

// check refuses what the route does not know: a condition or a limit with a typing error
// must not be ignored.
func (x *exchange) check(r *route) error {
	for key := range x.ctx.QueryArgs().All() {
		if !slices.Contains(r.query, string(key)) {
			return badRequest("unknown query parameter %q; here are %s", key, orNone(r.query))
		}
	}
	for key := range x.ctx.Request.Header.All() {
		name := string(key)
		if !strings.HasPrefix(name, headerPrefix) || name == headerLog {
			continue
		}
		known := slices.ContainsFunc(r.headers, func(h string) bool {
			return h == name || h == headerRecord && strings.HasPrefix(name, h) && name != h
		})
		if !known {
			return badRequest("unknown header %q; here are %s", name, orNone(r.headers))
		}
	}
	return nil
}

func orNone(known []string) string {
	if len(known) == 0 {
		return "none"
	}
	return strings.Join(known, ", ")
}

func badRequest(format string, args ...any) error {
	return &wire.Error{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...), Hint: "GET /v1/openapi.json describes the requests"}
}

// link returns the session that serves the request.
func (x *exchange) link() (*link, error) {
	header := &x.ctx.Request.Header
	client := "http " + string(header.UserAgent())
	return x.conn.session(string(header.Peek(headerLog)), client[:min(len(client), wire.MaxClientNameBytes)])
}

// header returns a copy of a header; ok is false where the request has none.
func (x *exchange) header(name string) (value string, ok bool) {
	b := x.ctx.Request.Header.Peek(name)
	return string(b), b != nil
}

// number returns a header as a number; ok is false where the request has none.
func (x *exchange) number(name string) (n uint64, ok bool, err error) {
	text, ok := x.header(name)
	if !ok {
		return 0, false, nil
	}
	n, err = parseNumber(name, text)
	return n, true, err
}

// query returns a copy of a parameter of the query.
func (x *exchange) query(name string) (value string, ok bool) {
	args := x.ctx.QueryArgs()
	return string(args.Peek(name)), args.Has(name)
}

// queryNumber returns a parameter of the query as a number.
func (x *exchange) queryNumber(name string) (n uint64, ok bool, err error) {
	text, ok := x.query(name)
	if !ok {
		return 0, false, nil
	}
	n, err = parseNumber(name, text)
	return n, true, err
}

// queryFlag returns a parameter of the query that is true or false.
func (x *exchange) queryFlag(name string, byDefault bool) (bool, error) {
	text, ok := x.query(name)
	switch {
	case !ok:
		return byDefault, nil
	case text == "true":
		return true, nil
	case text == "false":
		return false, nil
	}
	return false, badRequest("%s is true or false, not %q", name, text)
}

func parseNumber(name, text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("%s is a whole number from 0 to 18446744073709551615, not %q", name, text)
	}
	return n, nil
}

// reply answers with an object.
func (x *exchange) reply(status int, object any) error {
	x.ctx.SetStatusCode(status)
	x.ctx.SetContentType(jsonType)
	x.ctx.SetBody(encode(object))
	return nil
}

// fail answers with an error.
func (x *exchange) fail(err error) { failWith(x.ctx, err) }

func failWith(ctx *fasthttp.RequestCtx, err error) {
	var e wire.Error
	session.FillError(&e, err)
	info := e.Code.Info()
	ctx.SetStatusCode(info.HTTPStatus)
	if info.Retriable {
		ctx.Response.Header.Set("Retry-After", "1")
	}
	ctx.SetContentType(jsonType)
	ctx.SetBody(encode(newErrorObject(&e)))
}

// unreadable answers what fasthttp could not read as a request.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &small):
		failWith(ctx, badRequest("the request line and its headers have more than %d bytes", maxHeaderBytes))
		ctx.SetStatusCode(fasthttp.StatusRequestHeaderFieldsTooLarge)
	case errors.As(err, &timeout) && timeout.Timeout():
		failWith(ctx, s.slow())
	default:
		failWith(ctx, badRequest("not a request of HTTP/1.1"))
	}
}
