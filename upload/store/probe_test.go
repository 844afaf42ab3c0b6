package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

// memory is a store whose conditional writes can be broken in the ways that real ones were.
type memory struct {
	store.Store // list and ranges are not asked for
	ignoresAbsent, ignoresMatch, looksBeforeItWrites,
	refusesEverything, staleReads bool
	unknown int // that many writes are carried out and their answers lost

	mu      sync.Mutex
	objects map[string][][]byte
}

func (m *memory) String() string { return "memory://broken" }

func (m *memory) version(key string) store.Version {
	if n := len(m.objects[key]); n > 0 {
		return store.Version(fmt.Sprint(n))
	}
	return ""
}

func (m *memory) put(key string, body []byte, old store.Version, ignores bool, otherwise error) (store.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ignores && m.version(key) != old || m.refusesEverything && len(m.objects[key]) > 0 {
		return "", &store.Error{Op: "put", Store: m.String(), Key: key, Kind: otherwise}
	}
	if m.looksBeforeItWrites {
		m.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		m.mu.Lock()
	}
	if m.objects == nil {
		m.objects = map[string][][]byte{}
	}
	m.objects[key] = append(m.objects[key], bytes.Clone(body))
	if m.unknown > 0 {
		m.unknown--
		return "", &store.Error{Op: "put", Store: m.String(), Key: key, Kind: store.ErrUnknownOutcome}
	}
	return m.version(key), nil
}

func (m *memory) PutIfAbsent(_ context.Context, key string, body []byte) (store.Version, error) {
	return m.put(key, body, "", m.ignoresAbsent, store.ErrExists)
}

func (m *memory) PutIfMatch(_ context.Context, key string, body []byte, old store.Version) (store.Version, error) {
	return m.put(key, body, old, m.ignoresMatch && old != "" || m.ignoresAbsent && old == "", store.ErrChanged)
}

func (m *memory) Get(_ context.Context, key string) ([]byte, store.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.objects[key]
	if len(all) == 0 {
		return nil, "", &store.Error{Op: "get", Store: m.String(), Key: key, Kind: store.ErrNotFound}
	}
	if m.staleReads {
		return all[0], "1", nil
	}
	return all[len(all)-1], m.version(key), nil
}

func (m *memory) Delete(_ context.Context, keys []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.objects, key)
	}
	return nil
}

func TestProbeNamesWhatIsBroken(t *testing.T) {
	for _, c := range []struct {
		name  string
		s     *memory
		check string
	}{
		{"if absent is ignored", &memory{ignoresAbsent: true}, "put if absent of an object that exists: succeeded"},
		{"if match is ignored", &memory{ignoresMatch: true}, "old version: succeeded"},
		{"if match always fails", &memory{refusesEverything: true}, "current version: failed"},
		{"looks before it writes", &memory{looksBeforeItWrites: true}, "several succeeded"},
		{"reads are stale", &memory{staleReads: true}, `must give "second"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := store.Probe(t.Context(), c.s)
			if !errors.Is(err, store.ErrNoConditionalWrites) {
				t.Fatal(err)
			}
			for _, part := range []string{"memory://broken", c.check} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if len(c.s.objects) > 0 {
				t.Errorf("the probe left %v", c.s.objects)
			}
		})
	}
}

func TestProbePasses(t *testing.T) {
	if err := store.Probe(t.Context(), &memory{}); err != nil {
		t.Error(err)
	}
	// A lost answer says nothing about the store: the probe begins again, with another key.
	if err := store.Probe(t.Context(), &memory{unknown: 2}); err != nil {
		t.Error(err)
	}
	if err := store.Probe(t.Context(), &memory{unknown: 1000}); !errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, store.ErrNoConditionalWrites) {
		t.Error(err)
	}
}
