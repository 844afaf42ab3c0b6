package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stat is a /proc/PID/stat: ticks of user, system, and of children that ended.
func stat(pid int, name string, parent, user, system, childUser, childSystem int) string {
	return fmt.Sprintf("%d (%s) S %d 1 1 0 -1 4194560 100 200 0 0 %d %d %d %d 20 0 4 0 100 0 0\n", pid, name, parent, user, system, childUser, childSystem)
}

func TestProcessesAreOursKernelThreadsOrForeign(t *testing.T) {
	proc := t.TempDir()
	processes := []string{
		stat(1, "init", 0, 1000, 1000, 5000, 5000),
		stat(2, "kthreadd", 0, 0, 1, 0, 0),
		stat(50, "kworker/u8:2-loop0", 2, 0, 30, 0, 0),
		stat(60, "loop1", 2, 0, 5, 0, 0),
		stat(100, "bench) S 1", 1, 10, 20, 3, 4), // us, with a name that looks like more fields
		stat(101, "redis-server", 100, 100, 200, 0, 0),
		stat(102, "postgres", 101, 7, 0, 0, 1), // of our child
		stat(200, "cc1", 1, 400, 50, 0, 0),     // foreign
	}
	for _, p := range processes {
		var pid int
		if _, err := fmt.Sscanf(p, "%d", &pid); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(proc, fmt.Sprint(pid), "stat"), p)
	}
	write(t, filepath.Join(proc, "300", "stat"), "300 (torn")
	write(t, filepath.Join(proc, "stat"), "cpu  1000 100 500 90000 800 3 7 55 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	m := Moment{kernel: map[int]time.Duration{}}
	m.readProcesses(proc, 100)
	m.readProcessors(proc)
	if want := (10 + 20 + 3 + 4 + 300 + 7 + 1) * tick; m.mine != want {
		t.Errorf("ours used %v, it is %v", m.mine, want)
	}
	if len(m.kernel) != 3 || m.kernel[50] != 30*tick || m.kernel[60] != 5*tick {
		t.Errorf("kernel threads: %v", m.kernel)
	}
	if want := (1000 + 100 + 500 + 3 + 7) * tick; m.busy != want || m.stole != 55*tick {
		t.Errorf("busy %v, it is %v; stolen %v", m.busy, want, m.stole)
	}
}

func TestBetweenSplitsWhatTheProcessorsDid(t *testing.T) {
	at := time.Now()
	before := Moment{at: at, mine: 10 * time.Second, busy: 100 * time.Second, stole: time.Second,
		kernel: map[int]time.Duration{7: time.Second, 8: time.Second}, device: Device{10, 1000, 1}}
	after := Moment{at: at.Add(2 * time.Second), mine: 11 * time.Second, busy: 103 * time.Second, stole: 3 * time.Second,
		kernel: map[int]time.Duration{7: 1500 * time.Millisecond, 9: 250 * time.Millisecond}, device: Device{15, 6000, 3}}
	got := Between(before, after)
	want := Used{Lasted: 2 * time.Second, Processes: time.Second, KernelThreads: 750 * time.Millisecond, Foreign: 1250 * time.Millisecond, Stolen: 2 * time.Second,
		Device: Device{5, 5000, 2}}
	if got != want {
		t.Errorf("%+v, it is %+v", got, want)
	}
}

func TestDeviceCountersAreSectorsOf512(t *testing.T) {
	sys := t.TempDir()
	write(t, filepath.Join(sys, "class/block/loop7/stat"), "  11  0  80  2  40  5  328  9  0  10  11  0  0  0  0  6  12\n")
	if got, want := deviceCounters(sys, "/dev/loop7"), (Device{Writes: 40, WrittenBytes: 328 * 512, Flushes: 6}); got != want {
		t.Errorf("%+v, it is %+v", got, want)
	}
	if got := deviceCounters(sys, "/dev/loop8"); got != (Device{}) {
		t.Errorf("a device that is not there did %+v", got)
	}
}

// The real /proc: work of this process is ours.
func TestLookSeesOurWork(t *testing.T) {
	before := Look("")
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		for range 1 << 20 {
			_ = fmt.Sprint()
		}
		if used := Between(before, Look("")); used.Processes >= 100*time.Millisecond {
			return
		}
	}
	t.Errorf("seconds of work are not seen: %+v", Between(before, Look("")))
}

func TestStoresAreNamed(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore("here=" + dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.Label != "here" || s.Device != "" || s.Dir != dir || s.Bytes != dirBytes {
		t.Errorf("%+v", s)
	}
	fresh, err := s.Fresh(true)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(fresh, "old"), "of the cell before")
	if fresh, err = s.Fresh(false); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(fresh); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"nowhere/at/all", "/dev/null", "file:/nowhere/at/all"} {
		if s, err := OpenStore(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, s)
		}
	}
}
