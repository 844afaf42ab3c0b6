package device

import (
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aio has the kernel write without a thread that waits: Linux's native asynchronous I/O
// (io_submit(2)), which tells of completions through an eventfd that the Go runtime's
// poller watches. On a device without FUA a data-sync pwrite flushes twice, an asynchronous
// one once, and no thread has to be woken to write. io_uring is as fast (docs/performance.md),
// but its completions need the thread that submitted, which in Go may sleep, and the
// default seccomp profiles of container runtimes forbid it.
//
// Nothing here blocks: writes are submitted with RWF_NOWAIT, and what the kernel
// could only take by waiting (its queue is full, or frozen while a controller resets) is
// left to a goroutine. Of a file that does not hold: io_submit waits for a frozen file system
// (fsfreeze) all the same, and with it the commit loop would. So only block devices are
// written like this.
type aio struct {
	raw       *raw
	context   uintptr
	bell      int // eventfd, never read: its edges count
	completed func([]*Write)
	leave     func(*Write) // takes what only a goroutine can write
	forget    func()       // ends the listening

	mu     sync.Mutex
	blocks [aioDepth]aioBlock
	writes [aioDepth]*Write // what block i writes
	free   []int            // unused blocks
	proven bool             // a write has gone through
	unfit  bool             // the file cannot be written so

	reaping sync.Mutex // guards what follows
	events  [aioDepth]aioEvent
	batch   []*Write
}

// aioDepth is how many writes the kernel may have at once. Its limit for all
// processes, fs.aio-max-nr, is 65,536 unless set.
const aioDepth = MaxWriters

// aioBlock is struct iocb of include/uapi/linux/aio_abi.h on a little-endian machine.
type aioBlock struct {
	data       uint64 // comes back in the event
	_          uint32
	flags      uint32 // RWF_*
	opcode     uint16
	_          int16
	descriptor uint32
	buf        uint64
	bytes      uint64
	offset     int64
	_          uint64
	options    uint32
	eventfd    uint32
}

// aioEvent is struct io_event: result is a number of bytes, or a negative errno.
type aioEvent struct {
	data   uint64
	_      uint64
	result int64
	_      int64
}

// outcome is the error of the write that ended with the event.
func (e *aioEvent) outcome(r *raw, w *Write) error {
	if e.result < 0 {
		return r.wrote(w.Buf, w.Offset, 0, unix.Errno(-e.result))
	}
	return r.wrote(w.Buf, w.Offset, int(e.result), nil)
}

const (
	aioWrite   = 1 // IOCB_CMD_PWRITE
	aioEventFD = 1 // IOCB_FLAG_RESFD
)

// newAIO returns an error where the kernel has no asynchronous I/O, or none left.
// completed is called with the writes that ended, leave with each that the kernel handed
// back because it could not have gone on without waiting; both by whoever calls heard.
func newAIO(r *raw, listen Listen, completed func([]*Write), leave func(*Write)) (*aio, error) {
	a := &aio{raw: r, completed: completed, leave: leave}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, aioDepth, uintptr(unsafe.Pointer(&a.context)), 0); errno != 0 {
		return nil, os.NewSyscallError("io_setup", errno)
	}
	if err := a.listen(listen); err != nil {
		a.destroy()
		return nil, err
	}
	return a, nil
}

// listen makes the bell and the blocks that ring it.
func (a *aio) listen(listen Listen) (err error) {
	if a.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if a.forget, err = listen(a.bell, a.heard); err != nil {
		_ = unix.Close(a.bell)
		return err
	}
	for i := range a.blocks {
		a.free = append(a.free, i)
		a.blocks[i] = aioBlock{data: uint64(i), flags: unix.RWF_DSYNC | unix.RWF_NOWAIT, opcode: aioWrite, descriptor: uint32(a.raw.fd),
			options: aioEventFD, eventfd: uint32(a.bell)}
	}
	return nil
}

