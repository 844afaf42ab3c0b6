package ringwal

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Visitor is told what a recovery reads, in log order. Both may be nil. An error
// ends the recovery and is returned as it is.
type Visitor struct {
	// Frame is called for every frame of every kind.
	Frame func(*FrameView) error

	// Checkpoint is called after the last part of a complete checkpoint that
	// begins at start. state is valid during the call only. The first one gives
	// the state; a later one must equal the state as it stands, else return a
	// *DamageError.
	Checkpoint func(start uint64, state []byte) error
}

// CheckpointMark is where a complete checkpoint lies.
type CheckpointMark struct {
	Start   uint64 // position of its first part
	End     uint64 // behind its last part
	PrevSum uint64 // sum of the frame before Start
}

// Recovery is what was found.
type Recovery struct {
	End    uint64 // behind the last frame of the log
	Next   uint64 // where the next frame would lie: End, or the start of an epoch that wrote nothing yet
	Sum    uint64 // of the last frame
	Proven uint64 // highest position known to have been durable, from superblock, boundaries and frames

	Frames, Records uint64
	BytesRead       uint64

	Checkpoint       CheckpointMark // the newest complete one
	HasCheckpoint    bool
	CheckpointIsLast bool // nothing but seals follows it

	// GhostFrames counts headers of frames behind the end, where frames were
	// submitted and never acked. The next epoch's boundary voids them.
	GhostFrames int

	tail []frameMark // places between frames, from Proven to End
}

// frameMark is a place between two frames, with the sum of the one before it.
type frameMark struct{ position, sum uint64 }

// Recover reads the log from its trim position to its end in one pass, with memory
// that does not depend on the log's length (a checkpoint's state is held while
// it is assembled). It writes nothing. d may be a device.ReadAhead.
//
// Errors: *DamageError (damage to acked data, or no complete checkpoint),
// device.ErrRead (never taken for an end), the visitor's own.
func Recover(d device.Device, sbs *Superblocks, v Visitor) (*Recovery, error) {
	sb := sbs.Newest
	src, err := newSource(d, sb.Geometry, sb.Trim+sb.CapacityBytes)
	if err != nil {
		return nil, err
	}
	defer src.close()
	w := &recovering{
		sb: sb, v: v,
		chain: newChain(src, NewFrameChecker(sb), sb.Trim, sb.TrimPrevSum),
		r:     &Recovery{Proven: sb.Durable},
	}
	if err := w.run(); err != nil {
		return nil, fmt.Errorf("%s: recovery: %w", d.Path(), err)
	}
	w.r.BytesRead = src.bytesRead
	return w.r, nil
}

// recovering is a recovery under way.
type recovering struct {
	sb    *Superblock
	v     Visitor
	chain *chain
	r     *Recovery
	parts assembly
	view  FrameView // of the frame that is being taken
}

func (w *recovering) run() error {
	c, r := w.chain, w.r
	r.tail = append(r.tail, frameMark{c.end, c.sum})
	for {
		h, frame, err := c.step()
		if err != nil {
			return err
		}
		if h == nil {
			break
		}
		if err := w.take(h, frame); err != nil {
			return err
		}
	}
	r.End, r.Next, r.Sum = c.end, c.pos, c.sum
	return w.judgeEnd()
}

// take adds a frame of the chain.
func (w *recovering) take(h *FrameHeader, frame []byte) error {
	r := w.r
	if h.End() > h.Durable+w.sb.WindowBytes {
		return &DamageError{From: h.Position, To: h.End(), Reason: fmt.Sprintf(
			"the frame was issued at durable position %d, beyond the window of %d bytes", h.Durable, w.sb.WindowBytes)}
	}
	r.Frames++
	r.Records += uint64(h.Records)
	r.Proven = max(r.Proven, h.Durable)
	if n := w.chain.next; n > 0 {
		r.Proven = max(r.Proven, w.chain.check.boundaries[n-1].FollowEnd)
	}
	r.mark(frameMark{h.End(), h.Sum})
	if h.Kind != FramePad && h.Kind != FrameSeal {
		r.CheckpointIsLast = false
	}
	w.view = FrameView{FrameHeader: *h, Body: frame[FrameHeaderBytes : FrameHeaderBytes+int(h.BodyBytes)]}
	if w.v.Frame != nil {
		if err := w.v.Frame(&w.view); err != nil {
			return err
		}
	}
	complete, err := w.parts.add(&w.view, w.sb)
	if err != nil || !complete {
		return err
	}
	r.Checkpoint = CheckpointMark{Start: w.parts.start, End: h.End(), PrevSum: w.parts.prevSum}
	r.HasCheckpoint, r.CheckpointIsLast = true, true
	if w.v.Checkpoint != nil {
		return w.v.Checkpoint(w.parts.start, w.parts.state)
	}
	return nil
}

