// Package walsidecar is the client of a walsidecar: it appends records to streams
// of a write-ahead log through a sidecar on the same host, and reads them back. Appends
// go through shared memory where the sidecar offers it ([WithDoor]), everything else
// through the sidecar's Unix socket.
//
// [Client.Append] returns once the record is durable. [Client.Submit] returns at
// once with a [Ticket], so that one goroutine can keep many records in flight.
// All goroutines of a process best share one Client: their records leave in one
// write and their answers come in one read.
//
// The client connects again by itself and sends what was not answered once more,
// in order, under a producer that the log issued to it: a restart of the sidecar
// neither loses nor doubles a record. When the outcome of a request cannot be
// known, its error matches [ErrOutcomeUnknown].
package walsidecar

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// Client is one session with a sidecar. Its methods may be called by any number of
// goroutines at once.
type Client struct {
	path    string
	options options
	ended   chan struct{} // closed when err is set
	stopped chan struct{} // closed when the last goroutine is gone
	durable atomic.Uint64
	waiting atomic.Int32 // goroutines that wait for tickets of shared memory

	mu   sync.Mutex
	err  error // why the client ended; nil while it lives
	lost error // why there is no connection
	conn *connection
	// retired is the ring of the connection before: requests in flight lie in it until
	// they are put on the next one.
	retired *ringDoor
	online  chan struct{} // closed while there is a connection; replaced when it is lost
	nextID  uint64        // of requests on this connection
	limits  wire.Welcome  // of the newest connection

	out       outgoing
	flight    flight
	submitted uint64 // serial number of the newest submission
	flushes   []flush
	room      waiters
	producer  sessionProducer
	stall     stall
	calls     map[uint64]*call // asked on this connection, by request id
	parked    []*call          // to be asked on the next connection
	reads     map[uint64]*reading
	streams   map[string]*streamRef
	last      *streamRef // the one of the newest append, found without the map
	producers map[string]uint64
	opening   chan struct{}  // capacity 1: held by who opens the session's producer
	encode    wire.Append    // scratch
	headers   []byte         // scratch
	ack       wire.AppendAck // scratch of the reading goroutine
	dirty     bool           // something waits for the writer
	batches   uint64         // number of the newest batch
	wake      *pending       // answered ones whose waiters are to be woken after unlocking
}

// streamRef is what the client knows of a stream that it appends to.
type streamRef struct {
	name  string
	id    uint64
	batch uint64 // the newest batch that was seen to name it
}

// Dial connects to the sidecar whose socket is path. It tries once: with no
// sidecar there the error matches ErrDisconnected, while one starts ErrNotReady.
// Afterwards the client connects again by itself until it is closed.
// The context bounds Dial alone.
func Dial(ctx context.Context, path string, opts ...Option) (*Client, error) {
	o := options{name: filepath.Base(os.Args[0]), inFlight: DefaultInFlight, inFlightBytes: DefaultInFlightBytes}
	for _, opt := range opts {
		opt(&o)
	}
	o.inFlight = min(max(o.inFlight, 1), MaxInFlight)
	o.inFlightBytes = max(o.inFlightBytes, 1)
	o.name = o.name[:min(len(o.name), wire.MaxClientNameBytes)]
	c := &Client{
		path: path, options: o,
		ended: make(chan struct{}), stopped: make(chan struct{}), online: make(chan struct{}),
		flight: newFlight(o.inFlight), calls: map[uint64]*call{}, reads: map[uint64]*reading{},
		streams: map[string]*streamRef{}, producers: map[string]uint64{}, opening: make(chan struct{}, 1),
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.install(conn)
	go c.run(conn)
	return c, nil
}

// Close ends the session. What was sent and not answered ends with
// ErrOutcomeUnknown, what was not sent with ErrClosed; use Flush before it to wait
// for the answers. Close may be called more than once.
func (c *Client) Close() error {
	c.end(ErrClosed)
	<-c.stopped
	return nil
}

// Flush waits until everything submitted before it has been answered.
func (c *Client) Flush(ctx context.Context) error {
	c.mu.Lock()
	if c.flight.len() == 0 {
		c.mu.Unlock()
		return nil
	}
	flushed := make(chan struct{})
	c.flushes = append(c.flushes, flush{upTo: c.submitted, done: flushed})
	c.unlockAndExpect()
	select {
	case <-flushed:
		return nil
	case <-ctx.Done():
		return gaveUp(ctx, "flush", "")
	}
}

// flush waits for the answers of the submissions up to a serial number.
type flush struct {
	upTo uint64
	done chan struct{}
}

// Durable returns the highest durable position that this client has been told of:
// every record at a lower position can be read. It is one load; the log's own
// durable position may be higher.
func (c *Client) Durable() uint64 { return c.durable.Load() }

// Log tells which log the client is connected to.
func (c *Client) Log() LogInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.limits
	return LogInfo{
		UUID: l.Log, Node: l.Node, Epoch: l.Epoch, Server: l.Server, ReadOnly: l.ReadOnly, NotDurable: l.NotDurable,
		MaxBatchRecords: int(l.MaxBatchRecords), MaxBatchBytes: int(l.MaxBatchBytes),
	}
}

// LogInfo is what the sidecar said of its log when the client connected last.
type LogInfo struct {
	UUID       [16]byte
	Node       string
	Epoch      uint64
	Server     string // name and version of the sidecar
	ReadOnly   bool
	NotDurable bool // a log for measurements: answers promise nothing

	MaxBatchRecords int // records of one batch
	MaxBatchBytes   int // what a batch may take in the log, see docs/protocol.md
}

// sawDurable raises the durable position.
func (c *Client) sawDurable(position uint64) {
	for {
		old := c.durable.Load()
		if position <= old || c.durable.CompareAndSwap(old, position) {
			return
		}
	}
}

// end ends the client for good, once.
func (c *Client) end(why error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = why
		close(c.ended)
		if c.conn != nil {
			c.conn.close()
		}
	}
	c.mu.Unlock()
}

// unlockAndWake releases the mutex and then wakes those whose answer came.
func (c *Client) unlockAndWake() {
	p := c.wake
	c.wake = nil
	c.mu.Unlock()
	for p != nil {
		next := p.next // p belongs to its waiter once it is woken
		p.wakeUp()
		p = next
	}
}

// finish gives the final answer to a request.
func (c *Client) finish(r *request, result Result, err error) {
	p := r.pending
	r.pending = nil
	c.out.release(r.chunk)
	r.chunk = nil
	if p.answer(result, err) {
		p.next, c.wake = c.wake, p
	}
}

// backoff is the wait before the next attempt after failures in a row.
func backoff(failures int, first, longest time.Duration) time.Duration {
	return min(first<<min(failures, 16), longest)
}
