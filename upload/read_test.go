package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// indexed moves all but the last group of a store to an index object, and its state to a
// state object of the uploaded position.
func (w *testWorld) indexed(s *memStore, m *Manifest) {
	w.t.Helper()
	last := len(m.Groups) - 1
	o, index, err := BuildIndex(testLog, 1, w.id(m), m.Origin, m.Groups[last-1].To, m.Groups[:last])
	must(w.t, err)
	w.put(s, o)
	m.Index, m.Groups = index, m.Groups[last:]
	o, ref, err := BuildState(testLog, 1, w.id(m), &State{Position: m.Uploaded, Checkpoint: w.c.Table().EncodeCheckpoint(nil)})
	must(w.t, err)
	w.put(s, o)
	m.State = ref
	w.commit(s, m)
}

func TestOneColdRecordTakesFiveRequestsFromNothingAndTwoAfterThat(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 1000, 500)
	s, m := w.archive(40<<10, 256)
	w.indexed(s, m)
	want := byStream(w.device())
	first, _ := w.c.List("", "", 1, nil)
	record := want[first[0].ID][len(want[first[0].ID])/3]

	s.requests()
	cache := newMemCache()
	a, err := OpenArchive(background, s, "test", cache.load)
	must(t, err)
	read := func(what string, most int) {
		t.Helper()
		d, _, err := a.Streams(background)
		if most == 5 { // by name; a sidecar has the state at hand
			must(t, err)
			if _, err := d.ByName(first[0].Name); err != nil {
				t.Fatal(err)
			}
		} else {
			s.requests()
		}
		scan := a.Read(record.Stream, record.Offset, record.Offset+1)
		defer scan.Close()
		got, err := scan.Next(background, 1)
		must(t, err)
		compareRecords(t, what, got, []Record{record})
		if _, err := scan.Next(background, 1); !errors.Is(err, io.EOF) {
			t.Errorf("%s: more: %v", what, err)
		}
		if requests := s.requests(); len(requests) > most {
			t.Errorf("%s took %d requests, want at most %d: %q", what, len(requests), most, requests)
		}
	}
	read("the first record", 5)
	read("the same record", 0)
	record = want[first[0].ID][len(want[first[0].ID])*2/3]
	read("another record", 2)
	record = want[first[0].ID][len(want[first[0].ID])/2]
	scan := a.Read(record.Stream, record.Offset, math.MaxUint64) // open end: no reading ahead for the first call
	defer scan.Close()
	s.requests()
	got, err := scan.Next(background, 1)
	must(t, err)
	compareRecords(t, "with an open end", got, []Record{record})
	if requests := s.requests(); len(requests) > 2 {
		t.Errorf("with an open end: %q", requests)
	}
}

func TestAScanReadsAheadInFewRequests(t *testing.T) {
	w := newTestWorld(t, 64<<20, 0)
	id := w.stream("s")
	random := testRandom(t)
	for range 100 {
		w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: randomPayload(random, 100<<10)}, {Stream: id, Payload: randomPayload(random, 100<<10)}}})
	}
	w.sync()
	s, m := w.archive(1<<30, 256)
	a := openTest(t, s)
	s.requests()
	compareRecords(t, "all", scan(t, a, id, 0, math.MaxUint64, 128<<10), byStream(w.device())[id])
	// About 100 blocks in rows that double up to 4 MiB, and the index.
	if requests := s.requests(); len(requests) > 16 {
		t.Errorf("%d requests for %d bytes", len(requests), m.Groups[0].Objects[0].Bytes)
	}
}

// TestBlocksThatAreStoredAsTheyAreAndCompressedOnesInOneScan: the memory of the one is
// not used for the other.
func TestBlocksThatAreStoredAsTheyAreAndCompressedOnesInOneScan(t *testing.T) {
	w := newTestWorld(t, 64<<20, 0)
	id := w.stream("s")
	random := testRandom(t)
	for i := range 60 {
		payload := bytes.Repeat([]byte{byte(i)}, 200<<10)
		if i%2 == 0 {
			for j := range payload {
				payload[j] = byte(random.Uint32())
			}
		}
		w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: payload}}})
	}
	w.sync()
	s, _ := w.archive(1<<30, 256)
	a := openTest(t, s)
	want := byStream(w.device())[id]
	for _, maxBytes := range []int{1, 300 << 10, 700 << 10, 4 << 20} {
		compareRecords(t, fmt.Sprintf("by %d bytes", maxBytes), scan(t, a, id, 0, math.MaxUint64, maxBytes), want)
	}
}

