package ringwal

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Format version that this package writes. A reader refuses another major
// version; a minor one only adds what feature bits announce.
const (
	FormatMajor = 1
	FormatMinor = 0
)

// Feature bits that this version knows: none yet. Compatible features are ignored
// by who does not know them, read-only compatible ones let it read but not start
// the log, incompatible ones make it refuse.
const (
	knownROCompat uint64 = 0
	knownIncompat uint64 = 0
)

const superblockMagic = "WALSDCR1"

// Offsets in a superblock, in bytes. Boundaries follow the fixed part; then, only
// where a later minor version wrote them, bytes that are kept as they are; then
// the checksum.
const (
	sbMajor       = 8
	sbMinor       = 10
	sbLength      = 12
	sbCompat      = 16
	sbROCompat    = 24
	sbIncompat    = 32
	sbSequence    = 40
	sbUUID        = 48
	sbNode        = 64
	sbEpoch       = 128
	sbIncarnation = 136
	sbBootID      = 152
	sbFenceKey    = 168
	sbBlock       = 176
	sbMaxFrame    = 180
	sbCapacity    = 184
	sbFormatSize  = 192
	sbWindow      = 200
	sbStallMS     = 208
	sbCheckpoint  = 216
	sbOrigin      = 224
	sbDurable     = 232
	sbTrim        = 240
	sbTrimPrevSum = 248
	sbFlags       = 256
	sbCount       = 260
	sbBoundaries  = 264

	boundaryBytes = 40
	checksumBytes = 8

	flagClean = 1 // bit 0 of the flags

	// maxExtraBytes is what later minor versions may add without displacing a
	// boundary.
	maxExtraBytes = SlotBytes - checksumBytes - sbBoundaries - MaxBoundaries*boundaryBytes
)

// EncodeSuperblock writes sb into b, at most SlotBytes, and returns the bytes
// used, checksum included. b beyond them is not touched.
func EncodeSuperblock(b []byte, sb *Superblock) int {
	le := binary.LittleEndian
	length := sbBoundaries + len(sb.Boundaries)*boundaryBytes + len(sb.extra)
	copy(b, superblockMagic)
	le.PutUint16(b[sbMajor:], sb.Major)
	le.PutUint16(b[sbMinor:], sb.Minor)
	le.PutUint32(b[sbLength:], uint32(length))
	le.PutUint64(b[sbCompat:], sb.Compat)
	le.PutUint64(b[sbROCompat:], sb.ROCompat)
	le.PutUint64(b[sbIncompat:], sb.Incompat)
	le.PutUint64(b[sbSequence:], sb.Sequence)
	copy(b[sbUUID:], sb.UUID[:])
	clear(b[sbNode:sbEpoch])
	b[sbNode] = byte(len(sb.Node))
	copy(b[sbNode+1:sbEpoch], sb.Node)
	le.PutUint64(b[sbEpoch:], sb.Epoch)
	copy(b[sbIncarnation:], sb.Incarnation[:])
	copy(b[sbBootID:], sb.BootID[:])
	le.PutUint64(b[sbFenceKey:], sb.FenceKey)
	le.PutUint32(b[sbBlock:], sb.BlockBytes)
	le.PutUint32(b[sbMaxFrame:], sb.MaxFrameBytes)
	le.PutUint64(b[sbCapacity:], sb.CapacityBytes)
	le.PutUint64(b[sbFormatSize:], sb.FormatSizeBytes)
	le.PutUint64(b[sbWindow:], sb.WindowBytes)
	le.PutUint64(b[sbStallMS:], uint64(sb.StallAfter/time.Millisecond))
	le.PutUint64(b[sbCheckpoint:], sb.CheckpointMaxBytes)
	le.PutUint64(b[sbOrigin:], sb.Origin)
	le.PutUint64(b[sbDurable:], sb.Durable)
	le.PutUint64(b[sbTrim:], sb.Trim)
	le.PutUint64(b[sbTrimPrevSum:], sb.TrimPrevSum)
	le.PutUint32(b[sbFlags:], sb.otherFlags&^flagClean)
	if sb.Clean {
		b[sbFlags] |= flagClean
	}
	le.PutUint32(b[sbCount:], uint32(len(sb.Boundaries)))
	at := sbBoundaries
	for _, x := range sb.Boundaries {
		for i, v := range [...]uint64{x.Epoch, x.IncarnationHash, x.FollowEnd, x.FollowSum, x.Start} {
			le.PutUint64(b[at+i*8:], v)
		}
		at += boundaryBytes
	}
	copy(b[at:], sb.extra)
	le.PutUint64(b[length:], xxhash.Sum64(b[:length]))
	return length + checksumBytes
}

// decodeSlot judges the bytes of a slot.
func decodeSlot(b []byte) Slot {
	if len(b) < sbBoundaries+checksumBytes || string(b[:len(superblockMagic)]) != superblockMagic {
		return Slot{State: SlotBlank}
	}
	le := binary.LittleEndian
	length := uint64(le.Uint32(b[sbLength:]))
	if length < sbBoundaries || length+checksumBytes > uint64(len(b)) {
		return damagedSlot("length of %d bytes is impossible", length)
	}
	if want, got := le.Uint64(b[length:]), xxhash.Sum64(b[:length]); want != got {
		return damagedSlot("checksum is %016x, want %016x", got, want)
	}
	if major := le.Uint16(b[sbMajor:]); major != FormatMajor {
		err := fmt.Errorf("%w: version %d.%d, this program knows version %d", ErrFormat, major, le.Uint16(b[sbMinor:]), FormatMajor)
		return Slot{State: SlotForeign, Err: err}
	}
	sb, err := decodeSuperblock(b[:length])
	if err != nil {
		return damagedSlot("%v", err)
	}
	return Slot{State: SlotValid, Superblock: sb}
}

