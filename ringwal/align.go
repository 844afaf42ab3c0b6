package ringwal

import "unsafe"

// alignedBytes is n bytes of the heap at an address that is a multiple of block. The
// heap does not move, so the address keeps.
func alignedBytes(n, block int) []byte {
	b := make([]byte, n+block)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (block - 1)
	return b[skip : skip+n : skip+n]
}