// TestALargeGroupIsReplayedInRows: block by block, and with few blocks open at a time.
func TestALargeGroupIsReplayedInRows(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 600, 8<<10)
	items := w.device()
	s, m := w.archive(2<<20, 256)
	if len(m.Groups) < 3 {
		t.Fatalf("%d groups", len(m.Groups))
	}
	a := openTest(t, s)
	a.wholeBytes, a.openBytes = 0, 600<<10
	compareReplay(t, a, items, 0)
	compareReplay(t, a, items, items[random.IntN(len(items))].position)
}

// compact merges the groups [from, to) of the manifest into one with two objects: the
// records of stream large by themselves. Records that keep refuses are left out.
func (w *testWorld) compact(s *memStore, m *Manifest, from, to int, large stream.ID, keep func(*Record) bool) {
	w.t.Helper()
	first, last := m.Groups[from], m.Groups[to-1]
	bundle, alone := NewBuilder(first.From), NewBuilder(first.From)
	g := Group{From: first.From, To: last.To, Level: 1}
	for i := from; i < to; i++ {
		for j := range m.Groups[i].Objects {
			ref := &m.Groups[i].Objects[j]
			o, err := DecodeObject(s.body(w.t, ref.ID.Key("test", KindData)))
			must(w.t, err)
			must(w.t, o.Journal(bundle.AddEntry))
			for n := range o.Index.Streams() {
				b := bundle
				id := o.Index.Stream(n).Stream
				if id == large {
					b = alone
				}
				must(w.t, o.Records(id, 0, func(r *Record) error {
					if keep != nil && !keep(r) {
						g.Pruned = true
						return nil
					}
					return b.AddRecord(r)
				}))
			}
			m.Doomed = append(m.Doomed, Doomed{Kind: KindData, ID: ref.ID, SinceNS: 1})
		}
	}
	for _, b := range []*Builder{bundle, alone} {
		if b.Empty() {
			continue
		}
		b.Extend(g.To)
		o, err := b.Build(testLog, 1, w.id(m), nil)
		must(w.t, err)
		w.put(s, o)
		g.Control = g.Control || o.Control
		g.Objects = append(g.Objects, o.Ref)
	}
	m.Groups = append(append(append([]Group{}, m.Groups[:from]...), g), m.Groups[to:]...)
	w.commit(s, m)
}

func TestCompactedGroupsReadTheSame(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 1000, 300)
	items := w.device()
	s, m := w.archive(20<<10, 256)
	from := random.IntN(len(m.Groups) / 2)
	w.compact(s, m, from, from+len(m.Groups)/2, 1, nil)
	for _, d := range m.Doomed {
		must(t, s.Delete(background, []string{d.ID.Key("test", d.Kind)}))
	}
	a := openTest(t, s)
	for id, want := range byStream(items) {
		compareRecords(t, fmt.Sprintf("stream %d", id), scan(t, a, id, 0, math.MaxUint64, 5000), want)
	}
	compareReplay(t, a, items, 0)
	compareState(t, w, a)
	_, err := Verify(background, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
	must(t, err)
}

// TestAReadGoesOnWhereCompactionHasDeletedItsObjects: a scan and a replay that began
// with an older manifest read the newest one when an object is gone.
func TestAReadGoesOnWhereCompactionHasDeletedItsObjects(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 600, 300)
	items := w.device()
	s, m := w.archive(20<<10, 256)
	for _, fed := range []bool{false, true} {
		a := openTest(t, s)
		if fed {
			a = NewArchive(s, a.Manifest(), nil)
		}
		want := byStream(items)[1]
		scan := a.Read(1, 0, math.MaxUint64)
		defer scan.Close()
		records, err := scan.Next(background, 1)
		must(t, err)
		got := []Record{cloneRecord(&records[0])}
		replay := a.Replay(0)
		defer replay.Close()
		_, err = replay.Next(background)
		must(t, err)

		m.Doomed = nil
		w.compact(s, m, 0, len(m.Groups), 1, nil)
		for _, d := range m.Doomed {
			must(t, s.Delete(background, []string{d.ID.Key("test", d.Kind)}))
		}
		if fed {
			a.Apply(must1(t)(DecodeManifest(s.body(t, ManifestKey("test")))))
		}
		for {
			records, err := scan.Next(background, 2000)
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			for i := range records {
				got = append(got, cloneRecord(&records[i]))
			}
		}
		compareRecords(t, "the scan", got, want)
		n := 1
		for ; ; n++ {
			if _, err := replay.Next(background); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n != len(items) {
			t.Errorf("the replay showed %d items, want %d", n, len(items))
		}
		if fed {
			break
		}
		// For the second round: groups again, of other objects.
		s, m = w.archive(20<<10, 256)
	}
}

