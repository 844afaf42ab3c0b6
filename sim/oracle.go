package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// oracle knows everything that was submitted and every answer that left.
type oracle struct {
	w *World

	// The log as it was submitted. Entries are numbered from 0 by ordinal; what no
	// lap of the ring can hold any more is folded into base.
	base      *model
	baseCount int64 // entries in base
	entries   []*entry
	issuedTo  int64          // entries that are in frames
	frames    []*frameRecord // ascending
	start     uint64         // of this epoch
	next      uint64         // position of the next frame of this epoch
	lastSum   uint64         // of the frame before it
	furthest  uint64         // end of the farthest frame ever
	tail      tail

	now           *model // with every entry
	durable       *model // as readers see it
	durableCount  int64
	complete      uint64 // every frame of this epoch below it was written whole
	completeCount int64
	completeAt    int // index of the first frame that is not

	// What must survive.
	acked      uint64 // the durable position that the log last spoke of
	ackedCount int64
	trim       uint64 // in force, as the log says
	trimAsked  uint64
	forEver    map[place]noise // P4: durable records

	slots    [ringwal.SlotCount]slotRecord
	cursor   int // index of the frame that recovery has to return next
	expected expectation
	strict   bool // check the rules of the log too, not only their outcome
}

// place is what names a record for ever.
type place struct {
	stream stream.ID
	offset uint64
}

// tail is what lay beyond the end of the last recovery: each frame is void once the
// superblock of the epoch that voids it can be read, and until then it may still be
// recovered.
type tail struct {
	frames  []*frameRecord
	entries []*entry // those of the frames, and of none yet
}

// frameRecord is a frame as it was submitted.
type frameRecord struct {
	position, end uint64
	offset        int64 // on the device
	stored        int   // bytes written
	kind          ringwal.FrameKind
	epoch         uint64
	sum           uint64 // header sum
	durable       uint64 // that it carries
	content       uint64 // hash of what was written
	from, to      int64  // entries that it holds
	finished      bool   // the disk said so
	voidBy        uint64 // epoch that goes on before it; 0: it is part of the log
	late          bool   // of a former owner: it must not get through
}

// slotRecord is what a superblock slot must hold.
type slotRecord struct {
	known   bool // false: blank, or a write did not end
	length  int
	content uint64
	epoch   uint64
	trim    uint64
	durable uint64
}

func newOracle(w *World) *oracle {
	g := w.profile.geometry
	m := newModel(g.CheckpointMaxBytes, g.MaxItemBytes())
	o := w.profile.origin
	return &oracle{w: w, base: m, now: m.clone(), durable: m.clone(), next: o, furthest: o, complete: o, acked: o, trim: o, trimAsked: o,
		forEver: map[place]noise{}, strict: !outcomesOnly}
}

func (o *oracle) count() int64 { return o.baseCount + int64(len(o.entries)) }

// submitted adds an entry that the committer has put into the log.
func (o *oracle) submitted(e *entry) {
	o.entries = append(o.entries, e)
	o.now.apply(e, o.count())
}

// begins notes that an epoch goes on from what was judged.
func (o *oracle) begins(h *host) {
	o.next, o.complete, o.completeAt = h.log.Head(), h.log.Head(), len(o.frames)
	o.completeCount = o.count()
	o.start = h.log.Head()
	o.sameProducers(h.committer)
}

// issued notes a frame that is about to be written, and checks what it says.
func (o *oracle) issued(h *host, f *ringwal.Frame) *frameRecord {
	w, g := o.w, o.w.profile.geometry
	w.stats.Frames++
	r := &frameRecord{position: f.Position, end: f.End(), offset: f.Offset, stored: len(f.Buf), kind: f.Kind, epoch: f.Epoch, sum: f.Sum,
		durable: f.Durable, content: contentOf(f.Kind, f.Buf), from: o.issuedTo, to: o.issuedTo}
	w.tracef("%s writes frame [%d, %d) %s, %d records, durable %d", h.name, r.position, r.end, r.kind, f.Records, r.durable)
	if r.position != o.next {
		w.fail("P3", "a frame at %d, the one before it ends at %d", r.position, o.next)
	}
	if f.Kind == ringwal.FrameData {
		o.holds(r, f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes])
	}
	if r.durable > o.complete {
		w.fail("P1", "the frame at %d says that %d is durable, and the frame at %d was not written yet", r.position, r.durable, o.complete)
	}
	if o.strict {
		o.keepsRules(h, r)
	}
	o.tail = tail{}
	o.frames = append(o.frames, r)
	o.next, o.lastSum = r.end, r.sum
	o.furthest = max(o.furthest, r.end)
	o.forget(g.CapacityBytes)
	return r
}

