package stream

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
)

const smallRing = 1 << 20

// refusalOf fails unless err is a Refusal for want.
func refusalOf(t testing.TB, err, want error) *Refusal {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || !errors.Is(err, want) {
		t.Fatalf("got %v, want a refusal: %v", err, want)
	}
	return r
}

func entries(id ID, n int) []Entry {
	list := make([]Entry, n)
	for i := range list {
		list[i] = Entry{Stream: id, Payload: []byte{byte(i)}}
	}
	return list
}

func TestAppendPlacesRecordsDenselyAndSaysWhere(t *testing.T) {
	w := newWorld(t, 0)
	a, b := w.stream("a"), w.stream("b")
	before := w.c.DecidedAt()
	first, err := w.append(&Batch{Entries: []Entry{{Stream: a}, {Stream: b, Payload: []byte("x")}, {Stream: a}, {Stream: b}, {Stream: a}}})
	w.must(err)
	if want := []Placed{{a, 0, 3}, {b, 0, 2}}; !slices.Equal(first.Placed, want) {
		t.Errorf("placed %v, want %v", first.Placed, want)
	}
	if first.Position != before {
		t.Errorf("position %d, the item before it ended at %d", first.Position, before)
	}
	second, err := w.append(&Batch{Entries: []Entry{{Stream: b}, {Stream: a}}})
	w.must(err)
	if want := []Placed{{b, 2, 1}, {a, 3, 1}}; !slices.Equal(second.Placed, want) || second.Position <= first.Position {
		t.Errorf("placed %v at %d after %d, want %v", second.Placed, second.Position, first.Position, want)
	}
	info, err := w.c.Stat(a)
	w.must(err)
	if info.First != 0 || info.Next != 4 {
		t.Errorf("stream a is [%d, %d), want [0, 4)", info.First, info.Next)
	}
}

func TestTimestampsNeverGoBackInAStream(t *testing.T) {
	w := newWorld(t, 0)
	a, b := w.stream("a"), w.stream("b")
	for _, c := range []struct {
		id        ID
		now, want int64
	}{{a, 50, 50}, {a, 40, 50}, {b, 30, 30}, {a, 51, 51}, {b, -5, 30}} {
		var r Result
		w.must(w.c.Append(c.now, &Batch{Entries: entries(c.id, 2)}, &r))
		info, err := w.c.Stat(c.id)
		w.must(err)
		if info.Last != c.want {
			t.Errorf("at %d the stream's last timestamp is %d, want %d", c.now, info.Last, c.want)
		}
	}
}

// preconditionWorld has the streams "a" [1, 3), "sealed" [0, 1), "token" (token
// "tok"), and "gone", which was deleted.
func preconditionWorld(t testing.TB) (w *world, a, sealed, token, gone ID) {
	w = newWorld(t, 0)
	a, sealed, token, gone = w.stream("a"), w.stream("sealed"), w.stream("token"), w.stream("gone")
	_, err := w.append(&Batch{Entries: append(entries(a, 3), entries(sealed, 1)...)})
	w.must(err)
	_, err = w.c.Trim(a, 1)
	w.must(err)
	_, err = w.c.Seal(sealed)
	w.must(err)
	_, err = w.c.SetToken(token, nil, []byte("tok"))
	w.must(err)
	w.must(w.c.Delete(gone))
	return w, a, sealed, token, gone
}

