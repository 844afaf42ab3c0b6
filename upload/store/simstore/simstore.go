// Package simstore is an object store in memory for simulations and tests: the same
// calls give the same results, it fails as it is told to, and puts whose answers were
// lost may come through late.
package simstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/upload/store"
)

// Op is a kind of request.
type Op uint8

// The kinds of requests.
const (
	Put     Op = iota + 1 // PutIfAbsent
	Replace               // PutIfMatch
	Get
	GetRange
	Head
	List
	Delete
)

// String is the kind in one lower case word.
func (o Op) String() string {
	return [...]string{"none", "put", "replace", "get", "range", "head", "list", "delete"}[o]
}

// Changes reports whether such a request changes the store.
func (o Op) Changes() bool { return o == Put || o == Replace || o == Delete }

// Fault is what becomes of a request.
type Fault uint8

// The faults. Those below Lost leave the store as it was, and say so.
const (
	None        Fault = iota
	Unavailable       // store.ErrUnavailable
	Denied            // store.ErrDenied
	// Lost: the request was not carried out, and nobody knows.
	Lost
	// Unanswered: the request was carried out, and nobody knows.
	Unanswered
	// Late: nobody knows, and the request is carried out when Land is called.
	Late
)

// Call is one request.
type Call struct {
	N    int // counts from 1
	Op   Op
	Key  string // of a list its prefix; of a delete its first key
	Body []byte // of a put; not to be changed
}

// Store is a store.Store. The zero value is ready. It may be used by any goroutines, and
// is deterministic when they are.
type Store struct {
	// Inject, unless nil, decides what becomes of a request. It is called with the store
	// locked, and set before the store is used.
	Inject func(Call) Fault
	// Watch, unless nil, is called with every change that was carried out, with the store
	// locked. Of a delete it is called for each key that was there.
	Watch func(op Op, key string, body []byte)
	// Now is the server's clock; nil: it stands still.
	Now func() time.Time

	mu      sync.Mutex
	objects map[string]object
	late    []func() // requests on their way
	calls   int
	count   [Delete + 1]int
}

type object struct {
	body     []byte
	version  store.Version
	modified time.Time
}

// versionOf is the version of bytes: like an ETag, the same for the same bytes.
func versionOf(body []byte) store.Version {
	return store.Version(fmt.Sprintf("%016x", xxhash.Sum64(body)))
}

// request decides what becomes of a request, and carries it out. Do may be called later.
func (s *Store) request(ctx context.Context, c Call, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.count[c.Op]++
	c.N = s.calls
	fault := None
	if s.Inject != nil {
		fault = s.Inject(c)
	}
	unknown := store.ErrUnknownOutcome
	if !c.Op.Changes() || c.Op == Delete {
		unknown = store.ErrUnavailable // the store says what is so, or that it does not know
	}
	switch {
	case c.Op != List && c.Op != Delete && store.CheckKey(c.Key) != nil:
		return s.fail(c, store.ErrDenied)
	case ctx.Err() != nil:
		return &store.Error{Op: c.Op.String(), Store: "sim", Key: c.Key, Kind: store.ErrUnavailable, Cause: context.Cause(ctx)}
	case fault == Unavailable:
		return s.fail(c, store.ErrUnavailable)
	case fault == Denied:
		return s.fail(c, store.ErrDenied)
	case fault == Lost:
		return s.fail(c, unknown)
	case fault == Unanswered:
		_ = do()
		return s.fail(c, unknown)
	case fault == Late && c.Op.Changes():
		s.late = append(s.late, func() { _ = do() })
		return s.fail(c, unknown)
	case fault == Late:
		return s.fail(c, unknown)
	}
	if err := do(); err != nil {
		return s.fail(c, err)
	}
	return nil
}

func (s *Store) fail(c Call, kind error) error {
	return &store.Error{Op: c.Op.String(), Store: "sim", Key: c.Key, Kind: kind}
}

// OnTheirWay is the number of requests that Land can carry out.
func (s *Store) OnTheirWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.late)
}

// Land carries out request i of those on their way, whoever sent it and however long ago.
func (s *Store) Land(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	do()
}

// Requests is how many requests of that kind were made.
func (s *Store) Requests(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[op]
}

