package node

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
)

// sleeper is where the commit loop's own goroutine sleeps: in the kernel, on an epoll of
// its own, to be woken by what the loop waits for itself (the end of a write, the bell of
// a client, a time, the turn) and not by way of the Go runtime's poller and another
// goroutine. Two wake-ups of a thread and as many hand-overs between threads are what
// one append by a lone client does without.
type sleeper struct {
	epoll, bell, timer int         // descriptors; nothing is read from any of them, their edges count
	handed             atomic.Bool // the turn is its owner's
	asleep             atomic.Bool // the owner must be woken for that
	waking             sync.Mutex  // held while the owner is woken, so that its bell is not closed meanwhile

	mu      sync.Mutex // held while events are told, so that none is told after it was forgotten
	heard   map[int32]*hearing
	next    int32
	closed  bool
	timerNS int64 // what the timer is set to; of who has the turn

	events [sleeperEvents]unix.EpollEvent
}

// hearing is one descriptor that is listened to. heard returns how long to be deaf to it.
type hearing struct {
	fd    int
	heard func() time.Duration
}

const (
	sleeperEvents       = 64 // at once
	sleeperBell   int32 = 0  // tokens of events
	sleeperTimer  int32 = 1
	sleeperFirst  int32 = 2
)

func newSleeper() (_ *sleeper, err error) {
	s := &sleeper{epoll: -1, bell: -1, timer: -1, heard: map[int32]*hearing{}, next: sleeperFirst}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if s.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if s.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return s, errors.Join(s.add(s.bell, sleeperBell), s.add(s.timer, sleeperTimer))
}

func (s *sleeper) add(fd int, token int32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&0xffffffff, Fd: token}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &event))
}

// handOver gives the turn to the owner, and wakes it if it sleeps.
func (s *sleeper) handOver() {
	s.handed.Store(true)
	if s.asleep.Load() {
		s.wake()
	}
}

// wake wakes the owner if it sleeps still. Another event may have woken it, and what it was
// handed may have been the last round: then the bell's number is another file's.
func (s *sleeper) wake() {
	s.waking.Lock()
	defer s.waking.Unlock()
	if s.asleep.Load() {
		one := [8]byte{1}
		_, _ = unix.Write(s.bell, one[:]) // the counter has room for all that there will ever be
	}
}

// sleep waits until something happened, tells those who listen, and reports whether the
// owner was handed the turn.
func (s *sleeper) sleep() (handed bool) {
	s.asleep.Store(true)
	patience := -1
	if s.handed.Load() {
		patience = 0
	}
	n, err := unix.EpollWait(s.epoll, s.events[:], patience)
	if err != nil {
		n = 0 // interrupted; the descriptor is good until close
	}
	s.asleep.Store(false)
	s.mu.Lock()
	for i := range s.events[:n] {
		token := s.events[i].Fd
		if h := s.heard[token]; h != nil {
			if deaf := h.heard(); deaf > 0 {
				s.mute(token, h, deaf)
			}
		}
	}
	s.mu.Unlock()
	return s.handed.Swap(false)
}

// listen calls heard, with no other call of it at the same time, after each event of fd,
// until forget has returned.
func (s *sleeper) listen(fd int, heard func() time.Duration) (forget func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	token := s.next
	s.next++
	if err := s.add(fd, token); err != nil {
		return nil, err
	}
	s.heard[token] = &hearing{fd: fd, heard: heard}
	return func() { s.forget(token) }, nil
}

func (s *sleeper) forget(token int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.heard[token]
	delete(s.heard, token)
	if h != nil && !s.closed {
		_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, h.fd, nil) // it may be muted
	}
}

// mute does not listen to h for a while. Called with mu held.
func (s *sleeper) mute(token int32, h *hearing, deaf time.Duration) {
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, h.fd, nil) // it was added
	time.AfterFunc(deaf, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.heard[token] == h && !s.closed {
			_ = s.add(h.fd, token) // tells at once of what came meanwhile
		}
	})
}

// wakeAt has the owner woken at that time, by CLOCK_BOOTTIME, or before. Whoever has the
// turn calls it. A timer that goes off before is left alone: it does so rarely, and setting
// it each time would cost more.
func (s *sleeper) wakeAt(ns, nowNS int64) {
	if s.timerNS > nowNS && s.timerNS <= ns {
		return
	}
	s.timerNS = ns
	_ = unix.TimerfdSettime(s.timer, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(max(ns, 1))}, nil)
}

// close gives the descriptors back. The owner calls it last.
func (s *sleeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waking.Lock()
	defer s.waking.Unlock()
	s.closed = true
	for _, fd := range []int{s.epoll, s.bell, s.timer} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// Listen has the loop's own goroutine hear the bell, as [session.Backend] says.
func (n *Node) Listen(b *shm.Bell, heard func() time.Duration) (forget func()) {
	err := b.Control(func(fd int) (err error) {
		forget, err = n.sleeper.listen(fd, heard)
		return err
	})
	if err != nil { // no memory or watches left, or the log has ended
		return session.ListenApart(b, heard)
	}
	return forget
}