func TestPreconditionsRefuseTheWholeBatch(t *testing.T) {
	w, a, sealed, token, gone := preconditionWorld(t)
	ok := Entry{Stream: a}
	tokSum := xxhash.Sum64String("tok")
	for _, c := range []struct {
		name    string
		entries []Entry
		err     error
		entry   int
		actual  uint64
	}{
		{"a stream that never was", []Entry{ok, {Stream: 99}}, ErrStreamNotFound, 1, 99},
		{"stream 0", []Entry{{Stream: 0}}, ErrStreamNotFound, 0, 0},
		{"a deleted stream", []Entry{ok, ok, {Stream: gone}}, ErrStreamDeleted, 2, uint64(gone)},
		{"a sealed stream", []Entry{{Stream: sealed}}, ErrSealed, 0, 1},
		{"expect below", []Entry{{Stream: a, HasExpect: true, Expect: 2}}, ErrOffsetMismatch, 0, 3},
		{"expect above", []Entry{{Stream: a, HasExpect: true, Expect: 4}}, ErrOffsetMismatch, 0, 3},
		{"expect 0 is an expectation", []Entry{{Stream: a, HasExpect: true}}, ErrOffsetMismatch, 0, 3},
		{"expect does not see the entry before", []Entry{ok, {Stream: a, HasExpect: true, Expect: 3}}, ErrOffsetMismatch, 1, 4},
		{"no token", []Entry{ok, {Stream: token}}, ErrTokenMismatch, 1, tokSum},
		{"another token", []Entry{{Stream: token, Token: []byte("tox")}}, ErrTokenMismatch, 0, tokSum},
		{"a token where none is", []Entry{{Stream: a, Token: []byte("tok")}}, ErrTokenMismatch, 0, 0},
		{"the first failure is named", []Entry{{Stream: 99}, {Stream: sealed}}, ErrStreamNotFound, 0, 99},
	} {
		before, head := w.state(), w.log.Head()
		_, err := w.append(&Batch{Entries: c.entries})
		r := refusalOf(t, err, c.err)
		if r.Entry != c.entry || r.Actual != c.actual || r.Logged {
			t.Errorf("%s: entry %d, actual %d, logged %v, want %d, %d, false", c.name, r.Entry, r.Actual, r.Logged, c.entry, c.actual)
		}
		if !bytes.Equal(w.state(), before) || w.log.Head() != head {
			t.Errorf("%s: the state or the log changed", c.name)
		}
	}
	r, err := w.append(&Batch{Entries: []Entry{
		{Stream: a, HasExpect: true, Expect: 3}, {Stream: token, Token: []byte("tok")}, {Stream: a, HasExpect: true, Expect: 4}}})
	w.must(err)
	if want := []Placed{{a, 3, 2}, {token, 0, 1}}; !slices.Equal(r.Placed, want) {
		t.Errorf("placed %v, want %v", r.Placed, want)
	}
}

func TestBadRequestsAreRefusedInAnyState(t *testing.T) {
	w := newWorld(t, 0)
	a := w.stream("a")
	p := w.session(4)
	limit := w.log.Geometry().MaxItemBytes()
	fits := limit - itemHeaderBytes - recordFixedBytes // the largest payload of one record
	for _, c := range []struct {
		name   string
		batch  Batch
		err    error
		entry  int
		actual uint64
		says   string
	}{
		{"no entries", Batch{}, ErrBadRequest, 0, 0, "without entries"},
		{"4,097 entries", Batch{Entries: entries(a, 4097)}, ErrTooLarge, 0, 4097, "limit 4096"},
		{"sequence without a producer", Batch{Sequence: 3, Entries: entries(a, 1)}, ErrBadRequest, 0, 3, "without a producer"},
		{"sequence 0", Batch{Producer: p, Entries: entries(a, 1)}, ErrBadRequest, 0, 0, "start at 1"},
		{"acked beyond", Batch{Producer: p, Sequence: 1, Acked: 2, Entries: entries(a, 1)}, ErrBadRequest, 0, 2, "acked"},
		{"headers", Batch{Entries: []Entry{{Stream: a}, {Stream: a, Headers: []byte{0, 0}}}}, ErrBadHeaders, 1, 2, "counts no header"},
		{"token of 65 bytes", Batch{Entries: []Entry{{Stream: a, Token: make([]byte, 65)}}}, ErrBadRequest, 0, 65, "limit 64"},
		{"a payload one too long", Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, fits+1)}}}, ErrTooLarge, 0, uint64(limit + 8), "one frame"},
		{"two that do not fit", Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, fits/2)}, {Stream: a, Payload: make([]byte, fits/2)}}},
			ErrTooLarge, 1, uint64(limit - fits%16 + 40 + fits%16), ""},
		{"an unknown session producer", Batch{Producer: p + 1, Sequence: 1, Entries: entries(a, 1)}, ErrProducerExpired, 0, 0, ""},
		{"an unknown named producer", Batch{Producer: 1, Sequence: 1, Entries: entries(a, 1)}, ErrProducerNotFound, 0, 0, ""},
	} {
		before, head := w.state(), w.log.Head()
		_, err := w.append(&c.batch)
		r := refusalOf(t, err, c.err)
		if r.Entry != c.entry || c.says != "" && r.Actual != c.actual || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want entry %d, actual %d, %q", c.name, err, c.entry, c.actual, c.says)
		}
		if !bytes.Equal(w.state(), before) || w.log.Head() != head {
			t.Errorf("%s: the state or the log changed", c.name)
		}
	}
	_, err := w.append(&Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, fits)}}})
	w.must(err)
	_, err = w.append(&Batch{Entries: entries(a, MaxBatchRecords)})
	w.must(err)
}

