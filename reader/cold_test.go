package reader_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

// coldWorld has two streams of which the device, and then the tail, have nothing but the
// newest records.
func coldWorld(t testing.TB, o options) (w *world, old, hot stream.ID) {
	t.Helper()
	random := newRandom(t)
	w = newWorld(t, o)
	old, hot = w.stream("old"), w.stream("hot")
	w.fill(random, 5<<20, 20_000, 1<<20, old)
	w.fill(random, 5<<20, 20_000, 1<<20, hot) // the tail holds 4 MiB
	w.upload()
	w.setTrim(w.manifest.Uploaded)
	return w, old, hot
}

// reads runs do, and returns how often the store and the device were read by it.
func (w *world) reads(do func()) (requests, device int64) {
	requests, device = w.store.reads.Load(), w.disk.reads.Load()
	do()
	return w.store.reads.Load() - requests, w.disk.reads.Load() - device
}

// What is in memory is read from there alone, below the trim position as well.
func TestTheTailNeedsNeitherDeviceNorStore(t *testing.T) {
	for _, entries := range []int{0, 64} {
		w, _, hot := coldWorld(t, options{indexEntries: entries})
		all := w.records[hot]
		last := all[len(all)-20:]
		requests, device := w.reads(func() {
			w.readAll(reader.Query{Stream: hot, From: reader.From{Kind: reader.FromOffset, Value: last[0].Offset}}, 1000, last)
			w.readAll(reader.Query{Stream: hot, From: reader.From{Kind: reader.FromLast, Value: 20}}, 100_000, last)
			if entries == 0 { // a coarse one does not know that nothing older is new enough
				ns := last[19].TimestampNS
				w.readAll(reader.Query{Stream: hot, From: reader.From{Kind: reader.FromTime, Value: uint64(ns)}}, 100_000, all[byTime(all, ns):])
			}
			w.replayFrom(last[0].Position, 50_000)
			c := w.open(reader.Query{Stream: hot, Follow: true, From: reader.From{Kind: reader.FromOffset, Value: uint64(len(all))}})
			for range 3 {
				w.append(100, hot)
				w.sync()
				for {
					e, err := c.Next(background, 1000)
					must(t, err)
					if e.Kind == reader.Records {
						break
					}
				}
				w.upload()
				w.setTrim(w.manifest.Uploaded)
			}
		})
		if requests != 0 || device != 0 {
			t.Errorf("index of %d: %d requests and %d reads of the device for what is in memory", entries, requests, device)
		}
	}
}

// What left the memory, and is still on the device, costs no request.
func TestTheDeviceNeedsNoStore(t *testing.T) {
	random := newRandom(t)
	w := newWorld(t, options{})
	a := w.stream("a")
	w.fill(random, 10<<20, 20_000, 1<<20, a)
	w.upload()
	w.setTrim(w.frames[len(w.frames)/4])
	all := w.records[a]
	at := 0
	for all[at].Position < w.trim {
		at++
	}
	requests, device := w.reads(func() {
		w.readAll(reader.Query{Stream: a, From: reader.From{Kind: reader.FromOffset, Value: uint64(at)}}, 100_000, all[at:])
		ns := all[at].TimestampNS + 1
		w.readAll(reader.Query{Stream: a, From: reader.From{Kind: reader.FromTime, Value: uint64(ns)}}, 100_000, all[byTime(all, ns):])
		w.replayFrom(w.trim, 100_000)
	})
	if requests != 0 || device == 0 {
		t.Errorf("%d requests and %d reads of the device", requests, device)
	}
}

// One record from the store: its object's index, and its block. Then neither.
func TestAColdRecordTakesTwoRequests(t *testing.T) {
	w, old, _ := coldWorld(t, options{coldBytes: 64 << 20})
	one := func(n int) func() {
		return func() {
			w.readAll(reader.Query{Stream: old, From: reader.From{Kind: reader.FromOffset, Value: uint64(n)}, MaxRecords: 1}, 1000, w.records[old][n:n+1])
		}
	}
	for _, n := range []int{0, 10, len(w.records[old]) - 1} {
		if requests, device := w.reads(one(n)); requests > 2 || device != 0 {
			t.Errorf("record %d: %d requests, %d reads of the device", n, requests, device)
		}
		if requests, _ := w.reads(one(n)); requests != 0 {
			t.Errorf("record %d, again: %d requests", n, requests)
		}
	}
}

