package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// uploadWorld is a log, a store that fails as it is told to, and uploaders of the log,
// one after the other or several at once. It watches every change of the store.
type uploadWorld struct {
	t      testing.TB
	random *rand.Rand
	log    *testWorld
	items  []deviceItem
	s      *simstore.Store

	nowNS   int64
	durable uint64 // what the log has made durable so far
	dataEnd uint64
	trim    uint64 // what the log gave up: no frame below is read any more

	owners   []*owner // alive or zombies
	newest   uint64   // epoch of the newest claim that returned
	uploaded uint64   // by the manifest in the store
	epoch    uint64   // of the manifest in the store
	commits  int
	stop     func() bool // ends a run early
	slow     bool        // one frame at a time, and an upload of nearly each
}

// owner is one run of the uploader.
type owner struct {
	w       *uploadWorld
	core    *Core
	epoch   uint64
	pending []*Action
	dead    bool // its process is gone; requests on their way may still arrive
}

var testSettings = Settings{Node: "test", Log: testLog, MemoryBytes: 128 << 10, Linger: time.Second, Grace: 3 * time.Second}

func newUploadWorld(t testing.TB, random *rand.Rand, log *testWorld, items []deviceItem) *uploadWorld {
	w := &uploadWorld{t: t, random: random, log: log, items: items, s: &simstore.Store{}, nowNS: 1}
	w.trim = log.frames[0].Position
	w.s.Watch = w.watch
	w.s.Now = func() time.Time { return time.Unix(0, w.nowNS) }
	w.advance(1)
	return w
}

// testLogOf makes a log with a workload, and streams that are trimmed and deleted.
func testLogOf(t testing.TB, random *rand.Rand, n, maxPayload int) (*testWorld, []deviceItem) {
	w := newTestWorld(t, 64<<20, 0)
	for i := range n / 5 {
		w.workload(random, 5, maxPayload)
		if i%10 == 9 {
			must(t, w.c.Checkpoint())
			w.sync()
		}
	}
	w.workload(random, 5, maxPayload)
	w.readFrames()
	return w, w.device()
}

// readFrames reads all frames back from the disk, those of checkpoints too.
func (w *testWorld) readFrames() {
	w.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(w.disk)
	must(w.t, err)
	w.frames = nil
	_, err = ringwal.Recover(w.disk, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		w.frames = append(w.frames, testFrame{FrameView: ringwal.FrameView{FrameHeader: f.FrameHeader, Body: bytes.Clone(f.Body)}})
		return nil
	}})
	must(w.t, err)
}

// watch checks every change of the store.
func (w *uploadWorld) watch(op simstore.Op, key string, body []byte) {
	switch op {
	case simstore.Replace:
		m, err := DecodeManifest(body)
		must(w.t, err)
		if m.Epoch < w.epoch || m.Epoch == w.epoch && m.Uploaded < w.uploaded {
			w.t.Fatalf("the manifest went back from epoch %d, position %d to epoch %d, position %d", w.epoch, w.uploaded, m.Epoch, m.Uploaded)
		}
		if m.Epoch < w.newest {
			w.t.Fatalf("epoch %d changed the manifest after epoch %d had claimed it", m.Epoch, w.newest)
		}
		if len(m.Groups) > 0 && !w.stateKnown(m) {
			w.t.Fatalf("the state at position %d does not follow from what the manifest names", m.Uploaded)
		}
		w.epoch, w.uploaded = m.Epoch, m.Uploaded
		w.commits++
		for key := range w.named(m) {
			if _, there := w.peek(key); !there {
				w.t.Fatalf("the manifest names %s, which is not in the store", key)
			}
		}
	case simstore.Delete:
		m := w.manifest()
		if w.named(m)[key] || strings.HasSuffix(key, "/manifest") {
			w.t.Fatalf("%s was deleted, and the manifest names it", key)
		}
	}
}

// stateKnown reports whether journals without a gap lead from a state, or from the
// beginning of the log, to the end of what is uploaded.
func (w *uploadWorld) stateKnown(m *Manifest) bool {
	for i := range m.Groups {
		g := &m.Groups[i]
		if len(g.Objects) == 0 && m.State != nil && m.State.Position < g.To && g.To < m.Uploaded {
			return false
		}
	}
	return m.State != nil || m.Origin == w.log.frames[0].Position
}