// keepsRules checks the rules of docs/design.md that no crash needs to be seen for.
func (o *oracle) keepsRules(h *host, r *frameRecord) {
	w, g := o.w, o.w.profile.geometry
	switch {
	case r.end-o.complete > g.WindowBytes && r.end-h.log.Durable() > g.WindowBytes:
		w.fail("rule", "the frame [%d, %d) runs past the window of %d behind %d", r.position, r.end, g.WindowBytes, h.log.Durable())
	case r.position%g.CapacityBytes+(r.end-r.position) > g.CapacityBytes:
		w.fail("rule", "the frame [%d, %d) straddles the ring's end", r.position, r.end)
	case r.offset != ringwal.RingStart+int64(r.position%g.CapacityBytes):
		w.fail("rule", "the frame at %d is written at offset %d", r.position, r.offset)
	}
	copies := 0
	for _, s := range o.slots {
		if !s.known || s.epoch != r.epoch {
			continue
		}
		copies++
		if r.end-s.trim > g.CapacityBytes {
			w.fail("rule", "the frame [%d, %d) reuses bytes above the trim position %d of a superblock copy of its epoch", r.position, r.end, s.trim)
		}
	}
	if copies < 2 && w.host == nil {
		w.fail("rule", "a first frame with %d superblock copies of its epoch", copies)
	}
}

// holds compares the items of a frame with the entries that come next.
func (o *oracle) holds(r *frameRecord, body []byte) {
	err := stream.Items(body, r.position, func(it *stream.Item) error {
		if o.issuedTo >= o.count() {
			o.w.fail("P3", "the frame at %d holds a %s item that nobody submitted", r.position, it.Kind)
		}
		e := o.entries[o.issuedTo-o.baseCount]
		if what := e.differs(it); what != "" {
			o.w.fail("P2", "the %s item at %d is not what was submitted: %s", it.Kind, it.Position, what)
		}
		e.position = it.Position
		o.issuedTo++
		return nil
	})
	if err != nil {
		o.w.fail("P2", "the frame at %d cannot be read: %v", r.position, err)
	}
	r.to = o.issuedTo
}

func contentOf(kind ringwal.FrameKind, b []byte) uint64 {
	if kind == ringwal.FramePad {
		b = b[:ringwal.FrameHeaderBytes] // the rest of its block means nothing
	}
	return xxhash.Sum64(b)
}

// finished notes that the disk said that a frame is written.
func (o *oracle) finished(r *frameRecord) {
	r.finished = true
	for o.completeAt < len(o.frames) && o.frames[o.completeAt].finished {
		o.complete, o.completeCount = o.frames[o.completeAt].end, o.frames[o.completeAt].to
		o.completeAt++
	}
}

// speaks checks the durable position that a log speaks of.
func (o *oracle) speaks(h *host) {
	if d := h.log.Durable(); d > o.start { // what a jump left void was never durable
		if d > o.complete {
			o.w.fail("P1", "the log says that %d is durable, and the frame at %d was not written yet", d, o.complete)
		}
		if h.peer == nil || h.peer.up {
			o.acked = d // before, nobody was told
		}
	}
	o.trim = h.log.Trim()
}

// published moves the durable state over a frame that the log gave out as durable.
func (o *oracle) published(f *ringwal.Frame) {
	if i, found := o.frameAt(f.Position); found {
		o.durableTo(max(o.durableCount, o.frames[i].to))
	}
}

