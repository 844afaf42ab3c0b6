package upload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

func TestTheUploaderMovesTheWholeLog(t *testing.T) {
	random := testRandom(t)
	log, items := testLogOf(t, random, 800, 400)
	w := newUploadWorld(t, random, log, items)
	_, err := w.start()
	must(t, err)
	w.drive()
	missing := w.check()
	t.Logf("%s; %d records left out; %+v", w, missing, w.owners[0].core.counters)
	if left := w.orphans(); len(left) > 0 {
		t.Errorf("orphans without a crash: %v", left)
	}
	if n := w.owners[0].core.counters; n.compactions == 0 || n.deleted == 0 {
		t.Errorf("nothing was compacted, or deleted: %+v", n)
	}
}

// run plays one history: with a fault at the n-th request, or the crash of the process
// there, and goes on until all is uploaded. It returns the number of requests.
func run(t *testing.T, seed uint64, log *testWorld, items []deviceItem, n int, fault simstore.Fault, crash bool) int {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 2))
	w := newUploadWorld(t, random, log, items)
	w.slow = true
	calls := 0
	w.s.Inject = func(c simstore.Call) simstore.Fault {
		calls = c.N
		if c.N == n {
			return fault
		}
		return simstore.None
	}
	crashed := false
	w.stop = func() bool { return crash && !crashed && calls >= n }
	w.startAnyway()
	w.drive()
	if crash {
		crashed = true
		w.owners[0].crash()
		w.startAnyway()
		w.drive()
	}
	w.land()
	w.check()
	w.collect()
	if n == 0 {
		t.Logf("%s; %+v", w, w.owners[0].core.counters)
	}
	return calls
}

// land lets everything arrive that is still on its way.
func (w *uploadWorld) land() {
	for _, o := range w.owners {
		for o.dead && o.step() {
		}
	}
	for w.s.OnTheirWay() > 0 {
		w.s.Land(0)
	}
}

// collect lets gc delete the orphans, and checks that it finds all and nothing else.
func (w *uploadWorld) collect() {
	w.t.Helper()
	before := w.orphans()
	report, err := GC(background, w.s, "test", GCOptions{Grace: -1}, func(Orphan) {})
	must(w.t, err)
	if report.Deleted != 0 || len(w.orphans()) != len(before) {
		w.t.Fatal("gc deletes without being told to")
	}
	// A put that arrives after its object was deleted again is of the current incarnation,
	// and gc leaves it alone until the next start.
	w.startAnyway()
	deleted, err := GC(background, w.s, "test", GCOptions{Grace: -1, Delete: true}, func(Orphan) {})
	must(w.t, err)
	doomed := map[string]bool{}
	for _, d := range w.manifest().Doomed {
		doomed[d.ID.Key("test", d.Kind)] = true
	}
	for _, key := range w.orphans() {
		if !doomed[key] {
			w.t.Fatalf("gc leaves %s behind: %+v", key, deleted)
		}
	}
}

// The systematic part: every fault at every request of a history, and the death of the
// process at each of them, with the request carried out or not. The world checks at
// every step that no trim is allowed before the manifest in the store covers it, that
// the manifest names nothing that is missing, and that nothing it names is deleted; at
// the end that the store holds the log, each item once.
func TestP5_NothingIsTrimmedBeforeTheManifestNamesIt(t *testing.T) {
	random := testRandom(t)
	seed := random.Uint64()
	log, items := testLogOf(t, random, 160, 60)
	calls := run(t, seed, log, items, 0, simstore.None, false)
	every := 8 // others with each seed
	if testing.Short() {
		every = 20
	}
	for n := 1 + random.IntN(every); n <= calls; n += every {
		for _, fault := range []simstore.Fault{simstore.Unavailable, simstore.Denied, simstore.Lost, simstore.Unanswered, simstore.Late} {
			t.Run(fmt.Sprintf("fault %d at request %d", fault, n), func(t *testing.T) { run(t, seed, log, items, n, fault, false) })
		}
		for _, fault := range []simstore.Fault{simstore.None, simstore.Lost, simstore.Late} {
			t.Run(fmt.Sprintf("crash with fault %d at request %d", fault, n), func(t *testing.T) { run(t, seed, log, items, n, fault, true) })
		}
	}
	t.Logf("%d requests", calls)
}

// faulty makes one request in odds fail, in any way.
func (w *uploadWorld) faulty(odds int) {
	w.s.Inject = func(simstore.Call) simstore.Fault {
		if w.random.IntN(odds) != 0 {
			return simstore.None
		}
		return simstore.Fault(1 + w.random.IntN(int(simstore.Late)))
	}
}

