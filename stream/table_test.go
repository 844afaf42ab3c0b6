package stream

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func mustApply(t testing.TB, table *Table, items ...*Item) {
	t.Helper()
	for _, it := range items {
		if err := table.Apply(it); err != nil {
			t.Fatal(err)
		}
	}
}

// sampleTable has two streams (1 "a": [1, 2), sealed; 2 "b": [0, 1)), a named
// producer 1 "n" with last sequence 5 and the session producer 7 (window 4) with the
// results of 1 (a batch over both streams) and 2 (a refusal).
func sampleTable(t testing.TB) *Table {
	table := NewTable(1 << 20)
	mustApply(t, table,
		&Item{Kind: KindStreamCreate, Stream: 1, Timestamp: 10, Name: []byte("a")},
		&Item{Kind: KindStreamCreate, Stream: 2, Timestamp: 11, Name: []byte("b")},
		&Item{Kind: KindNamedCreate, Producer: 1, Name: []byte("n"), Position: 300},
		&Item{Kind: KindSessionOpen, Producer: session7, Window: 4, Position: 400},
		decodeOne(t, encodeBatch(&Batch{Producer: 1, Sequence: 5}, placedEntry{Entry{Stream: 1}, 0, 20}), 4096),
		decodeOne(t, encodeBatch(&Batch{Producer: session7, Sequence: 1},
			placedEntry{Entry{Stream: 2}, 0, 21}, placedEntry{Entry{Stream: 1}, 1, 22}), 8192),
		&Item{Kind: KindRefusal, Producer: session7, Sequence: 2, Code: CodeSealed, Entry: 3, Actual: 2, Position: 500},
		&Item{Kind: KindStreamTrim, Stream: 1, First: 1},
		&Item{Kind: KindStreamSeal, Stream: 1},
		&Item{Kind: KindStreamToken, Stream: 2, Token: []byte("tok")})
	return table
}

func TestApplyRefusesWhatContradictsTheState(t *testing.T) {
	batch := func(b *Batch, entries ...placedEntry) *Item {
		return decodeOne(t, encodeBatch(b, entries...), 0)
	}
	for _, c := range []struct {
		item *Item
		says string
	}{
		{&Item{Kind: KindStreamCreate, Stream: 2, Name: []byte("c")}, "id is not the next one"},
		{&Item{Kind: KindStreamCreate, Stream: 4, Name: []byte("c")}, "id is not the next one"},
		{&Item{Kind: KindStreamCreate, Stream: 3, Name: []byte("a")}, "name that is in use"},
		{&Item{Kind: KindStreamSeal, Stream: 3}, "does not exist"},
		{&Item{Kind: KindStreamSeal, Stream: 1}, "sealed already"},
		{&Item{Kind: KindStreamTrim, Stream: 1, First: 1}, "trim outside"},
		{&Item{Kind: KindStreamTrim, Stream: 1, First: 3}, "trim outside"},
		{&Item{Kind: KindStreamDelete, Stream: 3}, "does not exist"},
		{&Item{Kind: KindStreamToken, Stream: 3}, "does not exist"},
		{&Item{Kind: KindNamedCreate, Producer: 1, Name: []byte("o")}, "id is not the next one"},
		{&Item{Kind: KindNamedCreate, Producer: 2, Name: []byte("n")}, "name that is in use"},
		{&Item{Kind: KindProducerRemove, Producer: 2}, "does not exist"},
		{&Item{Kind: KindSessionOpen, Producer: session7, Window: 4}, "id that is in use"},
		{&Item{Kind: KindProducerExpired, Producer: session7 + 1}, "does not exist"},
		{&Item{Kind: KindRefusal, Producer: session7, Sequence: 2, Code: CodeSealed}, "does not follow"},
		{&Item{Kind: KindRefusal, Producer: session7, Sequence: 4, Code: CodeSealed}, "does not follow"},
		{&Item{Kind: KindRefusal, Producer: session7 + 1, Sequence: 1, Code: CodeSealed}, "does not exist"},
		{batch(&Batch{}, placedEntry{Entry{Stream: 3}, 0, 30}), "does not exist"},
		{batch(&Batch{}, placedEntry{Entry{Stream: 1}, 2, 30}), "sealed stream"},
		{batch(&Batch{}, placedEntry{Entry{Stream: 2}, 0, 30}), "not the next one"},
		{batch(&Batch{}, placedEntry{Entry{Stream: 2}, 2, 30}), "not the next one"},
		{batch(&Batch{}, placedEntry{Entry{Stream: 2}, 1, 30}, placedEntry{Entry{Stream: 2}, 1, 30}), "not the next one"},
		{batch(&Batch{}, placedEntry{Entry{Stream: 2}, 1, 20}), "timestamp is below"},
		{batch(&Batch{Producer: 1, Sequence: 5}, placedEntry{Entry{Stream: 2}, 1, 30}), "not above its last"},
		{batch(&Batch{Producer: 2, Sequence: 9}, placedEntry{Entry{Stream: 2}, 1, 30}), "does not exist"},
		{batch(&Batch{Producer: session7, Sequence: 4}, placedEntry{Entry{Stream: 2}, 1, 30}), "does not follow"},
	} {
		table := sampleTable(t)
		before := table.EncodeCheckpoint(nil)
		err := table.Apply(c.item)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.item, err, c.says)
		}
		if !table.EqualCheckpoint(before) {
			t.Errorf("%+v changed the state", c.item)
		}
	}
}

