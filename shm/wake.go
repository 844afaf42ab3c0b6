package shm

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), without FUTEX_PRIVATE_FLAG: the word is shared between
// processes.
const (
	futexWait = 0
	futexWake = 1
)

// wakeFutex wakes who sleeps on the word.
func wakeFutex(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1, 0, 0, 0) // fails only for a bad address
}

// waitFutex sleeps while the word is value, for at most d, and reports whether that
// time ran out. In all other cases (woken, changed before, interrupted) the caller
// looks again too.
func waitFutex(word *atomic.Uint32, value uint32, d time.Duration) (late bool) {
	limit := unix.NsecToTimespec(int64(d))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), uintptr(unsafe.Pointer(&limit)), 0, 0)
	return errno == unix.ETIMEDOUT
}

// Waiting says how a side waits before it sleeps.
type Waiting uint8

const (
	// Adaptive looks for some microseconds as long as that pays, and otherwise
	// sleeps at once.
	Adaptive Waiting = iota
	// Spin looks for SpinFor each time: for processes with a core of their own each.
	Spin
	// Block sleeps at once.
	Block
)

// Waitings are the names of the ways of waiting.
var Waitings = map[string]Waiting{"adaptive": Adaptive, "spin": Spin, "block": Block}

// Times of waiting.
const (
	// SpinFor is how long Spin looks before it sleeps: longer than a device takes.
	SpinFor = time.Millisecond

	// adaptiveFor is the longest that Adaptive looks: about what a sleeping processor
	// takes to wake up, so that two sides that both sleep come to look at the same time.
	adaptiveFor = 50 * time.Microsecond

	// probeEvery is how often Adaptive tries again once looking does not pay: one
	// wait of so many.
	probeEvery = 64

	// sleepAtMost bounds one sleep of a client, so that nothing depends on a wake-up
	// alone.
	sleepAtMost = time.Second
)

// Spinner decides how long to look before sleeping. It is for one goroutine at a time.
type Spinner struct {
	waiting Waiting
	budget  time.Duration
	waits   uint
}

// NewSpinner returns a spinner for waiting for the process peer; 0: it is not known.
// Where both cannot run at the same time, as there is but one core for them, it never
// looks, whatever waiting says: the other side needs that core.
func NewSpinner(waiting Waiting, peer int) Spinner {
	if !Apart(peer) {
		waiting = Block
	}
	return Spinner{waiting: waiting, budget: adaptiveFor}
}

// Apart reports whether this process and another can run at the same time: whether
// there are two cores that one or the other may use. Of a process that is not known, 0,
// it is taken to be so where the machine has two.
func Apart(peer int) bool {
	var own, other unix.CPUSet
	if unix.SchedGetaffinity(os.Getpid(), &own) != nil {
		return runtime.NumCPU() > 1
	}
	if peer == 0 || unix.SchedGetaffinity(peer, &other) != nil {
		// The other may be anywhere. The mask of the first process of a machine has all
		// of its cores, as a rule.
		if unix.SchedGetaffinity(1, &other) != nil {
			return own.Count() > 1
		}
	}
	for i := range own {
		own[i] |= other[i]
	}
	return own.Count() > 1
}

// Look polls ready for a while, and reports whether it was true.
func (s *Spinner) Look(ready func() bool) bool {
	switch {
	case ready():
		return true
	case s.waiting == Spin:
		return poll(SpinFor, ready)
	case s.waiting == Block:
		return false
	}
	s.waits++
	if s.budget == 0 {
		if s.waits%probeEvery != 0 {
			return false
		}
		s.budget = adaptiveFor // and less in the waits that follow, so that two sides meet
	}
	if poll(s.budget, ready) {
		s.budget = adaptiveFor
		return true
	}
	if s.budget /= 2; s.budget < time.Microsecond {
		s.budget = 0
	}
	return false
}

// Looks reports whether Look may look longer than once: whether it is worth telling the
// other side that it need not wake this one.
func (s *Spinner) Looks() bool {
	return s.waiting == Spin || s.waiting == Adaptive && (s.budget > 0 || (s.waits+1)%probeEvery == 0)
}

// poll calls ready for as long as d. Other goroutines get their turns: they may have but
// this one processor.
func poll(d time.Duration, ready func() bool) bool {
	until := time.Now().Add(d)
	for round := 1; ; round++ {
		for range 32 {
			if ready() {
				return true
			}
		}
		if time.Now().After(until) {
			return false
		}
		if round%16 == 0 {
			runtime.Gosched()
		}
	}
}

// Bell is the eventfd with which a client kicks the sidecar. It keeps a ring until
// it is heard. It is never read: the poller tells of every ring anew (its watch is
// edge-triggered), and the count has room for all that there will ever be. So there is
// nothing that a client could make wait by what it does to the file, which both sides
// have open. The Go runtime's poller, which a ring would wake on both sides for nothing,
// watches it only while Listen runs.
type Bell struct {
	mu       sync.RWMutex // held for writing to change what follows
	fd       int          // -1: closed
	listener *os.File     // has fd once Listen runs
}

// NewBell makes a bell.
func NewBell() (*Bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return openBell(fd), nil
}

// openBell takes a descriptor over.
func openBell(fd int) *Bell { return &Bell{fd: fd} }

// Control calls use with the bell's descriptor, which is good until use returns.
func (b *Bell) Control(use func(fd int) error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.fd < 0 {
		return os.ErrClosed
	}
	return use(b.fd)
}

// descriptor returns another descriptor of the bell.
func (b *Bell) descriptor() (copied int, err error) {
	err = b.Control(func(fd int) error {
		copied, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	})
	return copied, err
}

// Ring rings the bell.
func (b *Bell) Ring() {
	one := [8]byte{1}
	_ = b.Control(func(fd int) error { // a closed bell has no listener
		_, err := unix.Write(fd, one[:])
		return err // a full counter has been rung already
	})
}

// Listen calls heard at least once after each Ring, and at first, until Close. It is called
// once.
func (b *Bell) Listen(heard func()) {
	b.mu.Lock()
	if b.fd < 0 {
		b.mu.Unlock()
		return
	}
	b.listener = os.NewFile(uintptr(b.fd), "eventfd")
	raw, err := b.listener.SyscallConn()
	b.mu.Unlock()
	if err != nil {
		return // it is closed
	}
	_ = raw.Read(func(uintptr) bool { // fails when the bell is closed
		heard()
		return false
	})
}

// Close makes Listen return.
func (b *Bell) Close() error {
	b.mu.Lock()
	fd, listener := b.fd, b.listener
	b.fd = -1
	b.mu.Unlock()
	switch {
	case fd < 0:
		return os.ErrClosed
	case listener != nil:
		return listener.Close() // waits for heard
	}
	return os.NewSyscallError("close", unix.Close(fd))
}
