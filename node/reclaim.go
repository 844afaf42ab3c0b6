package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/wire"
)

// trimShare is the part of the ring that a trim should free while there is no
// shortage: each trim costs two superblock writes.
const trimShare = 64

// planEvery is the least time between two looks at all streams for a trim, unless a
// request waits for room: an application may trim every stream by itself.
const planEvery = 10 * time.Millisecond

// superblockJob is one thing for the goroutine that writes superblocks: a copy to be
// written, or the header of the frame that a trim is to begin at.
type superblockJob struct {
	offset int64
	bytes  []byte // nil: read the frame header at position
	target uint64
}

// superblocks writes superblock copies, one at a time, and reads frame headers for
// trims: the only device I/O beside frames, kept off the commit loop.
func (n *Node) superblocks() {
	defer close(n.superEnd)
	for job := range n.super {
		if job.bytes != nil {
			err := n.dev.WriteSync(job.bytes, job.offset)
			n.inbox.addCall(func() {
				n.loop.superBusy = false
				before := n.wal.Trim()
				n.wal.SuperblockDone(err, device.NowNS())
				if after := n.wal.Trim(); after != before {
					n.reader.SetTrim(after)
				}
			})
			continue
		}
		h, err := n.reader.FrameAt(job.target)
		n.inbox.addCall(func() {
			n.loop.superBusy = false
			if err == nil {
				err = n.wal.SetTrim(job.target, h.PrevSum)
			}
			if err != nil {
				n.log.Error("trim failed", "position", job.target, "error", err)
				if errors.Is(err, ringwal.ErrDamaged) || errors.Is(err, device.ErrRead) {
					n.wal.Fail(fmt.Errorf("read the frame at the new trim position %d: %w", job.target, err))
				}
			}
		})
	}
}

// maintain does what the log needs besides frames: checkpoints, trims, superblocks,
// the seal of an idle log, and the look at stalled writes.
func (n *Node) maintain() {
	l := &n.loop
	if n.checkFailed() {
		return
	}
	n.giveUpOldWindow()
	if l.trimWanted && n.mayTrim() {
		if due := l.plannedNS + int64(planEvery); l.chunk == nil && l.nowNS < due {
			l.wakeAt(due)
		} else {
			n.tryTrim()
		}
	}
	n.beat()
	n.writeSuperblock()
	n.sealIfIdle()
}

// writeSuperblock has the next superblock copy written, if there is one, once the
// budgets allow it.
func (n *Node) writeSuperblock() {
	l := &n.loop
	if l.superBusy || n.wal.SuperblockInForce() {
		return
	}
	if ok, at := n.pacer.Affords(l.nowNS, ringwal.SlotBytes); !ok {
		l.wakeAt(at)
		return
	}
	if offset, b, ok := n.wal.NextSuperblock(l.nowNS); ok {
		l.superBusy = true
		n.pacer.Charge(l.nowNS, len(b))
		n.stats.DeviceWrites.Add(1)
		n.stats.DeviceBytes.Add(uint64(len(b)))
		n.super <- superblockJob{offset: offset, bytes: b}
	}
}

// mayTrim reports whether the last trim is over, and what the next one waits for is
// durable.
func (n *Node) mayTrim() bool {
	l := &n.loop
	mark, _ := n.wal.NewestCheckpoint()
	return !l.superBusy && n.wal.SuperblockInForce() && mark.Start >= l.checkpointAt && n.wal.Durable() >= l.freeUntil
}

