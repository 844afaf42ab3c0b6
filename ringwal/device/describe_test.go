package device

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// sysTree makes a sysfs of these files; a key with no text is a directory.
func sysTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func link(t *testing.T, root, name, to string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestDescribeAnEBSVolumeAndItsPartition(t *testing.T) {
	const disk = "devices/pci0000:00/0000:00:1f.0/nvme/nvme1/nvme1n1"
	root := sysTree(t, map[string]string{
		disk + "/queue/write_cache":         "write through\n",
		disk + "/queue/fua":                 "1\n",
		disk + "/queue/rotational":          "0\n",
		disk + "/queue/logical_block_size":  "512\n",
		disk + "/queue/physical_block_size": "4096\n",
		disk + "/device/model":              "Amazon Elastic Block Store              \n",
		disk + "/device/serial":             "vol0123456789abcdef0\n",
		disk + "/nvme1n1p1/partition":       "1\n",
	})
	link(t, root, "dev/block/259:2", "../../"+disk)
	link(t, root, "dev/block/259:3", "../../"+disk+"/nvme1n1p1")
	want := Info{
		LogicalBytes: 512, PhysicalBytes: 4096, WriteCache: "write through", FUA: true,
		Model: "Amazon Elastic Block Store", Serial: "vol0123456789abcdef0", Disk: "nvme1n1",
	}
	for _, number := range []uint64{unix.Mkdev(259, 2), unix.Mkdev(259, 3)} {
		var got Info
		got.describeDisk(root, number)
		if got != want {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
	var nothing Info
	nothing.describeDisk(root, unix.Mkdev(0, 45)) // tmpfs, overlay
	if nothing != (Info{}) {
		t.Errorf("a number without a disk is described as %+v", nothing)
	}
}

func TestDescribeSCSIAndVirtio(t *testing.T) {
	root := sysTree(t, map[string]string{
		"devices/sda/queue/write_cache": "write back\n",
		"devices/sda/queue/rotational":  "1\n",
		"devices/sda/device/model":      "Virtual Disk\n",
		"devices/sda/device/vpd_pg80":   "\x00\x80\x00\x08SERIAL42",
		"devices/vda/queue/write_cache": "write back\n",
		"devices/vda/serial":            "data-disk",
	})
	link(t, root, "dev/block/8:0", "../../devices/sda")
	link(t, root, "dev/block/254:0", "../../devices/vda")
	var sda, vda Info
	sda.describeDisk(root, unix.Mkdev(8, 0))
	if sda.Serial != "SERIAL42" || !sda.Rotational || sda.WriteCache != "write back" || sda.FUA {
		t.Errorf("sda: %+v", sda)
	}
	vda.describeDisk(root, unix.Mkdev(254, 0))
	if vda.Serial != "data-disk" || vda.Model != "" {
		t.Errorf("vda: %+v", vda)
	}
}

func TestDescribeAFile(t *testing.T) {
	d := newFile(t, 1<<20)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(d.Path(), link); err != nil {
		t.Fatal(err)
	}
	info, err := Describe(link)
	if err != nil {
		t.Fatal(err)
	}
	if info.Path != link || info.Resolved != d.Path() || info.Kind != KindFile || info.SizeBytes != 1<<20 ||
		info.BlockBytes != d.BlockBytes() || info.Filesystem == "" {
		t.Errorf("described as %+v", info)
	}
	_, err = Describe("/dev/null")
	wantError(t, err, ErrNotADevice, "/dev/null")
	_, err = Describe(link + "x")
	wantError(t, err, os.ErrNotExist, link+"x")
}

func TestUnknownFilesystemHasItsNumber(t *testing.T) {
	if got := filesystemName(0x1234); got != "filesystem type 0x1234" {
		t.Errorf("got %q", got)
	}
	if got := filesystemName(unix.XFS_SUPER_MAGIC); got != "xfs" {
		t.Errorf("got %q", got)
	}
}
