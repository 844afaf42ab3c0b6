package httpapi

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// events is the body of an answer that brings records: NDJSON, or server-sent events. It
// is used by the goroutine that serves the connection. Of a slow client it holds back
// nothing but its own read: that sends what was granted, and no more is granted before
// the client has taken it.
type events struct {
	x       *exchange // until the handler returns
	conn    *conn
	link    *link
	request uint64 // id of the read
	follow  bool
	sse     bool
	replay  bool
	names   map[uint64]string // of streams, by id

	buf      []byte // not yet written
	reserved int64  // bytes of buf beyond minBuffer that are taken from the budget
	consumed int    // bytes of messages in buf
	first    bool   // nothing but the failure has come
	done     bool   // nothing more comes
	over     bool   // the read has ended at the session
	failure  error  // why it ended early
	broken   error  // the body must not look complete
	unwatch  func() // ends the watch for the client's end; nil: not begun

	// A replay counts the records of a batch, to go on within it.
	batch uint64 // position
	seen  uint64 // records of it that were sent, or skipped
	skip  uint64 // records of it that the client has seen before
}

// minBuffer is how large a buffer comes with the connection.
const minBuffer = 16 << 10

// SupportsBodyWriteTo makes fasthttp call WriteTo, with a chunk and a flush per Write.
func (e *events) SupportsBodyWriteTo() bool { return true }

// Read returns the next bytes.
func (e *events) Read(p []byte) (int, error) {
	if len(e.buf) == 0 {
		if e.done {
			return 0, io.EOF
		}
		if e.next(); e.broken != nil {
			return 0, e.broken
		}
	}
	n := copy(p, e.buf)
	e.buf = e.buf[n:]
	return n, nil
}

// WriteTo writes everything until the read ends or the client does.
func (e *events) WriteTo(w io.Writer) (total int64, err error) {
	if e.follow && e.unwatch == nil {
		e.unwatch = e.conn.watch(e.link.session.Gone)
	}
	for {
		if len(e.buf) > 0 {
			n, err := w.Write(e.buf)
			total += int64(n)
			if err != nil {
				return total, err
			}
			e.buf = e.buf[:0]
		}
		if e.done {
			return total, nil
		}
		if e.next(); e.broken != nil {
			return total, e.broken
		}
	}
}

// Close ends the read. The session goes on with the connection if the read has ended.
func (e *events) Close() error {
	e.finish()
	e.conn.rest()
	return nil
}

func (e *events) finish() {
	if e.unwatch != nil {
		e.unwatch()
		e.unwatch = nil
	}
	if !e.over {
		e.conn.drop()
	}
}

// errPanicked ends the connection.
var errPanicked = errors.New("the answer could not be finished")

// next grants what was taken, and waits for more. A panic here must not take others down.
func (e *events) next() {
	defer func() {
		if cause := recover(); cause != nil {
			e.conn.server.panicked(cause)
			e.broken, e.over = errPanicked, false
		}
	}()
	if e.reserved > maxKeptReserve {
		e.release()
	}
	if e.consumed > 0 && !e.over {
		grant := &wire.Credit{Bytes: uint64(e.consumed)}
		e.consumed = 0
		if err := e.link.write(grant, e.request); err != nil {
			e.fail(err)
			return
		}
	}
	for len(e.buf) == 0 && !e.done {
		e.fill()
	}
}

// fill waits for messages and puts them into the buffer.
func (e *events) fill() {
	if err := e.link.receive(e.visit); err != nil {
		e.fail(err)
	}
}

// fail ends the events with an error, which is the last one.
func (e *events) fail(err error) {
	if e.done {
		return
	}
	e.first = len(e.buf) == 0 && e.x != nil
	e.done, e.failure = true, err
	var w wire.Error
	session.FillError(&w, err)
	e.begin("failure", nil)
	e.buf = append(e.buf, trimNewline(encode(newErrorObject(&w)))...)
	e.end()
}

func trimNewline(line []byte) []byte { return line[:len(line)-1] }

// visit takes a message of the read.
func (e *events) visit(h wire.Header, body []byte) error {
	if h.Request != e.request {
		return unexpected(h)
	}
	switch h.Type {
	case wire.TypeRecords:
		var m wire.Records
		if err := m.Decode(h, body); err != nil {
			return err
		}
		e.consumed += int(h.Length)
		return e.records(m.Records)
	case wire.TypeReplayBatches:
		var m wire.ReplayBatches
		if err := m.Decode(h, body); err != nil {
			return err
		}
		for _, n := range m.Names {
			e.names[n.Stream] = n.Name
		}
		e.consumed += int(h.Length)
		return e.records(m.Records)
	case wire.TypeError:
		e.over = true
		failure := new(wire.Error)
		if err := failure.Decode(h, body); err != nil {
			return err
		}
		return failure
	}
	return e.mark(h, body)
}

