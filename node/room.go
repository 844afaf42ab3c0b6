package node

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// roomPoll is how often a start looks whether there is room.
const roomPoll = 10 * time.Millisecond

// makeRoom is for a start that finds none for its jump: it lets go of what it can, and waits
// until no write of an earlier owner can land any more where that is not enough. The order of
// its steps, and why each may fail, stands in ringwal ("A start without room"); here the
// superblock of the epoch is in force and the manifest claimed. The doors are not open: what
// is uploaded is what recovery found.
func (n *Node) makeRoom(ctx context.Context, state *recovered) error {
	full := n.wal.RoomToBegin()
	if full == nil {
		return nil
	}
	defer n.lap("room")
	settledNS := n.start.heldNS + int64(n.lateWrites())
	left := time.Duration(max(settledNS-device.NowNS(), 0))
	n.log.Warn("the log is full, and this start needs room for a jump over what earlier owners may still write: "+
		"it uploads and trims first, and where that is not enough it waits until nothing can land any more",
		"used_bytes", n.wal.Used(), "capacity_bytes", n.wal.Geometry().CapacityBytes, "store", n.cfg.Store, "at_most_seconds", math.Ceil(left.Seconds()))
	n.tellWait(&Wait{Until: time.Now().Add(left), Setting: lateWritesSetting, Why: "the log is full: the start uploads and trims it first, to have room for its jump"})
	defer n.tellWait(nil)
	n.uploadRecovered(state)
	beatNS := device.NowNS() + int64(beatEvery)
	for told := false; ; {
		if err := n.trimRecovered(); err != nil {
			return err
		}
		if n.wal.RoomToBegin() == nil {
			break
		}
		if device.NowNS() >= settledNS {
			return n.beginInPlace(state)
		}
		if err := n.uploadProblem(); err != nil && !told {
			told = true
			n.log.Warn("the log cannot be uploaded yet; the start goes on once it can, or once the wait is over", "error", err)
		}
		select {
		case <-time.After(roomPoll):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", full, ctx.Err())
		}
		if err := n.lostStore(); err != nil {
			return err
		}
		if now := device.NowNS(); now >= beatNS { // a sign of life to other hosts, as of an owner
			beatNS = now + int64(beatEvery)
			n.wal.RecordDurable()
			if err := n.writeSuperblocks(); err != nil {
				return err
			}
		}
	}
	n.log.Info("there is room for the start", "trim_position", n.wal.Trim(), "used_bytes", n.wal.Used())
	return nil
}

// uploadRecovered has what recovery found and the manifest lacks uploaded and committed.
func (n *Node) uploadRecovered(state *recovered) {
	u := n.uploads
	if u == nil {
		return
	}
	// Where the epoch begins is not settled yet. A reader that does not know of it takes what
	// was recovered for all there is: so the upload goes on right behind that later.
	sb, end := *n.wal.Superblock(), state.recovery.End
	sb.Boundaries = slices.DeleteFunc(slices.Clone(sb.Boundaries), func(b ringwal.Boundary) bool { return b.FollowEnd >= end })
	u.before = reader.New(reader.Config{Device: n.dev, Tail: n.tail, Superblock: &sb, Durable: end}).Frames()
	u.frames.Store(u.before)
	n.uploadControl()
	u.uploader.Start()
	u.uploader.Advance(end, u.dataEnd)
	u.uploader.Flush()
}

// trimRecovered trims the log as far as the manifest in force and the newest checkpoint allow,
// once that is worth two writes.
func (n *Node) trimRecovered() error {
	if n.uploads == nil {
		return nil
	}
	target := n.trimsTo(n.uploads.uploader.Uploaded())
	if target == n.wal.Trim() {
		return nil
	}
	if err := fence.Check(n.hold.fence, n.hold.key); err != nil { // the upload may have taken long
		return err
	}
	h, err := n.reader.FrameAt(target)
	if err == nil {
		err = n.wal.SetTrim(target, h.PrevSum)
	}
	if err != nil {
		return fmt.Errorf("trim the log to %d before its start: %w", target, err)
	}
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	n.reader.SetTrim(n.wal.Trim())
	return nil
}

// trimsTo is where trimRecovered trims to once so much is uploaded: the trim position, where
// there is nothing to gain.
func (n *Node) trimsTo(uploaded uint64) uint64 {
	trim := n.wal.Trim()
	mark, exists := n.wal.NewestCheckpoint()
	if !exists {
		return trim
	}
	target := n.heldBack(min(n.reader.FrameBehind(uploaded), mark.Start))
	if target <= trim || uploaded < n.uploads.dataEnd && target-trim < n.wal.Geometry().WindowBytes {
		return trim
	}
	return target
}

// nothingToLetGo is why a full log cannot be started at all.
func nothingToLetGo(full error) error {
	return fmt.Errorf("%w; nothing of it can be let go: `walsidecar salvage` reads the records, `walsidecar format --force` makes a new log", full)
}

// beginInPlace has the epoch begin where the log ends: no write of an earlier owner can land
// any more.
func (n *Node) beginInPlace(state *recovered) error {
	if err := fence.Check(n.hold.fence, n.hold.key); err != nil {
		return err
	}
	if err := n.wal.Unjump(); err != nil {
		return err
	}
	if err := n.wal.RoomToBegin(); err != nil {
		return nothingToLetGo(err)
	}
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	n.openReader(state)
	n.log.Info("nothing can land any more: the start goes on where the log ends, without a jump", "position", n.wal.Head())
	return nil
}

// uploadControl has the newest checkpoint uploaded, and the control frames in front of it, where
// the store has all data. Control frames alone are no reason for an upload. But a log that is
// short of room and holds nothing else, checkpoints and what its starts have jumped over, would
// never be trimmed.
func (n *Node) uploadControl() {
	mark, exists := n.wal.NewestCheckpoint()
	if u := n.uploads; u != nil && exists && mark.End < n.wal.Head() {
		u.dataEnd = max(u.dataEnd, mark.End)
	}
}

// uploadProblem is why nothing is uploaded right now, nil while that works.
func (n *Node) uploadProblem() error {
	if n.uploads == nil {
		return nil
	}
	if state := n.uploads.uploader.State(); !state.Upkeep {
		return state.Retrying
	}
	return nil
}

// lostStore is why this start has lost the manifest, nil while it has not.
func (n *Node) lostStore() error {
	if n.uploads == nil {
		return nil
	}
	return n.uploads.uploader.State().Fenced
}
