package upload

import (
	"context"
	"sync"
	"testing"

	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// memStore is the simulated store, which notes what is read from it.
type memStore struct {
	simstore.Store
	mu    sync.Mutex
	reads []string                 // key of each get, whole or of a range
	fail  func(simstore.Call) bool // of a range: not answered; nil: never
}

func newMemStore() *memStore {
	m := &memStore{}
	m.Inject = func(c simstore.Call) simstore.Fault {
		m.mu.Lock()
		defer m.mu.Unlock()
		if c.Op == simstore.Get || c.Op == simstore.GetRange {
			m.reads = append(m.reads, c.Key)
		}
		if c.Op == simstore.GetRange && m.fail != nil && m.fail(c) {
			return simstore.Unavailable
		}
		return simstore.None
	}
	return m
}

// requests returns the reads since the last call.
func (m *memStore) requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	reads := m.reads
	m.reads = nil
	return reads
}

// body is an object as it lies there.
func (m *memStore) body(t testing.TB, key string) []byte {
	t.Helper()
	b, found := m.Peek(key)
	if !found {
		t.Fatalf("there is no %s", key)
	}
	return b
}

// set makes b what lies under a key, whatever did before.
func (m *memStore) set(t testing.TB, key string, b []byte) {
	t.Helper()
	must(t, m.Delete(context.Background(), []string{key}))
	_, err := m.PutIfAbsent(context.Background(), key, b)
	must(t, err)
}

// memCache is a Cache without a limit.
type memCache struct {
	mu sync.Mutex
	m  map[CacheKey][]byte
}

func newMemCache() *memCache { return &memCache{m: map[CacheKey][]byte{}} }

func (c *memCache) load(ctx context.Context, key CacheKey, load func(context.Context) ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	b, ok := c.m[key]
	c.mu.Unlock()
	if ok {
		return b, nil
	}
	b, err := load(ctx)
	if err == nil {
		c.mu.Lock()
		c.m[key] = b
		c.mu.Unlock()
	}
	return b, err
}
