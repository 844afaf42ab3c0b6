package shm

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// On one core for both sides looking takes the core from the one who is looked for: then
// nobody looks, whatever the setting.
func TestNobodyLooksOnASharedCore(t *testing.T) {
	var all unix.CPUSet
	must(t, unix.SchedGetaffinity(os.Getpid(), &all))
	defer func() { must(t, unix.SchedSetaffinity(os.Getpid(), &all)) }()
	peer := exec.Command("sleep", "60")
	must(t, peer.Start())
	defer func() {
		_ = peer.Process.Kill()
		_ = peer.Wait()
	}()
	var cores []int
	for i := range 1024 {
		if all.IsSet(i) {
			cores = append(cores, i)
		}
	}
	pin := func(pid, core int) {
		t.Helper()
		var one unix.CPUSet
		one.Set(core)
		must(t, unix.SchedSetaffinity(pid, &one))
	}
	looks := func(waiting Waiting) (calls int) {
		s := NewSpinner(waiting, peer.Process.Pid)
		if s.Look(func() bool { calls++; return false }) {
			t.Error("found what was never there")
		}
		if (calls > 1) != s.Looks() && waiting == Spin {
			t.Errorf("looked %d times, Looks is %v", calls, s.Looks())
		}
		return calls
	}
	pin(os.Getpid(), cores[0])
	pin(peer.Process.Pid, cores[0])
	for name, waiting := range Waitings {
		if n := looks(waiting); n != 1 {
			t.Errorf("%s on a shared core looks %d times", name, n)
		}
	}
	if len(cores) == 1 {
		return
	}
	pin(peer.Process.Pid, cores[1])
	if looks(Spin) < 2 || looks(Adaptive) < 2 || looks(Block) != 1 {
		t.Error("with a core for each, spin and adaptive look, block does not")
	}
}

// Adaptive gives up where looking does not pay, tries now and then, and goes on where it
// does.
func TestAdaptiveLooksAsLongAsItPays(t *testing.T) {
	s := Spinner{waiting: Adaptive, budget: adaptiveFor}
	looked := func(found int) bool { // found: at which look
		calls := 0
		s.Look(func() bool { calls++; return calls == found })
		return calls > 1
	}
	for i := 0; looked(-1); i++ {
		if i > 20 {
			t.Fatal("it never gives up")
		}
	}
	rare := 0
	for range 10 * probeEvery {
		if looked(-1) {
			rare++
		}
	}
	if rare < 9 || rare > 10*10 {
		t.Errorf("it looked in %d of %d waits where that does not pay", rare, 10*probeEvery)
	}
	tries := 0
	for ; !looked(2) && tries < 2*probeEvery; tries++ {
	}
	for range 100 {
		if !looked(2) {
			t.Fatal("it gave up although looking paid")
		}
	}
}

// The environment variable that makes TestMain the process that is woken; its value is
// the way.
const wakeSleeper = "WALSIDECAR_TEST_SHM_SLEEPER"

// sleeping is one way to sleep until another process wakes: the low half of the tail in
// the submission area is the word that changes.
type sleeping struct {
	wake  func(word *atomic.Uint32, b *Bell)
	sleep func(word *atomic.Uint32, b *Bell, ready func() bool) // once ready is true
}

// waitv is futex_waitv(2) on the word and n - 1 others that do not change.
func waitv(n int) func(*atomic.Uint32, *Bell, func() bool) {
	type waiter struct {
		value, address  uint64
		flags, reserved uint32
	}
	const sysFutexWaitv, futex32 = 449, 2
	others, list := make([]uint32, n*32), make([]waiter, n)
	for i := range list {
		list[i] = waiter{address: uint64(uintptr(unsafe.Pointer(&others[i*32]))), flags: futex32}
	}
	return func(word *atomic.Uint32, _ *Bell, ready func() bool) {
		for {
			list[n-1].value, list[n-1].address = uint64(word.Load()), uint64(uintptr(unsafe.Pointer(word)))
			if ready() {
				return
			}
			_, _, _ = unix.Syscall6(sysFutexWaitv, uintptr(unsafe.Pointer(&list[0])), uintptr(n), 0, 0, 0, 0)
		}
	}
}

func ring(_ *atomic.Uint32, b *Bell)     { b.Ring() }
func wakeWord(w *atomic.Uint32, _ *Bell) { wakeFutex(w) }

