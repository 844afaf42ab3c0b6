package device

import (
	"errors"
	"fmt"
	"syscall"
)

// What can go wrong. Match with errors.Is; one error may match several, such as
// ErrWrite and ErrNoSpace and syscall.ENOSPC.
var (
	// ErrRead, ErrWrite and ErrFlush tell which operation failed.
	ErrRead  = errors.New("read failed")
	ErrWrite = errors.New("write failed")
	ErrFlush = errors.New("flush failed")

	// ErrIO is the device's own failure: EIO and the errors the kernel gives
	// for a medium, a transport or a target that failed, or a device that went.
	ErrIO = errors.New("the device failed")

	// ErrNoSpace is ENOSPC or EDQUOT: the filesystem, a thin volume or a quota is full.
	ErrNoSpace = errors.New("no space left")

	// ErrReservationConflict is EBADE: another host holds the device's
	// reservation and this one may not write.
	ErrReservationConflict = errors.New("reservation conflict")

	// ErrReadOnly is a write to a device that was opened, or is, read-only.
	ErrReadOnly = errors.New("read-only")

	// ErrShort is a read or write that moved fewer bytes than asked, without
	// an error of the operating system.
	ErrShort = errors.New("short transfer")

	// ErrNotAligned is an offset, length or buffer address that is not a
	// multiple of BlockBytes.
	ErrNotAligned = errors.New("not aligned")

	// ErrOutOfRange is a range that is not inside the device.
	ErrOutOfRange = errors.New("outside the device")

	// ErrClosed is a call after Close.
	ErrClosed = errors.New("device is closed")

	// ErrInUse is a device or file that another process, a mount or a stacked
	// device holds.
	ErrInUse = errors.New("in use")

	// ErrNotADevice is a path that is neither a block device nor a regular file.
	ErrNotADevice = errors.New("neither a block device nor a regular file")

	// ErrNoDirectIO is a file on a filesystem without direct I/O.
	ErrNoDirectIO = errors.New("no direct I/O")

	// ErrTooSmall is a device or file smaller than one block.
	ErrTooSmall = errors.New("too small")

	// ErrSparse is a new file whose filesystem does not keep the space that was
	// written: later writes could find it full.
	ErrSparse = errors.New("space is not allocated")
)

// Op names an operation on a device.
type Op uint8

// The operations that an Error can be about.
const (
	OpRead Op = iota + 1
	OpWrite
	OpFlush
)

// String is "read", "write" or "flush".
func (o Op) String() string {
	switch o {
	case OpRead:
		return "read"
	case OpWrite:
		return "write"
	case OpFlush:
		return "flush"
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Error is a failed operation: where, how far it came, and why.
type Error struct {
	Op     Op
	Path   string
	Offset int64 // bytes
	Length int   // bytes asked
	Done   int   // bytes moved, where the kernel told; 0 else
	Err    error // a syscall.Errno or a sentinel of this package
}

// Error gives path, range and cause in one line.
func (e *Error) Error() string {
	if e.Op == OpFlush {
		return fmt.Sprintf("%s: flush: %s", e.Path, e.cause())
	}
	text := fmt.Sprintf("%s: %s of %d bytes at offset %d: %s", e.Path, e.Op, e.Length, e.Offset, e.cause())
	if errors.Is(e.Err, ErrShort) {
		text += fmt.Sprintf(" (%d of %d bytes)", e.Done, e.Length)
	}
	return text
}

// cause names the errno and, where it has one, our word for it.
func (e *Error) cause() string {
	var errno syscall.Errno
	if !errors.As(e.Err, &errno) {
		return e.Err.Error()
	}
	if errno == syscall.EREMOTEIO {
		return "the target refused (EREMOTEIO); some targets answer a reservation conflict so: another host may hold the device"
	}
	if kind := kindOf(errno); kind != nil {
		return fmt.Sprintf("%s (%s)", kind, errno)
	}
	return errno.Error()
}

// Unwrap makes errors.Is match the operation, the kind and the errno.
func (e *Error) Unwrap() []error {
	out := make([]error, 0, 3)
	switch e.Op {
	case OpRead:
		out = append(out, ErrRead)
	case OpWrite:
		out = append(out, ErrWrite)
	case OpFlush:
		out = append(out, ErrFlush)
	}
	var errno syscall.Errno
	if errors.As(e.Err, &errno) {
		if kind := kindOf(errno); kind != nil {
			out = append(out, kind)
		}
	}
	return append(out, e.Err)
}

// kindOf is the sentinel for an errno of a read, write or flush; nil when there
// is none. The list is the kernel's blk_errors table (block/blk-core.c), plus
// what files add.
func kindOf(errno syscall.Errno) error {
	switch errno {
	case syscall.EIO, syscall.EREMOTEIO, syscall.ENODATA, syscall.ENOLINK, syscall.ETIMEDOUT,
		syscall.EILSEQ, syscall.ENODEV, syscall.ENXIO, syscall.ESTALE:
		return ErrIO
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return ErrNoSpace
	case syscall.EBADE:
		return ErrReservationConflict
	case syscall.EROFS, syscall.EPERM:
		return ErrReadOnly
	}
	return nil
}
