package sim

import (
	"fmt"
	"slices"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
)

// makeRoom is what package node does between the claim and the first frame of a start that
// has no room for its jump.
func (h *host) makeRoom(state *recovered) error {
	w := h.w
	if h.roomy(state.jumps) {
		return nil
	}
	w.tracef("%s has no room for its jump: %d used", h.name, h.log.Used())
	if err := h.uploadRecovered(state); err != nil {
		return err
	}
	if err := h.trimRecovered(); err != nil {
		return err
	}
	if h.roomy(state.jumps) {
		w.stats.RoomMade++
		return nil
	}
	if err := h.waitForLate(); err != nil {
		return err
	}
	if err := h.log.Unjump(); err != nil {
		w.fail("P12", "a start without room cannot begin where the log ends: %v", err)
	}
	w.tracef("%s begins where the log ends, at %d", h.name, h.log.Head())
	w.stats.InPlace++
	if !h.superseded() {
		w.oracle.begins(h)
	}
	h.published = h.log.Durable()
	h.openReader(state)
	return h.writeSuperblocks()
}

// roomy reports whether the epoch may begin. In a log as small as these its own reserve is less
// than one trim per stream, which have to fit behind a jump.
func (h *host) roomy(jumps bool) bool {
	if h.log.RoomToBegin() != nil {
		return false
	}
	streams := uint64(h.committer.Table().Streams())
	return !jumps || h.log.Room(ringwal.ClassFree) >= (2+streams)*uint64(h.log.Geometry().BlockBytes)
}

// uploadRecovered uploads what was recovered and the manifest lacks, and gives up where the
// store does not take it.
func (h *host) uploadRecovered(state *recovered) error {
	w, u := h.w, h.uploads
	if u == nil {
		return nil
	}
	h.uploadControl()
	sb, end := *h.log.Superblock(), state.recovery.End
	sb.Boundaries = slices.DeleteFunc(slices.Clone(sb.Boundaries), func(b ringwal.Boundary) bool { return b.FollowEnd >= end })
	check := ringwal.NewFrameChecker(&sb)
	for range healRounds {
		if err := h.port.before(); err != nil {
			return err
		}
		h.feed(end, check)
		u.core.Flush()
		u.actions = append(u.actions, u.core.Step(w.instant())...)
		idle := len(u.actions)+len(u.results) == 0
		for len(u.actions) > 0 {
			if err := h.port.before(); err != nil {
				return err
			}
			h.carryOut(w.rng.IntN(len(u.actions)))
		}
		for len(u.results) > 0 && h.log.Err() == nil {
			h.hears(w.rng.IntN(len(u.results)))
		}
		if err := h.log.Err(); err != nil {
			return fmt.Errorf("%w: %w", fence.ErrFenced, err)
		}
		if u.core.Uploaded() >= u.dataEnd {
			return nil
		}
		if at := u.core.WakeAt(w.instant()); idle && at > w.now {
			w.pass(at - w.now)
		}
	}
	return nil
}

// uploadControl has the newest checkpoint uploaded, and the control frames in front of it.
func (h *host) uploadControl() {
	if mark, exists := h.log.NewestCheckpoint(); exists && mark.End < h.log.Head() {
		h.uploads.dataEnd = max(h.uploads.dataEnd, mark.End)
	}
}

// trimRecovered trims the log before its first frame.
func (h *host) trimRecovered() error {
	w := h.w
	mark, exists := h.log.NewestCheckpoint()
	if h.uploads == nil || !exists {
		return nil
	}
	plan := h.planTrim(mark.Start)
	if plan.Target <= h.log.Trim() {
		return nil
	}
	header, err := h.frameAt(plan.Target)
	if err != nil {
		return err
	}
	if !h.superseded() {
		w.oracle.wantsTrim(plan.Target)
	}
	w.tracef("%s asks for trim %d before it begins", h.name, plan.Target)
	if err := h.log.SetTrim(plan.Target, header.PrevSum); err != nil {
		w.fail("P12", "trim to %d was refused: %v", plan.Target, err)
	}
	if err := h.writeSuperblocks(); err != nil {
		return err
	}
	if !h.superseded() {
		w.oracle.speaks(h)
	}
	if h.reader != nil {
		h.reader.SetTrim(h.log.Trim())
	}
	return nil
}

// waitForLate waits until no write of an earlier owner can land any more.
func (h *host) waitForLate() error {
	w := h.w
	if h.peer != nil {
		if err := h.sleep(fence.LateWrites); err != nil {
			return err
		}
		w.fleet.landOld()
		return h.port.before()
	}
	for _, f := range w.former {
		for _, write := range f.view.InFlight() {
			w.land(f, write)
		}
	}
	return h.port.before()
}
