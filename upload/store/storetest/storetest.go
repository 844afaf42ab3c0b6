// Package storetest is what every store.Store must do, as tests.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

// Run tests a store through two handles on one empty root; they may be the same handle.
func Run(t *testing.T, a, b store.Store) {
	s := suite{a: a, b: b, ctx: t.Context()}
	t.Run("put if absent", s.putIfAbsent)
	t.Run("put if match", s.putIfMatch)
	t.Run("put and read bodies of all sizes", s.bodies)
	t.Run("ranges", s.ranges)
	t.Run("what is not there", s.missing)
	t.Run("head", s.head)
	t.Run("list", s.list)
	t.Run("delete", s.remove)
	t.Run("keys", s.keys)
	t.Run("one of many creates", s.createRace)
	t.Run("one of many replaces", s.replaceRace)
	t.Run("replaced many times under readers", s.readers)
	t.Run("probe", func(t *testing.T) {
		if err := store.Probe(s.ctx, s.a); err != nil {
			t.Fatal(err)
		}
		if left := must(s.a.List(s.ctx, "probe/", "", 10))(t); len(left) > 0 {
			t.Errorf("the probe left %v", left)
		}
	})
}

type suite struct {
	a, b store.Store
	ctx  context.Context
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, must be %q", what, err, want)
	}
}

// wantBody reads through both handles.
func (s suite) wantBody(t *testing.T, key string, want []byte, v store.Version) {
	t.Helper()
	for _, handle := range []store.Store{s.a, s.b} {
		body, got, err := handle.Get(s.ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(body, want) {
			t.Fatalf("%s: got %d bytes that are not the %d put", key, len(body), len(want))
		}
		if got != v {
			t.Errorf("%s: read version %s, put said %s", key, got, v)
		}
	}
}

func (s suite) putIfAbsent(t *testing.T) {
	v := must(s.a.PutIfAbsent(s.ctx, "absent/o/1", []byte("one")))(t)
	if v == "" {
		t.Error("a put gave an empty version")
	}
	s.wantBody(t, "absent/o/1", []byte("one"), v)
	for _, handle := range []store.Store{s.a, s.b} {
		_, err := handle.PutIfAbsent(s.ctx, "absent/o/1", []byte("two"))
		wantError(t, "a second put", err, store.ErrExists)
		_, err = handle.PutIfMatch(s.ctx, "absent/o/1", []byte("two"), "")
		wantError(t, "a put that expects nothing", err, store.ErrChanged)
	}
	s.wantBody(t, "absent/o/1", []byte("one"), v)
	v = must(s.b.PutIfMatch(s.ctx, "absent/o/2", []byte("two"), ""))(t)
	s.wantBody(t, "absent/o/2", []byte("two"), v)
	_, err := s.a.PutIfAbsent(s.ctx, "absent/o/2", []byte("two"))
	wantError(t, "a put of what a put that expects nothing made", err, store.ErrExists)
}

func (s suite) putIfMatch(t *testing.T) {
	const key = "match/manifest"
	versions := []store.Version{must(s.a.PutIfAbsent(s.ctx, key, []byte("generation 0")))(t)}
	for i := 1; i <= 3; i++ {
		body := fmt.Appendf(nil, "generation %d", i)
		handle := []store.Store{s.a, s.b}[i%2]
		v := must(handle.PutIfMatch(s.ctx, key, body, versions[i-1]))(t)
		if slices.Contains(versions, v) {
			t.Errorf("version %s came twice", v)
		}
		for _, old := range versions {
			for _, handle := range []store.Store{s.a, s.b} {
				_, err := handle.PutIfMatch(s.ctx, key, []byte("stale"), old)
				wantError(t, "a replacement of an old version", err, store.ErrChanged)
			}
		}
		versions = append(versions, v)
		s.wantBody(t, key, body, v)
		if info := must(s.b.Head(s.ctx, key))(t); info.Version != v || info.SizeBytes != int64(len(body)) {
			t.Errorf("head says %+v", info)
		}
		if found := must(s.b.List(s.ctx, "match/", "", 10))(t); len(found) != 1 || found[0].SizeBytes != int64(len(body)) || found[0].Version != v {
			t.Errorf("list says %+v", found)
		}
	}
	_, err := s.a.PutIfMatch(s.ctx, "match/nothing", []byte("x"), versions[3])
	wantError(t, "a replacement of nothing", err, store.ErrChanged)
	_, err = s.a.Head(s.ctx, "match/nothing")
	wantError(t, "a refused replacement", err, store.ErrNotFound)
}

func (s suite) bodies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 4095, 64 << 10, 3<<20 + 1} {
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(random.Uint32())
		}
		key := fmt.Sprintf("bodies/%d", n)
		v := must(s.a.PutIfAbsent(s.ctx, key, body))(t)
		s.wantBody(t, key, body, v)
		v = must(s.b.PutIfMatch(s.ctx, key, append(body, 'x'), v))(t)
		s.wantBody(t, key, append(body, 'x'), v)
	}
}

