package httpapi

import (
	"errors"
	"mime"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/wire"
)

// outcome is how an append ended: with err, or as result says.
type outcome struct {
	answered bool
	err      error // a *wire.Error
	result   wire.AppendResult
}

// flight are the appends that were sent and whose outcome was not taken yet, in order.
type flight struct {
	link     *link
	first    uint64 // request id of outcomes[0]
	outcomes []outcome
}

// send sends an append. The error says that it was not carried out.
func (f *flight) send(m *wire.Append) error {
	request, err := f.link.send(m)
	if err != nil {
		return err
	}
	if len(f.outcomes) == 0 {
		f.first = request
	}
	f.outcomes = append(f.outcomes, outcome{})
	return nil
}

// wait waits for answers until the first outcome is known, and takes that. There must be
// one in flight.
func (f *flight) wait() outcome {
	for !f.outcomes[0].answered {
		if err := f.link.receive(f.visit); err != nil {
			f.link.confused(err)
			for i := range f.outcomes {
				if one := &f.outcomes[i]; !one.answered {
					*one = outcome{answered: true, err: f.link.afterSending(err)}
				}
			}
		}
	}
	first := f.outcomes[0]
	f.outcomes = f.outcomes[:copy(f.outcomes, f.outcomes[1:])]
	f.first++
	return first
}

// visit notes an answer.
func (f *flight) visit(h wire.Header, body []byte) error {
	at := func(request uint64) (*outcome, error) {
		if i := request - f.first; i < uint64(len(f.outcomes)) {
			return &f.outcomes[i], nil
		}
		return nil, unexpected(h)
	}
	switch h.Type {
	case wire.TypeAppendAck:
		var ack wire.AppendAck
		if err := ack.Decode(h, body); err != nil {
			return err
		}
		for i := range ack.Extents {
			e := &ack.Extents[i]
			for k := range e.Requests {
				one, err := at(e.Request + uint64(k))
				if err != nil {
					return err
				}
				offset, position := e.At(k)
				*one = outcome{answered: true, result: wire.AppendResult{Position: position,
					Placed: []wire.Placed{{Stream: e.Stream, Offset: offset, Count: e.Records}}}}
			}
		}
		return nil
	case wire.TypeAppendResult:
		one, err := at(h.Request)
		if err != nil {
			return err
		}
		*one = outcome{answered: true}
		return one.result.Decode(h, body)
	case wire.TypeError:
		one, err := at(h.Request)
		if err != nil {
			return err
		}
		e := new(wire.Error)
		*one = outcome{answered: true, err: e}
		return e.Decode(h, body)
	}
	return unexpected(h)
}

// conditions are what the headers of an append ask for.
type conditions struct {
	expect    uint64
	hasExpect bool
	token     []byte
	headers   []byte // headers block
	producer  string // "": none
	sequence  uint64
	create    bool // the stream, if it is missing
}

func (x *exchange) conditions() (c conditions, err error) {
	if c.create, err = x.queryFlag("create", true); err != nil {
		return c, err
	}
	if c.expect, c.hasExpect, err = x.number(headerExpect); err != nil {
		return c, err
	}
	token, _ := x.header(headerToken)
	if len(token) > wire.MaxTokenBytes {
		return c, badRequest("a token has at most %d bytes", wire.MaxTokenBytes)
	}
	c.token = []byte(token)
	for key, value := range x.ctx.Request.Header.All() {
		// Names of HTTP headers know no case: those of the record's are in lower case.
		if name, ok := strings.CutPrefix(string(key), headerRecord); ok {
			c.headers = wire.AppendHeader(c.headers, strings.ToLower(name), value)
		}
	}
	if len(c.headers) > wire.MaxHeadersBytes {
		return c, badRequest("the headers of a record have at most %d bytes", wire.MaxHeadersBytes)
	}
	var hasProducer, hasSequence bool
	c.producer, hasProducer = x.header(headerProducer)
	if c.sequence, hasSequence, err = x.number(headerSequence); err != nil {
		return c, err
	}
	if hasProducer != hasSequence || hasProducer && c.producer == "" {
		return c, badRequest("%s and %s belong together", headerProducer, headerSequence)
	}
	return c, nil
}

// request is the append of one record under the conditions. fresh asks anew for the ids
// that the connection remembers.
func (x *exchange) request(l *link, c *conditions, payload []byte, fresh bool) (*wire.Append, error) {
	stream, err := l.streamID(x.name, c.create, fresh)
	if err != nil {
		return nil, x.about(err)
	}
	m := &wire.Append{Entries: []wire.Entry{{Stream: stream, HasExpect: c.hasExpect, Expect: c.expect, Token: c.token, Headers: c.headers, Payload: payload}}}
	if c.producer != "" {
		m.HasProducer, m.Sequence = true, c.sequence
		if m.Producer, err = l.producerID(c.producer, fresh); err != nil {
			return nil, err
		}
	}
	return m, checkMessage(m)
}

// checkMessage refuses a batch that does not fit a message: the session would end for it.
func checkMessage(m *wire.Append) error {
	if n := m.Bytes(); n > wire.MaxMessageBytes {
		return &wire.Error{Code: wire.CodeTooLarge, Message: "the batch does not fit a message, see max batch bytes in docs/protocol.md"}
	}
	return nil
}

// append appends the body to the stream of the path: as one record, or each line of it.
func (x *exchange) append() error {
	c, err := x.conditions()
	if err != nil {
		return err
	}
	if x.contentType() == ndjsonType {
		return x.appendLines(&c)
	}
	// The payload is in the body and in the message.
	payload, err := x.body(wire.MaxFrameBytes, 2)
	if err != nil {
		return err
	}
	l, err := x.link()
	if err != nil {
		return err
	}
	result, err := x.appendOne(l, &c, payload)
	if err != nil {
		return x.about(err)
	}
	return x.reply(fasthttp.StatusOK, x.appended(result))
}

// contentType is that of the request, without parameters.
func (x *exchange) contentType() string {
	kind, _, _ := mime.ParseMediaType(string(x.ctx.Request.Header.ContentType())) // "" is raw too
	return kind
}

// appendOne appends one record and waits for it. Where an id that it remembers is
// outdated it tries again: a refused append has left nothing behind.
func (x *exchange) appendOne(l *link, c *conditions, payload []byte) (*wire.AppendResult, error) {
	for fresh := false; ; fresh = true {
		m, err := x.request(l, c, payload, fresh)
		if err != nil {
			return nil, err
		}
		f := flight{link: l}
		if err := f.send(m); err != nil {
			return nil, err
		}
		o := f.wait()
		var e *wire.Error
		if errors.As(o.err, &e) && outdated(e) && !fresh {
			continue
		}
		return &o.result, o.err
	}
}

// appended is the answer for one record.
func (x *exchange) appended(r *wire.AppendResult) *appendedObject {
	o := &appendedObject{Stream: x.name, Duplicate: r.Duplicate, LastSequence: r.LastSequence}
	if len(r.Placed) > 0 {
		o.Offset, o.Position = &r.Placed[0].Offset, &r.Position
	}
	return o
}