// frameAt is the index of the frame at position, or of the one that follows.
func (o *oracle) frameAt(position uint64) (int, bool) {
	return slices.BinarySearchFunc(o.frames, position, func(r *frameRecord, p uint64) int { return cmp.Compare(r.position, p) })
}

func (o *oracle) durableTo(count int64) {
	for ; o.durableCount < count; o.durableCount++ {
		e := o.entries[o.durableCount-o.baseCount]
		o.durable.apply(e, o.durableCount+1)
		for _, rec := range e.records {
			at := place{rec.stream, rec.offset}
			if before, ok := o.forEver[at]; ok && !bytes.Equal(before.bytes(), rec.payload.bytes()) {
				o.w.fail("P4", "stream %d offset %d was another record before", rec.stream, rec.offset)
			}
			o.forEver[at] = rec.payload
		}
	}
}

// leaves checks an answer that is about to leave.
func (o *oracle) leaves(a *answer) {
	if a.needs > o.completeCount {
		promise := "P11"
		if a.q.kind == doAppend && a.got.err == nil && !a.got.duplicate {
			promise = "P1"
		}
		o.w.fail(promise, "the answer to %s leaves, and entry %d that it shows is not on the disk: %d are", a.q, a.needs-1, o.completeCount)
	}
	o.ackedCount = max(o.ackedCount, a.needs)
}

// wantsTrim checks a trim position before it is asked for: P5, every record below it
// was trimmed durably, and a checkpoint remains.
func (o *oracle) wantsTrim(target uint64) {
	for _, r := range o.frames {
		if r.end > target {
			break
		}
		if b := o.w.bucket; b != nil {
			if r.to > max(r.from, o.baseCount) && r.end > b.archive.uploaded() {
				o.w.fail("P5", "the log is trimmed to %d, and the frame [%d, %d) is not in the store: uploaded %d", target, r.position, r.end, b.archive.uploaded())
			}
			continue
		}
		for _, e := range o.entries[max(r.from, o.baseCount)-o.baseCount : max(r.to, o.baseCount)-o.baseCount] {
			for _, rec := range e.records {
				if s := o.durable.stream(rec.stream); s != nil && rec.offset >= s.first {
					o.w.fail("P5", "the log is trimmed to %d, and stream %d offset %d lies at %d", target, rec.stream, rec.offset, e.position)
				}
			}
		}
	}
	o.trimAsked = max(o.trimAsked, target)
}

// beginsSuperblock notes that a slot holds nothing that can be relied on.
func (o *oracle) beginsSuperblock(offset int64) { o.slots[offset/ringwal.SlotBytes].known = false }

// Where a superblock says what, in bytes: see docs/format.md.
const (
	superblockEpoch   = 128
	superblockDurable = 232
	superblockTrim    = 240
)

// wroteSuperblock notes what a slot holds from now on.
func (o *oracle) wroteSuperblock(offset int64, b []byte) {
	le := binary.LittleEndian
	o.slots[offset/ringwal.SlotBytes] = slotRecord{known: true, length: len(b), content: xxhash.Sum64(b),
		epoch: le.Uint64(b[superblockEpoch:]), trim: le.Uint64(b[superblockTrim:]), durable: le.Uint64(b[superblockDurable:])}
}

// formatted notes what a format left in the slots.
func (o *oracle) formatted() {
	b := make([]byte, o.w.profile.geometry.BlockBytes)
	for i := range int64(ringwal.SlotCount) {
		o.w.disk.Peek(b, i*ringwal.SlotBytes)
		o.wroteSuperblock(i*ringwal.SlotBytes, b)
	}
}

// forget folds what lies more than a lap behind into the base.
func (o *oracle) forget(capacity uint64) {
	n := 0
	for n < len(o.frames) && o.frames[n].end+capacity <= o.furthest && o.frames[n].end <= o.trim && o.frames[n].to <= o.durableCount {
		n++
	}
	if n < 64 {
		return
	}
	to := o.frames[n-1].to
	for o.baseCount < to {
		o.baseCount++
		o.base.apply(o.entries[0], o.baseCount)
		o.entries = o.entries[1:]
	}
	o.frames = o.frames[n:]
	o.completeAt = max(0, o.completeAt-n)
	o.cursor = 0
}
