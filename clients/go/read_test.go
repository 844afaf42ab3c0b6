package walsidecar

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// fill appends n numbered records to a stream.
func fill(t *testing.T, c *Client, stream string, n int) {
	t.Helper()
	if _, errs := pipeline(t, c, stream, n); errors.Join(errs...) != nil {
		t.Fatal(errors.Join(errs...))
	}
}

// collect takes the payloads of an iteration, and gaps as their texts.
func collect(t *testing.T, records iter.Seq2[Record, error]) []string {
	t.Helper()
	var all []string
	for r, err := range records {
		var gap *Gap
		switch {
		case errors.As(err, &gap):
			all = append(all, fmt.Sprintf("%s %d-%d", gap.Kind, gap.From, gap.To))
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, string(r.Data))
		}
	}
	return all
}

func TestReadStartsAndEndsWhereTheOptionsSay(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	fill(t, c, "s", 10)
	third := time.Unix(0, f.log.streams[0].records[3].TimestampNS)
	for _, test := range []struct {
		name string
		opts []ReadOption
		want []string
	}{
		{"all", nil, numbers(0, 10)},
		{"from an offset", []ReadOption{FromOffset(7)}, numbers(7, 10)},
		{"from a time", []ReadOption{FromTime(third)}, numbers(3, 10)},
		{"the last", []ReadOption{FromLast(2)}, numbers(8, 10)},
		{"limited", []ReadOption{FromOffset(2), Limit(4)}, numbers(2, 6)},
		{"with little memory", []ReadOption{ReadAhead(1)}, numbers(0, 10)},
	} {
		if got := collect(t, c.Read(ctx, "s", test.opts...)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", test.name, got)
		}
	}
	for _, err := range c.Read(ctx, "missing") {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("a missing stream: %v", err)
		}
	}
	if len(c.reads) != 0 {
		t.Errorf("%d reads are left open", len(c.reads))
	}
}

func TestRecordIsReadAsItWasAppended(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	at, err := c.Append(ctx, "s", []byte("payload"), WithHeader("type", []byte("order")), WithHeader("type", []byte("second")))
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range c.Read(ctx, "s") {
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream != "s" || r.StreamID == 0 || r.Offset != at.Offset || r.Position != at.Position || string(r.Data) != "payload" || r.Timestamp.IsZero() {
			t.Errorf("%+v", r)
		}
		if v, ok := r.Headers.Get("type"); !ok || string(v) != "order" {
			t.Errorf("header type is %q", v)
		}
		if _, ok := r.Headers.Get("missing"); ok {
			t.Error("it has a header that it has not")
		}
		var all []string
		for key, value := range r.Headers.All() {
			all = append(all, key+"="+string(value))
		}
		if !slices.Equal(all, []string{"type=order", "type=second"}) {
			t.Errorf("headers %q", all)
		}
	}
}

func TestTrimmedRecordsAreAGapOnlyWhereTheyWereAskedFor(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	fill(t, c, "s", 6)
	if _, err := c.Trim(ctx, "s", 4); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, c.Read(ctx, "s")); !slices.Equal(got, numbers(4, 6)) {
		t.Errorf("from the first: %q", got)
	}
	if got, want := collect(t, c.Read(ctx, "s", FromOffset(1))), []string{"trimmed 1-4", "4", "5"}; !slices.Equal(got, want) {
		t.Errorf("from a trimmed offset: %q", got)
	}
	for _, err := range c.Read(ctx, "s", FromOffset(1)) {
		if !errors.Is(err, ErrTrimmed) {
			t.Errorf("the gap is %v", err)
		}
		break
	}
}

func TestFollowTellsThatItCaughtUpAndEndsWithASealedStream(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	fill(t, c, "s", 5)
	var caughtUp []uint64
	var got []string
	var end error
	for r, err := range c.Follow(ctx, "s", OnCaughtUp(func(next uint64) {
		caughtUp = append(caughtUp, next)
		if next < 8 {
			if _, err := c.Append(ctx, "s", fmt.Appendf(nil, "%d", next)); err != nil {
				t.Error(err)
			}
		} else if _, err := c.SealStream(ctx, "s"); err != nil {
			t.Error(err)
		}
	})) {
		if end = err; err == nil {
			got = append(got, string(r.Data))
		}
	}
	if !slices.Equal(got, numbers(0, 8)) {
		t.Errorf("followed %q", got)
	}
	if !slices.Equal(caughtUp, []uint64{5, 6, 7, 8}) {
		t.Errorf("caught up at %d", caughtUp)
	}
	if !errors.Is(end, ErrSealed) {
		t.Errorf("the end of a sealed stream is %v", end)
	}
	if got := collect(t, c.Read(ctx, "s")); !slices.Equal(got, numbers(0, 8)) {
		t.Errorf("a sealed stream, read: %q", got)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	fill(t, c, "s", 1)
	ctx, cancel := context.WithCancel(testContext(t))
	var end error
	for _, err := range c.Follow(ctx, "s", OnCaughtUp(func(uint64) { cancel() })) {
		end = err
	}
	if !errors.Is(end, context.Canceled) || errors.Is(end, ErrOutcomeUnknown) {
		t.Errorf("it ended with %v", end)
	}
	waitUntil(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.reads) == 0 })
}

