package upload

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
)

// Stream 9 goes on at offset 7 where 5 ended, and that at 3 where 1 did; 8 went on at 4
// twice without a record in between.
var testJoins = []Join{{Stream: 5, Before: 1, At: 3}, {Stream: 6, Before: 2, At: 4}, {Stream: 8, Before: 6, At: 4}, {Stream: 9, Before: 5, At: 7}}

func TestPartsOfAStream(t *testing.T) {
	for _, c := range []struct {
		id       stream.ID
		from, to uint64
		want     string
	}{
		{9, 0, 10, "[{1 0 3} {5 3 7} {9 7 10}]"},
		{9, 1, 10, "[{1 1 3} {5 3 7} {9 7 10}]"},
		{9, 3, 10, "[{5 3 7} {9 7 10}]"},
		{9, 7, 10, "[{9 7 10}]"},
		{9, 8, 8, "[{9 8 8}]"},
		{9, 0, 7, "[{1 0 3} {5 3 7} {9 7 7}]"}, // nothing new yet: the loss is told all the same
		{9, 0, 6, "[{1 0 3} {5 3 6}]"},
		{9, 0, 2, "[{1 0 2}]"},
		{8, 0, 9, "[{2 0 4} {8 4 9}]"}, // one gap
		{8, 0, 4, "[{2 0 4} {8 4 4}]"},
		{4, 2, 9, "[{4 2 9}]"},
	} {
		if got := fmt.Sprint(Parts(testJoins, c.id, c.from, c.to)); got != c.want {
			t.Errorf("offsets [%d, %d) of stream %d lie in %s, want %s", c.from, c.to, c.id, got, c.want)
		}
	}
	if got := newestIDs(testJoins); got[1] != 9 || got[5] != 9 || got[2] != 8 || got[6] != 8 || len(got) != 4 {
		t.Errorf("newest ids %v", got)
	}
}

// What a lost log uploaded is read, found by time, trimmed by retention and verified as
// part of the stream that goes on.
func TestARestoredStreamIsOne(t *testing.T) {
	ctx := context.Background()
	w := newTestWorld(t, 16<<20, 0)
	id := w.stream("orders")
	for i := range 10 {
		w.nowNS += int64(time.Second)
		w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: fmt.Appendf(nil, "record %d", i)}}})
		w.sync()
	}
	s, m := w.archive(1, math.MaxInt)
	r, err := PrepareRestore(ctx, s, "test")
	must(t, err)
	by := Successor{Log: [16]byte{9}, Incarnation: [16]byte{9, 9}, Epoch: m.Epoch + 1}
	if _, err := r.Claim(ctx, s, Successor{Log: by.Log, Incarnation: by.Incarnation, Epoch: m.Epoch}, 5); err == nil {
		t.Fatal("claimed with the lost log's own epoch")
	}
	claimed, err := r.Claim(ctx, s, by, 5)
	must(t, err)
	if again, err := r.Claim(ctx, s, by, 5); err != nil || again.Attempt != claimed.Attempt {
		t.Errorf("the same claim once more: %v", err)
	}

	a, err := OpenArchive(ctx, s, "test", nil)
	must(t, err)
	d, joins, err := a.Streams(ctx)
	must(t, err)
	info, err := d.ByName("orders")
	must(t, err)
	if info.ID == id || info.First != 0 || info.Next != 10 {
		t.Fatalf("the stream is %+v", info)
	}
	parts := Parts(joins, info.ID, 0, info.Next)
	var got []uint64
	lost := 0
	must(t, a.ReadParts(ctx, parts, func(r *Record) error {
		got = append(got, r.Offset)
		return nil
	}, func(gone bool, from, to uint64) error {
		if !gone || from != 10 || to != 10 {
			t.Errorf("missing: %v [%d, %d)", gone, from, to)
		}
		lost++
		return nil
	}))
	if len(got) != 10 || !slices.IsSorted(got) || lost != 1 {
		t.Errorf("read %v with %d gaps", got, lost)
	}
	at, found, err := a.FindTimeIn(ctx, parts, w.nowNS-int64(3*time.Second))
	if err != nil || !found || at != 6 {
		t.Errorf("found by time: %d %v %v", at, found, err)
	}
	trims, err := Retention{Age: 4 * time.Second}.Plan(ctx, a, w.nowNS+1)
	if err != nil || len(trims) != 1 || trims[0].Stream != info.ID || trims[0].Before < 5 {
		t.Errorf("retention trims %+v, %v", trims, err)
	}
	sum, err := Verify(ctx, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
	if err != nil || sum.Records != 10 || sum.Streams != 1 {
		t.Errorf("verify: %+v, %v", sum, err)
	}
	if !a.Manifest().Lost(m.Uploaded, r.Origin) || a.Manifest().Lost(0, m.Uploaded) {
		t.Error("the positions that are lost are not those in between")
	}
	if report, err := GC(ctx, s, "test", GCOptions{}, func(o Orphan) { t.Errorf("an orphan: %+v", o) }); err != nil || report.Orphans != 0 {
		t.Errorf("gc: %+v, %v", report, err)
	}
}

// lyingStore loses answers: what was asked for was done, or not.
type lyingStore struct {
	store.Store
	done bool
	left int
}

func (s *lyingStore) PutIfMatch(ctx context.Context, key string, body []byte, old store.Version) (store.Version, error) {
	if s.left == 0 {
		return s.Store.PutIfMatch(ctx, key, body, old)
	}
	s.left--
	if s.done {
		if _, err := s.Store.PutIfMatch(ctx, key, body, old); err != nil {
			return "", err
		}
	}
	return "", store.ErrUnknownOutcome
}

func (s *lyingStore) PutIfAbsent(ctx context.Context, key string, body []byte) (store.Version, error) {
	if s.left == 0 {
		return s.Store.PutIfAbsent(ctx, key, body)
	}
	s.left--
	if s.done {
		if _, err := s.Store.PutIfAbsent(ctx, key, body); err != nil {
			return "", err
		}
	}
	return "", store.ErrUnknownOutcome
}

func TestARestoreSettlesLostAnswers(t *testing.T) {
	ctx := context.Background()
	for _, done := range []bool{false, true} {
		for left := range 4 {
			w := newTestWorld(t, 16<<20, 0)
			w.append(&stream.Batch{Entries: []stream.Entry{{Stream: w.stream("orders"), Payload: []byte("x")}}})
			w.sync()
			s, m := w.archive(1, math.MaxInt)
			r, err := PrepareRestore(ctx, s, "test")
			must(t, err)
			claimed, err := r.Claim(ctx, &lyingStore{Store: s, done: done, left: left}, Successor{Log: [16]byte{9}, Incarnation: [16]byte{9, 9}, Epoch: m.Epoch + 1}, 5)
			must(t, err)
			now, _, err := ReadManifest(ctx, s, "test")
			if err != nil || now.Log != claimed.Log || now.Attempt != claimed.Attempt || len(now.Retired) != 1 {
				t.Errorf("done %v, %d lost answers: the manifest is of log %x, attempt %d, %v", done, left, now.Log, now.Attempt, err)
			}
			if sum, err := Verify(ctx, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) }); err != nil || sum.Objects == 0 {
				t.Errorf("verify: %+v, %v", sum, err)
			}
		}
	}
}
