package ringwal

import (
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// MaxBoundaries is the most epoch boundaries that a superblock holds: what fits
// its slot, rounded down.
const MaxBoundaries = 1500

// MaxNodeBytes is the longest node name.
const MaxNodeBytes = 63

// Boundary is where an epoch begins. It voids every older frame at or beyond
// FollowEnd; recovery arriving there goes on at Start.
type Boundary struct {
	Epoch           uint64
	IncarnationHash uint64 // xxhash64 of the incarnation's 16 bytes
	FollowEnd       uint64 // end of the frame that the epoch follows
	FollowSum       uint64 // sum of that frame; 0 at the log's origin
	Start           uint64 // position of the epoch's first frame, at or beyond FollowEnd
}

// Superblock is one copy of what a log knows about itself.
type Superblock struct {
	Major, Minor               uint16
	Compat, ROCompat, Incompat uint64 // feature bits
	Sequence                   uint64 // grows by one with every update of the log

	UUID        [16]byte
	Node        string // 1..MaxNodeBytes bytes
	Epoch       uint64 // 0: formatted, never started
	Incarnation [16]byte
	BootID      [16]byte // of the owner's kernel
	FenceKey    uint64   // reservation key of the owner, 0 without one

	Geometry
	FormatSizeBytes uint64        // size of the device at format
	StallAfter      time.Duration // L, whole milliseconds

	Origin      uint64 // first position of the log
	Durable     uint64 // every frame below it was durable; Origin until a checkpoint is
	Trim        uint64 // where the log begins
	TrimPrevSum uint64 // sum of the frame before Trim; 0 at Origin
	Clean       bool   // closed in order, nothing was written since

	Boundaries []Boundary // ascending
}

// SlotState tells what a superblock slot holds.
type SlotState uint8

// The states of a slot.
const (
	SlotBlank      SlotState = iota // no magic
	SlotValid                       // a superblock whose checksum holds
	SlotDamaged                     // the magic, but not a superblock whose checksum holds
	SlotUnreadable                  // the device reports a read error
	SlotForeign                     // valid, but of a version or feature that this one must not read
)

// Slot is one of the four places of a superblock.
type Slot struct {
	State      SlotState
	Superblock *Superblock // nil unless SlotValid
	Err        error       // why not, nil when SlotValid or SlotBlank
}

// Superblocks is what the four slots hold.
type Superblocks struct {
	Slots      [SlotCount]Slot
	Newest     *Superblock // highest (epoch, sequence) of the valid copies; nil when there is none
	NewestSlot int
	MaxEpoch   uint64 // highest epoch of all valid copies
	// GrownBytes is by how much the device grew since format; the log keeps its
	// capacity.
	GrownBytes int64
	// UnknownROCompat are feature bits under which the log may be read but not
	// started.
	UnknownROCompat uint64
}

// ReadSuperblocks reads and judges the four slots. What could be read is returned
// beside every error, for inspection and salvage. Errors: ErrNotALog (all slots
// blank), ErrDamaged (no readable copy, or a set of two without one: it may have
// held the newest), ErrFormat (version, unknown incompatible feature),
// ErrGeometry (block size differs, larger than the device), device.ErrRead.
func ReadSuperblocks(d device.Device) (*Superblocks, error) { panic("skeleton") }

// FormatOptions describe a new log.
type FormatOptions struct {
	UUID          [16]byte
	Node          string        // 1..MaxNodeBytes bytes
	StallAfter    time.Duration // L; 0: DefaultStallAfter
	CapacityBytes uint64        // of the ring; 0: all of the device
	Origin        uint64        // first position, a multiple of the block
	// Geometry replaces DefaultGeometry and its MinLogBytes (for tests); its
	// CapacityBytes then holds.
	Geometry *Geometry
}

// DefaultStallAfter is L where nothing else was asked for.
const DefaultStallAfter = 10 * time.Second

// Format writes a new log's superblock to all four slots of d and reads them
// back. Whatever the device held is lost: the caller has made sure that it may
// be. A failed format is repeated as a whole.
func Format(d device.Device, o FormatOptions) (*Superblock, error) { panic("skeleton") }
