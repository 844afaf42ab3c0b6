package ringwal

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// SlotState tells what a superblock slot holds.
type SlotState uint8

// The states of a slot.
const (
	SlotBlank      SlotState = iota // no magic
	SlotValid                       // a superblock whose checksum holds
	SlotDamaged                     // the magic, but not a superblock whose checksum holds
	SlotUnreadable                  // the device reports a read error
	SlotForeign                     // a whole superblock of another format version
)

// String is the state in one lower case word.
func (s SlotState) String() string {
	switch s {
	case SlotBlank:
		return "blank"
	case SlotValid:
		return "valid"
	case SlotDamaged:
		return "damaged"
	case SlotUnreadable:
		return "unreadable"
	case SlotForeign:
		return "foreign"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

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
// blank), ErrDamaged (no readable copy, a set of two without one, copies of two
// logs), ErrFormat (version, unknown incompatible feature), ErrGeometry (block
// size differs, larger than the device), device.ErrRead.
func ReadSuperblocks(d device.Device) (*Superblocks, error) {
	buf := alignedBytes(SlotBytes, d.BlockBytes())
	sbs := &Superblocks{}
	if d.SizeBytes() <= RingStart {
		return sbs, fmt.Errorf("%s: %w: %d bytes do not hold the superblocks of one", d.Path(), ErrNotALog, d.SizeBytes())
	}
	for i := range sbs.Slots {
		if _, err := d.ReadAt(buf, int64(i)*SlotBytes); err != nil {
			sbs.Slots[i] = Slot{State: SlotUnreadable, Err: fmt.Errorf("superblock slot %d: %w", i, err)}
			continue
		}
		sbs.Slots[i] = decodeSlot(buf)
	}
	sbs.choose()
	if err := sbs.judge(); err != nil {
		return sbs, fmt.Errorf("%s: %w", d.Path(), err)
	}
	if err := sbs.fits(d); err != nil {
		return sbs, fmt.Errorf("%s: %w", d.Path(), err)
	}
	return sbs, nil
}

func (sbs *Superblocks) choose() {
	for i, s := range sbs.Slots {
		if s.State != SlotValid {
			continue
		}
		if sbs.Newest == nil || s.Superblock.newer(sbs.Newest) {
			sbs.Newest, sbs.NewestSlot = s.Superblock, i
		}
		sbs.MaxEpoch = max(sbs.MaxEpoch, s.Superblock.Epoch)
	}
	if sbs.Newest != nil {
		sbs.UnknownROCompat = sbs.Newest.ROCompat &^ knownROCompat
	}
}

// judge decides whether the newest copy may be believed.
func (sbs *Superblocks) judge() error {
	var count [SlotForeign + 1]int
	for _, s := range sbs.Slots {
		count[s.State]++
	}
	if count[SlotForeign] > 0 {
		// It does not matter how old it is: where another version has
		// written, this one cannot know what the log is now.
		return sbs.firstError(0, SlotCount)
	}
	if sbs.Newest == nil {
		if err := sbs.firstError(0, SlotCount); err != nil {
			return err
		}
		return ErrNotALog
	}
	for i, s := range sbs.Slots {
		if s.State == SlotValid && s.Superblock.UUID != sbs.Newest.UUID {
			return fmt.Errorf("%w: superblock slots %d and %d are of two logs, %x and %x: a format did not finish; format it again",
				ErrDamaged, sbs.NewestSlot, i, sbs.Newest.UUID, s.Superblock.UUID)
		}
	}
	// An update writes the copies of a set one after the other, the invalid one
	// first, so that a crash leaves each set with one readable copy. A set without
	// any has rotted and may have held the newest.
	for set := 0; set < SlotCount; set += 2 {
		if sbs.Slots[set].State == SlotValid || sbs.Slots[set+1].State == SlotValid {
			continue
		}
		if err := sbs.firstError(set, set+2); errors.Is(err, device.ErrRead) {
			return err
		}
		return fmt.Errorf("%w: neither superblock slot %d (%s) nor %d (%s) is readable, and they may have held the newest copy",
			ErrDamaged, set, sbs.Slots[set].State, set+1, sbs.Slots[set+1].State)
	}
	if unknown := sbs.Newest.Incompat &^ knownIncompat; unknown != 0 {
		return fmt.Errorf("%w: incompatible features %#x are unknown to this version; use the version that wrote the log or a later one",
			ErrFormat, unknown)
	}
	return nil
}

// firstError is the gravest of the slots' errors: unreadable before damaged.
func (sbs *Superblocks) firstError(from, to int) error {
	var found error
	for _, s := range sbs.Slots[from:to] {
		if s.State == SlotUnreadable || s.State == SlotForeign {
			return s.Err
		}
		if found == nil {
			found = s.Err
		}
	}
	return found
}

// fits compares the log with the device that it lies on.
func (sbs *Superblocks) fits(d device.Device) error {
	sb := sbs.Newest
	if int(sb.BlockBytes) != d.BlockBytes() {
		return fmt.Errorf("%w: formatted with blocks of %d bytes, the device has %d", ErrGeometry, sb.BlockBytes, d.BlockBytes())
	}
	if need := RingStart + int64(sb.CapacityBytes); need > d.SizeBytes() {
		return fmt.Errorf("%w: the log needs %d bytes, the device has %d: it was cut, or this is a copy onto a smaller one",
			ErrGeometry, need, d.SizeBytes())
	}
	sbs.GrownBytes = max(0, d.SizeBytes()-int64(sb.FormatSizeBytes))
	return nil
}

// FormatOptions describe a new log.
type FormatOptions struct {
	UUID          [16]byte      // random, not zero
	Node          string        // 1..MaxNodeBytes bytes
	StallAfter    time.Duration // L, 1 ms..MaxStallAfter; 0: DefaultStallAfter
	CapacityBytes uint64        // of the ring; 0: all of the device
	Origin        uint64        // first position, a multiple of the block, at most MaxOrigin

	// Geometry replaces DefaultGeometry and its MinLogBytes (for tests); its
	// CapacityBytes then holds.
	Geometry *Geometry
}

// DefaultStallAfter is L where nothing else was asked for.
const DefaultStallAfter = 10 * time.Second

// Format writes a new log's superblock to all four slots of d and reads them back.
// Whatever the device held is lost: the caller has made sure that it may be. A
// format that failed half-way is repeated as a whole. Errors: ErrTooSmall,
// ErrGeometry, device.ErrWrite, device.ErrRead, ErrDamaged (read back differently).
func Format(d device.Device, o FormatOptions) (*Superblock, error) {
	sb, err := o.superblock(d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Path(), err)
	}
	block := d.BlockBytes()
	want, got := alignedBytes(SlotBytes, block), alignedBytes(SlotBytes, block)
	EncodeSuperblock(want, sb)
	for i := range int64(SlotCount) {
		if err := d.WriteSync(want, i*SlotBytes); err != nil {
			return nil, fmt.Errorf("format: superblock slot %d: %w", i, err)
		}
	}
	for i := range int64(SlotCount) {
		if _, err := d.ReadAt(got, i*SlotBytes); err != nil {
			return nil, fmt.Errorf("format: superblock slot %d: %w", i, err)
		}
		if !bytes.Equal(want, got) {
			return nil, fmt.Errorf("%s: format: %w: superblock slot %d reads back differently from what was written", d.Path(), ErrDamaged, i)
		}
	}
	return sb, nil
}

func (o *FormatOptions) superblock(d device.Device) (*Superblock, error) {
	var g Geometry
	if o.Geometry != nil {
		g = *o.Geometry
	} else {
		size := d.SizeBytes()
		if o.CapacityBytes > 0 {
			size = min(size, RingStart+int64(min(o.CapacityBytes, maxCapacityBytes)))
		}
		var err error
		if g, err = DefaultGeometry(size, d.BlockBytes()); err != nil {
			return nil, err
		}
	}
	stall := o.StallAfter
	if stall == 0 {
		stall = DefaultStallAfter
	}
	if o.UUID == [16]byte{} || len(o.Node) < 1 || len(o.Node) > MaxNodeBytes || stall < time.Millisecond || stall > MaxStallAfter {
		return nil, fmt.Errorf("format: want a UUID, a node name of 1 to %d bytes (got %q) and a stall limit of 1ms to %s (got %s)",
			MaxNodeBytes, o.Node, MaxStallAfter, stall)
	}
	sb := &Superblock{
		Major: FormatMajor, Minor: FormatMinor, Sequence: 1,
		UUID: o.UUID, Node: o.Node, Geometry: g, FormatSizeBytes: uint64(d.SizeBytes()), StallAfter: stall.Truncate(time.Millisecond),
		Origin: o.Origin, Durable: o.Origin, Trim: o.Origin,
	}
	if err := sb.check(); err != nil {
		return nil, err
	}
	return sb, (&Superblocks{Newest: sb}).fits(d)
}
