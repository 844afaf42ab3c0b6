package readcache

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapTwice maps size bytes of fresh memory two times in a row: byte i and byte
// size+i are the same. size is a multiple of the page size.
func mapTwice(size int) ([]byte, error) {
	fd, err := unix.MemfdCreate("walsidecar-tail", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	// Reserve the address range first, so that the two halves are neighbours.
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(2*size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	for half := range 2 {
		at := unsafe.Add(base, half*size)
		_, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		if err != nil {
			_ = unix.MunmapPtr(base, uintptr(2*size))
			return nil, err
		}
	}
	return unsafe.Slice((*byte)(base), 2*size), nil
}

func unmapTwice(mem []byte, size int) error {
	if mem == nil {
		return nil
	}
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(2*size))
}
