package device

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFileReadsBackWhatWasWritten(t *testing.T) {
	d := newFile(t, 4<<20)
	if d.SizeBytes() != 4<<20 || d.BlockBytes() != 4096 {
		t.Fatalf("size %d block %d", d.SizeBytes(), d.BlockBytes())
	}
	want := patterned(t, 64<<10, 7)
	if err := d.WriteSync(want, 4<<20-64<<10); err != nil { // up to the very end
		t.Fatal(err)
	}
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	got := buffer(t, 64<<10)
	if n, err := d.ReadAt(got, 4<<20-64<<10); n != len(got) || err != nil {
		t.Fatalf("read %d, %v", n, err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("other bytes came back")
	}
}

func TestDirectIOIsOn(t *testing.T) {
	r := newFile(t, 1<<20).(*raw)
	flags, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	if flags&unix.O_DIRECT == 0 || flags&unix.O_DSYNC == 0 {
		t.Fatalf("flags %#x: want O_DIRECT and O_DSYNC", flags)
	}
	if flags, err = unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Fatalf("descriptor flags %#x (%v): a child would inherit the claim", flags, err)
	}
}

func TestEveryMisalignmentIsRefusedBeforeTheKernel(t *testing.T) {
	d := newFile(t, 1<<20)
	b := buffer(t, 16<<10)
	tests := map[string]struct {
		p      []byte
		offset int64
		want   error
	}{
		"offset of a sector":  {b[:4096], 512, ErrNotAligned},
		"offset of one byte":  {b[:4096], 1, ErrNotAligned},
		"length of a sector":  {b[:512], 0, ErrNotAligned},
		"length one short":    {b[:4095], 0, ErrNotAligned},
		"memory by a sector":  {b[512 : 512+4096], 0, ErrNotAligned},
		"memory by one byte":  {b[1 : 1+4096], 0, ErrNotAligned},
		"negative offset":     {b[:4096], -4096, ErrOutOfRange},
		"at the end":          {b[:4096], 1 << 20, ErrOutOfRange},
		"over the end":        {b[:8192], 1<<20 - 4096, ErrOutOfRange},
		"far beyond":          {b[:4096], 1<<63 - 4096, ErrOutOfRange},
		"a very large offset": {b[:8192], 1<<63 - 4096, ErrOutOfRange},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := d.ReadAt(tt.p, tt.offset)
			wantError(t, err, tt.want, d.Path(), "read of")
			wantError(t, err, ErrRead)
			err = d.WriteSync(tt.p, tt.offset)
			wantError(t, err, tt.want, d.Path(), "write of")
			wantError(t, err, ErrWrite)
		})
	}
	if n, err := d.ReadAt(nil, 0); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}
	if err := d.WriteSync(nil, 1<<20); err != nil {
		t.Errorf("writing nothing at the end: %v", err)
	}
}

func TestSizeIsWholeBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal")
	if err := os.WriteFile(path, make([]byte, 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := mustOpen(t, path, OpenOptions{}); d.SizeBytes() != 8192 {
		t.Fatalf("size %d of a file of 10000 bytes, want 8192", d.SizeBytes())
	}
	if err := os.Truncate(path, 4095); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path, OpenOptions{})
	wantError(t, err, ErrTooSmall, path, "4095 bytes")
}

func TestOpenRefusesWhatIsNoDevice(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir, OpenOptions{})
	wantError(t, err, ErrNotADevice, dir, "directory")
	_, err = Open("/dev/null", OpenOptions{})
	wantError(t, err, ErrNotADevice, "/dev/null", "character device")
	fifo := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(fifo, OpenOptions{}) // must not wait for a writer
	wantError(t, err, ErrNotADevice, fifo, "pipe")
	missing := filepath.Join(dir, "missing")
	_, err = Open(missing, OpenOptions{})
	wantError(t, err, fs.ErrNotExist, missing)
	_, err = Open(missing, OpenOptions{ReadOnly: true, Exclusive: true})
	if err == nil || !strings.Contains(err.Error(), "one or the other") {
		t.Fatalf("read-only and exclusive: %v", err)
	}
}

func TestOpenWithoutPermissionSaysWhatToDo(t *testing.T) {
	err := openError("/dev/nvme1n1", unix.EACCES)
	wantError(t, err, unix.EACCES, "/dev/nvme1n1", "`disk`")
}