// Many readers of one cold block at once cost what one of them costs.
func TestReadersOfOneBlockShareARequest(t *testing.T) {
	w, old, _ := coldWorld(t, options{coldBytes: 64 << 20})
	const readers = 20
	arrived := make(chan struct{})
	var first sync.Once
	release := make(chan struct{})
	before := func(context.Context, string) error {
		first.Do(func() { close(arrived) })
		<-release
		return nil
	}
	w.store.before.Store(&before)
	var all sync.WaitGroup
	requests, _ := w.reads(func() {
		for range readers {
			all.Go(func() {
				check(t, func() (source, func(), error) {
					c, err := w.r.Open(reader.Query{Stream: old, MaxRecords: 3})
					return c, c.Close, err
				}, 1000, w.records[old][:3])
			})
		}
		<-arrived
		close(release)
		all.Wait()
	})
	if requests > 2 {
		t.Errorf("%d readers of one block made %d requests", readers, requests)
	}
}

// While the store fails, or hangs, what is hot is read as ever; a cold read says which
// store failed, and goes on once it works.
func TestP12_AnOutageOfTheStoreConcernsColdReadsAlone(t *testing.T) {
	w, old, hot := coldWorld(t, options{coldBytes: 16 << 20})
	c := w.open(reader.Query{Stream: old})
	p, err := w.r.OpenReplay(reader.ReplayQuery{})
	must(t, err)
	defer p.Close()
	for _, kind := range []error{store.ErrUnavailable, store.ErrDenied} {
		down := func(_ context.Context, key string) error {
			return &store.Error{Op: "get", Store: "s3://bucket", Key: key, Kind: kind}
		}
		w.store.before.Store(&down)
		for _, from := range []source{c, p} {
			if _, err := from.Next(background, 1000); !errors.Is(err, reader.ErrStore) || !errors.Is(err, kind) || !strings.Contains(err.Error(), "s3://bucket/") {
				t.Fatalf("cold, without a store: %v", err)
			}
		}
		tail := w.records[hot][len(w.records[hot])-5:]
		w.readAll(reader.Query{Stream: hot, From: reader.From{Kind: reader.FromLast, Value: 5}}, 1000, tail)
	}
	entered, release := make(chan struct{}, 100), make(chan struct{})
	hang := func(context.Context, string) error {
		entered <- struct{}{}
		<-release
		return nil
	}
	w.store.before.Store(&hang)
	var cold sync.WaitGroup
	cold.Go(func() {
		check(t, func() (source, func(), error) { return c, func() {}, nil }, 1000, w.records[old])
	})
	cold.Go(func() {
		check(t, func() (source, func(), error) { return p, func() {}, nil }, 100_000, w.all)
	})
	<-entered
	tail := w.records[hot][len(w.records[hot])-5:]
	w.readAll(reader.Query{Stream: hot, From: reader.From{Kind: reader.FromLast, Value: 5}}, 1000, tail)
	w.store.before.Store(nil)
	close(release)
	cold.Wait()
}

// A read that is given up while the store hangs ends at once.
func TestAColdReadEndsWithItsContext(t *testing.T) {
	w, old, _ := coldWorld(t, options{coldBytes: 16 << 20})
	entered, healed := make(chan struct{}, 100), make(chan struct{})
	hang := func(ctx context.Context, _ string) error {
		entered <- struct{}{}
		select {
		case <-ctx.Done():
		case <-healed:
		}
		return ctx.Err()
	}
	w.store.before.Store(&hang)
	c := w.open(reader.Query{Stream: old})
	ctx, cancel := context.WithCancel(background)
	go func() { <-entered; cancel() }()
	if _, err := c.Next(ctx, 1000); !errors.Is(err, context.Canceled) {
		t.Fatalf("a read that was given up: %v", err)
	}
	w.store.before.Store(nil)
	close(healed)
	if e, err := c.Next(background, 1000); err != nil || e.Kind != reader.Records {
		t.Fatalf("the same read again: %+v, %v", e, err)
	}
}

