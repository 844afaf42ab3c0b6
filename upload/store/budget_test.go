package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

func TestBudgetHalvesOncePerRoundAndGrowsByOnePerRound(t *testing.T) {
	var shown atomic.Int64
	b := newBudget(16, &shown)
	at := time.Unix(1000, 0)
	step := func(n int, began, now time.Time, l load) {
		for range n {
			if _, err := b.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			b.release(began, now, l)
		}
	}
	want := func(limit int64) {
		t.Helper()
		if got := shown.Load(); got != limit {
			t.Errorf("limit %d, must be %d", got, limit)
		}
	}
	want(16)
	step(16, at, at.Add(time.Second), loadTooMuch)
	want(8)
	step(4, at, at.Add(2*time.Second), loadTooMuch) // began before the cut
	want(8)
	step(8, at.Add(3*time.Second), at.Add(4*time.Second), loadUnknown)
	want(8)
	for i := range 6 {
		now := at.Add(time.Duration(10+i) * time.Second)
		step(1, now, now, loadTooMuch)
	}
	want(1) // never 0
	step(1, at, at, loadFine)
	want(2)
	for range 200 {
		step(1, at, at, loadFine)
	}
	want(16)
}

// Requests that run into their timeouts: fewer at once, and more time for each, until they
// get through; then less again.
func TestBudgetOfASlowLine(t *testing.T) {
	var shown atomic.Int64
	b := newBudget(16, &shown)
	at := time.Unix(1000, 0)
	for i, want := range []struct {
		patience float64
		limit    int64
	}{{1, 16}, {2, 8}, {4, 4}, {4, 2}, {4, 1}, {4, 1}} {
		patience, err := b.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if patience != want.patience || shown.Load() != want.limit {
			t.Errorf("after %d timeouts: patience %v, limit %d; must be %v, %d", i, patience, shown.Load(), want.patience, want.limit)
		}
		now := at.Add(time.Duration(i+1) * time.Second)
		b.release(now, now.Add(time.Millisecond), loadTooSlow)
	}
	for range 200 {
		if _, err := b.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.release(at, at, loadFine)
	}
	if patience, _ := b.acquire(t.Context()); patience != 1 || shown.Load() != 16 {
		t.Errorf("after 200 successes: patience %v, limit %d; must be 1, 16", patience, shown.Load())
	}
}

func TestBudgetServesInOrderAndForgetsWhoLeft(t *testing.T) {
	var shown atomic.Int64
	b := newBudget(1, &shown)
	if _, err := b.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	order := make(chan int, 3)
	var all sync.WaitGroup
	leaving, leave := context.WithCancel(t.Context())
	for i := range 3 {
		all.Go(func() {
			ctx := t.Context()
			if i == 1 {
				ctx = leaving
			}
			if _, err := b.acquire(ctx); err != nil {
				return
			}
			order <- i
			b.release(time.Now(), time.Now(), loadFine)
		})
		for b.queued() <= i {
			time.Sleep(time.Millisecond)
		}
	}
	leave()
	for b.queued() != 2 {
		time.Sleep(time.Millisecond)
	}
	b.release(time.Now(), time.Now(), loadFine)
	all.Wait()
	close(order)
	var got []int
	for i := range order {
		got = append(got, i)
	}
	if len(got) != 2 || got[0] != 0 || got[1] != 2 {
		t.Errorf("served %v, must be 0, 2", got)
	}
	if b.running != 0 {
		t.Errorf("%d still run", b.running)
	}
}

func (b *budget) queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// issuer gives credentials that end, or an error.
type issuer struct {
	end    time.Time
	broken bool
	asked  int
}

func (i *issuer) Retrieve(context.Context) (aws.Credentials, error) {
	i.asked++
	if i.broken {
		return aws.Credentials{}, errors.New("the agent is away")
	}
	return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret", CanExpire: true, Expires: i.end}, nil
}

// Credentials that cannot be renewed are used to their end, and the issuer is not asked for
// each request meanwhile.
func TestCredentialsAreUsedToTheirEnd(t *testing.T) {
	i := &issuer{end: time.Now().Add(time.Hour)}
	k := &keeper{provider: i, counters: &Counters{}, found: time.Now()}
	for range 3 {
		if _, err := k.Retrieve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if i.asked != 1 {
		t.Errorf("asked %d times, must be 1", i.asked)
	}
	if end := k.counters.CredentialsExpire(); end.Unix() != i.end.Unix() {
		t.Errorf("they end %v, must be %v", end, i.end)
	}
	k.current.Expires, k.asked, i.broken = time.Now().Add(credentialsRenewal-time.Second), time.Time{}, true
	for range 3 {
		if _, err := k.Retrieve(t.Context()); err != nil {
			t.Errorf("credentials that still hold: %v", err)
		}
	}
	if i.asked != 2 {
		t.Errorf("asked %d times, must be 2", i.asked)
	}
	k.current.Expires = time.Now().Add(-time.Second)
	if _, err := k.Retrieve(t.Context()); err == nil {
		t.Error("credentials were used beyond their end")
	}
	i.broken = false
	if _, err := k.Retrieve(t.Context()); err != nil {
		t.Errorf("after the agent is back: %v", err)
	}
}
