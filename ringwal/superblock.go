package ringwal

import "time"

// MaxBoundaries is the most epoch boundaries that a superblock holds: what fits
// its slot, rounded down. Those of jumps count, and few others: see mergeAbove.
const MaxBoundaries = 1500

// MaxNodeBytes is the longest node name.
const MaxNodeBytes = 63

// Boundary is where an epoch begins. It voids every older frame at or beyond
// FollowEnd; recovery arriving there goes on at Start. A merged one stands for
// several epochs: those above the boundary before it, up to Epoch.
type Boundary struct {
	Epoch           uint64
	IncarnationHash uint64 // xxhash64 of the incarnation's 16 bytes, 1 where that is 0; 0: merged
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

	otherFlags uint32 // of later versions, kept as they are
	extra      []byte // of later versions, kept as it is
}

// Limits of what a superblock says.
const (
	// MaxOrigin leaves a log 2^63 bytes to write before positions run out.
	MaxOrigin = 1 << 63

	// MaxStallAfter is the largest L: beyond a day it protects nobody.
	MaxStallAfter = 24 * time.Hour
)

// addBoundary adds the boundary of a new epoch. Those that follow the same frame
// or a later one are void with it: of several only the newest is kept.
func (sb *Superblock) addBoundary(x Boundary) {
	kept := sb.Boundaries[:0:0]
	for _, old := range sb.Boundaries {
		if old.FollowEnd < x.FollowEnd {
			kept = append(kept, old)
		}
	}
	sb.Boundaries = append(kept, x)
}

// dropBoundaries drops those that no walk from Trim can meet. The newest one below
// Trim stays: it says which epoch is in force at Trim, and so keeps an older frame
// from being taken for the first one.
func (sb *Superblock) dropBoundaries() {
	first := 0
	for i, x := range sb.Boundaries {
		if x.FollowEnd < sb.Trim {
			first = i
		}
	}
	sb.Boundaries = append([]Boundary(nil), sb.Boundaries[first:]...)
}

// Jumped is the oldest boundary that jumped, with the window that it jumped over still in
// the log: what lands there late does no harm, and the window is kept from being written
// until T has passed. As long as there is one, T may not have passed.
func (sb *Superblock) Jumped() (b Boundary, found bool) {
	for _, b := range sb.Boundaries {
		if b.Start > sb.Trim && b.Start-b.FollowEnd >= sb.WindowBytes {
			return b, true
		}
	}
	return Boundary{}, false
}

// DescendsFrom reports whether, as far as sb still tells, an owner of that epoch and
// incarnation was one of this log's, and had everything below end before a later epoch
// began. If not, sb is of an older copy of the log, or of one that went on by itself.
func (sb *Superblock) DescendsFrom(epoch uint64, incarnation [16]byte, end uint64) bool {
	if sb.Epoch < epoch || sb.Epoch == epoch && sb.Incarnation != incarnation {
		return false
	}
	for i := range sb.Boundaries {
		switch b := &sb.Boundaries[i]; {
		case b.merged():
		case b.Epoch == epoch && b.IncarnationHash != incarnationHash(incarnation):
			return false
		case b.Epoch > epoch && b.FollowEnd < end:
			return false
		}
	}
	return true
}

// newer reports whether sb is newer than other.
func (sb *Superblock) newer(other *Superblock) bool {
	return sb.Epoch > other.Epoch || sb.Epoch == other.Epoch && sb.Sequence > other.Sequence
}
