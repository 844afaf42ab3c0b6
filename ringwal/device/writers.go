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

	Err error // once completed: as WriteSync's
}

// Writers has one device written to, several writes at once, without making the caller
// wait. A block device is written by the kernel's asynchronous I/O where there is one; files,
// other devices, and what the kernel cannot take at once, by a fixed set of goroutines.
// Writes begin in the order of Submit and complete in any order.
type Writers struct {
	device    Device
	completed func([]*Write)
	kernel    *aio // nil: only goroutines
	queue     chan *Write
	quit      chan struct{} // closed by Stop
	left      chan struct{} // closed when nothing is being written any more after Stop
	busy      atomic.Int64  // goroutines, and writes that the kernel has

	mu        sync.Mutex
	stopping  bool
	abandoned bool     // Stop has returned without waiting for all
	writing   []*Write // what each goroutine has in the kernel
}

// Listen calls heard after each event of a descriptor, one call at a time, until forget has
// returned; it may be deaf to it for as long as heard returns.
type Listen func(fd int, heard func() (deaf time.Duration)) (forget func(), err error)

// NewWriters returns writers with n goroutines, 1 to MaxWriters (else it panics: n is the
// program's own). With listen the kernel's asynchronous I/O is used where there is one. completed is called with every write once, several together that
// ended at about the same time; it may be called by several goroutines at once, must not call Stop,
// and does not keep the slice.
func NewWriters(d Device, n int, listen Listen, completed func([]*Write)) *Writers {
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
	if r, ok := d.(*raw); ok && r.isBlock && listen != nil {
		w.kernel, _ = newAIO(r, listen, w.kernelWrote, w.kernelLeft) // goroutines do as well
	}
	w.busy.Store(int64(n))
	for i := range n {
		go w.run(i)
	}
	return w
}

// Engines are how a device is written: by the kernel alone, or by threads that wait for it.
const (
	EngineAIO     = "aio"
	EngineThreads = "threads"
)

// Engine is EngineAIO or EngineThreads.
func (w *Writers) Engine() string {
	if w.kernel != nil && w.kernel.fit() {
		return EngineAIO
	}
	return EngineThreads
}

// Submit hands write over. It never blocks and allocates nothing. False means
// that it was not taken: WriterQueue writes wait already, or Stop was called.
func (w *Writers) Submit(write *Write) bool {
	w.mu.Lock()
	stopping := w.stopping
	if !stopping {
		w.busy.Add(1)
	}
	w.mu.Unlock()
	if stopping {
		return false
	}
	// What waits for a goroutine goes first.
	if w.kernel != nil && len(w.queue) == 0 && w.kernel.submit(write) {
		return true
	}
	defer w.leave()
	select {
	case w.queue <- write:
		return true
	default:
		return false
	}
}

func (w *Writers) leave() {
	if w.busy.Add(-1) == 0 {
		close(w.left)
	}
}

// kernelWrote hands over what the kernel has written.
func (w *Writers) kernelWrote(writes []*Write) {
	w.mu.Lock()
	abandoned := w.abandoned
	w.mu.Unlock()
	if !abandoned {
		w.completed(writes)
	}
	for range writes {
		w.leave()
	}
}

// kernelLeft takes a write that the kernel could not go on with at once.
func (w *Writers) kernelLeft(write *Write) {
	defer w.leave()
	select {
	case w.queue <- write:
	default:
		write.Err = fmt.Errorf("%w: %d writes wait already", ErrWrite, WriterQueue)
		w.completed([]*Write{write})
	}
}

// Stop lets the writes that are in the kernel end, and gives up those that still
// wait in the queue: they are neither written nor handed to completed. It returns
// when nothing is being written; or after patience, with the writes that are stuck in
// the kernel: the device may still read their buffers, so that these and the
// Writes themselves must never be touched again. completed is not called with one of these
// after Stop returned. Only the first call does anything.
func (w *Writers) Stop(patience time.Duration) (stuck []*Write) {
	w.mu.Lock()
	stopped := w.stopping
	w.stopping = true
	w.mu.Unlock()
	if stopped {
		return nil
	}
	close(w.quit)
	if w.allLeft(patience) {
		if w.kernel != nil {
			w.kernel.close()
		}
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abandoned = true
	for _, write := range w.writing {
		if write != nil {
			stuck = append(stuck, write)
		}
	}
	if w.kernel != nil {
		stuck = w.kernel.inKernel(stuck)
		go w.kernel.outlast() // the device is closed once nothing is being written to it
	}
	return stuck
}

// allLeft waits until nothing is being written, and reports whether that came to be. Who
// listens may have ended, or be the caller: what the kernel tells is asked for here.
func (w *Writers) allLeft(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		if w.kernel != nil {
			w.kernel.heard()
		}
		select {
		case <-w.left:
			return true
		case <-timer.C:
			return false
		case <-look.C:
		}
	}
}

func (w *Writers) run(self int) {
	defer w.leave()
	var one [1]*Write
	for {
		select {
		case <-w.quit:
			return
		case write := <-w.queue:
			if !w.begin(self, write) {
				return
			}
			err := w.device.WriteSync(write.Buf, write.Offset)
			if !w.end(self, write, err) {
				return
			}
			one[0] = write
			w.completed(one[:])
		}
	}
}

// begin is false when Stop was called: then nothing more is written.
func (w *Writers) begin(self int, write *Write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping {
		return false
	}
	w.writing[self] = write
	return true
}

// end is false when Stop has returned: write is nobody's any more.
func (w *Writers) end(self int, write *Write, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned {
		return false
	}
	w.writing[self] = nil
	write.Err = err
	return true
}
