package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// archiveOracle judges every change of the store by what was submitted. What no
// manifest names does not exist, so that it looks at objects when one names them.
type archiveOracle struct {
	w *World
	b *bucket

	m       *upload.Manifest // in force; nil: none
	epoch   uint64           // of the newest claim that has returned
	log     []*entry         // that the manifest holds, ascending
	next    map[place]uint64 // by {stream, 0}: the offset behind the last record in the store
	checked map[upload.ObjectID]bool
}

// uploaded is the uploaded position in force.
func (o *archiveOracle) uploaded() uint64 {
	if o.m == nil {
		return 0
	}
	return o.m.Uploaded
}

// inStore is the offset behind the last record of the stream that is in the store.
func (o *archiveOracle) inStore(id stream.ID) uint64 { return o.next[place{stream: id}] }

// mayRefuse reports whether a start of a log that was put back to an older snapshot had
// to be refused: the manifest's owner came after it, or the store holds more.
func (o *archiveOracle) mayRefuse(h *host, err error) bool {
	w := o.w
	sbs, failed := ringwal.ReadSuperblocks(w.disk.Open("oracle"))
	if w.profile.kind != Restored || failed != nil {
		return false
	}
	if errors.Is(err, upload.ErrFenced) { // only where the owner came while it started
		return h.seen == nil || h.seen.Epoch < o.m.Epoch
	}
	newest := sbs.Newest
	return errors.Is(err, upload.ErrOlderSnapshot) &&
		(o.uploaded() > w.oracle.ackedEnd() || o.m.Epoch > newest.Epoch || o.m.Epoch == newest.Epoch && o.m.Incarnation != newest.Incarnation)
}

// claimed notes that a claim has returned: from now on no older owner changes the
// manifest.
func (o *archiveOracle) claimed(m *upload.Manifest) {
	if o.m == nil || o.m.Incarnation != m.Incarnation {
		o.w.fail("P6", "a claim of epoch %d returned, and the manifest is another's", m.Epoch)
	}
	o.epoch = max(o.epoch, m.Epoch)
}

// changed looks at a change of the store. The store is locked.
func (o *archiveOracle) changed(op simstore.Op, key string, body []byte) {
	w := o.w
	switch {
	case op == simstore.Delete:
		o.deleted(key)
		return
	case key != upload.ManifestKey(simNode):
		return
	}
	m, err := upload.DecodeManifest(body)
	if err != nil {
		w.fail("P5", "the manifest cannot be read: %v", err)
	}
	w.tracef("manifest: epoch %d, attempt %d, [%d, %d), %d groups, %d doomed", m.Epoch, m.Attempt, m.Origin, m.Uploaded, len(m.Groups), len(m.Doomed))
	w.stats.Manifests++
	before := o.m
	switch {
	case m.Epoch < o.epoch:
		w.fail("P6", "an owner of epoch %d changed the manifest after that of epoch %d had claimed it", m.Epoch, o.epoch)
	case before != nil && (m.Epoch < before.Epoch || m.Epoch == before.Epoch && m.Incarnation != before.Incarnation):
		w.fail("P6", "epoch %d of incarnation %x changed the manifest of epoch %d of incarnation %x", m.Epoch, m.Incarnation, before.Epoch, before.Incarnation)
	case before != nil && m.Uploaded < before.Uploaded:
		w.fail("P2", "the uploaded position went from %d back to %d", before.Uploaded, m.Uploaded)
	case m.Uploaded > w.oracle.complete:
		w.fail("P11", "the manifest says that [%d, %d) is uploaded, and the log is durable up to %d", m.Origin, m.Uploaded, w.oracle.complete)
	}
	o.m = m
	o.namesAll(m)
	o.groups(m, before)
}

// namesAll sees that every object which the manifest names is there.
func (o *archiveOracle) namesAll(m *upload.Manifest) {
	each(m, func(k upload.Kind, id upload.ObjectID) {
		if _, found := o.b.sim.PeekLocked(id.Key(simNode, k)); !found {
			o.w.fail("P5", "the manifest names %s object %s, which is not in the store", k, id)
		}
	})
}

func each(m *upload.Manifest, visit func(upload.Kind, upload.ObjectID)) {
	if m.State != nil {
		visit(upload.KindState, m.State.ID)
	}
	if m.Index != nil {
		visit(upload.KindIndex, m.Index.ID)
	}
	for i := range m.Groups {
		for j := range m.Groups[i].Objects {
			visit(upload.KindData, m.Groups[i].Objects[j].ID)
		}
	}
}

