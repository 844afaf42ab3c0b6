package walsidecar

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"
)

func TestFullLogEndsEverythingInFlightBehindTheRefusedRecord(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path, WithInFlight(8, 1<<20))
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", []byte("0")); err != nil {
		t.Fatal(err)
	}
	f.log.mu.Lock() // the sidecar stands still
	f.log.roomFor = 3
	var tickets []Ticket
	for i := 1; i <= 8; i++ {
		ticket, err := c.TrySubmit("s", []byte(strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	inLine := make(chan error, 1)
	go func() {
		// It is refused in line, or in flight if the answers made room for it before.
		ticket, err := c.Submit(ctx, "s", []byte("in line"))
		if err == nil {
			_, err = ticket.Wait(ctx)
		}
		inLine <- err
	}()
	waitUntil(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.room) == 1 })
	f.log.mu.Unlock()
	for i, ticket := range tickets {
		r, err := ticket.Wait(ctx)
		if i < 3 && (err != nil || r.Offset != uint64(i+1)) {
			t.Errorf("record %d, for which there is room: %+v, %v", i+1, r, err)
		}
		if i >= 3 && (!errors.Is(err, ErrLogFull) || errors.Is(err, ErrOutcomeUnknown)) {
			t.Errorf("record %d, for which there is none: %v", i+1, err)
		}
	}
	if err := <-inLine; !errors.Is(err, ErrLogFull) {
		t.Errorf("the Submit that waited for room: %v", err)
	}
	if _, err := c.Trim(ctx, "s", 1); err != nil { // makes room
		t.Fatal(err)
	}
	if r, err := c.Append(ctx, "s", []byte("4")); err != nil || r.Offset != 4 {
		t.Errorf("with room again: %+v, %v", r, err)
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 5)) {
		t.Errorf("the log has %q", got)
	}
}

// A connection ends after it said that the log is full, and what it had received
// is decided late. The sequences of those records must not have been used again.
func TestP2_SequencesOfRefusedRecordsAreNotUsedAgainOnAnotherConnection(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", []byte("0")); err != nil {
		t.Fatal(err)
	}
	f.fate = func(n int) fate {
		if n == 2 {
			return refuseAndDieLate
		}
		return serve
	}
	f.log.mu.Lock()
	var tickets []Ticket
	for range 5 {
		ticket, err := c.Submit(ctx, "s", []byte("refused"))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	waitUntil(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.conn.idle })
	f.log.mu.Unlock()
	for i, ticket := range tickets {
		if _, err := ticket.Wait(ctx); !errors.Is(err, ErrLogFull) {
			t.Errorf("record %d behind the full log: %v", i, err)
		}
	}
	for i := 1; i < 6; i++ {
		if r, err := c.Append(ctx, "s", []byte(strconv.Itoa(i))); err != nil || r.Offset != uint64(i) {
			t.Errorf("record %d: %+v, %v", i, r, err)
		}
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 6)) {
		t.Errorf("the log has %q", got)
	}
}

func TestWaitWhileFullKeepsTheOrder(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path, WithWaitWhileFull(), WithInFlight(8, 1<<20))
	f.log.roomFor = 5
	go func() {
		time.Sleep(50 * time.Millisecond)
		f.log.mu.Lock()
		f.log.roomFor = -1
		f.log.mu.Unlock()
	}()
	_, errs := pipeline(t, c, "s", 30)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 30)) {
		t.Errorf("the log has %q", got)
	}
}

func TestNamedProducerThatWasOvertakenWhileTheLogWasFullIsNoDuplicate(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path, WithWaitWhileFull())
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", []byte("1"), WithProducer("p", 1)); err != nil {
		t.Fatal(err)
	}
	f.fate = func(n int) fate {
		f.log.roomFor = -1
		if n == 2 {
			f.log.roomFor = 0 // for the second append alone
		}
		return serve
	}
	f.log.mu.Lock()
	overtaken, err := c.Submit(ctx, "s", []byte("2"), WithProducer("p", 2))
	if err != nil {
		t.Fatal(err)
	}
	next, err := c.Submit(ctx, "s", []byte("3"), WithProducer("p", 3))
	if err != nil {
		t.Fatal(err)
	}
	f.log.mu.Unlock()
	if _, err := next.Wait(ctx); err != nil {
		t.Error(err)
	}
	if r, err := overtaken.Wait(ctx); !errors.Is(err, ErrOutOfSequence) {
		t.Errorf("a record that is not in the log: %+v, %v", r, err)
	}
}

func TestRefusalThatUsesUpNothingDoesNotHarmTheRecordsBehindIt(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.CreateStream(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	var tickets []Ticket
	for _, payload := range []string{"0", "!", "1", "!", "2", "3"} {
		ticket, err := c.Submit(ctx, "s", []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		_, err := ticket.Wait(ctx)
		if wrong := i == 1 || i == 3; errors.Is(err, ErrTooLarge) != wrong || err != nil && !wrong {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 4)) {
		t.Errorf("the log has %q", got)
	}
}