func TestApplyHoldsASessionProducerToItsWindow(t *testing.T) {
	table := sampleTable(t) // 3 of 4 slots in use
	batch := func(sequence, acked uint64) *Item {
		return decodeOne(t, encodeBatch(&Batch{Producer: session7, Sequence: sequence, Acked: acked},
			placedEntry{Entry{Stream: 2}, table.streams.byID.get(2).next, 30}), 0)
	}
	mustApply(t, table, batch(3, 0))
	if err := table.Apply(batch(4, 0)); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "window") {
		t.Errorf("a fifth slot: %v", err)
	}
	mustApply(t, table, batch(4, 2)) // sequence 1 had two slots
	if p := table.producers.byID[session7]; p.last != 4 || p.base != 2 || p.results.used != 3 {
		t.Errorf("last %d, base %d, %d slots, want 4, 2, 3", p.last, p.base, p.results.used)
	}
}

func TestCheckpointRoundTrip(t *testing.T) {
	for name, table := range map[string]*Table{"empty": NewTable(1 << 20), "sample": sampleTable(t)} {
		state := table.EncodeCheckpoint(nil)
		if uint64(len(state)) > table.EncodedBound() {
			t.Errorf("%s: %d bytes, the bound is %d", name, len(state), table.EncodedBound())
		}
		again, err := DecodeCheckpoint(state, 1<<20)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := again.EncodeCheckpoint(nil); !bytes.Equal(got, state) || !again.EqualCheckpoint(state) {
			t.Errorf("%s: encoded again\n got %x\nwant %x", name, got, state)
		}
		if again.bound != table.bound || again.sessionBound != table.sessionBound || again.streams.filled != table.streams.filled {
			t.Errorf("%s: bounds %d, %d, filled %d after decoding, want %d, %d, %d", name,
				again.bound, again.sessionBound, again.streams.filled, table.bound, table.sessionBound, table.streams.filled)
		}
	}
}

