package reader_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/stream"
)

// Wherever the border between device and store lies, every way of reading gives what was
// appended.
func TestEveryWayOfReadingAtEveryBorder(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries int // of the index: few ones leave it unsure where a record lies
		cold    int64
	}{
		{"exact index", 0, 8 << 20},
		{"coarse index", 16, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			random := newRandom(t)
			w := newWorld(t, options{indexEntries: c.entries, coldBytes: c.cold})
			ids := []stream.ID{w.stream("a"), w.stream("b"), w.stream("c"), w.stream("rare")}
			w.append(10, ids[3])
			w.fill(random, 4<<20, 20_000, 300_000, ids[:3]...)
			w.append(10, ids[3])
			w.fill(random, 4<<20, 20_000, 300_000, ids[:3]...)
			w.upload()
			w.append(10, ids[3])
			w.fill(random, 1<<20, 20_000, 0, ids[:2]...)
			frames := w.frames
			step := max(1, len(frames)/40)
			for i := 0; i < len(frames) && frames[i] <= w.manifest.Uploaded; i += step {
				w.setTrim(frames[i])
				for _, id := range ids {
					everyWay(w, random, id)
				}
				w.replayFrom(w.all[random.IntN(len(w.all))].Position+random.Uint64N(2)*8, 1+random.IntN(200_000))
			}
			w.replayFrom(0, 1<<20)
		})
	}
}

// everyWay reads one stream from some place in every way.
func everyWay(w *world, random *rand.Rand, id stream.ID) {
	w.t.Helper()
	all := w.records[id]
	from := random.IntN(len(all))
	maxBytes := 1 + random.IntN(300_000)
	limit := 1 + random.IntN(len(all)-from)
	if random.IntN(3) > 0 {
		limit = min(limit, 5)
	}
	want := all[from : from+limit]
	q := reader.Query{Stream: id, MaxRecords: uint64(limit), From: reader.From{Kind: reader.FromOffset, Value: uint64(from)}}
	noGaps(w, q, w.readAll(q, maxBytes, want))

	q.From = reader.From{Kind: reader.FromLast, Value: uint64(len(all) - from)}
	noGaps(w, q, w.readAll(q, maxBytes, want))

	ns := all[from].TimestampNS - int64(random.IntN(2))
	q.From = reader.From{Kind: reader.FromTime, Value: uint64(ns)}
	at := byTime(all, ns)
	noGaps(w, q, w.readAll(q, maxBytes, all[at:min(at+limit, len(all))]))

	q.From = reader.From{Kind: reader.FromTime, Value: uint64(all[len(all)-1].TimestampNS + 1)}
	noGaps(w, q, w.readAll(q, maxBytes, nil))
}

func noGaps(w *world, q reader.Query, gaps []reader.Missing) {
	w.t.Helper()
	if len(gaps) != 0 {
		w.t.Fatalf("query %+v: gaps %+v", q, gaps)
	}
}

// Uploads, trims and appends move the border while reads are under way, and streams are
// trimmed: no read has a hole or a double, and every gap is one that was trimmed.
func TestTheBorderMovesUnderReads(t *testing.T) {
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			random := newRandom(t)
			w := newWorld(t, options{indexEntries: []int{0, 4, 200}[round], coldBytes: int64(round) * 4 << 20})
			reader.SetTurns(w.r, 0) // one goroutine plays all readers
			ids := []stream.ID{w.stream("a"), w.stream("b"), w.stream("c")}
			w.fill(random, 1<<20, 30_000, 200_000, ids...)
			firsts := map[stream.ID]uint64{}
			var open []*tracked
			for range 400 {
				switch random.IntN(10) {
				case 0:
					w.upload()
				case 1, 2:
					w.setTrim(w.frameBelow(w.manifest.Uploaded, random))
				case 3:
					id := ids[random.IntN(len(ids))]
					if n := uint64(len(w.records[id])); random.IntN(4) == 0 && n > firsts[id]+50 {
						firsts[id] += random.Uint64N(40)
						w.trimStream(id, firsts[id])
						w.sync()
					}
				case 4:
					open = append(open, w.track(random, ids[random.IntN(len(ids))]))
				default:
					w.fill(random, 1+random.IntN(200_000), 30_000, 0, ids...)
				}
				for _, one := range open {
					one.step(random)
				}
				if len(open) > 12 {
					open[0].close()
					open = open[1:]
				}
			}
			for _, one := range open {
				one.finish(random)
			}
		})
	}
}

// frameBelow is the start of some frame at or below position, of the newer ones more
// often.
func (w *world) frameBelow(position uint64, random *rand.Rand) uint64 {
	n := 0
	for n < len(w.ends) && w.ends[n] <= position {
		n++
	}
	if n == 0 {
		return w.trim
	}
	at := max(0, n-1-random.IntN(12))
	if random.IntN(2) == 0 {
		return w.ends[at]
	}
	return w.frames[at]
}

// tracked is a following read that is asked now and then.
type tracked struct {
	w    *world
	c    *reader.Cursor
	p    *reader.Replay
	id   stream.ID
	next uint64 // offset, or index in w.all
}

