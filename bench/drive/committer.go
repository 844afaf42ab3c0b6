package drive

import (
	"errors"
	"sync"
	"sync/atomic"
)

// errClosed is what an append gets after the committer was closed.
var errClosed = errors.New("the group committer is closed")

// committer makes appends of single records from batches: while one batch is being
// written, what comes waits for the next. It is what a user of a library that has only
// batches would write. Any goroutine may call it.
type committer struct {
	to      Batcher
	mu      sync.Mutex
	arrived sync.Cond
	open    *batch // what the next write takes
	spare   [][]byte
	closed  bool
	ended   chan struct{}
	batches atomic.Int64
	records atomic.Int64
}

// batch is the records of one write.
type batch struct {
	records [][]byte
	done    chan struct{} // closed once they are durable, or err is set
	err     error
}

func newCommitter(to Batcher) *committer {
	c := &committer{to: to, open: &batch{done: make(chan struct{})}, ended: make(chan struct{})}
	c.arrived.L = &c.mu
	go c.run()
	return c
}

// submit puts a record into the open batch.
func (c *committer) submit(record []byte) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.open
	if c.closed {
		b = &batch{done: make(chan struct{}), err: errClosed}
		close(b.done)
		return b
	}
	b.records = append(b.records, record)
	if len(b.records) == 1 {
		c.arrived.Signal()
	}
	return b
}

// Append returns once the batch of the record is durable.
func (c *committer) Append(_ int, record []byte) error { return c.submit(record).wait() }

func (b *batch) wait() error {
	<-b.done
	return b.err
}

func (c *committer) run() {
	defer close(c.ended)
	for {
		c.mu.Lock()
		for len(c.open.records) == 0 && !c.closed {
			c.arrived.Wait()
		}
		b := c.open
		c.open = &batch{records: c.spare[:0], done: make(chan struct{})}
		c.mu.Unlock()
		if len(b.records) == 0 {
			return
		}
		b.err = c.to.AppendBatch(b.records)
		c.batches.Add(1)
		c.records.Add(int64(len(b.records)))
		c.spare, b.records = b.records, nil
		close(b.done)
	}
}

// close writes what was submitted and ends.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.arrived.Signal()
	c.mu.Unlock()
	<-c.ended
}

// pipe is a Pipeline on a committer, for one goroutine.
type pipe struct {
	to    *committer
	ring  []*batch
	first int // the oldest that was not waited for
	next  int
}

func newPipe(to *committer, inFlight int) *pipe { return &pipe{to: to, ring: make([]*batch, inFlight)} }

func (p *pipe) Submit(record []byte) error {
	p.ring[p.next%len(p.ring)] = p.to.submit(record)
	p.next++
	return nil
}

func (p *pipe) Wait() error {
	b := p.ring[p.first%len(p.ring)]
	p.first++
	return b.wait()
}
