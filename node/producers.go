package node

import (
	"fmt"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// MaxProducersOfSession is how many session producers one session may use at once, so
// that one client cannot take all that a log keeps. A client needs one, and a second
// one only while it cannot go on with the first.
const MaxProducersOfSession = 16

// uses is what a session uses: the session producers that must not expire before it
// ends, and the named producers that it may append under. Each is there once, however
// often it was asked for.
type uses struct {
	producers map[stream.ProducerID]struct{}
	sessions  int // of those: session producers
}

// usesOf returns what s uses, to be added to.
func (l *loopState) usesOf(s *session.Session) *uses {
	u := l.uses[s]
	if u == nil {
		u = &uses{producers: make(map[stream.ProducerID]struct{})}
		l.uses[s] = u
	}
	return u
}

// drop forgets that s uses the producer.
func (l *loopState) drop(s *session.Session, id stream.ProducerID) {
	u := l.uses[s]
	if u == nil {
		return
	}
	delete(u.producers, id)
	if len(u.producers) == 0 {
		delete(l.uses, s)
	}
}

// openSession opens a session producer for s.
func (n *Node) openSession(s *session.Session, window uint32) (stream.ProducerInfo, error) {
	if err := n.loop.mayUseMore(s); err != nil {
		return stream.ProducerInfo{}, err
	}
	info, err := n.committer.OpenSessionProducer(window, randomID())
	if err == nil {
		n.loop.usesOf(s).addSession(info.ID)
	}
	return info, err
}

// attach makes s use a session producer, which is let go with s.
func (n *Node) attach(s *session.Session, id stream.ProducerID) (stream.ProducerInfo, error) {
	if u := n.loop.uses[s]; u != nil {
		if _, known := u.producers[id]; known {
			return n.committer.ProducerByID(id)
		}
	}
	info, err := n.committer.ProducerByID(id)
	if err != nil {
		return info, err
	}
	if err := n.loop.mayUseMore(s); err != nil {
		return stream.ProducerInfo{}, err
	}
	if info, err = n.committer.Attach(id); err == nil {
		n.loop.usesOf(s).addSession(id)
	}
	return info, err
}

func (u *uses) addSession(id stream.ProducerID) {
	u.producers[id] = struct{}{}
	u.sessions++
}

// mayUseMore refuses a session producer to a session that uses as many as it may.
func (l *loopState) mayUseMore(s *session.Session) error {
	u := l.uses[s]
	if u == nil || u.sessions < MaxProducersOfSession {
		return nil
	}
	return &wire.Error{Code: wire.CodeTooManyProducers, Known: wire.FlagActual, Actual: uint64(u.sessions),
		Message: fmt.Sprintf("session producers that this connection uses (limit %d)", MaxProducersOfSession),
		Hint:    "go on with one of those, or connect anew: they are let go when the connection ends"}
}

// drained is called when s has nothing for the loop: once it has gone, nothing more
// will come, and what it used is let go. Before, what it left behind could use more.
func (n *Node) drained(s *session.Session) {
	l := &n.loop
	if _, gone := l.gone[s]; !gone {
		return
	}
	delete(l.gone, s)
	u := l.uses[s]
	if u == nil {
		return
	}
	for id := range u.producers {
		if id.IsSession() {
			n.committer.Detach(id)
		} else {
			delete(l.named, id)
		}
	}
	delete(l.uses, s)
}