func TestCheckpointHasTheStatedBytes(t *testing.T) {
	want := unhex(t, "57534331 0100 0000  0300000000000000 0200000000000000  02000000 01000000 01000000 00000000"+
		"0100000000000000 0100000000000000 0200000000000000 0a00000000000000 1600000000000000 01 00 01 00 61"+
		"0200000000000000 0000000000000000 0100000000000000 0b00000000000000 1500000000000000 00 03 01 00 62 746f6b"+
		"0100000000000000 0500000000000000 8010000000000000 01 6e"+
		"0700000000000080 0200000000000000 0100000000000000 f401000000000000 04000000 03000000"+
		"8020000000000000 0200000000000000 0000000000000000 0100 0000 0100 0000"+
		"8020000000000000 0100000000000000 0100000000000000 0100 0000 0000 0000"+
		"f401000000000000 0000000000000000 0200000000000000 0300 0300 0000 0000")
	if got := sampleTable(t).EncodeCheckpoint(nil); !bytes.Equal(got, want) {
		t.Errorf("checkpoint:\n got %x\nwant %x", got, want)
	}
}

func TestEqualCheckpointSeesEveryByte(t *testing.T) {
	table := sampleTable(t)
	state := table.EncodeCheckpoint(nil)
	for i := range state {
		state[i] ^= 0x40
		if table.EqualCheckpoint(state) {
			t.Errorf("byte %d differs and the checkpoint is called equal", i)
		}
		if table.EqualCheckpoint(state[:i]) {
			t.Errorf("cut at %d and called equal", i)
		}
		state[i] ^= 0x40
	}
	if table.EqualCheckpoint(append(state, 0)) {
		t.Error("a byte more and called equal")
	}
}

