package device

import (
	"bytes"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// counted counts reads, and fails or holds those that touch a place.
type counted struct {
	Device
	reads  atomic.Int64
	failAt atomic.Int64 // offset that EIO sits at; -1: none
	hold   chan struct{}
}

func (c *counted) ReadAt(p []byte, offset int64) (int, error) {
	c.reads.Add(1)
	if c.hold != nil {
		<-c.hold
	}
	if bad := c.failAt.Load(); bad >= 0 && offset <= bad && bad < offset+int64(len(p)) {
		return 0, &Error{Op: OpRead, Path: c.Path(), Offset: offset, Length: len(p), Err: syscall.EIO}
	}
	return c.Device.ReadAt(p, offset)
}

// newCounted is a device of size bytes with a pattern on it.
func newCounted(t testing.TB, size int64) (*counted, []byte) {
	t.Helper()
	content := patterned(t, int(size), 5)
	d := newFile(t, size)
	if err := d.WriteSync(content, 0); err != nil {
		t.Fatal(err)
	}
	c := &counted{Device: d}
	c.failAt.Store(-1)
	return c, content
}

func newReadAhead(t testing.TB, d Device, chunk, buffers int) *ReadAhead {
	t.Helper()
	r, err := NewReadAhead(d, chunk, buffers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestReadAheadGivesTheDevicesBytes(t *testing.T) {
	const size = 3<<20 + 20<<10 // the last chunk is a short one
	rng := newRand(t)
	c, content := newCounted(t, size)
	for _, chunk := range []int{4096, 64 << 10, 1 << 20} {
		r := newReadAhead(t, c, chunk, 2+rng.IntN(6))
		at := int64(0)
		for range 400 {
			switch rng.IntN(8) {
			case 0: // somewhere else
				at = rng.Int64N(size/4096) * 4096
			case 1: // the same again
				at = max(0, at-4096)
			}
			n := min((1+rng.Int64N(80))*4096, size-at)
			p := make([]byte, n+1)[1:] // no aligned memory needed
			if got, err := r.ReadAt(p, at); err != nil || got != len(p) {
				t.Fatalf("read [%d, %d): %d, %v", at, at+n, got, err)
			}
			if !bytes.Equal(p, content[at:at+n]) {
				t.Fatalf("chunk %d: read [%d, %d) gave other bytes", chunk, at, at+n)
			}
			if at += n; at == size {
				at = 0
			}
		}
	}
}

func TestReadAheadReadsEveryByteOnce(t *testing.T) {
	c, _ := newCounted(t, 8<<20)
	r := newReadAhead(t, c, 1<<20, 4)
	p := buffer(t, 4096)
	for at := int64(0); at < 8<<20; at += 4096 {
		if _, err := r.ReadAt(p, at); err != nil {
			t.Fatal(err)
		}
	}
	// One direct read, before it knew that it is a sequence, and eight chunks.
	if reads := c.reads.Load(); reads != 9 {
		t.Errorf("%d reads, want 9", reads)
	}
}

func TestReadAheadLeavesRandomReadsAlone(t *testing.T) {
	c, _ := newCounted(t, 8<<20)
	r := newReadAhead(t, c, 1<<20, 4)
	p := buffer(t, 4096)
	for i := range int64(100) {
		if _, err := r.ReadAt(p, (i*37%2000)*4096); err != nil {
			t.Fatal(err)
		}
	}
	if reads := c.reads.Load(); reads != 100 {
		t.Errorf("%d reads of 100", reads)
	}
}

func TestReadAheadErrorIsOfTheRangeAskedFor(t *testing.T) {
	c, content := newCounted(t, 4<<20)
	c.failAt.Store(2<<20 + 512<<10)
	r := newReadAhead(t, c, 1<<20, 4)
	p := buffer(t, 64<<10)
	for at := int64(0); at < 4<<20; at += 64 << 10 {
		_, err := r.ReadAt(p, at)
		if at == 2<<20+512<<10 {
			wantError(t, err, ErrRead, "65536 bytes at offset 2621440")
			wantError(t, err, ErrIO)
			continue
		}
		if err != nil || !bytes.Equal(p, content[at:at+64<<10]) {
			t.Fatalf("a healthy range at %d: %v", at, err)
		}
	}
}

func TestReadAheadForgets(t *testing.T) {
	c, _ := newCounted(t, 4<<20)
	fresh := patterned(t, 4096, 99)
	for name, change := range map[string]func(*ReadAhead) error{
		"Forget": func(r *ReadAhead) error { err := c.WriteSync(fresh, 64<<10); r.Forget(); return err },
		"Flush":  func(r *ReadAhead) error { err := c.WriteSync(fresh, 64<<10); _ = r.Flush(); return err },
		"Write":  func(r *ReadAhead) error { return r.WriteSync(fresh, 64<<10) },
	} {
		r := newReadAhead(t, c, 1<<20, 4)
		p := buffer(t, 4096)
		for at := int64(0); at <= 64<<10; at += 4096 {
			if _, err := r.ReadAt(p, at); err != nil {
				t.Fatal(err)
			}
		}
		fresh[0]++ // another content each time
		if err := change(r); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAt(p, 64<<10); err != nil || !bytes.Equal(p, fresh) {
			t.Errorf("%s: the old bytes came back (%v)", name, err)
		}
	}
}

func TestReadAheadCloseDoesNotHangOnAStuckRead(t *testing.T) {
	c, _ := newCounted(t, 4<<20)
	c.hold = make(chan struct{})
	r := newReadAhead(t, c, 1<<20, 4)
	r.fetchFrom(0) // four fetches that are stuck
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := r.ReadAt(buffer(t, 4096), 0)
	wantError(t, err, ErrClosed)
	if r.alive.Load() != 4 {
		t.Errorf("%d goroutines, want the 4 that are stuck", r.alive.Load())
	}
	close(c.hold)
	for deadline := time.Now().Add(10 * time.Second); !r.arena.freed.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the last goroutine did not free the buffers")
		}
	}
}

func TestReadAheadChecksItsArguments(t *testing.T) {
	d := newFile(t, 1<<20)
	_, err := NewReadAhead(d, 1000, 4)
	wantError(t, err, ErrNotAligned, d.Path(), "1000 bytes")
	for _, buffers := range []int{0, 1, MaxReadAheadBuffers + 1} {
		if _, err := NewReadAhead(d, 4096, buffers); err == nil {
			t.Errorf("%d buffers were taken", buffers)
		}
	}
	r := newReadAhead(t, d, 4096, 2)
	_, err = r.ReadAt(make([]byte, 8192), 1<<20-4096)
	wantError(t, err, ErrOutOfRange)
	_, err = r.ReadAt(make([]byte, 100), 0)
	wantError(t, err, ErrNotAligned)
	if r.Path() != d.Path() || r.SizeBytes() != d.SizeBytes() || r.BlockBytes() != d.BlockBytes() {
		t.Error("it is not the device's path, size and block")
	}
}

// BenchmarkSequentialRead compares a scan in small pieces through ReadAhead with
// the device's own sequential bandwidth.
func BenchmarkSequentialRead(b *testing.B) {
	const size = 256 << 20
	d := newFile(b, size)
	scan := func(b *testing.B, r Device, piece int) {
		p := buffer(b, piece)
		at := int64(0)
		b.SetBytes(int64(piece))
		for b.Loop() {
			if _, err := r.ReadAt(p, at); err != nil {
				b.Fatal(err)
			}
			at = (at + int64(piece)) % size
		}
	}
	b.Run("raw 1 MiB", func(b *testing.B) { scan(b, d, 1<<20) })
	b.Run("raw 4 KiB", func(b *testing.B) { scan(b, d, 4<<10) })
	for _, buffers := range []int{2, 4, 8} {
		b.Run("ahead 4 KiB, buffers "+string(rune('0'+buffers)), func(b *testing.B) {
			scan(b, newReadAhead(b, d, 1<<20, buffers), 4<<10)
		})
	}
	b.Run("ahead 256 KiB", func(b *testing.B) { scan(b, newReadAhead(b, d, 1<<20, 4), 256<<10) })
}
