package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/wire"
)

// Door is the sidecar's end of a client's shared memory.
type Door struct {
	Consumer
	Completer
	Bell       *Bell
	submission Memory
	completion Memory
}

// Files are the descriptors that a client is handed: submission area, completion
// area, bell.
type Files [3]int

// Close closes the descriptors; the memory stays mapped.
func (f *Files) Close() {
	for _, fd := range f {
		if fd > 0 {
			_ = unix.Close(fd)
		}
	}
}

// NewDoor makes, maps and seals the memory of a client. Whoever gets the files can
// write the submission area alone, and change the size of neither.
func NewDoor(ringBytes int) (d *Door, files *Files, err error) {
	d, files = &Door{}, &Files{}
	defer func() {
		if err != nil {
			files.Close()
			d.Close()
		}
	}()
	if files[0], d.submission, err = makeArea("walsidecar-submission", SubmissionBytes(ringBytes), 0); err != nil {
		return d, files, err
	}
	if files[1], d.completion, err = makeArea("walsidecar-completion", CompletionBytes, unix.F_SEAL_FUTURE_WRITE); err != nil {
		return d, files, err
	}
	if d.Bell, err = NewBell(); err != nil {
		return d, files, err
	}
	if files[2], err = d.Bell.descriptor(); err != nil {
		return d, files, err
	}
	Format(d.submission, d.completion)
	d.Consumer, d.Completer = *NewConsumer(d.submission), *NewCompleter(d.submission, d.completion)
	return d, files, nil
}

// DoorBytes is the memory that a door takes: both areas and the books.
func DoorBytes(ringBytes int) int64 {
	return int64(SubmissionBytes(ringBytes)+CompletionBytes) + MaxRequests*8 + 16<<10
}

// makeArea makes a memfd whose pages are allocated, mapped writable here, and sealed.
func makeArea(name string, size, seals int) (fd int, m Memory, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3 do not know MFD_NOEXEC_SEAL
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return 0, nil, os.NewSyscallError("memfd_create", err)
	}
	if m, err = fillArea(fd, size, seals); err != nil {
		_ = unix.Close(fd)
		return 0, nil, fmt.Errorf("%s of %d bytes: %w", name, size, err)
	}
	return fd, m, nil
}

func fillArea(fd, size, seals int) (Memory, error) {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	// A page that cannot be had must fail here, and not as a fault on its first use.
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		return nil, os.NewSyscallError("fallocate", err)
	}
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|seals|unix.F_SEAL_SEAL); err != nil {
		_ = unix.Munmap(m)
		return nil, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return m, nil
}

// Publish publishes acks and wakes the client if it sleeps: one system call at most.
func (d *Door) Publish(extents []wire.AckExtent, durable uint64) {
	if d.Completer.Publish(extents, d.Consumer.Released(), durable) {
		wakeFutex(d.wake)
	}
}

// End tells the client with which code the session ended, and wakes it.
func (d *Door) End(code wire.Code) {
	d.Completer.End(code)
	wakeFutex(d.wake)
}

// Close unmaps the memory. Nobody may use the door any more. The pages of the ring
// are given back even where a client keeps the files.
func (d *Door) Close() {
	if d.Bell != nil {
		_ = d.Bell.Close()
	}
	if d.submission != nil {
		_ = unix.Madvise(d.submission, unix.MADV_REMOVE) // at worst the pages live as long as the client
		_ = unix.Munmap(d.submission)
	}
	if d.completion != nil {
		_ = unix.Munmap(d.completion)
	}
}

// Client is the client's end of its shared memory.
type Client struct {
	*Producer
	*Reaper
	bell        *Bell
	submission  Memory
	completion  Memory
	spinner     Spinner
	interrupted atomic.Bool
	lost        atomic.Uint32
}

