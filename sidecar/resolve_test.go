package sidecar

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// fakeSys makes a /sys with block devices of these names and serial numbers.
func fakeSys(t *testing.T, serials map[string]string) resolver {
	t.Helper()
	sys := t.TempDir()
	for name, serial := range serials {
		dir := filepath.Join(sys, "class", "block", name, "device")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write := func(path, text string) {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write(filepath.Join(dir, "serial"), serial+"\n")
		write(filepath.Join(dir, "..", "size"), "20971520\n")
	}
	return resolver{sys: sys, dev: "/dev"}
}

func TestEBSVolumeIsFoundByItsSerialNumber(t *testing.T) {
	r := fakeSys(t, map[string]string{"nvme0n1": "vol0aaa", "nvme1n1": "vol0bbb"})
	if path, err := r.resolve("ebs:vol-0bbb"); err != nil || path != "/dev/nvme1n1" {
		t.Fatalf("got %q, %v", path, err)
	}
}

func TestAVolumeThatIsNotAttachedIsNamed(t *testing.T) {
	r := fakeSys(t, map[string]string{"nvme0n1": "vol0aaa"})
	if _, err := r.resolve("ebs:vol-0ccc"); !errors.Is(err, ErrNoSuchDevice) {
		t.Fatalf("got %v", err)
	}
}

func TestTwoDevicesThatAnswerAreAnError(t *testing.T) {
	r := fakeSys(t, map[string]string{"nvme0n1": "vol0aaa", "nvme1n1": "vol0aaa"})
	if path, err := r.resolve("ebs:vol-0aaa"); err == nil {
		t.Fatalf("guessed %q", path)
	}
}

func TestAPathIsItself(t *testing.T) {
	if path, err := ResolveWAL("/dev/nvme1n1"); err != nil || path != "/dev/nvme1n1" {
		t.Fatalf("got %q, %v", path, err)
	}
}
