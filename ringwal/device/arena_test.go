package device

import (
	"testing"
	"unsafe"
)

func TestArenaIsAlignedZeroAndOffHeap(t *testing.T) {
	for _, n := range []int{1, 4096, 4097, 1 << 20} {
		a, err := NewArena(n)
		if err != nil {
			t.Fatal(err)
		}
		b := a.Bytes()
		if len(b) != n || cap(b) != n {
			t.Fatalf("arena of %d bytes: len %d cap %d", n, len(b), cap(b))
		}
		if at := uintptr(unsafe.Pointer(&b[0])); at%65536 != 0 {
			t.Fatalf("arena at %#x is not aligned", at)
		}
		if !isZero(b) {
			t.Fatal("arena is not zero")
		}
		b[0], b[n-1] = 1, 2
		if err := a.Free(); err != nil {
			t.Fatal(err)
		}
		if err := a.Free(); err != nil {
			t.Fatalf("second free: %v", err)
		}
		if a.Bytes() != nil {
			t.Fatal("a freed arena still gives bytes")
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := NewArena(n); err == nil {
			t.Fatalf("arena of %d bytes was made", n)
		}
	}
}

func TestArenaOutOfMemoryIsAnError(t *testing.T) {
	if _, err := NewArena(1 << 62); err == nil {
		t.Fatal("an arena of 4 EiB was made")
	}
}