// Keys are those of all objects, in order.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, 0, len(s.objects))
	for key := range s.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Peek returns an object's bytes, which are not to be changed, without a request.
func (s *Store) Peek(key string) (body []byte, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, found := s.objects[key]
	return o.body, found
}

// PeekLocked is Peek for Inject and Watch, which are called with the store locked.
func (s *Store) PeekLocked(key string) (body []byte, found bool) {
	o, found := s.objects[key]
	return o.body, found
}

// Corrupt lets change an object's bytes; what it returns is what lies there from now on.
func (s *Store) Corrupt(key string, change func(body []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[key]
	o.body = change(bytes.Clone(o.body))
	s.objects[key] = o
}

func (s *Store) put(op Op, key string, body []byte) store.Version {
	if s.objects == nil {
		s.objects = map[string]object{}
	}
	o := object{body: body, version: versionOf(body), modified: s.now()}
	s.objects[key] = o
	if s.Watch != nil {
		s.Watch(op, key, body)
	}
	return o.version
}

func (s *Store) now() time.Time {
	if s.Now == nil {
		return time.Unix(0, 0)
	}
	return s.Now()
}

// PutIfAbsent is of store.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) (v store.Version, err error) {
	body = bytes.Clone(body)
	err = s.request(ctx, Call{Op: Put, Key: key, Body: body}, func() error {
		if _, there := s.objects[key]; there {
			return store.ErrExists
		}
		v = s.put(Put, key, body)
		return nil
	})
	return v, err
}

// PutIfMatch is of store.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, body []byte, old store.Version) (v store.Version, err error) {
	body = bytes.Clone(body)
	err = s.request(ctx, Call{Op: Replace, Key: key, Body: body}, func() error {
		if s.objects[key].version != old {
			return store.ErrChanged
		}
		v = s.put(Replace, key, body)
		return nil
	})
	return v, err
}

// Get is of store.Store.
func (s *Store) Get(ctx context.Context, key string) (body []byte, v store.Version, err error) {
	err = s.request(ctx, Call{Op: Get, Key: key}, func() error {
		o, there := s.objects[key]
		if !there {
			return store.ErrNotFound
		}
		body, v = bytes.Clone(o.body), o.version
		return nil
	})
	return body, v, err
}

// GetRange is of store.Store.
func (s *Store) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	return s.request(ctx, Call{Op: GetRange, Key: key}, func() error {
		o, there := s.objects[key]
		switch {
		case !there:
			return store.ErrNotFound
		case from < 0 || from+int64(len(dst)) > int64(len(o.body)):
			return store.ErrShort
		}
		copy(dst, o.body[from:])
		return nil
	})
}

// Head is of store.Store.
func (s *Store) Head(ctx context.Context, key string) (info store.Info, err error) {
	err = s.request(ctx, Call{Op: Head, Key: key}, func() error {
		o, there := s.objects[key]
		if !there {
			return store.ErrNotFound
		}
		info = o.info(key)
		return nil
	})
	return info, err
}

func (o *object) info(key string) store.Info {
	return store.Info{Key: key, SizeBytes: int64(len(o.body)), Version: o.version, Modified: o.modified}
}

// List is of store.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) (infos []store.Info, err error) {
	err = s.request(ctx, Call{Op: List, Key: prefix}, func() error {
		for key, o := range s.objects {
			if strings.HasPrefix(key, prefix) && key > after {
				infos = append(infos, o.info(key))
			}
		}
		sort.Slice(infos, func(i, j int) bool { return infos[i].Key < infos[j].Key })
		infos = infos[:min(limit, len(infos))]
		return nil
	})
	return infos, err
}

// Delete is of store.Store.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	keys = slices.Clone(keys)
	first := ""
	if len(keys) > 0 {
		first = keys[0]
	}
	return s.request(ctx, Call{Op: Delete, Key: first}, func() error {
		for _, key := range keys {
			if store.CheckKey(key) != nil {
				return store.ErrDenied
			}
			if _, there := s.objects[key]; there {
				delete(s.objects, key)
				if s.Watch != nil {
					s.Watch(Delete, key, nil)
				}
			}
		}
		return nil
	})
}
