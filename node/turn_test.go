package node

import (
	"sync"
	"sync/atomic"
	"testing"
)

// What is put before claim or ring is found by the loop, which never runs twice at once,
// whoever runs it.
func TestTurnLosesNothingAndIsHeldByOne(t *testing.T) {
	const guests, each = 8, 2000
	own := make(chan struct{}, 1)
	turn := newTurn(func() { own <- struct{}{} })
	var put, found, running atomic.Int64
	all := make(chan struct{})
	run := func(most int) bool {
		for range most {
			if running.Add(1) != 1 {
				t.Error("two goroutines run the loop")
			}
			if n := put.Swap(0); n > 0 && found.Add(n) == guests*each {
				close(all)
			}
			running.Add(-1)
			if turn.done() {
				return true
			}
		}
		return false
	}
	go func() {
		for range own {
			for !run(1000) {
			}
		}
	}()
	var wait sync.WaitGroup
	for guest := range guests {
		wait.Go(func() {
			for i := range each {
				put.Add(1)
				if (guest+i)%2 == 0 {
					turn.ring()
				} else if turn.claim() && !run(2) {
					turn.handOver()
				}
			}
		})
	}
	wait.Wait()
	<-all
	if found.Load() != guests*each {
		t.Errorf("the loop found %d of %d", found.Load(), guests*each)
	}
}
