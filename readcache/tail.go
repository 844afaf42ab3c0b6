// Package readcache keeps the newest part of a log in memory.
//
// Tail is the hot tail: the very buffers that frames are built in and written
// from. It is the one copy of a payload in the sidecar: the commit loop encodes
// into it, the device writes from it, readers copy out of it.
package readcache

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// MinTailBytes is the smallest tail: below it a window of frames and an open
// frame would not fit beside each other.
const MinTailBytes = 4 << 20

// ErrTailTooSmall says that a tail cannot hold the frames a log keeps in flight.
var ErrTailTooSmall = errors.New("readcache: tail too small")

// Tail is the memory of the newest Bytes of a log, addressed by position.
//
// The byte at log position p lies at p modulo the tail's size. The memory is
// mapped twice in a row, so that a frame is contiguous wherever it begins and no
// table is needed to find it: what the tail holds is exactly the range
// [low, published). Positions of a log only grow, so a newer frame overwrites
// the frame one tail size before it.
//
// # Why readers need no lock
//
// The commit loop must never wait for a reader. It raises low *before* it hands
// out memory for a new frame, and a reader looks at low again *after* it copied:
// if low has passed the copied range meanwhile, the copy may be torn and is thrown
// away (the device has the bytes). This is a sequence lock whose counter is the
// position itself. The second look is an atomic read-modify-write, since a plain
// atomic load would let arm64 move the copy's loads behind it.
//
// Acquire, Shrink, Publish and Empty belong to one goroutine; Copy may be called from any.
type Tail struct {
	mem  []byte // 2 × size bytes: the same pages twice
	size uint64

	// protected is the end of the durable frames; memory at or above it is still
	// being built or written and is never handed out again.
	protected uint64
	low       atomic.Uint64 // lowest position whose bytes are intact
	published atomic.Uint64 // readers may copy below it
}

// NewTail maps a tail of at least sizeBytes (rounded up to a whole number of
// pages) for a log whose next frame lies at or beyond position. The memory is
// shared, off-heap, page-aligned, and counts towards the process's resident size
// only once touched.
func NewTail(sizeBytes int, position uint64) (*Tail, error) {
	page := unix.Getpagesize()
	size := (max(sizeBytes, MinTailBytes) + page - 1) / page * page
	mem, err := mapTwice(size)
	if err != nil {
		return nil, fmt.Errorf("readcache: map a tail of %d bytes twice: %w", size, err)
	}
	t := &Tail{mem: mem, size: uint64(size), protected: position}
	t.low.Store(position)
	t.published.Store(position)
	return t, nil
}

// SizeBytes is the memory that the tail may come to hold.
func (t *Tail) SizeBytes() int { return int(t.size) }

// Acquire lends n bytes for the frame at position, which is at or above every
// position acquired before. It returns nil while frames that are not durable yet
// would have to be overwritten: the caller waits for a completion. The memory is
// not cleared.
func (t *Tail) Acquire(position uint64, n int) []byte {
	end := position + uint64(n)
	if uint64(n) > t.size || (end > t.size && end-t.size > t.protected) {
		return nil
	}
	if end > t.size && end-t.size > t.low.Load() {
		t.low.Store(end - t.size)
	}
	at := position % t.size
	return t.mem[at : at+uint64(n) : at+uint64(n)]
}

// Shrink says that only the first used bytes of the frame at position were
// needed. Memory is addressed by position, so there is nothing to give back.
func (t *Tail) Shrink(uint64, int) {}

// Publish makes everything below durable readable, and its memory free to be
// overwritten by frames one tail size further on.
func (t *Tail) Publish(durable uint64) {
	t.protected = durable
	t.published.Store(durable)
}

// Low is the lowest position whose bytes are intact. It only grows.
func (t *Tail) Low() uint64 { return t.low.Load() }

// Holds reports whether the bytes of [from, from+n) were intact and readable
// when it looked.
func (t *Tail) Holds(from uint64, n int) bool {
	return from >= t.low.Load() && from+uint64(n) <= t.published.Load()
}

// Copy copies the log's bytes from position into dst, as many as are readable,
// and returns their number; 0 says that the tail no longer holds (or does not yet
// show) position.
func (t *Tail) Copy(dst []byte, position uint64) int {
	if position < t.low.Load() {
		return 0
	}
	published := t.published.Load()
	if position >= published {
		return 0
	}
	n := int(min(uint64(len(dst)), published-position, t.size))
	at := position % t.size
	copy(dst[:n], t.mem[at:at+uint64(n)])
	if position < t.low.Add(0) { // the second look; see the type's essay
		return 0
	}
	return n
}

// Empty gives the pages back, once no frame is built or written in them any more: nothing
// can be read from then on. Readers may still try, so the addresses stay mapped until Close.
func (t *Tail) Empty() {
	t.low.Store(math.MaxUint64)
	_ = unix.Madvise(t.mem[:t.size], unix.MADV_REMOVE) // at worst they live as long as the process
}

// Close unmaps the memory. No goroutine may use the tail, nor memory acquired
// from it, any more.
func (t *Tail) Close() error {
	mem := t.mem
	t.mem = nil
	return unmapTwice(mem, int(t.size))
}
