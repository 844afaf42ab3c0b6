package httpapi

import (
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/walsidecar/walsidecar/wire"
)

// batchRequest is a batch: records that are committed all or none.
type batchRequest struct {
	Producer string         `json:"producer"` // named; "": none
	Sequence *uint64        `json:"sequence"`
	Entries  []entryRequest `json:"entries"`
}

// entryRequest is one record of a batch.
type entryRequest struct {
	Stream        string          `json:"stream"`
	Payload       *string         `json:"payload"`
	PayloadBase64 []byte          `json:"payload_base64"`
	Headers       []headerRequest `json:"headers"`
	ExpectOffset  *uint64         `json:"expect_offset"`
	Token         string          `json:"token"`
}

// headerRequest is a header of a record.
type headerRequest struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	ValueBase64 []byte  `json:"value_base64"`
}

// batchObject says where a batch is. A duplicate of a named producer has no places.
type batchObject struct {
	Position     *uint64        `json:"position,omitempty"`
	Duplicate    bool           `json:"duplicate,omitempty"`
	LastSequence uint64         `json:"last_sequence,omitempty"`
	Placed       []placedObject `json:"placed"`
}

// placedObject says which offsets the records of one stream have: count of them, from
// offset on.
type placedObject struct {
	Stream string `json:"stream"`
	Offset uint64 `json:"offset"`
	Count  uint32 `json:"count"`
}

// appendBatch appends the batch in the body.
func (x *exchange) appendBatch() error {
	create, err := x.queryFlag("create", true)
	if err != nil {
		return err
	}
	var q batchRequest
	if err := x.decode(&q); err != nil {
		return err
	}
	entries, err := q.encode()
	if err != nil {
		return err
	}
	l, err := x.link()
	if err != nil {
		return err
	}
	m := &wire.Append{Entries: entries}
	names, err := q.resolve(l, m, create)
	if err != nil {
		return err
	}
	if err := checkMessage(m); err != nil {
		return err
	}
	f := flight{link: l}
	if err := f.send(m); err != nil {
		return err
	}
	o := f.wait()
	if o.err != nil {
		return q.named(o.err)
	}
	answer := batchObject{Duplicate: o.result.Duplicate, LastSequence: o.result.LastSequence, Placed: []placedObject{}}
	for _, p := range o.result.Placed {
		answer.Position = &o.result.Position
		answer.Placed = append(answer.Placed, placedObject{names[p.Stream], p.Offset, p.Count})
	}
	return x.reply(fasthttp.StatusOK, answer)
}

// encode checks the entries and returns them without the ids of their streams.
func (q *batchRequest) encode() ([]wire.Entry, error) {
	if n := len(q.Entries); n == 0 || n > wire.MaxBatchRecords {
		return nil, badRequest("a batch has 1 to %d entries, not %d", wire.MaxBatchRecords, n)
	}
	if (q.Producer == "") != (q.Sequence == nil) {
		return nil, badRequest("producer and sequence belong together")
	}
	entries := make([]wire.Entry, len(q.Entries))
	for i := range q.Entries {
		if err := q.Entries[i].encode(&entries[i]); err != nil {
			return nil, &wire.Error{Code: wire.CodeBadRequest, Known: wire.FlagEntry, Entry: uint32(i), Message: err.Error()}
		}
	}
	return entries, nil
}

func (q *entryRequest) encode(e *wire.Entry) error {
	switch {
	case q.Stream == "":
		return fmt.Errorf("entry without a stream")
	case q.Payload != nil && q.PayloadBase64 != nil:
		return fmt.Errorf("entry with payload and payload_base64")
	case len(q.Token) > wire.MaxTokenBytes:
		return fmt.Errorf("a token has at most %d bytes", wire.MaxTokenBytes)
	case len(q.Headers) > wire.MaxHeaders:
		return fmt.Errorf("a record has at most %d headers", wire.MaxHeaders)
	}
	if e.Payload = q.PayloadBase64; q.Payload != nil {
		e.Payload = []byte(*q.Payload)
	}
	if q.ExpectOffset != nil {
		e.HasExpect, e.Expect = true, *q.ExpectOffset
	}
	e.Token = []byte(q.Token)
	for _, h := range q.Headers {
		if h.Value != nil && h.ValueBase64 != nil {
			return fmt.Errorf("header with value and value_base64")
		}
		value := h.ValueBase64
		if h.Value != nil {
			value = []byte(*h.Value)
		}
		e.Headers = wire.AppendHeader(e.Headers, h.Key, value)
	}
	return wire.CheckHeaders(e.Headers)
}

// resolve puts the ids of the streams and of the producer into the batch, and returns the
// names by id. It does not rely on ids from before: in a batch of several streams a
// refusal does not say which of them is outdated.
func (q *batchRequest) resolve(l *link, m *wire.Append, create bool) (names map[uint64]string, err error) {
	ids := map[string]uint64{}
	names = map[uint64]string{}
	for i := range q.Entries {
		name := q.Entries[i].Stream
		id, ok := ids[name]
		if !ok {
			if id, err = l.streamID(name, create, true); err != nil {
				return nil, (&exchange{name: name}).about(err)
			}
			ids[name], names[id] = id, name
		}
		m.Entries[i].Stream = id
	}
	if q.Producer != "" {
		m.HasProducer, m.Sequence = true, *q.Sequence
		m.Producer, err = l.producerID(q.Producer, true)
	}
	return names, err
}

// named names the stream of the entry that an error is about.
func (q *batchRequest) named(err error) error {
	e, ok := err.(*wire.Error) //nolint:errorlint // link's errors are not wrapped
	if ok && e.Name == "" && e.Known&wire.FlagEntry != 0 && int(e.Entry) < len(q.Entries) {
		return (&exchange{name: q.Entries[e.Entry].Stream}).about(err)
	}
	return err
}
