package ringwal

import "fmt"

// A start without room
//
// A jump moves the head at each start that has to make one, and only a trim gives the room
// back. So a full log whose owners die one after the other, each before it has trimmed
// anything, runs out of it. What such a start may do, and in which order:
//
//  1. Recovery is over, the fence held. The superblock of the new epoch is written as ever, with
//     its boundary, although the place where that says the epoch begins may be occupied, a
//     lap behind. Nothing is written there, so no byte of the log is in danger: reading
//     never looks further than a ring behind the trim position.
//  2. The manifest is claimed, as ever. Not before: a manifest names only owners that the
//     device has had, or the next start would take the device for an older copy.
//  3. What the manifest lacks of the recovered log is read from the device, uploaded, and
//     committed. All of it lies below the end that this epoch's superblocks prove, so no
//     later start can find the log to be shorter than what is in the store.
//  4. SetTrim, and a superblock that carries the raised trim position and nothing else that
//     is new. It is at most where the newest complete checkpoint begins, which recovery has
//     read: whoever starts next finds it, whichever of the two copies it finds.
//  5. Only when both copies hold it does RoomToBegin count the room, and only then is there
//     a first frame.
//
// A crash between any two steps leaves what a crash of a running owner leaves at the same
// place: a boundary without frames, which the next start's takes the place of; objects that
// no manifest names; a manifest that is ahead of the trim position; one copy with the old
// trim position and one with the new, both of which a recovery can begin at. The next start
// goes through the same steps and finds those done that were. It may begin yet another
// window further on, which costs positions and no room, as nothing is written there.
//
// A trim may not reach a window that was jumped over before T has passed, and not beyond the
// newest checkpoint. Where it frees too little for that, or nothing can be uploaded, there
// is the other way: a jump is only there for writes that may still land. Once T has
// passed since this start became the holder there are none, and Unjump lets the epoch begin
// where the log ends. There is always room for that: appends leave it.

// beginning is how the epoch begins.
type beginning struct {
	end        uint64 // of the log that it goes on with
	jumps      bool
	stateBytes int // of the first checkpoint; 0: the largest
}

// RoomToBegin returns ErrFull while the epoch would use up the log's last room for nothing:
// a jump has to leave room to what frees space; a first checkpoint has to fit, a later
// one need not be written. Only what a superblock in force has trimmed counts.
func (l *Log) RoomToBegin() error { return l.room(l.start, l.trim, l.begins.jumps) }

// RoomOnceTrimmed foresees what RoomToBegin says once the log is trimmed to trim.
func (l *Log) RoomOnceTrimmed(trim uint64) error { return l.room(l.start, trim, l.begins.jumps) }

// RoomInPlace foresees it for an epoch that Unjump has begin where the log ends.
func (l *Log) RoomInPlace(trim uint64) error { return l.room(l.begins.end, trim, false) }

// room is RoomToBegin for an epoch that begins at start.
func (l *Log) room(start, trim uint64, jumps bool) error {
	need, limit := start-trim, l.g.CapacityBytes
	switch {
	case !l.checkpoint.exists:
		state := l.begins.stateBytes
		if state == 0 {
			state = int(l.g.CheckpointMaxBytes)
		}
		need = l.g.checkpointEnd(start, state) - trim
	case jumps:
		limit = l.limits[ClassFree] - min(l.limits[ClassFree], l.g.ControlReserveBytes()/2)
	}
	if need > limit {
		return fmt.Errorf("%w: a start needs %d bytes of the %d that it may use (jump and first checkpoint included)", ErrFull, need, limit)
	}
	return nil
}

// Unjump has the epoch begin where the recovered log ends, and asks for a superblock that
// says so; frames wait for it. It is for the time before the first frame, and may only be
// called once no write of an earlier owner can land any more. Errors: ErrWait (a superblock
// is on its way, or the epoch has begun), or the sticky one.
func (l *Log) Unjump() error {
	w := &l.superblock
	switch {
	case l.err != nil:
		return l.err
	case !l.SuperblockInForce() || l.Head() != l.start || l.durable != l.start || l.checkpoint.active:
		return ErrWait
	}
	sb := *w.current
	own := sb.Boundaries[len(sb.Boundaries)-1]
	own.Start = l.begins.end
	sb.addBoundary(own)
	w.current, w.wanted, w.started = &sb, true, false
	l.begins.jumps = false
	l.start, l.head, l.durable = own.Start, own.Start, own.Start
	return nil
}
