package fence_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/fence"
)

func TestAFileIsFencedByItsLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wish := range []fence.Wish{"", fence.WishAuto, fence.WishAttach} {
		f, err := fence.Open(path, fence.OpenOptions{Wish: wish})
		if err != nil || f.Mode() != fence.ModeLock {
			t.Errorf("%q: %v", wish, err)
		}
	}
	if _, err := fence.Open(path, fence.OpenOptions{Wish: fence.WishPR}); !errors.Is(err, fence.ErrUnsupported) {
		t.Errorf("pr on a file: %v", err)
	}
	if _, _, err := fence.Inspect(path); !errors.Is(err, fence.ErrUnsupported) {
		t.Errorf("inspect of a file: %v", err)
	}
	if _, err := fence.Open(path+"x", fence.OpenOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a path without a file: %v", err)
	}
}

func TestADeviceWithoutReservationsIsFencedByItsAttachment(t *testing.T) {
	path := loop(t)
	for _, wish := range []fence.Wish{fence.WishAuto, fence.WishAttach} {
		f, err := fence.Open(path, fence.OpenOptions{Wish: wish})
		if err != nil || f.Mode() != fence.ModeAttach {
			t.Fatalf("%q: %v", wish, err)
		}
		if err := f.Register(1); !errors.Is(err, fence.ErrUnsupported) {
			t.Errorf("register: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := fence.Open(path, fence.OpenOptions{Wish: fence.WishPR}); !errors.Is(err, fence.ErrUnsupported) || !strings.Contains(err.Error(), "WALSIDECAR_FENCE=attach") {
		t.Errorf("pr: %v", err)
	}
	caps, st, err := fence.Inspect(path)
	if err != nil || caps.Reservations != fence.No || caps.Missing == "" || st.Type != fence.NoReservation {
		t.Errorf("inspect: %+v, %+v, %v", caps, st, err)
	}
}

// loop is a loop device over a new file.
func loop(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: needs root for a loop device")
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
	if err != nil {
		t.Skipf("skipped: no loop device to be had: %v %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", dev).Run() })
	return dev
}
