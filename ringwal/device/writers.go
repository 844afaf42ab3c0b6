package device

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// WriterQueue is the most writes that Writers hold beyond those in the kernel.
// The log has far fewer frames in flight than that.
const WriterQueue = 256

// MaxWriters is the most goroutines that NewWriters starts; each may hold an
// operating system thread.
const MaxWriters = 64

// Write is one data-sync write, owned by the Writers from Submit until it was
// handed to completed. Buf must stay unchanged meanwhile.
type Write struct {
	Buf    []byte // aligned, whole blocks
	Offset int64  // bytes on the device
	Owner  any    // the caller's; not looked at

	Err         error // of WriteSync
	SubmittedNS int64 // NowNS at Submit
	CompletedNS int64 // NowNS when WriteSync returned
}

// Writers is a fixed set of goroutines that write to one device. Each takes one
// write at a time, in the order of Submit; they complete in any order.
type Writers struct {
	device    Device
	completed func(*Write)
	queue     chan *Write
	quit      chan struct{} // closed by Stop
	left      chan struct{} // closed when the last goroutine is gone
	running   atomic.Int64
	stopping  atomic.Bool

	mu        sync.Mutex // serialises completed
	abandoned bool       // Stop has returned without waiting for all
	writing   []*Write   // what each goroutine has in the kernel
}

// NewWriters starts n goroutines, 1 to MaxWriters (else it panics: n is the
// program's own). completed is called for every write, one call at a time, on a
// writer's goroutine; it must neither block nor call Stop.
func NewWriters(d Device, n int, completed func(*Write)) *Writers {
	if n < 1 || n > MaxWriters {
		panic(fmt.Sprintf("device.NewWriters: %d writers: want 1 to %d", n, MaxWriters))
	}
	w := &Writers{
		device:    d,
		completed: completed,
		queue:     make(chan *Write, WriterQueue),
		quit:      make(chan struct{}),
		left:      make(chan struct{}),
		writing:   make([]*Write, n),
	}
	w.running.Store(int64(n))
	for i := range n {
		go w.run(i)
	}
	return w
}

// Submit hands write over. It never blocks and allocates nothing. False means
// that it was not taken: WriterQueue writes wait already, or Stop was called.
func (w *Writers) Submit(write *Write) bool {
	if w.stopping.Load() {
		return false
	}
	write.SubmittedNS = NowNS()
	select {
	case w.queue <- write:
		return true
	default:
		return false
	}
}

// Stop lets the writes that are in the kernel end, and gives up those that still
// wait in the queue: they are neither written nor handed to completed. It returns
// when no goroutine is left; or after patience, with the writes that are stuck in
// the kernel: the device may still read their buffers, so that these and the
// Writes themselves must never be touched again. completed is not called after
// Stop returned. Only the first call does anything.
func (w *Writers) Stop(patience time.Duration) (stuck []*Write) {
	if !w.stopping.CompareAndSwap(false, true) {
		return nil
	}
	close(w.quit)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.left:
		return nil
	case <-timer.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abandoned = true
	for _, write := range w.writing {
		if write != nil {
			stuck = append(stuck, write)
		}
	}
	return stuck
}

func (w *Writers) run(self int) {
	defer func() {
		if w.running.Add(-1) == 0 {
			close(w.left)
		}
	}()
	for {
		select {
		case <-w.quit:
			return
		case write := <-w.queue:
			if !w.begin(self, write) {
				return
			}
			err := w.device.WriteSync(write.Buf, write.Offset)
			if !w.end(self, write, err, NowNS()) {
				return
			}
		}
	}
}

// begin is false when Stop was called: then nothing more is written.
func (w *Writers) begin(self int, write *Write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping.Load() {
		return false
	}
	w.writing[self] = write
	return true
}

// end is false when Stop has returned: write is nobody's any more.
func (w *Writers) end(self int, write *Write, err error, nowNS int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned {
		return false
	}
	w.writing[self] = nil
	write.Err, write.CompletedNS = err, nowNS
	w.completed(write)
	return true
}
