package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fillBytes is the size of the writes that fill a new file.
const fillBytes = 4 << 20

// fileMode is the mode of a new file: a log holds what its clients wrote.
const fileMode = 0o600

// CreateFile makes a new file of sizeBytes zeros at path, mode 0600: space
// allocated, every byte written with direct I/O, file and directory synced, so
// that a later write finds no full filesystem and converts no extent. sizeBytes
// is a positive multiple of MinBlockBytes.
//
// An existing file is left alone (fs.ErrExist). On failure nothing stays behind,
// and where the filesystem has nameless files (O_TMPFILE: ext4, xfs, btrfs,
// tmpfs) the name appears only when all is done, even over a crash. Other errors:
// ErrNoSpace, ErrNoDirectIO, ErrSparse, or the operating system's own.
func CreateFile(path string, sizeBytes int64) error {
	if sizeBytes <= 0 || sizeBytes%MinBlockBytes != 0 {
		return fmt.Errorf("create %s: a size of %d bytes is not a positive multiple of %d", path, sizeBytes, MinBlockBytes)
	}
	// A symbolic link that leads nowhere counts as existing too.
	if _, err := os.Lstat(path); err == nil {
		return createError(path, unix.EEXIST)
	}
	err := createNameless(path, sizeBytes)
	if errors.Is(err, errNoNameless) {
		err = createNamed(path, sizeBytes)
	}
	if err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// errNoNameless says that the filesystem has no O_TMPFILE.
var errNoNameless = errors.New("no nameless files")

// createNameless fills a file that has no name yet, then names it.
func createNameless(path string, sizeBytes int64) error {
	dir := filepath.Dir(path)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, fileMode)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		// EINVAL may mean no O_DIRECT, ENOENT that the directory is missing:
		// the other way finds out which and says so.
		return errNoNameless
	case err != nil:
		return createError(path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := fill(path, fd, sizeBytes); err != nil {
		return err
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return errNoNameless // no /proc
	}
	if err != nil {
		return createError(path, err)
	}
	return nil
}

// createNamed fills a file under its name and removes it on failure. The lock
// keeps others away while it is not whole.
func createNamed(path string, sizeBytes int64) (err error) {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, fileMode)
	if errors.Is(err, unix.EINVAL) {
		// The kernel checks for direct I/O after it made the file.
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Size == 0 {
			_ = unix.Unlink(path)
		}
		return noDirectIO(filepath.Dir(path), -1)
	}
	if err != nil {
		return createError(path, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Unlink(path)
		}
		_ = unix.Close(fd)
	}()
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return createError(path, err)
	}
	return fill(path, fd, sizeBytes)
}

// fill allocates, writes and syncs, and makes sure that the space is there.
func fill(path string, fd int, sizeBytes int64) error {
	if err := verifyDirect(path, fd); err != nil {
		return err
	}
	if err := allocate(path, fd, sizeBytes); err != nil {
		return err
	}
	arena, err := NewArena(fillBytes)
	if err != nil {
		return err
	}
	defer func() { _ = arena.Free() }()
	for at := int64(0); at < sizeBytes; {
		n, err := unix.Pwrite(fd, arena.Bytes()[:min(fillBytes, sizeBytes-at)], at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = ErrShort
		}
		if err != nil {
			return createError(path, err)
		}
		at += int64(n)
	}
	if err := unix.Fsync(fd); err != nil {
		return createError(path, err)
	}
	return verifyAllocated(path, fd, sizeBytes)
}

// allocate asks for all the space at once, so that a full filesystem is found
// before anything was written.
func allocate(path string, fd int, sizeBytes int64) error {
	for {
		err := unix.Fallocate(fd, 0, 0, sizeBytes)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return nil // writing allocates too, only later
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("create %s: %d bytes: %w (%w)%s; free some, or make the log smaller",
				path, sizeBytes, ErrNoSpace, unix.ENOSPC, freeText(fd))
		}
		return createError(path, err)
	}
}

// verifyAllocated compares what the file occupies with its size: a filesystem
// that compresses or drops zeros keeps less.
func verifyAllocated(path string, fd int, sizeBytes int64) error {
	const statBlockBytes = 512 // st_blocks counts these on every Linux filesystem
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return createError(path, err)
	}
	if occupied := st.Blocks * statBlockBytes; occupied < sizeBytes {
		return fmt.Errorf("create %s: %w: its filesystem keeps %d of %d bytes, so that a write could find it full; use ext4, xfs or a block device",
			path, ErrSparse, occupied, sizeBytes)
	}
	return nil
}

func freeText(fd int) string {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return ""
	}
	return fmt.Sprintf(": the filesystem has %d bytes free", st.Bavail*uint64(st.Frsize))
}

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	return nil
}

// createError adds path, our word and a way out.
func createError(path string, err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		switch {
		case errno == unix.EEXIST:
			return fmt.Errorf("create %s: %w; name another file, or open this one", path, fs.ErrExist)
		case errors.Is(kindOf(errno), ErrNoSpace):
			return fmt.Errorf("create %s: %w (%w); free some, or make the log smaller", path, ErrNoSpace, errno)
		case errno == unix.ENOENT:
			return fmt.Errorf("create %s: %w; make the directory first", path, errno)
		}
	}
	return fmt.Errorf("create %s: %w", path, err)
}
