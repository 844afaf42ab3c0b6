package session

import (
	"fmt"
	"sync/atomic"
)

// Budget is a share of WALSIDECAR_MEMORY, in bytes. Memory that a client can make
// the process hold is taken from it first, or refused. It is safe for concurrent
// use.
type Budget struct {
	total int64
	used  atomic.Int64
}

// NewBudget returns a budget of so many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{total: bytes} }

// Take takes n bytes, or reports that they are not there.
func (b *Budget) Take(n int64) bool {
	for {
		used := b.used.Load()
		if used+n > b.total {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Give gives n bytes back.
func (b *Budget) Give(n int64) {
	if b.used.Add(-n) < 0 {
		panic(fmt.Sprintf("session: %d bytes given back that were never taken", n))
	}
}

// Used returns the bytes taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// Total returns the size of the budget.
func (b *Budget) Total() int64 { return b.total }
