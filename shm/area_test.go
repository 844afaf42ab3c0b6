package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/wire"
)

// open makes a door and attaches a client to it in this process.
func open(t testing.TB, ringBytes int, waiting Waiting) (*Door, *Client) {
	t.Helper()
	d, files, err := NewDoor(ringBytes)
	must(t, err)
	c, err := Attach(infoOf(ringBytes), files[:], waiting, 0)
	must(t, err)
	t.Cleanup(func() { c.Detach(); d.Close() })
	return d, c
}

func infoOf(ringBytes int) *wire.ShmInfo {
	return &wire.ShmInfo{Layout: Version, RingBytes: uint64(ringBytes), CompletionBytes: CompletionBytes,
		MaxMessageBytes: uint32(MaxMessageBytes(ringBytes)), MaxRequests: MaxRequests}
}

func TestWordsLieApart(t *testing.T) {
	for _, words := range [][]int{{offTail, offAckWanted}, {offReleased, offDurable, offState, offSleep, offAcks, offWake, offWakeAt}} {
		last := 0
		for _, off := range words {
			if off-last < 128 || off%128 != 0 || off+8 > headBytes {
				t.Errorf("word at %d after %d", off, last)
			}
			last = off
		}
	}
}

func TestWhatAClientHoldsCannotHurt(t *testing.T) {
	d, files, err := NewDoor(MinRingBytes)
	must(t, err)
	defer d.Close()
	defer files.Close()
	size := [2]int64{int64(SubmissionBytes(MinRingBytes)), CompletionBytes}
	for i, name := range []string{"submission", "completion"} {
		if err := unix.Ftruncate(files[i], 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: shrinking: %v", name, err)
		}
		if err := unix.Ftruncate(files[i], size[i]*2); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: growing: %v", name, err)
		}
		if _, err := unix.FcntlInt(uintptr(files[i]), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: another seal: %v", name, err)
		}
	}
	if _, err := unix.Mmap(files[1], 0, CompletionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("a writable map of the completion area: %v", err)
	}
	if _, err := unix.Pwrite(files[1], []byte{1}, 128); !errors.Is(err, unix.EPERM) {
		t.Errorf("pwrite to the completion area: %v", err)
	}
	if err := unix.Fallocate(files[1], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, CompletionBytes); !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole in the completion area: %v", err)
	}
	// A hole in the ring makes zeros, and a ring of zeros is a violation, not a fault.
	must(t, unix.Fallocate(files[0], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size[0]))
	d.submission.u64(offTail).Store(64)
	_, err = d.Load()
	must(t, err)
	if _, _, _, err := d.Next(); !errors.Is(err, ErrViolation) {
		t.Errorf("a message of zeros: %v", err)
	}
}

// The bell is one open file in two processes. Whatever a client does to it, every ring
// is heard, and a closed bell is left.
func TestTheBellDoesNotBlock(t *testing.T) {
	b, err := NewBell()
	must(t, err)
	fd, err := b.descriptor()
	must(t, err)
	defer unix.Close(fd)
	heard, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		b.Listen(func() { heard <- struct{}{} })
	}()
	must1 := func(what string) {
		select {
		case <-heard:
		case <-time.After(10 * time.Second):
			t.Fatal("not heard: " + what)
		}
	}
	must1("the beginning")
	must(t, unix.SetNonblock(fd, false))
	for range 3 {
		_, err = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		must(t, err)
		must1("a ring")
	}
	_, err = unix.Read(fd, make([]byte, 8))
	must(t, err)
	_, err = unix.Write(fd, []byte{0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF})
	must(t, err)
	must1("as much as it holds")
	must(t, b.Close())
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("Listen goes on although the bell is closed")
	}
}

func TestAttachRefusesWhatDoesNotAgree(t *testing.T) {
	for name, change := range map[string]func(*wire.ShmInfo){
		"another layout":       func(m *wire.ShmInfo) { m.Layout = 2 },
		"a larger ring":        func(m *wire.ShmInfo) { m.RingBytes *= 2 },
		"a ring of 0":          func(m *wire.ShmInfo) { m.RingBytes = 0 },
		"a ring without end":   func(m *wire.ShmInfo) { m.RingBytes = 1 << 63 },
		"a smaller completion": func(m *wire.ShmInfo) { m.CompletionBytes -= 4096 },
	} {
		d, files, err := NewDoor(MinRingBytes)
		must(t, err)
		info := infoOf(MinRingBytes)
		change(info)
		if _, err := Attach(info, files[:], Adaptive, 0); !errors.Is(err, ErrViolation) {
			t.Errorf("%s: %v", name, err)
		}
		d.Close()
	}
}

func TestNoDescriptorOrMappingIsLeft(t *testing.T) {
	count := func() (n int) {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		maps, err := os.ReadFile("/proc/self/maps")
		must(t, err)
		for _, c := range maps {
			if c == '\n' {
				n++
			}
		}
		return n + len(all)
	}
	cycle := func() {
		d, files, err := NewDoor(MinRingBytes)
		must(t, err)
		c, err := Attach(infoOf(MinRingBytes), files[:], Adaptive, 0)
		must(t, err)
		c.Detach()
		d.Close()
	}
	cycle()
	before := count()
	for range 50 {
		cycle()
	}
	if after := count(); after > before+20 { // the runtime maps memory too
		t.Errorf("%d descriptors and mappings before, %d after 50 doors", before, after)
	}
}

func TestInterruptEndsAWaitOnTheReadOnlyMap(t *testing.T) {
	_, c := open(t, MinRingBytes, Block)
	ended := make(chan bool)
	go func() { ended <- c.Wait() }()
	time.Sleep(20 * time.Millisecond)
	began := time.Now()
	c.Interrupt()
	if <-ended {
		t.Error("there are acks")
	}
	if d := time.Since(began); d > sleepAtMost/2 {
		t.Errorf("the wait went on for %v", d)
	}
}

// The layout in docs/protocol.md is that of the code.
func TestLayoutInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	must(t, err)
	text := strings.ReplaceAll(string(page), ",", "")
	for _, row := range []string{
		fmt.Sprintf("| %d | 8 | *tail*", offTail), fmt.Sprintf("| %d | 4 | *ack wanted*", offAckWanted),
		fmt.Sprintf("| %d | 8 | *released*", offReleased), fmt.Sprintf("| %d | 8 | *durable*", offDurable),
		fmt.Sprintf("| %d | 4 | *state*", offState), fmt.Sprintf("| %d | 4 | *sleep*", offSleep),
		fmt.Sprintf("| %d | 8 | *acks*", offAcks), fmt.Sprintf("| %d | 4 | *wake*", offWake),
		fmt.Sprintf("| %d | 8 | *wake at*", offWakeAt),
		fmt.Sprintf("| %d | ring bytes | the ring", headBytes), fmt.Sprintf("| %d | %d × %d | acks", headBytes, QueueEntries, entryBytes),
		fmt.Sprintf("| ring in shared memory | %d to %d bytes |", MinRingBytes, MaxRingBytes),
		fmt.Sprintf("| ring by default | %d bytes |", DefaultRingBytes),
		fmt.Sprintf("| unanswered requests of a ring | %d |", MaxRequests),
		fmt.Sprintf("its %d bytes live", CompletionBytes),
	} {
		if !strings.Contains(text, row) {
			t.Errorf("docs/protocol.md does not have %q", row)
		}
	}
}
