package ringwal

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Fixed places and sizes of format version 1, in bytes.
const (
	SlotBytes = 64 << 10              // one superblock slot
	SlotCount = 4                     // slots 0 and 1 are one set, 2 and 3 the other
	RingStart = SlotCount * SlotBytes // device offset of the ring

	FrameHeaderBytes = 128 // header of every frame
	ItemAlignBytes   = 8   // every item in a frame starts at a multiple of it
)

// Sizes that Format chooses, in bytes. A log keeps what its superblock says.
const (
	// MinLogBytes is the smallest device or file that DefaultGeometry accepts. At
	// this size about a third of the log is left for records; DESIGN.md allows up
	// to 64 MiB.
	MinLogBytes = 32 << 20

	// DefaultMaxFrameBytes is the longest frame: large enough that a cloud
	// volume's bandwidth is reached before its IOPS, small enough that one write
	// stays in the low milliseconds there.
	DefaultMaxFrameBytes = 1 << 20

	// LargestFrameBytes bounds what a superblock may call the longest frame: a
	// reader holds one in memory.
	LargestFrameBytes = 16 << 20

	// DefaultWindowBytes is W: eight of the longest frames in flight.
	DefaultWindowBytes = 8 << 20

	// MinCheckpointBytes and MaxCheckpointBytes bound the largest checkpoint,
	// which is an eighth of the ring in between.
	MinCheckpointBytes = 1 << 20
	MaxCheckpointBytes = 64 << 20

	// MaxControlReserveBytes is kept from appends for items that control the
	// log. Logs smaller than MinLogBytes (in tests) keep a sixteenth.
	MaxControlReserveBytes = 2 << 20

	// maxCapacityBytes and maxPosition keep position + capacity below 2^64.
	maxCapacityBytes = 1 << 60
	maxPosition      = 3 << 62

	// MaxBlockBytes is the largest block that leaves a frame useful.
	MaxBlockBytes = 64 << 10
)

// Geometry is the shape of a log, fixed at format.
type Geometry struct {
	BlockBytes    uint32 // of the device: power of two, device.MinBlockBytes..MaxBlockBytes
	MaxFrameBytes uint32 // longest frame, header included; a multiple of BlockBytes
	CapacityBytes uint64 // of the ring; a multiple of BlockBytes
	// WindowBytes is W: head − durable never exceeds it. A multiple of
	// BlockBytes, MaxFrameBytes..CapacityBytes.
	WindowBytes uint64
	// CheckpointMaxBytes is the largest state that Checkpoint takes.
	CheckpointMaxBytes uint64
}

// DefaultGeometry is the geometry for a device of sizeBytes (superblocks
// included) with blocks of blockBytes. It fails with ErrTooSmall below
// MinLogBytes.
func DefaultGeometry(sizeBytes int64, blockBytes int) (Geometry, error) {
	if sizeBytes < MinLogBytes {
		return Geometry{}, fmt.Errorf("%w: %d bytes, a log needs at least %d", ErrTooSmall, sizeBytes, MinLogBytes)
	}
	g := Geometry{
		BlockBytes:    uint32(blockBytes),
		MaxFrameBytes: DefaultMaxFrameBytes,
		WindowBytes:   DefaultWindowBytes,
		CapacityBytes: uint64(sizeBytes-RingStart) / uint64(blockBytes) * uint64(blockBytes),
	}
	g.CheckpointMaxBytes = min(max(g.CapacityBytes/8, MinCheckpointBytes), MaxCheckpointBytes)
	return g, g.check()
}

// check refuses what no log can have. It does not ask for room: a tiny log of a
// test may be too small for its own reserves.
func (g Geometry) check() error {
	b := uint64(g.BlockBytes)
	switch {
	case b < device.MinBlockBytes || b > MaxBlockBytes || b&(b-1) != 0:
		return fmt.Errorf("%w: block of %d bytes, want a power of two in [%d, %d]", ErrGeometry, b, device.MinBlockBytes, MaxBlockBytes)
	case g.MaxFrameBytes == 0 || uint64(g.MaxFrameBytes)%b != 0 || g.MaxFrameBytes > LargestFrameBytes:
		return fmt.Errorf("%w: longest frame of %d bytes, want a multiple of the block of %d up to %d", ErrGeometry, g.MaxFrameBytes, b, LargestFrameBytes)
	case g.CapacityBytes == 0 || g.CapacityBytes%b != 0 || g.CapacityBytes > maxCapacityBytes:
		return fmt.Errorf("%w: capacity of %d bytes, want a multiple of the block of %d", ErrGeometry, g.CapacityBytes, b)
	case g.WindowBytes%b != 0 || g.WindowBytes < uint64(g.MaxFrameBytes) || g.WindowBytes > g.CapacityBytes:
		return fmt.Errorf("%w: window of %d bytes, want a multiple of the block from the longest frame (%d) to the capacity (%d)",
			ErrGeometry, g.WindowBytes, g.MaxFrameBytes, g.CapacityBytes)
	case g.CheckpointMaxBytes > min(g.CapacityBytes, MaxCheckpointBytes):
		return fmt.Errorf("%w: largest checkpoint of %d bytes, want at most %d and the capacity (%d)",
			ErrGeometry, g.CheckpointMaxBytes, MaxCheckpointBytes, g.CapacityBytes)
	}
	return nil
}

