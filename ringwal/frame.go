package ringwal

import (
	"encoding/binary"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// FrameKind is what a frame holds. The numbers are part of the format.
type FrameKind uint8

// The kinds of frames.
const (
	FrameData       FrameKind = 1 // items
	FramePad        FrameKind = 2 // fills the ring to its end
	FrameSeal       FrameKind = 3 // proves that what lies before it was durable
	FrameCheckpoint FrameKind = 4 // one part of a checkpoint
)

// String is the kind in one lower case word.
func (k FrameKind) String() string {
	switch k {
	case FrameData:
		return "data"
	case FramePad:
		return "pad"
	case FrameSeal:
		return "seal"
	case FrameCheckpoint:
		return "checkpoint"
	}
	return "unknown"
}

// Offsets in a frame's header, in bytes. What is not named is zero.
const (
	frameMagic   = 0x31465357 // "WSF1"
	frameVersion = 1

	fhMagic           = 0
	fhVersion         = 4
	fhKind            = 5
	fhFlags           = 6
	fhUUIDHash        = 8
	fhEpoch           = 16
	fhIncarnationHash = 24
	fhPosition        = 32
	fhLength          = 40
	fhBody            = 44
	fhRecords         = 48
	fhItems           = 52
	fhPrevSum         = 56
	fhDurable         = 64
	fhCheckpointStart = 72
	fhPart            = 80
	fhParts           = 84
	fhZero            = 88
	fhFrameSum        = 112
	fhSum             = 120
)

// FrameHeader is the header of a frame.
type FrameHeader struct {
	Kind            FrameKind
	Flags           uint16 // 0 in this version
	UUIDHash        uint64 // xxhash64 of the log's UUID
	Epoch           uint64
	IncarnationHash uint64
	Position        uint64
	LengthBytes     uint32 // in the log; of a pad the whole gap
	BodyBytes       uint32 // used bytes behind the header
	Records, Items  uint32
	PrevSum         uint64 // sum of the frame before it
	Durable         uint64 // durable position when it was issued
	CheckpointStart uint64 // of a checkpoint: position of its first part
	Part, Parts     uint32 // of a checkpoint: 0..Parts−1
	FrameSum        uint64 // over the header before it and, but for a pad, all behind the header
	Sum             uint64 // the header's sum, which the next frame carries
}

// End is the position behind the frame.
func (h *FrameHeader) End() uint64 { return h.Position + uint64(h.LengthBytes) }

// DecodeFrameHeader reads the header at the start of b. ok tells that b holds one and
// that magic, version and the header's own checksum hold; whether the frame
// belongs where it was found is for the caller to judge.
func DecodeFrameHeader(b []byte) (h FrameHeader, ok bool) {
	le := binary.LittleEndian
	if len(b) < FrameHeaderBytes || le.Uint32(b[fhMagic:]) != frameMagic || b[fhVersion] != frameVersion {
		return h, false
	}
	h.Sum = le.Uint64(b[fhSum:])
	if h.Sum != xxhash.Sum64(b[:fhSum]) {
		return h, false
	}
	h.Kind = FrameKind(b[fhKind])
	h.Flags = le.Uint16(b[fhFlags:])
	h.UUIDHash = le.Uint64(b[fhUUIDHash:])
	h.Epoch = le.Uint64(b[fhEpoch:])
	h.IncarnationHash = le.Uint64(b[fhIncarnationHash:])
	h.Position = le.Uint64(b[fhPosition:])
	h.LengthBytes = le.Uint32(b[fhLength:])
	h.BodyBytes = le.Uint32(b[fhBody:])
	h.Records = le.Uint32(b[fhRecords:])
	h.Items = le.Uint32(b[fhItems:])
	h.PrevSum = le.Uint64(b[fhPrevSum:])
	h.Durable = le.Uint64(b[fhDurable:])
	h.CheckpointStart = le.Uint64(b[fhCheckpointStart:])
	h.Part = le.Uint32(b[fhPart:])
	h.Parts = le.Uint32(b[fhParts:])
	h.FrameSum = le.Uint64(b[fhFrameSum:])
	return h, true
}

// encodeFrame writes h, but for its sums, into the header of frame, the bytes that
// will be written, and then the sums, there and in h. d is scratch.
func encodeFrame(frame []byte, h *FrameHeader, d *xxhash.Digest) {
	le := binary.LittleEndian
	le.PutUint32(frame[fhMagic:], frameMagic)
	frame[fhVersion] = frameVersion
	frame[fhKind] = byte(h.Kind)
	le.PutUint16(frame[fhFlags:], h.Flags)
	le.PutUint64(frame[fhUUIDHash:], h.UUIDHash)
	le.PutUint64(frame[fhEpoch:], h.Epoch)
	le.PutUint64(frame[fhIncarnationHash:], h.IncarnationHash)
	le.PutUint64(frame[fhPosition:], h.Position)
	le.PutUint32(frame[fhLength:], h.LengthBytes)
	le.PutUint32(frame[fhBody:], h.BodyBytes)
	le.PutUint32(frame[fhRecords:], h.Records)
	le.PutUint32(frame[fhItems:], h.Items)
	le.PutUint64(frame[fhPrevSum:], h.PrevSum)
	le.PutUint64(frame[fhDurable:], h.Durable)
	le.PutUint64(frame[fhCheckpointStart:], h.CheckpointStart)
	le.PutUint32(frame[fhPart:], h.Part)
	le.PutUint32(frame[fhParts:], h.Parts)
	clear(frame[fhZero:fhFrameSum])
	h.FrameSum = frameSum(h.Kind, frame, d)
	le.PutUint64(frame[fhFrameSum:], h.FrameSum)
	h.Sum = xxhash.Sum64(frame[:fhSum])
	le.PutUint64(frame[fhSum:], h.Sum)
}

func frameSum(kind FrameKind, frame []byte, d *xxhash.Digest) uint64 {
	d.Reset()
	_, _ = d.Write(frame[:fhFrameSum])
	if kind != FramePad {
		_, _ = d.Write(frame[FrameHeaderBytes:])
	}
	return d.Sum64()
}

// FrameView is a frame as it was read.
type FrameView struct {
	FrameHeader
	Body []byte // the used bytes; valid during the call only
}

// FrameChecker tells which frames belong to a log: by identity, position and the
// epoch in force there. It never changes, and may be used from any goroutine.
type FrameChecker struct {
	g          Geometry
	uuidHash   uint64
	boundaries []Boundary
}

// NewFrameChecker knows the log, and the epochs, that sb describes.
func NewFrameChecker(sb *Superblock) *FrameChecker {
	return &FrameChecker{
		g:          sb.Geometry,
		uuidHash:   xxhash.Sum64(sb.UUID[:]),
		boundaries: append([]Boundary(nil), sb.Boundaries...),
	}
}

// Header reads the header at the start of b (FrameHeaderBytes or more), read from
// the place of position. ok: it is a frame of this log, meant for this place,
// written by the epoch in force there, of a length that is possible. In a merged range
// any of its epochs will do, of any incarnation: the chain of sums decides there.
func (c *FrameChecker) Header(b []byte, position uint64) (h FrameHeader, ok bool) {
	h, ok = DecodeFrameHeader(b)
	if !ok || h.UUIDHash != c.uuidHash || h.Position != position || !c.possible(&h) {
		return h, false
	}
	if !c.mayHold(c.inForce(position), &h) {
		return h, false
	}
	// A frame that reaches over the place where a later epoch went on is not the
	// one that it found there.
	i := c.following(position + 1)
	return h, i == len(c.boundaries) || h.End() <= c.boundaries[i].FollowEnd
}

// Whole reports whether frame, the StoredBytes of a frame whose header is h, has the
// checksum that h says.
func (c *FrameChecker) Whole(h *FrameHeader, frame []byte) bool {
	var d xxhash.Digest
	return frameSum(h.Kind, frame, &d) == h.FrameSum
}

// StoredBytes is how much of a frame with header h lies on the device: all of it,
// of a pad only its first block.
func (c *FrameChecker) StoredBytes(h *FrameHeader) int {
	if h.Kind == FramePad {
		return int(c.g.BlockBytes)
	}
	return int(h.LengthBytes)
}

// Next is where the log goes on behind the frame that ends at end: end, or, where
// an epoch jumped, the start of that epoch.
func (c *FrameChecker) Next(end uint64) uint64 {
	i := c.following(end)
	if i < len(c.boundaries) && c.boundaries[i].FollowEnd == end {
		return c.boundaries[i].Start
	}
	return end
}

// possible refuses what no frame at that position can say of itself.
func (c *FrameChecker) possible(h *FrameHeader) bool {
	length, toEnd := uint64(h.LengthBytes), c.g.toRingEnd(h.Position)
	if h.Position%uint64(c.g.BlockBytes) != 0 || length == 0 || length%uint64(c.g.BlockBytes) != 0 || length > toEnd ||
		uint64(h.BodyBytes)+FrameHeaderBytes > length || h.Durable > h.Position {
		return false
	}
	switch h.Kind {
	case FramePad:
		return length == toEnd && h.BodyBytes == 0
	case FrameSeal:
		return length == uint64(c.g.BlockBytes) && h.BodyBytes == 0
	case FrameData:
		return length <= uint64(c.g.MaxFrameBytes)
	case FrameCheckpoint:
		first := h.CheckpointStart == h.Position
		return length <= uint64(c.g.MaxFrameBytes) && h.Part < h.Parts && first == (h.Part == 0) && h.CheckpointStart <= h.Position
	}
	return false
}

// inForce is the index of the boundary in force at a position: the newest that
// starts at or below it. There is none (−1) before the first, and none where a jump
// left the positions void.
func (c *FrameChecker) inForce(position uint64) int {
	i := sort.Search(len(c.boundaries), func(i int) bool { return c.boundaries[i].Start > position })
	if i < len(c.boundaries) && c.boundaries[i].FollowEnd <= position {
		return -1
	}
	return i - 1
}

// mayHold reports whether the frame is of the epoch, or of one of the epochs, of the
// boundary with that index.
func (c *FrameChecker) mayHold(i int, h *FrameHeader) bool {
	if i < 0 {
		return false
	}
	b := &c.boundaries[i]
	if !b.merged() {
		return h.Epoch == b.Epoch && h.IncarnationHash == b.IncarnationHash
	}
	above := uint64(0)
	if i > 0 {
		above = c.boundaries[i-1].Epoch
	}
	return above < h.Epoch && h.Epoch <= b.Epoch
}

// following is the index of the first boundary that follows a frame ending at or
// beyond position.
func (c *FrameChecker) following(position uint64) int {
	return sort.Search(len(c.boundaries), func(i int) bool { return c.boundaries[i].FollowEnd >= position })
}
