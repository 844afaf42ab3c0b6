// Package suite has the tests that a client of a real sidecar must pass, over
// whichever door. A door's test calls Run with a way to reach a fresh sidecar.
package suite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// Sidecar is one sidecar whose log is new, with the store none.
type Sidecar struct {
	// Dial connects a client that is closed when the test ends.
	Dial func(t testing.TB, opts ...walsidecar.Option) *walsidecar.Client
	// Crash kills the sidecar as SIGKILL does and starts it again on the same log.
	Crash func()
}

// Patience is how long one test may take.
const Patience = 2 * time.Minute

// smallLog is soon full; largeLog has room for a frame of one block every 100 us
// over five seconds, which is more than a test of a second writes that never trims.
const smallLog, largeLog = "32MiB", "256MiB"

// Run runs the suite; start makes a new sidecar for each test, with a log of the size.
func Run(t *testing.T, start func(t testing.TB, size string) *Sidecar) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, context.Context, *Sidecar)
		size string
	}{
		{"AppendReadReplay", appendReadReplay, smallLog},
		{"Pipelines", pipelines, smallLog},
		{"BatchesAndConditions", batchesAndConditions, smallLog},
		{"Producers", producers, smallLog},
		{"StreamLife", streamLife, smallLog},
		{"ListInPages", listInPages, smallLog},
		{"FollowSeesAppendsInOrder", follow, smallLog},
		{"LargestRecord", largestRecord, smallLog},
		{"P2_EachRecordOnceOverCrashes", crashes, largeLog},
		{"P2_ReadersGoOnOverCrashes", readersOverCrashes, largeLog},
		{"P12_FullLogHealsByTrim", fullLog, smallLog},
		{"P12_WaitWhileFull", waitWhileFull, smallLog},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), Patience)
			defer cancel()
			test.run(t, ctx, start(t, test.size))
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustFail(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// payloads takes an iteration to its end.
func payloads(t testing.TB, records iter.Seq2[walsidecar.Record, error]) []string {
	t.Helper()
	var all []string
	for r, err := range records {
		check(t, err)
		all = append(all, string(r.Data))
	}
	return all
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func appendReadReplay(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	before := time.Now()
	var results []walsidecar.Result
	for i := range 20 {
		r, err := c.Append(ctx, []string{"a", "b"}[i%2], fmt.Appendf(nil, "record %d", i), walsidecar.WithHeader("n", fmt.Append(nil, i)))
		check(t, err)
		if r.Offset != uint64(i/2) || i > 0 && r.Position <= results[i-1].Position {
			t.Errorf("record %d: %+v", i, r)
		}
		results = append(results, r)
	}
	n := 0
	for r, err := range c.Read(ctx, "b", walsidecar.FromOffset(3), walsidecar.Limit(4)) {
		check(t, err)
		want := 2*(3+n) + 1
		if r.Stream != "b" || r.Offset != uint64(3+n) || r.Position != results[want].Position || string(r.Data) != fmt.Sprintf("record %d", want) {
			t.Errorf("%+v where record %d was due", r, want)
		}
		if v, _ := r.Headers.Get("n"); string(v) != fmt.Sprint(want) {
			t.Errorf("header n of record %d is %q", want, v)
		}
		if r.Timestamp.Before(before.Add(-time.Second)) || r.Timestamp.After(time.Now().Add(time.Second)) {
			t.Errorf("record %d has the time %v", want, r.Timestamp)
		}
		n++
	}
	if n != 4 {
		t.Errorf("%d records were read, the limit was 4", n)
	}
	n = 0
	for r, err := range c.Replay(ctx, results[5].Position) {
		check(t, err)
		if want := 5 + n; string(r.Data) != fmt.Sprintf("record %d", want) || !r.BatchEnd || r.Stream != []string{"a", "b"}[want%2] {
			t.Errorf("%+v where record %d was due", r, want)
		}
		n++
	}
	if n != 15 {
		t.Errorf("%d records were replayed from the sixth of 20", n)
	}
	if got := payloads(t, c.Read(ctx, "a", walsidecar.FromLast(1))); !slices.Equal(got, []string{"record 18"}) {
		t.Errorf("the last record of a is %q", got)
	}
	if c.Durable() < results[19].Position {
		t.Errorf("the durable position is %d, a record was acked at %d", c.Durable(), results[19].Position)
	}
}

func pipelines(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	const writers, records = 8, 2500
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			stream := fmt.Sprintf("s%d", w)
			tickets := make([]walsidecar.Ticket, records)
			for i := range records {
				var err error
				if tickets[i], err = c.Submit(ctx, stream, fmt.Append(nil, i)); err != nil {
					t.Error(err)
					return
				}
			}
			for i := range records {
				if r, err := tickets[i].Wait(ctx); err != nil || r.Offset != uint64(i) {
					t.Errorf("writer %d, record %d: %+v, %v", w, i, r, err)
					return
				}
			}
		})
	}
	group.Wait()
	for w := range writers {
		if got := payloads(t, c.Read(ctx, fmt.Sprintf("s%d", w), walsidecar.ReadAhead(4096))); !slices.Equal(got, numbers(0, records)) {
			t.Errorf("stream %d has %d records, or not in order", w, len(got))
		}
	}
}

