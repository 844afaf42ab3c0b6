package device

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ArenaAlignBytes is the alignment of an Arena: the largest logical block that
// Linux has (BLK_MAX_BLOCK_SIZE), so that it serves every device.
const ArenaAlignBytes = 64 << 10

// Arena is memory outside the Go heap for buffers that the kernel reads and
// writes directly: aligned to ArenaAlignBytes, zero at first, never moved, unseen
// by the garbage collector. Its owner says when it is free; nothing else does.
type Arena struct {
	whole []byte // as mapped
	bytes []byte // the aligned part that was asked for
	freed atomic.Bool
}

// NewArena maps bytes of anonymous memory, at least 1. The process is only
// charged for what it touches.
func NewArena(bytes int) (*Arena, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("arena of %d bytes: want at least 1", bytes)
	}
	whole, err := unix.Mmap(-1, 0, bytes+ArenaAlignBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("arena of %d bytes: mmap: %w; lower the memory limit or give the machine more", bytes, err)
	}
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % ArenaAlignBytes)
	return &Arena{whole: whole, bytes: whole[skip : skip+bytes : skip+bytes]}, nil
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
