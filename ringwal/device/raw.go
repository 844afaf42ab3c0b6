package device

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// raw is a block device or a file behind one descriptor with O_DIRECT.
type raw struct {
	path     string
	fd       int
	size     int64
	block    int
	readOnly bool
	pwritev2 bool // the kernel has it
	isBlock  bool // a block device: no file system above it can be frozen, see aio

	// users counts the calls that hold fd, plus closing once Close was
	// called. The last one out closes fd: were it closed under a call, the
	// number could be given to another file, and the write would land there.
	users    atomic.Int64
	fdClosed atomic.Bool
}

// closing is far above any number of concurrent calls.
const closing = int64(1) << 40

func newRaw(path string, fd int, o OpenOptions) *raw {
	_, err := unix.Pwritev2(fd, nil, 0, unix.RWF_DSYNC) // of nothing
	return &raw{path: path, fd: fd, readOnly: o.ReadOnly, pwritev2: !errors.Is(err, unix.ENOSYS)}
}

func (r *raw) Path() string     { return r.path }
func (r *raw) SizeBytes() int64 { return r.size }
func (r *raw) BlockBytes() int  { return r.block }

func (r *raw) ReadAt(p []byte, offset int64) (int, error) {
	if err := CheckRange(r, OpRead, p, offset); err != nil {
		return 0, err
	}
	if !aligned(p, r.block) {
		return 0, &Error{Op: OpRead, Path: r.path, Offset: offset, Length: len(p), Err: errMemory}
	}
	if !r.enter() {
		return 0, &Error{Op: OpRead, Path: r.path, Offset: offset, Length: len(p), Err: ErrClosed}
	}
	n, err := r.pread(p, offset)
	r.leave()
	if err == nil && n != len(p) {
		err = ErrShort
	}
	if err != nil {
		return 0, &Error{Op: OpRead, Path: r.path, Offset: offset, Length: len(p), Done: n, Err: err}
	}
	return n, nil
}

func (r *raw) WriteSync(p []byte, offset int64) error {
	if err := r.checkWrite(p, offset); err != nil {
		return err
	}
	if !r.enter() {
		return &Error{Op: OpWrite, Path: r.path, Offset: offset, Length: len(p), Err: ErrClosed}
	}
	n, err := r.pwriteSync(p, offset)
	r.leave()
	return r.wrote(p, offset, n, err)
}

// checkWrite finds what the kernel need not be asked for.
func (r *raw) checkWrite(p []byte, offset int64) error {
	if err := CheckRange(r, OpWrite, p, offset); err != nil {
		return err
	}
	if r.readOnly {
		return &Error{Op: OpWrite, Path: r.path, Offset: offset, Length: len(p), Err: ErrReadOnly}
	}
	if !aligned(p, r.block) {
		return &Error{Op: OpWrite, Path: r.path, Offset: offset, Length: len(p), Err: errMemory}
	}
	return nil
}

// wrote is what a write comes to of which the kernel says that n bytes were written, or
// err.
func (r *raw) wrote(p []byte, offset int64, n int, err error) error {
	if err == nil && n != len(p) {
		// The rest is not tried: after a part of a write, what is on the
		// medium is unknown, and the kernel would have taken it all if it could.
		err = ErrShort
	}
	if err != nil {
		return &Error{Op: OpWrite, Path: r.path, Offset: offset, Length: len(p), Done: n, Err: err}
	}
	return nil
}

func (r *raw) Flush() error {
	if !r.enter() {
		return &Error{Op: OpFlush, Path: r.path, Err: ErrClosed}
	}
	err := unix.Fsync(r.fd)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fsync(r.fd)
	}
	r.leave()
	if err != nil {
		return &Error{Op: OpFlush, Path: r.path, Err: err}
	}
	return nil
}

func (r *raw) Close() error {
	for {
		users := r.users.Load()
		if users >= closing {
			return nil
		}
		if !r.users.CompareAndSwap(users, users+closing) {
			continue
		}
		if users > 0 {
			return nil
		}
		return r.closeFD()
	}
}

// enter holds fd open until leave; false after Close.
func (r *raw) enter() bool {
	if r.users.Add(1) >= closing {
		r.leave()
		return false
	}
	return true
}

func (r *raw) leave() {
	if r.users.Add(-1) == closing {
		// An error of close says nothing about the data: every write was
		// synced or failed on its own.
		_ = r.closeFD()
	}
}

func (r *raw) closeFD() error {
	if !r.fdClosed.CompareAndSwap(false, true) {
		return nil
	}
	return unix.Close(r.fd)
}

// pread and pwriteSync go again after EINTR only: it means that nothing was
// moved, because a signal came before the kernel began.

func (r *raw) pread(p []byte, offset int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Pread(r.fd, p, offset)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// pwriteSync asks for data sync with the write itself. Where the call is missing
// (an emulator, a sandbox) the descriptor's O_DSYNC does the same.
func (r *raw) pwriteSync(p []byte, offset int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		var n int
		var err error
		if r.pwritev2 {
			n, err = unix.Pwritev2(r.fd, [][]byte{p}, offset, unix.RWF_DSYNC)
		} else {
			n, err = unix.Pwrite(r.fd, p, offset)
		}
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}
