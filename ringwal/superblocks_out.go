package ringwal

import "fmt"

// superblockWriter brings one superblock after the other onto both slots of the
// epoch's set.
type superblockWriter struct {
	current  *Superblock // in force, or until then the one that the start built
	next     *Superblock // being written
	started  bool        // current is in force: frames may be written
	recorded uint64      // durable position of the superblock in force
	sequence uint64      // highest of all copies

	wanted  bool // another update was asked for
	writing bool // a copy is on its way
	copies  int  // of next, that are written

	set      int       // first slot of the epoch's set
	slots    [2]uint64 // sequence of the copy in each of its slots, 0: not valid
	writes   int       // the slot (0 or 1) of the copy that is on its way
	issuedNS int64
	buf      []byte

	trim, trimPrevSum uint64 // asked for
	clean             bool   // asked for
}

// begin makes sb, with its new boundary, the first superblock to write. The epoch
// writes the set that the newest copy is not in: a late write of the owner before
// must not land on its copies. With same it writes the newest copy's set: of that one's
// owner nothing is on its way, but of the owner before it, who wrote the other set, a
// write may be.
func (w *superblockWriter) begin(sbs *Superblocks, sb *Superblock, same bool) {
	w.current = sb
	w.buf = alignedBytes(SlotBytes, int(sb.BlockBytes))
	w.trim, w.trimPrevSum = sb.Trim, sb.TrimPrevSum
	w.recorded = sbs.Newest.Durable
	w.wanted = true
	if inFirst := sbs.NewestSlot < SlotCount/2; inFirst != same {
		w.set = SlotCount / 2
	}
	for i, s := range sbs.Slots {
		if s.State != SlotValid {
			continue
		}
		w.sequence = max(w.sequence, s.Superblock.Sequence)
		if own := i - w.set; own == 0 || own == 1 {
			w.slots[own] = s.Superblock.Sequence
		}
	}
}

// SetTrim asks for a superblock with trim position p, which is where a frame starts, at
// or below the newest checkpoint's start, and with prevSum, the PrevSum of that
// frame. Room grows only when the superblock is in force. A position at or below
// the one asked for last does nothing. Errors: ErrTrim, ErrClosed, or the sticky one.
func (l *Log) SetTrim(p, prevSum uint64) error {
	w := &l.superblock
	switch {
	case l.err != nil:
		return l.err
	case l.closing:
		return ErrClosed
	case p <= w.trim:
		return nil
	case !l.checkpoint.exists || p > l.checkpoint.newest.Start:
		return fmt.Errorf("%w: %d lies beyond the start of the newest checkpoint, %d", ErrTrim, p, l.checkpoint.newest.Start)
	case p%uint64(l.g.BlockBytes) != 0:
		return fmt.Errorf("%w: %d is not where a frame starts", ErrTrim, p)
	case p == l.checkpoint.newest.Start && prevSum != l.checkpoint.newest.PrevSum:
		return fmt.Errorf("%w: the frame before %d has sum %016x, not %016x", ErrTrim, p, l.checkpoint.newest.PrevSum, prevSum)
	}
	for _, b := range w.current.Boundaries {
		if b.FollowEnd > p || p > b.Start {
			continue
		}
		if p != b.FollowEnd && p != b.Start {
			return fmt.Errorf("%w: %d is void, epoch %d jumped from %d to %d", ErrTrim, p, b.Epoch, b.FollowEnd, b.Start)
		}
		if prevSum != b.FollowSum {
			return fmt.Errorf("%w: the frame before %d has sum %016x, not %016x", ErrTrim, p, b.FollowSum, prevSum)
		}
		p = b.Start // what was jumped over is freed too
	}
	w.trim, w.trimPrevSum = p, prevSum
	w.wanted = true
	return nil
}

// RecordDurable asks for a superblock with the present durable position; it is a
// heartbeat too.
func (l *Log) RecordDurable() { l.superblock.wanted = true }

// MarkClean asks for a superblock with the clean flag. Everything must be durable,
// else ErrWait. The log takes nothing more; it is clean when SuperblockInForce.
func (l *Log) MarkClean() error {
	switch {
	case l.err != nil:
		return l.err
	case !l.idle():
		return ErrWait
	}
	l.closing = true
	l.superblock.clean = true
	l.superblock.wanted = true
	return nil
}

// NextSuperblock returns the next superblock copy to write, and where; ok is false
// when there is none, one is being written, or the log has stopped. b is valid until
// SuperblockDone. Its time in flight counts from nowNS.
func (l *Log) NextSuperblock(nowNS int64) (offset int64, b []byte, ok bool) {
	w := &l.superblock
	if l.err != nil || w.writing || w.next == nil && !w.wanted {
		return 0, nil, false
	}
	if w.next == nil {
		w.wanted = false
		w.next = l.buildSuperblock()
		w.writes = 0
		if w.slots[1] < w.slots[0] {
			w.writes = 1
		}
	}
	w.writing = true
	w.issuedNS = nowNS
	n := l.g.roundUp(uint64(EncodeSuperblock(w.buf, w.next)))
	return int64(w.set+w.writes) * SlotBytes, w.buf[:n], true
}

func (l *Log) buildSuperblock() *Superblock {
	w := &l.superblock
	sb := *w.current
	w.sequence++
	sb.Sequence = w.sequence
	sb.Trim, sb.TrimPrevSum = w.trim, w.trimPrevSum
	// Until a checkpoint is durable the log counts as empty: recovery takes a
	// recorded durable position for the promise that there is one. And as long as
	// the epoch has no durable frame, what a jump left void is no part of the log.
	if l.checkpoint.exists && l.durable > l.start {
		sb.Durable = l.durable
	}
	sb.Clean = w.clean
	sb.dropBoundaries()
	return &sb
}

// SuperblockDone reports the end of that write. An error, or one seen L or more after
// NextSuperblock, stops the log for good.
func (l *Log) SuperblockDone(err error, nowNS int64) {
	w := &l.superblock
	w.writing = false
	if l.err != nil {
		return
	}
	if err != nil {
		l.Fail(fmt.Errorf("%w: superblock slot %d: %w", ErrWriteFailed, w.set+w.writes, err))
		return
	}
	if l.stalled(nowNS - w.issuedNS) {
		return
	}
	w.slots[w.writes] = w.next.Sequence
	if w.copies++; w.copies < len(w.slots) {
		w.writes = 1 - w.writes
		return
	}
	w.current, w.next, w.copies = w.next, nil, 0
	w.started = true
	w.recorded = w.current.Durable
	l.trim = w.current.Trim
	l.proven = max(l.proven, w.recorded)
}

// SuperblockInForce reports whether both copies of the epoch hold everything that was
// asked for.
func (l *Log) SuperblockInForce() bool {
	return l.superblock.started && !l.superblock.wanted && l.superblock.next == nil
}

// RecordedDurable is the durable position of the superblock in force. A new log may
// open its doors when it lies beyond the log's origin.
func (l *Log) RecordedDurable() uint64 { return l.superblock.recorded }
