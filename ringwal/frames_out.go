package ringwal

import "fmt"

// Frame is a frame of the write path. From Next to Release it is the caller's, who
// changes nothing but Owner.
type Frame struct {
	FrameHeader
	Buf    []byte // what to write; of a pad only its first block
	Offset int64  // where on the device
	Owner  any    // the caller's; nil after Release

	ClosedNS    int64 // CloseFrame; IssuedNS where the log closed it by itself
	IssuedNS    int64 // Next
	CompletedNS int64 // Complete

	state frameState
}

type frameState uint8

const (
	frameBuilding frameState = iota
	frameInFlight
	frameDone
)

// Reserve takes n bytes (1..MaxItemBytes) of the open frame for one item that holds
// records records, and returns them with the item's position. The caller fills all
// of dst before the next call. It closes frames and pads the ring's end as needed.
// Errors: ErrFull, ErrWait, ErrTooLarge, ErrClosed, or the sticky one.
func (l *Log) Reserve(c Class, n, records int) (dst []byte, position uint64, err error) {
	if err := l.admit(n); err != nil {
		return nil, 0, err
	}
	need := (n + ItemAlignBytes - 1) &^ (ItemAlignBytes - 1)
	if l.open == nil || l.openUsed+need > len(l.open.Buf) {
		if err := l.openFrame(c, need); err != nil {
			return nil, 0, err
		}
	} else if err := l.fits(c, l.open.Position, l.openUsed+need); err != nil {
		return nil, 0, err
	}
	from, to := l.openUsed, l.openUsed+need
	clear(l.open.Buf[from+n : to])
	l.openUsed = to
	l.open.Items++
	l.open.Records += uint32(records)
	return l.open.Buf[from : from+n : from+n], l.open.Position + uint64(from), nil
}

// OpenEnd is where the next item goes if it takes no more than left bytes, padding
// included: behind the last one, in the same frame. 0, 0: no frame is open.
func (l *Log) OpenEnd() (position uint64, left int) {
	if l.open == nil {
		return 0, 0
	}
	return l.open.Position + uint64(l.openUsed), len(l.open.Buf) - l.openUsed
}

// admit tells whether the log takes items at all.
func (l *Log) admit(n int) error {
	switch {
	case l.err != nil:
		return l.err
	case l.closing:
		return ErrClosed
	case n < 1 || n > l.g.MaxItemBytes():
		return ErrTooLarge
	case !l.superblock.started || l.superblock.recorded == l.origin || l.checkpoint.active:
		return ErrWait
	}
	return nil
}

// fits asks room and window for a frame at position with its first used bytes.
func (l *Log) fits(c Class, position uint64, used int) error {
	end := position + l.g.roundUp(uint64(used))
	if end-l.trim > l.limits[c] {
		return ErrFull
	}
	if end-l.durable > l.g.WindowBytes {
		return ErrWait
	}
	return nil
}

// openFrame closes the open frame, if there is one, and opens the next with room for
// need bytes behind its header.
func (l *Log) openFrame(c Class, need int) error {
	size := FrameHeaderBytes + need
	head := l.Head()
	if gap := l.g.toRingEnd(head); gap < l.g.roundUp(uint64(size)) {
		if head+gap+l.g.roundUp(uint64(size))-l.trim > l.limits[c] {
			return ErrFull // before the pad: what is refused uses up nothing
		}
		if err := l.pad(head, gap); err != nil {
			return err
		}
		head += gap
	}
	if err := l.fits(c, head, size); err != nil {
		return err
	}
	l.closeOpen(0)
	longest := max(l.frameBytes, l.g.roundUp(uint64(size)))
	f := l.newFrame(FrameData, head, int(min(longest, l.g.toRingEnd(head))))
	if f == nil {
		return ErrWait
	}
	l.open, l.openUsed = f, FrameHeaderBytes
	return nil
}

// pad closes the open frame and fills the gap to the ring's end.
func (l *Log) pad(head, gap uint64) error {
	if head+gap-l.durable > l.g.WindowBytes {
		return ErrWait
	}
	l.closeOpen(0)
	f := l.newFrame(FramePad, head, int(l.g.BlockBytes))
	if f == nil {
		return ErrWait
	}
	f.LengthBytes = uint32(gap)
	clear(f.Buf)
	l.enqueue(f)
	return nil
}

// newFrame is a frame at the head with n bytes of memory, nil when there are none.
func (l *Log) newFrame(kind FrameKind, position uint64, n int) *Frame {
	buf := l.buffers.Acquire(position, n)
	if buf == nil {
		return nil
	}
	var f *Frame
	if last := len(l.free) - 1; last >= 0 {
		f, l.free = l.free[last], l.free[:last]
	} else {
		f = new(Frame)
	}
	f.FrameHeader = l.identity
	f.Kind, f.Position = kind, position
	f.Buf, f.Offset = buf, l.g.DeviceOffset(position)
	return f
}

// enqueue puts a finished frame, whose length is set, at the head of the log.
func (l *Log) enqueue(f *Frame) {
	l.queued.push(f)
	l.head = f.End()
}

// CloseFrame ends the open frame, so that Next returns it. It does nothing when none
// is open.
func (l *Log) CloseFrame(nowNS int64) { l.closeOpen(nowNS) }

func (l *Log) closeOpen(nowNS int64) {
	f := l.open
	if f == nil {
		return
	}
	f.ClosedNS = nowNS
	l.finish(f, l.openUsed)
	l.open, l.openUsed = nil, 0
}

