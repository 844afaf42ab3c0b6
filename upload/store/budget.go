package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// budget is how many requests of one class may run at once. It halves when the server asks
// for fewer, and grows by one per round of successes (additive increase, multiplicative
// decrease). Waiters are served in order.
//
// It also keeps how long requests may take. A store or a line that is merely slow would
// otherwise let every request of a full budget run into its timeout, for ever.
type budget struct {
	shown *atomic.Int64 // the limit, for metrics

	mu      sync.Mutex
	limit   float64
	most    float64
	running int
	waiting []chan struct{}
	cut     time.Time // when the limit was last halved
	// patience is what timeouts are multiplied with.
	patience float64
}

func newBudget(most int, shown *atomic.Int64) *budget {
	shown.Store(int64(most))
	return &budget{patience: 1, limit: float64(most), most: float64(most), shown: shown}
}

// mostPatience makes 20 s and 0.5 MB/s of the usual timeouts.
const mostPatience = 4

// acquire waits for its turn, and says what its timeout is multiplied with.
func (b *budget) acquire(ctx context.Context) (patience float64, err error) {
	b.mu.Lock()
	if b.running < int(b.limit) && len(b.waiting) == 0 {
		b.running++
		patience = b.patience
		b.mu.Unlock()
		return patience, nil
	}
	turn := make(chan struct{})
	b.waiting = append(b.waiting, turn)
	b.mu.Unlock()
	select {
	case <-turn:
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.patience, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == turn {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			return 0, ctx.Err()
		}
	}
	b.running-- // its turn came at the same moment: to the next
	b.wake()
	return 0, ctx.Err()
}

// verdict of one request on the load.
type load uint8

const (
	loadUnknown load = iota
	loadFine
	loadTooMuch
	loadTooSlow // it ran into its timeout
)

// release ends a request that began at began.
func (b *budget) release(began, now time.Time, l load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	switch {
	case l == loadFine:
		b.limit = min(b.most, b.limit+1/b.limit)
		b.patience = max(1, b.patience*patienceDecay)
	case l >= loadTooMuch && began.After(b.cut):
		// Requests that began before the last cut say nothing new.
		b.limit, b.cut = max(1, b.limit/2), now
		if l == loadTooSlow {
			b.patience = min(mostPatience, 2*b.patience)
		}
	}
	b.shown.Store(int64(b.limit))
	b.wake()
}

// patienceDecay per success takes a few dozen of them to forget a timeout: where every
// request is slow, few run into a timeout again.
const patienceDecay = 0.97

func (b *budget) wake() {
	for len(b.waiting) > 0 && b.running < int(b.limit) {
		close(b.waiting[0])
		b.waiting = b.waiting[1:]
		b.running++
	}
}