func TestRecordsAreInTheLogAsAppended(t *testing.T) {
	w := newWorld(t, 0)
	a := w.stream("a")
	headers := []byte{1, 0, 1, 0, 1, 0, 0, 0, 'k', 'v'}
	var r Result
	w.must(w.c.Append(77, &Batch{Entries: []Entry{{Stream: a, Payload: []byte("one")}, {Stream: a, Payload: []byte("two"), Headers: headers}}}, &r))
	w.sync()
	sbs, err := ringwal.ReadSuperblocks(w.disk)
	w.must(err)
	var got []string
	_, err = ringwal.Recover(w.disk, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		if f.Kind != ringwal.FrameData {
			return nil
		}
		return Items(f.Body, f.Position, func(it *Item) error {
			var rec Record
			for it.NextRecord(&rec) {
				if it.Position != r.Position || !rec.Verify() || rec.Stream != a || rec.Offset != uint64(len(got)) || rec.Timestamp != 77 {
					t.Errorf("record at %d: %+v, want position %d", it.Position, rec, r.Position)
				}
				got = append(got, string(rec.Payload)+string(rec.Headers))
			}
			return nil
		})
	}})
	w.must(err)
	if want := []string{"one", "two" + string(headers)}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

// TestP11_DecidedAtCoversWhatWasDecidedOn: an answer may leave once durable reaches
// DecidedAt, and then everything that it was decided on survives a crash. Durable
// one frame short of it, the state is the one from before.
func TestP11_DecidedAtCoversWhatWasDecidedOn(t *testing.T) {
	operations := map[string]func(w *world, a ID) error{
		"append":  func(w *world, a ID) error { _, err := w.append(&Batch{Entries: entries(a, 1)}); return err },
		"create":  func(w *world, _ ID) error { _, _, err := w.c.CreateStream(1, "b"); return err },
		"seal":    func(w *world, a ID) error { _, err := w.c.Seal(a); return err },
		"token":   func(w *world, a ID) error { _, err := w.c.SetToken(a, nil, []byte("t")); return err },
		"trim":    func(w *world, a ID) error { _, err := w.c.Trim(a, 1); return err },
		"delete":  func(w *world, a ID) error { return w.c.Delete(a) },
		"session": func(w *world, _ ID) error { _, err := w.c.OpenSessionProducer(8, 1); return err },
		"named":   func(w *world, _ ID) error { _, _, err := w.c.OpenNamedProducer("n"); return err },
		"nothing": func(w *world, a ID) error { _, err := w.c.Trim(a, 0); return err },
		"a refusal": func(w *world, a ID) error {
			_, err := w.append(&Batch{Entries: []Entry{{Stream: a, HasExpect: true, Expect: 9}}})
			refusalOf(w.t, err, ErrOffsetMismatch)
			return nil
		},
	}
	for name, operation := range operations {
		w := newWorld(t, smallRing)
		a := w.stream("a")
		_, err := w.append(&Batch{Entries: entries(a, 2)})
		w.must(err)
		w.sync()
		was, wasAt := w.state(), w.c.DecidedAt()
		w.must(operation(w, a))
		is, isAt := w.state(), w.c.DecidedAt()
		if changed := !bytes.Equal(was, is); changed != (isAt > wasAt) {
			t.Errorf("%s: state changed %v, decided at %d, before it %d", name, changed, isAt, wasAt)
		}
		if isAt > wasAt && w.log.Durable() >= isAt {
			t.Errorf("%s: nothing was written and durable %d covers %d", name, w.log.Durable(), isAt)
		}
		w.crash()
		if !bytes.Equal(w.state(), was) {
			t.Errorf("%s: the state of before the crash was not the durable one", name)
		}
		w.must(operation(w, a))
		is, isAt = w.state(), w.c.DecidedAt()
		w.sync()
		if w.log.Durable() < isAt {
			t.Errorf("%s: everything is durable up to %d, and not what was decided at %d", name, w.log.Durable(), isAt)
		}
		w.crash()
		if !bytes.Equal(w.state(), is) {
			t.Errorf("%s: the state decided on did not survive", name)
		}
	}
}

