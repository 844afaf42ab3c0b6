package ringwal

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// VerifyTail reads the frames between r.Proven and r.End again, after the owner has
// flushed the device: what was only in a cache may be gone. ErrTailChanged:
// recover again. Else device.ErrRead. d must not hold what it read before the
// flush (a device.ReadAhead forgets it at Flush).
func VerifyTail(d device.Device, sbs *Superblocks, r *Recovery) error {
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