// peek is Peek where the store is locked already.
func (w *uploadWorld) peek(key string) ([]byte, bool) { return w.s.PeekLocked(key) }

func (w *uploadWorld) manifest() *Manifest {
	body, found := w.peek(ManifestKey("test"))
	if !found {
		return nil
	}
	m, err := DecodeManifest(body)
	must(w.t, err)
	return m
}

// named are the keys of all objects that the manifest names, but for the doomed ones.
func (w *uploadWorld) named(m *Manifest) map[string]bool {
	keys := map[string]bool{}
	groups := m.Groups
	if m.State != nil {
		keys[m.State.ID.Key("test", KindState)] = true
	}
	if m.Index != nil {
		key := m.Index.ID.Key("test", KindIndex)
		keys[key] = true
		body, found := w.peek(key)
		if !found {
			w.t.Fatalf("the index object %s is missing", key)
		}
		_, indexed, err := DecodeIndex(body)
		must(w.t, err)
		for i := range indexed {
			if indexed[i].To > m.Origin {
				groups = append(groups[:len(groups):len(groups)], indexed[i])
			}
		}
	}
	groupIDs(groups, func(id *ObjectID) { keys[id.Key("test", KindData)] = true })
	return keys
}

// advance makes n more frames durable.
func (w *uploadWorld) advance(n int) {
	for _, f := range w.log.frames {
		if f.Position < w.durable {
			continue
		}
		if n--; n < 0 {
			return
		}
		w.durable = f.End()
		if f.Kind == ringwal.FrameData {
			w.dataEnd = f.End()
		}
	}
}

func (w *uploadWorld) allDurable() bool {
	return w.durable == w.log.frames[len(w.log.frames)-1].End()
}

// frame is what Options.Frames does.
func (w *uploadWorld) frame(o *owner, position uint64) (*ringwal.FrameView, uint64, error) {
	if position < w.trim && o.epoch < w.newest {
		return nil, 0, errors.New("the frame is gone")
	}
	if position < w.trim {
		w.t.Fatalf("the uploader reads position %d, which was trimmed up to %d", position, w.trim)
	}
	i := sort.Search(len(w.log.frames), func(i int) bool { return w.log.frames[i].Position >= position })
	f := w.log.frames[i].FrameView
	if f.End() > w.durable {
		w.t.Fatalf("the uploader reads the frame at position %d, beyond the durable %d", f.Position, w.durable)
	}
	return &f, f.End(), nil
}

// start claims the manifest and starts an owner.
func (w *uploadWorld) start() (*owner, error) {
	var incarnation [16]byte
	for i := range incarnation {
		incarnation[i] = byte(w.random.Uint32())
	}
	epoch := w.newest + 1
	m, _, err := ReadManifest(background, w.s, "test")
	if err == nil {
		epoch = max(epoch, m.Epoch+1)
	} else if !errors.Is(err, ErrNoManifest) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	claimed, err := Claim(ctx, w.s, Claimant{Log: testLog, Node: "test", Epoch: epoch, Incarnation: incarnation, Trim: w.trim, End: w.durable})
	if err != nil {
		return nil, err
	}
	w.newest = epoch
	o := &owner{w: w, epoch: epoch}
	settings := testSettings
	settings.Epoch, settings.Incarnation, settings.Claimed, settings.Seed = epoch, incarnation, claimed, w.random.Uint64()
	settings.Committed = o.committed
	o.core = NewCore(settings)
	o.core.stateEvery = 32 << 10
	u := &o.core.upkeep
	u.lookEvery, u.dropEvery, u.inlineBytes, u.indexFewest, u.largeBytes = 1, 1, 800, 4, 8<<10
	w.owners = append(w.owners, o)
	return o, nil
}

