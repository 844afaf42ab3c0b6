package session

import (
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// Backend is one log as its sessions see it: a node.Node, or the null log of
// `bench --null` ([Null]). Its methods may be called from any goroutine.
type Backend interface {
	// Welcome tells what the log is: everything of wire.Welcome but the fields of
	// the connection (Version, Features, Session, MaxMessageBytes, MaxRequests,
	// MaxRequestBytes, MaxReads and the times), which the session fills in.
	Welcome() wire.Welcome

	// Ready says that s has chunks for the commit loop. It must not block; a
	// session that is queued already stays queued once. It can come after Closed, and after
	// the commit loop has ended: see Session.LogEnded.
	Ready(s *Session)

	// Serve is Ready for goroutines that have time and hold no lock: the commit loop may
	// run on them for a while.
	Serve(s *Session)

	// Listen calls heard at least once after each ring of the bell, also one that came
	// before, one call at a time, until forget has returned; for as long as heard returns it may be deaf.
	// heard does not block, and may call Ready.
	Listen(b *shm.Bell, heard func() (deaf time.Duration)) (forget func())

	// Reader serves durable reads; nil where the log has none.
	Reader() *reader.Reader

	// StatusJSON is the document of `walsidecar status --json`.
	StatusJSON() []byte

	// Opened announces a session before its Welcome. An error refuses it.
	Opened(s *Session) error

	// Closed says that the client has gone, after Opened succeeded. Chunks that
	// came before can still be popped; answers go nowhere.
	Closed(s *Session)
}

// Peer is the process at the other end, by SO_PEERCRED.
type Peer struct {
	PID      int32 // 0 where it is in another PID namespace
	UID, GID uint32
}

// Access says who may open a session.
type Access struct {
	UIDs []uint32
	GIDs []uint32
}

// Allows reports whether a process with the peer's user or primary group may
// open a session.
func (a Access) Allows(p Peer) bool {
	for _, uid := range a.UIDs {
		if uid == p.UID {
			return true
		}
	}
	for _, gid := range a.GIDs {
		if gid == p.GID {
			return true
		}
	}
	return false
}
