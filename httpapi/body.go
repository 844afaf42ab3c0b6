package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/walsidecar/walsidecar/wire"
)

// errBodyTooLong refuses a body.
func errBodyTooLong(limit int) error {
	return &wire.Error{Code: wire.CodeTooLarge, Message: fmt.Sprintf("the body has more than %d bytes", limit),
		Hint: "split it into several requests"}
}

// length returns the length that the request gives for its body, -1 where it comes in
// chunks.
func (x *exchange) length() int { return x.ctx.Request.Header.ContentLength() }

// content is the body as a stream. It must be read in this handler.
func (x *exchange) content() io.Reader {
	if body := x.ctx.RequestBodyStream(); body != nil {
		return body
	}
	return bytes.NewReader(nil)
}

// bodyStep is how much memory is asked for at once for a body of unknown length.
const bodyStep = 64 << 10

// body returns the whole body, at most limit bytes. factor says how much memory the
// request takes for each byte of it, all told; that is taken from the budget before the
// bytes are read, and given back at the end of the request.
func (x *exchange) body(limit, factor int) ([]byte, error) {
	if x.length() > limit {
		return nil, errBodyTooLong(limit)
	}
	var b []byte
	if n := x.length(); n > 0 {
		if err := x.reserve(int64(n) * int64(factor)); err != nil {
			return nil, err
		}
		b = make([]byte, n)
		if _, err := io.ReadFull(x.content(), b); err != nil {
			return nil, x.unread(err)
		}
		return b, nil
	}
	for body := x.content(); ; {
		if len(b) == cap(b) {
			more := max(bodyStep, len(b))
			if err := x.reserve(int64(more) * int64(factor)); err != nil {
				return nil, err
			}
			b = append(make([]byte, 0, len(b)+more), b...)
		}
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b) > limit:
			return nil, errBodyTooLong(limit)
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, x.unread(err)
		}
	}
}

// reserve takes memory for this request.
func (x *exchange) reserve(n int64) error {
	if x.conn.take(n) {
		return nil
	}
	budget := x.server.options.Budget
	return &wire.Error{Code: wire.CodeOutOfMemory, Message: fmt.Sprintf("no memory for a request that takes %d bytes: %d of %d are in use",
		n, budget.Used(), budget.Total())}
}

// unread is the error of a body that could not be read.
func (x *exchange) unread(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return x.server.slow()
	}
	return badRequest("the body ended early, or its chunks are malformed")
}

// slow is the error of a request that took too long to come.
func (s *Server) slow() error {
	return &wire.Error{Code: wire.CodeSlowClient, Message: "the request was not complete within " + s.options.Times.Request.String(),
		Hint: "send the request at once; what comes slowly goes into several"}
}

// maxDiscardBytes is how much of the body of a refused request is read before the
// answer. Many clients do not look for an answer before they have sent all; what is longer
// is cut.
const maxDiscardBytes = 2 * MaxBodyBytes

// discard reads what is left of the body, which takes no memory.
func (x *exchange) discard() {
	if x.length() <= maxDiscardBytes {
		_, _ = io.CopyN(io.Discard, x.content(), maxDiscardBytes) // the answer says what was wrong
	}
}

// decodeFactor is what a JSON document takes at most per byte while it is decoded: its
// bytes, and objects of about as many; a batch is copied into a message besides.
const decodeFactor = 4

// decode decodes a body of one JSON object.
func (x *exchange) decode(into any) error {
	b, err := x.body(MaxBodyBytes, decodeFactor)
	if err != nil {
		return err
	}
	return decodeJSON(b, into)
}

// decodeJSON decodes one object, and nothing but what belongs into it.
func decodeJSON(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return badRequest("the body is not the JSON object that belongs here: %s", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return badRequest("the body goes on after its JSON object")
	}
	return nil
}
