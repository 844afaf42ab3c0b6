package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

const (
	// maxLinesInFlight and maxLineBytesInFlight bound what is sent before it is answered.
	// Refusals of that many fit session.MaxOutputBytes, and their bytes
	// session.MaxRequestBytes, so that sending never waits for receiving.
	maxLinesInFlight     = 128
	maxLineBytesInFlight = 1 << 20

	// lineFactor is what a line takes at most per byte: it is read, and in a message.
	lineFactor = 3
)

// lines appends each line of a body as a record, and collects the answers in order.
type lines struct {
	x          *exchange
	link       *link
	conditions conditions
	flight     flight
	bytes      int // in flight, at most
	read       int // lines
	sent       int // number of the last line in flight
	out        []byte
	reserved   int64 // bytes of out that are taken from the budget
	failed     bool  // a line was refused
}

// appendLines answers with one line per line of the body: the place of the record, or an
// error. Without a producer each line is tried; the expected offset, if there is one, is
// the first line's and grows by one. Under a producer the sequence grows by one from line
// to line, and the first refusal ends it: a later sequence in the log would make the
// refused one a duplicate for ever.
func (x *exchange) appendLines(c *conditions) error {
	if x.length() > MaxBodyBytes {
		return errBodyTooLong(MaxBodyBytes)
	}
	l, err := x.link()
	if err != nil {
		return err
	}
	// What concerns every line is found before the first; ids are asked for anew, so that
	// none is outdated.
	if _, err := x.request(l, c, nil, true); err != nil {
		return err
	}
	if err := x.reserve(lineFactor * wire.MaxFrameBytes); err != nil {
		return err
	}
	all := &lines{x: x, link: l, conditions: *c, flight: flight{link: l}}
	all.run(bufio.NewReaderSize(io.LimitReader(x.content(), MaxBodyBytes+1), bodyStep))
	x.ctx.SetStatusCode(fasthttp.StatusOK)
	x.ctx.SetContentType(ndjsonType)
	x.ctx.SetBodyStream(&written{Reader: bytes.NewReader(all.out), conn: x.conn}, len(all.out))
	return nil
}

// written is an answer whose memory is given back once it is written.
type written struct {
	*bytes.Reader
	conn *conn
}

// Close is what fasthttp calls then.
func (w *written) Close() error {
	w.conn.rest()
	return nil
}

// run sends the lines and takes the outcomes until the end.
func (a *lines) run(in *bufio.Reader) {
	for total := 0; !a.stopped(); {
		line, err := readLine(in)
		last := errors.Is(err, io.EOF)
		if total += len(line) + 1; total > MaxBodyBytes+1 {
			err = errBodyTooLong(MaxBodyBytes)
		}
		if last && len(line) == 0 {
			break
		}
		a.read++
		if a.read > MaxLines {
			err = &wire.Error{Code: wire.CodeTooLarge, Message: fmt.Sprintf("the body has more than %d lines", MaxLines), Hint: "split it into several requests"}
		}
		if err == nil || last {
			a.append(line)
			if last {
				break
			}
			continue
		}
		a.settle(0)
		if !errors.As(err, new(*wire.Error)) {
			err = a.x.unread(err)
		}
		a.fail(a.read, err)
		return
	}
	a.settle(0)
}

// stopped reports whether no further line may be sent.
func (a *lines) stopped() bool {
	return a.link.ended != nil || a.failed && a.conditions.producer != ""
}

// readLine returns a line without its end. The error is io.EOF behind the last line, which
// may lack its end, and a *wire.Error for one that is longer than any record.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > wire.MaxFrameBytes+1:
			return nil, &wire.Error{Code: wire.CodeTooLarge, Message: fmt.Sprintf("a line has more than %d bytes", wire.MaxFrameBytes)}
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return line, err
		default:
			return line[:len(line)-1], nil
		}
	}
}

// append sends a line.
func (a *lines) append(line []byte) {
	inFlight := maxLinesInFlight
	if a.conditions.producer != "" {
		inFlight = 1
	}
	c := &a.conditions
	m, err := a.x.request(a.link, c, line, false)
	if err == nil {
		for a.bytes+m.Bytes() > maxLineBytesInFlight && len(a.flight.outcomes) > 0 {
			a.settle(len(a.flight.outcomes) - 1)
		}
		err = a.flight.send(m)
	}
	if err != nil {
		a.settle(0)
		a.fail(a.read, err)
		return
	}
	a.bytes += m.Bytes()
	a.sent = a.read
	c.sequence++
	c.expect++
	a.settle(inFlight - 1)
}

// settle takes outcomes until at most n appends are in flight.
func (a *lines) settle(n int) {
	for len(a.flight.outcomes) > n {
		number := a.sent - len(a.flight.outcomes) + 1
		o := a.flight.wait()
		if o.err != nil {
			a.fail(number, o.err)
		} else {
			a.answer(a.x.appended(&o.result))
		}
	}
	if len(a.flight.outcomes) == 0 {
		a.bytes = 0
	}
}

// fail answers a line with an error.
func (a *lines) fail(line int, err error) {
	a.failed = true
	var e wire.Error
	session.FillError(&e, a.x.about(err))
	o := newErrorObject(&e)
	o.Line = line
	a.answer(o)
}

// answer adds a line to the answer. When there is no memory for it the session ends: what
// is not answered has an unknown outcome.
func (a *lines) answer(object any) {
	line := encode(object)
	if need := int64(len(a.out) + len(line)); need > a.reserved {
		more := max(bodyStep, need)
		if err := a.x.reserve(more); err != nil && a.link.ended == nil {
			a.link.ended = err.(*wire.Error) //nolint:errorlint // it is made here
		}
		a.reserved += more
	}
	a.out = append(a.out, line...)
}
