package device

import (
	"fmt"
	"unsafe"
)

var (
	errMemory = fmt.Errorf("%w: the buffer's address is not a multiple of the block", ErrNotAligned)
	errOffset = fmt.Errorf("%w: offset and length must be multiples of the block", ErrNotAligned)
)

// CheckRange is what every Device does before it asks its medium: the error for
// an offset or length of p that is not a multiple of d's block (ErrNotAligned),
// or a range that is not inside d (ErrOutOfRange); else nil.
func CheckRange(d Device, op Op, p []byte, offset int64) error {
	block := int64(d.BlockBytes())
	if offset%block != 0 || int64(len(p))%block != 0 {
		return &Error{Op: op, Path: d.Path(), Offset: offset, Length: len(p), Err: errOffset}
	}
	if offset < 0 || offset > d.SizeBytes() || int64(len(p)) > d.SizeBytes()-offset {
		err := fmt.Errorf("%w of %d bytes", ErrOutOfRange, d.SizeBytes())
		return &Error{Op: op, Path: d.Path(), Offset: offset, Length: len(p), Err: err}
	}
	return nil
}

// aligned reports whether p begins at a multiple of block.
func aligned(p []byte, block int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%uintptr(block) == 0
}