func TestSecondOpenerOfAFileIsRefused(t *testing.T) {
	d := newFile(t, 1<<20)
	_, err := Open(d.Path(), OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, d.Path(), "open in process", "name another device")

	// A symbolic link is the same file.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(d.Path(), link); err != nil {
		t.Fatal(err)
	}
	_, err = Open(link, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse, link)

	// The first is unharmed, and once it is gone the next may.
	if err := d.WriteSync(patterned(t, 4096, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, d.Path(), OpenOptions{Exclusive: true})
}

func TestOpenWaitsForABusyDevice(t *testing.T) {
	d := newFile(t, 1<<20)
	go func() {
		time.Sleep(150 * time.Millisecond)
		_ = d.Close()
	}()
	mustOpen(t, d.Path(), OpenOptions{Exclusive: true, BusyFor: 10 * time.Second})

	start := time.Now()
	_, err := Open(d.Path(), OpenOptions{Exclusive: true, BusyFor: 100 * time.Millisecond})
	wantError(t, err, ErrInUse)
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Fatalf("gave up after %v, want 100 ms", took)
	}
}

func TestReadOnlyReadsALiveDevice(t *testing.T) {
	d := newFile(t, 1<<20)
	want := patterned(t, 8192, 3)
	if err := d.WriteSync(want, 8192); err != nil {
		t.Fatal(err)
	}
	inspect := mustOpen(t, d.Path(), OpenOptions{ReadOnly: true})
	got := buffer(t, 8192)
	if _, err := inspect.ReadAt(got, 8192); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read-only read: %v", err)
	}
	wantError(t, inspect.WriteSync(want, 0), ErrReadOnly, d.Path())
	if err := inspect.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteSync(want, 0); err != nil {
		t.Fatalf("the owner was disturbed: %v", err)
	}
}

func TestClosedDeviceFailsAndStaysClosed(t *testing.T) {
	d := newFile(t, 1<<20)
	b := buffer(t, 4096)
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.ReadAt(b, 0)
	wantError(t, err, ErrClosed, d.Path())
	wantError(t, d.WriteSync(b, 0), ErrClosed)
	wantError(t, d.Flush(), ErrClosed)
}

// A descriptor that was closed under a write would be given to the next file
// that is opened, and the write would land in it.
func TestCloseUnderIOKeepsTheDescriptorUntilItReturned(t *testing.T) {
	r := newFile(t, 1<<20).(*raw)
	if !r.enter() {
		t.Fatal("not open")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(r.path, OpenOptions{Exclusive: true})
	wantError(t, err, ErrInUse) // the claim is still held
	if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil {
		t.Fatalf("the descriptor is gone: %v", err)
	}
	if r.enter() {
		t.Fatal("a new call was let in after Close")
	}
	if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil {
		t.Fatalf("a refused call closed the descriptor: %v", err)
	}
	r.leave()
	mustOpen(t, r.path, OpenOptions{Exclusive: true})
}

func TestShortReadNamesThePlace(t *testing.T) {
	d := newFile(t, 1<<20)
	if err := os.Truncate(d.Path(), 512<<10+4096); err != nil { // behind our back
		t.Fatal(err)
	}
	_, err := d.ReadAt(buffer(t, 8192), 512<<10)
	wantError(t, err, ErrRead, d.Path(), "8192 bytes at offset 524288", "4096 of 8192")
	wantError(t, err, ErrShort)
	_, err = d.ReadAt(buffer(t, 8192), 768<<10)
	wantError(t, err, ErrShort, "0 of 8192")
}

func TestFileReplacedWhileItIsOpenedIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal")
	if err := CreateFile(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	fd, err := openDirect(path, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := CreateFile(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	wantError(t, claimFile(path, fd), ErrInUse, "replaced")
}

func TestReadsAndWritesAllocateNothing(t *testing.T) {
	d := newFile(t, 1<<20)
	b := buffer(t, 4096)
	var failed error
	if n := testing.AllocsPerRun(50, func() { failed = errors.Join(failed, d.WriteSync(b, 4096)) }); n != 0 {
		t.Errorf("a write allocates %v times", n)
	}
	if n := testing.AllocsPerRun(50, func() {
		if _, err := d.ReadAt(b, 4096); err != nil {
			failed = err
		}
	}); n != 0 {
		t.Errorf("a read allocates %v times", n)
	}
	if n := testing.AllocsPerRun(50, func() { NowNS() }); n != 0 {
		t.Errorf("the clock allocates %v times", n)
	}
	if failed != nil {
		t.Fatal(failed)
	}
}