// tryTrim starts a trim if it is worth one, or the checkpoint that makes it so.
func (n *Node) tryTrim() {
	l := &n.loop
	head := n.wal.Head()
	l.plan, l.plannedAt, l.plannedNS = n.trimPlan(), head, l.nowNS
	l.plan.Target, l.plan.Records = n.heldBack(l.plan.Target), n.heldBack(l.plan.Records)
	wrote, err := n.committer.MaybeCheckpoint(l.plan.Records)
	if err != nil && !errors.Is(err, ringwal.ErrWait) && !errors.Is(err, ringwal.ErrFull) {
		n.log.Warn("checkpoint refused", "error", err)
	}
	g := n.wal.Geometry()
	gain := l.plan.Target - min(l.plan.Target, n.wal.Trim())
	// The frame there may be durable, and not shown to the reader yet, which reads it for the
	// trim: where requests are decided, before this round publishes. It is looked at again then.
	shown := l.plan.Target < n.reader.Durable()
	short := n.wal.Room(ringwal.ClassAppend) < g.CapacityBytes/4
	if u := n.uploads; u != nil && short && u.dataEnd <= u.uploaded {
		n.uploadControl()
		u.uploader.Advance(n.reader.Durable(), u.dataEnd)
	}
	if gain > 0 && shown && (short || gain >= g.CapacityBytes/trimShare) {
		l.superBusy = true
		n.super <- superblockJob{target: l.plan.Target}
	}
	// Looked at again when something was trimmed, or the checkpoint is durable.
	if l.trimWanted = wrote || gain > 0 && !shown; wrote {
		l.checkpointAt = head
	}
	if !l.trimWanted && !l.superBusy && l.chunk != nil {
		n.inbox.turn.ring() // nothing will be freed: what waited for it is to be refused
	}
}

// freesSoon reports whether room is on its way, so that a request that finds the log
// full waits instead of being refused. A plan holds until the log or what is wanted
// of it changes, so that refusing costs nothing.
func (n *Node) freesSoon() bool {
	l := &n.loop
	if n.mayTrim() && (l.trimWanted || l.plannedAt != n.wal.Head()) {
		n.tryTrim()
	}
	if l.superBusy || l.trimWanted || !n.wal.SuperblockInForce() {
		return true
	}
	if n.uploadsFree() {
		l.wakeAt(l.nowNS + int64(TickAfter)) // whether they still do
		return true
	}
	return false
}

// explainFull names the stream that pins the log, where the application is the one
// who trims.
func (n *Node) explainFull(e *wire.Error) {
	plan := &n.loop.plan
	switch l := &n.loop; {
	case l.heldUntilNS != 0 && plan.Target == l.heldAt:
		e.Hint = fmt.Sprintf("the oldest part of the log is kept for %.0f s more: a write of an earlier owner may still land there; it goes on by itself then",
			time.Duration(max(l.heldUntilNS-l.nowNS, 0)).Seconds())
	case n.cfg.Store != StoreNone:
		e.Hint = n.explainStore()
	case plan.Pinned != 0:
		e.Known |= wire.FlagStream | wire.FlagOffset
		e.Stream, e.Offset, e.Name = uint64(plan.Pinned), plan.PinnedFirst, plan.PinnedName
		e.Hint = fmt.Sprintf("stream %q pins the log: its records from offset %d on are the oldest; trim it (`walsidecar trim %s --before N`) or delete it", plan.PinnedName, plan.PinnedFirst, plan.PinnedName)
	}
}

// sealIfIdle writes a seal once the log has been idle for SealAfter.
func (n *Node) sealIfIdle() {
	l := &n.loop
	if l.sealed || n.wal.InFlight() > 0 || n.wal.OpenBytes()+n.wal.QueuedBytes() > 0 {
		return
	}
	if due := l.lastFrameNS + int64(SealAfter); l.nowNS < due {
		l.wakeAt(due)
		return
	}
	l.sealed = true
	n.wal.Seal(l.nowNS)
}

// checkFailed looks for stalled writes, and tells everybody once when the log has
// stopped.
func (n *Node) checkFailed() bool {
	l := &n.loop
	if state := n.wal.CheckStall(l.nowNS); state != l.stall {
		l.stall = state
		n.stats.Stall.Store(uint32(state))
		if state == ringwal.StallDegraded {
			n.log.Warn("the device is slow: a write has been on its way for a tenth of the fatal limit",
				"limit_seconds", n.wal.Superblock().StallAfter.Seconds())
		}
	}
	err := n.wal.Err()
	if err == nil || errors.Is(err, ringwal.ErrClosed) {
		return err != nil
	}
	if !l.failedTold {
		l.failedTold = true
		n.log.Error("the log has stopped; nothing more is acked", "error", err)
		n.refusing.Store(n.stopError())
		n.reader.Fail(err)
		l.answers.fail(n, n.stopError())
		n.flushSessions() // before anybody who hears of it says goodbye to them
		n.failed <- err
	}
	return true
}