func must1(t *testing.T) func(*Manifest, error) *Manifest {
	return func(m *Manifest, err error) *Manifest {
		t.Helper()
		must(t, err)
		return m
	}
}

func TestTrimmedRecordsMayBeLeftOutOfPrunedGroups(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	id := w.stream("kept")
	for i := range 60 {
		w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: randomPayload(random, 1000)}, {Stream: id, Payload: fmt.Appendf(nil, "record %d", 2*i+1)}}})
		if i == 40 {
			w.retry(func() error { _, err := w.c.Trim(id, 51); return err })
		}
	}
	gone := w.stream("deleted")
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: gone, Payload: []byte("x")}, {Stream: id, Payload: []byte("y")}}})
	w.retry(func() error { return w.c.Delete(gone) })
	w.sync()
	s, m := w.archive(10<<10, 256)
	w.compact(s, m, 0, len(m.Groups), 99, func(r *Record) bool { return r.Stream == id && r.Offset >= 51 })
	a := openTest(t, s)
	compareRecords(t, "what is left", scan(t, a, id, 0, math.MaxUint64, 5000), byStream(w.device())[id][51:])
	compareState(t, w, a)
	_, err := Verify(background, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
	must(t, err)

	missing, records := 0, 0
	r := a.Replay(0)
	defer r.Close()
	for {
		e, err := r.Next(background)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		missing += e.Missing
		records += len(e.Records)
	}
	if missing != 52 || records != 122-52 {
		t.Errorf("%d records missing and %d there, want 52 and 70", missing, records)
	}

	// The same without the flag is damage, and records that are not trimmed are never left out.
	m.Groups[0].Pruned = false
	w.commit(s, m)
	if _, err := readAll(t, s); !errors.Is(err, ErrDamagedObject) {
		t.Errorf("without the flag: %v", err)
	}
	s, m = w.archive(10<<10, 256)
	w.compact(s, m, 0, len(m.Groups), 99, func(r *Record) bool { return r.Stream == id && r.Offset >= 52 })
	found := 0
	_, err = Verify(background, s, "test", func(f Finding) { found++ })
	must(t, err)
	if found == 0 {
		t.Error("a record that is not trimmed was left out, and verify finds nothing")
	}
}

func TestAReplayShowsGaps(t *testing.T) {
	w := newTestWorld(t, 16<<20, 1<<20)
	id := w.stream("s")
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("x")}}})
	w.sync()
	s, m := w.archive(1<<20, 256)
	end := m.Uploaded
	m.Groups = append(m.Groups, Group{From: end, To: end + 4096})
	m.Uploaded = end + 4096
	w.commit(s, m)
	r := openTest(t, s).Replay(5)
	defer r.Close()
	var got []string
	for {
		e, err := r.Next(background)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		switch {
		case e.GapTo != 0:
			got = append(got, fmt.Sprintf("gap [%d, %d)", e.Position, e.GapTo))
		case e.Item != nil:
			got = append(got, "item")
		default:
			got = append(got, fmt.Sprintf("%d records", len(e.Records)))
		}
	}
	want := fmt.Sprintf("[gap [5, %d) item 1 records gap [%d, %d)]", m.Origin, end, end+4096)
	if fmt.Sprint(got) != want || r.NextPosition() != end+4096 {
		t.Errorf("%v, then position %d, want %s", got, r.NextPosition(), want)
	}
	_, err := Verify(background, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
	must(t, err)
}

func TestTheStateObjectAndTheJournalsBehindItAreTheState(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 300, 100)
	// A checkpoint in the middle of the log, and of a group.
	position, checkpoint := w.log.Head(), w.c.Table().EncodeCheckpoint(nil)
	w.retry(w.c.Checkpoint)
	w.sync()
	for i := range 200 {
		w.append(&stream.Batch{Entries: []stream.Entry{{Stream: w.stream(fmt.Sprintf("later %d", i%7)), Payload: randomPayload(random, 100)}}})
	}
	w.sync()
	for _, groupBytes := range []int{8 << 10, 1 << 30} {
		for _, inline := range []int{0, 256} {
			s, m := w.archive(groupBytes, inline)
			joins := []Join{{Stream: 1 << 40, Before: 1, At: 7}} // of a stream that was deleted
			o, ref, err := BuildState(testLog, 1, w.id(m), &State{Position: position, Checkpoint: checkpoint, Joins: joins})
			must(t, err)
			w.put(s, o)
			m.State = ref
			w.commit(s, m)
			a := openTest(t, s)
			compareState(t, w, a)
			got, err := a.State(background, 1<<20)
			must(t, err)
			if got.Position != m.Uploaded || fmt.Sprint(got.Joins) != fmt.Sprint(joins) {
				t.Errorf("state at %d with joins %v, want %d and %v", got.Position, got.Joins, m.Uploaded, joins)
			}
			_, err = Verify(background, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
			must(t, err)
		}
	}
}

