package device

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary play another process: one that holds a device,
// or makes a file, until it is killed.
func TestMain(m *testing.M) {
	switch role := os.Getenv("DEVICE_TEST_ROLE"); role {
	case "":
		os.Exit(m.Run())
	case "hold":
		_, err := Open(os.Getenv("DEVICE_TEST_PATH"), OpenOptions{Exclusive: true})
		fmt.Println("held:", err)
		time.Sleep(time.Hour)
	case "create":
		fmt.Println("creating")
		fmt.Println("created:", CreateFile(os.Getenv("DEVICE_TEST_PATH"), 4<<30))
		time.Sleep(time.Hour)
	}
}

// otherProcess starts this binary in a role and returns what it prints first.
func otherProcess(t *testing.T, role, path string) (cmd *exec.Cmd, says string) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DEVICE_TEST_ROLE="+role, "DEVICE_TEST_PATH="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, syscall.ENOEXEC) {
		t.Skip("skipped: an emulated binary cannot start itself here")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

func TestAKilledProcessGivesItsClaimBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wal")
	if err := CreateFile(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"file": file}
	if os.Geteuid() == 0 {
		paths["block device"], _ = newLoop(t, 1<<20, 512)
	} else {
		t.Log("skipped for block devices: needs root for loop devices")
	}
	for kind, path := range paths {
		cmd, says := otherProcess(t, "hold", path)
		if says != "held: <nil>" {
			t.Fatalf("%s: %s", kind, says)
		}
		_, err := Open(path, OpenOptions{Exclusive: true})
		wantError(t, err, ErrInUse, path, fmt.Sprintf("process %d", cmd.Process.Pid))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		mustOpen(t, path, OpenOptions{Exclusive: true, BusyFor: 10 * time.Second})
	}
}

// A process that is killed while it makes a file leaves no half file that the
// next start would take for somebody's.
func TestAKilledCreateFileLeavesNoName(t *testing.T) {
	probe := filepath.Join(t.TempDir(), "probe")
	if err := createNameless(probe, 4096); err != nil {
		t.Skipf("skipped: no nameless files here: %v", err)
	}
	path := filepath.Join(t.TempDir(), "wal")
	cmd, _ := otherProcess(t, "create", path)
	time.Sleep(30 * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wantGone(t, path)
}

// A write is a data-sync write if the disk was told to flush its cache: the
// kernel counts that.
func TestP1_WriteSyncReachesTheMedium(t *testing.T) {
	loop, _ := newLoop(t, 1<<20, 512)
	d := mustOpen(t, loop, OpenOptions{Exclusive: true})
	info, err := Describe(loop)
	if err != nil {
		t.Fatal(err)
	}
	if info.WriteCache != "write back" || info.FUA {
		t.Skipf("skipped: a %q loop device (FUA %v) is not flushed", info.WriteCache, info.FUA)
	}
	b := patterned(t, 4096, 1)
	for _, d.(*raw).pwritev2 = range []bool{d.(*raw).pwritev2, false} {
		before := flushes(t, loop)
		for i := range int64(10) {
			if err := d.WriteSync(b, i*4096); err != nil {
				t.Fatal(err)
			}
		}
		if n := flushes(t, loop) - before; n < 10 {
			t.Errorf("10 writes flushed the disk %d times (pwritev2: %v)", n, d.(*raw).pwritev2)
		}
	}
	engines(t, func(t *testing.T, listen Listen) {
		done := make(chan *Write, 1)
		w := NewWriters(d, 1, listen, each(func(write *Write) { done <- write }))
		defer w.Stop(time.Minute)
		before := flushes(t, loop)
		for i := range 10 {
			w.Submit(&Write{Buf: b, Offset: int64(i) * 4096})
			if write := <-done; write.Err != nil {
				t.Fatal(write.Err)
			}
		}
		if n := flushes(t, loop) - before; n < 10 {
			t.Errorf("10 writes flushed the disk %d times", n)
		}
	})
	before := flushes(t, loop)
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := flushes(t, loop) - before; n < 1 {
		t.Error("Flush did not flush the disk")
	}
}

// flushes is the number of flush requests that a disk has completed: the 16th
// field of its stat (Documentation/block/stat.rst).
func flushes(t *testing.T, disk string) int {
	t.Helper()
	fields := strings.Fields(readLine(filepath.Join(sysfs, "block", filepath.Base(disk), "stat")))
	if len(fields) < 16 {
		t.Skip("skipped: this kernel does not count flushes")
	}
	n, err := strconv.Atoi(fields[15])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