// deleted sees that nothing goes that the manifest in force names.
func (o *archiveOracle) deleted(key string) {
	o.w.stats.Deleted++
	if key == upload.ManifestKey(simNode) {
		o.w.fail("P5", "the manifest was deleted")
	}
	if o.m == nil {
		return
	}
	each(o.m, func(k upload.Kind, id upload.ObjectID) {
		if id.Key(simNode, k) == key {
			o.w.fail("P5", "%s object %s was deleted, and the manifest in force names it", k, id)
		}
	})
}

// groups sees that the groups fill the manifest's positions without a gap, and that
// each new one holds what was submitted there.
func (o *archiveOracle) groups(m, before *upload.Manifest) {
	w := o.w
	at := m.Origin
	if m.Index != nil {
		at = m.Index.To
	}
	was := m.Origin
	if before != nil {
		was = before.Uploaded
	}
	for i := range m.Groups {
		g := &m.Groups[i]
		if g.From != at || g.To <= g.From {
			w.fail("P5", "the manifest has a group of [%d, %d) where one from %d on comes next", g.From, g.To, at)
		}
		at = g.To
		fresh := g.From >= was
		if len(g.Objects) > 0 && o.checked[g.Objects[0].ID] {
			continue
		}
		o.group(g, fresh)
	}
	if at != m.Uploaded {
		w.fail("P5", "the groups end at %d, the uploaded position is %d", at, m.Uploaded)
	}
}

// submitted are the entries of [from, to).
func (o *archiveOracle) submitted(from, to uint64, fresh bool) []*entry {
	all := o.log
	if fresh {
		all = o.w.oracle.entries
	}
	var found []*entry
	for _, e := range all {
		if e.position >= from && e.position < to && e.position > 0 {
			found = append(found, e)
		}
	}
	return found
}

// group compares a new group with what was submitted.
func (o *archiveOracle) group(g *upload.Group, fresh bool) {
	w := o.w
	want := o.submitted(g.From, g.To, fresh)
	if len(g.Objects) == 0 {
		if len(want) > 0 {
			w.fail("P5", "the manifest gives up [%d, %d), where %d items lie", g.From, g.To, len(want))
		}
		return
	}
	records := map[place]*record{}
	positions := map[place]*entry{}
	for _, e := range want {
		for _, r := range e.records {
			records[place{r.stream, r.offset}], positions[place{r.stream, r.offset}] = r, e
		}
	}
	left := want
	for i := range g.Objects {
		ref := &g.Objects[i]
		o.checked[ref.ID] = true
		body, _ := o.b.sim.PeekLocked(ref.ID.Key(simNode, upload.KindData))
		d, err := upload.DecodeObject(body)
		if err != nil || d.ID != ref.ID {
			w.fail("P2", "object %s cannot be read: %v", ref.ID, err)
		}
		if i == 0 {
			left = o.journal(d, left)
		}
		o.records(d, records, positions)
	}
	if len(left) > 0 {
		w.fail("P2", "the group [%d, %d) does not hold the item at %d", g.From, g.To, left[0].position)
	}
	for at := range records {
		if s := w.oracle.durable.stream(at.stream); !g.Pruned || s != nil && at.offset >= s.first {
			w.fail("P2", "the group [%d, %d) does not hold stream %d offset %d, of the batch at %d", g.From, g.To, at.stream, at.offset, positions[at].position)
		}
	}
	if !fresh {
		return
	}
	o.log = append(o.log, want...)
	for _, e := range want {
		for _, r := range e.records {
			o.next[place{stream: r.stream}] = r.offset + 1
		}
	}
}

// journal compares an object's journal with the entries that are left, and returns
// those behind it.
func (o *archiveOracle) journal(d *upload.DataObject, left []*entry) []*entry {
	w := o.w
	err := d.Journal(func(got *upload.Entry) error {
		if len(left) == 0 || left[0].position != got.Position {
			w.fail("P2", "object %s has an item at %d, which does not come next", d.ID, got.Position)
		}
		e := left[0]
		left = left[1:]
		if got.Item != nil {
			it, err := got.Control()
			if err != nil {
				return err
			}
			if what := e.differs(&it); what != "" {
				w.fail("P2", "object %s: the %s item at %d is not what was submitted: %s", d.ID, it.Kind, got.Position, what)
			}
			return nil
		}
		if e.kind != stream.KindBatch || got.Producer != e.producer || got.Sequence != e.sequence || got.Records() != len(e.records) {
			w.fail("P2", "object %s: the batch at %d is not what was submitted", d.ID, got.Position)
		}
		n := 0
		for _, x := range got.Extents {
			for k := range uint64(x.Count) {
				if r := e.records[n]; r.stream != x.Stream || r.offset != x.First+k {
					w.fail("P2", "object %s: record %d of the batch at %d is stream %d offset %d, not stream %d offset %d", d.ID, n, got.Position,
						x.Stream, x.First+k, r.stream, r.offset)
				}
				n++
			}
		}
		return nil
	})
	if err != nil {
		w.fail("P2", "the journal of object %s: %v", d.ID, err)
	}
	return left
}

