package httpapi

import (
	"math"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/wire"
)

// healthObject says that the door serves, and what.
type healthObject struct {
	Status  string `json:"status"` // ok
	Log     string `json:"log"`    // UUID
	Node    string `json:"node"`
	Epoch   uint64 `json:"epoch"`
	Durable uint64 `json:"durable"` // durable position
	Server  string `json:"server"`
}

// health answers once a session could be opened and answered.
func (x *exchange) health() error {
	l, err := x.link()
	if err != nil {
		return err
	}
	var pong wire.Pong
	if err := l.ask(&wire.Ping{}, wire.TypePong, &pong); err != nil {
		return err
	}
	w := &l.welcome
	return x.reply(fasthttp.StatusOK, healthObject{"ok", uuid.UUID(w.Log).String(), w.Node, w.Epoch, pong.Durable, w.Server})
}

// status answers with the document of `walsidecar status --json`.
func (x *exchange) status() error {
	l, err := x.link()
	if err != nil {
		return err
	}
	return l.askFor(&wire.Status{}, wire.TypeStatusJSON, func(h wire.Header, body []byte) error {
		var m wire.StatusJSON
		if err := m.Decode(h, body); err != nil {
			return err
		}
		x.ctx.SetContentType(jsonType)
		x.ctx.SetBody(m.JSON) // copies
		return nil
	})
}

// pageObject is a page of streams.
type pageObject struct {
	Streams []streamObject `json:"streams"`
	Next    string         `json:"next,omitempty"` // after of the next page
}

func (x *exchange) listStreams() error {
	prefix, _ := x.query("prefix")
	after, _ := x.query("after")
	limit, _, err := x.queryNumber("limit")
	if err != nil {
		return err
	}
	l, err := x.link()
	if err != nil {
		return err
	}
	var page wire.StreamPage
	question := wire.StreamList{Prefix: prefix, After: after, Limit: uint32(min(limit, math.MaxUint32))}
	if err := l.ask(&question, wire.TypeStreamPage, &page); err != nil {
		return err
	}
	object := pageObject{Streams: make([]streamObject, len(page.Streams)), Next: page.Next}
	for i := range page.Streams {
		object.Streams[i] = newStreamObject(&page.Streams[i])
	}
	return x.reply(fasthttp.StatusOK, object)
}

// openStream asks for the stream of the path.
func (x *exchange) openStream(create bool) (*link, *wire.StreamInfo, error) {
	l, err := x.link()
	if err != nil {
		return nil, nil, err
	}
	info := new(wire.StreamInfo)
	err = l.ask(&wire.StreamOpen{Name: x.name, Create: create}, wire.TypeStreamInfo, info)
	return l, info, x.about(err)
}

// about names the stream of the path in an error that names none.
func (x *exchange) about(err error) error {
	if e, ok := err.(*wire.Error); ok && e.Name == "" { //nolint:errorlint // link's errors are not wrapped
		named := *e
		named.Name = x.name
		return &named
	}
	return err
}

func (x *exchange) statStream() error {
	_, info, err := x.openStream(false)
	if err != nil {
		return err
	}
	return x.reply(fasthttp.StatusOK, newStreamObject(&info.Stream))
}

func (x *exchange) createStream() error {
	_, info, err := x.openStream(true)
	if err != nil {
		return err
	}
	return x.reply(created(info.Created), newStreamObject(&info.Stream))
}

func created(now bool) int {
	if now {
		return fasthttp.StatusCreated
	}
	return fasthttp.StatusOK
}

// change asks for a change of the stream of the path; make makes the request for its id.
func (x *exchange) change(ask func(id uint64) message) (*wire.StreamInfo, error) {
	l, info, err := x.openStream(false)
	if err != nil {
		return nil, err
	}
	after := new(wire.StreamInfo)
	err = l.ask(ask(info.ID), wire.TypeStreamInfo, after)
	return after, x.about(err)
}

func (x *exchange) sealStream() error {
	info, err := x.change(func(id uint64) message { return &wire.StreamSeal{Stream: id} })
	if err != nil {
		return err
	}
	return x.reply(fasthttp.StatusOK, newStreamObject(&info.Stream))
}

func (x *exchange) deleteStream() error {
	if _, err := x.change(func(id uint64) message { return &wire.StreamDelete{Stream: id} }); err != nil {
		return err
	}
	x.ctx.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}

// tokenRequest changes a stream's token; an empty one is none.
type tokenRequest struct {
	Old string `json:"old"`
	New string `json:"new"`
}

func (x *exchange) setToken() error {
	var q tokenRequest
	if err := x.decode(&q); err != nil {
		return err
	}
	if max(len(q.Old), len(q.New)) > wire.MaxTokenBytes {
		return badRequest("a token has at most %d bytes", wire.MaxTokenBytes)
	}
	info, err := x.change(func(id uint64) message {
		return &wire.StreamToken{Stream: id, Old: []byte(q.Old), New: []byte(q.New)}
	})
	if err != nil {
		return err
	}
	return x.reply(fasthttp.StatusOK, newStreamObject(&info.Stream))
}

// trimRequest gives up what lies below an offset.
type trimRequest struct {
	Before *uint64 `json:"before"`
}

// trimmedObject is where a stream begins after a trim.
type trimmedObject struct {
	Stream      string `json:"stream"`
	FirstOffset uint64 `json:"first_offset"`
}

func (x *exchange) trim() error {
	var q trimRequest
	if err := x.decode(&q); err != nil {
		return err
	}
	if q.Before == nil {
		return badRequest(`the body is {"before":N}, N being the first offset to keep`)
	}
	l, info, err := x.openStream(false)
	if err != nil {
		return err
	}
	var m wire.Trimmed
	if err := l.ask(&wire.StreamTrim{Stream: info.ID, Before: *q.Before}, wire.TypeTrimmed, &m); err != nil {
		return x.about(err)
	}
	return x.reply(fasthttp.StatusOK, trimmedObject{x.name, m.FirstOffset})
}

// producerObject is a named producer.
type producerObject struct {
	Name         string `json:"name"`
	LastSequence uint64 `json:"last_sequence"`
}

// producer asks something about the producer of the path.
func (x *exchange) producer(question message) (*wire.ProducerInfo, error) {
	l, err := x.link()
	if err != nil {
		return nil, err
	}
	info := new(wire.ProducerInfo)
	return info, l.ask(question, wire.TypeProducerInfo, info)
}

func (x *exchange) statProducer() error {
	info, err := x.producer(&wire.ProducerGet{Name: x.name})
	if err != nil {
		return err
	}
	return x.reply(fasthttp.StatusOK, producerObject{info.Name, info.LastSequence})
}

func (x *exchange) openProducer() error {
	info, err := x.producer(&wire.ProducerOpen{Name: x.name})
	if err != nil {
		return err
	}
	return x.reply(created(info.Created), producerObject{info.Name, info.LastSequence})
}

func (x *exchange) removeProducer() error {
	if _, err := x.producer(&wire.ProducerRemove{Name: x.name}); err != nil {
		return err
	}
	x.ctx.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}
