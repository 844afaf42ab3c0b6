package stream

import (
	"bytes"
	"testing"
)

// A log that takes the place of a lost one has the streams and producers of that one, and
// never issues an id that it may have issued.
func TestP4_ASuccessorIssuesNoIDAgain(t *testing.T) {
	table := NewTable(1 << 20)
	position := uint64(4096)
	apply := func(it Item) {
		t.Helper()
		it.Position = position
		position += 64
		if err := table.Apply(&it); err != nil {
			t.Fatal(err)
		}
	}
	session := sessionProducerBit | 7
	apply(Item{Kind: KindStreamCreate, Stream: 1, Name: []byte("orders"), Timestamp: 5})
	apply(Item{Kind: KindStreamCreate, Stream: 2, Name: []byte("gone"), Timestamp: 6})
	apply(Item{Kind: KindStreamCreate, Stream: 3, Name: []byte("audit"), Timestamp: 7})
	apply(Item{Kind: KindStreamDelete, Stream: 2})
	apply(Item{Kind: KindNamedCreate, Producer: 1, Name: []byte("upstream")})
	apply(Item{Kind: KindSessionOpen, Producer: session, Window: 4})
	batch := Item{Kind: KindBatch, Position: position, Producer: session, Sequence: 1}
	if err := table.ApplyExtents(&batch, []Extent{{Stream: 1, First: 0, Count: 5, Timestamp: 9}}); err != nil {
		t.Fatal(err)
	}
	apply(Item{Kind: KindStreamTrim, Stream: 1, First: 2})
	apply(Item{Kind: KindStreamToken, Stream: 1, Token: []byte("owner")})
	apply(Item{Kind: KindStreamSeal, Stream: 3})
	before, _ := table.List("", "", MaxListed, nil)

	all := table.Succeed()
	want := []Succession{{Before: 1, After: generation, Next: 5}, {Before: 3, After: generation + 1, Next: 0}}
	if len(all) != 2 || all[0] != want[0] || all[1] != want[1] {
		t.Fatalf("%v, want %v", all, want)
	}
	state := table.EncodeCheckpoint(nil)
	again, err := DecodeCheckpoint(state, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.EncodeCheckpoint(nil), state) || again.EncodedBound() != table.EncodedBound() {
		t.Fatal("the checkpoint of a successor is not the one it was made from")
	}
	after, _ := again.List("", "", MaxListed, nil)
	for i := range after {
		a, b := after[i], before[i]
		if a.ID <= 3 || a.Name != b.Name || a.First != b.First || a.Next != b.Next || a.Last != b.Last || a.Created != b.Created ||
			a.Sealed != b.Sealed || !bytes.Equal(a.Token, b.Token) {
			t.Errorf("%+v became %+v", b, a)
		}
	}
	if p := again.producers.byID[session]; p == nil || p.last != 1 || p.results.used != 1 || again.producers.findName("upstream") == nil {
		t.Errorf("producers: %+v", again.producers)
	}
	if again.streams.nextID != generation+2 || again.producers.nextID != generation {
		t.Errorf("next ids %d and %d", again.streams.nextID, again.producers.nextID)
	}
	if second := again.Succeed(); second[0].Before != generation || second[0].After != 2*generation {
		t.Errorf("a second successor: %v", second)
	}
}
