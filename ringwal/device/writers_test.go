package device

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// gated is a device whose writes wait until the test lets them go.
type gated struct {
	Device
	entered chan int64    // offset of each write that began
	gate    chan error    // what each write returns
	writes  atomic.Int64  // that returned
	idle    chan struct{} // unused writes of a test end here
}

func newGated(t *testing.T) *gated {
	g := &gated{
		Device:  newFile(t, 1<<20),
		entered: make(chan int64, 1000),
		gate:    make(chan error, 1000),
		idle:    make(chan struct{}),
	}
	t.Cleanup(func() { close(g.idle) })
	return g
}

func (g *gated) WriteSync(_ []byte, offset int64) error {
	g.entered <- offset
	select {
	case err := <-g.gate:
		g.writes.Add(1)
		return err
	case <-g.idle:
		return ErrClosed
	}
}

// each returns a completed that does f with every write.
func each(f func(*Write)) func([]*Write) {
	return func(writes []*Write) {
		for _, w := range writes {
			f(w)
		}
	}
}

// engines runs test with writers of both kinds.
func engines(t *testing.T, test func(t *testing.T, listen Listen)) {
	t.Run("threads", func(t *testing.T) { test(t, nil) })
	t.Run("aio", func(t *testing.T) {
		w := NewWriters(newFile(t, 1<<20), 1, listenApart, func([]*Write) {})
		defer w.Stop(time.Minute)
		if w.Engine() != EngineAIO {
			t.Skip("this kernel has no asynchronous I/O: a user-mode emulator, or a sandbox")
		}
		test(t, listenApart)
	})
}

// listenApart listens with a goroutine, as the node does in its commit loop.
func listenApart(fd int, heard func() time.Duration) (forget func(), err error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&0xffffffff}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return nil, err
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var events [1]unix.EpollEvent
		for {
			select {
			case <-quit:
				return
			default:
			}
			if n, _ := unix.EpollWait(epoll, events[:], 20); n > 0 {
				heard()
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
		_ = unix.Close(epoll)
	}, nil
}

func TestWritersWriteEverythingOnce(t *testing.T) {
	engines(t, writeEverythingOnce)
}

func writeEverythingOnce(t *testing.T, listen Listen) {
	d := newFile(t, 4<<20)
	rng := newRand(t)
	var mu sync.Mutex
	seen := map[int64]int{}
	done := make(chan struct{})
	writes := make([]*Write, 200)
	w := NewWriters(d, 4, listen, each(func(write *Write) {
		mu.Lock()
		defer mu.Unlock()
		if write.Err != nil {
			t.Errorf("offset %d: %v", write.Offset, write.Err)
		}
		if seen[write.Offset]++; len(seen) == len(writes) {
			close(done)
		}
	}))
	for i, block := range rng.Perm(len(writes)) {
		writes[i] = &Write{Buf: patterned(t, 4096, byte(block)), Offset: int64(block) * 4096, Owner: block}
		if !w.Submit(writes[i]) {
			t.Fatalf("write %d was not taken", i)
		}
	}
	<-done
	if stuck := w.Stop(time.Minute); stuck != nil {
		t.Fatalf("%d writes are stuck", len(stuck))
	}
	got := buffer(t, 4096)
	for _, write := range writes {
		if seen[write.Offset] != 1 {
			t.Errorf("offset %d completed %d times", write.Offset, seen[write.Offset])
		}
		if _, err := d.ReadAt(got, write.Offset); err != nil || !bytes.Equal(got, write.Buf) {
			t.Fatalf("offset %d: %v", write.Offset, err)
		}
	}
}

func TestWritersBeginInOrderAndGoOnAfterAnError(t *testing.T) {
	g := newGated(t)
	completed := make(chan *Write, 10)
	w := NewWriters(g, 1, nil, each(func(write *Write) { completed <- write }))
	for i := range 3 {
		w.Submit(&Write{Offset: int64(i)})
	}
	g.gate <- nil
	g.gate <- syscall.EIO
	g.gate <- nil
	for i, want := range []error{nil, syscall.EIO, nil} {
		write := <-completed
		if write.Offset != int64(i) || !errors.Is(write.Err, want) {
			t.Errorf("completion %d: offset %d, %v; want %v", i, write.Offset, write.Err, want)
		}
	}
	w.Stop(time.Minute)
}

