package ringwal

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// VerifyTail reads the superblocks and the frames between r.Proven and r.End again,
// after the owner has flushed the device: what was only in a cache may be gone.
// ErrTailChanged: read the superblocks and recover again. Else device.ErrRead. d
// must not hold what it read before the flush (a device.ReadAhead forgets it at Flush).
func VerifyTail(d device.Device, sbs *Superblocks, r *Recovery) error {
	if err := sbs.verify(d); err != nil {
		return fmt.Errorf("%s: %w", d.Path(), err)
	}
	sb := sbs.Newest
	src, err := newSource(d, sb.Geometry, r.End)
	if err != nil {
		return err
	}
	defer src.close()
	first := r.tail[0]
	c := newChain(src, NewFrameChecker(sb), first.position, first.sum)
	for c.end < r.End {
		h, _, err := c.step()
		if err != nil {
			return fmt.Errorf("%s: second read of the tail: %w", d.Path(), err)
		}
		if h == nil {
			return fmt.Errorf("%s: %w: the frame at %d is gone", d.Path(), ErrTailChanged, c.pos)
		}
	}
	if c.sum != r.Sum {
		return fmt.Errorf("%s: %w: the frame that ends at %d is another one", d.Path(), ErrTailChanged, c.end)
	}
	return nil
}

// verify reads the slots again. A start writes first the copy that is not valid, so it
// has to know which one that is.
func (sbs *Superblocks) verify(d device.Device) error {
	again, _ := ReadSuperblocks(d) // what is wrong with a slot is in its state
	for i := range sbs.Slots {
		was, is := &sbs.Slots[i], &again.Slots[i]
		switch {
		case is.State != was.State && is.State == SlotUnreadable:
			return is.Err
		case is.State != was.State || is.State == SlotValid && (is.Superblock.newer(was.Superblock) || was.Superblock.newer(is.Superblock)):
			return fmt.Errorf("%w: superblock slot %d was %s and is %s", ErrTailChanged, i, was.State, is.State)
		}
	}
	return nil
}
