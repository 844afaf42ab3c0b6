package stream

import (
	"math"
	"testing"
)

// An index that is trimmed with a log whose old part is kept elsewhere never says Gone of
// a record that is still in the log, nor Held of one that is not; while every frame has
// its entry it is sure.
func TestIndexKnowsWhatIsGone(t *testing.T) {
	const streams = 3
	for _, limit := range []int{MaxIndexEntries, 32, streams} {
		rng := random(t)
		x := NewIndex(limit)
		var places [streams + 1][]uint64 // position of each record
		var times [streams + 1][]int64
		position, trimmed := uint64(1<<40), uint64(0)
		for step := range 1500 {
			frame := position
			for range 1 + rng.IntN(3) { // one frame
				id := ID(1 + rng.IntN(streams))
				indexRecord(t, x, id, uint64(len(places[id])), frame, int64(step))
				places[id], times[id] = append(places[id], frame), append(times[id], int64(step))
			}
			position += 4096 * (1 + rng.Uint64N(30))
			if rng.IntN(20) == 0 { // also up to the next frame, and twice to one place
				trimmed = max(trimmed, position-min(position-(1<<40), 4096*rng.Uint64N(200))*rng.Uint64N(2))
				x.TrimLog(trimmed)
			}
			id := ID(1 + rng.IntN(streams))
			n := len(places[id])
			if n == 0 {
				continue
			}
			at := rng.IntN(n)
			check := func(l Located, at int, what string) {
				t.Helper()
				held := places[id][at] >= trimmed
				if l.Where == Held != held && (l.Where != Unsure || limit == MaxIndexEntries) {
					t.Fatalf("limit %d, stream %d, %s: %+v, and it lies at %d of a log from %d on", limit, id, what, l, places[id][at], trimmed)
				}
				if l.Where == Held && (l.Position > places[id][at] || l.Position < trimmed) {
					t.Fatalf("limit %d, stream %d, %s: to be found from %d on, it lies at %d", limit, id, what, l.Position, places[id][at])
				}
				if l.HeldFrom < uint64(n) && places[id][l.HeldFrom] < trimmed {
					t.Fatalf("limit %d, stream %d, %s: held from offset %d on, which lies at %d", limit, id, what, l.HeldFrom, places[id][l.HeldFrom])
				}
			}
			check(x.Locate(id, uint64(at)), at, "by offset")
			ns := times[id][at]
			for at > 0 && times[id][at-1] == ns {
				at--
			}
			l := x.LocateTime(id, ns)
			if l.Where == Held && l.Offset > uint64(at) {
				t.Fatalf("limit %d, stream %d: time %d is at offset %d, said to be from %d on", limit, id, ns, at, l.Offset)
			}
			if l.Where != Held && l.HeldFrom <= uint64(at) {
				l = x.Locate(id, l.HeldFrom) // the first one of the index is new enough already
				if l.Where != Held {
					t.Fatalf("limit %d, stream %d: held from %d on, and %+v", limit, id, l.HeldFrom, l)
				}
				continue
			}
			if l.Where == Held {
				check(l, at, "by time")
			}
		}
	}
	if l := NewIndex(1).Locate(1, 0); l.Where != Gone || l.HeldFrom != math.MaxUint64 {
		t.Errorf("a stream of which the index knows nothing: %+v", l)
	}
}
