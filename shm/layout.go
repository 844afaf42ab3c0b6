// Package shm is the shared-memory door: the layout of the memory that a client and
// the sidecar share, both ends of it, and how each wakes the other.
//
// A client process has one submission area, which it writes, and one completion
// area, which it can only read. The submission area has a ring of messages of
// package wire; the completion area has the acks. Both are memfds that the sidecar
// makes and hands over through the session's Unix socket. docs/protocol.md has the
// layout, the argument about memory order, and what each side checks.
//
// There is one producer and one consumer of everything, and no lock: whatever
// instant either side dies at, the other has nothing to repair. The sidecar trusts
// nothing in the submission area: a [Consumer] reads every word once, checks its
// copy, and returns [ErrViolation] for what the protocol does not allow.
//
// The rings work on any memory, so that tests run them on the heap under the race
// detector, which does not see mapped memory.
package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/walsidecar/walsidecar/wire"
)

// ErrViolation says that the other side broke the protocol of the shared memory.
var ErrViolation = errors.New("shared memory: protocol violated")

// Limits and sizes.
const (
	// MinRingBytes and MaxRingBytes bound the ring that a client may ask for.
	MinRingBytes = 64 << 10
	MaxRingBytes = 16 << 20

	// DefaultRingBytes is the ring of a client that asks for 0: its quarter holds
	// the largest single record.
	DefaultRingBytes = 4 << 20

	// QueueEntries is how many acks the completion area holds: one for each request
	// that may be unanswered, so that it cannot overflow.
	QueueEntries = MaxRequests

	// MaxRequests is how many messages of a ring may be unanswered. A client that
	// publishes more violates the protocol.
	MaxRequests = 8192

	// FirstRequest is the request id of the first message of a ring; each next one
	// has the id that follows. Ids below it are those of the socket.
	FirstRequest uint64 = 1<<63 + 1

	// headBytes is the size of the part of an area that has its words.
	headBytes = 4096

	// entryBytes is the size of an ack in the completion area.
	entryBytes = 64
)

// Offsets of the words, each on 128 bytes of its own: two cache lines, as a
// processor may fetch lines in pairs.
const (
	offMagic = 0 // u64, then version u16, 0 u16, head bytes u32, data bytes u64

	offTail      = 128 // submission: u64, end of what is published
	offAckWanted = 256 // submission: u32, generation; odd while the client sleeps

	offReleased = 128 // completion: u64, end of what has its outcome
	offDurable  = 256 // completion: u64, highest log position acked to this client
	offState    = 384 // completion: u32, code of the goodbye; 0 while the session lives
	offSleep    = 512 // completion: u32, generation; odd while the sidecar sleeps
	offAcks     = 640 // completion: u64, number of acks published
	offWake     = 768 // completion: u32, the futex that the client sleeps on
	offWakeAt   = 896 // completion: u64, the tail from which on the sleeping sidecar is to be kicked
)

// Magic numbers of the areas: the bytes "WALSDSUB" and "WALSDCPL".
const (
	magicSubmission uint64 = 0x42555344534C4157
	magicCompletion uint64 = 0x4C504344534C4157
)

// Version of the layout.
const Version uint16 = 1

// RingBytesFor returns the size of the ring for a client that asks for so many
// bytes: a power of two within the limits, DefaultRingBytes for 0.
func RingBytesFor(asked uint64) int {
	if asked == 0 {
		return DefaultRingBytes
	}
	n := MinRingBytes
	for n < MaxRingBytes && uint64(n) < asked {
		n *= 2
	}
	return n
}

// MaxMessageBytes is the largest message of a ring of so many bytes, header
// included: a quarter, so that a message always fits once the ring is empty.
func MaxMessageBytes(ringBytes int) int { return min(ringBytes/4, wire.MaxMessageBytes) }

// SubmissionBytes is the size of a submission area with a ring of so many bytes.
func SubmissionBytes(ringBytes int) int { return headBytes + ringBytes }

// CompletionBytes is the size of a completion area.
const CompletionBytes = headBytes + QueueEntries*entryBytes

// Memory is a submission or completion area. It must be aligned to 8 bytes.
type Memory []byte

// u64 returns the word at an offset.
func (m Memory) u64(off int) *atomic.Uint64 { return (*atomic.Uint64)(m.pointer(off, 8)) }

func (m Memory) u32(off int) *atomic.Uint32 { return (*atomic.Uint32)(m.pointer(off, 4)) }

// pointer checks bounds and alignment: an unaligned atomic is silently wrong on
// some machines.
func (m Memory) pointer(off, size int) unsafe.Pointer {
	p := unsafe.Pointer(&m[off : off+size][0])
	if uintptr(p)%uintptr(size) != 0 {
		panic(fmt.Sprintf("shm: the word at %d is not aligned", off))
	}
	return p
}

// format writes the head of an area.
func (m Memory) format(magic uint64, dataBytes int) {
	binary.LittleEndian.PutUint64(m[offMagic:], magic)
	binary.LittleEndian.PutUint16(m[8:], Version)
	binary.LittleEndian.PutUint32(m[12:], headBytes)
	binary.LittleEndian.PutUint64(m[16:], uint64(dataBytes))
}

// check compares the head of an area with what it must be.
func (m Memory) check(magic uint64, dataBytes int) error {
	switch {
	case len(m) != headBytes+dataBytes:
		return fmt.Errorf("%w: an area has %d bytes, not %d", ErrViolation, len(m), headBytes+dataBytes)
	case binary.LittleEndian.Uint64(m[offMagic:]) != magic:
		return fmt.Errorf("%w: bad magic number", ErrViolation)
	case binary.LittleEndian.Uint16(m[8:]) != Version:
		return fmt.Errorf("%w: layout version %d, this program knows %d", ErrViolation, binary.LittleEndian.Uint16(m[8:]), Version)
	case binary.LittleEndian.Uint32(m[12:]) != headBytes || binary.LittleEndian.Uint64(m[16:]) != uint64(dataBytes):
		return fmt.Errorf("%w: the head of an area does not agree with the handshake", ErrViolation)
	}
	return nil
}

// Format writes the heads of both areas, which are zero otherwise.
func Format(submission, completion Memory) {
	submission.format(magicSubmission, len(submission)-headBytes)
	completion.format(magicCompletion, len(completion)-headBytes)
}

// NewHeap returns both areas on the heap, formatted.
func NewHeap(ringBytes int) (submission, completion Memory) {
	submission, completion = heap(SubmissionBytes(ringBytes)), heap(CompletionBytes)
	Format(submission, completion)
	return submission, completion
}

// heap returns memory that is aligned as a page's words are.
func heap(n int) Memory {
	words := make([]uint64, n/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}