func damagedSlot(format string, args ...any) Slot {
	return Slot{State: SlotDamaged, Err: fmt.Errorf("%w: superblock: %s", ErrDamaged, fmt.Sprintf(format, args...))}
}

// decodeSuperblock reads b, whose checksum holds. The error says what makes no
// sense.
func decodeSuperblock(b []byte) (*Superblock, error) {
	le := binary.LittleEndian
	sb := &Superblock{
		Major: le.Uint16(b[sbMajor:]), Minor: le.Uint16(b[sbMinor:]),
		Compat: le.Uint64(b[sbCompat:]), ROCompat: le.Uint64(b[sbROCompat:]), Incompat: le.Uint64(b[sbIncompat:]),
		Sequence: le.Uint64(b[sbSequence:]),
		UUID:     [16]byte(b[sbUUID:]),
		Epoch:    le.Uint64(b[sbEpoch:]), Incarnation: [16]byte(b[sbIncarnation:]), BootID: [16]byte(b[sbBootID:]),
		FenceKey: le.Uint64(b[sbFenceKey:]),
		Geometry: Geometry{
			BlockBytes: le.Uint32(b[sbBlock:]), MaxFrameBytes: le.Uint32(b[sbMaxFrame:]),
			CapacityBytes: le.Uint64(b[sbCapacity:]), WindowBytes: le.Uint64(b[sbWindow:]),
			CheckpointMaxBytes: le.Uint64(b[sbCheckpoint:]),
		},
		FormatSizeBytes: le.Uint64(b[sbFormatSize:]),
		Origin:          le.Uint64(b[sbOrigin:]), Durable: le.Uint64(b[sbDurable:]),
		Trim: le.Uint64(b[sbTrim:]), TrimPrevSum: le.Uint64(b[sbTrimPrevSum:]),
		Clean: le.Uint32(b[sbFlags:])&flagClean != 0, otherFlags: le.Uint32(b[sbFlags:]) &^ flagClean,
	}
	nameBytes := int(b[sbNode])
	if nameBytes < 1 || nameBytes > MaxNodeBytes {
		return nil, fmt.Errorf("node name of %d bytes", nameBytes)
	}
	sb.Node = string(b[sbNode+1 : sbNode+1+nameBytes])
	stallMS := le.Uint64(b[sbStallMS:])
	if stallMS == 0 || stallMS > uint64(MaxStallAfter/time.Millisecond) {
		return nil, fmt.Errorf("stall limit of %d ms", stallMS)
	}
	sb.StallAfter = time.Duration(stallMS) * time.Millisecond
	count := uint64(le.Uint32(b[sbCount:]))
	if count > MaxBoundaries || sbBoundaries+count*boundaryBytes > uint64(len(b)) {
		return nil, fmt.Errorf("%d boundaries", count)
	}
	if count > 0 {
		sb.Boundaries = make([]Boundary, count)
	}
	at := sbBoundaries
	for i := range sb.Boundaries {
		word := func(k int) uint64 { return le.Uint64(b[at+k*8:]) }
		sb.Boundaries[i] = Boundary{Epoch: word(0), IncarnationHash: word(1), FollowEnd: word(2), FollowSum: word(3), Start: word(4)}
		at += boundaryBytes
	}
	if extra := b[at:]; len(extra) > 0 {
		sb.extra = append([]byte(nil), extra...)
	}
	return sb, sb.check()
}

// check refuses a superblock that no log can have.
func (sb *Superblock) check() error {
	if err := sb.Geometry.check(); err != nil {
		return err
	}
	b := uint64(sb.BlockBytes)
	switch {
	case len(sb.extra) > maxExtraBytes:
		return fmt.Errorf("%d bytes behind the boundaries", len(sb.extra))
	case sb.Origin > MaxOrigin || sb.Origin%b != 0 || sb.Trim%b != 0 || sb.Durable%b != 0:
		return fmt.Errorf("origin %d, trim %d or durable %d is no block's position", sb.Origin, sb.Trim, sb.Durable)
	case sb.Trim < sb.Origin || sb.Durable < sb.Trim || sb.Durable > maxPosition:
		return fmt.Errorf("origin %d, trim %d and durable %d do not ascend", sb.Origin, sb.Trim, sb.Durable)
	}
	for i, x := range sb.Boundaries {
		if x.FollowEnd%b != 0 || x.Start%b != 0 || x.Start < x.FollowEnd || x.FollowEnd < sb.Origin ||
			x.Start > maxPosition || x.Epoch > sb.Epoch {
			return fmt.Errorf("boundary of epoch %d at %d, start %d, makes no sense", x.Epoch, x.FollowEnd, x.Start)
		}
		if x.merged() && (x.Start != x.FollowEnd || i == len(sb.Boundaries)-1) {
			return fmt.Errorf("merged boundary of epoch %d at %d makes no sense", x.Epoch, x.FollowEnd)
		}
		if i > 0 {
			before := sb.Boundaries[i-1]
			if x.Epoch <= before.Epoch || x.FollowEnd <= before.Start {
				return fmt.Errorf("boundaries of epochs %d and %d do not ascend", before.Epoch, x.Epoch)
			}
		}
	}
	return nil
}
