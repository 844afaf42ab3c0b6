package node

import (
	"sync"

	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
)

// inbox is the only way to the commit loop: sessions that have requests, writes that
// ended, and functions to run there. A lock is held for a few appends to slices;
// one turn serves all that came before it.
type inbox struct {
	mu    sync.Mutex
	ready []*session.Session
	done  []*device.Write
	calls []func()
	ended bool // nobody takes anything any more
	turn  *turn
}

// putSession reports whether the loop, which is not rung, will see s: it may have ended.
func (b *inbox) putSession(s *session.Session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ready = append(b.ready, s)
	}
	return !b.ended
}

func (b *inbox) addWrites(writes []*device.Write) {
	b.mu.Lock()
	b.done = append(b.done, writes...)
	b.mu.Unlock()
	b.turn.ring()
}

// addCall has the loop call f, unless it has ended: who waits for f waits for that too.
func (b *inbox) addCall(f func()) {
	b.mu.Lock()
	if !b.ended {
		b.calls = append(b.calls, f)
	}
	b.mu.Unlock()
	b.turn.ring()
}

// take moves everything into the given slices, which are reused.
func (b *inbox) take(ready []*session.Session, done []*device.Write, calls []func()) ([]*session.Session, []*device.Write, []func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ready, done, calls = append(ready, b.ready...), append(done, b.done...), append(calls, b.calls...)
	clear(b.ready)
	clear(b.done)
	clear(b.calls)
	b.ready, b.done, b.calls = b.ready[:0], b.done[:0], b.calls[:0]
	return ready, done, calls
}

// end returns the sessions that nobody has taken. Nothing is put in any more.
func (b *inbox) end() (ready []*session.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, ready, b.ready = true, b.ready, nil
	return ready
}
