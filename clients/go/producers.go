package walsidecar

import (
	"context"

	"github.com/walsidecar/walsidecar/wire"
)

// ProducerInfo is the state of a named producer.
type ProducerInfo struct {
	Name string
	// LastSequence is the highest sequence that is in the log; 0 where there is none.
	// A source goes on with what comes after it.
	LastSequence uint64
}

// Producer tells how far a named producer got: the answer covers everything that
// was appended before the call, acked or not. What another client has on its way can
// follow: a source that wants to go on uses OpenProducer. ErrNotFound: it never
// appended.
func (c *Client) Producer(ctx context.Context, name string) (ProducerInfo, error) {
	var info wire.ProducerInfo
	k := call{question: &wire.ProducerGet{Name: name}, op: "producer", repeat: true}
	if err := c.askProducer(ctx, &k, name, &info); err != nil {
		return ProducerInfo{}, err
	}
	return ProducerInfo{Name: info.Name, LastSequence: info.LastSequence}, nil
}

// RemoveProducer forgets a named producer and its last sequence.
func (c *Client) RemoveProducer(ctx context.Context, name string) error {
	var info wire.ProducerInfo
	k := call{question: &wire.ProducerRemove{Name: name}, op: "remove producer"}
	if err := c.askProducer(ctx, &k, name, &info); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.producers, name)
	c.mu.Unlock()
	return nil
}

// OpenProducer makes this client the one that appends under a named producer, and
// tells its last sequence, 0 where it never appended. Whatever an earlier client
// left on its way is refused from here on, so a source that goes on after
// LastSequence neither loses nor doubles a record. WithProducer does the same at the
// first append, but does not tell.
func (c *Client) OpenProducer(ctx context.Context, name string) (ProducerInfo, error) {
	var info wire.ProducerInfo
	k := call{question: &wire.ProducerOpen{Name: name}, op: "open producer", repeat: true}
	if err := c.askProducer(ctx, &k, name, &info); err != nil {
		return ProducerInfo{}, err
	}
	c.mu.Lock()
	c.producers[name] = info.ID
	c.mu.Unlock()
	return ProducerInfo{Name: info.Name, LastSequence: info.LastSequence}, nil
}

func (c *Client) askProducer(ctx context.Context, k *call, name string, info *wire.ProducerInfo) error {
	if name == "" || len(name) > wire.MaxProducerNameBytes {
		return newError(wire.CodeBadRequest, k.op, "", "the name of a producer has 1 to 255 bytes")
	}
	return c.ask(ctx, k, wire.TypeProducerInfo, info)
}

// openSessionProducer gets the producer under which this client appends; when
// several goroutines come at once, one of them asks.
func (c *Client) openSessionProducer(ctx context.Context) error {
	select {
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	open := c.producer.id != 0
	c.mu.Unlock()
	if open {
		return nil
	}
	var info wire.ProducerInfo
	k := call{question: &wire.ProducerOpen{Window: uint32(c.options.inFlight)}, op: "open session producer", repeat: true}
	if err := c.ask(ctx, &k, wire.TypeProducerInfo, &info); err != nil {
		return err
	}
	c.mu.Lock()
	c.producer = sessionProducer{id: info.ID, next: 1, window: int(info.Window)}
	c.mu.Unlock()
	return nil
}
