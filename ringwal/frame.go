package ringwal

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
	FrameSum        uint64 // over the header before it and all behind the header
	Sum             uint64 // the header's sum, which the next frame carries
}

// End is the position behind the frame.
func (h *FrameHeader) End() uint64 { return h.Position + uint64(h.LengthBytes) }

// DecodeFrameHeader reads the header at the start of b, which holds at least
// FrameHeaderBytes. ok tells that magic, version and the header's own checksum
// hold; whether the frame belongs where it was found is for the caller to judge.
func DecodeFrameHeader(b []byte) (h FrameHeader, ok bool) { panic("skeleton") }

// FrameView is a frame as it was read.
type FrameView struct {
	FrameHeader
	Body []byte // the used bytes; valid during the call only
}

// FrameChecker tells which frames belong to a log: by identity, position and the
// epoch in force there. It never changes, and may be used from any goroutine.
type FrameChecker struct{}

// NewFrameChecker knows the log, and the epochs, that sb describes.
func NewFrameChecker(sb *Superblock) *FrameChecker { panic("skeleton") }

// Header reads the header at the start of b (FrameHeaderBytes or more), read from
// the place of position. ok: it is a frame of this log, meant for this place,
// written by the epoch in force there, of a length that is possible.
func (c *FrameChecker) Header(b []byte, position uint64) (h FrameHeader, ok bool) {
	panic("skeleton")
}

// Whole reports whether frame, the h.StoredBytes() bytes of a frame whose header
// is h, has the checksum that h says.
func (c *FrameChecker) Whole(h *FrameHeader, frame []byte) bool { panic("skeleton") }

// Next is where the log goes on behind the frame that ends at end: end, or, where
// an epoch jumped, the start of that epoch.
func (c *FrameChecker) Next(end uint64) uint64 { panic("skeleton") }
