package device

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestCreateFileIsAllocatedAndWritten(t *testing.T) {
	const size = 8<<20 + 4096 // not a multiple of the fill
	for name, create := range map[string]func(string, int64) error{
		"as users call it": CreateFile,
		"nameless":         createNameless,
		"named":            createNamed,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "wal")
			if err := create(path, size); err != nil {
				if errors.Is(err, errNoNameless) {
					t.Skip("skipped: this filesystem has no nameless files")
				}
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() != size || info.Mode() != 0o600 {
				t.Fatalf("size %d mode %v, want %d and -rw-------", info.Size(), info.Mode(), size)
			}
			wantAllocated(t, path, size)
			data, err := os.ReadFile(path)
			if err != nil || !isZero(data) {
				t.Fatalf("a new file is not zeros (%v)", err)
			}
		})
	}
}

// wantAllocated looks from three sides: blocks occupied, holes, and extents that
// were reserved but never written.
func wantAllocated(t *testing.T, path string, size int64) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 < size {
		t.Errorf("occupies %d of %d bytes", st.Blocks*512, size)
	}
	if hole, err := unix.Seek(fd, 0, unix.SEEK_HOLE); err != nil || hole != size {
		t.Errorf("first hole at %d (%v), want %d: the end", hole, err, size)
	}
	unwritten, known := unwrittenExtents(fd)
	if !known {
		t.Log("this filesystem has no FIEMAP: unwritten extents were not looked for")
	}
	if unwritten > 0 {
		t.Errorf("%d extents are allocated but unwritten", unwritten)
	}
}

// unwrittenExtents counts them with FS_IOC_FIEMAP (linux/fiemap.h).
func unwrittenExtents(fd int) (count int, known bool) {
	const (
		fiemapRequest   = 0xc020660b
		fiemapSync      = 1
		extentUnwritten = 0x800
	)
	type extent struct {
		Logical, Physical, Length uint64
		_                         [2]uint64
		Flags                     uint32
		_                         [3]uint32
	}
	var m struct {
		Start, Length         uint64
		Flags, Mapped, Count_ uint32
		_                     uint32
		Extents               [512]extent
	}
	m.Length, m.Flags, m.Count_ = ^uint64(0), fiemapSync, uint32(len(m.Extents))
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fiemapRequest, uintptr(unsafe.Pointer(&m))); errno != 0 {
		return 0, false
	}
	for _, e := range m.Extents[:m.Mapped] {
		if e.Flags&extentUnwritten != 0 {
			count++
		}
	}
	return count, true
}

func TestSparseFilesAreSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	wantError(t, verifyAllocated(path, fd, 1<<20), ErrSparse, path, "keeps 0 of 1048576 bytes")
}

func TestCreateFileLeavesAnExistingFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, create := range []func(string, int64) error{CreateFile, createNameless, createNamed} {
		err := create(path, 1<<20)
		if errors.Is(err, errNoNameless) {
			continue
		}
		wantError(t, err, fs.ErrExist, path, "name another file")
	}
	if data, _ := os.ReadFile(path); string(data) != "precious" {
		t.Fatalf("the file now holds %q", data)
	}
	dangling := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	wantError(t, CreateFile(dangling, 1<<20), fs.ErrExist, dangling)
}

func TestCreateFileRefusesBadSizes(t *testing.T) {
	for _, size := range []int64{0, -4096, 100, 4096 + 512} {
		path := filepath.Join(t.TempDir(), "wal")
		if err := CreateFile(path, size); err == nil {
			t.Errorf("a file of %d bytes was made", size)
		}
		wantGone(t, path)
	}
	path := filepath.Join(t.TempDir(), "missing", "wal")
	wantError(t, CreateFile(path, 1<<20), fs.ErrNotExist, "make the directory first")
}

func TestCreateFileLargerThanTheFilesystemAllows(t *testing.T) {
	for _, create := range []func(string, int64) error{CreateFile, createNamed} {
		path := filepath.Join(t.TempDir(), "wal")
		wantError(t, create(path, 1<<62), ErrNoSpace, path, "make the log smaller")
		wantGone(t, path)
	}
}

func TestCreateFileOnAFullFilesystemLeavesNothing(t *testing.T) {
	disk, _ := newLoop(t, 16<<20, 512)
	needRoot(t, "mkfs.ext4", "mount")
	command(t, "mkfs.ext4", "-q", disk)
	at := mountAt(t, disk)
	var before, after unix.Statfs_t
	if err := unix.Statfs(at, &before); err != nil {
		t.Fatal(err)
	}
	for _, create := range []func(string, int64) error{CreateFile, createNamed} {
		path := filepath.Join(at, "wal")
		wantError(t, create(path, 32<<20), ErrNoSpace, path, "33554432 bytes", "bytes free")
		wantGone(t, path)
	}
	if err := unix.Statfs(at, &after); err != nil {
		t.Fatal(err)
	}
	if after.Bfree != before.Bfree {
		t.Errorf("%d blocks free before, %d after", before.Bfree, after.Bfree)
	}
	if err := CreateFile(filepath.Join(at, "small"), 4<<20); err != nil {
		t.Errorf("a file that fits: %v", err)
	}
}

func TestNoDirectIOIsRefusedByName(t *testing.T) {
	needRoot(t, "mount")
	at := mountAt(t, "-t", "ramfs", "none")
	path := filepath.Join(at, "wal")
	wantError(t, CreateFile(path, 1<<20), ErrNoDirectIO, "ramfs", "use a block device")
	wantGone(t, path)
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path, OpenOptions{})
	wantError(t, err, ErrNoDirectIO, path, "ramfs")
}

// ext4 that journals data takes O_DIRECT and buffers all the same.
func TestDirectIOInNameOnlyIsRefused(t *testing.T) {
	disk, _ := newLoop(t, 64<<20, 512)
	needRoot(t, "mkfs.ext4", "mount")
	command(t, "mkfs.ext4", "-q", disk)
	at := mountAt(t, "-o", "data=journal", disk)
	path := filepath.Join(at, "wal")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path, OpenOptions{})
	if err == nil {
		t.Skip("skipped: this kernel does not tell (before Linux 6.1)")
	}
	wantError(t, err, ErrNoDirectIO, path)
}

func wantGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s was left behind (%v)", path, err)
	}
}
