package device

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Arena is memory outside the Go heap for buffers that the kernel reads and
// writes directly: page-aligned, zero at first, never moved, unseen by the
// garbage collector. Its owner says when it is free; nothing else does.
type Arena struct {
	whole []byte // as mapped: whole pages
	bytes []byte
	freed atomic.Bool
}

// NewArena maps bytes of anonymous memory, rounded up to whole pages; bytes
// must be positive. The memory is only charged to the process as it is touched.
func NewArena(bytes int) (*Arena, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("arena of %d bytes: want at least 1", bytes)
	}
	page := unix.Getpagesize()
	rounded := (bytes + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, rounded, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("arena of %d bytes: mmap: %w; lower the memory limit or give the machine more", rounded, err)
	}
	return &Arena{whole: mem, bytes: mem[:bytes:bytes]}, nil
}

// Bytes is the whole arena, of the length asked for. It must not be touched
// after Free.
func (a *Arena) Bytes() []byte { return a.bytes }

// Free gives the memory back. No read or write of a device may be in flight on
// it. A second call does nothing.
func (a *Arena) Free() error {
	if !a.freed.CompareAndSwap(false, true) {
		return nil
	}
	a.bytes = nil
	if err := unix.Munmap(a.whole); err != nil {
		return fmt.Errorf("arena: munmap: %w", err)
	}
	return nil
}
