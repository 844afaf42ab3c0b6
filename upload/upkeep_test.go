package upload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/stream"
)

// What is trimmed and deleted leaves the store: whole groups at its beginning, and the
// records of the others, also where objects have more streams than the manifest has room
// for.
func TestWhatIsDeletedLeavesTheStore(t *testing.T) {
	random := testRandom(t)
	log := newTestWorld(t, 64<<20, 0)
	var ids []stream.ID
	for i := range 300 {
		ids = append(ids, log.stream(fmt.Sprintf("stream %d", i)))
	}
	kept := log.stream("kept")
	for range 8 {
		b := &stream.Batch{}
		for _, id := range ids {
			b.Entries = append(b.Entries, stream.Entry{Stream: id, Payload: randomPayload(random, 60)})
		}
		log.append(b)
		log.sync()
	}
	for i := range 20 {
		log.append(&stream.Batch{Entries: []stream.Entry{{Stream: kept, Payload: fmt.Appendf(nil, "%d", i)}, {Stream: ids[0], Payload: randomPayload(random, 6000)}}})
		log.sync()
	}
	for _, id := range ids {
		log.retry(func() error { return log.c.Delete(id) })
	}
	must(t, log.c.Checkpoint())
	log.sync()
	for i := range 5 {
		log.append1(kept, fmt.Sprint(i))
		log.sync()
	}
	log.readFrames()
	w := newUploadWorld(t, random, log, log.device())
	w.slow = true
	w.startAnyway()
	w.drive()
	if missing := w.check(); missing == 0 {
		t.Error("nothing was left out")
	}
	m := w.manifest()
	if m.Origin == 0 {
		t.Error("no group was dropped")
	}
	bytes := uint64(0)
	for i := range m.Groups {
		bytes += m.Groups[i].bytes()
	}
	if bytes > 100_000 { // of about 400,000: the journals stay, and records in groups of which more is kept
		t.Errorf("%d bytes are left of 25 short records", bytes)
	}
	w.collect()
}

// Groups that are too large to be merged go to index objects, and the manifest stays small.
func TestTheManifestStaysSmall(t *testing.T) {
	random := testRandom(t)
	log := newTestWorld(t, 64<<20, 0)
	id := log.stream("s")
	for range 100 {
		log.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: randomPayload(random, 20_000)}, {Stream: id, Payload: []byte("y")}}})
		log.sync()
	}
	log.readFrames()
	w := newUploadWorld(t, random, log, log.device())
	w.slow = true
	w.startAnyway()
	w.drive()
	w.check()
	m := w.manifest()
	body, err := m.Encode()
	must(t, err)
	if m.Index == nil || len(m.Groups) > 30 || len(body) > 2000 {
		t.Errorf("a manifest of %d bytes with %d groups, index %+v", len(body), len(m.Groups), m.Index)
	}
	if left := w.orphans(); len(left) > 0 {
		t.Errorf("orphans: %v", left)
	}
}

// The first upload of a log that was trimmed, and that of one that ran without its store
// for a while, are not committed before they reach a checkpoint: what lies behind could
// not be understood without it.
func TestP5_NothingIsCommittedWhoseStateIsNotKnown(t *testing.T) {
	random := testRandom(t)
	log := newTestWorld(t, 64<<20, 0)
	trimmed, kept := log.stream("trimmed"), log.stream("kept")
	grow := func(id stream.ID, n int) {
		for range n {
			log.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: randomPayload(random, 5000)}}})
			log.sync()
		}
	}
	grow(trimmed, 30)
	log.retry(func() error { _, err := log.c.Trim(trimmed, 30); return err })
	must(t, log.c.Checkpoint())
	log.sync()
	grow(kept, 10)
	must(t, log.c.Checkpoint())
	log.sync()
	grow(kept, 5)
	log.readFrames()
	for _, before := range []int{0, 4} { // frames that were uploaded, before the log ran without its store
		w := newUploadWorld(t, random, log, log.device())
		w.slow = true
		if before > 0 {
			w.advance(before)
			w.startAnyway()
			w.stop = func() bool { return w.uploaded >= w.dataEnd }
			w.drive()
			w.owners[0].crash()
			w.stop = nil
		}
		w.advance(15)
		w.trim = log.frames[15].Position
		w.startAnyway()
		w.drive()
		w.check()
	}
}

