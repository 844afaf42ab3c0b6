package stream

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one (or takes WALSIDECAR_SEED)")

// random returns a source whose seed is printed when the test fails.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed, _ = strconv.ParseUint(os.Getenv("WALSIDECAR_SEED"), 10, 64)
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with -seed=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// indexRecord applies a batch of one record in a frame of its own.
func indexRecord(t testing.TB, x *Index, id ID, offset, framePosition uint64, timestamp int64) {
	body := encodeBatch(&Batch{}, placedEntry{Entry: Entry{Stream: id}, offset: offset, timestamp: timestamp})
	x.Apply(decodeOne(t, body, framePosition), framePosition)
}

func TestIndexFindsByOffsetAndTime(t *testing.T) {
	x := NewIndex(MaxIndexEntries)
	for i := range uint64(10) { // offsets 0, 10, ..: frames 0, 4096, ..; times 0, 0, 2, 2, 4, 4, ..
		indexRecord(t, x, 1, 10*i, 4096*i, int64(i&^1))
	}
	for _, c := range []struct {
		offset, want uint64
	}{{0, 0}, {9, 0}, {10, 4096}, {55, 5 * 4096}, {1000, 9 * 4096}} {
		if got, found := x.Find(1, c.offset); !found || got != c.want {
			t.Errorf("Find(%d) = %d, %v, want %d", c.offset, got, found, c.want)
		}
	}
	for _, c := range []struct {
		timestamp int64
		want      uint64
	}{{-1, 0}, {0, 0}, {1, 4096}, {2, 4096}, {3, 3 * 4096}, {99, 9 * 4096}} {
		if got, found := x.FindTime(1, c.timestamp); !found || got != c.want {
			t.Errorf("FindTime(%d) = %d, %v, want %d", c.timestamp, got, found, c.want)
		}
	}
	if _, found := x.Find(2, 0); found {
		t.Error("found a record of a stream that has none")
	}
	if _, found := x.FindTime(2, 0); found {
		t.Error("found a time in a stream that has none")
	}
}

func TestIndexForgetsWhatIsTrimmed(t *testing.T) {
	x := NewIndex(MaxIndexEntries)
	for i := range uint64(10) {
		indexRecord(t, x, 1, 10*i, 4096*i, 0)
	}
	x.Apply(&Item{Kind: KindStreamTrim, Stream: 1, First: 35}, 50000)
	if n, _ := x.Entries(); n != 7 { // 30, 40, .. 90
		t.Errorf("%d entries after a trim to 35, want 7", n)
	}
	x.TrimLog(5*4096 + 8192) // the frame of offset 70
	if got, found := x.Find(1, 75); !found || got != 7*4096 {
		t.Errorf("Find(75) = %d, %v, want %d", got, found, 7*4096)
	}
	x.TrimLog(8*4096 - 2048) // between two entries: records of 70.. may remain
	if got, found := x.Find(1, 79); !found || got != 8*4096-2048 {
		t.Errorf("Find(79) = %d, %v, want the start of the log", got, found)
	}
	x.Apply(&Item{Kind: KindStreamTrim, Stream: 1, First: 91}, 50000)
	if n, _ := x.Entries(); n != 0 {
		t.Errorf("%d entries of an empty stream", n)
	}
	indexRecord(t, x, 1, 91, 60000, 0)
	x.Apply(&Item{Kind: KindStreamDelete, Stream: 1}, 70000)
	if n, _ := x.Entries(); n != 0 || x.streams.count != 0 {
		t.Errorf("%d entries of a deleted stream", n)
	}
}

func TestIndexKeepsOnlyWhatTheDirectoryShows(t *testing.T) {
	x := NewIndex(MaxIndexEntries)
	for i := range uint64(4) {
		indexRecord(t, x, 1, i, 4096*i, 0)
		indexRecord(t, x, 2, i, 4096*i, 0)
	}
	table := NewTable(1 << 20)
	mustApply(t, table, &Item{Kind: KindStreamCreate, Stream: 1, Name: []byte("a")})
	table.streams.byID.get(1).next, table.streams.byID.get(1).first = 4, 2
	x.Keep(NewDirectory(table))
	if n, _ := x.Entries(); n != 2 {
		t.Errorf("%d entries, want 2: stream 2 is gone, stream 1 starts at 2", n)
	}
}

// TestIndexIsBoundedAndNeverWrong holds a small index to a full one: whatever it
// forgot, it must lead to a frame at or below the right one, and not further below
// than its step.
func TestIndexIsBoundedAndNeverWrong(t *testing.T) {
	const limit, streams = 64, 8
	rng := random(t)
	x := NewIndex(limit)
	type place struct{ position uint64 }
	var places [streams + 1][]place
	var first [streams + 1]uint64
	position, trimmed := uint64(1)<<63-100*4096, uint64(0)
	for step := range 4000 {
		position += 4096 * (1 + rng.Uint64N(4))
		id := ID(1 + rng.IntN(streams))
		indexRecord(t, x, id, uint64(len(places[id])), position, int64(step))
		places[id] = append(places[id], place{position})
		if rng.IntN(50) == 0 {
			first[id] += rng.Uint64N(uint64(len(places[id])) - first[id] + 1)
			x.Apply(&Item{Kind: KindStreamTrim, Stream: id, First: first[id]}, position)
		}
		if rng.IntN(100) == 0 { // the log goes up to the lowest record that is wanted
			trimmed = position
			for id := 1; id <= streams; id++ {
				if first[id] < uint64(len(places[id])) {
					trimmed = min(trimmed, places[id][first[id]].position)
				}
			}
			x.TrimLog(trimmed)
		}
		if n, _ := x.Entries(); n > limit {
			t.Fatalf("%d entries, the limit is %d", n, limit)
		}
		id = ID(1 + rng.IntN(streams))
		if n := uint64(len(places[id])); first[id] < n {
			offset := first[id] + rng.Uint64N(n-first[id])
			got, found := x.Find(id, offset)
			_, stepBytes := x.Entries()
			if want := places[id][offset].position; !found || got > want || got < trimmed || want-got > 2*stepBytes {
				t.Fatalf("step %d: Find(%d, %d) = %d, %v; the record is at %d, the log starts at %d, the step is %d",
					step, id, offset, got, found, want, trimmed, stepBytes)
			}
		}
	}
}
