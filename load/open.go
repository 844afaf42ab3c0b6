package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// openSettle is how long an open loop goes in each turn before it is timed: the load is not
	// one that stops and starts, but the turns that it takes with the raw device are, and what both
	// processes take to wake from them, up to 10 ms, would be the tail.
	openSettle = 50 * time.Millisecond
	// openRest is how long the sender of an open loop rests at least: what is due meanwhile goes out
	// together, later than it was due by so much, which counts. Without it a sender of 200,000 records
	// a second would sleep as often, and what that costs would be measured.
	openRest = 50 * time.Microsecond
)

// openLoop sends at the times that the rate gives, late ones at once, as far as there is
// room in flight; latency counts from those times. Nobody waits for anybody in an open loop, so
// one goroutine sends for all the producers of a session: with one for each, what is measured
// is how threads that sleep share two cores.
func (p *producer) openLoop(ctx context.Context, room int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inFlight := make(chan flying, room)
	var failed error
	var sender sync.WaitGroup
	sender.Go(func() {
		defer close(inFlight)
		failed = p.sendInTime(ctx, inFlight)
	})
	for f := range inFlight {
		if p.err == nil {
			if p.wait(ctx, &f); p.err != nil {
				cancel()
			}
		}
	}
	sender.Wait()
	if p.err == nil {
		p.err = failed
	}
}

// sendInTime submits what is due until the phase is over.
func (p *producer) sendInTime(ctx context.Context, inFlight chan<- flying) error {
	clock, err := newAlarm()
	if err != nil {
		return err
	}
	defer clock.close()
	for {
		now := time.Now()
		due := p.due(p.sent)
		for ; !due.After(now); due = p.due(p.sent) {
			if due.After(p.until) {
				return nil
			}
			ticket, err := p.submit(ctx)
			if err != nil {
				return err
			}
			p.sent++
			inFlight <- flying{ticket, due}
		}
		if due.After(p.until) {
			return nil
		}
		if early := time.Until(due); early > 0 {
			if err := clock.wait(max(early, openRest)); err != nil {
				return err
			}
		}
	}
}

// alarm wakes one goroutine in time: to some ten microseconds, where the runtime's timers
// may be late by a whole millisecond, and without a thread that sleeps on one of the
// scheduler's processors.
type alarm struct {
	fd   int
	file *os.File // of fd, read through the runtime's poller
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("a timer for the open loop: %w", os.NewSyscallError("timerfd_create", err))
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "timerfd")}, nil
}

// wait returns when d, more than 0, is over.
func (a *alarm) wait(d time.Duration) error {
	if err := unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var expired [8]byte
	n, err := a.file.Read(expired[:])
	if err == nil && (n != len(expired) || binary.NativeEndian.Uint64(expired[:]) == 0) {
		err = errors.New("the timer of the open loop went off without a count")
	}
	return err
}

func (a *alarm) close() { _ = a.file.Close() } // nothing is written to it