// TestP11_RefusalsWaitForWhatTheyWereDecidedOn: the offset that a refusal names may
// stem from an append that a crash can take back.
func TestP11_RefusalsWaitForWhatTheyWereDecidedOn(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	w.sync()
	r, err := w.append(&Batch{Entries: entries(a, 1)})
	w.must(err)
	_, err = w.append(&Batch{Entries: []Entry{{Stream: a, HasExpect: true, Expect: 0}}})
	if refusal := refusalOf(t, err, ErrOffsetMismatch); refusal.Actual != 1 {
		t.Errorf("actual %d, want 1", refusal.Actual)
	}
	if w.c.DecidedAt() <= r.Position || w.log.Durable() > r.Position {
		t.Errorf("the refusal may leave at %d, durable is %d, the append lies at %d", w.c.DecidedAt(), w.log.Durable(), r.Position)
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	w := newWorld(t, 0)
	a, b := w.stream("a"), w.stream("b")
	p := w.session(64)
	n, _, err := w.c.OpenNamedProducer("n")
	w.must(err)
	payload := make([]byte, 100)
	single := Batch{Entries: []Entry{{Stream: a, Payload: payload}}}
	mixed := Batch{Producer: p, Entries: []Entry{{Stream: a, Payload: payload}, {Stream: b, Payload: payload}, {Stream: a, Payload: payload}}}
	named := Batch{Producer: n.ID, Entries: single.Entries}
	r := Result{Placed: make([]Placed, 0, 2)}
	appendAll := func() {
		mixed.Sequence++
		mixed.Acked = max(mixed.Sequence, 20) - 20
		named.Sequence += 3
		for _, batch := range []*Batch{&single, &mixed, &named} {
			if err := w.c.Append(1, batch, &r); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 40 { // the ring of results and the frame buffers reach their sizes
		appendAll()
	}
	w.sync()
	if n := testing.AllocsPerRun(1000, appendAll); n != 0 {
		t.Errorf("%v allocations per 3 appends", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, bench := range []struct {
		name  string
		batch func(a, c ID) Batch
	}{
		{"1x1KiB", func(a, _ ID) Batch { return Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, 1024)}}} }},
		{"1x100B", func(a, _ ID) Batch { return Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, 100)}}} }},
		{"64x100B", func(a, c ID) Batch {
			var batch Batch
			for i := range 64 {
				batch.Entries = append(batch.Entries, Entry{Stream: []ID{a, c}[i%2], Payload: make([]byte, 100)})
			}
			return batch
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			w := newWorld(b, 0)
			a, c := w.stream("a"), w.stream("c")
			batch := bench.batch(a, c)
			var r Result
			b.ReportAllocs()
			for b.Loop() {
				err := w.c.Append(1, &batch, &r)
				if err == nil {
					continue
				}
				b.StopTimer()
				w.sync()
				if errors.Is(err, ringwal.ErrFull) {
					for _, id := range []ID{a, c} {
						if _, err := w.c.Trim(id, 1<<62); err != nil {
							b.Fatal(err)
						}
					}
					w.trim()
				} else if !errors.Is(err, ringwal.ErrWait) {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkReplay is what a recovery does with the body of a frame beside its
// checksums.
func BenchmarkReplay(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			var body []byte
			for len(body) < 1<<20 {
				body = append(body, encodeBatch(&Batch{}, placedEntry{Entry{Stream: ID(1 + len(body)%3), Payload: make([]byte, size)}, 0, 1})...)
			}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var r ItemReader
			for b.Loop() {
				table, index := NewTable(1<<20), NewIndex(MaxIndexEntries)
				for id := ID(1); id <= 3; id++ {
					_ = table.Apply(&Item{Kind: KindStreamCreate, Stream: id, Name: []byte{'a' + byte(id)}})
				}
				r.Reset(body, 0)
				for it := r.Next(); it != nil; it = r.Next() {
					var rec Record
					it.NextRecord(&rec)
					table.streams.byID.get(rec.Stream).next = 0 // every record has offset 0
					if err := table.Apply(it); err != nil {
						b.Fatal(err)
					}
					index.Apply(it, 0)
				}
			}
		})
	}
}
