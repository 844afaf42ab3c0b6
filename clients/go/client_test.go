package walsidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// testTimeout bounds a test that waits for something that does not come.
const testTimeout = 20 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func dial(t testing.TB, path string, opts ...Option) *Client {
	t.Helper()
	c, err := Dial(testContext(t), path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAppendReturnsDenseOffsetsAndGrowingPositions(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	last := uint64(0)
	for i := range 5 {
		r, err := c.Append(ctx, "orders", fmt.Appendf(nil, "order %d", i))
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != uint64(i) || r.Position <= last || r.Placed != nil || r.Duplicate {
			t.Errorf("record %d: %+v after position %d", i, r, last)
		}
		last = r.Position
	}
	if c.Durable() < last {
		t.Errorf("durable position %d below an acked record at %d", c.Durable(), last)
	}
	if got, want := f.log.payloads("orders"), []string{"order 0", "order 1", "order 2", "order 3", "order 4"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q", got)
	}
}

func TestTicketsOfAPipelineMayBeWaitedForInAnyOrder(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	var tickets []Ticket
	for i := range 1000 {
		ticket, err := c.Submit(ctx, "s", fmt.Appendf(nil, "%d", i))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	for i, ticket := range slices.Backward(tickets) {
		r, err := ticket.Wait(ctx)
		if err != nil || r.Offset != uint64(i) {
			t.Fatalf("ticket %d: %+v, %v", i, r, err)
		}
	}
	if _, err := tickets[0].Wait(ctx); !errors.Is(err, ErrTicketSpent) {
		t.Errorf("the second Wait of a ticket returned %v", err)
	}
	if _, err := (Ticket{}).Wait(ctx); !errors.Is(err, ErrTicketSpent) {
		t.Errorf("Wait of the zero Ticket returned %v", err)
	}
}

func TestCancelledWaitAbandonsTheWaitAndNotTheRecord(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.CreateStream(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(ctx, "s", []byte("first")); err != nil {
		t.Fatal(err)
	}
	f.log.mu.Lock() // the sidecar stands still
	ticket, err := c.Submit(ctx, "s", []byte("second"))
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = ticket.Wait(short)
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the cancelled wait returned %v", err)
	}
	f.log.mu.Unlock()
	if r, err := ticket.Wait(ctx); err != nil || r.Offset != 1 {
		t.Errorf("the same ticket, waited for again: %+v, %v", r, err)
	}
}

func TestEveryCodeOfTheProtocolHasASentinel(t *testing.T) {
	sentinels := []error{
		ErrInternal, ErrBadRequest, ErrTooLarge, ErrUnsupported, ErrUnauthorized, ErrWrongLog, ErrReadOnly, ErrUsage, ErrCancelled, ErrLogWentBack,
		ErrOutcomeUnknown, ErrDisconnected, ErrNotFound, ErrSealed, ErrDeleted, ErrTrimmed, ErrDataLost, ErrPreconditionFailed,
		ErrTokenMismatch, ErrDuplicate, ErrOutOfSequence, ErrSequenceExpired, ErrProducerExpired, ErrWindowExceeded, ErrTooManyStreams,
		ErrTooManyProducers, ErrCheckpointFull, ErrLogFull, ErrStoreUnavailable, ErrBusy, ErrTooManySessions, ErrOutOfMemory, ErrSlowClient,
		ErrIdleClient, ErrDraining, ErrNotReady, ErrFenced, ErrLogFailed, ErrDamaged, ErrNotOurDevice, ErrInUse,
	}
	for _, info := range wire.Errors() {
		if info.Code == wire.CodeOK {
			continue
		}
		err := fromWire(&wire.Error{Code: info.Code}, "append", "s")
		matched := 0
		for _, s := range sentinels {
			if errors.Is(err, s) && (s != ErrOutcomeUnknown || info.Code == wire.CodeOutcomeUnknown) {
				matched++
			}
		}
		if matched != 1 {
			t.Errorf("code %s matches %d sentinels", info.Name, matched)
		}
		if errors.Is(err, ErrOutcomeUnknown) != info.OutcomeUnknown {
			t.Errorf("code %s: outcome unknown is %v in the table", info.Name, info.OutcomeUnknown)
		}
	}
}

func TestErrorSaysWhatFailedWhereAndWhatToDo(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	for range 7 {
		if _, err := c.Append(ctx, "orders", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.Append(ctx, "orders", []byte("x"), ExpectOffset(3))
	var refusal *Error
	if !errors.Is(err, ErrPreconditionFailed) || !errors.As(err, &refusal) {
		t.Fatalf("error %v", err)
	}
	if refusal.Stream != "orders" || refusal.Entry != -1 || refusal.Actual == nil || *refusal.Actual != 7 || refusal.OutcomeUnknown {
		t.Errorf("refusal %+v", refusal)
	}
	for _, part := range []string{"append: precondition_failed", `stream "orders"`, "actual 7", "read from the actual offset"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if r, err := c.Append(ctx, "orders", []byte("y"), ExpectOffset(7)); err != nil || r.Offset != 7 {
		t.Errorf("the right offset: %+v, %v", r, err)
	}
}

func TestAppendCreatesAMissingStreamUnlessToldNotTo(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Append(ctx, "missing", []byte("x"), MustExist()); !errors.Is(err, ErrNotFound) {
		t.Errorf("MustExist on a missing stream: %v", err)
	}
	if _, err := c.Stat(ctx, "missing"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the refused append made the stream: %v", err)
	}
	if r, err := c.Append(ctx, "missing", []byte("x")); err != nil || r.Offset != 0 {
		t.Errorf("append: %+v, %v", r, err)
	}
}

func TestDeletedStreamIsForgottenAndTheNameIsANewStream(t *testing.T) {
	f := newFakeSidecar(t)
	one, other := dial(t, f.path), dial(t, f.path)
	ctx := testContext(t)
	if _, err := one.Append(ctx, "s", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := other.DeleteStream(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Append(ctx, "s", []byte("lost")); !errors.Is(err, ErrDeleted) {
		t.Errorf("append to the deleted stream: %v", err)
	}
	if r, err := one.Append(ctx, "s", []byte("new")); err != nil || r.Offset != 0 {
		t.Errorf("append to the new stream: %+v, %v", r, err)
	}
}

func TestBatchOverSeveralStreamsIsPlacedTogether(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	batch := []Entry{
		{Stream: "a", Data: []byte("a0")},
		{Stream: "b", Data: []byte("b0"), Headers: []Header{{"k", []byte("v")}}},
		{Stream: "a", Data: []byte("a1"), Expect: new(uint64(1))},
	}
	r, err := c.AppendBatch(ctx, batch, WithHeader("all", []byte("1")))
	if err != nil {
		t.Fatal(err)
	}
	if want := []Placed{{"a", 0, 2}, {"b", 0, 1}}; !slices.Equal(r.Placed, want) || r.Position == 0 {
		t.Errorf("placed %+v at %d", r.Placed, r.Position)
	}
	headers := Headers(f.log.streams[1].records[0].Headers)
	if v, ok := headers.Get("k"); !ok || string(v) != "v" {
		t.Errorf("header k of b0 is %q", v)
	}
	if v, ok := headers.Get("all"); !ok || string(v) != "1" {
		t.Errorf("header all of b0 is %q", v)
	}
	batch[2].Expect = new(uint64(9))
	_, err = c.AppendBatch(ctx, batch)
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Entry != 2 || *refusal.Actual != 3 {
		t.Errorf("a batch whose third entry fails: %v", err)
	}
	r, err = c.AppendBatch(ctx, []Entry{{Stream: "a", Data: []byte("a2")}, {Stream: "a", Data: []byte("a3")}})
	if want := []Placed{{"a", 2, 2}}; err != nil || !slices.Equal(r.Placed, want) {
		t.Errorf("a batch of one stream: %+v, %v", r.Placed, err)
	}
}

func TestNamedProducerTellsDuplicatesAndHowFarItGot(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Producer(ctx, "postgres"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a producer that never appended: %v", err)
	}
	for _, lsn := range []uint64{100, 250} {
		if r, err := c.Append(ctx, "s", []byte("x"), WithProducer("postgres", lsn)); err != nil || r.Duplicate {
			t.Fatalf("lsn %d: %+v, %v", lsn, r, err)
		}
	}
	r, err := c.Append(ctx, "s", []byte("x"), WithProducer("postgres", 200))
	if err != nil || !r.Duplicate || r.LastSequence != 250 {
		t.Errorf("a sequence below the last: %+v, %v", r, err)
	}
	if p, err := c.Producer(ctx, "postgres"); err != nil || p.LastSequence != 250 {
		t.Errorf("producer state %+v, %v", p, err)
	}
	if err := c.RemoveProducer(ctx, "postgres"); err != nil {
		t.Error(err)
	}
	if n := len(f.log.payloads("s")); n != 2 {
		t.Errorf("the stream has %d records", n)
	}
}

func TestStreamCommands(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if info, err := c.CreateStream(ctx, "s"); err != nil || !info.New || info.ID == 0 {
		t.Errorf("create: %+v, %v", info, err)
	}
	if info, err := c.CreateStream(ctx, "s"); err != nil || info.New {
		t.Errorf("create again: %+v, %v", info, err)
	}
	for range 4 {
		if _, err := c.Append(ctx, "s", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if first, err := c.Trim(ctx, "s", 3); err != nil || first != 3 {
		t.Errorf("trim below 3 has the effect %d, %v", first, err)
	}
	if first, err := c.Trim(ctx, "s", 99); err != nil || first != 4 {
		t.Errorf("trim below 99 has the effect %d, %v", first, err)
	}
	if err := c.SetToken(ctx, "s", nil, []byte("owner-1")); err != nil {
		t.Error(err)
	}
	if err := c.SetToken(ctx, "s", nil, []byte("owner-2")); !errors.Is(err, ErrTokenMismatch) {
		t.Errorf("a token set against another: %v", err)
	}
	if _, err := c.Append(ctx, "s", []byte("x")); !errors.Is(err, ErrTokenMismatch) {
		t.Errorf("an append without the token: %v", err)
	}
	if r, err := c.Append(ctx, "s", []byte("x"), WithToken([]byte("owner-1"))); err != nil || r.Offset != 4 {
		t.Errorf("an append with the token: %+v, %v", r, err)
	}
	if info, err := c.SealStream(ctx, "s"); err != nil || !info.Sealed || !info.HasToken || info.NextOffset != 5 {
		t.Errorf("seal: %+v, %v", info, err)
	}
	if _, err := c.Append(ctx, "s", []byte("x"), WithToken([]byte("owner-1"))); !errors.Is(err, ErrSealed) {
		t.Errorf("an append to a sealed stream: %v", err)
	}
	for i := range 7 {
		if _, err := c.CreateStream(ctx, fmt.Sprintf("list/%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for info, err := range c.Streams(ctx, "list/") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Name)
	}
	if want := []string{"list/0", "list/1", "list/2", "list/3", "list/4", "list/5", "list/6"}; !slices.Equal(names, want) {
		t.Errorf("listed %q", names)
	}
	if status, err := c.Status(ctx); err != nil || string(status) != `{"state":"serving"}` {
		t.Errorf("status %s, %v", status, err)
	}
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
}

func TestLimitsOfAnAppendAreCheckedBeforeItIsSent(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	many := make([]AppendOption, wire.MaxHeaders+1)
	for i := range many {
		many[i] = WithHeader("k", nil)
	}
	for what, append := range map[string]func() error{
		"a message": func() error {
			_, err := c.Append(ctx, "s", make([]byte, wire.MaxMessageBytes))
			return err
		},
		"a token": func() error {
			_, err := c.Append(ctx, "s", nil, WithToken(make([]byte, 65)))
			return err
		},
		"headers": func() error {
			_, err := c.Append(ctx, "s", nil, many...)
			return err
		},
		"headers, in bytes": func() error {
			_, err := c.Append(ctx, "s", nil, WithHeader("k", make([]byte, wire.MaxHeadersBytes)))
			return err
		},
		"records": func() error {
			_, err := c.AppendBatch(ctx, slices.Repeat([]Entry{{Stream: "s"}}, wire.MaxBatchRecords+1))
			return err
		},
	} {
		if err := append(); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "the limit is") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.AppendBatch(ctx, nil); !errors.Is(err, ErrBadRequest) {
		t.Errorf("an empty batch: %v", err)
	}
	if _, err := c.Append(ctx, "s", nil, WithHeader("", nil)); !errors.Is(err, ErrBadRequest) {
		t.Errorf("a header without a key: %v", err)
	}
	if f.appends != 0 {
		t.Errorf("%d of them were sent", f.appends)
	}
	if _, err := c.Append(ctx, "s", make([]byte, 1<<20)); err != nil {
		t.Errorf("a record of 1 MiB: %v", err)
	}
}

func TestTrySubmitReturnsWouldBlockAndSubmitWaits(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path, WithInFlight(4, 1<<20))
	ctx := testContext(t)
	if _, err := c.TrySubmit("s", nil); !errors.Is(err, ErrWouldBlock) {
		t.Errorf("TrySubmit to an unknown stream: %v", err)
	}
	if _, err := c.Append(ctx, "s", nil); err != nil {
		t.Fatal(err)
	}
	f.log.mu.Lock() // the sidecar stands still
	var tickets []Ticket
	for {
		ticket, err := c.TrySubmit("s", []byte("x"))
		if err != nil {
			if !errors.Is(err, ErrWouldBlock) {
				t.Fatal(err)
			}
			break
		}
		tickets = append(tickets, ticket)
	}
	if len(tickets) != 4 {
		t.Errorf("%d appends went in flight, the limit is 4", len(tickets))
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := c.Submit(short, "s", []byte("never")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("a Submit that found no room: %v", err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := c.Append(ctx, "s", []byte("waits"))
		waited <- err
	}()
	f.log.mu.Unlock()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if slices.Contains(f.log.payloads("s"), "never") {
		t.Error("a record that was not submitted is in the log")
	}
}

func TestOutgoingMemoryIsReusedOnlyWhenNothingInItIsNeeded(t *testing.T) {
	o := outgoing{}
	for i := range 10 {
		c := o.reserve(100_000)
		c.buf = append(c.buf, make([]byte, 100_000)...)
		c.live++
		if i%2 == 1 && len(o.queue) != i/2+1 {
			t.Errorf("after %d messages of 100 kB %d chunks are queued", i+1, len(o.queue))
		}
	}
	segments := o.gather(nil)
	if len(segments) != 5 || len(segments[0]) != 200_000 {
		t.Errorf("%d segments, the first of %d bytes", len(segments), len(segments[0]))
	}
	chunks := slices.Clone(o.writing)
	for _, c := range chunks {
		o.release(c)
		o.release(c) // both messages were answered while the write goes on
	}
	if len(o.free) != 0 {
		t.Error("a chunk was reused while it was written")
	}
	o.written()
	if len(o.free) != 4 {
		t.Errorf("%d chunks are free, want all but the current one", len(o.free))
	}
	if c := o.reserve(10); c != chunks[4] || len(c.buf) != 0 {
		t.Error("the current chunk does not start over when it is empty")
	}
}

func TestCloseEndsWhatIsInFlightWithUnknownOutcome(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", nil); err != nil {
		t.Fatal(err)
	}
	f.log.mu.Lock()
	ticket, err := c.Submit(ctx, "s", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.conn != nil && c.conn.idle
	})
	closed := make(chan struct{})
	go func() {
		_ = c.Close()
		close(closed)
	}()
	<-closed
	f.log.mu.Unlock()
	if _, err := ticket.Wait(ctx); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("the record in flight ended with %v", err)
	}
	for what, err := range map[string]error{
		"Append": second(c.Append(ctx, "s", nil)), "Stat": second(c.Stat(ctx, "s")), "Ping": c.Ping(ctx),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s on a closed client: %v", what, err)
		}
	}
	for _, err := range c.Read(ctx, "s") {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Read on a closed client: %v", err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

func waitUntil(t testing.TB, condition func() bool) {
	t.Helper()
	for until := time.Now().Add(testTimeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it does not happen")
		}
	}
}

func TestFlushWaitsForWhatWasSubmittedBefore(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if err := c.Flush(ctx); err != nil {
		t.Errorf("with nothing in flight: %v", err)
	}
	for range 100 {
		if _, err := c.Submit(ctx, "s", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(f.log.payloads("s")); n != 100 {
		t.Errorf("%d records in the log after Flush", n)
	}
}