// Attach maps the areas of a handover, whose descriptors it takes over, and compares
// them with what the sidecar said of them. peer is the sidecar's process, 0 where that is
// not known.
func Attach(info *wire.ShmInfo, files []int, waiting Waiting, peer int) (c *Client, err error) {
	defer func() {
		for i, fd := range files {
			if err != nil || i != 2 {
				_ = unix.Close(fd)
			}
		}
	}()
	if len(files) != len(Files{}) {
		return nil, fmt.Errorf("%w: %d files were handed over, not %d", ErrViolation, len(files), len(Files{}))
	}
	if info.Layout != Version || info.RingBytes > MaxRingBytes || info.RingBytes < MinRingBytes || info.CompletionBytes != CompletionBytes {
		return nil, fmt.Errorf("%w: layout %d with %d and %d bytes", ErrViolation, info.Layout, info.RingBytes, info.CompletionBytes)
	}
	c = &Client{spinner: NewSpinner(waiting, peer)}
	defer func() {
		if err != nil {
			c.unmap()
		}
	}()
	if c.submission, err = mapArea(files[0], SubmissionBytes(int(info.RingBytes)), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return c, err
	}
	if c.completion, err = mapArea(files[1], CompletionBytes, unix.PROT_READ); err != nil {
		return c, err
	}
	if c.Producer, err = NewProducer(c.submission); err != nil {
		return c, err
	}
	if c.Reaper, err = NewReaper(c.submission, c.completion); err != nil {
		return c, err
	}
	c.bell = openBell(files[2])
	return c, nil
}

// mapArea maps a file of exactly so many bytes, which cannot shrink.
func mapArea(fd, size, protection int) (Memory, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size != int64(size) {
		return nil, fmt.Errorf("%w: an area of %d bytes, not %d, or not sealed", ErrViolation, st.Size, size)
	}
	m, err := unix.Mmap(fd, 0, size, protection, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return m, nil
}

// Memory is all that the client can write.
func (c *Client) Memory() Memory { return c.submission }

// RingBell kicks the sidecar. Kick says when.
func (c *Client) RingBell() { c.bell.Ring() }

// Wait waits until there are acks to take, or Interrupt; false means interrupted. It is
// for a client with one goroutine.
func (c *Client) Wait() bool {
	for !c.Look() && !c.interrupted.Load() {
		word := c.Word()
		if c.Want(); !c.Any() {
			c.Doze(word, sleepAtMost)
		}
	}
	c.Unwant()
	return c.Any()
}

// Looks reports whether Look looks more than once.
func (c *Client) Looks() bool { return c.spinner.Looks() }

// Look looks for acks without sleeping, as long as the client's way of waiting says. It
// is for one goroutine at a time.
func (c *Client) Look() bool {
	return c.spinner.Look(func() bool { return c.Any() || c.interrupted.Load() }) && c.Any()
}

// Doze sleeps until a wake-up changes the futex word from word, but no longer than d.
func (c *Client) Doze(word uint32, d time.Duration) {
	wanted := c.wanted.Load()
	if late := waitFutex(c.wake, word, d); late && wanted&1 == 1 && d >= sleepAtMost && wanted == c.wanted.Load() && c.Any() && c.Word() == word {
		c.lost.Add(1)
	}
}

// LostWakeUps is how often acks that were to wake the client were found only because
// its sleep is bounded. The protocol makes it 0.
func (c *Client) LostWakeUps() int { return int(c.lost.Load()) }

// Interrupt ends a Doze, and every Wait from here on; it may have to be called again, as
// it can come just before the sleep.
func (c *Client) Interrupt() {
	c.interrupted.Store(true)
	wakeFutex(c.wake)
}

// Interrupted reports whether Interrupt was called.
func (c *Client) Interrupted() bool { return c.interrupted.Load() }

// Detach unmaps the areas. Nobody may use the client, or bytes of its ring, any more.
func (c *Client) Detach() {
	_ = c.bell.Close()
	c.unmap()
}

func (c *Client) unmap() {
	if c.submission != nil {
		_ = unix.Munmap(c.submission)
	}
	if c.completion != nil {
		_ = unix.Munmap(c.completion)
	}
}