func TestSubmitNeverBlocks(t *testing.T) {
	g := newGated(t)
	w := NewWriters(g, 1, nil, func([]*Write) {})
	w.Submit(&Write{})
	<-g.entered // it is in the kernel; the queue is empty
	taken := 0
	for w.Submit(&Write{}) {
		taken++
	}
	if taken != WriterQueue {
		t.Errorf("%d writes waited, want %d", taken, WriterQueue)
	}
	for range WriterQueue + 1 {
		g.gate <- nil
	}
	w.Stop(time.Minute)
	if w.Submit(&Write{}) {
		t.Error("a write was taken after Stop")
	}
}

func TestStopLetsRunningWritesEndAndGivesUpTheQueue(t *testing.T) {
	g := newGated(t)
	var completed atomic.Int64
	w := NewWriters(g, 2, nil, each(func(*Write) { completed.Add(1) }))
	for range 10 {
		w.Submit(&Write{})
	}
	<-g.entered
	<-g.entered
	go func() {
		time.Sleep(50 * time.Millisecond)
		g.gate <- nil
		g.gate <- nil
	}()
	if stuck := w.Stop(time.Minute); stuck != nil {
		t.Fatalf("%d writes are stuck", len(stuck))
	}
	if completed.Load() != 2 || len(g.entered) != 0 {
		t.Errorf("%d completed, %d more began; want the 2 that had begun", completed.Load(), len(g.entered))
	}
}

func TestStopDoesNotHangOnAStuckWrite(t *testing.T) {
	g := newGated(t)
	var completed atomic.Int64
	w := NewWriters(g, 3, nil, each(func(*Write) { completed.Add(1) }))
	first, second := &Write{Offset: 4096}, &Write{Offset: 8192}
	w.Submit(first)
	w.Submit(second)
	<-g.entered
	<-g.entered
	start := time.Now()
	stuck := w.Stop(100 * time.Millisecond)
	if took := time.Since(start); took < 100*time.Millisecond || took > 10*time.Second {
		t.Errorf("Stop took %v, want its patience of 100 ms", took)
	}
	if len(stuck) != 2 || stuck[0].Offset+stuck[1].Offset != 4096+8192 {
		t.Fatalf("stuck: %v", stuck)
	}
	if w.Stop(time.Hour) != nil {
		t.Error("a second Stop did something")
	}
	// The device answers at last: nobody is told, and nothing is touched.
	g.gate <- syscall.EIO
	g.gate <- nil
	<-w.left
	if completed.Load() != 0 || first.Err != nil || second.Err != nil {
		t.Errorf("a write was handed over after Stop had returned: %d, %+v", completed.Load(), first)
	}
}

func TestWritersAllocateNothing(t *testing.T) {
	engines(t, writersAllocateNothing)
}

func writersAllocateNothing(t *testing.T, listen Listen) {
	d := newFile(t, 1<<20)
	done := make(chan struct{}, 1)
	w := NewWriters(d, 2, listen, func([]*Write) { done <- struct{}{} })
	defer w.Stop(time.Minute)
	write := &Write{Buf: buffer(t, 4096)}
	n := testing.AllocsPerRun(50, func() {
		w.Submit(write)
		<-done
	})
	if n != 0 {
		t.Errorf("a write allocates %v times", n)
	}
}

func TestWritersRefuseASillyNumber(t *testing.T) {
	for _, n := range []int{0, -1, MaxWriters + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d writers were started", n)
				}
			}()
			NewWriters(nil, n, nil, nil)
		}()
	}
}

func BenchmarkWriters(b *testing.B) {
	d := newFile(b, 64<<20)
	done := make(chan *Write, 8)
	w := NewWriters(d, 8, listenApart, each(func(write *Write) { done <- write }))
	defer w.Stop(time.Minute)
	for range 8 {
		done <- &Write{Buf: buffer(b, 256<<10)}
	}
	b.SetBytes(256 << 10)
	at := int64(0)
	for b.Loop() {
		write := <-done
		write.Offset = at
		at = (at + 256<<10) % (64 << 20)
		w.Submit(write)
	}
	for range 8 {
		<-done
	}
}

// What the kernel is given and refuses, and what the writers find out before, is told
// alike by both engines.
func TestWritersTellErrors(t *testing.T) {
	engines(t, func(t *testing.T, listen Listen) {
		d := newFile(t, 1<<20)
		completed := make(chan *Write, 1)
		w := NewWriters(d, 1, listen, each(func(write *Write) { completed <- write }))
		defer w.Stop(time.Minute)
		for name, c := range map[string]struct {
			write Write
			want  error
		}{
			"beyond the end": {Write{Buf: buffer(t, 4096), Offset: 1 << 20}, ErrOutOfRange},
			"not aligned":    {Write{Buf: buffer(t, 4096), Offset: 512}, ErrNotAligned},
			"no memory":      {Write{Buf: unmapped(t)}, syscall.EFAULT},
		} {
			if !w.Submit(&c.write) {
				t.Fatalf("%s: not taken", name)
			}
			var e *Error
			if got := <-completed; !errors.Is(got.Err, c.want) || !errors.As(got.Err, &e) || e.Op != OpWrite {
				t.Errorf("%s: %v, want %v", name, got.Err, c.want)
			}
		}
	})
}

