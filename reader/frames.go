package reader

import "github.com/walsidecar/walsidecar/ringwal"

// Frames reads whole durable frames, from memory while the hot tail has them, else from
// the device. One goroutine; Close frees its memory.
type Frames struct{ walk walker }

// Frames returns a reader of frames.
func (r *Reader) Frames() *Frames { return &Frames{walk: walker{r: r}} }

// At returns the frame at position, or, where an epoch jumped there, the first one
// behind it, and the position of the one after it. The position lies at or above the
// trim position and below the durable one. The body is valid until the next call. A
// frame that came from the device was checked whole, one from memory is what was written.
func (f *Frames) At(position uint64) (view ringwal.FrameView, next uint64, err error) {
	r := f.walk.r
	if view, err = f.walk.frame(r.check.Next(position), r.Durable()); err != nil {
		return view, 0, err
	}
	return view, r.check.Next(view.End()), nil
}

// Close frees the memory; what At returned is no longer valid.
func (f *Frames) Close() { f.walk.close() }

// FrameBehind returns where the next frame begins, if one does, behind a frame that
// ends at position: there, or where the epoch that follows it begins.
func (r *Reader) FrameBehind(position uint64) uint64 { return r.check.Next(position) }

// FrameBelow returns where a frame begins that ends at position or below it: the newest
// that is known of without reading. found is false where there is none above the trim
// position.
func (r *Reader) FrameBelow(position uint64) (at uint64, found bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if at, found = r.marks.below(max(position, 1) - 1); at < r.trim {
		return 0, false
	}
	return at, found
}