// submit gives a write to the kernel, and reports whether it took it. False: nothing
// has happened yet.
func (a *aio) submit(w *Write) bool {
	if a.raw.checkWrite(w.Buf, w.Offset) != nil || len(w.Buf) == 0 || !a.raw.enter() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) == 0 || a.unfit {
		a.raw.leave()
		return false
	}
	i := a.free[len(a.free)-1]
	b := &a.blocks[i]
	// The buffer lies outside the Go heap or is kept by w until it has ended.
	b.buf, b.bytes, b.offset = uint64(uintptr(unsafe.Pointer(&w.Buf[0]))), uint64(len(w.Buf)), w.Offset
	a.writes[i] = w
	list := [1]*aioBlock{b}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, a.context, 1, uintptr(unsafe.Pointer(&list)))
		switch errno {
		case 0:
			a.free = a.free[:len(a.free)-1]
			return true
		case unix.EINTR:
			continue
		}
		a.writes[i] = nil
		a.raw.leave()
		return false
	}
}

// heard hands over what has ended.
func (a *aio) heard() time.Duration {
	a.reaping.Lock()
	defer a.reaping.Unlock()
	for a.reap() {
	}
	return 0
}

// reap hands over what has ended, and reports whether there may be more. Called with
// reaping held.
func (a *aio) reap() bool {
	var none unix.Timespec
	n, _, errno := unix.RawSyscall6(unix.SYS_IO_GETEVENTS, a.context, 0, aioDepth, uintptr(unsafe.Pointer(&a.events)), uintptr(unsafe.Pointer(&none)), 0)
	if errno != 0 || n == 0 {
		return errno == unix.EINTR
	}
	a.mu.Lock()
	a.batch = a.batch[:0]
	for _, event := range a.events[:n] {
		w := a.writes[event.data]
		a.writes[event.data] = nil
		a.free = append(a.free, int(event.data))
		a.raw.leave()
		if a.handedBack(unix.Errno(max(0, -event.result))) {
			// The same bytes are written again, and nobody has been told that they
			// failed: they have not, the kernel only would not wait.
			a.leave(w)
			continue
		}
		a.proven = a.proven || event.result >= 0
		w.Err = event.outcome(a.raw, w)
		a.batch = append(a.batch, w)
	}
	a.mu.Unlock()
	if len(a.batch) > 0 {
		a.completed(a.batch)
	}
	clear(a.batch)
	return n == aioDepth
}

// handedBack reports whether an event says that the kernel would have had to wait. Called
// with mu held.
func (a *aio) handedBack(errno unix.Errno) bool {
	// A driver without BLK_FEAT_NOWAIT (a stacked device of an older kernel) cannot but
	// wait, and says so of every write. Once one has gone through it is another error.
	if errno == unix.EOPNOTSUPP && !a.proven {
		a.unfit = true
	}
	return errno == unix.EAGAIN || a.unfit && errno == unix.EOPNOTSUPP
}

// fit reports whether the device can be written so, as far as is known.
func (a *aio) fit() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.unfit
}

// inKernel appends the writes that the kernel has.
func (a *aio) inKernel(writes []*Write) []*Write {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.writes {
		if w != nil {
			writes = append(writes, w)
		}
	}
	return writes
}

// close ends the listening. Nothing may be in the kernel: giving the context back waits
// for that.
func (a *aio) close() {
	a.forget()
	a.destroy()
	_ = unix.Close(a.bell) // an eventfd has nothing to lose
}

// outlast gives everything back once what is stuck in the kernel has ended, for which it
// waits. Nobody is told of it.
func (a *aio) outlast() {
	a.forget()
	a.destroy() // waits
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.writes {
		if w != nil {
			a.raw.leave()
		}
	}
	_ = unix.Close(a.bell)
}

func (a *aio) destroy() {
	_, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, a.context, 0, 0) // fails only for a context that is none
}