// unmapped is a block of memory that is none any more.
func unmapped(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	gone := unsafe.Slice(&b[0], len(b))
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	return gone
}

// Who listens may be gone before Stop: it still finds what the kernel has ended.
func TestStopFindsWhatNobodyListensToAnyMore(t *testing.T) {
	deaf := func(int, func() time.Duration) (func(), error) { return func() {}, nil }
	var completed atomic.Int64
	w := NewWriters(newFile(t, 1<<20), 1, deaf, func(writes []*Write) { completed.Add(int64(len(writes))) })
	for i := range 4 {
		w.Submit(&Write{Buf: buffer(t, 4096), Offset: int64(i) * 4096})
	}
	if stuck := w.Stop(time.Minute); stuck != nil {
		t.Fatalf("%d writes are stuck", len(stuck))
	}
	if w.Engine() == EngineAIO && completed.Load() != 4 {
		t.Errorf("%d of 4 writes were handed over", completed.Load())
	}
}

// A write that the kernel would have had to wait for is written by a goroutine.
func TestWhatTheKernelHandsBackIsWritten(t *testing.T) {
	d := newFile(t, 1<<20)
	completed := make(chan *Write, 1)
	w := NewWriters(d, 1, listenApart, each(func(write *Write) { completed <- write }))
	defer w.Stop(time.Minute)
	want := &Write{Buf: patterned(t, 4096, 7), Offset: 8192}
	w.busy.Add(1) // as Submit does for what the kernel took
	w.kernelLeft(want)
	got := buffer(t, 4096)
	if write := <-completed; write != want || write.Err != nil {
		t.Fatalf("%+v", write)
	}
	if _, err := d.ReadAt(got, 8192); err != nil || !bytes.Equal(got, want.Buf) {
		t.Errorf("read back: %v", err)
	}
}

// A device whose writes were stuck is free again once they have ended, though nobody has
// asked for them.
func TestADeviceIsClosedWhenItsStuckWritesHaveEnded(t *testing.T) {
	d := newFile(t, 1<<20)
	w := NewWriters(d, 1, listenApart, func([]*Write) {})
	if w.Engine() != EngineAIO {
		t.Skip("this kernel has no asynchronous I/O: a user-mode emulator, or a sandbox")
	}
	// What has ended in the kernel and was not asked for looks like this.
	write, r := &Write{Buf: buffer(t, 4096)}, d.(*raw)
	w.busy.Add(1)
	r.enter()
	w.kernel.writes[0] = write
	if stuck := w.Stop(time.Millisecond); len(stuck) != 1 || stuck[0] != write {
		t.Fatalf("stuck: %v", stuck)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); !r.fdClosed.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the device is in use for ever")
		}
	}
}

// A file that can only be written by waiting is left to the goroutines; the same answer
// after writes have gone through is an error of the device.
func TestADeviceThatCannotButWaitIsWrittenByGoroutines(t *testing.T) {
	a := &aio{raw: newFile(t, 1<<20).(*raw), free: []int{0}}
	if !a.handedBack(unix.EAGAIN) || a.handedBack(unix.EIO) || a.handedBack(0) || a.unfit {
		t.Error("only what would have waited is handed back")
	}
	if !a.handedBack(unix.EOPNOTSUPP) || a.fit() || a.submit(&Write{Buf: buffer(t, 4096)}) {
		t.Error("the kernel is given more of what it cannot do")
	}
	if proven := (&aio{proven: true}); proven.handedBack(unix.EOPNOTSUPP) || proven.unfit {
		t.Error("an error of the device is not final")
	}
}

// io_submit waits for a file system that is frozen, whatever it was told.
func TestP10_FilesAreWrittenByThreads(t *testing.T) {
	path := newFile(t, 1<<20).Path()
	w := NewWriters(mustOpen(t, path, OpenOptions{}), 1, listenApart, func([]*Write) {})
	defer w.Stop(time.Minute)
	if w.Engine() != EngineThreads {
		t.Errorf("a file is written by %s", w.Engine())
	}
}
