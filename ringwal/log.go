package ringwal

import "time"

// Epoch is what a start draws before it calls Start.
type Epoch struct {
	Number      uint64 // 1 + the highest epoch of superblocks, frames and manifest
	Incarnation [16]byte
	BootID      [16]byte
	FenceKey    uint64
	Jump        bool          // writes of a former owner may still land: start one window further on
	StallAfter  time.Duration // L; 0 keeps the superblock's
}

// FrameBuffers lends the memory that frames are built in and written from.
type FrameBuffers interface {
	// Acquire lends n bytes, aligned to the block, for the frame at position; nil
	// when none are free now. Positions ascend. The bytes may hold anything.
	Acquire(position uint64, n int) []byte

	// Shrink says that the frame at position needs only the first used bytes.
	Shrink(position uint64, used int)
}

// Frame is a frame of the write path. Its owner between Next and Release is the
// caller, who changes nothing but Owner.
type Frame struct {
	FrameHeader
	Buf    []byte // what to write; of a pad only its first block
	Offset int64  // where on the device
	Owner  any    // the caller's; nil after Release

	ClosedNS    int64 // when it was closed; IssuedNS when Reserve closed it
	IssuedNS    int64 // Next
	CompletedNS int64 // Complete

	state frameState
}

type frameState uint8

// StallState is how long the oldest write has been on its way.
type StallState uint8

// The states of CheckStall.
const (
	StallNone     StallState = iota
	StallDegraded            // longer than a tenth of L: alarm, nothing else
	StallFatal               // L reached: the log has stopped with ErrStalled
)

// DegradedShare is the part of L after which a write counts as degraded: L / 10.
const DegradedShare = 10

// Log is a started log. It has one owner; no method may be called concurrently.
// Times are CLOCK_BOOTTIME nanoseconds, handed in.
type Log struct{}

// Start prepares an epoch on a recovered log: a new superblock with its boundary,
// to be written by the caller (NextSuperblock) before the first frame. It writes
// nothing. Errors: ErrFull (no room for a jump and a checkpoint: trim first),
// ErrTooManyBoundaries, ErrFormat (features under which the log is read-only).
func Start(sbs *Superblocks, r *Recovery, e Epoch, b FrameBuffers) (*Log, error) { panic("skeleton") }

// Reserve takes n bytes (1..MaxItemBytes) of the open frame for one item that
// holds records records, and returns them with the item's position. The caller
// fills all of dst before the next call. It closes frames and pads the ring's end
// as needed. Errors: ErrFull, ErrWait, ErrTooLarge, or the sticky one.
func (l *Log) Reserve(c Class, n, records int) (dst []byte, position uint64, err error) {
	panic("skeleton")
}

// CloseFrame ends the open frame, so that Next returns it. It does nothing when
// none is open.
func (l *Log) CloseFrame(nowNS int64) {}

// OpenBytes is the length that the open frame would be written with, 0 when none
// is open.
func (l *Log) OpenBytes() int { return 0 }

// QueuedBytes is the length of the closed frames that Next has not returned yet.
func (l *Log) QueuedBytes() int { return 0 }

// InFlight is the number of frames that Next returned and Complete has not seen.
func (l *Log) InFlight() int { return 0 }

// Next returns the next frame to write, in log order, nil when there is none. The
// caller submits it right away: its time in flight counts from nowNS.
func (l *Log) Next(nowNS int64) *Frame { return nil }

// Complete reports the end of a frame's write, in any order, and returns the
// durable position, which moves over completed frames without a gap. An error,
// or a completion seen L or more after Next, stops the log for good.
func (l *Log) Complete(f *Frame, err error, nowNS int64) (durable uint64) { return 0 }

// PopDurable returns the next frame that became durable, in log order, nil when
// there is none. The caller gives it back with Release.
func (l *Log) PopDurable() *Frame { return nil }

// Release gives back a frame that PopDurable returned.
func (l *Log) Release(f *Frame) {}

// Seal queues a seal frame if anything but seals was written since the last
// proof, and nothing is open, queued or in flight. It reports whether it did.
func (l *Log) Seal(nowNS int64) bool { return false }

// Checkpoint writes state as the next frames of the log; items wait until its last
// part is queued. The log reads state until CheckpointUnderWay is false. Errors:
// ErrTooLarge, ErrFull, ErrWait (one is under way, the superblock is not in
// force), or the sticky one.
func (l *Log) Checkpoint(state []byte) error { return nil }

// CheckpointUnderWay reports whether parts of a checkpoint are still to be queued.
func (l *Log) CheckpointUnderWay() bool { return false }

// NewestCheckpoint is the newest complete durable checkpoint, false when there is
// none.
func (l *Log) NewestCheckpoint() (CheckpointMark, bool) { return CheckpointMark{}, false }

// SetTrim asks for a superblock with the trim position p, the start of a frame at
// or below the newest checkpoint's start, and prevSum, which that frame carries.
// Room grows only when the superblock is in force. A position at or below the
// current one does nothing. Errors: ErrTrim, or the sticky one.
func (l *Log) SetTrim(p, prevSum uint64) error { return nil }

// RecordDurable asks for a superblock with the present durable position; it is a
// heartbeat too.
func (l *Log) RecordDurable() {}

// MarkClean asks for a superblock with the clean flag. Everything must be durable,
// else ErrWait. The log takes nothing more.
func (l *Log) MarkClean() error { return nil }

// NextSuperblock returns the next superblock copy to write, and where; ok is false
// when there is none or one is being written. b is valid until SuperblockDone.
func (l *Log) NextSuperblock(nowNS int64) (offset int64, b []byte, ok bool) { return 0, nil, false }

// SuperblockDone reports the end of that write. An error, or one seen L or more
// after NextSuperblock, stops the log for good.
func (l *Log) SuperblockDone(err error, nowNS int64) {}

// SuperblockInForce reports whether every copy of the epoch holds everything that
// was asked for.
func (l *Log) SuperblockInForce() bool { return false }

// RecordedDurable is the durable position of the superblock in force. Doors may
// open when it lies beyond the log's origin.
func (l *Log) RecordedDurable() uint64 { return 0 }

// CheckStall looks at the oldest write on its way. At L it stops the log.
func (l *Log) CheckStall(nowNS int64) StallState { return StallNone }

// Fail stops the log for good with err, unless it has stopped already.
func (l *Log) Fail(err error) {}

// Err is why the log has stopped, nil while it runs.
func (l *Log) Err() error { return nil }

// Superblock is the superblock in force, or the one that the start builds. It is
// not to be changed and valid until the next SuperblockDone.
func (l *Log) Superblock() *Superblock { return nil }

// Head is the position behind everything that was taken, the open frame included.
func (l *Log) Head() uint64 { return 0 }

// Durable is the durable position.
func (l *Log) Durable() uint64 { return 0 }

// Trim is the trim position in force.
func (l *Log) Trim() uint64 { return 0 }

// Used is head − trim.
func (l *Log) Used() uint64 { return 0 }

// Room is how many more bytes of the log items of class c may take, frame headers
// and padding included.
func (l *Log) Room(c Class) uint64 { return 0 }

// Geometry is the log's.
func (l *Log) Geometry() Geometry { return Geometry{} }
