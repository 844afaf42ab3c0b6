package device

import (
	"fmt"
	"sync/atomic"
)

// The buffers of NewReadAhead: with fewer the device idles between two reads,
// more only cost memory.
const (
	MinReadAheadBuffers = 2
	MaxReadAheadBuffers = 64
)

// ReadAhead is a Device that fetches ahead of a sequential reader, with a fixed
// number of fixed buffers, so that a scan runs at the device's bandwidth. Reads
// need no alignment of the buffer's address, only of offset and length. A read
// that follows the one before, or begins inside it, is sequential; any other goes
// straight to the device. One goroutine may use it at a time.
//
// What it fetched may be older than the device: its own Flush and WriteSync
// forget it, after a write by anyone else call Forget. A fetch that fails is not
// an error until the range is asked for: then it is read again, and the error
// names that range.
type ReadAhead struct {
	below  Device
	chunk  int64
	chunks []*chunk // chunk number k lives in chunks[k % len(chunks)]
	bounce []byte   // for direct reads into unaligned memory
	arena  *Arena
	alive  atomic.Int64 // fetching goroutines, plus one until Close
	closed bool

	lastFrom, lastTo int64 // the range of the read before
}

// chunk is one buffer with the goroutine that fills it. All but mem belongs to
// the reader; mem belongs to the goroutine while pending.
type chunk struct {
	mem     []byte
	number  int64 // which chunk of the device; -1: none
	length  int   // less than mem at the device's end
	pending bool
	err     error
	fetch   chan int64 // offset to read length bytes from
	fetched chan error
}

// NewReadAhead puts a reader over d with buffers buffers (MinReadAheadBuffers to
// MaxReadAheadBuffers) of chunkBytes, a multiple of the block, and one more of
// that size. Close it to end its goroutines.
func NewReadAhead(d Device, chunkBytes, buffers int) (*ReadAhead, error) {
	if chunkBytes < d.BlockBytes() || chunkBytes%d.BlockBytes() != 0 {
		return nil, fmt.Errorf("read ahead on %s: chunks of %d bytes are not a multiple of the block of %d: %w",
			d.Path(), chunkBytes, d.BlockBytes(), ErrNotAligned)
	}
	if buffers < MinReadAheadBuffers || buffers > MaxReadAheadBuffers {
		return nil, fmt.Errorf("read ahead on %s: %d buffers: want %d to %d",
			d.Path(), buffers, MinReadAheadBuffers, MaxReadAheadBuffers)
	}
	arena, err := NewArena(chunkBytes * (buffers + 1))
	if err != nil {
		return nil, fmt.Errorf("read ahead on %s: %w", d.Path(), err)
	}
	mem := arena.Bytes()
	r := &ReadAhead{below: d, chunk: int64(chunkBytes), arena: arena, lastFrom: -1, lastTo: -1}
	r.bounce = mem[:chunkBytes:chunkBytes]
	r.alive.Store(int64(buffers) + 1)
	for i := range buffers {
		from := chunkBytes * (i + 1)
		c := &chunk{
			mem:     mem[from : from+chunkBytes : from+chunkBytes],
			number:  -1,
			fetch:   make(chan int64, 1),
			fetched: make(chan error, 1),
		}
		r.chunks = append(r.chunks, c)
		go r.run(c)
	}
	return r, nil
}

// Path is the device's.
func (r *ReadAhead) Path() string { return r.below.Path() }

// SizeBytes is the device's.
func (r *ReadAhead) SizeBytes() int64 { return r.below.SizeBytes() }

// BlockBytes is the device's.
func (r *ReadAhead) BlockBytes() int { return r.below.BlockBytes() }

// ReadAt is Device.ReadAt, for p at any address.
func (r *ReadAhead) ReadAt(p []byte, offset int64) (int, error) {
	if err := CheckRange(r, OpRead, p, offset); err != nil {
		return 0, err
	}
	if r.closed {
		return 0, &Error{Op: OpRead, Path: r.Path(), Offset: offset, Length: len(p), Err: ErrClosed}
	}
	for done := 0; done < len(p); {
		from := offset + int64(done)
		n := min(int64(len(p)-done), r.chunk-from%r.chunk)
		if err := r.readPiece(p[done:done+int(n)], from); err != nil {
			return 0, err
		}
		done += int(n)
	}
	return len(p), nil
}

// WriteSync writes through and forgets what was fetched.
func (r *ReadAhead) WriteSync(p []byte, offset int64) error {
	r.Forget()
	return r.below.WriteSync(p, offset)
}

// Flush flushes the device and forgets what was fetched: what only a cache held
// may be gone.
func (r *ReadAhead) Flush() error {
	r.Forget()
	return r.below.Flush()
}

// Forget drops everything fetched ahead.
func (r *ReadAhead) Forget() {
	for _, c := range r.chunks {
		c.wait()
		c.number = -1
	}
	r.lastFrom, r.lastTo = -1, -1
}

// Close ends the fetching and frees the buffers. It waits for nothing: a fetch
// stuck in the kernel keeps its memory until it returns. It does not close the
// device below.
func (r *ReadAhead) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	for _, c := range r.chunks {
		close(c.fetch)
	}
	return r.release()
}

// readPiece reads a range that lies inside one chunk.
func (r *ReadAhead) readPiece(p []byte, offset int64) error {
	number := offset / r.chunk
	c := r.chunks[number%int64(len(r.chunks))]
	sequential := offset >= r.lastFrom && offset <= r.lastTo
	r.lastFrom, r.lastTo = offset, offset+int64(len(p))
	if c.number != number && !sequential {
		return r.readDirect(p, offset)
	}
	r.fetchFrom(number)
	c.wait()
	if c.err != nil {
		return r.readDirect(p, offset)
	}
	copy(p, c.mem[offset%r.chunk:c.length])
	return nil
}

// fetchFrom makes chunk first and those after it be there or on their way.
func (r *ReadAhead) fetchFrom(first int64) {
	for number := first; number < first+int64(len(r.chunks)) && number*r.chunk < r.SizeBytes(); number++ {
		c := r.chunks[number%int64(len(r.chunks))]
		if c.number == number {
			continue
		}
		c.wait()
		c.number = number
		c.length = int(min(r.chunk, r.SizeBytes()-number*r.chunk))
		c.pending = true
		c.fetch <- number * r.chunk
	}
}

// readDirect reads without the chunks.
func (r *ReadAhead) readDirect(p []byte, offset int64) error {
	if aligned(p, r.BlockBytes()) {
		_, err := r.below.ReadAt(p, offset)
		return err
	}
	if _, err := r.below.ReadAt(r.bounce[:len(p)], offset); err != nil {
		return err
	}
	copy(p, r.bounce)
	return nil
}

// wait returns when no fetch of c is on its way.
func (c *chunk) wait() {
	if c.pending {
		c.err = <-c.fetched
		c.pending = false
	}
}

func (r *ReadAhead) run(c *chunk) {
	for offset := range c.fetch {
		_, err := r.below.ReadAt(c.mem[:c.length], offset)
		c.fetched <- err
	}
	_ = r.release()
}

// release frees the arena when the last goroutine and the owner have let go.
func (r *ReadAhead) release() error {
	if r.alive.Add(-1) > 0 {
		return nil
	}
	return r.arena.Free()
}
