package ringwal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Epoch is what a start draws before it calls Start.
type Epoch struct {
	Number      uint64 // 1 + the highest epoch of superblocks, frames and manifest
	Incarnation [16]byte
	BootID      [16]byte
	FenceKey    uint64
	Jump        bool          // writes of a former owner may still land: start one window further on
	StallAfter  time.Duration // L, whole milliseconds; 0 keeps the superblock's

	// CheckpointStateBytes is the size of the checkpoint that the start is going to
	// write, for the room it needs; 0: the largest.
	CheckpointStateBytes int

	// MakesRoom has a log without room for the jump or the first checkpoint prepared all
	// the same: the caller makes some before the first frame, as RoomToBegin tells.
	MakesRoom bool
}

// FrameBuffers lends the memory that frames are built in and written from.
type FrameBuffers interface {
	// Acquire lends n bytes, aligned to the block, for the frame at position; nil
	// when none are free now. Positions ascend. The bytes may hold anything.
	Acquire(position uint64, n int) []byte

	// Shrink says that the frame at position needs only the first used bytes.
	Shrink(position uint64, used int)
}

// Log is a started log. It has one owner; no method may be called concurrently.
// Times are CLOCK_BOOTTIME nanoseconds, handed in.
type Log struct {
	g          Geometry
	buffers    FrameBuffers
	limits     [classCount]uint64 // of head − trim, per class
	origin     uint64
	frameBytes uint64 // longest frame of several items, see LimitFrames
	stallNS    int64
	err        error // sticky
	closing    bool  // MarkClean was called
	identity   FrameHeader

	start   uint64 // position of the epoch's first frame
	begins  beginning
	head    uint64 // behind the last closed frame
	durable uint64
	trim    uint64 // in force
	sum     uint64 // of the last frame that Next returned

	open     *Frame // its Buf is all that was acquired
	openUsed int    // bytes of it, header included
	queued   frameQueue
	flight   frameQueue // from the durable position on
	done     frameQueue // durable, for PopDurable
	free     []*Frame
	inFlight int // of flight, those that Complete has not seen
	digest   xxhash.Digest

	toProve uint64 // behind the last frame that is not a seal
	proven  uint64 // highest durable position that a durable frame or superblock carries

	checkpoint checkpointWriter
	superblock superblockWriter
}

