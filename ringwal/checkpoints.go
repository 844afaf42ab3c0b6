package ringwal

import "fmt"

// checkpointWriter is the checkpoint being written, and the newest durable one.
type checkpointWriter struct {
	active bool
	state  []byte
	at     int // bytes of state that are queued
	start  uint64
	part   uint32
	parts  uint32

	first  CheckpointMark // of the parts that are durable so far
	newest CheckpointMark
	exists bool
}

// Checkpoint writes state as the next frames of the log; items wait until its last
// part is queued. The log reads state until CheckpointUnderWay is false. Errors:
// ErrTooLarge, ErrFull, ErrWait (one is under way, the superblock is not in
// force), ErrClosed, or the sticky one.
func (l *Log) Checkpoint(state []byte) error {
	switch {
	case l.err != nil:
		return l.err
	case l.closing:
		return ErrClosed
	case uint64(len(state)) > l.g.CheckpointMaxBytes:
		return fmt.Errorf("%w: a checkpoint of %d bytes, the limit of this log is %d", ErrTooLarge, len(state), l.g.CheckpointMaxBytes)
	case !l.superblock.started || l.checkpoint.active:
		return ErrWait
	}
	c := &l.checkpoint
	partBytes := l.g.MaxItemBytes()
	parts := max(1, (len(state)+partBytes-1)/partBytes)
	if l.g.checkpointEnd(l.Head(), len(state))-l.trim > l.limits[classSystem] {
		return ErrFull
	}
	l.closeOpen(0)
	c.active, c.state, c.at, c.part, c.parts = true, state, 0, 0, uint32(parts)
	return nil
}

// CheckpointUnderWay reports whether parts of a checkpoint are still to be queued.
func (l *Log) CheckpointUnderWay() bool { return l.checkpoint.active }

// NewestCheckpoint is the newest complete durable checkpoint, false when there is
// none.
func (l *Log) NewestCheckpoint() (CheckpointMark, bool) {
	return l.checkpoint.newest, l.checkpoint.exists
}

// nextPart queues the next part of the checkpoint, or the pad before it, unless
// window or buffers say wait. Its room was asked for at the beginning.
func (l *Log) nextPart() {
	c := &l.checkpoint
	body := min(len(c.state)-c.at, l.g.MaxItemBytes())
	size := FrameHeaderBytes + body
	if gap := l.g.toRingEnd(l.head); gap < l.g.roundUp(uint64(size)) {
		_ = l.pad(l.head, gap) // ErrWait: the next call tries again
		return
	}
	if l.fits(classSystem, l.head, size) != nil {
		return
	}
	f := l.newFrame(FrameCheckpoint, l.head, int(l.g.roundUp(uint64(size))))
	if f == nil {
		return
	}
	if c.part == 0 {
		c.start = f.Position
	}
	f.CheckpointStart, f.Part, f.Parts = c.start, c.part, c.parts
	copy(f.Buf[FrameHeaderBytes:], c.state[c.at:c.at+body])
	l.finish(f, size)
	c.at += body
	c.part++
	if c.part == c.parts {
		c.active, c.state = false, nil
	}
}

// durable notes a part that became durable, and reports whether it was the last.
func (c *checkpointWriter) durable(f *Frame) bool {
	if f.Part == 0 {
		c.first = CheckpointMark{Start: f.Position, PrevSum: f.PrevSum}
	}
	if f.Part+1 < f.Parts {
		return false
	}
	c.newest = c.first
	c.newest.End = f.End()
	c.exists = true
	return true
}
