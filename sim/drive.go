package sim

import (
	"errors"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// hostStep is one step of the host that is up, or what happens to it.
func (w *World) hostStep() {
	h, p := w.host, w.profile
	w.late()
	if w.bucket != nil {
		w.bucket.late()
		w.bucket.mishap()
	}
	switch {
	case w.chance(p.crash) || h.super != nil && w.chance(2*p.crash):
		w.kill()
		return
	case w.chance(p.shutdown):
		h.closing = true
	case (p.kind == Failing || p.kind == Lying || p.kind == Restored) && w.chance(p.fault):
		w.mishap()
		if w.host == nil {
			return
		}
	}
	if h.log.Err() != nil && w.chance(0.2) {
		w.tracef("%s exits: %v", h.name, h.log.Err())
		w.kill()
		return
	}
	h.act()
}

// ownerStep is one step of the owner in a world of several machines.
func (w *World) ownerStep(h *host) {
	switch {
	case w.chance(w.profile.shutdown):
		h.closing = true
	case w.chance(0.02):
		h.checkFence()
	}
	if h.log.Err() != nil && w.chance(0.2) {
		w.tracef("%s exits: %v", h.name, h.log.Err())
		w.fleet.die(h)
		return
	}
	if w.host == h {
		h.act()
	}
}

// act is what a host does by itself.
func (h *host) act() {
	w, p := h.w, h.w.profile
	switch w.pick(p.request, p.issue, p.finish, p.deliver, p.progress, p.publish, p.superblock, p.maintain, p.seal, p.record, p.read, p.tick, p.upload) {
	case 0:
		h.decide()
	case 1:
		h.issue()
	case 2:
		h.finish()
	case 3:
		h.deliver()
	case 4:
		if len(h.flights) > 0 {
			if f := h.flights[w.rng.IntN(len(h.flights))]; !f.ended {
				w.progress(h.view, f.write)
			}
		}
	case 5:
		h.publish()
	case 6:
		h.superblockStep()
	case 7:
		h.maintain()
	case 8:
		if h.log.Seal(w.now) {
			w.tracef("%s seals", h.name)
		}
	case 9:
		h.log.RecordDurable()
	case 10:
		h.read()
	case 11:
		h.tick()
		h.elapse()
	case 12:
		h.upload()
	}
	if h.closing {
		h.shutdown()
	}
}

// kill crashes the host that is up.
func (w *World) kill() {
	h := w.host
	w.tracef("%s crashes: durable %d, head %d, %d frames in flight", h.name, h.log.Durable(), h.log.Head(), len(h.flights))
	if w.fleet != nil {
		w.fleet.die(h)
		return
	}
	w.crash(h.view)
	w.host = nil
	w.buried(h)
}

// tick lets time go by, now and then as much as makes a write stall.
func (h *host) tick() {
	w := h.w
	ns := w.rng.Int64N(2e6)
	if w.profile.kind == Failing && w.chance(0.01) {
		ns = w.rng.Int64N(2 * int64(w.profile.stall))
	}
	w.pass(ns)
	if h.log.CheckStall(w.now) == ringwal.StallFatal {
		w.tracef("%s: %v", h.name, h.log.Err())
	}
}

// issue closes the open frame, if nothing is queued, and begins to write the next
// one.
func (h *host) issue() {
	w := h.w
	if err := h.log.Err(); err != nil && !errors.Is(err, ringwal.ErrClosed) {
		if _, _, more := h.log.NextSuperblock(w.now); more || h.log.Next(w.now) != nil {
			w.fail("P10", "the log writes on after %v", err)
		}
		return
	}
	if len(h.flights) >= w.profile.inFlight {
		return
	}
	if h.log.QueuedBytes() == 0 {
		h.log.CloseFrame(w.now)
	}
	f := h.log.Next(w.now)
	if f == nil {
		return
	}
	fl := &flight{frame: f}
	if h.superseded() {
		fl.record = formerFrame(f)
	} else {
		fl.record = w.oracle.issued(h, f)
		w.landOver(f.Offset, len(f.Buf))
	}
	h.flights = append(h.flights, fl)
	fl.write, fl.err = h.view.Begin(f.Buf, f.Offset)
	w.begins(fl.write)
	fl.ended = fl.err != nil
}

// finish lets the disk end any of the frames on their way.
func (h *host) finish() {
	if len(h.flights) == 0 {
		return
	}
	f := h.flights[h.w.rng.IntN(len(h.flights))]
	if f.ended || f.write.Stalled() && !h.w.chance(0.02) {
		return
	}
	f.ended = true
	f.err = h.view.Finish(f.write)
	switch {
	case f.record.late:
		h.getsThrough("a frame", f.err)
	case f.err == nil:
		h.w.oracle.finished(f.record)
		if h.w.fleet != nil {
			h.w.fleet.landOnto(f.write.Offset(), f.write.Length())
		}
	}
}

// deliver tells the log of any frame that the disk has ended.
func (h *host) deliver() {
	for k, n := h.w.rng.IntN(max(1, len(h.flights))), 0; n < len(h.flights); n++ {
		i := (k + n) % len(h.flights)
		f := h.flights[i]
		if !f.ended {
			continue
		}
		h.flights = append(h.flights[:i:i], h.flights[i+1:]...)
		failed := h.log.Err() != nil
		before := h.log.Durable()
		after := h.log.Complete(f.frame, f.err, h.w.now)
		h.w.tracef("%s hears of frame %d: %v, durable %d", h.name, f.record.position, f.err, after)
		if (failed || f.err != nil) && (after != before || h.log.Err() == nil) {
			h.w.fail("P10", "the log went on after %v", f.err)
		}
		if !h.recoveredFrom() {
			h.w.oracle.speaks(h)
		}
		return
	}
}

// publish takes what became durable and lets the answers leave that waited for it.
func (h *host) publish() {
	for f := h.log.PopDurable(); f != nil; f = h.log.PopDurable() {
		h.show(f)
		if h.w.host == h { // there are no clients during a start
			h.release(f.End())
		}
		h.buffers.release(f.Buf)
		h.log.Release(f)
	}
	if h.log.Err() == nil {
		h.release(h.log.Durable())
	}
}

// show makes a durable frame readable.
func (h *host) show(f *ringwal.Frame) {
	if !h.recoveredFrom() {
		h.w.oracle.speaks(h)
		h.w.oracle.published(f)
	}
	h.published = f.End()
	var body []byte
	if h.uploads != nil && f.Kind == ringwal.FrameData {
		h.uploads.dataEnd = f.End()
	}
	if f.Kind != ringwal.FramePad {
		body = f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes]
	}
	if h.reader != nil {
		h.tail.Publish(f.End())
		if err := h.reader.Publish(&f.FrameHeader, body); err != nil {
			h.w.fail("P2", "the reader refused a durable frame: %v", err)
		}
		return
	}
	if f.Kind == ringwal.FrameData {
		h.indexes(f.Position, body)
	}
}