// objects are the files of the data objects.
func (w *world) objects() (paths []string) {
	w.t.Helper()
	must(w.t, filepath.WalkDir(w.folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(filepath.Dir(path)) == "o" {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// A bit flipped in any object is an error that names it, or is not met; never data.
func TestP7_RotInTheStoreIsNamedAndNeverReturned(t *testing.T) {
	w, old, _ := coldWorld(t, options{})
	random := newRandom(t)
	for _, path := range w.objects()[:4] { // those of old records
		sound, err := os.ReadFile(path)
		must(t, err)
		met := 0
		for range 6 {
			rotten := append([]byte{}, sound...)
			rotten[random.IntN(len(rotten))] ^= 1 << random.IntN(8)
			must(t, os.WriteFile(path, rotten, 0o600))
			c, err := w.r.Open(reader.Query{Stream: old})
			must(t, err)
			p, err := w.r.OpenReplay(reader.ReplayQuery{})
			must(t, err)
			met += untilRot(t, c, path, w.records[old]) + untilRot(t, p, path, w.all)
			c.Close()
			p.Close()
		}
		if met == 0 {
			t.Errorf("six flipped bits of %s, and nobody noticed", filepath.Base(path))
		}
		must(t, os.WriteFile(path, sound, 0o600))
	}
	w.replayFrom(0, 1<<20)
}

// untilRot reads to the end or an error about the object.
func untilRot(t *testing.T, c source, path string, want []record) (met int) {
	t.Helper()
	for n := 0; ; {
		e, err := c.Next(background, 1<<20)
		if err != nil {
			if !errors.Is(err, reader.ErrLost) || !errors.Is(err, upload.ErrDamagedObject) || !strings.Contains(err.Error(), filepath.Base(path)) {
				t.Fatalf("rot in %s: %v", filepath.Base(path), err)
			}
			return 1
		}
		for i := range e.Records {
			must(t, same(&e.Records[i], &want[n]))
			n++
		}
		if e.Kind == reader.End {
			if n != len(want) {
				t.Fatalf("%d records, want %d", n, len(want))
			}
			return 0
		}
	}
}

// An object that is gone is an error, not a gap.
func TestAMissingObjectIsAnError(t *testing.T) {
	w, old, _ := coldWorld(t, options{})
	path := w.objects()[2]
	sound, err := os.ReadFile(path)
	must(t, err)
	must(t, os.Remove(path))
	for _, from := range []source{w.open(reader.Query{Stream: old}), w.replay()} {
		for {
			e, err := from.Next(background, 1<<20)
			if err == nil && e.Kind == reader.Records {
				continue
			}
			if !errors.Is(err, reader.ErrLost) || !strings.Contains(err.Error(), filepath.Base(path)) {
				t.Fatalf("an object is missing: %+v, %v", e, err)
			}
			break
		}
	}
	must(t, os.WriteFile(path, sound, 0o600))
	w.replayFrom(0, 1<<20)
}

func (w *world) replay() *reader.Replay {
	w.t.Helper()
	p, err := w.r.OpenReplay(reader.ReplayQuery{})
	must(w.t, err)
	w.t.Cleanup(p.Close)
	return p
}

// A manifest that lacks what was trimmed makes reads fail, not skip.
func TestRecordsThatTheStoreShouldHaveAreMissed(t *testing.T) {
	w, old, _ := coldWorld(t, options{})
	m := *w.manifest
	m.Groups = append([]upload.Group{}, m.Groups...)
	m.Groups[2].Objects = nil // as if positions had been left out there
	w.archive.Apply(&m)
	c := w.open(reader.Query{Stream: old})
	for n := 0; ; {
		e, err := c.Next(background, 1<<20)
		if err != nil {
			if !errors.Is(err, reader.ErrLost) || n == 0 {
				t.Fatalf("after %d records: %v", n, err)
			}
			return
		}
		if e.Kind != reader.Records {
			t.Fatalf("%+v in place of an error", e)
		}
		for i := range e.Records {
			must(t, same(&e.Records[i], &w.records[old][n]))
			n++
		}
	}
}

// A stream that is trimmed, or deleted, under a cold read says so.
func TestGapsUnderAColdRead(t *testing.T) {
	w, old, _ := coldWorld(t, options{})
	c := w.open(reader.Query{Stream: old, Follow: true})
	e, err := c.Next(background, 1000)
	must(t, err)
	next := e.Records[len(e.Records)-1].Offset + 1
	w.trimStream(old, next+10)
	w.sync()
	if e, err = c.Next(background, 1000); err != nil || e.Kind != reader.Gap || e.Gap != (reader.Missing{Kind: reader.Trimmed, From: next, To: next + 10}) {
		t.Fatalf("after a trim: %+v, %v", e, err)
	}
	if e, err = c.Next(background, 1000); err != nil || e.Kind != reader.Records || e.Records[0].Offset != next+10 {
		t.Fatalf("behind the gap: %+v, %v", e, err)
	}
	w.retry(func() error { return w.c.Delete(old) })
	w.sync()
	if e, err = c.Next(background, 1000); err != nil || e.Kind != reader.Gap || e.Gap.Kind != reader.Deleted {
		t.Fatalf("after the delete: %+v, %v", e, err)
	}
	if e, err = c.Next(background, 1000); err != nil || e.Kind != reader.End {
		t.Fatalf("after the end: %+v, %v", e, err)
	}
}

// At most MaxColdScans reads read ahead in the store; the others wait, and one that does
// not go on loses its turn to them. None of them notices.
func TestColdScansTakeTurns(t *testing.T) {
	w, old, _ := coldWorld(t, options{})
	reader.SetTurns(w.r, time.Hour)
	ask := func(c *reader.Cursor, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(background, timeout)
		defer cancel()
		e, err := c.Next(ctx, 1000)
		if err == nil && e.Kind != reader.Records {
			t.Fatalf("%+v", e)
		}
		return err
	}
	var cursors []*reader.Cursor
	for i := range reader.MaxColdScans + 1 {
		c := w.open(reader.Query{Stream: old})
		cursors = append(cursors, c)
		must(t, ask(c, time.Minute)) // the first one needs no turn
		if i < reader.MaxColdScans {
			must(t, ask(c, time.Minute))
		}
	}
	last := cursors[reader.MaxColdScans]
	if err := ask(last, 20*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("one too many: %v", err)
	}
	cursors[0].Close()
	must(t, ask(last, time.Minute))
	reader.SetTurns(w.r, 0)
	for range 3 {
		for _, c := range cursors[1:] {
			must(t, ask(c, time.Minute))
		}
	}
	for _, c := range cursors[1:] {
		want := w.records[old][c.NextOffset():]
		if n, _ := drain(t, c, 100_000, want); n != len(want) {
			t.Errorf("%d records to the end, want %d", n, len(want))
		}
	}
}

// After a restore a stream goes on under a new id: what the store has of the lost one is
// read under the offsets that it had, then comes the gap, then what is new.
func TestARestoredStreamIsReadAcrossTheLoss(t *testing.T) {
	random := newRandom(t)
	before := newWorld(t, options{})
	lost := before.stream("s")
	before.fill(random, 2<<20, 20_000, 500_000, lost)
	before.upload()
	before.fill(random, 100_000, 20_000, 0, lost) // not in the store: lost
	n := uint64(0)
	for n < uint64(len(before.records[lost])) && before.records[lost][n].Position < before.manifest.Uploaded {
		n++
	}
	kept := before.records[lost][:n]

	const id = 7
	w := newWorld(t, options{earlier: before, origin: testOrigin * 2, joins: []upload.Join{{Stream: id, Before: lost, At: n}},
		table: restoredTable(t, id, "s", n)})
	w.records[id] = append([]record{}, kept...)
	for range 50 {
		w.append(1000, id)
	}
	w.sync()
	want := w.records[id]
	gap := reader.Missing{Kind: reader.DataLost, From: n, To: n}
	for _, from := range []uint64{0, 1, n - 1} {
		gaps := w.readAll(reader.Query{Stream: id, From: reader.From{Kind: reader.FromOffset, Value: from}}, 50_000, want[from:])
		if len(gaps) != 1 || gaps[0] != gap {
			t.Errorf("from %d: gaps %+v", from, gaps)
		}
	}
	noGaps(w, reader.Query{}, w.readAll(reader.Query{Stream: id, From: reader.From{Kind: reader.FromOffset, Value: n}}, 50_000, want[n:]))
	for _, at := range []uint64{0, n / 2, n - 1, n, n + 3} {
		ns := want[at].TimestampNS
		w.readAll(reader.Query{Stream: id, From: reader.From{Kind: reader.FromTime, Value: uint64(ns)}}, 50_000, want[byTime(want, ns):])
	}

	p, err := w.r.OpenReplay(reader.ReplayQuery{Position: before.manifest.Origin})
	must(t, err)
	defer p.Close()
	all := append(append([]record{}, kept...), w.all...)
	got, gaps := drain(t, p, 100_000, all)
	if got != len(all) || len(gaps) != 1 || gaps[0] != (reader.Missing{Kind: reader.DataLost, From: before.manifest.Uploaded, To: testOrigin * 2}) {
		t.Errorf("replay: %d records of %d, gaps %+v", got, len(all), gaps)
	}
}
