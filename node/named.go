package node

import (
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// A named producer is resumed by what its last sequence is, so two things must not
// happen behind its back. A connection that died may have left requests behind: they
// are refused once a newer session has opened the producer, so that the answer to
// ProducerOpen is exact. And an append that finds the log full uses nothing up: the
// ones in flight behind it must not overtake it, or its record would count as a
// duplicate when it comes again. Neither is part of the log: both concern sessions,
// and a restart ends all of them.

// namedUse is who uses a named producer.
type namedUse struct {
	session *session.Session // the newest that opened it
	refused uint64           // the lowest sequence that found the log full and did not come again; 0: none
}

// claim makes s the session that may append under the producer. One that has gone
// takes it from nobody: its claim is as old as its connection.
func (l *loopState) claim(id stream.ProducerID, s *session.Session) {
	if _, gone := l.gone[s]; gone && l.named[id].session != nil {
		return
	}
	l.unclaim(id)
	l.named[id] = namedUse{session: s}
	l.usesOf(s).producers[id] = struct{}{}
}

// unclaim lets go of the producer, whoever uses it.
func (l *loopState) unclaim(id stream.ProducerID) {
	if use, claimed := l.named[id]; claimed {
		delete(l.named, id)
		l.drop(use.session, id)
	}
}

// mayAppend refuses a batch of a named producer that another session has taken over,
// or that would overtake one that was refused.
func (n *Node) mayAppend(s *session.Session, b *stream.Batch) error {
	if b.Producer == 0 || b.Producer.IsSession() {
		return nil
	}
	use := n.loop.named[b.Producer]
	switch {
	case use.session == nil: // opened before the sidecar was started, or by a session that has ended
		if _, err := n.committer.ProducerByID(b.Producer); err != nil {
			return err // nothing is remembered of what does not exist
		}
		n.loop.claim(b.Producer, s)
	case use.session != s:
		return &wire.Error{Code: wire.CodeProducerExpired, Message: "a newer session has opened this named producer",
			Hint: "if this is the source that should go on, open the producer again and go on after its last sequence"}
	case use.refused != 0 && b.Sequence > use.refused:
		return &wire.Error{Code: wire.CodeOutOfSequence, Known: wire.FlagActual, Actual: use.refused,
			Message: "an earlier sequence of this named producer was refused, since the log was full",
			Hint:    "send the refused sequence again first, or open the producer again to leave it out"}
	}
	return nil
}

// passed notes that a batch of a named producer was decided, or refused by a full log.
func (l *loopState) passed(b *stream.Batch, full bool) {
	if b.Producer == 0 || b.Producer.IsSession() {
		return
	}
	use := l.named[b.Producer]
	switch {
	case full && (use.refused == 0 || b.Sequence < use.refused):
		use.refused = b.Sequence
	case !full && b.Sequence >= use.refused:
		use.refused = 0
	default:
		return
	}
	l.named[b.Producer] = use
}
