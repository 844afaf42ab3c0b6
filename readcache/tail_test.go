package readcache

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func fill(b []byte, position uint64) {
	for i := range b {
		b[i] = stamp(position + uint64(i))
	}
}

// stamp differs between a position and the one that shares its memory.
func stamp(p uint64) byte { return byte(p*0x9E3779B97F4A7C15>>56) ^ byte(p>>22) }

func newTail(t *testing.T, position uint64) *Tail {
	t.Helper()
	tail, err := NewTail(MinTailBytes, position)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tail.Close() })
	return tail
}

func TestTailHoldsTheNewestBytes(t *testing.T) {
	const frame = 1 << 20
	tail := newTail(t, 0)
	for position := uint64(0); position < 20*frame; position += frame {
		b := tail.Acquire(position, frame)
		if b == nil {
			t.Fatalf("no memory for the frame at %d although every earlier one is durable", position)
		}
		fill(b, position)
		tail.Publish(position + frame)
	}
	got := make([]byte, 2*frame)
	for position := uint64(0); position < 20*frame; position += frame {
		n := tail.Copy(got, position)
		if inside := position >= 20*frame-MinTailBytes; inside != (n > 0) {
			t.Fatalf("position %d: copied %d bytes, inside the tail: %v", position, n, inside)
		}
		want := make([]byte, n)
		fill(want, position)
		if !bytes.Equal(got[:n], want) {
			t.Fatalf("position %d: other bytes than were written there", position)
		}
	}
}

// A frame that begins near the end of the memory is contiguous all the same.
func TestTailFrameAcrossTheMappingsEnd(t *testing.T) {
	start := uint64(MinTailBytes - 4096)
	tail := newTail(t, start)
	b := tail.Acquire(start, 1<<20)
	fill(b, start)
	tail.Publish(start + 1<<20)
	got, want := make([]byte, 1<<20), make([]byte, 1<<20)
	fill(want, start)
	if n := tail.Copy(got, start); n != 1<<20 || !bytes.Equal(got, want) {
		t.Fatalf("copied %d bytes, equal: %v", n, bytes.Equal(got, want))
	}
}

// Memory of a frame whose write has not completed is never lent again.
func TestTailProtectsWhatIsNotDurable(t *testing.T) {
	tail := newTail(t, 0)
	for position := uint64(0); position < MinTailBytes; position += 1 << 20 {
		if tail.Acquire(position, 1<<20) == nil {
			t.Fatalf("no memory at %d in an empty tail", position)
		}
	}
	if tail.Acquire(MinTailBytes, 1<<20) != nil {
		t.Fatal("lent memory of a frame that is still being written")
	}
	tail.Publish(1 << 20)
	if tail.Acquire(MinTailBytes, 1<<20) == nil {
		t.Fatal("no memory although the oldest frame is durable")
	}
}

func TestTailShowsOnlyWhatIsPublished(t *testing.T) {
	tail := newTail(t, 8192)
	fill(tail.Acquire(8192, 8192), 8192)
	if n := tail.Copy(make([]byte, 8192), 8192); n != 0 {
		t.Fatalf("copied %d bytes of a frame that is not durable", n)
	}
	tail.Publish(8192 + 4096)
	if n := tail.Copy(make([]byte, 8192), 8192); n != 4096 {
		t.Fatalf("copied %d bytes, 4096 are published", n)
	}
}

// Readers race the writer over a small tail; a copy is either right or refused.
func TestTailReadersNeverSeeTornBytes(t *testing.T) {
	const frame = 64 << 10
	tail := newTail(t, 0)
	var head atomic.Uint64
	var copied atomic.Int64
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for reader := range 2 {
		readers.Go(func() {
			got, want := make([]byte, frame), make([]byte, frame)
			for back := uint64(reader); ; back++ {
				select {
				case <-stop:
					return
				default:
				}
				h := head.Load()
				position := h - min(h, back%80*frame)
				n := tail.Copy(got, position)
				fill(want[:n], position)
				if !bytes.Equal(got[:n], want[:n]) {
					t.Errorf("position %d: torn copy", position)
					return
				}
				copied.Add(int64(n))
			}
		})
	}
	for position := uint64(0); position < 8000*frame; position += frame {
		fill(tail.Acquire(position, frame), position)
		tail.Publish(position + frame)
		head.Store(position)
	}
	close(stop)
	readers.Wait()
	if copied.Load() == 0 {
		t.Fatal("the readers never copied anything")
	}
}

// An empty tail shows nothing, to readers that look meanwhile either, and holds no memory.
func TestAnEmptyTailHoldsNothing(t *testing.T) {
	tail := newTail(t, 0)
	b := tail.Acquire(0, MinTailBytes)
	fill(b, 0)
	tail.Publish(MinTailBytes)
	stop, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		got, want := make([]byte, 64<<10), make([]byte, 64<<10)
		fill(want, 1<<20)
		for {
			if n := tail.Copy(got, 1<<20); !bytes.Equal(got[:n], want[:n]) {
				t.Error("other bytes than were written there")
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	tail.Empty()
	close(stop)
	<-looked
	if n := tail.Copy(make([]byte, 4096), 1<<20); n != 0 || tail.Holds(1<<20, 1) {
		t.Errorf("%d bytes can be read", n)
	}
	if !removes(t) {
		t.Skip("pages are not given back here: an emulator or a sandbox")
	}
	if bytes.ContainsFunc(b, func(r rune) bool { return r != 0 }) {
		t.Error("the pages are still there")
	}
}

// removes reports whether the kernel takes shared pages back.
func removes(t *testing.T) bool {
	t.Helper()
	mem, err := mapTwice(unix.Getpagesize())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unmapTwice(mem, len(mem)/2) }()
	mem[0] = 1
	_ = unix.Madvise(mem[:len(mem)/2], unix.MADV_REMOVE)
	return mem[0] == 0
}
