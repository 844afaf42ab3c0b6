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
	turn  *turn
}

func (b *inbox) putSession(s *session.Session) {
	b.mu.Lock()
	b.ready = append(b.ready, s)
	b.mu.Unlock()
}

func (b *inbox) addSession(s *session.Session) {
	b.putSession(s)
	b.turn.ring()
}

func (b *inbox) addWrites(writes []*device.Write) {
	b.mu.Lock()
	b.done = append(b.done, writes...)
	b.mu.Unlock()
	b.turn.ring()
}

func (b *inbox) addCall(f func()) {
	b.mu.Lock()
	b.calls = append(b.calls, f)
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