func TestDecodeCheckpointRefusesWhatNoTableEncodes(t *testing.T) {
	good := sampleTable(t).EncodeCheckpoint(nil)
	const streams, named = checkpointHeaderBytes, checkpointHeaderBytes + 45 + 48
	const session, slots = named + 26, named + 26 + sessionFixedBytes
	for _, c := range []struct {
		name  string
		at    int
		bytes string
		says  string
	}{
		{"magic", 0, "58", "not a checkpoint"},
		{"version 2", 4, "02", "unknown version"},
		{"next stream id 0", 8, "00", "next id"},
		{"next stream id too low", 8, "02", "id is out of range"},
		{"next named id of a session", 23, "80", "next id"},
		{"next named id too low", 16, "01", "id is out of range"},
		{"65,537 streams", 24, "01000100", "more streams or producers"},
		{"reserved", 36, "01", "reserved"},
		{"one stream more", 24, "03", ""},
		{"one stream fewer", 24, "01", ""},
		{"stream id twice", streams + 45, "01", "id is out of range or in use"},
		{"stream id 0", streams, "00", "id is out of range or in use"},
		{"first beyond next", streams + 8, "03", "fields are out of range"},
		{"negative last timestamp", streams + 39, "80", "fields are out of range"},
		{"flags 2", streams + 40, "02", "fields are out of range"},
		{"reserved byte of a stream", streams + 43, "01", "fields are out of range"},
		{"names out of order", streams + 44, "62", "out of order"},
		{"name empty", streams + 42, "00", ""},
		{"named id of a session", named + 7, "80", "id is out of range"},
		{"named name empty", named + 24, "00", "name is empty"},
		{"session id of a named one", session + 7, "00", "id is out of range"},
		{"base 0", session + 16, "00", "fields are out of range"},
		{"base too high", session + 16, "02", "do not reach"},
		{"last too high", session + 8, "03", "do not reach"},
		{"window 0", session + 32, "00", "fields are out of range"},
		{"window 8193", session + 32, "0120", "fields are out of range"},
		{"more slots than the window", session + 36, "05", "fields are out of range"},
		{"slots beyond the end", session + 36, "04", "inside a session producer's results"},
		{"one slot fewer", session + 36, "02", "do not reach"},
		{"slot of stream 0", slots + 8, "00", "placement"},
		{"slot of a stream never issued", slots + 8, "03", "placement"},
		{"slot of no record", slots + 24, "00", "placement"},
		{"slot of 4097 records", slots + 24, "0110", "placement"},
		{"more that does not count down", slots + 28, "02", "do not belong together"},
		{"reserved bytes of a slot", slots + 30, "01", "reserved"},
		{"refusal inside a batch", slots + 32 + 26, "03", "do not belong together"},
		{"refusal of code 6", slots + 64 + 26, "06", "refused result"},
		{"refusal with a stream", slots + 64 + 8, "01", "refused result"},
		{"refusal with more", slots + 64 + 28, "01", "refused result"},
	} {
		state := slices.Clone(good)
		copy(state[c.at:], unhex(t, c.bytes))
		_, err := DecodeCheckpoint(state, 1<<20)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
	for n := range good {
		if _, err := DecodeCheckpoint(good[:n], 1<<20); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
	if _, err := DecodeCheckpoint(append(good, 0), 1<<20); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte more: %v", err)
	}
}

// FuzzDecodeCheckpoint decodes any bytes. What is accepted must be exactly what its
// table encodes, and no more than its bound.
func FuzzDecodeCheckpoint(f *testing.F) {
	f.Add(NewTable(1 << 20).EncodeCheckpoint(nil))
	f.Add(sampleTable(f).EncodeCheckpoint(nil))
	f.Fuzz(func(t *testing.T, state []byte) {
		table, err := DecodeCheckpoint(state, 1<<20)
		if err != nil {
			return
		}
		if got := table.EncodeCheckpoint(nil); !bytes.Equal(got, state) {
			t.Fatalf("encoded again:\n got %x\nfrom %x", got, state)
		}
		if uint64(len(state)) > table.EncodedBound() {
			t.Fatalf("%d bytes, the bound is %d", len(state), table.EncodedBound())
		}
		if !NewDirectory(table).sameAs(table) {
			t.Fatal("the directory shows other streams")
		}
	})
}

// sameAs reports whether the directory shows exactly the streams of t.
func (d *Directory) sameAs(t *Table) bool {
	same := func(a, b StreamInfo) bool {
		return a.ID == b.ID && a.Name == b.Name && a.First == b.First && a.Next == b.Next && a.Created == b.Created &&
			a.Last == b.Last && a.Sealed == b.Sealed && bytes.Equal(a.Token, b.Token)
	}
	mine, _ := d.streams.list("", "", MaxStreams, nil)
	theirs, _ := t.streams.list("", "", MaxStreams, nil)
	return slices.EqualFunc(mine, theirs, same) && d.streams.nextID == t.streams.nextID && d.streams.filled == t.streams.filled
}

func TestListPagesInOrderOfNames(t *testing.T) {
	table := NewTable(1 << 20)
	for i, name := range []string{"b/2", "a", "b/1", "b", "c", "b/3"} {
		mustApply(t, table, &Item{Kind: KindStreamCreate, Stream: ID(i + 1), Name: []byte(name)})
	}
	for _, c := range []struct {
		prefix, cursor string
		limit          int
		want           string
		more           bool
	}{
		{"", "", 10, "a b b/1 b/2 b/3 c", false},
		{"", "", 2, "a b", true},
		{"", "b", 2, "b/1 b/2", true},
		{"", "b/3", 2, "c", false},
		{"b/", "", 10, "b/1 b/2 b/3", false},
		{"b/", "b/1", 1, "b/2", true},
		{"b/", "b/2", 1, "b/3", false},
		{"b/", "a", 1, "b/1", true},
		{"b/", "z", 10, "", false},
		{"b", "b", 10, "b/1 b/2 b/3", false},
		{"x", "", 10, "", false},
	} {
		streams, more := table.List(c.prefix, c.cursor, c.limit, nil)
		var names []string
		for _, s := range streams {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != c.want || more != c.more {
			t.Errorf("List(%q, %q, %d) = %q, %v, want %q, %v", c.prefix, c.cursor, c.limit, got, more, c.want, c.more)
		}
	}
}
