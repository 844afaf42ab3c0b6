package upload

import (
	"context"
	"errors"
	"fmt"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
)

// Finding is something in a store that is not as it must be.
type Finding struct {
	Key string // of the object or manifest
	Err error  // what is wrong; wraps ErrDamagedObject, ErrMissingObject, ErrManifest or ErrNewerVersion
}

// Summary counts what Verify looked at.
type Summary struct {
	Node     string
	Origin   uint64 // the store holds positions [Origin, Uploaded)
	Uploaded uint64
	Groups   uint64
	Objects  uint64 // of all kinds, the manifest not counted
	Bytes    uint64 // of the objects
	Streams  uint64 // that exist
	Batches  uint64
	Records  uint64
	Findings uint64
}

// Verify checks all that a node has in a store: that every object which the manifest
// names is there and whole, every checksum down to those of the records, that the
// offsets of each stream follow each other, that the journals and the records say the
// same, and that the state follows from them. It writes nothing. The memory is that of
// a replay and the largest object. The error is that of a store which cannot be read:
// what is wrong in it goes to report.
func Verify(ctx context.Context, s store.Store, node string, report func(Finding)) (*Summary, error) {
	w := &verifier{report: report, sum: Summary{Node: node}, next: map[stream.ID]Range{}, missing: map[stream.ID]uint64{}}
	m, _, err := ReadManifest(ctx, s, node)
	if err != nil {
		if errors.Is(err, ErrManifest) || errors.Is(err, ErrNewerVersion) {
			w.found(ManifestKey(node), err)
			return &w.sum, nil
		}
		return nil, err
	}
	w.m, w.a = m, NewArchive(s, m, nil)
	w.sum.Origin, w.sum.Uploaded = m.Origin, m.Uploaded
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	return &w.sum, nil
}

type verifier struct {
	report func(Finding)
	sum    Summary
	a      *Archive
	m      *Manifest

	table    *stream.Table // nil: no state is known
	position uint64        // that table began with
	joins    []Join        // of the state
	// next is what was seen last of each stream: First is the first offset of all.
	next map[stream.ID]Range
	// missing is the offset behind the last record that was left out of each stream.
	missing map[stream.ID]uint64
}

func (w *verifier) found(key string, err error) {
	w.sum.Findings++
	w.report(Finding{Key: key, Err: err})
}

// finding takes what is wrong with an object, and gives back what is wrong with the
// store or with ctx.
func (w *verifier) finding(key string, err error) error {
	for _, kind := range []error{ErrDamagedObject, ErrMissingObject, ErrManifest, ErrNewerVersion} {
		if errors.Is(err, kind) {
			w.found(key, err)
			return nil
		}
	}
	return err
}

func (w *verifier) run(ctx context.Context) error {
	v, failed := w.a.lookOnce(ctx)
	if failed != nil {
		key := ManifestKey(w.m.Node)
		if w.m.Index != nil {
			key = w.m.Index.ID.Key(w.m.Node, KindIndex)
		}
		if err := w.finding(key, failed); err != nil {
			return err
		}
		v = &view{m: w.m} // what the manifest itself names
	} else if w.m.Index != nil {
		w.sum.Objects, w.sum.Bytes = 1, w.m.Index.Bytes
	}
	if err := w.state(ctx, v); err != nil {
		return err
	}
	if failed != nil {
		w.table = nil // groups are not known: the state does not follow
	}
	named := map[ObjectID]bool{}
	for i := range v.groups() {
		g := v.group(i)
		for j := range g.Objects {
			named[g.Objects[j].ID] = true
		}
		if err := w.group(ctx, g); err != nil {
			return err
		}
	}
	for i := range w.m.Doomed {
		if d := &w.m.Doomed[i]; d.Kind == KindData && named[d.ID] {
			w.found(d.ID.Key(w.m.Node, d.Kind), problem(ErrManifest, "doomed objects", 0, "a group still names the object"))
		}
	}
	w.end()
	return nil
}