func batchesAndConditions(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	r, err := c.AppendBatch(ctx, []walsidecar.Entry{
		{Stream: "a", Data: []byte("a0"), Expect: new(uint64(0))}, {Stream: "b", Data: []byte("b0")}, {Stream: "a", Data: []byte("a1"), Expect: new(uint64(1))},
	})
	check(t, err)
	if want := []walsidecar.Placed{{Stream: "a", First: 0, Count: 2}, {Stream: "b", First: 0, Count: 1}}; !slices.Equal(r.Placed, want) {
		t.Errorf("placed %+v", r.Placed)
	}
	_, err = c.AppendBatch(ctx, []walsidecar.Entry{{Stream: "b", Data: []byte("b1")}, {Stream: "a", Data: []byte("a2"), Expect: new(uint64(9))}})
	var refusal *walsidecar.Error
	if !errors.As(err, &refusal) || !errors.Is(err, walsidecar.ErrPreconditionFailed) || refusal.Entry != 1 || refusal.Actual == nil || *refusal.Actual != 2 {
		t.Errorf("a batch whose second entry fails: %v", err)
	}
	if got := payloads(t, c.Replay(ctx, 0)); !slices.Equal(got, []string{"a0", "b0", "a1"}) {
		t.Errorf("the log has %q", got)
	}
	// A refused record in a pipeline leaves the others alone.
	var tickets []walsidecar.Ticket
	for _, expect := range []uint64{2, 7, 3} {
		ticket, err := c.Submit(ctx, "a", []byte("x"), walsidecar.ExpectOffset(expect))
		check(t, err)
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		if _, err := ticket.Wait(ctx); errors.Is(err, walsidecar.ErrPreconditionFailed) != (i == 1) || err != nil && i != 1 {
			t.Errorf("pipelined record %d: %v", i, err)
		}
	}
}

func producers(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	_, err := c.Producer(ctx, "upstream")
	mustFail(t, err, walsidecar.ErrNotFound)
	for _, lsn := range []uint64{10, 11, 400} {
		r, err := c.Append(ctx, "s", fmt.Append(nil, lsn), walsidecar.WithProducer("upstream", lsn))
		check(t, err)
		if r.Duplicate {
			t.Errorf("sequence %d is called a duplicate", lsn)
		}
	}
	s.Crash()
	r, err := c.Append(ctx, "s", []byte("again"), walsidecar.WithProducer("upstream", 11))
	check(t, err)
	if !r.Duplicate || r.LastSequence != 400 {
		t.Errorf("a sequence below the last, after a crash: %+v", r)
	}
	p, err := c.Producer(ctx, "upstream")
	check(t, err)
	if p.LastSequence != 400 {
		t.Errorf("the producer got to %d", p.LastSequence)
	}
	if got := payloads(t, c.Read(ctx, "s")); !slices.Equal(got, []string{"10", "11", "400"}) {
		t.Errorf("the stream has %q", got)
	}
	check(t, c.RemoveProducer(ctx, "upstream"))
	_, err = c.Producer(ctx, "upstream")
	mustFail(t, err, walsidecar.ErrNotFound)
	r, err = c.Append(ctx, "s", []byte("1"), walsidecar.WithProducer("upstream", 1))
	check(t, err)
	if r.Duplicate {
		t.Error("a removed producer remembers its sequences")
	}
}