// committed is when the log may trim.
func (o *owner) committed(m *Manifest) {
	w := o.w
	body, _ := w.s.Peek(ManifestKey("test"))
	in, err := DecodeManifest(body)
	must(w.t, err)
	if in.Uploaded < m.Uploaded {
		w.t.Fatalf("a trim up to %d is allowed, and the manifest in the store says %d", m.Uploaded, in.Uploaded)
	}
	if !o.dead && o.epoch == w.newest {
		w.trim = max(w.trim, m.Uploaded)
	}
}

func (w *uploadWorld) now() Instant {
	return Instant{NS: w.nowNS, WallNS: 1_700_000_000_000_000_000 + w.nowNS}
}

// step lets the owner do one thing; false: it has nothing to do right now.
func (o *owner) step() bool {
	w := o.w
	if !o.dead {
		upTo := w.dataEnd
		if w.random.IntN(32) == 0 { // as of a log that is nearly full
			upTo = w.durable
		}
		o.core.Advance(w.durable, upTo)
		if w.random.IntN(8) == 0 {
			o.core.Flush()
		}
		o.pending = append(o.pending, o.core.Step(w.now())...)
		if position, wants := o.core.WantsFrame(w.now()); wants && (len(o.pending) == 0 || w.random.IntN(2) == 0) {
			f, next, err := w.frame(o, position)
			o.core.Frame(w.now(), f, next, err)
			return true
		}
	}
	if len(o.pending) == 0 {
		return false
	}
	i := w.random.IntN(len(o.pending))
	a := o.pending[i]
	o.pending = append(o.pending[:i], o.pending[i+1:]...)
	r := a.Do(background, w.s)
	if !o.dead {
		o.core.Done(w.now(), a, r)
	}
	return true
}

// drive lets everybody work until all of the log is durable and, with the newest owner,
// uploaded, or the run is to stop. Time passes when nobody has anything to do.
func (w *uploadWorld) drive() {
	idle := 0
	for range 200_000 {
		if w.stop != nil && w.stop() {
			return
		}
		o := w.owners[w.random.IntN(len(w.owners))]
		if w.s.OnTheirWay() > 0 && w.random.IntN(20) == 0 {
			w.s.Land(w.random.IntN(w.s.OnTheirWay()))
		}
		newest := w.owners[len(w.owners)-1]
		if o.step() {
			if o == newest {
				idle = 0
			}
			continue
		}
		if idle++; idle > 20*len(w.owners) && w.allDurable() && newest.core.Uploaded() >= w.dataEnd && newest.quiet() {
			return
		}
		w.pass()
	}
	c := w.owners[len(w.owners)-1].core
	w.t.Fatalf("the uploader does not come to an end: %s; %d changes, %d in force, job %v, %d doomed, %d groups waiting, held %d, durable %d, readTo %d, retries %v, counters %+v",
		w, c.changes, c.said, c.upkeep.job, len(c.m.Doomed), len(c.groups), c.held, c.durable, c.readTo, c.retries.uploads.err, c.counters)
}

// pass lets time pass: to where somebody wants to be woken, or frames become durable. An
// owner that sleeps too long makes no progress here.
func (w *uploadWorld) pass() {
	wake := int64(0)
	for _, o := range w.owners {
		if at := o.core.WakeAt(w.now()); !o.dead && at != 0 && (wake == 0 || at < wake) {
			wake = at
		}
	}
	more := w.random.IntN(3) == 0 || w.slow && wake == 0
	if wake != 0 && (!more || w.random.IntN(2) == 0) {
		w.nowNS = max(w.nowNS, wake)
	} else {
		w.nowNS += w.random.Int64N(int64(100 * time.Millisecond))
		if wake != 0 {
			w.nowNS = min(w.nowNS, wake)
		}
	}
	switch {
	case w.slow && more:
		w.advance(1)
	case more:
		w.advance(1 + w.random.IntN(3))
	}
}

// quiet reports whether nothing is left to be done.
func (o *owner) quiet() bool {
	c := o.core
	return len(o.pending) == 0 && c.changes == c.said && c.upkeep.job == nil && len(c.m.Doomed) == 0
}

// crash ends the owner's process. Some of its requests arrive later, some never.
func (o *owner) crash() {
	o.dead = true
	kept := o.pending[:0]
	for _, a := range o.pending {
		if o.w.random.IntN(2) == 0 {
			kept = append(kept, a)
		}
	}
	o.pending = kept
}