// state reads the state object.
func (w *verifier) state(ctx context.Context, v *view) error {
	w.position = w.m.Origin
	if w.m.State == nil {
		w.table = stream.NewTable(MaxStateBytes)
		return nil
	}
	key := w.m.State.ID.Key(w.m.Node, KindState)
	s, err := w.a.state(ctx, v)
	if err != nil {
		return w.finding(key, err)
	}
	w.sum.Objects++
	w.sum.Bytes += w.m.State.Bytes
	w.joins = s.Joins
	if w.table, err = stream.DecodeCheckpoint(s.Checkpoint, MaxStateBytes); err != nil {
		w.table = nil
		w.found(key, fmt.Errorf("%w: %w", ErrDamagedObject, err))
	}
	w.position = s.Position
	return nil
}

func (w *verifier) group(ctx context.Context, g *Group) error {
	w.sum.Groups++
	whole := true
	for i := range g.Objects {
		ref := &g.Objects[i]
		key := ref.ID.Key(w.m.Node, KindData)
		clean, err := w.object(ctx, g, ref, key)
		if err != nil {
			if err := w.finding(key, err); err != nil {
				return err
			}
		}
		whole = whole && clean
	}
	if !whole {
		w.table = nil // from here on the state is not known
		return nil
	}
	if len(g.Objects) == 0 {
		return nil
	}
	key := g.Objects[0].ID.Key(w.m.Node, KindData)
	if err := w.journal(ctx, g, key); err != nil {
		w.table = nil
		return w.finding(key, err)
	}
	return nil
}

// object checks one object by itself, and that it goes on where its streams ended.
func (w *verifier) object(ctx context.Context, g *Group, ref *ObjectRef, key string) (clean bool, err error) {
	body, err := w.a.fetch(ctx, key, 0, ref.Bytes)
	if err != nil {
		return false, err
	}
	o, err := DecodeObject(body)
	if err != nil {
		return false, err
	}
	w.sum.Objects++
	w.sum.Bytes += ref.Bytes
	if reason := w.differs(g, ref, o); reason != "" {
		return false, problem(ErrDamagedObject, "header", 0, "%s than the manifest says", reason)
	}
	clean = true
	for i := range o.Index.streams {
		id := o.Index.id(i)
		from, to := o.Index.of(i)
		for n := from; n < to; n++ {
			info := o.Index.Block(n)
			info.Stream = id
			if err := checkBlock(o, &info); err != nil {
				w.found(key, err)
				clean = false
			}
			if id != 0 {
				w.sum.Records += uint64(info.Count)
			}
		}
	}
	for i := range o.Index.Streams() {
		w.follow(g, key, o.Index.Stream(i))
	}
	return clean, nil
}

// differs says what of an object is not as the manifest says, "" if nothing.
func (w *verifier) differs(g *Group, ref *ObjectRef, o *DataObject) string {
	is := o.Ref()
	switch {
	case o.Log != w.m.Log && !w.retired(o.Log):
		return "it is of another log"
	case o.From != g.From || o.To != g.To:
		return fmt.Sprintf("it holds other positions, [%d, %d),", o.From, o.To)
	case is.ID != ref.ID || is.Index != ref.Index || is.Streams != ref.Streams || is.Records != ref.Records || is.FirstNS != ref.FirstNS || is.LastNS != ref.LastNS:
		return fmt.Sprintf("it is object %s with %d records of %d streams, and other", is.ID, is.Records, is.Streams)
	}
	for i := range ref.Ranges {
		if is.Ranges[i] != ref.Ranges[i] {
			return fmt.Sprintf("it holds other records of stream %d", is.Ranges[i].Stream)
		}
	}
	return ""
}

func (w *verifier) retired(log [16]byte) bool {
	for i := range w.m.Retired {
		if w.m.Retired[i].Log == log {
			return true
		}
	}
	return false
}

// checkBlock checks a block with all it holds.
func checkBlock(o *DataObject, info *BlockInfo) error {
	if info.Stream == 0 {
		raw, err := info.raw("journal block", o.body[info.Place:info.End()], nil)
		if err != nil {
			return err
		}
		var r journalReader
		return r.visit(info, raw, o.To, func(*Entry) error { return nil })
	}
	var b Block
	if err := o.block(info, &b); err != nil {
		return err
	}
	var r Record
	for i := range b.Count {
		if err := b.Record(i, &r); err != nil {
			return fmt.Errorf("block at byte %d: %w", info.Place, err)
		}
	}
	return nil
}