func (s suite) ranges(t *testing.T) {
	body := []byte("0123456789")
	must(s.a.PutIfAbsent(s.ctx, "ranges", body))(t)
	for from := range len(body) {
		for to := from; to <= len(body); to++ {
			dst := make([]byte, to-from)
			if err := s.b.GetRange(s.ctx, "ranges", int64(from), dst); err != nil || string(dst) != string(body[from:to]) {
				t.Fatalf("[%d, %d): %q, %v", from, to, dst, err)
			}
		}
	}
	for _, from := range []int64{5, 10, 1000} {
		wantError(t, fmt.Sprintf("6 bytes from %d of 10", from), s.a.GetRange(s.ctx, "ranges", from, make([]byte, 6)), store.ErrShort)
	}
}

func (s suite) missing(t *testing.T) {
	must(s.a.PutIfAbsent(s.ctx, "missing/there/x", []byte("x")))(t)
	for _, key := range []string{"missing/x", "missing/there", "missing/there/x/y", "missing/there/y"} {
		_, _, err := s.a.Get(s.ctx, key)
		wantError(t, "get "+key, err, store.ErrNotFound)
		_, err = s.a.Head(s.ctx, key)
		wantError(t, "head "+key, err, store.ErrNotFound)
		wantError(t, "get range of "+key, s.a.GetRange(s.ctx, key, 0, make([]byte, 1)), store.ErrNotFound)
	}
}

func (s suite) head(t *testing.T) {
	before := time.Now()
	v := must(s.a.PutIfAbsent(s.ctx, "head/o", []byte("12345")))(t)
	info := must(s.b.Head(s.ctx, "head/o"))(t)
	if info.Key != "head/o" || info.SizeBytes != 5 || info.Version != v {
		t.Errorf("%+v", info)
	}
	if d := info.Modified.Sub(before).Abs(); d > time.Hour {
		t.Errorf("modified %v, now is %v", info.Modified, before)
	}
}

// list: keys whose byte order is not that of a walk over directories.
func (s suite) list(t *testing.T) {
	keys := []string{"list/a-b", "list/a.b", "list/a/1", "list/a/2", "list/a/3", "list/a0", "list/b/c/d", "list/b/c/e", "list/b/d",
		"list2/x"}
	for _, i := range rand.New(rand.NewPCG(3, 4)).Perm(len(keys)) {
		must(s.a.PutIfAbsent(s.ctx, keys[i], []byte(keys[i])))(t)
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"list", "", 100, keys},
		{"list/", "", 100, keys[:9]},
		{"list/a", "", 100, keys[:6]},
		{"list/a/", "", 100, keys[2:5]},
		{"list/b/c/", "", 1, keys[6:7]},
		{"list/", "list/a/2", 100, keys[4:9]},
		{"list/", "list/a/2", 3, keys[4:7]},
		{"list/", "list/a/zzz", 2, keys[5:7]},
		{"list/", "list/b", 100, keys[6:9]},
		{"list/", "list/zzz", 100, nil},
		{"nothing", "", 100, nil},
		{"list/", "", 0, nil},
	} {
		var got []string
		for _, info := range must(s.b.List(s.ctx, c.prefix, c.after, c.limit))(t) {
			got = append(got, info.Key)
			if info.SizeBytes != int64(len(info.Key)) || info.Version == "" || info.Modified.IsZero() {
				t.Errorf("%+v", info)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("list(%q, %q, %d): %v, must be %v", c.prefix, c.after, c.limit, got, c.want)
		}
	}
}

func (s suite) remove(t *testing.T) {
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprintf("delete/%02d", i))
		must(s.a.PutIfAbsent(s.ctx, keys[i], []byte("x")))(t)
	}
	old := must(s.a.Head(s.ctx, keys[0]))(t).Version
	replaced := must(s.a.PutIfMatch(s.ctx, keys[0], []byte("y"), old))(t)
	if err := s.b.Delete(s.ctx, append([]string{"delete/never", "delete/never/was"}, keys[:19]...)); err != nil {
		t.Fatal(err)
	}
	if left := must(s.a.List(s.ctx, "delete/", "", 100))(t); len(left) != 1 || left[0].Key != keys[19] {
		t.Errorf("left: %v", left)
	}
	_, err := s.a.PutIfMatch(s.ctx, keys[0], []byte("z"), replaced)
	wantError(t, "a replacement of what was deleted", err, store.ErrChanged)
	v := must(s.b.PutIfAbsent(s.ctx, keys[0], []byte("new")))(t)
	s.wantBody(t, keys[0], []byte("new"), v)
	for _, before := range []store.Version{old, replaced} {
		_, err = s.a.PutIfMatch(s.ctx, keys[0], []byte("z"), before)
		wantError(t, "a replacement of a version from before the deletion", err, store.ErrChanged)
	}
	if err := s.a.Delete(s.ctx, nil); err != nil {
		t.Errorf("deleting nothing: %v", err)
	}
}