// MaxItemBytes is the longest item that Reserve takes.
func (g Geometry) MaxItemBytes() int { return int(g.MaxFrameBytes) - FrameHeaderBytes }

// CheckpointBytes is what a checkpoint of stateBytes occupies in the log, without
// a pad.
func (g Geometry) CheckpointBytes(stateBytes int) uint64 {
	part := uint64(g.MaxFrameBytes) - FrameHeaderBytes
	whole, rest := uint64(stateBytes)/part, uint64(stateBytes)%part
	n := whole * uint64(g.MaxFrameBytes)
	if rest > 0 || whole == 0 {
		n += g.roundUp(FrameHeaderBytes + rest)
	}
	return n
}

// checkpointEnd is where a checkpoint of that size ends that begins at position at, pads
// included.
func (g Geometry) checkpointEnd(at uint64, stateBytes int) uint64 {
	for rest := stateBytes; ; {
		body := min(rest, g.MaxItemBytes())
		size := g.roundUp(uint64(FrameHeaderBytes + body))
		if gap := g.toRingEnd(at); gap < size {
			at += gap
		}
		at += size
		if rest -= body; rest == 0 {
			return at
		}
	}
}

// ControlReserveBytes is what appends leave to control items.
func (g Geometry) ControlReserveBytes() uint64 {
	return min(MaxControlReserveBytes, g.CapacityBytes/16)
}

// SystemReserveBytes is what items that take space leave to the log itself: two
// checkpoints, a jump of the window, a pad and a seal.
func (g Geometry) SystemReserveBytes() uint64 {
	return 2*g.CheckpointBytes(int(g.CheckpointMaxBytes)) + g.WindowBytes + uint64(g.MaxFrameBytes) + uint64(g.BlockBytes)
}

// freeReserveBytes is what items that free space leave to the log itself: the
// checkpoint that lets it be trimmed then, a pad and a seal. The jump and the
// checkpoint of a start may have come before them, and a full log that was started
// again must still take what frees space.
func (g Geometry) freeReserveBytes() uint64 {
	return g.CheckpointBytes(int(g.CheckpointMaxBytes)) + uint64(g.MaxFrameBytes) + uint64(g.BlockBytes)
}

// Class says what an item is for, and so how much of the log it may fill.
type Class uint8

// The classes of items.
const (
	ClassAppend  Class = iota // records: leaves the system and the control reserve
	ClassControl              // streams, producers, tokens: may use half of the control reserve
	ClassFree                 // what frees space (trim, delete): all but a checkpoint, a pad and a seal

	classSystem // checkpoints, pads and seals: the whole ring
	classCount
)

// Limit is the most that head − trim may reach through items of class c.
func (g Geometry) Limit(c Class) uint64 {
	kept := g.SystemReserveBytes()
	switch c {
	case classSystem:
		kept = 0
	case ClassFree:
		kept = g.freeReserveBytes()
	case ClassControl:
		kept += g.ControlReserveBytes() / 2
	default:
		kept += g.ControlReserveBytes()
	}
	if kept > g.CapacityBytes {
		return 0
	}
	return g.CapacityBytes - kept
}

// DeviceOffset is where the byte at position p lies on the device.
func (g Geometry) DeviceOffset(p uint64) int64 { return RingStart + int64(p%g.CapacityBytes) }

// toRingEnd is the number of bytes from position p to the ring's end, never 0.
func (g Geometry) toRingEnd(p uint64) uint64 { return g.CapacityBytes - p%g.CapacityBytes }

func (g Geometry) roundUp(n uint64) uint64 {
	b := uint64(g.BlockBytes)
	return (n + b - 1) &^ (b - 1)
}
