package session_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/walsidecar/walsidecar/session"
)

// What is put before Claim or Ring is found by the loop, which never runs twice at once,
// whoever runs it.
func TestTurnLosesNothingAndIsHeldByOne(t *testing.T) {
	const guests, each = 8, 2000
	own := make(chan struct{}, 1)
	turn := session.NewTurn(func() { own <- struct{}{} })
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
			if turn.Done() {
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
					turn.Ring()
				} else if turn.Claim() && !run(2) {
					turn.HandOver()
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