// Start prepares an epoch on a recovered log: a new superblock with its boundary,
// to be written by the caller (NextSuperblock) before the first frame. It writes
// nothing. Errors: ErrFull (no room for a jump and a checkpoint, unless the caller makes
// some), ErrTooManyBoundaries, ErrFormat (features under which the log is read-only),
// ErrEpoch.
func Start(sbs *Superblocks, r *Recovery, e Epoch, b FrameBuffers) (*Log, error) {
	sb := *sbs.Newest
	if sbs.UnknownROCompat != 0 {
		return nil, fmt.Errorf("%w: features %#x allow this version to read the log, not to write it; use the version that wrote it or a later one",
			ErrFormat, sbs.UnknownROCompat)
	}
	if e.Number <= sbs.MaxEpoch || e.StallAfter != 0 && (e.StallAfter < time.Millisecond || e.StallAfter > MaxStallAfter) {
		return nil, fmt.Errorf("%w: want a number above %d (got %d) and a stall limit of 1ms to %s (got %s)",
			ErrEpoch, sbs.MaxEpoch, e.Number, MaxStallAfter, e.StallAfter)
	}
	start := r.Next
	if e.Jump {
		start += sb.WindowBytes
	}
	sb.Epoch, sb.Incarnation, sb.BootID, sb.FenceKey = e.Number, e.Incarnation, e.BootID, e.FenceKey
	sb.Clean = false
	if e.StallAfter != 0 {
		sb.StallAfter = e.StallAfter.Truncate(time.Millisecond)
	}
	if r.HasCheckpoint {
		sb.Durable = r.End
	}
	hash := incarnationHash(e.Incarnation)
	sb.addBoundary(Boundary{Epoch: e.Number, IncarnationHash: hash, FollowEnd: r.End, FollowSum: r.Sum, Start: start})
	sb.dropBoundaries()
	if len(sb.Boundaries) > mergeAbove {
		sb.mergeBoundaries(r.Proven)
	}
	if len(sb.Boundaries) > MaxBoundaries {
		return nil, fmt.Errorf("%w: %d epoch boundaries lie above the trim position, a superblock holds %d; nothing was written: `walsidecar salvage` reads the records, `walsidecar format --force` makes a new log",
			ErrTooManyBoundaries, len(sb.Boundaries), MaxBoundaries)
	}
	l := &Log{
		g: sb.Geometry, buffers: b, origin: sb.Origin, frameBytes: uint64(sb.Geometry.MaxFrameBytes), stallNS: int64(sb.StallAfter),
		identity: FrameHeader{UUIDHash: xxhash.Sum64(sb.UUID[:]), Epoch: e.Number, IncarnationHash: hash},
		start:    start, head: start, durable: start, trim: sb.Trim, sum: r.Sum,
		toProve: r.End, proven: r.Proven,
		begins: beginning{end: r.End, jumps: e.Jump, stateBytes: e.CheckpointStateBytes},
	}
	for c := range classCount {
		l.limits[c] = sb.Limit(c)
	}
	l.checkpoint.newest, l.checkpoint.exists = r.Checkpoint, r.HasCheckpoint
	if err := l.RoomToBegin(); err != nil && !e.MakesRoom {
		return nil, err
	}
	_, unsettled := sbs.Newest.Jumped()
	l.superblock.begin(sbs, &sb, !e.Jump && unsettled)
	return l, nil
}

// Fail stops the log for good with err, unless it has stopped already.
func (l *Log) Fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// Err is why the log has stopped, nil while it runs.
func (l *Log) Err() error { return l.err }

// Superblock is the superblock in force or, until then, the one that the start
// built. It is not to be changed.
func (l *Log) Superblock() *Superblock { return l.superblock.current }

// Geometry is the log's.
func (l *Log) Geometry() Geometry { return l.g }

// Head is the position behind everything that was taken, the open frame included.
func (l *Log) Head() uint64 { return l.head + uint64(l.OpenBytes()) }

// Durable is the durable position.
func (l *Log) Durable() uint64 { return l.durable }

// Trim is the trim position in force.
func (l *Log) Trim() uint64 { return l.trim }

// Used is head − trim.
func (l *Log) Used() uint64 { return l.Head() - l.trim }

// Room is how many more bytes of the log items of class c may take, frame headers
// and padding included.
func (l *Log) Room(c Class) uint64 {
	if used := l.Used(); used < l.limits[c] {
		return l.limits[c] - used
	}
	return 0
}

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

// CheckStall looks at the oldest write on its way, a frame's or a superblock's. At L
// it stops the log.
func (l *Log) CheckStall(nowNS int64) StallState {
	if l.err != nil {
		if errors.Is(l.err, ErrStalled) {
			return StallFatal
		}
		return StallNone
	}
	var age int64
	if l.inFlight > 0 {
		age = nowNS - l.flight.first().IssuedNS
	}
	if l.superblock.writing {
		age = max(age, nowNS-l.superblock.issuedNS)
	}
	switch {
	case age >= l.stallNS:
		l.stalled(age)
		return StallFatal
	case age >= l.stallNS/DegradedShare:
		return StallDegraded
	}
	return StallNone
}

// stalled stops the log if a write has been on its way for L.
func (l *Log) stalled(ageNS int64) bool {
	if ageNS < l.stallNS {
		return false
	}
	l.Fail(fmt.Errorf("%w: on its way for %s, the limit is %s; its outcome is unknown",
		ErrStalled, time.Duration(ageNS), time.Duration(l.stallNS)))
	return true
}