// check reads the store back and compares it with the log: every item once, in order;
// records are left out only where their stream was trimmed or deleted. It returns how
// many are.
func (w *uploadWorld) check() (missing int) {
	w.t.Helper()
	w.s.Inject = nil
	a, err := OpenArchive(background, w.s, "test", nil)
	must(w.t, err)
	m := a.Manifest()
	if m.Uploaded < w.dataEnd {
		w.t.Fatalf("uploaded up to %d of %d", m.Uploaded, w.dataEnd)
	}
	_, err = Verify(background, w.s, "test", func(f Finding) { w.t.Errorf("%s: %v", f.Key, f.Err) })
	must(w.t, err)
	final, _, err := a.Streams(background)
	must(w.t, err)
	w.checkWhole(a)
	items := w.items
	for len(items) > 0 && items[0].position < m.Origin {
		w.checkGone(final, items[0].records)
		items = items[1:]
	}
	r := a.Replay(m.Origin)
	defer r.Close()
	for i := range items {
		want := &items[i]
		got, err := r.Next(background)
		if err != nil {
			w.t.Fatalf("item %d at position %d: %v", i, want.position, err)
		}
		if got.Position != want.position || got.GapTo != 0 || !bytes.Equal(got.Item, want.raw) ||
			want.kind == stream.KindBatch && (got.Producer != want.item.Producer || got.Sequence != want.item.Sequence) {
			w.t.Fatalf("item %d is %+v, want %v at %d", i, got, want.kind, want.position)
		}
		missing += w.compareBatch(final, got, want)
	}
	if e, err := r.Next(background); !errors.Is(err, io.EOF) {
		w.t.Fatalf("behind the end: %+v, %v", e, err)
	}
	compareState(w.t, w.log, a)
	return missing
}

// checkWhole: no item, a batch least of all, lies in two groups.
func (w *uploadWorld) checkWhole(a *Archive) {
	v, err := a.look(background)
	must(w.t, err)
	for i := range w.items {
		position, end := w.items[i].position, w.items[i].position+uint64(w.items[i].item.Bytes)
		if position < v.m.Origin {
			continue
		}
		if g := v.group(v.at(position)); position < g.From || end > g.To {
			w.t.Fatalf("the item at [%d, %d) is not in one group: [%d, %d)", position, end, g.From, g.To)
		}
	}
}

func (w *uploadWorld) compareBatch(final *stream.Directory, got *Event, want *deviceItem) (missing int) {
	records := got.Records
	for i := range want.records {
		if len(records) > 0 && sameRecord(&records[0], &want.records[i]) {
			records = records[1:]
			continue
		}
		w.checkGone(final, want.records[i:i+1])
		missing++
	}
	if len(records) > 0 || missing != got.Missing {
		w.t.Fatalf("the batch at position %d has %d records too many, or says %d are missing and %d are", got.Position, len(records), got.Missing, missing)
	}
	return missing
}

// checkGone: records that the store does not have were trimmed or deleted.
func (w *uploadWorld) checkGone(final *stream.Directory, records []Record) {
	for i := range records {
		r := &records[i]
		if info, err := final.Lookup(r.Stream); err == nil && r.Offset >= info.First {
			w.t.Fatalf("stream %d has lost offset %d; it begins at %d", r.Stream, r.Offset, info.First)
		}
	}
}

// orphans are the objects that are in the store and not in the manifest.
func (w *uploadWorld) orphans() (keys []string) {
	named := w.named(w.manifest())
	for _, key := range w.s.Keys() {
		if !named[key] && !strings.HasSuffix(key, "/manifest") {
			keys = append(keys, key)
		}
	}
	return keys
}

func (w *uploadWorld) String() string {
	return fmt.Sprintf("%d commits, %d puts, %d objects, uploaded %d of %d, owners %d",
		w.commits, w.s.Requests(simstore.Put), len(w.s.Keys()), w.uploaded, w.dataEnd, len(w.owners))
}

// append1 appends one record.
func (w *testWorld) append1(id stream.ID, payload string) {
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte(payload)}}})
}
