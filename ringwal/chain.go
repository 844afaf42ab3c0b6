package ringwal

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// readBytes is how much of the ring is asked for at once: enough that a disk streams.
const readBytes = 4 << 20

// source reads the ring by position through one fixed buffer.
type source struct {
	d     device.Device
	g     Geometry
	limit uint64 // positions at or beyond it are never read
	arena *device.Arena
	buf   []byte // of readBytes, or the whole ring where that is smaller

	from, to     uint64 // positions that buf holds
	carefulUntil uint64 // below it a big read failed: read only what is needed
	bytesRead    uint64
}

func newSource(d device.Device, g Geometry, limit uint64) (*source, error) {
	size := min(max(readBytes, uint64(g.MaxFrameBytes)), g.CapacityBytes)
	arena, err := device.NewArena(int(size))
	if err != nil {
		return nil, err
	}
	return &source{d: d, g: g, limit: limit, arena: arena, buf: arena.Bytes()}, nil
}

func (s *source) close() { _ = s.arena.Free() } // an arena that cannot be unmapped is only memory

// view returns the n bytes at position, n a multiple of the block, not beyond the
// ring's end and at most a frame. They are valid until the next call.
func (s *source) view(position uint64, n int) ([]byte, error) {
	end := position + uint64(n)
	if position < s.from || position > s.to || s.from == s.to {
		s.from, s.to = position, position
	}
	if end > s.to {
		// Keep what is there of the bytes asked for, at the buffer's start.
		copy(s.buf, s.buf[position-s.from:s.to-s.from])
		s.from = position
		if err := s.fill(end); err != nil {
			return nil, err
		}
	}
	at := position - s.from
	return s.buf[at : at+uint64(n)], nil
}

// onDevice is the first position from p on that lies on the device: a log may have been
// cut, or its superblock may say what is not so.
func (s *source) onDevice(p uint64) uint64 {
	if s.g.DeviceOffset(p)+int64(s.g.BlockBytes) > s.d.SizeBytes() {
		return p + s.g.toRingEnd(p)
	}
	return p
}

// fill reads on from s.to, at least to need, else as far as the buffer, the ring's
// end and the limit let it.
func (s *source) fill(need uint64) error {
	far := min(s.from+uint64(len(s.buf)), s.to+s.g.toRingEnd(s.to), max(s.limit, need))
	if s.to < s.carefulUntil {
		far = need
	}
	err := s.read(far)
	if err != nil && far > need {
		// Somewhere in what nobody has asked for yet there is a bad place, which
		// may lie behind the log's end.
		s.carefulUntil = far
		err = s.read(need)
	}
	return err
}

func (s *source) read(to uint64) error {
	if _, err := s.d.ReadAt(s.buf[s.to-s.from:to-s.from], s.g.DeviceOffset(s.to)); err != nil {
		return fmt.Errorf("position %d: %w", s.to, err)
	}
	s.bytesRead += to - s.to
	s.to = to
	return nil
}

// chain follows the log frame by frame from a position whose preceding sum is known.
type chain struct {
	src   *source
	check *FrameChecker

	pos  uint64 // where the next frame is looked for
	sum  uint64 // of the frame before pos
	end  uint64 // end of that frame: below pos where an epoch jumped
	next int    // first boundary at or beyond end

	epoch       uint64 // of the frame taken last; 0: none yet
	incarnation uint64 // its hash

	found FrameHeader // what frameAt returned last
}

func newChain(src *source, check *FrameChecker, position, sum uint64) *chain {
	return &chain{src: src, check: check, pos: position, sum: sum, end: position, next: check.following(position)}
}

// step returns the next frame, or nil where the chain ends: c.pos is then the place of
// the first frame that is missing. The bytes are valid until the next call.
func (c *chain) step() (*FrameHeader, []byte, error) {
	if err := c.cross(); err != nil {
		return nil, nil, err
	}
	if c.pos >= c.src.limit {
		return nil, nil, nil
	}
	h, frame, err := c.frameAt(c.pos)
	if h == nil || h.PrevSum != c.sum || !c.ascends(h) {
		return nil, nil, err
	}
	c.follow(h)
	return h, frame, nil
}

// cross enters the epoch that follows here, if one does.
func (c *chain) cross() error {
	if c.next == len(c.check.boundaries) || c.check.boundaries[c.next].FollowEnd != c.end {
		return nil
	}
	b := c.check.boundaries[c.next]
	if b.FollowSum != c.sum {
		return &DamageError{From: c.end, To: c.end, Reason: fmt.Sprintf(
			"epoch %d follows a frame with sum %016x, the frame here has %016x", b.Epoch, b.FollowSum, c.sum)}
	}
	c.pos = b.Start
	c.next++
	return nil
}

func (c *chain) follow(h *FrameHeader) {
	c.pos, c.end, c.sum = h.End(), h.End(), h.Sum
	c.epoch, c.incarnation = h.Epoch, h.IncarnationHash
}

// ascends reports whether h may come behind the frame taken last: epochs never fall,
// and one epoch has one incarnation. But for merged ranges the boundaries say so.
func (c *chain) ascends(h *FrameHeader) bool {
	return h.Epoch > c.epoch || h.Epoch == c.epoch && h.IncarnationHash == c.incarnation
}

// frameAt returns the frame at position if there is a whole one that belongs there.
func (c *chain) frameAt(position uint64) (*FrameHeader, []byte, error) {
	b, err := c.src.view(position, int(c.check.g.BlockBytes))
	if err != nil {
		return nil, nil, err
	}
	h, ok := c.check.Header(b, position)
	if !ok || h.End() > c.src.limit {
		return nil, nil, nil
	}
	c.found = h
	frame, err := c.src.view(position, c.check.StoredBytes(&h))
	if err != nil {
		return nil, nil, err
	}
	if !c.check.Whole(&c.found, frame) {
		return nil, nil, nil
	}
	return &c.found, frame, nil
}