func streamLife(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	_, err := c.Append(ctx, "s", nil, walsidecar.MustExist())
	mustFail(t, err, walsidecar.ErrNotFound)
	info, err := c.CreateStream(ctx, "s")
	check(t, err)
	if !info.New {
		t.Errorf("created: %+v", info)
	}
	for i := range 5 {
		_, err := c.Append(ctx, "s", fmt.Append(nil, i))
		check(t, err)
	}
	first, err := c.Trim(ctx, "s", 2)
	check(t, err)
	if first != 2 {
		t.Errorf("trim below 2 has the effect %d", first)
	}
	if got := payloads(t, c.Read(ctx, "s")); !slices.Equal(got, numbers(2, 5)) {
		t.Errorf("after trim: %q", got)
	}
	var gap *walsidecar.Gap
	for _, err := range c.Read(ctx, "s", walsidecar.FromOffset(0)) {
		if !errors.As(err, &gap) || gap.From != 0 || gap.To != 2 || !errors.Is(err, walsidecar.ErrTrimmed) {
			t.Errorf("reading what was trimmed begins with %v", err)
		}
		break
	}
	check(t, c.SetToken(ctx, "s", nil, []byte("owner")))
	mustFail(t, c.SetToken(ctx, "s", []byte("other"), nil), walsidecar.ErrTokenMismatch)
	_, err = c.Append(ctx, "s", []byte("x"))
	mustFail(t, err, walsidecar.ErrTokenMismatch)
	_, err = c.Append(ctx, "s", []byte("5"), walsidecar.WithToken([]byte("owner")))
	check(t, err)
	info, err = c.SealStream(ctx, "s")
	check(t, err)
	if !info.Sealed || !info.HasToken || info.FirstOffset != 2 || info.NextOffset != 6 {
		t.Errorf("sealed: %+v", info)
	}
	_, err = c.Append(ctx, "s", []byte("x"), walsidecar.WithToken([]byte("owner")))
	mustFail(t, err, walsidecar.ErrSealed)
	check(t, c.DeleteStream(ctx, "s"))
	_, err = c.Append(ctx, "s", []byte("x"), walsidecar.MustExist())
	mustFail(t, err, walsidecar.ErrNotFound)
	r, err := c.Append(ctx, "s", []byte("new"))
	check(t, err)
	again, err := c.Stat(ctx, "s")
	check(t, err)
	if r.Offset != 0 || again.ID == info.ID {
		t.Errorf("the name created anew is stream %d as before, or begins at %d", again.ID, r.Offset)
	}
}

func listInPages(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	var want []string
	var group sync.WaitGroup
	for i := range 1200 {
		name := fmt.Sprintf("list/%04d", i)
		want = append(want, name)
		if i%100 == 99 {
			group.Wait()
		}
		group.Go(func() {
			if _, err := c.CreateStream(ctx, name); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	_, err := c.CreateStream(ctx, "lisu")
	check(t, err)
	var got []string
	for info, err := range c.Streams(ctx, "list/") {
		check(t, err)
		got = append(got, info.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d streams are listed of %d, or not in order", len(got), len(want))
	}
}

func follow(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	_, err := c.Append(ctx, "s", []byte("0"))
	check(t, err)
	const records = 500
	var appends sync.WaitGroup
	defer appends.Wait()
	caughtUp := false
	n := 0
	for r, err := range c.Follow(ctx, "s", walsidecar.OnCaughtUp(func(uint64) {
		if caughtUp {
			return
		}
		caughtUp = true
		appends.Go(func() {
			for i := 1; i < records; i++ {
				if _, err := c.Submit(ctx, "s", fmt.Append(nil, i)); err != nil {
					t.Error(err)
				}
			}
		})
	})) {
		check(t, err)
		if string(r.Data) != fmt.Sprint(n) {
			t.Fatalf("record %q came where %d was due", r.Data, n)
		}
		if n++; n == records {
			break
		}
	}
	check(t, c.Ping(ctx)) // the connection lives on after a read was left
	appends.Wait()
	_, err = c.SealStream(ctx, "s")
	check(t, err)
	var last error
	for _, err := range c.Follow(ctx, "s", walsidecar.FromLast(1)) {
		last = err
	}
	mustFail(t, last, walsidecar.ErrSealed)
}

func largestRecord(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	_, err := c.Append(ctx, "s", make([]byte, c.Log().MaxBatchBytes+1))
	mustFail(t, err, walsidecar.ErrTooLarge)
	large := make([]byte, c.Log().MaxBatchBytes-4096)
	for i := range large {
		large[i] = byte(i * 7)
	}
	_, err = c.Append(ctx, "s", large)
	check(t, err)
	for r, err := range c.Read(ctx, "s", walsidecar.ReadAhead(1)) {
		check(t, err)
		if string(r.Data) != string(large) {
			t.Error("the largest record comes back otherwise")
		}
	}
}