// TestAStateInTheMiddleOfAGroup: of a group that holds no control items, too.
func TestAStateInTheMiddleOfAGroup(t *testing.T) {
	w := newTestWorld(t, 64<<20, 0)
	id := w.stream("s")
	w.sync()
	one := &stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("x")}}}
	w.append(one)
	w.sync()
	position, checkpoint := w.log.Head(), w.c.Table().EncodeCheckpoint(nil)
	w.append(one)
	w.sync()
	s, m := w.archive(1<<30, 256)
	// As if the stream had been made in a group before: only the batches are in this one.
	b := NewBuilder(m.Origin)
	for i := range w.frames {
		if f := &w.frames[i].FrameView; f.Records > 0 {
			must(t, b.AddFrame(f))
		}
	}
	o, err := b.Build(testLog, 1, w.id(m), nil)
	must(t, err)
	w.put(s, o)
	m.Groups = []Group{{From: o.From, To: o.To, Control: o.Control, Objects: []ObjectRef{o.Ref}}}
	o, ref, err := BuildState(testLog, 1, w.id(m), &State{Position: position, Checkpoint: checkpoint})
	must(t, err)
	w.put(s, o)
	m.State = ref
	w.commit(s, m)
	if m.Groups[0].Control {
		t.Fatal("there are control items")
	}
	compareState(t, w, openTest(t, s))
}

func TestWithoutAStateTheStoreHasToBeginWithTheLog(t *testing.T) {
	w := newTestWorld(t, 16<<20, 0)
	id := w.stream("s")
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("x")}}})
	w.sync()
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("x")}}})
	w.sync()
	s, m := w.archive(1, 256)
	m.Origin, m.Groups = m.Groups[0].To, m.Groups[1:]
	w.commit(s, m)
	a := openTest(t, s)
	if _, err := a.State(background, 1<<20); !errors.Is(err, ErrNotArchived) {
		t.Errorf("the state: %v", err)
	}
	if _, _, err := a.Streams(background); !errors.Is(err, ErrNotArchived) {
		t.Errorf("the streams: %v", err)
	}
}

// TestAnErrorOfTheStoreIsGivenOnAndTheReadGoesOn: nothing is lost or doubled over errors.
func TestAnErrorOfTheStoreIsGivenOnAndTheReadGoesOn(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 500, 300)
	items := w.device()
	s, _ := w.archive(10<<10, 1)
	a, err := OpenArchive(background, s, "test", nil)
	must(t, err)
	requests := 0
	s.fail = func(simstore.Call) bool { requests++; return requests == 3 || random.IntN(8) == 0 }
	want := byStream(items)[1]
	var got []Record
	scan := a.Read(1, 0, math.MaxUint64)
	defer scan.Close()
	errs := 0
	for {
		records, err := scan.Next(background, 3000)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if errs++; !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
			continue
		}
		for i := range records {
			got = append(got, cloneRecord(&records[i]))
		}
	}
	compareRecords(t, "with errors", got, want)
	replay := a.Replay(0)
	defer replay.Close()
	for n := 0; ; {
		e, err := replay.Next(background)
		if errors.Is(err, io.EOF) {
			if n != len(items) {
				t.Errorf("%d items, want %d", n, len(items))
			}
			break
		}
		if err != nil {
			if errs++; !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
			continue
		}
		if e.Position != items[n].position {
			t.Fatalf("item %d at %d, want %d", n, e.Position, items[n].position)
		}
		n++
	}
	if errs == 0 {
		t.Error("no error was met")
	}
}

func TestAReadEndsWithItsContext(t *testing.T) {
	_, s, _ := smallStore(t)
	a := openTest(t, s)
	ctx, cancel := context.WithCancel(background)
	cancel()
	scan := a.Read(1, 0, math.MaxUint64)
	defer scan.Close()
	if _, err := scan.Next(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("scan: %v", err)
	}
	replay := a.Replay(0)
	defer replay.Close()
	if _, err := replay.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("replay: %v", err)
	}
	if records, err := scan.Next(background, 1); err != nil || !bytes.Equal(records[0].Payload, []byte("first")) {
		t.Errorf("and then: %v", err)
	}
}
