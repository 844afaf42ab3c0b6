package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"testing"

	"github.com/walsidecar/walsidecar/stream"
)

var background = context.Background()

// byStream sorts the records of the device by stream.
func byStream(items []deviceItem) map[stream.ID][]Record {
	all := map[stream.ID][]Record{}
	for i := range items {
		for _, r := range items[i].records {
			all[r.Stream] = append(all[r.Stream], r)
		}
	}
	return all
}

func sameRecord(a, b *Record) bool {
	return a.Stream == b.Stream && a.Offset == b.Offset && a.Position == b.Position && a.TimestampNS == b.TimestampNS &&
		bytes.Equal(a.Headers, b.Headers) && bytes.Equal(a.Payload, b.Payload) && a.Checksum == b.Checksum && a.BatchEnd == b.BatchEnd
}

func openTest(t testing.TB, s *memStore) *Archive {
	t.Helper()
	a, err := OpenArchive(background, s, "test", nil)
	must(t, err)
	return a
}

// scan reads all records [from, to) with calls of maxBytes.
func scan(t testing.TB, a *Archive, id stream.ID, from, to uint64, maxBytes int) (all []Record) {
	t.Helper()
	s := a.Read(id, from, to)
	defer s.Close()
	for {
		records, err := s.Next(background, maxBytes)
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		for _, r := range records {
			r.Headers, r.Payload = bytes.Clone(r.Headers), bytes.Clone(r.Payload)
			all = append(all, r)
		}
		if len(records) > 0 && s.NextOffset() != records[len(records)-1].Offset+1 {
			t.Fatalf("next offset %d behind record %d", s.NextOffset(), records[len(records)-1].Offset)
		}
	}
}

func compareRecords(t testing.TB, what string, got, want []Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d records, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !sameRecord(&got[i], &want[i]) {
			t.Fatalf("%s: record %d is\n%+v, want\n%+v", what, i, got[i], want[i])
		}
	}
}

func TestWhatTheDeviceHoldsIsReadFromTheStore(t *testing.T) {
	for _, c := range []struct {
		name                       string
		things, payload            int
		groupBytes, inline, window int
		origin                     uint64
	}{
		{"one object", 300, 100, 1 << 30, 256, 1 << 20, 0},
		{"many objects", 1500, 300, 20 << 10, 256, 10 << 10, 1 << 40},
		{"their indexes tell", 400, 300, 20 << 10, 0, 1, 1 << 40},
		{"large records", 120, 60 << 10, 2 << 20, 256, 300 << 10, 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			random := testRandom(t)
			w := newTestWorld(t, 64<<20, c.origin)
			w.workload(random, c.things, c.payload)
			items := w.device()
			s, m := w.archive(c.groupBytes, c.inline)
			a := openTest(t, s)
			for id, want := range byStream(items) {
				what := fmt.Sprintf("stream %d", id)
				compareRecords(t, what, scan(t, a, id, 0, math.MaxUint64, c.window), want)
				from, to := random.IntN(len(want)), random.IntN(len(want)+1)
				part := want[min(from, to):max(from, to)]
				compareRecords(t, what, scan(t, a, id, uint64(min(from, to)), uint64(max(from, to)), c.window), part)
				r, found, err := a.Range(background, id)
				must(t, err)
				if !found || r.First != 0 || r.End() != uint64(len(want)) || r.FirstNS != want[0].TimestampNS || r.LastNS != want[len(want)-1].TimestampNS {
					t.Fatalf("%s: range %+v, %t, want %d records", what, r, found, len(want))
				}
				findTimes(t, a, id, want)
			}
			if _, found, err := a.Range(background, 1<<60); found || err != nil {
				t.Fatalf("a range of a stream that never was: %v", err)
			}
			compareReplay(t, a, items, m.Origin)
			compareReplay(t, a, items, items[random.IntN(len(items))].position)
			compareState(t, w, a)
			sum, err := Verify(background, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
			must(t, err)
			if want := len(flatten(items)); int(sum.Records) != want || sum.Groups != uint64(len(m.Groups)) {
				t.Errorf("verified %+v, want %d records in %d groups", sum, want, len(m.Groups))
			}
		})
	}
}

func flatten(items []deviceItem) (all []Record) {
	for i := range items {
		all = append(all, items[i].records...)
	}
	return all
}

func findTimes(t *testing.T, a *Archive, id stream.ID, want []Record) {
	t.Helper()
	for _, ns := range []int64{0, want[0].TimestampNS, want[len(want)/2].TimestampNS, want[len(want)/2].TimestampNS + 1, want[len(want)-1].TimestampNS, want[len(want)-1].TimestampNS + 1} {
		i := sort.Search(len(want), func(i int) bool { return want[i].TimestampNS >= ns })
		offset, found, err := a.FindTime(background, id, ns)
		must(t, err)
		if found != (i < len(want)) || found && offset != uint64(i) {
			t.Fatalf("stream %d: time %d found at offset %d, %t; want %d of %d", id, ns, offset, found, i, len(want))
		}
	}
}

// compareReplay replays from position and compares with the device, item by item.
func compareReplay(t testing.TB, a *Archive, items []deviceItem, position uint64) {
	t.Helper()
	for len(items) > 0 && items[0].position < position {
		items = items[1:]
	}
	r := a.Replay(position)
	defer r.Close()
	for i := range items {
		want := &items[i]
		got, err := r.Next(background)
		if err != nil {
			t.Fatalf("item %d at position %d: %v", i, want.position, err)
		}
		if got.Position != want.position || got.GapTo != 0 || !bytes.Equal(got.Item, want.raw) || got.Missing != 0 {
			t.Fatalf("item %d is %+v, want %v at %d", i, got, want.kind, want.position)
		}
		if next := r.NextPosition(); next <= want.position || next > want.position+uint64(want.item.Bytes) {
			t.Fatalf("item %d at position %d, %d bytes: goes on at %d", i, want.position, want.item.Bytes, next)
		}
		if want.kind == stream.KindBatch {
			if got.Producer != want.item.Producer || got.Sequence != want.item.Sequence || got.Acked != want.item.Acked {
				t.Fatalf("item %d has the producer part %d, %d, %d, want %+v", i, got.Producer, got.Sequence, got.Acked, want.item)
			}
			compareRecords(t, fmt.Sprintf("batch at position %d", got.Position), got.Records, want.records)
		}
	}
	if e, err := r.Next(background); !errors.Is(err, io.EOF) {
		t.Fatalf("behind the end: %+v, %v", e, err)
	}
	if to := a.Manifest().Uploaded; r.NextPosition() != to {
		t.Fatalf("the replay ends at %d, want %d", r.NextPosition(), to)
	}
}

// compareState compares the store's state with the log's.
func compareState(t testing.TB, w *testWorld, a *Archive) {
	t.Helper()
	got, err := a.State(background, 1<<20)
	must(t, err)
	if want := w.c.Table().EncodeCheckpoint(nil); !bytes.Equal(got.Table.EncodeCheckpoint(nil), want) {
		t.Fatal("the state is another one than the log's")
	}
	d, _, err := a.Streams(background)
	must(t, err)
	want, _ := w.c.List("", "", stream.MaxListed, nil)
	have, _ := d.List("", "", stream.MaxListed, nil)
	if len(have) != len(want) {
		t.Fatalf("%d streams, want %d", len(have), len(want))
	}
	for i := range want {
		if fmt.Sprint(have[i]) != fmt.Sprint(want[i]) {
			t.Fatalf("stream %+v, want %+v", have[i], want[i])
		}
	}
}
