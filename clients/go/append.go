package walsidecar

import (
	"context"
	"fmt"

	"github.com/walsidecar/walsidecar/wire"
)

// Entry is one record of a batch.
type Entry struct {
	Stream  string
	Data    []byte
	Headers []Header
	// Expect is the offset that the record must get, each entry seeing the ones
	// before it; nil: whatever comes next.
	Expect *uint64
	// Token is the token of the stream; empty: none.
	Token []byte
}

// Append appends one record and returns once it is durable. It creates a missing
// stream unless MustExist is given. The data is copied.
//
// A context that ends before the answer abandons the wait, not the record: the
// error matches ErrOutcomeUnknown, which says how to resolve it. If the record had
// not been submitted yet the error matches the context's alone, and it never will be.
func (c *Client) Append(ctx context.Context, stream string, data []byte, opts ...AppendOption) (Result, error) {
	t, err := c.submit(ctx, stream, data, opts, true)
	if err != nil {
		return Result{}, err
	}
	return t.Wait(ctx)
}

// Submit puts one record in flight and returns without waiting for the answer,
// which the Ticket has. It blocks while too much is in flight (WithInFlight), and
// for one round trip at the first append to a stream. The data is copied. Records
// that one goroutine submits are appended in that order.
func (c *Client) Submit(ctx context.Context, stream string, data []byte, opts ...AppendOption) (Ticket, error) {
	return c.submit(ctx, stream, data, opts, true)
}

// TrySubmit is Submit that returns ErrWouldBlock where Submit would block. The
// stream, and a named producer, must be known to the client: appended to or
// created by it before.
func (c *Client) TrySubmit(stream string, data []byte, opts ...AppendOption) (Ticket, error) {
	return c.submit(context.Background(), stream, data, opts, false)
}

// AppendBatch appends records to one or several streams, all or none, and returns
// once they are durable. They share one position and become visible together.
// Conditions hold for the batch as a whole: Error.Entry names the first entry
// that failed.
func (c *Client) AppendBatch(ctx context.Context, entries []Entry, opts ...AppendOption) (Result, error) {
	t, err := c.SubmitBatch(ctx, entries, opts...)
	if err != nil {
		return Result{}, err
	}
	return t.Wait(ctx)
}

// SubmitBatch is AppendBatch that does not wait for the answer.
func (c *Client) SubmitBatch(ctx context.Context, entries []Entry, opts ...AppendOption) (Ticket, error) {
	if len(entries) == 0 {
		return Ticket{}, newError(wire.CodeBadRequest, opAppend, "", "a batch has at least one record")
	}
	for i := range entries {
		if entries[i].Stream == "" {
			return Ticket{}, noStreamName()
		}
	}
	a := appending{batch: entries}
	return c.admit(ctx, &a, opts, true)
}

func (c *Client) submit(ctx context.Context, stream string, data []byte, opts []AppendOption, block bool) (Ticket, error) {
	if stream == "" {
		return Ticket{}, noStreamName()
	}
	a := appending{stream: stream, data: data}
	return c.admit(ctx, &a, opts, block)
}

func noStreamName() error {
	return newError(wire.CodeBadRequest, opAppend, "", "bad name of a stream: it is empty")
}

// opAppend is the Op of errors of appends.
const opAppend = "append"

// appending is one append on its way into flight. Its options go beside it: in it,
// they would escape to the heap.
type appending struct {
	stream string // of a single record
	data   []byte
	batch  []Entry // nil for a single record

	// What the options say.
	expect    uint64
	hasExpect bool
	mustExist bool
	token     []byte
	producer  string // named; "": the session's own
	sequence  uint64

	// Set by prepare.
	size    int // of the message
	slots   int // of the session producer's window
	single  *streamRef
	streams []*streamRef // of a batch: the distinct ones
}

// readOptions takes everything from the options but the headers.
func (a *appending) readOptions(opts []AppendOption) error {
	for i := range opts {
		o := &opts[i]
		switch o.kind {
		case appendExpect:
			a.expect, a.hasExpect = o.number, true
		case appendToken:
			a.token = o.value
		case appendProducer:
			if o.text == "" {
				return newError(wire.CodeBadRequest, opAppend, a.stream, "the name of the producer is empty")
			}
			a.producer, a.sequence = o.text, o.number
		case appendMustExist:
			a.mustExist = true
		}
	}
	return nil
}

