package device

import "time"

// WriterQueue is the most writes that Writers hold beyond those in the kernel.
const WriterQueue = 256

// MaxWriters is the most goroutines that NewWriters starts.
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
	queue chan *Write
}

// NewWriters starts n goroutines, 1 to MaxWriters. completed is called for every
// write, one call at a time, on a writer's goroutine; it must not block, nor
// call Stop.
func NewWriters(d Device, n int, completed func(*Write)) *Writers {
	return &Writers{queue: make(chan *Write, WriterQueue)}
}

// Submit hands w over. It never blocks and allocates nothing; false means that
// w was not taken, because WriterQueue writes wait already or Stop was called.
func (w *Writers) Submit(write *Write) bool { return false }

// Stop lets the writes in the kernel end and gives up those that still wait in
// the queue: they are not written. It returns when no goroutine is left, or
// after patience, with the writes that are stuck in the kernel; their buffers may
// still be read by the device and must never be used or freed again. completed
// is not called after Stop returned; writes that were given up are not handed
// to it.
func (w *Writers) Stop(patience time.Duration) (stuck []*Write) { return nil }
