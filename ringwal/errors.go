package ringwal

import (
	"errors"
	"fmt"
)

// What a device can turn out to be. Match with errors.Is.
var (
	// ErrNotALog is a device without any trace of a walsidecar superblock.
	ErrNotALog = errors.New("not a walsidecar log")

	// ErrDamaged is damage to acked data or to the superblocks. Nothing was
	// written; salvage is the way on.
	ErrDamaged = errors.New("the log is damaged")

	// ErrFormat is a log of another format version, or one that uses features
	// this version does not know.
	ErrFormat = errors.New("the log's format is not supported")

	// ErrGeometry is a log whose block size differs from its device's, one that is
	// larger than its device, or a geometry that no log can have.
	ErrGeometry = errors.New("the log does not fit the device")

	// ErrTooSmall is a device or file below MinLogBytes.
	ErrTooSmall = errors.New("too small for a log")

	// ErrTailChanged says that after the flush the end of the log read
	// differently: recover again.
	ErrTailChanged = errors.New("the end of the log changed between two reads")

	// ErrEpoch is an epoch that a start must not use.
	ErrEpoch = errors.New("epoch refused")

	// ErrTooManyBoundaries says that starts of the log jumped some MaxBoundaries
	// times without a trim. Other starts do not count: their boundaries are merged.
	ErrTooManyBoundaries = errors.New("too many starts that jumped since the last trim")
)

// What a Log answers. ErrFull and ErrWait pass by themselves and use up nothing.
var (
	// ErrFull says that the class has no room until the log is trimmed.
	ErrFull = errors.New("the log is full")

	// ErrWait says that the owner has to drive the log on and try again: the
	// window is full, no buffer is free, a checkpoint is under way, the superblock
	// is not in force, or the first checkpoint is not recorded yet.
	ErrWait = errors.New("the log has to wait for the device")

	// ErrTooLarge is an item that no frame can hold, or a checkpoint over the
	// limit.
	ErrTooLarge = errors.New("larger than the log can take")

	// ErrWriteFailed is sticky: a device write failed, and what was in flight has
	// an unknown outcome. It wraps the device's error.
	ErrWriteFailed = errors.New("a write to the log failed")

	// ErrStalled is sticky: a write's completion was not seen within L.
	ErrStalled = errors.New("a write to the log stalled")

	// ErrClosed is sticky: the log was marked clean and takes nothing more.
	ErrClosed = errors.New("the log is closed")

	// ErrTrim is a trim position that is not allowed; nothing changed.
	ErrTrim = errors.New("trim position refused")
)

// DamageError says which positions are damaged. errors.Is(err, ErrDamaged) holds.
type DamageError struct {
	From, To uint64 // positions [From, To); From == To: the place alone is known
	Reason   string
}

// Error names the range, the reason and the way on.
func (e *DamageError) Error() string {
	return fmt.Sprintf("%s: positions [%d, %d): %s; nothing was written: `walsidecar salvage` reads what survives",
		ErrDamaged, e.From, e.To, e.Reason)
}

// Unwrap makes errors.Is(err, ErrDamaged) hold.
func (e *DamageError) Unwrap() error { return ErrDamaged }