// startAnyway starts an owner in a store that fails now and then.
func (w *uploadWorld) startAnyway() *owner {
	w.t.Helper()
	for range 1000 {
		o, err := w.start()
		if err == nil {
			return o
		}
		if !tryAgain(err) && !errors.Is(err, ErrFenced) {
			w.t.Fatal(err)
		}
	}
	w.t.Fatal("no claim succeeds")
	return nil
}

// busyStore lets the owners work between the requests of a gc, and new ones start.
type busyStore struct {
	*simstore.Store
	w *uploadWorld
}

func (s busyStore) work() {
	if s.w.random.IntN(8) == 0 && len(s.w.owners) < 12 {
		_, _ = s.w.start()
	}
	for range s.w.random.IntN(12) {
		o := s.w.owners[len(s.w.owners)-1]
		if s.w.random.IntN(2) == 0 {
			o = s.w.owners[s.w.random.IntN(len(s.w.owners))]
		}
		if !o.step() {
			s.w.pass()
		}
	}
}

func (s busyStore) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	s.work()
	return s.Store.Get(ctx, key)
}

func (s busyStore) List(ctx context.Context, prefix, after string, limit int) ([]store.Info, error) {
	s.work()
	return s.Store.List(ctx, prefix, after, limit)
}

func (s busyStore) Delete(ctx context.Context, keys []string) error {
	s.work()
	return s.Store.Delete(ctx, keys)
}

// A gc never deletes what a manifest names or will name, whatever the owners do
// meanwhile: the world looks at every delete and at every manifest.
func TestP5_GCDeletesNothingThatAManifestNamesOrWillName(t *testing.T) {
	random := testRandom(t)
	log, items := testLogOf(t, random, 300, 100)
	rounds, deleted, current := 12, 0, 0
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		w := newUploadWorld(t, random, log, items)
		w.startAnyway()
		for !w.allDurable() {
			steps := random.IntN(20)
			w.stop = func() bool { steps--; return steps < 0 || w.allDurable() }
			w.drive()
			if random.IntN(4) == 0 {
				w.owners[len(w.owners)-1].crash()
				w.startAnyway()
			}
			report, err := GC(background, busyStore{w.s, w}, "test", GCOptions{Grace: -1, Delete: true}, func(Orphan) {})
			must(t, err)
			deleted, current = deleted+report.Deleted, current+report.Current
		}
		w.stop = nil
		w.drive()
		w.land()
		w.check()
		w.collect()
	}
	if deleted == 0 || current == 0 {
		t.Errorf("%d orphans deleted, %d objects met that were on their way", deleted, current)
	}
	t.Logf("%d orphans deleted, %d objects met that were on their way", deleted, current)
}

// Two uploaders of one node at once, again and again, with crashes, faults, late requests
// and a gc in between: the store alone stops the older one.
func TestP6_AnOlderUploaderChangesNothingOnceANewerOneHasClaimed(t *testing.T) {
	random := testRandom(t)
	log, items := testLogOf(t, random, 200, 300)
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	fenced := 0
	for round := range rounds {
		w := newUploadWorld(t, random, log, items)
		if round > 0 {
			w.faulty(4 + random.IntN(40))
		}
		w.startAnyway()
		for range random.IntN(5) {
			steps := random.IntN(120)
			w.stop = func() bool { steps--; return steps < 0 }
			w.drive()
			if random.IntN(3) == 0 {
				w.owners[random.IntN(len(w.owners))].crash()
			}
			if random.IntN(3) == 0 {
				_, _ = GC(background, w.s, "test", GCOptions{Grace: -1, Delete: true}, func(Orphan) {})
			}
			w.startAnyway()
		}
		w.stop = nil
		w.drive()
		w.s.Inject = nil
		w.land()
		w.drive()
		w.check()
		w.collect()
		for _, o := range w.owners[:len(w.owners)-1] {
			switch err := o.core.Fenced(); {
			case err == nil && !o.dead && o.core.changes != o.core.said:
				t.Errorf("the owner of epoch %d is still trying", o.epoch)
			case err != nil && !errors.Is(err, ErrFenced):
				t.Error(err)
			case err != nil:
				fenced++
			}
		}
		if err := w.owners[len(w.owners)-1].core.Fenced(); err != nil {
			t.Errorf("the newest owner: %v", err)
		}
	}
	if fenced == 0 {
		t.Error("no owner was ever fenced")
	}
	t.Logf("%d owners were fenced", fenced)
}