// release lets every answer leave that may. A node keeps the order of decision; an
// answer must not need the ones before it to hold it back.
func (h *host) release(durable uint64) {
	kept := h.answers[:0]
	for _, a := range h.answers {
		if a.at > durable {
			kept = append(kept, a)
			continue
		}
		h.w.stats.Answers++
		if h.recoveredFrom() {
			h.w.oracle.formerLeaves(h, a)
			continue
		}
		h.w.oracle.leaves(a)
		a.q.hear(&a.got)
	}
	h.answers = kept
}

// superblockStep begins the next superblock copy, or ends the one on its way.
func (h *host) superblockStep() {
	w := h.w
	if s := h.super; s != nil {
		if s.write.Stalled() && !w.chance(0.02) {
			return
		}
		h.super = nil
		err := h.view.Finish(s.write)
		switch {
		case s.late:
			h.getsThrough("a superblock", err)
		case err == nil && !h.recoveredFrom():
			w.oracle.wroteSuperblock(s.write.Offset(), s.bytes)
			if w.fleet != nil {
				w.fleet.landOnto(s.write.Offset(), len(s.bytes))
			}
		}
		h.log.SuperblockDone(err, w.now)
		w.tracef("%s hears of superblock slot %d: %v, trim %d, recorded %d", h.name, s.slot, err, h.log.Trim(), h.log.RecordedDurable())
		if err != nil && h.log.Err() == nil {
			w.fail("P10", "the log went on after %v", err)
		}
		if !h.superseded() {
			w.oracle.speaks(h)
		}
		if h.reader != nil {
			h.reader.SetTrim(h.log.Trim())
		}
		return
	}
	offset, b, ok := h.log.NextSuperblock(w.now)
	if !ok {
		return
	}
	if !h.superseded() {
		w.oracle.beginsSuperblock(offset)
	}
	write, err := h.view.Begin(b, offset)
	w.begins(write)
	if err != nil {
		h.log.SuperblockDone(err, w.now)
		return
	}
	h.super = &superFlight{write: write, slot: int(offset / ringwal.SlotBytes), bytes: b, late: h.superseded()}
}