// admit puts a in flight as soon as its streams and its producer are known and
// there is room.
func (c *Client) admit(ctx context.Context, a *appending, opts []AppendOption, block bool) (Ticket, error) {
	if err := a.readOptions(opts); err != nil {
		return Ticket{}, err
	}
	c.mu.Lock()
	if n := c.conn; n != nil && n.ring != nil {
		_ = c.reap(n) // the error has ended the connection
	}
	missing, err := c.prepare(a, opts)
	if err == nil && !missing.any() && len(c.room) == 0 && c.hasRoom(a.size, a.slots) {
		t := c.enqueue(a)
		if n := c.conn; n != nil && n.ring == nil && n.idle && c.flight.len() == 1 && a.size <= loneBytes {
			c.unlockAndWrite(n)
		} else {
			c.unlockAndKick()
		}
		return t, nil
	}
	c.unlockAndKick()
	if err != nil {
		return Ticket{}, err
	}
	if !block {
		return Ticket{}, ErrWouldBlock
	}
	return c.admitSlowly(ctx, a, opts)
}

// admitSlowly asks for what is missing and stands in line for room.
func (c *Client) admitSlowly(ctx context.Context, a *appending, opts []AppendOption) (Ticket, error) {
	var place *waiter
	leave := func() {
		if place != nil {
			c.room.leave(place)
			place = nil
			c.madeRoom()
		}
	}
	for {
		c.mu.Lock()
		missing, err := c.prepare(a, opts)
		if err == nil && place != nil && place.refused != nil {
			err = place.refused.behind(a.stream)
		}
		switch {
		case err != nil:
			leave()
			c.mu.Unlock()
			return Ticket{}, err
		case missing.any():
			leave()
			c.mu.Unlock()
			if err := c.learn(ctx, missing, a.mustExist); err != nil {
				return Ticket{}, err
			}
			continue
		case (len(c.room) == 0 || c.room[0] == place) && c.hasRoom(a.size, a.slots):
			t := c.enqueue(a)
			leave()
			c.unlockAndKick()
			return t, nil
		}
		if place == nil {
			place = c.room.join(a.size, a.slots)
		}
		c.unlockAndExpect()
		select {
		case <-place.wake:
		case <-c.ended:
		case <-ctx.Done():
			c.mu.Lock()
			leave()
			c.mu.Unlock()
			return Ticket{}, fmt.Errorf("append: not submitted, too much was in flight: %w", context.Cause(ctx))
		}
	}
}

// missing is what the client has to ask the sidecar before it can append.
type missing struct {
	stream   string
	producer string
	session  bool // the session producer
}

func (m *missing) any() bool { return m.session || m.stream != "" || m.producer != "" }

// prepare encodes a into the scratch message, but for its sequence, or says what
// is missing to do so.
func (c *Client) prepare(a *appending, opts []AppendOption) (missing, error) {
	if c.err != nil {
		return missing{}, c.err
	}
	m := &c.encode
	m.HasProducer, m.Entries = true, m.Entries[:0]
	if a.producer != "" {
		id, ok := c.producers[a.producer]
		if !ok {
			return missing{producer: a.producer}, nil
		}
		m.Producer, m.Sequence, m.Acked = id, a.sequence, 0
	} else {
		if c.producer.id == 0 {
			return missing{session: true}, nil
		}
		m.Producer = c.producer.id
	}
	c.headers = c.headers[:0]
	var lacks missing
	var err error
	if a.batch == nil {
		lacks, err = c.prepareOne(a, opts)
	} else {
		lacks, err = c.prepareBatch(a, opts)
	}
	if lacks.any() || err != nil {
		return lacks, err
	}
	if a.producer != "" {
		a.slots = 0
	}
	a.size = m.Bytes()
	if limit := c.messageLimit(); a.size > limit {
		return missing{}, a.tooLarge("message", a.size, limit)
	}
	if a.slots > c.slotLimit() {
		return missing{}, a.tooLarge("batch, in distinct streams,", a.slots, c.slotLimit())
	}
	return missing{}, nil
}

func (a *appending) tooLarge(what string, n, limit int) error {
	return newError(wire.CodeTooLarge, opAppend, a.stream, fmt.Sprintf("%s of %d, the limit is %d", what, n, limit))
}

