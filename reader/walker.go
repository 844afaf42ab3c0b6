package reader

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// CursorBytes is what a cursor's buffer takes at first; it grows to the longest
// frame only when such a frame is met.
const CursorBytes = 128 << 10

// walker reads durable frames into a buffer of its own, from the hot tail while it
// holds them, else from the device. One goroutine.
type walker struct {
	r     *Reader
	arena *device.Arena
	buf   []byte // the arena's memory: aligned, as direct I/O needs it
	base  uint64 // position of buf[0]
	have  int    // valid bytes of buf
	raw   bool   // they came from the device and are yet to be checked
}

// frame returns the frame at position, which lies below durable and is the start
// of a frame. Its body is valid until the next call.
func (w *walker) frame(position, durable uint64) (ringwal.FrameView, error) {
	b, err := w.bytes(position, ringwal.FrameHeaderBytes, durable)
	if err != nil {
		return ringwal.FrameView{}, err
	}
	h, ok := w.r.check.Header(b, position)
	if !ok {
		return ringwal.FrameView{}, w.unreadable(position, "its header")
	}
	if h.Kind == ringwal.FramePad { // only its first block was ever written
		return ringwal.FrameView{FrameHeader: h}, nil
	}
	if b, err = w.bytes(position, int(h.LengthBytes), durable); err != nil {
		return ringwal.FrameView{}, err
	}
	b = b[:h.LengthBytes]
	if w.raw && !w.r.check.Whole(&h, b) {
		return ringwal.FrameView{}, w.unreadable(position, "its checksum")
	}
	body := b[ringwal.FrameHeaderBytes:][:h.BodyBytes]
	return ringwal.FrameView{FrameHeader: h, Body: body}, nil
}

// holds reports whether the whole frame at position is in the buffer already.
func (w *walker) holds(position uint64) bool {
	if position < w.base || position+ringwal.FrameHeaderBytes > w.base+uint64(w.have) {
		return false
	}
	h, ok := w.r.check.Header(w.buf[position-w.base:w.have], position)
	return ok && (h.Kind == ringwal.FramePad || h.End() <= w.base+uint64(w.have))
}

// bytes returns the log's bytes from position on, at least need of them.
func (w *walker) bytes(position uint64, need int, durable uint64) ([]byte, error) {
	if position >= w.base && position+uint64(need) <= w.base+uint64(w.have) {
		return w.buf[position-w.base : w.have], nil
	}
	if err := w.room(need); err != nil {
		return nil, err
	}
	toRingEnd := w.r.geo.CapacityBytes - position%w.r.geo.CapacityBytes
	n := int(min(uint64(len(w.buf)), durable-position, toRingEnd))
	w.base, w.have = position, 0
	if got := w.r.tail.Copy(w.buf[:n], position); got >= need {
		w.have, w.raw = got, false
		return w.buf[:got], nil
	}
	if position < w.r.Trim() {
		return nil, errTrimmed // only the tail had it, a moment ago
	}
	if n < need {
		return nil, w.unreadable(position, "its length")
	}
	if _, err := w.r.dev.ReadAt(w.buf[:n], w.r.geo.DeviceOffset(position)); err != nil {
		return nil, fmt.Errorf("read the log at position %d: %w", position, err)
	}
	w.have, w.raw = n, true
	return w.buf[:n], nil
}

// room makes the buffer hold at least need bytes.
func (w *walker) room(need int) error {
	if need <= len(w.buf) {
		return nil
	}
	size := CursorBytes
	for size < need {
		size *= 2
	}
	arena, err := device.NewArena(size)
	if err != nil {
		return fmt.Errorf("memory for reading the log: %w", err)
	}
	w.close()
	w.arena, w.buf = arena, arena.Bytes()
	return nil
}

// unreadable is the error for a frame that is not what was written, unless the
// log has been trimmed past it meanwhile.
func (w *walker) unreadable(position uint64, what string) error {
	w.have = 0
	w.r.mu.RLock()
	trim := w.r.trim
	w.r.mu.RUnlock()
	if position < trim {
		return errTrimmed
	}
	return fmt.Errorf("position %d: %s: %w: %w: run `walsidecar verify` on the log", position, what, ErrUnreadable, ringwal.ErrDamaged)
}

func (w *walker) close() {
	if w.arena != nil {
		_ = w.arena.Free()
	}
	w.arena, w.buf, w.have = nil, nil, 0
}
