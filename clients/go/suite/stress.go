package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// crashes kills the sidecar again and again while writers append through several
// clients: whatever was acked is there, at its offset, and nothing twice.
func crashes(t *testing.T, ctx context.Context, s *Sidecar) {
	const clients, writers, times = 2, 3, 5
	stop := make(chan struct{})
	var group sync.WaitGroup
	acked := make([]int, clients*writers)
	for k := range clients {
		c := s.Dial(t)
		for w := range writers {
			group.Go(func() {
				acked[k*writers+w] = writeUntil(t, ctx, c, fmt.Sprintf("s%d", k*writers+w), stop)
			})
		}
	}
	for range times {
		time.Sleep(150 * time.Millisecond)
		s.Crash()
	}
	time.Sleep(150 * time.Millisecond)
	close(stop)
	group.Wait()
	c := s.Dial(t)
	for i, n := range acked {
		got := payloads(t, c.Read(ctx, fmt.Sprintf("s%d", i)))
		if n == 0 || !slices.Equal(got, numbers(0, n)) {
			t.Errorf("stream %d has %d records, %d were acked", i, len(got), n)
		}
	}
}

// writeUntil keeps records in flight until stop is closed, waits for all, and
// returns how many there were.
func writeUntil(t *testing.T, ctx context.Context, c *walsidecar.Client, stream string, stop chan struct{}) int {
	tickets := make(chan walsidecar.Ticket, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		offset := uint64(0)
		for ticket := range tickets {
			r, err := ticket.Wait(ctx)
			if err != nil || r.Offset != offset {
				t.Errorf("%s, record %d: %+v, %v", stream, offset, r, err)
			}
			offset++
		}
	}()
	n := 0
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
			ticket, err := c.Submit(ctx, stream, fmt.Append(nil, n))
			if err != nil {
				t.Errorf("%s, record %d: %v", stream, n, err)
				running = false
				break
			}
			tickets <- ticket
			n++
			time.Sleep(200 * time.Microsecond)
		}
	}
	close(tickets)
	<-done
	return n
}

// readersOverCrashes has a follow and a follow of the whole log go on while the
// sidecar is killed.
func readersOverCrashes(t *testing.T, ctx context.Context, s *Sidecar) {
	writer, reader := s.Dial(t), s.Dial(t)
	_, err := writer.Append(ctx, "s", []byte("0"))
	check(t, err)
	const records = 600
	var group sync.WaitGroup
	group.Go(func() {
		n := 0
		for r, err := range reader.Follow(ctx, "s", walsidecar.FromOffset(0), walsidecar.ReadAhead(2000)) {
			if err != nil || string(r.Data) != fmt.Sprint(n) {
				t.Errorf("follow: %q, %v where %d was due", r.Data, err, n)
				return
			}
			if n++; n == records {
				return
			}
		}
	})
	group.Go(func() {
		n := 0
		for r, err := range reader.FollowLog(ctx, 0, walsidecar.ReadAhead(2000)) {
			if err != nil || string(r.Data) != fmt.Sprint(n) {
				t.Errorf("follow of the log: %q, %v where %d was due", r.Data, err, n)
				return
			}
			if n++; n == records {
				return
			}
		}
	})
	for i := 1; i < records; {
		batch := []walsidecar.Entry{}
		for range min(5, records-i) {
			batch = append(batch, walsidecar.Entry{Stream: "s", Data: fmt.Append(nil, i)})
			i++
		}
		_, err := writer.AppendBatch(ctx, batch)
		check(t, err)
		if i%200 == 1 {
			s.Crash()
		}
	}
	group.Wait()
}

// fullLog fills the log: the refusal names the stream that pins it, and a trim
// heals it.
func fullLog(t *testing.T, ctx context.Context, s *Sidecar) {
	c := s.Dial(t)
	data := make([]byte, 100_000)
	_, err := c.Append(ctx, "pins", data)
	check(t, err)
	n := 0
	for err == nil {
		if _, err = c.Append(ctx, "s", data); err == nil {
			n++
		}
	}
	var full *walsidecar.Error
	if !errors.As(err, &full) || !errors.Is(err, walsidecar.ErrLogFull) || full.OutcomeUnknown || full.Stream != "pins" {
		t.Fatalf("a full log, after %d records: %v", n, err)
	}
	// A pipeline on a full log loses and reorders nothing.
	var tickets []walsidecar.Ticket
	for range 50 {
		if ticket, err := c.Submit(ctx, "s", data); err == nil {
			tickets = append(tickets, ticket)
		} else {
			mustFail(t, err, walsidecar.ErrLogFull)
		}
	}
	for _, ticket := range tickets {
		_, err := ticket.Wait(ctx)
		mustFail(t, err, walsidecar.ErrLogFull)
	}
	info, err := c.Stat(ctx, "s")
	check(t, err)
	if info.NextOffset != uint64(n) {
		t.Errorf("the stream has %d records, %d were acked", info.NextOffset, n)
	}
	_, err = c.Trim(ctx, "pins", 1)
	check(t, err)
	_, err = c.Trim(ctx, "s", uint64(n))
	check(t, err)
	deadline := time.Now().Add(Patience / 4)
	for {
		r, err := c.Append(ctx, "s", data)
		if err == nil {
			if r.Offset != uint64(n) {
				t.Errorf("the first record with room again has offset %d, want %d", r.Offset, n)
			}
			return
		}
		mustFail(t, err, walsidecar.ErrLogFull)
		if time.Now().After(deadline) {
			t.Fatal("the log does not heal")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// waitWhileFull writes several times the log's size through a client that waits,
// while another one trims.
func waitWhileFull(t *testing.T, ctx context.Context, s *Sidecar) {
	c, trimmer := s.Dial(t, walsidecar.WithWaitWhileFull()), s.Dial(t)
	data := make([]byte, 100_000)
	_, err := c.Append(ctx, "s", data)
	check(t, err)
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			info, err := trimmer.Stat(ctx, "s")
			if err == nil {
				_, err = trimmer.Trim(ctx, "s", info.NextOffset)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	const records = 1500
	var tickets []walsidecar.Ticket
	for range records {
		ticket, err := c.Submit(ctx, "s", data)
		check(t, err)
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		if r, err := ticket.Wait(ctx); err != nil || r.Offset != uint64(i+1) {
			t.Fatalf("record %d: %+v, %v", i+1, r, err)
		}
	}
	close(stop)
	group.Wait()
}