var sleepings = map[string]func() sleeping{
	"eventfd": func() sleeping {
		heard := make(chan struct{}, 1)
		var listening atomic.Bool
		return sleeping{ring, func(_ *atomic.Uint32, b *Bell, ready func() bool) {
			if !listening.Swap(true) { // hand-over to the loop as in package session
				go b.Listen(func() {
					select {
					case heard <- struct{}{}:
					default:
					}
				})
			}
			for !ready() {
				<-heard
			}
		}}
	},
	"futex": func() sleeping {
		return sleeping{wakeWord, func(w *atomic.Uint32, _ *Bell, ready func() bool) {
			for {
				was := w.Load()
				if ready() {
					return
				}
				waitFutex(w, was, time.Second)
			}
		}}
	},
	"futex_waitv_1":   func() sleeping { return sleeping{wakeWord, waitv(1)} },
	"futex_waitv_128": func() sleeping { return sleeping{wakeWord, waitv(128)} },
}

// beSleeper is woken and answers, until it is told a round of all ones; then it says how
// much processor time it took.
func beSleeper(way string) error {
	c, err := Attach(infoOf(MinRingBytes), []int{3, 4, 5}, Block, 0)
	if err != nil {
		return err
	}
	how := sleepings[way]()
	word, answer := c.submission.u32(offTail), c.submission.u32(offAckWanted)
	fmt.Println("ready")
	for round := uint32(1); ; round++ {
		how.sleep(word, c.bell, func() bool { return word.Load() >= round })
		if word.Load() == 1<<32-1 {
			break
		}
		answer.Store(round)
	}
	fmt.Println(processorTime().Nanoseconds())
	return nil
}

func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What it takes to wake another process, which sleeps, until it has answered in memory
// that is looked at all the time. Half a system call is the waker's.
func BenchmarkWake(b *testing.B) {
	for _, way := range []string{"eventfd", "futex", "futex_waitv_1", "futex_waitv_128"} {
		b.Run(way, func(b *testing.B) { wakeAcross(b, way) })
	}
}

func wakeAcross(b *testing.B, way string) {
	door, files, err := NewDoor(MinRingBytes)
	must(b, err)
	defer door.Close()
	cmd := exec.Command(os.Args[0], "-test.run=none")
	cmd.Env = append(os.Environ(), wakeSleeper+"="+way)
	for _, fd := range files {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), "handed over"))
	}
	out, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	said := bufio.NewScanner(out)
	said.Scan()
	how := sleepings[way]()
	word, answer := door.submission.u32(offTail), door.submission.u32(offAckWanted)
	took, calls := make([]time.Duration, 0, b.N), time.Duration(0)
	round := uint32(0)
	for b.Loop() {
		time.Sleep(100 * time.Microsecond) // it falls asleep
		round++
		began := time.Now()
		word.Store(round)
		how.wake(word, door.Bell)
		calls += time.Since(began)
		for answer.Load() != round {
		}
		took = append(took, time.Since(began))
	}
	word.Store(1<<32 - 1)
	how.wake(word, door.Bell)
	said.Scan()
	var other int64
	_, err = fmt.Sscan(strings.TrimSpace(said.Text()), &other)
	must(b, err)
	must(b, cmd.Wait())
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
	b.ReportMetric(float64(calls.Nanoseconds())/1e3/float64(len(took)), "waker-us/op")
	b.ReportMetric(float64(other)/1e3/float64(len(took)), "sleeper-cpu-us/op")
}

// A ring wakes nobody but who listens: the Go runtime's poller, which a client could keep
// busy, does not watch a bell until Listen runs.
func TestP9_ABellDoesNotWakeTheRuntime(t *testing.T) {
	b, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	watched := func() (times int) {
		infos, err := filepath.Glob("/proc/self/fdinfo/*")
		if err != nil || len(infos) == 0 {
			t.Skip("no /proc/self/fdinfo")
		}
		for _, path := range infos {
			text, _ := os.ReadFile(path) // a file that was closed meanwhile
			for line := range strings.Lines(string(text)) {
				f := strings.Fields(line)
				if len(f) > 1 && f[0] == "tfd:" && f[1] == strconv.Itoa(b.fd) {
					times++
				}
			}
		}
		return times
	}
	if n := watched(); n != 0 {
		t.Fatalf("%d pollers watch a bell that nobody listens to", n)
	}
	listens, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		b.Listen(func() {
			select {
			case listens <- struct{}{}:
			default:
			}
		})
	}()
	<-listens
	b.Ring()
	<-listens
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	if b.Close() == nil {
		t.Error("a bell was closed twice")
	}
}
