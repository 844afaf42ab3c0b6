package session

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// Options of a Host. Log and Budget must be given.
type Options struct {
	// Log returns the log that a client selects by UUID or node name, "" being the
	// sidecar's own; nil where this process does not host it.
	Log func(selector string) Backend

	// Budget is what all sessions may use of memory.
	Budget *Budget

	// Server is the name and version that clients are told.
	Server string

	// Logger gets a line for every session that ends badly; nil: slog.Default().
	Logger *slog.Logger

	// Times, where they differ from the defaults.
	Times Times

	// Waiting says how a commit loop waits for messages in shared memory.
	Waiting shm.Waiting
}

// Host is what the sessions of one process share, over all doors. It is safe for
// concurrent use.
type Host struct {
	options Options
	times   Times
	rings   *Budget // the part of the budget that shared memory may take
	nextID  atomic.Uint64
	opened  atomic.Uint64
	ended   [len(endCodes)]atomic.Uint64
	quiet   atomic.Int64 // log lines of this second
	stop    chan struct{}
	done    chan struct{}

	mu       sync.Mutex
	sessions map[*Session]struct{}
	closed   bool
}

// endCodes are the reasons for which sessions end; others are counted as internal.
var endCodes = [...]wire.Code{
	wire.CodeOK, wire.CodeInternal, wire.CodeBadRequest, wire.CodeUnsupported, wire.CodeUnauthorized,
	wire.CodeWrongLog, wire.CodeTooManySessions, wire.CodeOutOfMemory, wire.CodeSlowClient,
	wire.CodeIdleClient, wire.CodeDraining, wire.CodeNotReady, wire.CodeFenced, wire.CodeLogFailed,
	wire.CodeReadOnly,
}

// NewHost returns a Host. Close ends it.
func NewHost(o Options) *Host {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	h := &Host{options: o, times: o.Times.or(), rings: NewBudget(o.Budget.Total() / 4 * 3), sessions: map[*Session]struct{}{}, stop: make(chan struct{}), done: make(chan struct{})}
	go h.watch()
	return h
}

// New returns a session for a client that connected. shutdown must make the
// door's blocked reads and writes return, from any goroutine, more than once.
// The error is a *wire.Error; the door sends its code in a Goodbye.
func (h *Host) New(peer Peer, shutdown func()) (*Session, error) {
	s := newSession(h, peer, shutdown)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, h.Refuse(peer, wire.CodeDraining, "the sidecar is shutting down")
	case len(h.sessions) >= MaxSessions:
		return nil, h.Refuse(peer, wire.CodeTooManySessions, fmt.Sprintf("%d clients are connected, which is the limit", MaxSessions))
	}
	h.sessions[s] = struct{}{}
	return s, nil
}

// Refuse counts and logs a client that a door turns away, and returns the error
// for its Goodbye.
func (h *Host) Refuse(peer Peer, code wire.Code, message string) *wire.Error {
	h.count(code)
	if h.mayLog() {
		h.options.Logger.Warn("client refused", "code", code.String(), "reason", message, "uid", peer.UID, "gid", peer.GID, "pid", peer.PID)
	}
	return &wire.Error{Code: code, Message: message}
}

// Goodbye ends all sessions with code, as [Session.Goodbye] does, and lets no
// new one in.
func (h *Host) Goodbye(code wire.Code, message string) {
	h.mu.Lock()
	h.closed = true
	all := h.list()
	h.mu.Unlock()
	for _, s := range all {
		s.Goodbye(code, message)
	}
}

// GoodbyeFrom ends the sessions of one log with code, as [Session.Goodbye] does, and returns
// when none is left that a door serves, or after the time for goodbyes. The log has to refuse
// new ones before.
func (h *Host) GoodbyeFrom(b Backend, code wire.Code, message string) {
	for until := time.Now().Add(h.times.Goodbye + 2*tick); time.Now().Before(until); time.Sleep(time.Millisecond) {
		h.mu.Lock()
		all := h.list()
		h.mu.Unlock()
		left := 0
		for _, s := range all {
			if s.on(b) {
				left++
				s.Goodbye(code, message)
			}
		}
		if left == 0 {
			return
		}
	}
}

// Close ends all sessions and the Host. It returns when no session is left that
// a door serves, or after the time for goodbyes.
func (h *Host) Close() {
	h.Goodbye(wire.CodeDraining, "the sidecar is shutting down")
	for until := time.Now().Add(h.times.Goodbye + 2*tick); h.Stats().Sessions > 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	close(h.stop)
	<-h.done
}

// Stats are numbers about all sessions.
type Stats struct {
	Sessions    int    // connected now
	Opened      uint64 // ever
	BudgetBytes int64
	BudgetUsed  int64
	RingBytes   int64 // of those used: shared memory
}

// Stats returns the numbers of this moment.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	n := len(h.sessions)
	h.mu.Unlock()
	return Stats{Sessions: n, Opened: h.opened.Load(), BudgetBytes: h.options.Budget.Total(), BudgetUsed: h.options.Budget.Used(), RingBytes: h.rings.Used()}
}

// Ended calls visit with each reason for which sessions end or were refused, and
// how many did so far. CodeOK counts clients that left by themselves.
func (h *Host) Ended(visit func(code wire.Code, n uint64)) {
	for i, code := range endCodes {
		visit(code, h.ended[i].Load())
	}
}

func (h *Host) count(code wire.Code) {
	for i := range endCodes {
		if endCodes[i] == code {
			h.ended[i].Add(1)
			return
		}
	}
	h.count(wire.CodeInternal)
}

// maxLogLines is how many lines about clients are logged in a second: clients
// must not be able to fill the log.
const maxLogLines = 20

func (h *Host) mayLog() bool { return h.quiet.Add(1) <= maxLogLines }

// list returns the sessions. Called with h.mu held.
func (h *Host) list() []*Session {
	all := make([]*Session, 0, len(h.sessions))
	for s := range h.sessions {
		all = append(all, s)
	}
	return all
}

// remove forgets a session that its door has finished with.
func (h *Host) remove(s *Session) {
	h.mu.Lock()
	delete(h.sessions, s)
	h.mu.Unlock()
}

// watch looks at all sessions now and then, so that no read or write needs a
// timer of its own.
func (h *Host) watch() {
	defer close(h.done)
	t := time.NewTicker(tick)
	defer t.Stop()
	second := time.Now()
	for {
		select {
		case <-h.stop:
			return
		case now := <-t.C:
			h.mu.Lock()
			all := h.list()
			h.mu.Unlock()
			for _, s := range all {
				s.look(now)
			}
			if now.Sub(second) >= time.Second {
				second = now
				if n := h.quiet.Swap(0) - maxLogLines; n > 0 {
					h.options.Logger.Warn("more lines about clients were left out", "lines", n)
				}
			}
		}
	}
}
