package uds

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// tryListen makes a socket and removes it at the end of the test.
func tryListen(t *testing.T, path string, mode fs.FileMode) (*Listener, error) {
	t.Helper()
	l, err := NewListener(path, mode, setting)
	if err == nil {
		t.Cleanup(func() { l.Stop(); l.Unlock() })
	}
	return l, err
}

// canConnect reports whether somebody listens on path.
func canConnect(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func TestSecondListenerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal.sock")
	if _, err := tryListen(t, path, DefaultMode); err != nil {
		t.Fatal(err)
	}
	_, err := tryListen(t, path, DefaultMode)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the second one got %v", err)
	}
	if !canConnect(path) {
		t.Error("the first listener was harmed")
	}
}

// A live socket of a program that knows nothing of the lock file is left alone.
func TestForeignLiveSocketIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal.sock")
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := tryListen(t, path, DefaultMode); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v", err)
	}
	if !canConnect(path) {
		t.Error("the other listener was harmed")
	}
	// The refused one holds no lock: it can try again.
	_ = other.Close()
	if _, err := tryListen(t, path, DefaultMode); err != nil {
		t.Errorf("after the other has gone: %v", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal("no stale socket to replace")
	}
	if _, err := tryListen(t, path, DefaultMode); err != nil || !canConnect(path) {
		t.Errorf("got %v, can connect %v", err, canConnect(path))
	}
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tryListen(t, path, DefaultMode); !errors.Is(err, ErrNotASocket) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file was touched")
	}
	link := filepath.Join(t.TempDir(), "link.sock")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := tryListen(t, link, DefaultMode); !errors.Is(err, ErrNotASocket) {
		t.Errorf("a symbolic link: %v", err)
	}
}

// 107 bytes of path are the most that fits; one more is refused with the limit.
func TestPathLimit(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	fits := filepath.Join(dir, strings.Repeat("s", MaxPathBytes-len(dir)-1))
	if len(fits) != 107 {
		t.Fatal(len(fits))
	}
	if _, err := tryListen(t, fits, DefaultMode); err != nil || !canConnect(fits) {
		t.Errorf("107 bytes: %v", err)
	}
	_, err = tryListen(t, fits+"s", DefaultMode)
	if !errors.Is(err, ErrPathTooLong) || !strings.Contains(err.Error(), "108 bytes") || !strings.Contains(err.Error(), "107") || !strings.Contains(err.Error(), "WALSIDECAR_SOCKET") {
		t.Errorf("108 bytes: %v", err)
	}
}

// The mode is the one that was asked for, whatever the umask.
func TestMode(t *testing.T) {
	for _, umask := range []int{0, 0o077, 0o777} {
		for _, mode := range []fs.FileMode{0o600, 0o660, 0o666} {
			path := filepath.Join(t.TempDir(), "wal.sock")
			old := syscall.Umask(umask)
			l, err := NewListener(path, mode, setting)
			syscall.Umask(old)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != mode {
				t.Errorf("umask %o: mode %o, want %o", umask, st.Mode().Perm(), mode)
			}
			l.Stop()
			l.Unlock()
		}
	}
}

// A socket that is no longer ours is not removed.
func TestStopLeavesTheSocketOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal.sock")
	l, err := NewListener(path, DefaultMode, setting)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	l.Stop()
	if !canConnect(path) {
		t.Error("the other's socket was removed")
	}
}

// No descriptor of the server goes to a child of the process.
func TestDescriptorsAreNotInherited(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	connect(t, s.Path())
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, entry := range fds {
		var fd uintptr
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if _, serr := fmt.Sscan(entry.Name(), &fd); serr != nil || err != nil {
			continue
		}
		if !strings.HasPrefix(target, "socket:") && !strings.HasSuffix(target, LockSuffix) || fd < 3 {
			continue
		}
		flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d (%s) is inherited by children", fd, target)
		}
		checked++
	}
	if checked < 4 { // listener, both ends of a connection, lock
		t.Errorf("only %d descriptors found", checked)
	}
}

func TestUnauthorised(t *testing.T) {
	s := start(t, testBudget, session.Times{}, func(o *Options) { o.Access = session.Access{UIDs: []uint32{4_000_000}, GIDs: []uint32{4_000_001}} })
	c := dial(t, s.Path())
	bye := c.goodbye()
	if bye.Code != wire.CodeUnauthorized || !strings.Contains(bye.Message, fmt.Sprintf("user %d", os.Getuid())) {
		t.Errorf("goodbye %s: %s", bye.Code, bye.Message)
	}
}

func TestOwnAccess(t *testing.T) {
	a, err := OwnAccess()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		peer session.Peer
		want bool
	}{
		"own user":   {session.Peer{UID: uint32(os.Geteuid()), GID: 4_000_000}, true},
		"own group":  {session.Peer{UID: 4_000_000, GID: uint32(os.Getegid())}, true},
		"root":       {session.Peer{UID: 0, GID: 4_000_000}, true},
		"a stranger": {session.Peer{UID: 4_000_000, GID: 4_000_000}, false},
	} {
		if got := a.Allows(c.peer); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// After Drain nobody comes in, and who is in goes on.
func TestDrain(t *testing.T) {
	s := start(t, testBudget, session.Times{}, nil)
	c := connect(t, s.Path())
	id := c.stream("orders")
	s.Drain()
	if canConnect(s.Path()) {
		t.Error("somebody came in")
	}
	if _, err := os.Lstat(s.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	c.appendTo(id, []byte("while draining"))
	if _, err := Listen(s.options); !errors.Is(err, ErrInUse) {
		t.Errorf("the path is free before Close: %v", err)
	}
	s.host.Goodbye(wire.CodeDraining, "the sidecar is shutting down")
	if bye := c.goodbye(); bye.Code != wire.CodeDraining {
		t.Errorf("goodbye %s", bye.Code)
	}
}