// maintain writes a checkpoint when one is due, and trims what may go.
func (h *host) maintain() {
	w := h.w
	if h.log.Err() != nil || h.closing {
		return
	}
	mark, ok := h.log.NewestCheckpoint()
	if !ok {
		return
	}
	if u, g := h.uploads, h.log.Geometry(); u != nil && u.dataEnd <= u.core.Uploaded() && h.log.Room(ringwal.ClassAppend) < g.CapacityBytes/4 {
		h.uploadControl()
	}
	plan := h.planTrim(mark.Start)
	if _, err := h.committer.MaybeCheckpoint(plan.Records); err != nil && !errors.Is(err, ringwal.ErrWait) && !errors.Is(err, ringwal.ErrFull) {
		w.fail("P12", "a checkpoint was refused: %v", err)
	}
	if plan.Target <= h.log.Trim() || plan.Target >= h.published || w.chance(0.3) {
		return
	}
	header, err := h.frameAt(plan.Target)
	if err != nil {
		h.unreadable(err)
		return
	}
	w.oracle.wantsTrim(plan.Target)
	w.tracef("%s asks for trim %d", h.name, plan.Target)
	if err := h.log.SetTrim(plan.Target, header.PrevSum); err != nil {
		w.fail("P12", "trim to %d was refused: %v", plan.Target, err)
	}
}

// unreadable stops the log because what it has to read is not what was written. Only
// a disk that lies or fails may do that.
func (h *host) unreadable(err error) {
	w := h.w
	w.tracef("%s cannot read: %v", h.name, err)
	if w.profile.kind != Lying && !errors.Is(err, device.ErrRead) {
		w.fail("P2", "a durable frame cannot be read: %v", err)
	}
	h.log.Fail(err)
}

// shutdown takes the next step of closing the log: drain, seal, a clean superblock.
func (h *host) shutdown() {
	w := h.w
	if h.log.Err() != nil && !errors.Is(h.log.Err(), ringwal.ErrClosed) {
		return // it has stopped; it will exit
	}
	if h.waiting != nil || len(h.flights) > 0 || len(h.answers) > 0 || h.super != nil || h.log.OpenBytes()+h.log.QueuedBytes() > 0 ||
		h.log.CheckpointUnderWay() || !h.log.SuperblockInForce() {
		return
	}
	if h.log.Superblock().Clean {
		w.tracef("%s is closed", h.name)
		if w.fleet != nil {
			w.fleet.die(h)
			return
		}
		_ = h.view.Close()
		h.close()
		w.host = nil
		w.buried(h)
		return
	}
	if h.log.Seal(w.now) {
		return
	}
	if err := h.log.MarkClean(); err != nil && !errors.Is(err, ringwal.ErrWait) {
		w.fail("P12", "the log cannot be closed: %v", err)
	}
}
