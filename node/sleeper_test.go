package node

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// sleeping runs a sleeper's owner until the test ends; woken counts how often it was.
func sleeping(t *testing.T) (s *sleeper, woken, handed *atomic.Int64) {
	t.Helper()
	s, err := newSleeper()
	if err != nil {
		t.Fatal(err)
	}
	woken, handed = new(atomic.Int64), new(atomic.Int64)
	var quit atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !quit.Load() {
			if s.sleep() {
				handed.Add(1)
			}
			woken.Add(1)
		}
	}()
	t.Cleanup(func() {
		quit.Store(true)
		s.handOver()
		<-ended
		s.close()
	})
	return s, woken, handed
}

func eventfd(t *testing.T) (fd int, ring func()) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, func() {
		one := [8]byte{1}
		if _, err := unix.Write(fd, one[:]); err != nil {
			t.Error(err)
		}
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func TestTheSleeperIsWokenByWhoHandsTheTurnOver(t *testing.T) {
	s, _, handed := sleeping(t)
	for i := range int64(500) {
		s.handOver()
		until(t, "the owner never got the turn", func() bool { return handed.Load() == i+1 })
	}
}

// A bell is never read, and yet each ring is heard; after forget none is.
func TestTheSleeperHearsEachBell(t *testing.T) {
	s, _, _ := sleeping(t)
	var heard [2]atomic.Int64
	var rings [2]func()
	var forget [2]func()
	for i := range rings {
		fd, ring := eventfd(t)
		rings[i] = ring
		var err error
		if forget[i], err = s.listen(fd, func() time.Duration { heard[i].Add(1); return 0 }); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		for i, ring := range rings {
			before := heard[i].Load()
			ring()
			until(t, "a ring was not heard", func() bool { return heard[i].Load() > before })
		}
	}
	forget[0]()
	before := heard[0].Load()
	rings[0]()
	other := heard[1].Load()
	rings[1]()
	until(t, "the other bell is not heard any more", func() bool { return heard[1].Load() > other })
	if heard[0].Load() != before {
		t.Error("a bell was heard after it was forgotten")
	}
}

// Who rings without reason is not heard for a while, and then what came meanwhile is.
func TestTheSleeperIsDeafForAWhile(t *testing.T) {
	const deaf = 50 * time.Millisecond
	s, woken, _ := sleeping(t)
	fd, ring := eventfd(t)
	var heard atomic.Int64
	forget, err := s.listen(fd, func() time.Duration { heard.Add(1); return deaf })
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	ring()
	until(t, "the first ring was not heard", func() bool { return heard.Load() == 1 })
	before := woken.Load()
	for range 1000 {
		ring()
	}
	until(t, "what came meanwhile was not heard", func() bool { return heard.Load() >= 2 })
	if most := int64(time.Since(start)/deaf) + 3; woken.Load()-before > most {
		t.Errorf("the owner woke up %d times, want at most %d", woken.Load()-before, most)
	}
	forget()
}

func TestTheSleeperIsWokenInTime(t *testing.T) {
	s, woken, _ := sleeping(t)
	until(t, "the owner does not sleep", s.asleep.Load)
	for _, after := range []time.Duration{20 * time.Millisecond, 0, -time.Second} {
		before := woken.Load()
		now := device.NowNS()
		s.wakeAt(now+int64(after), now)
		until(t, "the timer did not go off", func() bool { return woken.Load() > before })
		if early := device.NowNS() - now - int64(after); early < 0 {
			t.Errorf("woken %d ns before the time", -early)
		}
	}
	// A time before the one that is set moves the timer; a later one leaves it.
	before, now := woken.Load(), device.NowNS()
	s.wakeAt(now+int64(time.Hour), now)
	s.wakeAt(now+int64(20*time.Millisecond), now)
	s.wakeAt(now+int64(time.Hour), now)
	until(t, "the timer was moved back", func() bool { return woken.Load() > before })
}

// Whoever runs the last round of a log, the loop's own goroutine ends it, once.
func TestAGuestMayRunTheLastRound(t *testing.T) {
	r := newRig(t)
	n := r.node
	until(t, "the loop does not rest", n.inbox.turn.claim) // now a guest has the turn
	n.inbox.addCall(func() { n.loop.quit = true })
	if n.rounds(guestRounds) || !n.loop.ended {
		t.Fatal("the guest did not run the last round")
	}
	n.inbox.turn.handOver()
	<-n.stopped
	if err := n.Abandon(); err != nil {
		t.Error(err)
	}
}

// Who comes to wake an owner that has ended meanwhile does not write to the file that has
// got the number of its bell.
func TestAnOwnerThatHasEndedIsNotWoken(t *testing.T) {
	s, err := newSleeper()
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	fd := -1
	for tries := 0; fd != s.bell; tries++ { // the kernel gives the lowest free number
		if tries == 64 {
			t.Skip("the number of the bell is in use")
		}
		fd, _ = eventfd(t)
	}
	s.wake()
	var count [8]byte
	if _, err := unix.Read(fd, count[:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a file that was opened later was written to: read %v, %v", count, err)
	}
}