// records compares an object's records, and strikes them out.
func (o *archiveOracle) records(d *upload.DataObject, want map[place]*record, batches map[place]*entry) {
	w := o.w
	for i := range d.Index.Streams() {
		r := d.Index.Stream(i)
		err := d.Records(r.Stream, r.First, func(got *upload.Record) error {
			at := place{got.Stream, got.Offset}
			rec, e := want[at], batches[at]
			switch {
			case rec == nil:
				w.fail("P2", "object %s holds stream %d offset %d, which is not of its positions, or comes twice", d.ID, got.Stream, got.Offset)
			case got.TimestampNS != rec.timestamp || !bytes.Equal(got.Payload, rec.payload.bytes()) || !bytes.Equal(got.Headers, rec.headers):
				w.fail("P2", "object %s holds stream %d offset %d with other bytes", d.ID, got.Stream, got.Offset)
			case got.Position != e.position || got.BatchEnd != (e.records[len(e.records)-1] == rec):
				w.fail("P2", "object %s has stream %d offset %d at the wrong place of the batch at %d", d.ID, got.Stream, got.Offset, e.position)
			}
			if before, known := w.oracle.forEver[at]; known && !bytes.Equal(before.bytes(), got.Payload) {
				w.fail("P4", "stream %d offset %d is another record in the store than it was before", got.Stream, got.Offset)
			}
			delete(want, at)
			return nil
		})
		if err != nil {
			w.fail("P2", "object %s: %v", d.ID, err)
		}
	}
}

// verify looks at everything in the store, as `walsidecar verify` and a replay do.
func (o *archiveOracle) verify() {
	w, ctx := o.w, context.Background()
	if o.m == nil {
		return
	}
	_, err := upload.Verify(ctx, o.b.honest(), simNode, func(f upload.Finding) { w.fail("P5", "verify found: %s: %v", f.Key, f.Err) })
	if err != nil {
		w.fail("P5", "verify: %v", err)
	}
	o.replay(ctx)
}

// replay reads the store in commit order: what was acked comes once, and in order.
func (o *archiveOracle) replay(ctx context.Context) {
	w := o.w
	a, err := upload.OpenArchive(ctx, o.b.honest(), simNode, nil)
	if err != nil {
		w.fail("P5", "the store cannot be opened: %v", err)
	}
	p := a.Replay(o.m.Origin)
	defer p.Close()
	i, _ := slices.BinarySearchFunc(o.log, o.m.Origin, func(e *entry, at uint64) int { return cmp.Compare(e.position, at) })
	for {
		e, err := p.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			w.fail("P2", "a replay of the store: %v", err)
		case e.GapTo != 0:
			continue
		case i == len(o.log) || o.log[i].position != e.Position:
			w.fail("P2", "a replay of the store shows an item at %d, which does not come next", e.Position)
		case len(e.Records)+e.Missing != len(o.log[i].records):
			w.fail("P2", "a replay of the store shows the batch at %d with %d of %d records", e.Position, len(e.Records), len(o.log[i].records))
		}
		i++
	}
	if i != len(o.log) {
		w.fail("P2", "a replay of the store ends %d items before its end", len(o.log)-i)
	}
}

// cold reads records of a stream from the store alone.
func (h *host) cold(id stream.ID, from uint64, n int) (records []stream.Record, err error) {
	h.w.stats.Cold++
	scan := h.archive.Read(id, from, from+uint64(n))
	defer scan.Close()
	for err == nil {
		var some []upload.Record
		some, err = scan.Next(context.Background(), 64<<10)
		for _, r := range some {
			records = append(records, stream.Record{Stream: r.Stream, Offset: r.Offset, Timestamp: r.TimestampNS,
				Headers: bytes.Clone(r.Headers), Payload: bytes.Clone(r.Payload)})
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return records, err
}
