package stream

import (
	"errors"
	"strings"
	"testing"
)

// extentsOf is a batch without its records.
func extentsOf(it *Item) []Extent {
	var extents []Extent
	var r Record
	for it.Rewind(); it.NextRecord(&r); {
		if n := len(extents); n > 0 && extents[n-1].Stream == r.Stream {
			extents[n-1].Count++
			extents[n-1].Timestamp = r.Timestamp
			continue
		}
		extents = append(extents, Extent{Stream: r.Stream, First: r.Offset, Count: 1, Timestamp: r.Timestamp})
	}
	return extents
}

// TestExtentsAreAsGoodAsRecords applies a log's items to two states, with records and
// without: they stay equal.
func TestExtentsAreAsGoodAsRecords(t *testing.T) {
	var body []byte
	add := func(it *Item) { body = append(body, encodeControl(it)...) }
	add(&Item{Kind: KindStreamCreate, Stream: 1, Timestamp: 5, Name: []byte("a")})
	add(&Item{Kind: KindStreamCreate, Stream: 2, Timestamp: 6, Name: []byte("b")})
	add(&Item{Kind: KindSessionOpen, Producer: session7, Window: 8})
	add(&Item{Kind: KindNamedCreate, Producer: 1, Name: []byte("p")})
	record := func(id ID, offset uint64, ns int64) placedEntry {
		return placedEntry{Entry{Stream: id, Payload: []byte("x")}, offset, ns}
	}
	body = append(body, encodeBatch(&Batch{}, record(1, 0, 7), record(1, 1, 8), record(2, 0, 8), record(1, 2, 9))...)
	body = append(body, encodeBatch(&Batch{Producer: session7, Sequence: 1, Acked: 1}, record(2, 1, 9), record(1, 3, 9))...)
	add(&Item{Kind: KindStreamTrim, Stream: 1, First: 4})
	body = append(body, encodeBatch(&Batch{Producer: 1, Sequence: 70}, record(1, 4, 10))...)
	body = append(body, encodeBatch(&Batch{Producer: session7, Sequence: 2, Acked: 2}, record(2, 2, 11))...)

	with, without := NewTable(1<<20), NewTable(1<<20)
	directory := NewDirectory(without)
	batches := 0
	err := Items(body, 4096, func(it *Item) error {
		if err := with.Apply(it); err != nil {
			return err
		}
		if it.Kind != KindBatch {
			if err := directory.Apply(it); err != nil {
				return err
			}
			return without.Apply(it)
		}
		batches++
		bare := &Item{Kind: KindBatch, Position: it.Position, Producer: it.Producer, Sequence: it.Sequence, Acked: it.Acked}
		if err := directory.ApplyExtents(bare, extentsOf(it)); err != nil {
			return err
		}
		return without.ApplyExtents(bare, extentsOf(it))
	})
	if err != nil || batches != 4 {
		t.Fatalf("%d batches, %v", batches, err)
	}
	if !with.EqualCheckpoint(without.EncodeCheckpoint(nil)) {
		t.Error("the states differ")
	}
	for _, id := range []ID{1, 2} {
		want, _ := NewDirectory(with).Lookup(id)
		if got, err := directory.Lookup(id); err != nil || got.Next != want.Next || got.First != want.First || got.Last != want.Last {
			t.Errorf("stream %d: %+v, want %+v (%v)", id, got, want, err)
		}
	}
}

func TestExtentsThatContradictTheStateAreRefused(t *testing.T) {
	table := NewTable(1 << 20)
	if err := Items(encodeControl(&Item{Kind: KindStreamCreate, Stream: 1, Name: []byte("a")}), 0, table.Apply); err != nil {
		t.Fatal(err)
	}
	before := table.EncodeCheckpoint(nil)
	batch := &Item{Kind: KindBatch, Position: 4224}
	for _, c := range []struct {
		says    string
		batch   *Item
		extents []Extent
	}{
		{"does not exist", batch, []Extent{{Stream: 1, Count: 1}, {Stream: 2, Count: 1}}},
		{"not the next one", batch, []Extent{{Stream: 1, First: 1, Count: 1}}},
		{"not the next one", batch, []Extent{{Stream: 1, Count: 2}, {Stream: 1, First: 3, Count: 1}}},
		{"not the next one", batch, []Extent{{Stream: 1}}},
		{"timestamp", batch, []Extent{{Stream: 1, Count: 1, Timestamp: 5}, {Stream: 1, First: 1, Count: 1, Timestamp: 4}}},
		{"producer does not exist", &Item{Kind: KindBatch, Producer: 7, Sequence: 1}, []Extent{{Stream: 1, Count: 1}}},
	} {
		if err := table.ApplyExtents(c.batch, c.extents); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.extents, err, c.says)
		}
		if !table.EqualCheckpoint(before) {
			t.Fatalf("%+v changed the state", c.extents)
		}
	}
	if err := Items(encodeControl(&Item{Kind: KindStreamSeal, Stream: 1}), 0, table.Apply); err != nil {
		t.Fatal(err)
	}
	if err := table.ApplyExtents(batch, []Extent{{Stream: 1, Count: 1}}); !errors.Is(err, ErrDamaged) {
		t.Errorf("records of a sealed stream: %v", err)
	}
}
