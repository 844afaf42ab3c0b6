package sidecar

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// keepScheduler has the scheduler as it was after the test, and no setting during it.
func keepScheduler(t *testing.T) {
	t.Helper()
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", "")
}

// The scheduler has one processor more than this thread may use, however that changes.
func TestTheSchedulerFollowsTheProcessors(t *testing.T) {
	keepScheduler(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() < 2 {
		t.Skip("one processor: it cannot change")
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	p := followProcessors()
	full := runtime.GOMAXPROCS(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Skip("processors cannot be taken from a thread here: ", err)
	}
	if changed, n := p.look(), runtime.GOMAXPROCS(0); !changed || n != 2 {
		t.Errorf("one processor: changed: %v, the scheduler has %d", changed, n)
	}
	if p.look() {
		t.Error("the world was stopped for nothing")
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if changed, n := p.look(), runtime.GOMAXPROCS(0); !changed || n != full {
		t.Errorf("all processors: changed: %v, the scheduler has %d, and had %d", changed, n, full)
	}
}

func TestASchedulerThatWasSetIsLeftAlone(t *testing.T) {
	keepScheduler(t)
	before := runtime.GOMAXPROCS(0)
	t.Setenv("GOMAXPROCS", fmt.Sprint(before))
	p := followProcessors()
	if changed, n := p.look(), runtime.GOMAXPROCS(0); changed || n != before {
		t.Errorf("changed: %v, the scheduler has %d, and had %d", changed, n, before)
	}
}

// limitChild makes the test below the process that is limited.
const limitChild = "WALSIDECAR_TEST_LIMIT"

// The limit of the control group is followed, which is changed while the process runs.
func TestTheSchedulerFollowsTheLimit(t *testing.T) {
	if os.Getenv(limitChild) != "" {
		followLimit()
	}
	if err := exec.Command(os.Args[0], "-test.list=^$").Run(); errors.Is(err, syscall.ENOEXEC) {
		t.Skip("skipped: an emulated binary cannot start itself here")
	}
	group, set := limitedGroup(t)
	set(t, 3)
	// The runtime looks for its control group before anything of ours runs.
	c := exec.Command("/bin/sh", "-c", `echo $$ > "$0"/cgroup.procs && exec "$@"`, group, os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), limitChild+"=1", "GOMAXPROCS=")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	answers := bufio.NewReader(out)
	expect := func(changed bool, limit int) {
		t.Helper()
		want := fmt.Sprintf("%v %d\n", changed, min(limit, runtime.NumCPU())+1)
		if got, err := answers.ReadString('\n'); err != nil || got != want {
			t.Errorf("limit %d of %d processors: %q, not %q (%v)", limit, runtime.NumCPU(), got, want, err)
		}
	}
	expect(true, 3)
	look := func() { fmt.Fprintln(in, "look") }
	look()
	expect(false, 3)
	for _, limit := range []int{2, 4} {
		set(t, limit)
		look()
		expect(true, limit)
	}
}

// followLimit tells at each line that comes what a look found, and ends the process.
func followLimit() {
	p := followProcessors()
	fmt.Println(true, runtime.GOMAXPROCS(0))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(p.look(), runtime.GOMAXPROCS(0))
	}
	os.Exit(0)
}

// limitedGroup makes a control group, of either version, until the test ends.
func limitedGroup(t *testing.T) (path string, set func(t *testing.T, processors int)) {
	t.Helper()
	const period = 100_000
	try := func(root, file string, content func(processors int) string) bool {
		path = filepath.Join(root, fmt.Sprintf("walsidecar-test-%d", os.Getpid()))
		if os.Mkdir(path, 0o755) != nil {
			return false
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		set = func(t *testing.T, processors int) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(path, file), []byte(content(processors)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return os.WriteFile(filepath.Join(path, file), []byte(content(3)), 0o644) == nil &&
			exec.Command("/bin/sh", "-c", `echo $$ > "$0"/cgroup.procs`, path).Run() == nil
	}
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control")
	two := slices.Contains(strings.Fields(string(controllers)), "cpu") &&
		try("/sys/fs/cgroup", "cpu.max", func(n int) string { return fmt.Sprintf("%d %d", n*period, period) })
	if !two && !try("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", func(n int) string { return fmt.Sprint(n * period) }) {
		t.Skip("no control group can be made here that limits processors: it takes root")
	}
	return path, set
}
