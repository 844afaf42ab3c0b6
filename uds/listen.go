// Package uds is the door on a Unix stream socket: it listens on a path, checks
// who connects, and moves bytes between a connection and its session.
package uds

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
)

var (
	// ErrInUse says that another process listens on the path or holds its lock.
	ErrInUse = errors.New("the socket is in use")

	// ErrPathTooLong says that the path does not fit MaxPathBytes.
	ErrPathTooLong = errors.New("the socket's path is too long")

	// ErrNotASocket says that something else than a socket has the path.
	ErrNotASocket = errors.New("not a socket")
)

const (
	// MaxPathBytes is the longest path of a Unix socket on Linux: 108 bytes
	// (sun_path in unix(7)) with the zero at its end.
	MaxPathBytes = 107

	// DefaultMode is the mode of the socket: connecting takes write permission.
	// Who may open a session is a question of its own, see Options.Access.
	DefaultMode fs.FileMode = 0o660

	// LockSuffix is added to the path for the name of the lock file. The lock file
	// stays when the listener is closed: removing it would let two hold it.
	LockSuffix = ".lock"

	// backlog is how many connections may wait to be accepted; beyond, connect(2)
	// fails with EAGAIN. The kernel bounds it by net.core.somaxconn.
	backlog = session.MaxSessions
)

// Listener is a bound, listening socket with its lock. Accept returns a
// *net.UnixConn.
type Listener struct {
	net.Listener
	path string
	lock *os.File
	stat unix.Stat_t // of the socket's inode, to recognise it
}

// NewListener makes the socket at path, for any door on a Unix socket. A socket that
// nobody listens on is replaced; one that somebody does is never touched. setting is
// what an error tells people to change (WALSIDECAR_SOCKET). The error wraps ErrInUse,
// ErrPathTooLong or ErrNotASocket where it is one of those.
func NewListener(path string, mode fs.FileMode, setting string) (*Listener, error) {
	if n := len(path); n > MaxPathBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, and a Unix socket's path has %d at most: set %s to a shorter one, or a relative one",
			ErrPathTooLong, path, n, MaxPathBytes, setting)
	}
	lock, err := lockFile(path+LockSuffix, setting)
	if err != nil {
		return nil, err
	}
	l, err := bind(path, mode, setting)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	l.lock = lock
	return l, nil
}

// lockFile takes the lock of a socket path for this process.
func lockFile(path, setting string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file of the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0)
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, fmt.Errorf("%w: process %s holds %s: stop that sidecar, or set %s to another path",
			ErrInUse, strings.TrimSpace(string(holder[:n])), path, setting)
	}
	// The number is for people; the lock alone counts.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// bind makes the socket. Its lock is held.
func bind(path string, mode fs.FileMode, setting string) (*Listener, error) {
	if err := clearPath(path, setting); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }()
	// bind(2) gives the inode the mode of the socket, less the umask: it is never
	// open to more than it shall be. What the umask took is given back before
	// listen(2), when nobody can connect yet.
	if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
		return nil, fmt.Errorf("mode of socket %s: %w", path, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("bind socket %s: %w", path, err)
	}
	l := &Listener{path: path}
	if err := l.listen(fd, file, mode); err != nil {
		_ = unix.Unlink(path)
		return nil, err
	}
	return l, nil
}

func (l *Listener) listen(fd int, file *os.File, mode fs.FileMode) (err error) {
	if err = unix.Chmod(l.path, uint32(mode.Perm())); err != nil {
		return fmt.Errorf("mode of socket %s: %w", l.path, err)
	}
	if err = unix.Lstat(l.path, &l.stat); err != nil {
		return fmt.Errorf("socket %s: %w", l.path, err)
	}
	if err = unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen on socket %s: %w", l.path, err)
	}
	if l.Listener, err = net.FileListener(file); err != nil {
		return fmt.Errorf("listen on socket %s: %w", l.path, err)
	}
	return nil
}

// clearPath removes a socket that nobody listens on.
func clearPath(path, setting string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("socket %s: %w", path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%w: %s exists and is something else: move it away, or set %s to another path", ErrNotASocket, path, setting)
	}
	err = probe(path)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		if err := unix.Unlink(path); err != nil {
			return fmt.Errorf("remove stale socket %s: %w", path, err)
		}
		return nil
	case err == nil || errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%w: somebody listens on %s: stop it, or set %s to another path", ErrInUse, path, setting)
	}
	return fmt.Errorf("%w: cannot tell whether somebody listens on %s: %w", ErrInUse, path, err)
}

// probe connects to the socket at path and hangs up.
func probe(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

// Stop closes the socket to new connections and removes it if it is still ours.
// The path stays locked until Unlock.
func (l *Listener) Stop() {
	_ = l.Close()
	var st unix.Stat_t
	if err := unix.Lstat(l.path, &st); err == nil && st.Ino == l.stat.Ino && st.Dev == l.stat.Dev {
		_ = unix.Unlink(l.path)
	}
}

// Unlock gives the path to others.
func (l *Listener) Unlock() { _ = l.lock.Close() }
