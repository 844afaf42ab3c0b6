package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// busyPoll is how often an open tries again while another holds the claim.
const busyPoll = 20 * time.Millisecond

func openRaw(path string, o OpenOptions) (Device, error) {
	if o.ReadOnly && o.Exclusive {
		return nil, fmt.Errorf("open %s: a read-only open makes no claim: ask for one or the other", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, openError(path, err)
	}
	var open func(string, OpenOptions) (*raw, error)
	switch mode := info.Mode(); {
	case mode.IsRegular():
		open = openFile
	case mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0:
		open = openBlock
	default:
		return nil, fmt.Errorf("open %s: it is a %s: %w", path, kindOfMode(mode), ErrNotADevice)
	}
	until := time.Now().Add(o.BusyFor)
	for {
		r, err := open(path, o)
		if err == nil {
			return r, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
		if !time.Now().Before(until) {
			return nil, inUseError(path)
		}
		time.Sleep(busyPoll)
	}
}

// openBlock gives an error that matches EBUSY where another holds the claim.
func openBlock(path string, o OpenOptions) (*raw, error) {
	flags := accessMode(o)
	if o.Exclusive {
		flags |= unix.O_EXCL
	}
	fd, err := openDirect(path, flags)
	if err != nil {
		return nil, openError(path, err)
	}
	r := newRaw(path, fd, o)
	if err := r.askBlock(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return r, nil
}

// askBlock asks the kernel for size and block of a block device.
func (r *raw) askBlock() error {
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return openError(r.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("open %s: it changed while it was opened: %w", r.path, ErrNotADevice)
	}
	r.isBlock = true
	size, err := ioctlUint64(r.fd, unix.BLKGETSIZE64)
	if err != nil {
		return fmt.Errorf("open %s: ask its size (BLKGETSIZE64): %w", r.path, err)
	}
	logical, err := ioctlInt(r.fd, unix.BLKSSZGET)
	if err != nil {
		return fmt.Errorf("open %s: ask its block size (BLKSSZGET): %w", r.path, err)
	}
	if !r.readOnly {
		protected, err := ioctlInt(r.fd, unix.BLKROGET)
		if err != nil {
			return fmt.Errorf("open %s: ask whether it is write-protected (BLKROGET): %w", r.path, err)
		}
		if protected != 0 {
			return fmt.Errorf("open %s: %w: the device is write-protected; `blockdev --setrw` lifts it", r.path, ErrReadOnly)
		}
	}
	return r.setGeometry(int64(size), int(logical))
}

// openFile gives an error that matches EBUSY where another holds the claim.
func openFile(path string, o OpenOptions) (*raw, error) {
	fd, err := openDirect(path, accessMode(o))
	if err != nil {
		return nil, openError(path, err)
	}
	r := newRaw(path, fd, o)
	if err := r.askFile(o); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return r, nil
}

// askFile claims a file, then asks for its size and block.
func (r *raw) askFile(o OpenOptions) error {
	var st unix.Stat_t
	if o.Exclusive {
		if err := claimFile(r.path, r.fd); err != nil {
			return err
		}
	}
	if err := unix.Fstat(r.fd, &st); err != nil {
		return openError(r.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("open %s: it changed while it was opened: %w", r.path, ErrNotADevice)
	}
	align, err := fileAlignment(r.path, r.fd)
	if err != nil {
		return err
	}
	return r.setGeometry(st.Size, align)
}

// claimFile takes the exclusive lock. The lock belongs to the open file, so a
// second open by this process is refused like any other; the kernel drops it
// when the descriptor goes, however the process ended.
func claimFile(path string, fd int) error {
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return unix.EBUSY
	}
	if err != nil {
		return fmt.Errorf("open %s: flock: %w", path, err)
	}
	var locked, named unix.Stat_t
	if err := unix.Fstat(fd, &locked); err != nil {
		return openError(path, err)
	}
	if err := unix.Stat(path, &named); err != nil {
		return openError(path, err)
	}
	if locked.Dev != named.Dev || locked.Ino != named.Ino {
		// The file was replaced between open and lock: the lock guards a
		// file that nobody else would find.
		return fmt.Errorf("open %s: the file was replaced while it was opened: %w; try again", path, ErrInUse)
	}
	if loops := loopsOver(sysfs, locked.Dev, locked.Ino); len(loops) > 0 {
		return fmt.Errorf("open %s: %w: it is attached to loop device %s; `losetup -d /dev/%s`, or name the loop device",
			path, ErrInUse, loops[0], loops[0])
	}
	return nil
}

// fileAlignment is the unit of offset and length that the file's filesystem
// wants for direct I/O, in bytes.
func fileAlignment(path string, fd int) (int, error) {
	var st unix.Statx_t
	told := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st) == nil
	if !told || st.Mask&unix.STATX_DIOALIGN == 0 {
		// Before Linux 6.1 the kernel does not tell; MinBlockBytes fits every
		// disk with logical blocks up to it.
		return MinBlockBytes, nil
	}
	if st.Dio_offset_align == 0 {
		// No direct I/O: ext4 with journalled data takes O_DIRECT and goes
		// through the page cache all the same. But an emulator (qemu-user)
		// may have passed on the mask without the values.
		if !insistsOnAlignment(fd) {
			return 0, noDirectIO(path, fd)
		}
		return MinBlockBytes, nil
	}
	return int(max(st.Dio_offset_align, st.Dio_mem_align)), nil
}

// insistsOnAlignment reports whether a read of one byte fails, as it does where
// I/O really is direct.
func insistsOnAlignment(fd int) bool {
	var b [1]byte
	_, err := unix.Pread(fd, b[:], 1)
	return errors.Is(err, unix.EINVAL)
}

// setGeometry rounds size down to whole blocks.
func (r *raw) setGeometry(size int64, logical int) error {
	r.block = max(MinBlockBytes, logical)
	if r.block&(r.block-1) != 0 {
		return fmt.Errorf("open %s: logical block of %d bytes is not a power of two", r.path, logical)
	}
	r.size = size / int64(r.block) * int64(r.block)
	if r.size == 0 {
		return fmt.Errorf("open %s: %d bytes, less than one block of %d: %w", r.path, size, r.block, ErrTooSmall)
	}
	return nil
}

func accessMode(o OpenOptions) int {
	if o.ReadOnly {
		return unix.O_RDONLY
	}
	// O_DSYNC as well, for where there is no pwritev2: see pwriteSync.
	return unix.O_RDWR | unix.O_DSYNC
}

// openDirect opens with O_DIRECT and makes sure that the kernel took it: a
// filesystem may drop the flag, and then writes would go through the page cache.
func openDirect(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	}
	if errors.Is(err, unix.EINVAL) {
		return -1, noDirectIO(path, -1)
	}
	if err != nil {
		return -1, err
	}
	if err := verifyDirect(path, fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func verifyDirect(path string, fd int) error {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("open %s: fcntl(F_GETFL): %w", path, err)
	}
	if got&unix.O_DIRECT == 0 {
		return noDirectIO(path, fd)
	}
	return nil
}

func noDirectIO(path string, fd int) error {
	var st unix.Statfs_t
	where := "its filesystem"
	if (fd >= 0 && unix.Fstatfs(fd, &st) == nil) || (fd < 0 && unix.Statfs(path, &st) == nil) {
		where = filesystemName(st.Type)
	}
	return fmt.Errorf("open %s: %w on %s; put it on ext4 or xfs, or use a block device", path, ErrNoDirectIO, where)
}

// openError adds path and a way out to an error of open, stat or fstat.
func openError(path string, err error) error {
	var errno unix.Errno
	hint := ""
	if errors.As(err, &errno) {
		switch errno {
		case unix.EACCES, unix.EPERM:
			hint = "; run as its owner, as root, or for a block device in the group that owns it (often `disk`)"
		case unix.ENXIO, unix.ENODEV:
			hint = "; the device is not attached"
		case unix.EROFS:
			return fmt.Errorf("open %s: %w (%w)", path, ErrReadOnly, errno)
		case unix.EBUSY:
			return errno
		}
		err = errno
	}
	if errors.Is(err, ErrNoDirectIO) {
		return err
	}
	return fmt.Errorf("open %s: %w%s", path, err, hint)
}

func kindOfMode(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeCharDevice != 0:
		return "character device"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeNamedPipe != 0:
		return "pipe"
	}
	return "special file"
}

func ioctlInt(fd int, request uint) (int32, error) {
	var v int32
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&v)))
	if errno != 0 {
		return 0, errno
	}
	return v, nil
}

func ioctlUint64(fd int, request uint) (uint64, error) {
	var v uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&v)))
	if errno != 0 {
		return 0, errno
	}
	return v, nil
}
