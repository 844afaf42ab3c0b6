package device

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMountinfo(t *testing.T) {
	text := strings.Join([]string{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`, // proc_pid_mountinfo(5)
		`27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw`,
		`40 27 0:45 / /data/with\040space rw shared:7 master:2 - btrfs /dev/nvme1n1 rw`,
		`garbage`,
		`1 2 not-a-number / /x rw - ext4 /dev/x rw`,
		`50 27 8:16 / /cut`,
	}, "\n")
	want := []mount{
		{device: unix.Mkdev(98, 0), at: "/mnt2", source: "/dev/root"},
		{device: unix.Mkdev(259, 1), at: "/", source: "/dev/nvme0n1p1"},
		{device: unix.Mkdev(0, 45), at: "/data/with space", source: "/dev/nvme1n1"},
		{device: unix.Mkdev(8, 16), at: "/cut"},
	}
	if got := parseMountinfo(strings.NewReader(text)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestUnescapeOctal(t *testing.T) {
	for in, want := range map[string]string{
		``: ``, `/plain`: `/plain`, `a\040b`: `a b`, `\134`: `\`, `end\04`: `end\04`, `\999`: `\999`, `\`: `\`,
	} {
		if got := unescapeOctal(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestHoldersOfWhatIsNoDevice(t *testing.T) {
	_, err := Holders("/dev/null")
	wantError(t, err, ErrNotADevice, "/dev/null")
	_, err = Holders(filepath.Join(t.TempDir(), "missing"))
	wantError(t, err, os.ErrNotExist)
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw")
	f.Add(`1 1 0:1 / \040 rw -`)
	f.Fuzz(func(_ *testing.T, text string) {
		parseMountinfo(strings.NewReader(text))
	})
}
