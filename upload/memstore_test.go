package upload

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/walsidecar/walsidecar/upload/store"
)

// memStore is a store in memory that counts requests.
type memStore struct {
	mu       sync.Mutex
	objects  map[string][]byte
	versions map[string]int
	puts     int
	reads    []string // key of each Get and GetRange
}

func newMemStore() *memStore {
	return &memStore{objects: map[string][]byte{}, versions: map[string]int{}}
}

func (m *memStore) version(key string) store.Version {
	if _, ok := m.objects[key]; !ok {
		return ""
	}
	return store.Version(fmt.Sprint(m.versions[key]))
}

func (m *memStore) put(key string, body []byte) store.Version {
	m.puts++
	m.objects[key] = bytes.Clone(body)
	m.versions[key] = m.puts
	return m.version(key)
}

func (m *memStore) PutIfAbsent(_ context.Context, key string, body []byte) (store.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version(key) != "" {
		return "", store.ErrExists
	}
	return m.put(key, body), nil
}

func (m *memStore) PutIfMatch(_ context.Context, key string, body []byte, old store.Version) (store.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version(key) != old {
		return "", store.ErrChanged
	}
	return m.put(key, body), nil
}

func (m *memStore) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads = append(m.reads, key)
	b, ok := m.objects[key]
	if !ok {
		return nil, "", store.ErrNotFound
	}
	return bytes.Clone(b), m.version(key), ctx.Err()
}

func (m *memStore) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads = append(m.reads, key)
	b, ok := m.objects[key]
	if !ok {
		return store.ErrNotFound
	}
	if from+int64(len(dst)) > int64(len(b)) {
		return store.ErrShort
	}
	copy(dst, b[from:])
	return ctx.Err()
}

func (m *memStore) Head(_ context.Context, key string) (store.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version(key) == "" {
		return store.Info{}, store.ErrNotFound
	}
	return store.Info{Key: key, SizeBytes: int64(len(m.objects[key])), Version: m.version(key)}, nil
}

func (m *memStore) List(_ context.Context, prefix, after string, limit int) ([]store.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var infos []store.Info
	for key, b := range m.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			infos = append(infos, store.Info{Key: key, SizeBytes: int64(len(b)), Version: m.version(key)})
		}
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].Key < infos[j].Key })
	return infos[:min(limit, len(infos))], nil
}

func (m *memStore) Delete(_ context.Context, keys []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.objects, key)
	}
	return nil
}

// requests returns the reads since the last call.
func (m *memStore) requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	reads := m.reads
	m.reads = nil
	return reads
}

func (m *memStore) keys(t *testing.T) []string {
	t.Helper()
	var keys []string
	for key := range m.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
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
