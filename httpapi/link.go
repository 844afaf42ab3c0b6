package httpapi

import (
	"sync/atomic"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// message is what every message of package wire can do.
type message interface {
	AppendTo(dst []byte, request uint64) []byte
}

// answer is a message that is received.
type answer interface {
	Decode(h wire.Header, body []byte) error
}

// link is both ends of a session without a transport: it is the session's door, and the
// client that speaks through it. One goroutine uses it, sends and then receives; what is
// in flight stays so far below the session's limits that sending never waits for what
// has to be received first.
type link struct {
	session  *session.Session
	selector string // of the log
	welcome  wire.Welcome
	next     uint64      // id of the next request
	out      []byte      // the message being sent
	ended    *wire.Error // why the session has ended, nil while it goes on
	closed   atomic.Bool

	// What appends have learnt of names, see names.go.
	streams   map[string]uint64
	producers map[string]uint64
}

// maxKeptBytes is the largest buffer that a connection keeps from one request to the
// next.
const maxKeptBytes = 64 << 10

// openLink opens a session and introduces itself. shutdown ends the connection of the
// client. The error is a *wire.Error.
func openLink(host *session.Host, peer session.Peer, shutdown func(), selector, client string) (*link, error) {
	l := &link{selector: selector, next: 1, streams: map[string]uint64{}, producers: map[string]uint64{}}
	var err error
	l.session, err = host.New(peer, func() {
		// The watch of the host may come once more when the session has ended in good
		// order and the connection goes on with another one.
		if !l.closed.Load() {
			shutdown()
		}
	})
	if err != nil {
		return nil, err
	}
	if err := l.write(&wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Log: selector, Client: client}, 0); err != nil {
		l.close()
		return nil, err
	}
	for l.welcome.Version == 0 {
		err := l.receive(func(h wire.Header, body []byte) error {
			if h.Type != wire.TypeWelcome {
				return unexpected(h)
			}
			return l.welcome.Decode(h, body)
		})
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// close ends the session.
func (l *link) close() {
	l.closed.Store(true)
	l.session.Gone()
	l.session.Finish()
}

// idle tells the session that the client sends nothing at present.
func (l *link) idle() { _ = l.session.Received(0) } // an end is found by the next request

// send sends a request and returns its id. After an error, a *wire.Error, nothing of it
// was carried out.
func (l *link) send(m message) (request uint64, err error) {
	if err := l.write(m, l.next); err != nil {
		return 0, err
	}
	l.next++
	return l.next - 1, nil
}

// write passes a message to the session.
func (l *link) write(m message, request uint64) error {
	if l.ended != nil {
		return l.ended
	}
	l.out = m.AppendTo(l.out[:0], request)
	for rest := l.out; len(rest) > 0; {
		b, err := l.session.ReadBuffer()
		if err == nil {
			n := copy(b, rest)
			rest = rest[n:]
			err = l.session.Received(n)
		}
		if err != nil {
			return l.farewell()
		}
	}
	if cap(l.out) > maxKeptBytes {
		l.out = nil
	}
	return nil
}

// farewell finds out why the session has ended.
func (l *link) farewell() error {
	for l.ended == nil {
		_ = l.receive(func(wire.Header, []byte) error { return nil }) // sets ended at last
	}
	return l.ended
}

// receive waits for messages and calls visit with each; their bytes are not valid
// longer. An error of visit is returned when all were visited. At the end of the session
// it returns the reason as a *wire.Error.
func (l *link) receive(visit func(h wire.Header, body []byte) error) error {
	if l.ended != nil {
		return l.ended
	}
	first, second, err := l.session.NextWrite()
	if err != nil {
		l.ended = &wire.Error{Code: wire.CodeCancelled, Message: "the client has gone"}
		return l.ended
	}
	var failed error
	for _, b := range [2][]byte{first, second} {
		for len(b) > 0 {
			h, body, rest, _, err := wire.Message(b) // the session writes whole messages
			b = rest
			switch {
			case err != nil:
				b, failed = nil, err
			case h.Type == wire.TypeGoodbye:
				var bye wire.Goodbye
				if err := bye.Decode(h, body); err != nil {
					failed = err
				}
				l.ended = &wire.Error{Code: bye.Code, Message: bye.Message}
			default:
				if err := visit(h, body); err != nil && failed == nil {
					failed = err
				}
			}
		}
	}
	l.session.Written(nil)
	return failed
}

// ask sends a request that has one answer and decodes that into it. Byte slices of it
// are not valid. The error is a *wire.Error.
func (l *link) ask(m message, want wire.Type, into answer) error {
	return l.askFor(m, want, into.Decode)
}

// askFor is ask for an answer whose bytes have to be copied.
func (l *link) askFor(m message, want wire.Type, take func(h wire.Header, body []byte) error) error {
	request, err := l.send(m)
	if err != nil {
		return err
	}
	for answered := false; !answered; {
		err := l.receive(func(h wire.Header, body []byte) error {
			if h.Request != request {
				return unexpected(h)
			}
			answered = true
			switch h.Type {
			case want:
				return take(h, body)
			case wire.TypeError:
				e := new(wire.Error)
				if err := e.Decode(h, body); err != nil {
					return err
				}
				return e
			}
			return unexpected(h)
		})
		if err != nil {
			if answered {
				return err
			}
			l.confused(err)
			if !changes(m) {
				return err
			}
			return l.afterSending(err)
		}
	}
	return nil
}

// confused ends a link on which something came that is no answer: what comes next could
// not be told apart.
func (l *link) confused(err error) {
	if l.ended == nil {
		l.ended = &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
	}
}

// afterSending is the error of a request that got no answer before the session ended: it
// may have taken effect.
func (l *link) afterSending(err error) error {
	if l.ended == nil || l.ended.Code.Info().OutcomeUnknown {
		return err
	}
	return &wire.Error{Code: wire.CodeOutcomeUnknown, Message: "no answer before the session ended: " + l.ended.Error()}
}

// changes reports whether a request can change the log.
func changes(m message) bool {
	switch m := m.(type) {
	case *wire.StreamOpen:
		return m.Create
	case *wire.StreamStat, *wire.StreamList, *wire.ProducerGet, *wire.Status, *wire.Ping:
		return false
	}
	return true
}

func unexpected(h wire.Header) error {
	return &wire.Error{Code: wire.CodeInternal, Message: "the session sent " + h.Type.String() + " unasked"}
}
