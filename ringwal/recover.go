package ringwal

import "github.com/walsidecar/walsidecar/ringwal/device"

// Visitor is told what a recovery reads, in log order. Both may be nil. An error
// ends the recovery and is returned as it is.
type Visitor struct {
	// Frame is called for every frame of every kind.
	Frame func(*FrameView) error

	// Checkpoint is called after the last part of a complete checkpoint that
	// begins at start. state is valid during the call only. The first one gives
	// the state; a later one must equal the state as it stands, else return a
	// *DamageError.
	Checkpoint func(start uint64, state []byte) error
}

// CheckpointMark is where a complete checkpoint lies.
type CheckpointMark struct {
	Start   uint64 // position of its first part
	End     uint64 // behind its last part
	PrevSum uint64 // sum of the frame before Start
}

// Recovery is what was found.
type Recovery struct {
	End    uint64 // behind the last frame of the log
	Next   uint64 // where the next frame would lie: End, or the start of an epoch that wrote nothing yet
	Sum    uint64 // of the last frame
	Proven uint64 // highest position known to have been durable, from superblock, boundaries and frames

	Frames, Records uint64
	BytesRead       uint64

	Checkpoint       CheckpointMark // the newest complete one
	HasCheckpoint    bool
	CheckpointIsLast bool // only seals follow it

	TornFrames int // headers of frames beyond the end that were never acked and are void from now on

	tail []frameMark // frame boundaries from Proven to End
}

type frameMark struct{ position, sum uint64 }

// Recover reads the log from its trim position to its end in one pass, with
// memory that does not depend on the log's length (a checkpoint's state is held
// while it is assembled). It writes nothing. d may be a device.ReadAhead.
//
// Errors: *DamageError (damage to acked data, or no complete checkpoint),
// device.ErrRead (never taken for an end), the visitor's own.
func Recover(d device.Device, sbs *Superblocks, v Visitor) (*Recovery, error) { panic("skeleton") }

// VerifyTail reads the frames between r.Proven and r.End again, after the owner
// has flushed the device: what was only in a cache may be gone. ErrTailChanged:
// recover again.
func VerifyTail(d device.Device, sbs *Superblocks, r *Recovery) error { panic("skeleton") }

// GapKind says why positions hold no frame.
type GapKind uint8

// The kinds of gaps.
const (
	GapLost GapKind = iota + 1 // acked data that cannot be read
	GapVoid                    // skipped by a start, never held anything
)

// Gap is a range of positions without a readable frame.
type Gap struct {
	Kind     GapKind
	From, To uint64
	Err      error // device.ErrRead where the device refused to read it
}

// SalvageVisitor is told what survives, in position order.
type SalvageVisitor struct {
	Frame func(*FrameView) error
	Gap   func(Gap) error
}

// Salvage reads every valid frame of the log that was not void, with a gap where
// acked data is missing. It needs one readable superblock copy and writes
// nothing. End is behind the last frame.
func Salvage(d device.Device, sbs *Superblocks, v SalvageVisitor) (end uint64, err error) {
	panic("skeleton")
}
