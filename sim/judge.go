package sim

import (
	"errors"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// expectation is what a lying disk leaves to recover.
type expectation struct {
	hole     uint64 // position of the first frame that is not on the medium as it was written
	proven   bool   // something that survives proves that the hole was durable
	badSlots int    // superblock copies that are not what was written
	unsure   int    // superblock copies whose write did not end
	whole    bool   // every acked frame from the trim position in force on is on the medium
}

// expect looks at a lying disk before recovery does.
func (o *oracle) expect(sbs *ringwal.Superblocks) {
	if o.w.profile.kind != Lying {
		return
	}
	x := expectation{hole: o.acked, whole: true}
	x.badSlots, x.unsure = o.badSlots()
	trim := o.trim
	if sbs != nil {
		trim = sbs.Newest.Trim
	}
	g, lost := o.w.profile.geometry, false
	for _, r := range o.frames {
		survives := r.position >= min(trim, o.trim) && o.survives(r)
		if r.position >= o.trim && r.end <= o.acked && !survives {
			x.whole = false
		}
		switch {
		case r.position < trim:
		case !lost && !survives:
			x.hole, lost = r.position, true
		case !lost:
			x.hole = max(x.hole, r.end)
		case survives && r.durable > x.hole && r.position < x.hole+g.WindowBytes+uint64(g.MaxFrameBytes)+uint64(g.BlockBytes):
			x.proven = true
		}
	}
	if sbs != nil {
		x.proven = x.proven || sbs.Newest.Durable > x.hole
		for _, b := range sbs.Newest.Boundaries {
			x.proven = x.proven || b.FollowEnd > x.hole
		}
	}
	o.expected = x
}

// survives reports whether the medium holds a frame as it was written.
func (o *oracle) survives(r *frameRecord) bool {
	b := make([]byte, r.stored)
	o.w.disk.Peek(b, r.offset)
	return contentOf(r.kind, b) == r.content
}

// badSlots counts the superblock copies that are not what was written.
func (o *oracle) badSlots() (bad, unsure int) {
	for i, s := range o.slots {
		if !s.known {
			if s.length > 0 {
				unsure++
			}
			continue
		}
		b := make([]byte, s.length)
		o.w.disk.Peek(b, int64(i)*ringwal.SlotBytes)
		if xxhash.Sum64(b) != s.content {
			bad++
		}
	}
	return bad, unsure
}

// reset prepares for a recovery by that superblock.
func (o *oracle) reset(sb *ringwal.Superblock) {
	o.voidFrom(slices.IndexFunc(o.frames, func(r *frameRecord) bool { return r.voidBy > 0 }))
	n := 0
	for n < len(o.tail.frames) && sb.Epoch < o.tail.frames[n].voidBy {
		n++
	}
	if n > 0 {
		k := o.tail.frames[n-1].to - o.count()
		o.frames, o.tail.frames = append(o.frames, o.tail.frames[:n]...), o.tail.frames[n:]
		o.entries, o.tail.entries = append(o.entries, o.tail.entries[:k]...), o.tail.entries[k:]
	}
	trim := sb.Trim
	o.cursor, _ = o.frameAt(trim)
	if o.strict && o.w.profile.kind != Lying && trim < o.trim {
		o.w.fail("P2", "the superblock says that the log begins at %d, and %d was in force: bytes above may have been reused", trim, o.trim)
	}
	if asked, _ := o.frameAt(o.trimAsked); o.cursor > asked { // what a jump left void may go too
		o.w.fail("P5", "the superblock says that the log begins at %d, and nobody asked for more than %d", trim, o.trimAsked)
	}
}

// voidFrom moves the frames from index kept on, and their entries, into the tail; kept
// below 0 moves none.
func (o *oracle) voidFrom(kept int) {
	if kept < 0 {
		return
	}
	count := o.baseCount
	if kept > 0 {
		count = max(count, o.frames[kept-1].to)
	}
	o.tail.frames = append(slices.Clone(o.frames[kept:]), o.tail.frames...)
	o.tail.entries = append(slices.Clone(o.entries[count-o.baseCount:]), o.tail.entries...)
	o.frames = o.frames[:kept:kept]
	o.entries = o.entries[: count-o.baseCount : count-o.baseCount]
}

// recovers compares a frame that recovery found with what was submitted there.
func (o *oracle) recovers(state *recovered, f *ringwal.FrameView) {
	w := o.w
	if o.cursor >= len(o.frames) {
		w.fail("P3", "recovery returned a %s frame at %d of epoch %d, which is not one of the log", f.Kind, f.Position, f.Epoch)
	}
	r := o.frames[o.cursor]
	switch {
	case r.position != f.Position:
		w.fail("P3", "recovery returned a %s frame at %d of epoch %d, where the one at %d comes next", f.Kind, f.Position, f.Epoch, r.position)
	case r.sum != f.Sum || r.epoch != f.Epoch:
		w.fail("P3", "recovery returned a %s frame at %d of epoch %d that is not the one of epoch %d that was submitted there last",
			f.Kind, f.Position, f.Epoch, r.epoch)
	}
	o.cursor++
	state.frames = append(state.frames, f.FrameHeader)
	if f.Kind != ringwal.FrameData {
		return
	}
	next := max(r.from, o.baseCount)
	err := stream.Items(f.Body, f.Position, func(it *stream.Item) error {
		if next >= r.to {
			w.fail("P3", "recovery returned a %s item at %d that is not one of its frame", it.Kind, it.Position)
		}
		if what := o.entries[next-o.baseCount].differs(it); what != "" {
			w.fail("P2", "recovery returned a %s item at %d that is not what was submitted: %s", it.Kind, it.Position, what)
		}
		next++
		return nil
	})
	if err != nil || next != r.to {
		w.fail("P2", "recovery returned a frame at %d with %d of %d items: %v", f.Position, next-r.from, r.to-r.from, err)
	}
}

// judge decides whether what was recovered keeps the promises, and goes on from it.
func (o *oracle) judge(h *host, state *recovered) {
	w, r := o.w, state.recovery
	end := r.End
	w.tracef("%s recovered [%d, %d) of %d acked, next %d, %d frames, last checkpoint %d", h.name, state.sbs.Newest.Trim, end, o.acked, r.Next, r.Frames, r.Checkpoint.Start)
	kept := o.cursor
	if kept > 0 && o.frames[kept-1].end != end && state.frames != nil {
		w.fail("P3", "recovery ends at %d, and its last frame at %d", end, o.frames[kept-1].end)
	}
	if w.profile.kind == Lying {
		o.judgeLying(h, end)
	} else if end < o.ackedEnd() {
		w.fail("P2", "the log was recovered up to %d, and %d was durable", end, o.ackedEnd())
	}
	for i, r := range o.frames {
		switch {
		case i < kept:
			r.voidBy = 0
		case r.voidBy == 0:
			r.voidBy = state.sbs.MaxEpoch + 1
		}
	}
	o.voidFrom(kept)
	if o.count() < o.ackedCount {
		w.fail("P11", "entry %d was shown by an answer, and %d were recovered", o.ackedCount-1, o.count())
	}
	o.goOn(end)
	if what := o.sameState(state.table); what != "" {
		w.fail("P2", "the state recovered up to %d is not the state there: %s", end, what)
	}
}

// ackedEnd is the end of the last frame below the durable position: a jump may lie
// between the two.
func (o *oracle) ackedEnd() uint64 {
	for _, r := range slices.Backward(o.frames) {
		if r.end <= o.acked {
			return r.end
		}
	}
	return 0
}

// judgeLying compares the end of a recovery with what the disk left.
func (o *oracle) judgeLying(h *host, end uint64) {
	w, x := o.w, &o.expected
	acked := o.ackedEnd()
	switch {
	case end >= acked:
		return
	case x.proven:
		w.fail("P7", "acked data at %d is damaged, which what survives proves, and the log started with an end at %d", x.hole, end)
	case end < x.hole:
		w.fail("P2", "the log is whole up to %d, of %d acked, and was recovered up to %d", x.hole, acked, end)
	}
	// The last acked frames are gone, and nothing on the disk tells that they were.
	w.tracef("%s lost [%d, %d) without a proof", h.name, end, acked)
	w.stats.Undetectable++
	o.acked = end
	count := o.baseCount
	if o.cursor > 0 {
		count = max(count, o.frames[o.cursor-1].to)
	}
	o.ackedCount = min(o.ackedCount, count)
	for at := range o.forEver {
		if !o.within(at, count) {
			delete(o.forEver, at)
		}
	}
}

// within reports whether the record at a place is one of the first count entries.
func (o *oracle) within(at place, count int64) bool {
	for _, e := range o.entries[count-o.baseCount:] {
		for _, r := range e.records {
			if r.stream == at.stream && r.offset == at.offset {
				return false
			}
		}
	}
	return true
}

// goOn makes what was kept of the entries the log: the rest was never acked.
func (o *oracle) goOn(end uint64) {
	count := o.count()
	o.issuedTo = count
	o.now = o.base.clone()
	for i, e := range o.entries {
		o.now.apply(e, o.baseCount+int64(i)+1)
	}
	o.durable = o.now.clone()
	was := o.durableCount
	o.durableCount = count
	if o.w.fleet != nil {
		return // nobody has been told before the start has succeeded
	}
	o.keep(was)
	o.acked = end
}

// keep makes the records of the entries from one on what their offsets name for ever.
func (o *oracle) keep(from int64) {
	for ; from < o.count(); from++ {
		for _, rec := range o.entries[from-o.baseCount].records {
			o.forEver[place{rec.stream, rec.offset}] = rec.payload
		}
	}
}

// sameState compares a recovered table with the model, "" if they are the same.
func (o *oracle) sameState(t *stream.Table) string {
	m := o.now
	list, _ := t.List("", "", stream.MaxListed, nil)
	if len(list) != len(m.streams) || t.Streams() != len(m.streams) {
		return "number of streams"
	}
	for i, s := range m.streams {
		if !sameInfo(&list[i], s.info()) {
			return "stream " + s.name
		}
	}
	named, sessions := t.Producers()
	if named != len(m.named) || sessions != len(m.sessions) {
		return "number of producers"
	}
	return ""
}

// sameProducers compares the producers that a committer goes on with, results to be
// given again included, with the model.
func (o *oracle) sameProducers(c *stream.Committer) {
	w, m := o.w, o.now
	for _, p := range m.named {
		if info, err := c.Producer(p.name); err != nil || info.Last != p.last || info.ID != p.id {
			w.fail("P2", "named producer %s was recovered as %+v, %v; want last sequence %d", p.name, info, err, p.last)
		}
	}
	var got stream.Result
	batch := stream.Batch{Entries: make([]stream.Entry, 1)}
	for _, p := range m.sessions {
		info, err := c.ProducerByID(p.id)
		if err != nil || info.Last != p.last() || info.Window != p.window || info.Position != p.used.position {
			w.fail("P2", "session producer %x was recovered as %+v, %v; want last sequence %d", uint64(p.id), info, err, p.last())
		}
		for i, e := range p.results {
			batch.Producer, batch.Sequence = p.id, p.base+uint64(i)
			again, err := answerOf(&got, c.Append(w.wall, &batch, &got))
			want, _ := p.answer(&request{sequence: batch.Sequence})
			if what := again.differs(&want); what != "" || err != nil {
				w.fail("P11", "sequence %d of session producer %x is answered differently after a crash: %s, %v; item at %d", batch.Sequence, uint64(p.id), what, err, e.position)
			}
		}
	}
}

func sameInfo(got *stream.StreamInfo, want stream.StreamInfo) bool {
	return got.ID == want.ID && got.Name == want.Name && got.First == want.First && got.Next == want.Next &&
		got.Created == want.Created && got.Last == want.Last && got.Sealed == want.Sealed && string(got.Token) == string(want.Token)
}

// judgeRefusal decides whether a log had to be refused, and that it was left alone.
func (o *oracle) judgeRefusal(h *host, err error) {
	w, x := o.w, &o.expected
	if errors.Is(err, ringwal.ErrFull) {
		w.fail("P12", "the log cannot be started: %v", err)
	}
	if w.profile.kind != Lying || !errors.Is(err, ringwal.ErrDamaged) {
		w.fail("P7", "the log was refused, and nothing that was acked is damaged: %v", err)
	}
	if h.port.writes > 0 {
		w.fail("P7", "the log was refused after %d writes: %v", h.port.writes, err)
	}
	o.lookAtSlots()
	switch {
	case x.hole < o.ackedEnd():
	case x.badSlots+x.unsure > 1:
	case x.badSlots == 1 && !x.whole:
	default:
		w.fail("P7", "the log was refused, with every acked frame and all but %d superblock copies in place: %v", x.badSlots, err)
	}
	if x.whole && x.badSlots == 1 && x.unsure == 0 {
		w.fail("P7", "one rotten copy of the superblock stops the start: %v", err)
	}
	w.stats.Damaged++
	w.salvage(h)
	w.over = true
}

// lookAtSlots makes up for a start that was refused before the log was looked at.
func (o *oracle) lookAtSlots() {
	sbs, err := ringwal.ReadSuperblocks(o.w.disk.Open("oracle"))
	if err != nil {
		sbs = nil
	}
	o.expect(sbs)
}
