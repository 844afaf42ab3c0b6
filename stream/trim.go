package stream

import (
	"math"

	"github.com/walsidecar/walsidecar/ringwal"
)

// TrimPlan says how far the log may be trimmed, and what holds it there.
type TrimPlan struct {
	// Target is the position that the log may be trimmed to: the start of a frame.
	Target uint64
	// Records is where Target would be if the newest checkpoint did not hold it: at
	// most the durable position, and the start of a frame at or below the first
	// record that is still wanted.
	Records uint64
	// Pinned is the stream whose first record lies lowest in the log, 0 when no
	// stream holds records. In a full log without a store it is the one to trim.
	Pinned ID
	// PinnedName and PinnedFirst are its name and its first offset.
	PinnedName  string
	PinnedFirst uint64
}

// PlanTrim returns how far the log may be trimmed. d and x are fed with durable
// frames alone and are at the same place; checkpointStart is the start of the newest
// complete durable checkpoint, durable the durable position or, when they are behind,
// the end of the last frame that they were fed with.
func PlanTrim(d *Directory, x *Index, checkpointStart, durable uint64) TrimPlan {
	lowest := uint64(math.MaxUint64)
	var pinned *streamState
	for _, s := range d.streams.byName {
		if s.first == s.next {
			continue
		}
		// Without an entry nothing is known of where the records lie: position 0
		// lets nothing go.
		if position, _ := x.Find(s.id, s.first); position < lowest {
			lowest, pinned = position, s
		}
	}
	plan := TrimPlan{Records: min(lowest, durable)}
	plan.Target = min(plan.Records, checkpointStart)
	if pinned != nil {
		plan.Pinned, plan.PinnedName, plan.PinnedFirst = pinned.id, pinned.name, pinned.first
	}
	return plan
}

// CheckpointDue reports whether a new checkpoint is worth its place in the log.
// trimLimit is where the log could be trimmed to but for its newest checkpoint
// ([TrimPlan].Records, or the uploaded position where that is lower).
//
// A checkpoint serves to move the trim position, so it is due once it would free 16
// times what it takes and a fair part of the ring; and, when appends are short of
// room, once it would free twice what it takes. A log whose newest checkpoint is the
// last thing in it needs none.
func (c *Committer) CheckpointDue(trimLimit uint64) bool {
	mark, complete := c.log.NewestCheckpoint()
	switch {
	case c.log.CheckpointUnderWay() || c.log.Err() != nil:
		return false
	case !complete:
		return !c.asked
	case c.asked && mark.Start < c.checkpointAt:
		return false // the newest one is not durable yet
	case c.log.Head() <= mark.End || trimLimit <= mark.Start:
		return false
	}
	g := c.geometry
	gain, cost := trimLimit-mark.Start, g.CheckpointBytes(len(c.checkpoint))
	if c.checkpoint == nil {
		cost = g.CheckpointBytes(int(c.table.bound))
	}
	if c.AppendRoom() < g.CapacityBytes/CheckpointShare {
		return gain >= 2*(cost+uint64(g.BlockBytes))
	}
	return gain >= max(16*cost, g.CapacityBytes/CheckpointShare)
}

// Checkpoint hands the state to the log as its next frames. Errors are those of
// ringwal.Log.Checkpoint; on an error nothing changed.
func (c *Committer) Checkpoint() error {
	if c.log.CheckpointUnderWay() {
		return ringwal.ErrWait // the log still reads the buffer
	}
	c.checkpoint = c.table.EncodeCheckpoint(c.checkpoint[:0])
	head := c.log.Head()
	if err := c.log.Checkpoint(c.checkpoint); err != nil {
		return err
	}
	c.asked, c.checkpointAt = true, head
	return nil
}

// StartCheckpoint is Checkpoint at a start that finds items behind the newest one. It
// writes none where there is one and another would take room that trims and deletes
// need: each start would else take some of it, until nothing could free any.
func (c *Committer) StartCheckpoint() error {
	kept := c.geometry.ControlReserveBytes()/2 + c.trimReserve()
	need := c.geometry.CheckpointBytes(len(c.table.EncodeCheckpoint(nil))) + uint64(c.geometry.MaxFrameBytes)
	if _, complete := c.log.NewestCheckpoint(); complete && c.log.Room(ringwal.ClassFree) < need+kept {
		return nil
	}
	return c.Checkpoint()
}

// MaybeCheckpoint writes a checkpoint if one is due and reports whether it did.
func (c *Committer) MaybeCheckpoint(trimLimit uint64) (bool, error) {
	if !c.CheckpointDue(trimLimit) {
		return false, nil
	}
	if err := c.Checkpoint(); err != nil {
		return false, err
	}
	return true, nil
}
