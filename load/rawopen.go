package load

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// rawPatience is how long the writes of an open loop that failed are waited for.
const rawPatience = 30 * time.Second

// rawWrite is a write of an open loop.
type rawWrite struct {
	device.Write
	due time.Time
}

// openLoop writes at the times that the rate gives, late ones at once, as a sidecar does and with
// as many in flight; latency counts from those times.
func (r *Raw) openLoop(frameBytes int, perSecond float64, d time.Duration) error {
	clock, err := newAlarm()
	if err != nil {
		return err
	}
	defer clock.close()
	var mu sync.Mutex
	var failed error
	start := time.Now()
	settled := start
	if d > openSettle {
		settled = start.Add(openSettle)
	}
	idle := make(chan *rawWrite, node.WritersInFlight)
	ended := func(writes []*device.Write) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		for _, w := range writes {
			w := w.Owner.(*rawWrite)
			if !w.due.Before(settled) {
				r.latency.Record(now.Sub(w.due))
			}
			failed = errors.Join(failed, w.Err)
			idle <- w // never blocks: there are no more of them than it holds
		}
	}
	writers := device.NewWriters(r.dev, node.WritersInFlight, listen, ended)
	defer writers.Stop(rawPatience) // nothing is under way, unless it failed
	for range node.WritersInFlight {
		w := new(rawWrite)
		w.Owner, w.Buf = w, r.arena.Bytes()[:frameBytes]
		idle <- w
	}
	for n := 0; ; n++ {
		due := start.Add(time.Duration(float64(n) / perSecond * float64(time.Second)))
		if due.Sub(start) >= d {
			break
		}
		if early := time.Until(due); early > 0 {
			if err := clock.wait(early); err != nil {
				return err
			}
		}
		w := <-idle
		w.due, w.Offset, w.Err = due, r.place(frameBytes), nil
		if !writers.Submit(&w.Write) {
			return errors.New("the raw device's writers did not take a write")
		}
	}
	for range node.WritersInFlight {
		<-idle
	}
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// listen is a device.Listen by a goroutine of its own.
func listen(fd int, heard func() time.Duration) (forget func(), err error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(own), "eventfd")
	left := make(chan struct{})
	go func() {
		defer close(left)
		for count := make([]byte, 8); ; {
			if _, err := file.Read(count); err != nil {
				return // closed
			}
			heard()
		}
	}()
	return func() { _ = file.Close(); <-left }, nil
}