func TestJoinedStreamsAreKeptAsLongAsTheOneThatGoesOn(t *testing.T) {
	w := newTestWorld(t, 64<<20, 0)
	for i := range 10 { // ids 1 to 10, that streams of older logs had
		id := w.stream(fmt.Sprint(i))
		w.retry(func() error { return w.c.Delete(id) })
	}
	a, b, c := w.stream("a"), w.stream("b"), w.stream("c") // 11, 12, 13
	for range 10 {
		w.append1(b, "x")
		w.append1(c, "x")
	}
	w.retry(func() error { _, err := w.c.Trim(b, 3); return err })
	w.retry(func() error { _, err := w.c.Trim(c, 8); return err })
	w.retry(func() error { return w.c.Delete(a) })
	state := &State{Position: 1 << 20, Checkpoint: w.c.Table().EncodeCheckpoint(nil)}
	joins := []Join{{Stream: 5, Before: 2, At: 4}, {Stream: 6, Before: 3, At: 4}, {Stream: a, Before: 4, At: 9}, {Stream: b, Before: 5, At: 5}, {Stream: c, Before: 6, At: 5}}
	got, left, err := newAlive(state, joins)
	must(t, err)
	for id, want := range map[stream.ID]uint64{b: 3, c: 8, 5: 3, 2: 3} {
		if first, found := got.first(id); !found || first != want {
			t.Errorf("stream %d is kept from %d, %t; want %d", id, first, found, want)
		}
	}
	for _, id := range []stream.ID{a, 4, 6, 3, 1, 99} {
		if _, found := got.first(id); found {
			t.Errorf("stream %d is kept", id)
		}
	}
	if want := []Join{joins[0], joins[3]}; !slices.Equal(left, want) {
		t.Errorf("joins %v are left, want %v", left, want)
	}
}

func TestRetentionGoesByAgeAndSizeOfWhatIsCommitted(t *testing.T) {
	random := testRandom(t)
	log := newTestWorld(t, 64<<20, 0)
	began := log.nowNS
	old, busy := log.stream("old"), log.stream("busy")
	log.append1(old, "first")
	for i := range 100 {
		log.nowNS = began + int64(i)*int64(time.Minute)
		log.append(&stream.Batch{Entries: []stream.Entry{{Stream: busy, Payload: randomPayload(random, 1000)}}})
		log.sync()
	}
	s, m := log.archive(10<<10, 256)
	a := openTest(t, s)
	end := began + 99*int64(time.Minute)
	of := func(r Retention) map[stream.ID]uint64 {
		trims, err := r.Plan(background, a, end)
		must(t, err)
		got := map[stream.ID]uint64{}
		for _, x := range trims {
			got[x.Stream] = x.Before
		}
		return got
	}
	if got := of(Retention{Age: 100 * time.Minute}); len(got) != 0 {
		t.Errorf("of what is not old: %v", got)
	}
	got := of(Retention{Age: 30 * time.Minute})
	if got[old] != 1 || got[busy] < 55 || got[busy] > 69 {
		t.Errorf("of 30 minutes of 100: %v", got)
	}
	// A record a minute, about 1 kB each: at most as many as the limit and one group are kept.
	got = of(Retention{Bytes: 30_000})
	if got[old] != 0 || got[busy] < 40 || got[busy] > 70 {
		t.Errorf("of 30 kB of 100: %v", got)
	}
	if got := of(Retention{Age: time.Nanosecond, Bytes: 1}); got[busy] > 100 || got[old] != 1 {
		t.Errorf("of nothing: %v", got)
	}
	if len(m.Groups) < 5 {
		t.Fatal("too few groups for a test")
	}
}
