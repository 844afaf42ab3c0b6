package node

import (
	"sync"

	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
)

// inbox is the only way to the commit loop: sessions that have requests, writes that
// ended, and functions to run there. A lock is held for a few appends to slices;
// one wake-up serves all that came before it.
type inbox struct {
	mu    sync.Mutex
	ready []*session.Session
	done  []*device.Write
	calls []func()
	bell  chan struct{} // capacity 1
}

func newInbox() inbox { return inbox{bell: make(chan struct{}, 1)} }

func (b *inbox) ring() {
	select {
	case b.bell <- struct{}{}:
	default:
	}
}

// rung reports whether something came since the loop slept last.
func (b *inbox) rung() bool { return len(b.bell) > 0 }

func (b *inbox) addSession(s *session.Session) {
	b.mu.Lock()
	b.ready = append(b.ready, s)
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) addWrite(w *device.Write) {
	b.mu.Lock()
	b.done = append(b.done, w)
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) addCall(f func()) {
	b.mu.Lock()
	b.calls = append(b.calls, f)
	b.mu.Unlock()
	b.ring()
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
