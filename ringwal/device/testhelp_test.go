package device

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: WALSIDECAR_SEED, else a new one")

// newRand gives a seeded source and prints the seed where the test fails.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed, _ = strconv.ParseUint(os.Getenv("WALSIDECAR_SEED"), 10, 64)
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with WALSIDECAR_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

// buffer is aligned memory that lives as long as the test.
func buffer(t testing.TB, bytes int) []byte {
	t.Helper()
	arena, err := NewArena(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Free() })
	return arena.Bytes()
}

// patterned is an aligned buffer in which every byte depends on its place and on
// salt.
func patterned(t testing.TB, n int, salt byte) []byte {
	t.Helper()
	b := buffer(t, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ salt
	}
	return b
}

// newFile makes a file log and opens it with a claim.
func newFile(t testing.TB, sizeBytes int64) Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wal")
	if err := CreateFile(path, sizeBytes); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, path, OpenOptions{Exclusive: true})
	d.(*raw).isBlock = true // asynchronous I/O is tested without root too: nobody freezes this file system
	return d
}

func mustOpen(t testing.TB, path string, o OpenOptions) Device {
	t.Helper()
	d, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// wantError checks sentinels and that the text names all of what it should.
func wantError(t *testing.T, err error, sentinel error, texts ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("error %v: want %v", err, sentinel)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Fatalf("error %q does not say %q", err, text)
		}
	}
}

// needRoot skips a test that loop devices or mounts need.
func needRoot(t testing.TB, tools ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root for loop devices and mounts")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: needs %s", tool)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("skipped: this kernel or container has no loop devices")
	}
}

// command runs a tool and gives what it printed.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := tryCommand(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryCommand(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return strings.TrimSpace(string(out)), nil
}

// attachLoop makes a loop device over path with direct I/O.
func attachLoop(t testing.TB, path string, args ...string) string {
	t.Helper()
	args = append(args, "--direct-io=on", "--find", "--show", path)
	var err error
	for range 20 {
		// Finding a free device and taking it are two steps: others may be
		// faster.
		var loop string
		if loop, err = tryCommand("losetup", args...); err == nil {
			t.Cleanup(func() { _, _ = tryCommand("losetup", "--detach", loop) })
			return loop
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Skipf("skipped: no loop device to be had: %v", err)
	return ""
}

// newLoop is a loop device of sizeBytes with logical blocks of sector bytes.
func newLoop(t testing.TB, sizeBytes int64, sector int, args ...string) (loop, file string) {
	t.Helper()
	needRoot(t, "losetup")
	file = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, sizeBytes); err != nil {
		t.Fatal(err)
	}
	args = append(args, "--sector-size", strconv.Itoa(sector))
	return attachLoop(t, file, args...), file
}

// mountAt mounts and gives the mount point.
func mountAt(t testing.TB, args ...string) string {
	t.Helper()
	at := t.TempDir()
	if out, err := tryCommand("mount", append(args, at)...); err != nil {
		t.Skipf("skipped: cannot mount here: %v%s", err, out)
	}
	t.Cleanup(func() { _, _ = tryCommand("umount", at) })
	return at
}