// mark notes a place between frames and forgets those below the proven position,
// but for the last of them. Since head − durable never exceeded the window, what
// stays is bounded by it.
func (r *Recovery) mark(m frameMark) {
	r.tail = append(r.tail, m)
	keep := 0
	for keep+1 < len(r.tail) && r.tail[keep+1].position <= r.Proven {
		keep++
	}
	r.tail = append(r.tail[:0], r.tail[keep:]...)
}

// judgeEnd decides what the first frame that does not chain means: the end of the
// log, or damage to it. docs/format.md has the table.
func (w *recovering) judgeEnd() error {
	sb, hole := w.sb, w.chain.pos
	if rest := w.chain.check.boundaries[w.chain.next:]; len(rest) > 0 {
		last := rest[len(rest)-1]
		return &DamageError{From: hole, To: last.FollowEnd, Reason: fmt.Sprintf(
			"no frame here, and epoch %d found the log to reach %d", last.Epoch, last.FollowEnd)}
	}
	if sb.Durable > hole {
		return &DamageError{From: hole, To: sb.Durable, Reason: fmt.Sprintf(
			"no frame here, and the superblock says that %d was durable", sb.Durable)}
	}
	found, err := w.scan()
	if err != nil {
		return err
	}
	if found != nil {
		return found
	}
	if !w.r.HasCheckpoint && sb.Durable > sb.Origin {
		return &DamageError{From: sb.Trim, To: hole, Reason: "no complete checkpoint, and the superblock says that there was one"}
	}
	return nil
}

// scan looks behind the hole for frames that prove that the hole was durable once, or that the
// log went on elsewhere.
// A header is proof enough: the owner wrote it, whatever became of the rest.
func (w *recovering) scan() (*DamageError, error) {
	c, sb := w.chain, w.sb
	hole, block := c.pos, uint64(sb.BlockBytes)
	end := min(hole+sb.WindowBytes+uint64(sb.MaxFrameBytes)+block, c.src.limit)
	var proof *DamageError
	for at := hole; at < end; at += block {
		b, err := c.src.view(at, int(block))
		if err != nil {
			if proof != nil {
				return proof, nil
			}
			return nil, err
		}
		h, ok := DecodeFrameHeader(b)
		if !ok || h.UUIDHash != c.check.uuidHash {
			continue
		}
		if _, mine := c.check.Header(b, at); mine {
			w.r.GhostFrames++
			if h.Durable > hole && (proof == nil || h.Durable > proof.To) {
				proof = &DamageError{From: hole, To: h.Durable, Reason: fmt.Sprintf(
					"no frame here, and the frame at %d says that %d was durable", at, h.Durable)}
			}
		} else if proof == nil && h.Position == at && h.Epoch > sb.Epoch && h.PrevSum == c.sum {
			// The first frame of a later epoch, whose superblock is lost. No client
			// can forge it in a payload: nobody outside knows the sum.
			proof = &DamageError{From: hole, To: h.Position, Reason: fmt.Sprintf(
				"the log goes on at %d in epoch %d, later than every superblock that can be read", h.Position, h.Epoch)}
		}
	}
	return proof, nil
}

// assembly puts a checkpoint's parts together.
type assembly struct {
	active  bool
	start   uint64
	prevSum uint64
	epoch   uint64
	parts   uint32
	next    uint32
	state   []byte
}

// add takes the next frame of the log and reports whether it completes a checkpoint.
// Parts follow each other with nothing but pads between; what does not is an
// unfinished checkpoint and is dropped.
func (a *assembly) add(f *FrameView, sb *Superblock) (bool, error) {
	if f.Kind == FramePad {
		return false, nil
	}
	if f.Kind != FrameCheckpoint {
		a.active = false
		return false, nil
	}
	if f.Part == 0 {
		*a = assembly{active: true, start: f.Position, prevSum: f.PrevSum, epoch: f.Epoch, parts: f.Parts, state: a.state[:0]}
	}
	if !a.active || f.CheckpointStart != a.start || f.Epoch != a.epoch || f.Parts != a.parts || f.Part != a.next {
		a.active = false
		return false, nil
	}
	size := uint64(len(a.state)) + uint64(len(f.Body))
	if size > sb.CheckpointMaxBytes {
		return false, &DamageError{From: a.start, To: f.End(), Reason: fmt.Sprintf(
			"a checkpoint of %d bytes or more, over the limit of %d", size, sb.CheckpointMaxBytes)}
	}
	if a.state == nil {
		a.state = make([]byte, 0, min(uint64(a.parts)*uint64(len(f.Body)), sb.CheckpointMaxBytes))
	}
	a.state = append(a.state, f.Body...)
	a.next++
	if a.next < a.parts {
		return false, nil
	}
	a.active = false
	return true, nil
}