// mark takes a message that is no record.
func (e *events) mark(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeGap:
		var m wire.Gap
		if err := m.Decode(h, body); err != nil {
			return err
		}
		e.begin("gap", lastID(nil, m.To))
		e.buf = append(e.buf, trimNewline(encode(gapObject{m.Kind.String(), e.names[m.Stream], m.From, m.To}))...)
	case wire.TypeCaughtUp:
		var m wire.CaughtUp
		if err := m.Decode(h, body); err != nil {
			return err
		}
		e.begin("caught_up", lastID(nil, m.Next))
		e.buf = fmt.Appendf(e.buf, `{"caught_up":true,"next":%d,"durable":%d}`, m.Next, m.Durable)
	case wire.TypeHeartbeat:
		var m wire.Heartbeat
		if err := m.Decode(h, body); err != nil {
			return err
		}
		e.begin("heartbeat", nil)
		e.buf = fmt.Appendf(e.buf, `{"heartbeat":true,"durable":%d}`, m.Durable)
	case wire.TypeEnd:
		var m wire.End
		if err := m.Decode(h, body); err != nil {
			return err
		}
		e.done, e.over = true, true
		if !e.sse {
			return nil // the end of the body says it
		}
		e.begin("end", lastID(nil, m.Next))
		e.buf = fmt.Appendf(e.buf, `{"end":true,"next":%d,"durable":%d}`, m.Next, m.Durable)
	default:
		return unexpected(h)
	}
	e.end()
	return nil
}

// gapObject says which offsets of a stream, or in a replay which positions, are missing.
type gapObject struct {
	Gap    string `json:"gap"`
	Stream string `json:"stream,omitempty"`
	From   uint64 `json:"from"`
	To     uint64 `json:"to"`
}

// records puts records into the buffer.
func (e *events) records(all []wire.Record) error {
	for i := range all {
		r := &all[i]
		if e.replay && e.skipped(r) {
			continue
		}
		stream := e.names[r.Stream]
		if err := e.room(recordBytes(stream, r) + eventBytes); err != nil {
			return err
		}
		e.begin("record", e.idAfter(r))
		e.buf = appendRecord(e.buf, stream, r)
		e.end()
	}
	return nil
}

// skipped counts a record of a replay, and reports whether the client has seen it.
func (e *events) skipped(r *wire.Record) bool {
	if r.Position != e.batch {
		e.batch, e.seen, e.skip = r.Position, 0, 0
	}
	e.seen++
	return e.seen <= e.skip
}

// idAfter is the id of a record's event: where to go on behind it. In a replay that is
// the next position; within a batch its position and how many of its records have come.
func (e *events) idAfter(r *wire.Record) []byte {
	switch {
	case !e.sse:
		return nil
	case !e.replay:
		return lastID(nil, r.Offset+1)
	case r.BatchEnd:
		return lastID(nil, r.Position+1)
	}
	return strconv.AppendUint(append(lastID(nil, r.Position), '.'), e.seen, 10)
}

// eventBytes is the most that begin and end append.
const eventBytes = 96

// begin begins an event; its data has to follow, on one line.
func (e *events) begin(kind string, id []byte) {
	if !e.sse {
		return
	}
	e.buf = append(append(append(e.buf, "event: "...), kind...), '\n')
	if id != nil {
		e.buf = append(append(append(e.buf, "id: "...), id...), '\n')
	}
	e.buf = append(e.buf, "data: "...)
}

// end ends an event.
func (e *events) end() {
	e.buf = append(e.buf, '\n')
	if e.sse {
		e.buf = append(e.buf, '\n')
	}
}

// room makes room for n bytes more in the buffer, under the budget.
func (e *events) room(n int) error {
	if len(e.buf)+n <= cap(e.buf) {
		return nil
	}
	size := max(minBuffer, 2*cap(e.buf), len(e.buf)+n)
	more := int64(size-minBuffer) - e.reserved
	if more > 0 && !e.conn.take(more) {
		return &wire.Error{Code: wire.CodeOutOfMemory, Message: "no memory to write the record as JSON"}
	}
	e.reserved += max(more, 0)
	e.buf = append(make([]byte, 0, size), e.buf...)
	return nil
}

// maxKeptReserve is how much of the budget a buffer keeps from one message to the next.
const maxKeptReserve = 512 << 10

// release gives the buffer back.
func (e *events) release() {
	e.buf = nil
	e.conn.give(e.reserved)
	e.reserved = 0
}