func TestReplayHasAllStreamsInCommitOrder(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.AppendBatch(ctx, []Entry{{Stream: "a", Data: []byte("a0")}, {Stream: "b", Data: []byte("b0")}}); err != nil {
		t.Fatal(err)
	}
	second, err := c.Append(ctx, "a", []byte("a1"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r, err := range c.Replay(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s/%d %s %v", r.Stream, r.Offset, r.Data, r.BatchEnd))
	}
	if want := []string{"a/0 a0 false", "b/0 b0 true", "a/1 a1 true"}; !slices.Equal(got, want) {
		t.Errorf("replayed %q", got)
	}
	if got := collect(t, c.Replay(ctx, second.Position)); !slices.Equal(got, []string{"a1"}) {
		t.Errorf("from the second batch: %q", got)
	}
}

func TestP2_ReadsGoOnOverLostConnectionsWithoutLossOrRepetition(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	fill(t, c, "s", 40)
	var entries []Entry
	for i := range 20 {
		entries = append(entries, Entry{Stream: []string{"a", "b"}[i%2], Data: fmt.Appendf(nil, "%d", 40+i)})
	}
	if _, err := c.AppendBatch(ctx, entries); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		read func() iter.Seq2[Record, error]
		want []string
	}{
		{"read", func() iter.Seq2[Record, error] { return c.Read(ctx, "s", ReadAhead(300)) }, numbers(0, 40)},
		{"limited read", func() iter.Seq2[Record, error] { return c.Read(ctx, "s", ReadAhead(300), Limit(20)) }, numbers(0, 20)},
		{"last", func() iter.Seq2[Record, error] { return c.Read(ctx, "s", ReadAhead(300), FromLast(30)) }, numbers(10, 40)},
		{"replay", func() iter.Seq2[Record, error] { return c.Replay(ctx, 0, ReadAhead(300)) }, numbers(0, 60)},
	} {
		var got []string
		for r, err := range test.read() {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, string(r.Data)); len(got)%7 == 0 {
				f.kick()
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", test.name, got)
		}
	}
}

func TestSlowIterationHoldsUpNothingAndIsBounded(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	fill(t, c, "s", 200)
	read := 0
	for _, err := range c.Read(ctx, "s", ReadAhead(1000)) {
		if err != nil {
			t.Fatal(err)
		}
		if read++; read != 50 {
			continue
		}
		for range 50 { // the iteration stands still, appends go on
			if _, err := c.Append(ctx, "other", nil); err != nil {
				t.Fatal(err)
			}
		}
		c.mu.Lock()
		if len(c.reads) != 1 {
			t.Error("the sidecar has sent all of it")
		}
		for _, r := range c.reads {
			r.mu.Lock()
			bytes := 0
			for _, m := range r.queue {
				bytes += int(m.header.Length)
			}
			if bytes > 1000+fakeReadRecords*64 {
				t.Errorf("%d bytes wait in the client", bytes)
			}
			r.mu.Unlock()
		}
		c.mu.Unlock()
	}
	if read != 200 {
		t.Errorf("%d records were read", read)
	}
}

func TestRottenRecordIsNeverReturned(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	fill(t, c, "s", 3)
	f.log.mu.Lock()
	f.log.streams[0].records[1].Payload[0] ^= 1
	f.log.mu.Unlock()
	var got []string
	var end error
	for r, err := range c.Read(testContext(t), "s") {
		if end = err; err == nil {
			got = append(got, string(r.Data))
		}
	}
	if !slices.Equal(got, []string{"0"}) || end == nil {
		t.Errorf("read %q, then %v", got, end)
	}
}

func TestMarksOfAFollowDoNotPileUp(t *testing.T) {
	r := &reading{ready: make(chan struct{}, 1)}
	for range 100 {
		r.put(wire.Header{Type: wire.TypeCaughtUp}, nil)
	}
	if len(r.queue) != 1 {
		t.Errorf("%d marks wait", len(r.queue))
	}
}
