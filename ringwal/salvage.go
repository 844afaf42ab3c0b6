package ringwal

import (
	"errors"
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// GapKind says why positions hold no frame.
type GapKind uint8

// The kinds of gaps.
const (
	GapLost GapKind = iota + 1 // acked data that cannot be read
	GapVoid                    // skipped by a start, never held acked data
)

// String is the kind in one lower case word.
func (k GapKind) String() string {
	switch k {
	case GapLost:
		return "lost"
	case GapVoid:
		return "void"
	}
	return fmt.Sprintf("gap %d", uint8(k))
}

// Gap is a range of positions without a readable frame. Where From equals To no
// position is missing, but the frame before it is not the one that the next one
// followed.
type Gap struct {
	Kind     GapKind
	From, To uint64
	Err      error // matches device.ErrRead where the device refused to read some of it
}

// SalvageVisitor is told what survives, in position order. An error ends the
// salvage and is returned as it is.
type SalvageVisitor struct {
	Frame func(*FrameView) error
	Gap   func(Gap) error
}

// Salvage reads every valid frame that was not void, with a gap where acked data is
// missing, and returns the end of the log. Where boundaries were merged, frames
// between two gaps that are less than a longest frame apart are missing too. It reads the ring twice: first for what
// was proven durable, so that it knows a lost frame from a torn tail. It needs
// one readable superblock copy, else ErrDamaged, and writes nothing.
func Salvage(d device.Device, sbs *Superblocks, v SalvageVisitor) (end uint64, err error) {
	sb := sbs.Newest
	if sb == nil {
		return 0, fmt.Errorf("%s: salvage: %w: no superblock can be read", d.Path(), ErrDamaged)
	}
	src, err := newSource(d, sb.Geometry, sb.Trim+sb.CapacityBytes)
	if err != nil {
		return 0, err
	}
	defer src.close()
	s := &salvage{sb: sb, v: v, chain: newChain(src, NewFrameChecker(sb), sb.Trim, sb.TrimPrevSum)}
	s.proven = s.provenDurable()
	if err := s.run(); err != nil {
		return 0, fmt.Errorf("%s: salvage: %w", d.Path(), err)
	}
	return s.chain.end, nil
}

type salvage struct {
	sb     *Superblock
	v      SalvageVisitor
	chain  *chain
	proven uint64 // highest position that anything says was durable
}

// provenDurable asks superblock, boundaries and every header in the ring.
func (s *salvage) provenDurable() uint64 {
	c, block := s.chain, uint64(s.sb.BlockBytes)
	proven := s.sb.Durable
	for _, b := range c.check.boundaries {
		proven = max(proven, b.FollowEnd)
	}
	for at := c.src.onDevice(s.sb.Trim); at < c.src.limit; at = c.src.onDevice(at + block) {
		b, err := c.src.view(at, int(block))
		if err != nil {
			continue
		}
		if h, ok := c.check.Header(b, at); ok {
			proven = max(proven, h.Durable)
		}
	}
	return proven
}

func (s *salvage) run() error {
	c := s.chain
	for {
		before := c.end
		h, frame, err := c.step()
		var broken *DamageError
		if err != nil && !errors.As(err, &broken) && !errors.Is(err, device.ErrRead) {
			return err
		}
		if broken != nil {
			c.sum = c.check.boundaries[c.next].FollowSum
			if err := s.gap(Gap{Kind: GapLost, From: c.end, To: c.end}); err != nil {
				return err
			}
			continue
		}
		if h == nil {
			if c.pos >= s.proven {
				return nil
			}
			if err := s.skip(before, err); err != nil {
				return err
			}
			continue
		}
		if err := s.void(before, h.Position); err != nil {
			return err
		}
		if err := s.frame(h, frame); err != nil {
			return err
		}
	}
}

// skip reports what is lost from the end of the last frame on, and puts the chain
// before the next frame that is whole, or at the proven end.
func (s *salvage) skip(from uint64, cause error) error {
	c, block := s.chain, uint64(s.sb.BlockBytes)
	for at := c.src.onDevice(c.pos); at < c.src.limit; at = c.src.onDevice(at + block) {
		h, _, err := c.frameAt(at)
		if err != nil && cause == nil {
			cause = err
		}
		if h != nil && c.ascends(h) && s.anchored(h) {
			err := s.lost(from, at, cause)
			c.pos, c.end, c.sum = at, at, h.PrevSum
			c.next = c.check.following(at + 1) // one that begins here is crossed already
			return err
		}
	}
	err := s.lost(from, s.proven, cause)
	c.pos, c.end, c.next = s.proven, s.proven, len(c.check.boundaries)
	return err
}

// anchored reports whether h, found behind a gap, is a frame of the log and not one that
// somebody forged in a payload, or that was left in the gap of a pad. The
// incarnation tells, but in a merged range, where none is known. There neither kind
// is part of a chain that is longer than what it lies in, a frame, or that reaches the
// boundary behind the range with its sum. Pads do not count: one claims more than it
// covers.
func (s *salvage) anchored(h *FrameHeader) bool {
	probe := *s.chain
	if !probe.check.boundaries[probe.check.inForce(h.Position)].merged() {
		return true
	}
	probe.pos, probe.end, probe.sum = h.Position, h.Position, h.PrevSum
	probe.next = probe.check.following(h.Position + 1)
	behind := probe.check.boundaries[probe.next] // a merged one is never the last
	for length := uint64(0); length <= uint64(s.sb.MaxFrameBytes); {
		if probe.end == behind.FollowEnd {
			return probe.sum == behind.FollowSum
		}
		next, _, err := probe.step()
		if next == nil || err != nil {
			return false
		}
		if next.Kind != FramePad {
			length += uint64(next.LengthBytes)
		}
	}
	return true
}

// lost reports [from, to), less what was void.
func (s *salvage) lost(from, to uint64, cause error) error {
	if from == to {
		return s.gap(Gap{Kind: GapLost, From: from, To: to, Err: cause})
	}
	for _, b := range s.chain.check.boundaries {
		if b.Start <= from || b.FollowEnd >= to {
			continue
		}
		if b.FollowEnd > from {
			if err := s.gap(Gap{Kind: GapLost, From: from, To: b.FollowEnd, Err: cause}); err != nil {
				return err
			}
		}
		if err := s.void(max(from, b.FollowEnd), min(to, b.Start)); err != nil {
			return err
		}
		from = min(to, b.Start)
	}
	if from == to {
		return nil
	}
	return s.gap(Gap{Kind: GapLost, From: from, To: to, Err: cause})
}

func (s *salvage) void(from, to uint64) error {
	if from == to {
		return nil
	}
	return s.gap(Gap{Kind: GapVoid, From: from, To: to})
}

func (s *salvage) gap(g Gap) error {
	if s.v.Gap == nil {
		return nil
	}
	return s.v.Gap(g)
}

func (s *salvage) frame(h *FrameHeader, frame []byte) error {
	if s.v.Frame == nil {
		return nil
	}
	return s.v.Frame(&FrameView{FrameHeader: *h, Body: frame[FrameHeaderBytes : FrameHeaderBytes+int(h.BodyBytes)]})
}
