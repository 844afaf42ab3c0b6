package walsidecar

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/walsidecar/walsidecar/wire"
)

// encoder and decoder are the two halves of every message of wire.
type encoder interface {
	AppendTo(dst []byte, request uint64) []byte
}

type decoder interface {
	Decode(h wire.Header, body []byte) error
}

// call is a request with one answer, other than an append.
type call struct {
	question  encoder
	op        string
	stream    string
	repeat    bool // asking twice does no harm: it is asked again on the next connection
	abandoned bool // nobody waits any more
	done      chan struct{}
	header    wire.Header
	body      []byte
	err       error
}

// settle ends the call; the body is copied.
func (k *call) settle(h wire.Header, body []byte, err error) {
	k.header, k.body, k.err = h, slices.Clone(body), err
	close(k.done)
}

// ask sends a question and decodes the answer, over a reconnect if need be.
func (c *Client) ask(ctx context.Context, k *call, want wire.Type, answer decoder) error {
	k.done = make(chan struct{})
	c.mu.Lock()
	switch {
	case c.err != nil:
		err := c.err
		c.mu.Unlock()
		return err
	case c.conn == nil:
		c.parked = append(c.parked, k)
		c.mu.Unlock()
	default:
		c.sendCall(k)
		c.unlockAndKick()
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		return c.abandon(ctx, k)
	}
	if k.err != nil {
		return k.err
	}
	if k.header.Type != want {
		return newError(wire.CodeInternal, k.op, k.stream, fmt.Sprintf("the sidecar answered %s where %s was expected", k.header.Type, want))
	}
	if err := answer.Decode(k.header, k.body); err != nil {
		return newError(wire.CodeInternal, k.op, k.stream, err.Error())
	}
	return nil
}

// abandon takes the call out of the line, if it was not sent yet.
func (c *Client) abandon(ctx context.Context, k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.abandoned = true
	if i := slices.Index(c.parked, k); i >= 0 {
		c.parked = slices.Delete(c.parked, i, i+1)
	}
	err := gaveUp(ctx, k.op, k.stream)
	if c.lost != nil {
		err.Message += ": " + brief(c.lost)
	}
	return err
}

// sendCall puts a call on the connection.
func (c *Client) sendCall(k *call) { c.calls[c.send(k.question)] = k }

// send puts a message with the next request id on the connection.
func (c *Client) send(m encoder) uint64 {
	id := c.nextID
	c.nextID++
	c.sendFor(m, id)
	return id
}

// sendFor puts a message on the connection that belongs to an earlier request.
func (c *Client) sendFor(m encoder, request uint64) {
	message := m.AppendTo(nil, request)
	chunk := c.out.reserve(len(message))
	chunk.buf = append(chunk.buf, message...)
	c.dirty = true
}

// unlockAndKick releases the mutex and wakes the writer if it sleeps.
func (c *Client) unlockAndKick() {
	n := c.conn
	kick := n != nil && n.idle && c.dirty
	if kick {
		n.idle = false
	}
	bell := n != nil && n.ring != nil && n.ring.bell
	if bell {
		n.ring.bell = false
	}
	c.unlockAndWake()
	if bell {
		n.ring.RingBell()
	}
	if kick {
		n.kick <- struct{}{}
	}
}

// pingUnanswered tells the sidecar that the client lives.
func (c *Client) pingUnanswered(n *connection) {
	c.mu.Lock()
	if c.conn != n {
		c.mu.Unlock()
		return
	}
	c.sendCall(&call{question: &wire.Ping{}, done: make(chan struct{})})
	c.unlockAndKick()
}

// Ping asks the sidecar for a sign of life: one round trip through the door, that
// waits for no device.
func (c *Client) Ping(ctx context.Context) error {
	var pong wire.Pong
	k := call{question: &wire.Ping{}, op: "ping", repeat: true}
	if err := c.ask(ctx, &k, wire.TypePong, &pong); err != nil {
		return err
	}
	c.sawDurable(pong.Durable)
	return nil
}

// Status returns the JSON document of `walsidecar status --json`.
func (c *Client) Status(ctx context.Context) ([]byte, error) {
	var status wire.StatusJSON
	k := call{question: &wire.Status{}, op: "status", repeat: true}
	if err := c.ask(ctx, &k, wire.TypeStatusJSON, &status); err != nil {
		return nil, err
	}
	return status.JSON, nil
}

func sortedKeys[V any](m map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(m)) }
