package device

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLoopDevicesOf512And4096ByteSectors(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		loop, file := newLoop(t, 8<<20, sector)
		d := mustOpen(t, loop, OpenOptions{Exclusive: true})
		if d.SizeBytes() != 8<<20 || d.BlockBytes() != 4096 {
			t.Fatalf("sector %d: size %d block %d, want 8388608 and 4096", sector, d.SizeBytes(), d.BlockBytes())
		}
		info, err := Describe(loop)
		if err != nil {
			t.Fatal(err)
		}
		if info.Kind != KindBlock || info.SizeBytes != 8<<20 || info.LogicalBytes != sector ||
			info.BlockBytes != 4096 || info.Disk != filepath.Base(loop) || info.WriteCache == "" {
			t.Errorf("sector %d: described as %+v", sector, info)
		}
		want := patterned(t, 1<<20, byte(sector>>8))
		if err := d.WriteSync(want, 7<<20); err != nil {
			t.Fatal(err)
		}
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
		got := buffer(t, 1<<20)
		if _, err := d.ReadAt(got, 7<<20); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("sector %d: read back: %v", sector, err)
		}
		below, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(below[7<<20:], want) {
			t.Fatalf("sector %d: the bytes are not in the file below (%v)", sector, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSecondOpenerOfABlockDeviceIsRefused(t *testing.T) {
	loop, _ := newLoop(t, 1<<20, 512)
	d := mustOpen(t, loop, OpenOptions{Exclusive: true})
	_, err := Open(loop, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, loop, "open in process", "name another device")

	inspect := mustOpen(t, loop, OpenOptions{ReadOnly: true})
	if _, err := inspect.ReadAt(buffer(t, 4096), 0); err != nil {
		t.Fatalf("a read-only opener of a live device: %v", err)
	}
	if err := d.WriteSync(patterned(t, 4096, 1), 0); err != nil {
		t.Fatalf("the owner was disturbed: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, loop, OpenOptions{Exclusive: true})
}

func TestMountedDeviceIsRefusedByMountPoint(t *testing.T) {
	loop, _ := newLoop(t, 16<<20, 512)
	needRoot(t, "mkfs.ext4", "mount")
	command(t, "mkfs.ext4", "-q", loop)
	at := mountAt(t, loop)
	_, err := Open(loop, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, loop, "mounted at "+at)
	holders, err := Holders(loop)
	if err != nil || len(holders) != 1 || holders[0].What != "mounted at "+at {
		t.Fatalf("holders %v, %v", holders, err)
	}
	command(t, "umount", at)
	holders, err = Holders(loop)
	if err != nil || len(holders) != 0 {
		t.Fatalf("holders after the unmount: %v, %v", holders, err)
	}
	d := mustOpen(t, loop, OpenOptions{Exclusive: true})

	// And the other way round: a claimed device cannot be mounted.
	if out, err := tryCommand("mount", loop, at); err == nil {
		_, _ = tryCommand("umount", at)
		t.Fatalf("the kernel mounted a claimed device: %s", out)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMountedPartitionIsRefusedByPartition(t *testing.T) {
	needRoot(t, "losetup", "mkfs.ext4", "mount")
	file := filepath.Join(t.TempDir(), "disk")
	disk := make([]byte, 16<<20)
	copy(disk, mbr(0x83, 2048, 16<<20/512-2048))
	if err := os.WriteFile(file, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := attachLoop(t, file, "--partscan")
	partition := loop + "p1"
	if !exists(partition) {
		// A kernel that does not read partition tables can be told.
		if _, err := tryCommand("addpart", loop, "1", "2048", strconv.Itoa(16<<20/512-2048)); err != nil {
			t.Skipf("skipped: no partitions on loop devices here: %v", err)
		}
		t.Cleanup(func() { _, _ = tryCommand("delpart", loop, "1") })
	}
	name := filepath.Base(partition)
	command(t, "mkfs.ext4", "-q", partition)
	at := mountAt(t, partition)
	_, err := Open(loop, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, "partition "+name+": mounted at "+at)
	_, err = Open(partition, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, "mounted at "+at)
	info, err := Describe(partition)
	if err != nil || info.Disk != filepath.Base(loop) {
		t.Errorf("the partition's disk is %q (%v)", info.Disk, err)
	}
	if s, err := Signature(loop); err != nil || s != "MBR partition table" {
		t.Errorf("signature %q, %v", s, err)
	}
}

func TestSwapIsAHolder(t *testing.T) {
	loop, _ := newLoop(t, 8<<20, 512)
	needRoot(t, "mkswap", "swapon", "swapoff")
	command(t, "mkswap", loop)
	if s, err := Signature(loop); err != nil || s != "swap area" {
		t.Fatalf("signature %q, %v", s, err)
	}
	if _, err := tryCommand("swapon", loop); err != nil {
		t.Skipf("skipped: %v", err)
	}
	defer command(t, "swapoff", loop)
	_, err := Open(loop, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, loop, "used as swap")
}

func TestFileUnderALoopDeviceIsRefused(t *testing.T) {
	loop, file := newLoop(t, 1<<20, 512)
	_, err := Open(file, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, file, filepath.Base(loop), "losetup -d")
	holders, err := Holders(file)
	if err != nil || len(holders) != 1 || holders[0].What != "attached to "+filepath.Base(loop) {
		t.Fatalf("holders %v, %v", holders, err)
	}
	mustOpen(t, file, OpenOptions{ReadOnly: true})
}

func TestWriteProtectedDeviceIsRefused(t *testing.T) {
	needRoot(t, "losetup")
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	loop := attachLoop(t, file, "--read-only")
	_, err := Open(loop, OpenOptions{Exclusive: true})
	wantError(t, err, ErrReadOnly, loop)
	d := mustOpen(t, loop, OpenOptions{ReadOnly: true})
	if _, err := d.ReadAt(buffer(t, 4096), 0); err != nil {
		t.Fatal(err)
	}
}

func TestDeviceThatGrew(t *testing.T) {
	loop, file := newLoop(t, 4<<20, 512)
	before := mustOpen(t, loop, OpenOptions{})
	if err := os.Truncate(file, 8<<20); err != nil {
		t.Fatal(err)
	}
	command(t, "losetup", "--set-capacity", loop)
	if before.SizeBytes() != 4<<20 {
		t.Errorf("the size moved under an open device: %d", before.SizeBytes())
	}
	if err := before.WriteSync(patterned(t, 4096, 1), 0); err != nil {
		t.Errorf("a device that grew refuses writes: %v", err)
	}
	if after := mustOpen(t, loop, OpenOptions{}); after.SizeBytes() != 8<<20 {
		t.Errorf("size %d after it grew, want 8388608", after.SizeBytes())
	}
}

// The kernel cuts a write that crosses the device's end and reports how far it
// came; one that begins there is ENOSPC. Neither may pass for a success.
func TestWritesAtTheEndOfADeviceThatShrank(t *testing.T) {
	loop, file := newLoop(t, 4<<20, 512)
	d := mustOpen(t, loop, OpenOptions{})
	if err := os.Truncate(file, 2<<20); err != nil {
		t.Fatal(err)
	}
	command(t, "losetup", "--set-capacity", loop)
	b := patterned(t, 8192, 1)
	err := d.WriteSync(b, 2<<20-4096)
	wantError(t, err, ErrWrite, loop, "8192 bytes at offset 2093056")
	wantError(t, err, ErrShort, "4096 of 8192")
	err = d.WriteSync(b, 2<<20)
	wantError(t, err, ErrWrite, "at offset 2097152")
	wantError(t, err, ErrNoSpace)
	_, err = d.ReadAt(b, 2<<20-4096)
	wantError(t, err, ErrShort, "4096 of 8192")
	_, err = d.ReadAt(b, 3<<20)
	wantError(t, err, ErrShort, "0 of 8192")
}

// A loop device over a sparse file on a full filesystem is a device whose writes
// really fail, with what the kernel makes of it.
func TestWriteThatTheDeviceFails(t *testing.T) {
	small, _ := newLoop(t, 16<<20, 512)
	needRoot(t, "mkfs.ext4", "mount")
	command(t, "mkfs.ext4", "-q", "-m", "0", small)
	at := mountAt(t, small)
	file := filepath.Join(at, "thin")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 64<<20); err != nil {
		t.Fatal(err)
	}
	thin := attachLoop(t, file)
	// Detach before the filesystem under it is unmounted.
	t.Cleanup(func() { _, _ = tryCommand("losetup", "--detach", thin) })
	d := mustOpen(t, thin, OpenOptions{Exclusive: true})
	b := patterned(t, 1<<20, 9)
	var err error
	for offset := int64(0); offset < d.SizeBytes() && err == nil; offset += int64(len(b)) {
		err = d.WriteSync(b, offset)
	}
	wantError(t, err, ErrWrite, thin, "1048576 bytes at offset")
	t.Logf("a write that cannot be stored: %v", err)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTmpfsIsVolatile(t *testing.T) {
	needRoot(t, "mount")
	at := mountAt(t, "-t", "tmpfs", "-o", "size=4m", "none")
	path := filepath.Join(at, "wal")
	if err := CreateFile(path, 1<<20); err != nil {
		if strings.Contains(err.Error(), ErrNoDirectIO.Error()) {
			return // before Linux 6.6: refused by name, which will do
		}
		t.Fatal(err)
	}
	info, err := Describe(path)
	if err != nil || !info.Volatile || info.Filesystem != "tmpfs" || info.Disk != "" {
		t.Errorf("described as %+v, %v", info, err)
	}
	wantError(t, CreateFile(filepath.Join(at, "large"), 8<<20), ErrNoSpace)
	wantGone(t, filepath.Join(at, "large"))
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		t.Fatal(err)
	}
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; used > 2<<20 {
		t.Errorf("%d bytes stay in use after a refusal", used)
	}
}
