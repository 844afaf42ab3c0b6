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
type budget struct {
	shown *atomic.Int64 // the limit, for metrics

	mu      sync.Mutex
	limit   float64
	most    float64
	running int
	waiting []chan struct{}
	cut     time.Time // when the limit was last halved
}

func newBudget(most int, shown *atomic.Int64) *budget {
	shown.Store(int64(most))
	return &budget{limit: float64(most), most: float64(most), shown: shown}
}

// acquire waits for its turn.
func (b *budget) acquire(ctx context.Context) error {
	b.mu.Lock()
	if b.running < int(b.limit) && len(b.waiting) == 0 {
		b.running++
		b.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	b.waiting = append(b.waiting, turn)
	b.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == turn {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			return ctx.Err()
		}
	}
	b.running-- // its turn came at the same moment: to the next
	b.wake()
	return ctx.Err()
}

// verdict of one request on the load.
type load uint8

const (
	loadUnknown load = iota
	loadFine
	loadTooMuch
)

// release ends a request that began at began.
func (b *budget) release(began, now time.Time, l load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	switch {
	case l == loadFine:
		b.limit = min(b.most, b.limit+1/b.limit)
	case l == loadTooMuch && began.After(b.cut):
		// Requests that began before the last cut say nothing new.
		b.limit, b.cut = max(1, b.limit/2), now
	}
	b.shown.Store(int64(b.limit))
	b.wake()
}

func (b *budget) wake() {
	for len(b.waiting) > 0 && b.running < int(b.limit) {
		close(b.waiting[0])
		b.waiting = b.waiting[1:]
		b.running++
	}
}