func (w *world) track(random *rand.Rand, id stream.ID) *tracked {
	w.t.Helper()
	one := &tracked{w: w, id: id}
	if random.IntN(3) == 0 {
		at := random.IntN(len(w.all))
		for at > 0 && w.all[at-1].Position == w.all[at].Position {
			at--
		}
		p, err := w.r.OpenReplay(reader.ReplayQuery{Position: w.all[at].Position, Follow: true})
		must(w.t, err)
		one.p, one.next = p, uint64(at)
		return one
	}
	one.next = random.Uint64N(uint64(len(w.records[id])))
	q := reader.Query{Stream: id, Follow: true, From: reader.From{Kind: reader.FromOffset, Value: one.next}}
	if random.IntN(2) == 0 {
		// At or after the first that is kept, or the read begins there.
		info, err := w.r.Lookup(id)
		must(w.t, err)
		one.next = max(one.next, info.First)
		if one.next < uint64(len(w.records[id])) {
			q.From = reader.From{Kind: reader.FromTime, Value: uint64(w.records[id][one.next].TimestampNS)}
			for one.next > info.First && w.records[id][one.next-1].TimestampNS == w.records[id][one.next].TimestampNS {
				one.next--
			}
		} else {
			q.From.Value = one.next
		}
	}
	c, err := w.r.Open(q)
	must(w.t, err)
	one.c = c
	return one
}

func (one *tracked) close() {
	if one.c != nil {
		one.c.Close()
		return
	}
	one.p.Close()
}

// step asks once, unless that would wait.
func (one *tracked) step(random *rand.Rand) (more bool) {
	w := one.w
	w.t.Helper()
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	var from source = one.c
	end := uint64(len(w.records[one.id]))
	if one.p != nil {
		from, end = one.p, uint64(len(w.all))
	}
	if one.next >= end {
		return false
	}
	e, err := from.Next(ctx, 1+random.IntN(150_000))
	must(w.t, err)
	switch e.Kind {
	case reader.Records:
		for i := range e.Records {
			want := &w.all[min(one.next, uint64(len(w.all)-1))]
			if one.c != nil {
				want = &w.records[one.id][one.next]
			}
			must(w.t, same(&e.Records[i], want))
			one.next++
		}
	case reader.Gap:
		info, err := w.r.Lookup(one.id)
		must(w.t, err)
		if one.c == nil || e.Gap.Kind != reader.Trimmed || e.Gap.From != one.next || e.Gap.To > info.First {
			w.t.Fatalf("gap %+v at %d, the stream begins at %d", e.Gap, one.next, info.First)
		}
		one.next = e.Gap.To
	case reader.CaughtUp:
	default:
		w.t.Fatalf("event %+v", e)
	}
	return true
}

func (one *tracked) finish(random *rand.Rand) {
	for one.step(random) {
	}
	one.close()
}

// The same with goroutines: readers from the first offset to the last while the border
// passes them.
func TestReadersRaceWithTheBorder(t *testing.T) {
	random := newRandom(t)
	w := newWorld(t, options{indexEntries: 300, coldBytes: 4 << 20})
	reader.SetTurns(w.r, 5*time.Millisecond)
	ids := []stream.ID{w.stream("a"), w.stream("b")}
	w.fill(random, 6<<20, 30_000, 300_000, ids...)
	w.upload()
	want := map[stream.ID][]record{}
	for _, id := range ids {
		want[id] = append([]record{}, w.records[id]...)
	}
	all := append([]record{}, w.all...)
	var readers sync.WaitGroup
	for i := range 6 {
		seed := random.Uint64()
		readers.Go(func() {
			random := rand.New(rand.NewPCG(seed, 0))
			for range 4 {
				if i < 2 {
					check(t, func() (source, func(), error) {
						p, err := w.r.OpenReplay(reader.ReplayQuery{MaxRecords: uint64(len(all))})
						return p, p.Close, err
					}, 1+random.IntN(500_000), all)
					continue
				}
				id := ids[i%2]
				check(t, func() (source, func(), error) {
					c, err := w.r.Open(reader.Query{Stream: id, MaxRecords: uint64(len(want[id]))})
					return c, c.Close, err
				}, 1+random.IntN(500_000), want[id])
			}
		})
	}
	done := make(chan struct{})
	go func() { readers.Wait(); close(done) }()
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		default:
		}
		if n < 150 { // bounded: the readers may be slow
			w.fill(random, 100_000, 30_000, 300_000, ids...)
			w.setTrim(w.frameBelow(w.manifest.Uploaded, random))
		} else {
			time.Sleep(time.Millisecond)
		}
	}
}

// check is drain for other goroutines than the test's.
func check(t *testing.T, open func() (source, func(), error), maxBytes int, want []record) {
	c, end, err := open()
	if err != nil {
		t.Error(err)
		return
	}
	defer end()
	n := 0
	for {
		e, err := c.Next(background, maxBytes)
		if err != nil {
			t.Errorf("after %d of %d records: %v", n, len(want), err)
			return
		}
		if e.Kind == reader.End {
			break
		}
		for i := range e.Records {
			if n < len(want) {
				if err := same(&e.Records[i], &want[n]); err != nil {
					t.Error(err)
					return
				}
			}
			n++
		}
		if e.Kind == reader.Gap {
			t.Errorf("gap %+v", e.Gap)
		}
	}
	if n < len(want) {
		t.Errorf("%d records, want %d", n, len(want))
	}
}