// follow checks that a range goes on where its stream ended.
func (w *verifier) follow(g *Group, key string, r Range) {
	before, known := w.next[r.Stream]
	if known {
		// Left out of this group, or of one between.
		pruned := r.First > before.End() && (g.Pruned || r.First <= w.missing[r.Stream])
		if r.First != before.End() && !pruned || r.FirstNS < before.LastNS {
			w.found(key, problem(ErrDamagedObject, "index", 0, "stream %d goes on at offset %d (timestamp %d); the groups before end at %d (timestamp %d)",
				r.Stream, r.First, r.FirstNS, before.End(), before.LastNS))
		}
		r.Count, r.First = r.End()-before.First, before.First
	}
	w.next[r.Stream] = r
}

// journal checks a group's journal against its records, and takes it into the state.
func (w *verifier) journal(ctx context.Context, g *Group, key string) error {
	open, err := w.a.openGroup(ctx, g)
	if err != nil {
		return err
	}
	r := &Replay{a: w.a, next: g.From, start: g.From, open: open, v: &view{m: w.m}, journal: open.stream(0)}
	if r.journal != nil {
		r.block = r.journal.from
	}
	records, want := uint64(0), uint64(0)
	for i := range g.Objects {
		want += g.Objects[i].Records
	}
	for {
		e, err := r.entry(ctx)
		if err != nil {
			return err
		}
		if e == nil {
			break
		}
		if e.Item != nil && !g.Control {
			return problem(ErrManifest, "groups", 0, "the group of positions [%d, %d) has control items, and the manifest says that it has none", g.From, g.To)
		}
		event, err := r.show(ctx, e)
		if err != nil {
			return err
		}
		records += uint64(len(event.Records))
		w.note(e, event)
		if w.table != nil && e.Position >= w.position {
			if err := apply(w.table, e); err != nil {
				return fmt.Errorf("%w: it does not follow from the state before: %w", ErrDamagedObject, err)
			}
		}
	}
	if records != want {
		return problem(ErrDamagedObject, "journal", 0, "it has batches of %d records, the group holds %d", records, want)
	}
	return nil
}

// note counts a batch, and what is missing of it.
func (w *verifier) note(e *Entry, event *Event) {
	if e.Item != nil {
		return
	}
	w.sum.Batches++
	if event.Missing == 0 {
		return
	}
	have := map[stream.ID]uint64{}
	for i := range event.Records {
		have[event.Records[i].Stream]++
	}
	for i := len(e.Extents) - 1; i >= 0; i-- { // the missing ones of a stream are its first
		x := &e.Extents[i]
		n := min(have[x.Stream], uint64(x.Count))
		have[x.Stream] -= n
		if n < uint64(x.Count) {
			w.missing[x.Stream] = max(w.missing[x.Stream], x.First+uint64(x.Count)-n)
		}
	}
}

// end compares the state with what was found of the streams.
func (w *verifier) end() {
	if w.table == nil {
		return
	}
	key := ManifestKey(w.m.Node)
	d := stream.NewDirectory(w.table)
	w.sum.Streams = uint64(w.table.Streams())
	for cursor, more := "", true; more; {
		var page []stream.StreamInfo
		page, more = d.List("", cursor, stream.MaxListed, nil)
		for i := range page {
			info := &page[i]
			cursor = info.Name
			for _, part := range Parts(w.joins, info.ID, info.First, info.Next) {
				w.covered(key, info, part)
			}
		}
	}
}

// covered compares a part of a stream with what was found of it.
func (w *verifier) covered(key string, info *stream.StreamInfo, part Part) {
	r, seen := w.next[part.Stream]
	switch {
	case seen && r.End() != part.To:
		w.found(key, problem(ErrManifest, "groups", 0, "stream %d ends at offset %d, its records at %d", part.Stream, part.To, r.End()))
	case part.From < part.To && (!seen || r.First > part.From):
		w.found(key, problem(ErrManifest, "groups", 0, "the first records of stream %d, from offset %d on, are in no object", part.Stream, part.From))
	case w.missing[part.Stream] > part.From:
		w.found(key, problem(ErrManifest, "groups", 0, "records of stream %d below offset %d were left out; it begins at %d", part.Stream, w.missing[part.Stream], info.First))
	}
}