func (s suite) keys(t *testing.T) {
	for _, key := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", ".tmp/x", "a/.g-b", "a\x00b", "a b", "a\\b", "ä",
		strings.Repeat("x", 201), strings.Repeat("x/", 400) + "x"} {
		if _, err := s.a.PutIfAbsent(s.ctx, key, []byte("x")); err == nil {
			t.Errorf("a put of key %q succeeded", key)
		}
		if _, _, err := s.a.Get(s.ctx, key); err == nil {
			t.Errorf("a get of key %q succeeded", key)
		}
		if err := s.a.Delete(s.ctx, []string{key}); err == nil {
			t.Errorf("a delete of key %q succeeded", key)
		}
	}
	for _, key := range []string{"keys/0f/node-1.a=b_c/o/0000000000000001-ff", "keys/" + strings.Repeat("x", 200)} {
		s.wantBody(t, key, []byte(key), must(s.a.PutIfAbsent(s.ctx, key, []byte(key)))(t))
	}
}

const writers = 16

func (s suite) createRace(t *testing.T) {
	for round := range 5 {
		s.race(t, fmt.Sprintf("create/%d", round), "", func(handle store.Store, key string, body []byte) (store.Version, error) {
			return handle.PutIfAbsent(s.ctx, key, body)
		}, store.ErrExists)
	}
}

func (s suite) replaceRace(t *testing.T) {
	const key = "race/manifest"
	v := must(s.a.PutIfAbsent(s.ctx, key, []byte("start")))(t)
	for range 5 {
		v = s.race(t, key, v, func(handle store.Store, key string, body []byte) (store.Version, error) {
			return handle.PutIfMatch(s.ctx, key, body, v)
		}, store.ErrChanged)
	}
}

// race lets many put at once: exactly one wins, and it is what is there. A writer whose
// answer was lost may be the winner, if no other is.
func (s suite) race(t *testing.T, key string, old store.Version, put func(store.Store, string, []byte) (store.Version, error), loses error) store.Version {
	t.Helper()
	versions, errs := make([]store.Version, writers), make([]error, writers)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			versions[i], errs[i] = put([]store.Store{s.a, s.b}[i%2], key, fmt.Appendf(nil, "%s after %s by %d", key, old, i))
		})
	}
	all.Wait()
	body, v, err := s.a.Get(s.ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	won := 0
	for i, err := range errs {
		mine := string(body) == fmt.Sprintf("%s after %s by %d", key, old, i)
		switch {
		case err == nil && (!mine || versions[i] != v):
			t.Errorf("%s: writer %d was told that it won with version %s; %q is there in %s", key, i, versions[i], body, v)
		case err == nil, mine && errors.Is(err, store.ErrUnknownOutcome):
			won++
		case errors.Is(err, loses), errors.Is(err, store.ErrUnknownOutcome):
		default:
			t.Errorf("%s: writer %d: %v", key, i, err)
		}
	}
	if won != 1 {
		t.Fatalf("%s: %d writers won", key, won)
	}
	return v
}

// readers: whoever reads sees whole bodies whose versions never go back.
func (s suite) readers(t *testing.T) {
	const key, times = "readers/manifest", 100
	body := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 1000+i) }
	v := must(s.a.PutIfAbsent(s.ctx, key, body(0)))(t)
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	var reading sync.WaitGroup
	for _, handle := range []store.Store{s.a, s.b} {
		reading.Go(func() {
			for last := 0; ctx.Err() == nil; {
				got, _, err := handle.Get(s.ctx, key)
				if err != nil {
					t.Errorf("read after %d: %v", last, err)
					return
				}
				i := len(got) - 1000
				if i < last || i > times || !bytes.Equal(got, body(i)) {
					t.Errorf("read %d bytes after generation %d", len(got), last)
					return
				}
				last = i
			}
		})
	}
	for i := 1; i <= times; i++ {
		v = must(s.a.PutIfMatch(s.ctx, key, body(i), v))(t)
	}
	stop()
	reading.Wait()
	s.wantBody(t, key, body(times), v)
}
