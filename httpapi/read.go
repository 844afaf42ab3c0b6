package httpapi

import (
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/wire"
)

// creditBytes is how much of a read may wait here: what is sent is granted again once the
// client has taken it.
const creditBytes = 256 << 10

// read answers with the records of the stream of the path.
func (x *exchange) read() error {
	q := wire.Read{Credit: creditBytes}
	given, err := x.readStart(&q)
	if err != nil {
		return err
	}
	e, err := x.newEvents(&q.MaxRecords, &q.Follow)
	if err != nil {
		return err
	}
	l, info, err := x.openStream(false)
	if err != nil {
		return err
	}
	if q.Stream = info.ID; !given {
		q.Value = info.FirstOffset
	}
	e.names = map[uint64]string{info.ID: x.name}
	return x.about(e.start(l, &q))
}

// readStart finds out where a read begins: the query says it, or the last event that the
// client has seen. ok is false where neither does.
func (x *exchange) readStart(q *wire.Read) (ok bool, err error) {
	given := 0
	for _, name := range []string{"offset", "last", "since"} {
		text, ok := x.query(name)
		if !ok {
			continue
		}
		given++
		switch name {
		case "offset":
			q.From = wire.FromOffset
			q.Value, err = parseNumber(name, text)
		case "last":
			q.From = wire.FromLast
			q.Value, err = parseNumber(name, text)
		case "since":
			q.From = wire.FromTime
			q.Value, err = parseSince(text)
		}
		if err != nil {
			return false, err
		}
	}
	if given > 1 {
		return false, badRequest("of offset, since and last only one can be given")
	}
	if last, ok := x.header(headerLastID); ok {
		n, err := parseNumber(headerLastID, last)
		if err != nil {
			return false, err
		}
		q.From, q.Value = wire.FromOffset, n
		return true, nil
	}
	return given > 0, nil
}

// parseSince reads a time, or how long ago it was, in nanoseconds since the Unix epoch.
func parseSince(text string) (uint64, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if ago, agoErr := time.ParseDuration(text); agoErr == nil && ago >= 0 {
		t, err = time.Now().Add(-ago), nil
	}
	if err != nil {
		return 0, badRequest("since is a time as RFC 3339 has it (2026-01-02T15:04:05Z), or a duration (10m), not %q", text)
	}
	return uint64(max(t.UnixNano(), 0)), nil
}

// replay answers with the records of the whole log in commit order.
func (x *exchange) replay() error {
	q := wire.Replay{Credit: creditBytes}
	position, _, err := x.queryNumber("position")
	if err != nil {
		return err
	}
	q.Position = position
	e, err := x.newEvents(&q.MaxRecords, &q.Follow)
	if err != nil {
		return err
	}
	e.replay, e.names = true, map[uint64]string{}
	if last, ok := x.header(headerLastID); ok {
		// A position; within a batch, how many of its records the client has seen besides.
		at, seen, inside := strings.Cut(last, ".")
		if q.Position, err = parseNumber(headerLastID, at); err != nil {
			return err
		}
		if inside {
			if e.skip, err = parseNumber(headerLastID, seen); err != nil {
				return err
			}
			e.batch = q.Position
		}
	}
	l, err := x.link()
	if err != nil {
		return err
	}
	return e.start(l, &q)
}

// newEvents reads what a read and a replay have in common.
func (x *exchange) newEvents(limit *uint64, follow *bool) (*events, error) {
	var given bool
	var err error
	if *limit, given, err = x.queryNumber("max"); err != nil {
		return nil, err
	}
	if given && *limit == 0 {
		return nil, badRequest("max is at least 1")
	}
	if *follow, err = x.queryFlag("follow", false); err != nil {
		return nil, err
	}
	if !x.ctx.Request.Header.IsHTTP11() {
		return nil, badRequest("records are sent in chunks, which takes HTTP/1.1")
	}
	return &events{x: x, conn: x.conn, follow: *follow, sse: x.accepts(sseType)}, nil
}

// accepts reports whether the client asks for a type by its full name.
func (x *exchange) accepts(kind string) bool {
	for _, accept := range x.ctx.Request.Header.PeekAll(fasthttp.HeaderAccept) {
		for one := range strings.SplitSeq(string(accept), ",") {
			if name, _, _ := strings.Cut(one, ";"); strings.TrimSpace(name) == kind {
				return true
			}
		}
	}
	return false
}

// start sends the request, waits for the first that comes, and lets fasthttp send it and
// all else. A read that fails before has the status of its error.
func (e *events) start(l *link, question message) error {
	request, err := l.send(question)
	if err != nil {
		return err
	}
	e.link, e.request = l, request
	for len(e.buf) == 0 && !e.done {
		e.fill()
	}
	if e.failure != nil && e.first {
		e.finish()
		return e.failure
	}
	ctx := e.x.ctx
	e.x = nil // what is fasthttp's must not outlive the handler
	kind := ndjsonType
	if e.sse {
		kind = sseType
		ctx.Response.Header.Set("Cache-Control", "no-store")
	}
	ctx.SetStatusCode(fasthttp.StatusOK)
	ctx.SetContentType(kind)
	ctx.SetBodyStream(e, -1)
	return nil
}

// lastID is the id of an event in a read: the offset to go on from.
func lastID(dst []byte, next uint64) []byte { return strconv.AppendUint(dst, next, 10) }