// finish sets the length of a frame that used that many bytes of its memory, zeroes
// what the device gets beyond them, and queues it.
func (l *Log) finish(f *Frame, used int) {
	length := int(l.g.roundUp(uint64(used)))
	clear(f.Buf[used:length])
	l.buffers.Shrink(f.Position, length)
	f.Buf = f.Buf[:length:length]
	f.LengthBytes, f.BodyBytes = uint32(length), uint32(used-FrameHeaderBytes)
	l.enqueue(f)
}

// OpenBytes is the length that the open frame would be written with, 0 when none is
// open.
func (l *Log) OpenBytes() int { return int(l.g.roundUp(uint64(l.openUsed))) }

// QueuedBytes is what Next has yet to return of closed frames, in bytes to write.
func (l *Log) QueuedBytes() int {
	n := 0
	for i := range l.queued.count {
		n += len(l.queued.at(i).Buf)
	}
	return n
}

// NextBytes is the length of the frame that Next would return once CloseFrame was
// called, 0 when there is none.
func (l *Log) NextBytes() int {
	switch {
	case l.queued.count > 0:
		return len(l.queued.first().Buf)
	case l.checkpoint.active:
		rest := FrameHeaderBytes + len(l.checkpoint.state) - l.checkpoint.at
		return int(min(l.g.roundUp(uint64(rest)), uint64(l.g.MaxFrameBytes)))
	}
	return l.OpenBytes()
}

// LimitFrames makes frames of several items no longer than n bytes from now on; one
// item may still take the longest frame. It does nothing for n of a block or less.
func (l *Log) LimitFrames(n int) {
	if n > int(l.g.BlockBytes) {
		l.frameBytes = min(uint64(l.g.MaxFrameBytes), uint64(n)&^(uint64(l.g.BlockBytes)-1))
	}
}

// InFlight is the number of frames that Next returned and Complete has not seen.
func (l *Log) InFlight() int { return l.inFlight }

// Next returns the next frame to write, in log order, nil when there is none. The
// caller submits it right away: its time in flight counts from nowNS.
func (l *Log) Next(nowNS int64) *Frame {
	if l.err != nil || !l.superblock.started || l.inFlight > 0 && l.stalled(nowNS-l.flight.first().IssuedNS) {
		return nil
	}
	if l.queued.count == 0 && l.checkpoint.active {
		l.nextPart()
	}
	if l.queued.count == 0 {
		return nil
	}
	f := l.queued.pop()
	f.IssuedNS = nowNS
	if f.ClosedNS == 0 {
		f.ClosedNS = nowNS
	}
	f.PrevSum, f.Durable = l.sum, l.durable
	encodeFrame(f.Buf, &f.FrameHeader, &l.digest)
	l.sum = f.Sum
	f.state = frameInFlight
	l.flight.push(f)
	l.inFlight++
	return f
}

// Complete reports the end of a frame's write, in any order, and returns the durable
// position, which moves over completed frames without a gap. An error, or a
// completion seen L or more after Next, stops the log for good: nothing becomes
// durable any more, and what is in flight has an unknown outcome.
func (l *Log) Complete(f *Frame, err error, nowNS int64) (durable uint64) {
	if f.state != frameInFlight {
		panic(fmt.Sprintf("ringwal: frame at %d completed, and it was not in flight", f.Position))
	}
	f.state = frameDone
	f.CompletedNS = nowNS
	l.inFlight--
	if l.err != nil {
		return l.durable
	}
	if err != nil {
		l.Fail(fmt.Errorf("%w: frame at position %d: %w", ErrWriteFailed, f.Position, err))
		return l.durable
	}
	if l.stalled(nowNS - f.IssuedNS) {
		return l.durable
	}
	for l.flight.count > 0 && l.flight.first().state == frameDone {
		f := l.flight.pop()
		l.durable = f.End()
		l.becameDurable(f)
		l.done.push(f)
	}
	return l.durable
}

func (l *Log) becameDurable(f *Frame) {
	l.proven = max(l.proven, f.Durable)
	if f.Kind != FrameSeal {
		l.toProve = f.End()
	}
	if f.Kind == FrameCheckpoint && l.checkpoint.durable(f) && l.superblock.recorded == l.origin {
		l.RecordDurable() // opens the doors of a new log
	}
}

// PopDurable returns the next frame that became durable, in log order, nil when there
// is none. The caller gives it back with Release.
func (l *Log) PopDurable() *Frame {
	if l.done.count == 0 {
		return nil
	}
	return l.done.pop()
}

// Release gives back a frame that PopDurable returned.
func (l *Log) Release(f *Frame) {
	*f = Frame{}
	l.free = append(l.free, f)
}

// Seal queues a seal frame if anything but seals was written since the last proof,
// and nothing is open, queued or in flight. It reports whether it did.
func (l *Log) Seal(nowNS int64) bool {
	if l.err != nil || l.closing || l.toProve <= l.proven || !l.idle() ||
		l.head+uint64(l.g.BlockBytes)-l.trim > l.limits[classSystem] {
		return false
	}
	f := l.newFrame(FrameSeal, l.head, int(l.g.BlockBytes))
	if f == nil {
		return false
	}
	f.ClosedNS = nowNS
	l.finish(f, FrameHeaderBytes)
	return true
}

// idle tells that everything that was taken is durable.
func (l *Log) idle() bool {
	return l.superblock.started && l.open == nil && l.queued.count == 0 && l.inFlight == 0 && !l.checkpoint.active
}