func (c *Client) prepareOne(a *appending, opts []AppendOption) (missing, error) {
	ref := c.stream(a.stream)
	if ref == nil {
		return missing{stream: a.stream}, nil
	}
	headers, err := c.headersBlock(a, opts, nil)
	if err != nil {
		return missing{}, err
	}
	a.single, a.slots = ref, 1
	return missing{}, c.addEntry(a, wire.Entry{
		Stream: ref.id, Payload: a.data, Headers: headers, Token: a.token, HasExpect: a.hasExpect, Expect: a.expect,
	})
}

func (c *Client) prepareBatch(a *appending, opts []AppendOption) (missing, error) {
	if limit := int(c.limits.MaxBatchRecords); len(a.batch) > limit {
		return missing{}, a.tooLarge("batch, in records,", len(a.batch), limit)
	}
	a.streams = a.streams[:0]
	c.batches++
	for i := range a.batch {
		e := &a.batch[i]
		ref := c.stream(e.Stream)
		if ref == nil {
			return missing{stream: e.Stream}, nil
		}
		if ref.batch != c.batches {
			ref.batch = c.batches
			a.streams = append(a.streams, ref)
		}
		headers, err := c.headersBlock(a, opts, e.Headers)
		if err != nil {
			return missing{}, err
		}
		entry := wire.Entry{Stream: ref.id, Payload: e.Data, Headers: headers, Token: e.Token}
		if len(entry.Token) == 0 {
			entry.Token = a.token
		}
		if e.Expect != nil {
			entry.HasExpect, entry.Expect = true, *e.Expect
		} else if i == 0 {
			entry.HasExpect, entry.Expect = a.hasExpect, a.expect
		}
		if err := c.addEntry(a, entry); err != nil {
			return missing{}, err
		}
	}
	a.slots = len(a.streams)
	return missing{}, nil
}

func (c *Client) addEntry(a *appending, e wire.Entry) error {
	if len(e.Token) > wire.MaxTokenBytes {
		return a.tooLarge("token, in bytes,", len(e.Token), wire.MaxTokenBytes)
	}
	c.encode.Entries = append(c.encode.Entries, e)
	return nil
}

// headersBlock encodes the headers of the options and then those of an entry
// behind what the scratch has already.
func (c *Client) headersBlock(a *appending, opts []AppendOption, own []Header) ([]byte, error) {
	if len(opts) == 0 && len(own) == 0 {
		return nil, nil
	}
	start, count := len(c.headers), 0
	block := c.headers[start:]
	for i := range opts {
		if o := &opts[i]; o.kind == appendHeader {
			block = wire.AppendHeader(block, o.text, o.value)
			count++
		}
	}
	for i := range own {
		block = wire.AppendHeader(block, own[i].Key, own[i].Value)
		count++
	}
	if count > wire.MaxHeaders {
		return nil, a.tooLarge("record, in headers,", count, wire.MaxHeaders)
	}
	if len(block) > wire.MaxHeadersBytes {
		return nil, a.tooLarge("headers, in bytes,", len(block), wire.MaxHeadersBytes)
	}
	if err := wire.CheckHeaders(block); err != nil {
		return nil, newError(wire.CodeBadRequest, opAppend, a.stream, err.Error())
	}
	c.headers = append(c.headers, block...)
	return c.headers[start:], nil
}

// stream returns what is known of a stream, nil if nothing.
func (c *Client) stream(name string) *streamRef {
	if c.last != nil && c.last.name == name {
		return c.last
	}
	ref := c.streams[name]
	if ref != nil {
		c.last = ref
	}
	return ref
}

// enqueue puts the prepared append in flight.
func (c *Client) enqueue(a *appending) Ticket {
	m := &c.encode
	r := c.flight.push(a.size, a.slots)
	r.pending, r.stream, r.streams = c.newPending(), a.single, a.streams
	if a.producer == "" {
		r.sequence = c.producer.next
		c.producer.next++
		m.Sequence, m.Acked = r.sequence, c.producer.acked
	}
	if c.conn != nil {
		r.id = c.appendID()
	}
	c.submitted++
	r.serial = c.submitted
	c.place(r)
	t := r.pending.ticket()
	clear(m.Entries) // they point into the caller's memory
	return t
}

// place encodes the scratch message as that of r.
func (c *Client) place(r *request) {
	if d := c.ring(); d != nil {
		d.place(r, &c.encode)
		return
	}
	chunk := c.out.reserve(r.size)
	r.chunk, r.at, r.end = chunk, len(chunk.buf), 0
	chunk.buf = c.encode.AppendTo(chunk.buf, r.id)
	chunk.live++
	c.dirty = true
}
