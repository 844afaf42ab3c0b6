package readcache

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload"
)

var background = context.Background()

func newCold(t *testing.T, budget int64) *Cold {
	t.Helper()
	c, err := NewCold(budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func partKey(n int) upload.CacheKey {
	return upload.CacheKey{Object: upload.ObjectID{Sequence: uint64(n), Incarnation: [16]byte{7}}, Place: 96}
}

// part is what lies under partKey(n).
func part(n, bytes int) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		b := make([]byte, bytes)
		for i := range b {
			b[i] = byte(n)
		}
		return b, nil
	}
}

func load(t *testing.T, c *Cold, n, bytes int) {
	t.Helper()
	b, err := c.Load(background, partKey(n), part(n, bytes))
	if err != nil || len(b) != bytes || b[0] != byte(n) || b[bytes-1] != byte(n) {
		t.Fatalf("part %d: %d bytes, %v", n, len(b), err)
	}
}

func TestColdKeepsWhatItLoaded(t *testing.T) {
	c := newCold(t, 32<<20)
	for range 3 {
		for n := range 50 {
			load(t, c, n, 10_000+n)
		}
	}
	s := c.Stats()
	want := int64(0)
	for n := range 50 {
		want += int64(10_000 + n)
	}
	if s.Misses != 50 || s.Hits != 100 || s.LoadedBytes != uint64(want) || s.Entries != 50 {
		t.Errorf("%+v, want 50 misses, 100 hits, %d bytes", s, want)
	}
	if s.HeldBytes < want+50*coldEntryBytes || s.HeldBytes > want+want/5+50*coldEntryBytes {
		t.Errorf("%d bytes held, for %d bytes of parts", s.HeldBytes, want)
	}
}

// A place of one object, the same place of another, and another place of the first one.
func TestColdTellsPartsApart(t *testing.T) {
	c := newCold(t, 8<<20)
	keys := []upload.CacheKey{partKey(1), partKey(2), partKey(1), partKey(1)}
	keys[2].Place++
	keys[3].Object.Incarnation[15] = 1
	for range 2 {
		for i, key := range keys {
			b, err := c.Load(background, key, part(i, 100))
			if err != nil || b[0] != byte(i) {
				t.Fatalf("key %d gives part %d, %v", i, b[0], err)
			}
		}
	}
	// Two keys of one hash: the entry of another key is no hit.
	c.keep(hashOf(partKey(5)), &coldPart{key: partKey(6), bytes: []byte{66}})
	load(t, c, 5, 100)
}

// The budget bounds what is held, whatever is loaded: by the cache's own count, and by
// the heap.
func TestColdStaysInItsBudget(t *testing.T) {
	const budget = 16 << 20
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	c := newCold(t, budget)
	for n := range 600 {
		load(t, c, n, 200_000)
		if n%3 == 0 {
			load(t, c, 10_000+n, 500)
		}
		if held := c.Stats().HeldBytes; held > budget {
			t.Fatalf("%d bytes held of a budget of %d", held, budget)
		}
	}
	s := c.Stats()
	if s.HeldBytes < budget/2 {
		t.Errorf("%d bytes held of a budget of %d", s.HeldBytes, budget)
	}
	if took := heap() - before; took > budget+budget/10 {
		t.Errorf("%d bytes of heap for a budget of %d (%d held)", took, budget, s.HeldBytes)
	}
	if b, err := c.Load(background, partKey(-1), part(3, budget+1)); err != nil || len(b) != budget+1 {
		t.Fatalf("a part that is larger than the cache: %v", err)
	}
	if held := c.Stats().HeldBytes; held > budget {
		t.Errorf("%d bytes held", held)
	}
	runtime.KeepAlive(c)
}

// One long scan does not push out what is asked for often.
func TestAScanDoesNotEmptyTheCache(t *testing.T) {
	c := newCold(t, 32<<20)
	const hot, bytes = 32, 256 << 10 // a quarter of the cache
	for range 20 {
		for n := range hot {
			load(t, c, n, bytes)
			time.Sleep(100 * time.Microsecond) // the cache counts beside, and skips what comes too fast
		}
	}
	for n := range 1000 { // eight times the cache, once each
		load(t, c, 1000+n, bytes)
	}
	before := c.Stats()
	for n := range hot {
		load(t, c, n, bytes)
	}
	if hits := c.Stats().Hits - before.Hits; hits < hot/2 {
		t.Errorf("after a scan %d of %d parts that were often asked for are left", hits, hot)
	}
}

// Many who ask at once are one load. One who gives up fails alone, and the load ends with
// the last of them.
func TestColdLoadsOnceForAll(t *testing.T) {
	c := newCold(t, 8<<20)
	began, release := make(chan context.Context, 10), make(chan struct{})
	slow := func(ctx context.Context) ([]byte, error) {
		began <- ctx
		select {
		case <-release:
			return []byte("part"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(background)
	first := make(chan error, 1)
	go func() {
		_, err := c.Load(ctx, partKey(1), slow)
		first <- err
	}()
	<-began
	var others sync.WaitGroup
	for range 20 {
		others.Go(func() {
			if b, err := c.Load(background, partKey(1), slow); err != nil || string(b) != "part" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	waitFor(t, func() bool { return c.Stats().Shared == 20 })
	cancel() // the one whose request it is gives up
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up: %v", err)
	}
	close(release)
	others.Wait()
	if s := c.Stats(); s.Misses != 1 || s.Shared != 20 {
		t.Errorf("%+v", s)
	}

	release = make(chan struct{})
	ctx, cancel = context.WithCancel(background)
	go func() {
		_, err := c.Load(ctx, partKey(2), slow)
		first <- err
	}()
	loading := <-began
	cancel()
	<-first
	<-loading.Done() // nobody waits for it any more
	close(release)
	if b, err := c.Load(background, partKey(2), slow); err != nil || string(b) != "part" {
		t.Errorf("who comes after: %q, %v", b, err)
	}
}

// What fails is not kept, and fails for those alone who waited for it.
func TestColdKeepsNoErrors(t *testing.T) {
	c := newCold(t, 8<<20)
	broken := errors.New("broken")
	if _, err := c.Load(background, partKey(1), func(context.Context) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	load(t, c, 1, 100)
	if s := c.Stats(); s.Misses != 2 || s.Entries != 1 {
		t.Errorf("%+v", s)
	}
}

// A read ahead that nobody waits for any more may end, or begin, behind Close.
func TestColdCloses(t *testing.T) {
	c, err := NewCold(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, err := c.Load(background, partKey(1), func(ctx context.Context) ([]byte, error) {
			close(began)
			<-ctx.Done()
			return []byte("late"), nil
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-began
	c.Close()
	<-ended
	load(t, c, 2, 100)
	load(t, c, 2, 100)
}

func TestColdUnderManyReaders(t *testing.T) {
	c := newCold(t, MinColdBytes)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 300 {
				n := (i*7 + g) % 40
				ctx, cancel := context.WithCancel(background)
				if i%5 == 0 {
					cancel()
				}
				b, err := c.Load(ctx, partKey(n), part(n, 150_000))
				if err == nil && (len(b) != 150_000 || b[77] != byte(n)) {
					t.Errorf("part %d is another one", n)
				}
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	waitFor(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.flights) == 0 })
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for 20 s")
		}
	}
}

func BenchmarkColdHit(b *testing.B) {
	c, err := NewCold(64 << 20)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Load(background, partKey(1), part(1, 1000)); err != nil {
			b.Fatal(fmt.Sprint(err))
		}
	}
}
