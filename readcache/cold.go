package readcache

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/dgraph-io/ristretto/v2"

	"github.com/walsidecar/walsidecar/upload"
)

const (
	// MinColdBytes is the smallest budget of a Cold: below it the cache's own books
	// would take most of it.
	MinColdBytes = 4 << 20

	// coldFixedBytes is what the cache takes while it holds nothing: 256 KiB for its
	// queue of additions, the rest for its tables and its goroutine.
	coldFixedBytes = 512 << 10

	// coldEntryBytes is what an entry takes beside the bytes that it keeps: its place in
	// two maps, and the item itself. Measured: about 200.
	coldEntryBytes = 256

	// coldCounterShare is how many bytes of the budget there are per counter of the
	// admission policy (about 3 bytes each): with blocks of 256 KiB sixteen counters for
	// each entry that there is room for, and more than one with indexes of a few KiB.
	coldCounterShare = 16 << 10
)

// Cold keeps parts of objects that were read from the store: blocks, and indexes of
// objects, uncompressed and checked. Load is an upload.Cache.
//
// It shares no memory with the Tail, so that no scan of the past pushes the tail out.
// Within it, what is asked for often stays: an entry is only let in where it was asked
// for more often than what would have to go (TinyLFU), so that one long scan passes by.
// Every byte counts: what an entry costs is what its slice takes on the heap and
// coldEntryBytes (ristretto's own idea of that is not used), and what the cache needs for itself is taken from the budget first.
// Parts that are being loaded, or that a reader still uses after they were pushed out,
// are the reader's. All methods may be called from any goroutine.
type Cold struct {
	cache *ristretto.Cache[uint64, *coldPart]

	mu      sync.Mutex
	flights map[upload.CacheKey]*flight
	loads   sync.WaitGroup
	closed  bool

	hits, misses, shared, loaded atomic.Uint64
	held, entries                atomic.Int64
}

// coldPart is an entry. It carries its key: two keys may have one hash.
type coldPart struct {
	key   upload.CacheKey
	bytes []byte
}

// cost is what the part takes: the allocator rounds large slices up to whole pages, and
// smaller ones by an eighth at most.
func (p *coldPart) cost() int64 {
	n := int64(cap(p.bytes))
	if n > 32<<10 {
		n = (n + 8<<10 - 1) &^ (8<<10 - 1)
	} else {
		n += n / 8
	}
	return n + coldEntryBytes
}

// flight is a load under way, for all who wait for it.
type flight struct {
	waiters int // guarded by Cold.mu
	cancel  context.CancelFunc
	done    chan struct{}
	bytes   []byte
	err     error
}

// ColdStats counts what a Cold did since it was made.
type ColdStats struct {
	Hits        uint64 // answered from memory
	Misses      uint64 // loads
	Shared      uint64 // answered by a load that another one had begun
	LoadedBytes uint64 // by all loads
	HeldBytes   int64  // held now, the cost of entries included
	Entries     int64  // held now
}

// NewCold returns an empty cache that takes at most budgetBytes of memory in all, at
// least MinColdBytes.
func NewCold(budgetBytes int64) (*Cold, error) {
	budget := max(budgetBytes, MinColdBytes)
	counters := budget / coldCounterShare
	// BufferItems 1: what is asked for is counted at once. With more, ristretto collects it
	// in a sync.Pool, which a garbage collection empties: at the rate of cold reads hardly
	// anything would be counted.
	c := &Cold{flights: map[upload.CacheKey]*flight{}}
	var err error
	c.cache, err = ristretto.NewCache(&ristretto.Config[uint64, *coldPart]{
		NumCounters: counters, MaxCost: budget - coldFixedBytes - 4*counters, BufferItems: 1, IgnoreInternalCost: true,
		KeyToHash: func(key uint64) (uint64, uint64) { return key, 0 },
		OnExit: func(p *coldPart) {
			if p != nil {
				c.held.Add(-p.cost())
				c.entries.Add(-1)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("readcache: %w", err)
	}
	return c, nil
}

// Close forgets everything, ends the loads that are under way, and waits for them. A Load
// that follows keeps nothing: whoever reads ahead may be late to notice.
func (c *Cold) Close() {
	c.mu.Lock()
	c.closed = true
	for _, f := range c.flights {
		f.cancel()
	}
	c.mu.Unlock()
	c.loads.Wait() // also for those that nobody waits for any more
	c.cache.Close()
}

// Stats returns the counters.
func (c *Cold) Stats() ColdStats {
	return ColdStats{Hits: c.hits.Load(), Misses: c.misses.Load(), Shared: c.shared.Load(), LoadedBytes: c.loaded.Load(),
		HeldBytes: c.held.Load(), Entries: c.entries.Load()}
}

// Load returns the part under key, or what load gives. Of callers who ask for one key at
// once one loads for all; the load goes on for as long as one of them waits, and ends
// with the last one's ctx. The error is load's, or that of ctx. Nobody changes the bytes.
func (c *Cold) Load(ctx context.Context, key upload.CacheKey, load func(context.Context) ([]byte, error)) ([]byte, error) {
	hash := hashOf(key)
	if p, ok := c.cache.Get(hash); ok && p.key == key {
		c.hits.Add(1)
		return p.bytes, nil
	}
	f := c.join(ctx, key, hash, load)
	if f == nil {
		return load(ctx)
	}
	select {
	case <-f.done:
		return f.bytes, f.err
	case <-ctx.Done():
		c.leave(key, f)
		return nil, ctx.Err()
	}
}

// join returns the load of key that is under way, or begins one; nil after Close.
func (c *Cold) join(ctx context.Context, key upload.CacheKey, hash uint64, load func(context.Context) ([]byte, error)) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if f := c.flights[key]; f != nil {
		f.waiters++
		c.shared.Add(1)
		return f
	}
	c.misses.Add(1)
	f := &flight{waiters: 1, done: make(chan struct{})}
	// Not the first caller's own context: the others' loads must not end with it.
	ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.flights[key] = f
	c.loads.Go(func() {
		defer close(f.done)
		defer f.cancel()
		if f.bytes, f.err = load(ctx); f.err == nil {
			c.loaded.Add(uint64(len(f.bytes)))
			c.keep(hash, &coldPart{key: key, bytes: f.bytes})
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.flights[key] == f {
			delete(c.flights, key)
		}
	})
	return f
}

// keep offers a part to the cache, and waits until it was let in or not: whoever asks
// next finds it, and nothing piles up in the cache's queue, which counts nowhere.
func (c *Cold) keep(hash uint64, p *coldPart) {
	c.held.Add(p.cost())
	c.entries.Add(1)
	if !c.cache.Set(hash, p, p.cost()) {
		c.held.Add(-p.cost())
		c.entries.Add(-1)
		return
	}
	c.cache.Wait()
}

// leave takes a waiter away, and with the last one the load.
func (c *Cold) leave(key upload.CacheKey, f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.waiters--; f.waiters > 0 {
		return
	}
	f.cancel()
	if c.flights[key] == f {
		delete(c.flights, key) // who comes now begins anew
	}
}

func hashOf(key upload.CacheKey) uint64 {
	var b [32]byte
	binary.LittleEndian.PutUint64(b[:], key.Object.Sequence)
	copy(b[8:], key.Object.Incarnation[:])
	binary.LittleEndian.PutUint64(b[24:], key.Place)
	return xxhash.Sum64(b[:])
}
