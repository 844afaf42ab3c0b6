package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/wire"
)

// The environment variable that makes TestMain the client of the stress test; its
// value is how long, and a seed.
const stressClient = "WALSIDECAR_TEST_SHM_CLIENT"

func TestMain(m *testing.M) {
	if s := os.Getenv(stressClient); s != "" {
		long, number, _ := strings.Cut(s, " ")
		d, _ := time.ParseDuration(long)
		n, _ := strconv.ParseUint(number, 10, 64)
		if err := beStressClient(d, n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if way := os.Getenv(wakeSleeper); way != "" {
		if err := beSleeper(way); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const stressRing = 256 << 10

// beStressClient publishes in bursts and at times waits for everything, with pauses in
// which either side falls asleep.
func beStressClient(d time.Duration, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	c, err := Attach(infoOf(stressRing), []int{3, 4, 5}, Waiting(r.IntN(3)), 0)
	if err != nil {
		return err
	}
	hung := time.AfterFunc(time.Minute, func() { panic("no ack for a minute") })
	next, acked, waits := FirstRequest, FirstRequest, 0
	var ends []uint64
	var extents []wire.AckExtent
	wait := func() error {
		waits++
		hung.Reset(time.Minute)
		c.Wait()
		if extents, err = c.Take(extents[:0]); err != nil {
			return err
		}
		for _, e := range extents {
			if e.Request != acked {
				return fmt.Errorf("ack of %d, want %d", e.Request, acked)
			}
			acked += uint64(e.Requests)
			c.Free(ends[e.Requests-1])
			ends = ends[e.Requests:]
		}
		return nil
	}
	for until := time.Now().Add(d); time.Now().Before(until); {
		for range 1 + r.IntN(1+r.IntN(60)) {
			n := 16 + 8*r.IntN(60)
			for !c.Fits(n) || next-acked >= MaxRequests {
				if err := wait(); err != nil {
					return err
				}
			}
			dst, _ := c.Reserve(n)
			fill(dst, next)
			next++
			ends = append(ends, c.Position())
			c.Publish()
			if c.Kick(c.Position()) {
				c.RingBell()
			}
		}
		for r.IntN(3) > 0 && acked < next {
			if err := wait(); err != nil {
				return err
			}
		}
		pause(r)
	}
	for acked < next {
		if err := wait(); err != nil {
			return err
		}
	}
	fmt.Printf("%d messages, %d waits, %d lost\n", next-FirstRequest, waits, c.LostWakeUps())
	if n := c.LostWakeUps(); n > 0 {
		return fmt.Errorf("%d wake-ups were lost", n)
	}
	return nil
}

// pause does nothing for a while: none, some instructions, or enough to fall asleep.
func pause(r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
		for range r.IntN(2000) {
			runtime.KeepAlive(r)
		}
	case 1:
		runtime.Gosched()
	case 2:
		time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
	}
}

// Two processes, one ring, and every way in which one of them falls asleep just when
// the other publishes: no wake-up is lost. WALSIDECAR_TEST_STRESS=10m for a long run.
func TestStressTwoProcesses(t *testing.T) {
	d := 4 * time.Second
	if long, err := time.ParseDuration(os.Getenv("WALSIDECAR_TEST_STRESS")); err == nil {
		d = long
	}
	r := seed(t)
	door, files, err := NewDoor(stressRing)
	must(t, err)
	defer door.Close()
	cmd := exec.Command(os.Args[0], "-test.run=none")
	cmd.Env = append(os.Environ(), stressClient+"="+d.String()+" "+strconv.FormatUint(r.Uint64(), 10))
	for _, fd := range files {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(duplicateFD(t, fd)), "handed over"))
	}
	files.Close()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	for _, f := range cmd.ExtraFiles {
		_ = f.Close()
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait(); _ = door.Bell.Close() }()
	heard := make(chan struct{}, 1)
	go func() {
		defer close(heard)
		door.Bell.Listen(func() {
			select {
			case heard <- struct{}{}:
			default:
			}
		})
	}()
	if err := serveStress(door, heard, r); err != nil {
		t.Error(err)
	}
	if err := <-exited; err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), " 0 lost") {
		t.Errorf("the client says: %s", out.String())
	}
	t.Log(out.String())
}

func duplicateFD(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	return n
}

// serveStress is the sidecar: it answers what comes, one or many at a time, until the
// bell is closed.
func serveStress(d *Door, heard <-chan struct{}, r *rand.Rand) error {
	var extents []wire.AckExtent
	for {
		some, err := d.Load()
		if err != nil {
			return err
		}
		if !some {
			closed, err := sleepStress(d, heard, r)
			if closed || err != nil {
				return err
			}
			continue
		}
		extents = extents[:0]
		for range 1 + r.IntN(200) {
			h, body, ok, err := d.Next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if bytes.Count(body, []byte{byte(h.Request)}) != len(body) {
				return errors.New("a message is not what was written")
			}
			if n := len(extents); n == 0 || !extents[n-1].Extend(h.Request, 1, h.Request, 1, h.Request*8) {
				extents = append(extents, wire.AckExtent{Request: h.Request, Stream: 1, Offset: h.Request, Position: h.Request * 8, Requests: 1, Records: 1})
			}
			d.Answer(h.Request)
		}
		pause(r)
		d.Publish(extents, 0)
	}
}

// sleepStress sleeps until the bell, unless there is something to be taken; closed: it
// was the last time.
func sleepStress(d *Door, heard <-chan struct{}, r *rand.Rand) (closed bool, err error) {
	if r.IntN(2) == 0 { // a sleep that some bytes do not end, until that is changed
		d.Arm(d.Taken() + uint64(r.IntN(2000)))
		pause(r)
	}
	d.Arm(d.Taken())
	some, err := d.Load()
	if err == nil && !some {
		_, open := <-heard
		closed = !open
	}
	d.Disarm()
	return closed, err
}
