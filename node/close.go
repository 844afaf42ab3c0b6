package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// stopPatience is how long Close waits for writes that are stuck in the kernel.
const stopPatience = 2 * time.Second

// closing is a shutdown under way, in the loop.
type closing struct {
	done   chan error // hears that the clean superblock is in force, or why it never will be; nil: only drain
	sealed bool
	clean  bool // the clean superblock was asked for
	told   bool
}

// Drain refuses new appends and commands, answers what was taken, and returns when
// all of it is durable. The reason why the log stopped before, or ctx's error.
func (n *Node) Drain(ctx context.Context) error {
	n.draining.Store(true)
	done := make(chan error, 1)
	n.inbox.addCall(func() {
		if n.loop.closing == nil {
			n.loop.closing = &closing{}
		}
	})
	for {
		n.inbox.addCall(func() {
			if err := n.wal.Err(); err != nil || (n.loop.answers.len() == 0 && n.loop.chunk == nil && len(n.loop.ready) == 0) {
				done <- err
			} else {
				done <- errBusy
			}
		})
		select {
		case err := <-done:
			if !errors.Is(err, errBusy) {
				return err
			}
		case <-n.stopped:
			return n.wal.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errBusy = errors.New("busy")

// Close drains, seals, writes a clean superblock and gives the device back. A log
// that has stopped is given back as it is. ctx bounds the wait for the device.
func (n *Node) Close(ctx context.Context) error {
	err := n.Drain(ctx)
	if err == nil {
		clean := make(chan error, 1)
		n.inbox.addCall(func() { n.loop.closing.done = clean })
		select {
		case err = <-clean:
		case <-ctx.Done():
			err = fmt.Errorf("the log was not closed cleanly: %w", ctx.Err())
		}
	}
	return n.giveBack(err)
}

// Abandon gives the device back as a crash would leave it, for the next start to recover.
// What the fence holds stays held.
func (n *Node) Abandon() error { return n.giveBack(nil) }

// giveBack ends the log and gives the device back; why it was not closed in order is err.
func (n *Node) giveBack(err error) error {
	n.inbox.addCall(func() { n.loop.quit = true })
	patience, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	for _, ended := range []chan struct{}{n.stopped, n.superEnd} {
		select {
		case <-ended:
		case <-patience.Done(): // stuck in the kernel
		}
	}
	n.reader.Fail(reader.ErrClosed)
	n.stopUploads()
	if err := n.releaseFence(); err != nil {
		n.log.Warn("end the use of the fence", "error", err)
	}
	if stuck := n.writers.Stop(stopPatience); len(stuck) > 0 {
		// The kernel may still read their memory: it stays.
		return errors.Join(err, fmt.Errorf("%d writes are stuck in the kernel", len(stuck)), n.dev.Close())
	}
	select {
	case <-n.stopped:
		n.tail.Empty()
	default: // the loop builds frames there, maybe
	}
	return errors.Join(err, n.dev.Close())
}

// finished does the last steps of a shutdown and reports that the loop may end.
func (n *Node) finished() bool {
	l := &n.loop
	if l.quit {
		n.leaveSessions()
		close(n.super)
		return true
	}
	c := l.closing
	if c == nil || c.done == nil || c.told {
		return false
	}
	if err := n.wal.Err(); err != nil {
		c.told = true
		c.done <- err
		return false
	}
	if !c.sealed {
		c.sealed = true
		n.wal.Seal(l.nowNS)
		n.issue()
	}
	if !c.clean && n.wal.InFlight() == 0 && n.wal.SuperblockInForce() && !l.superBusy {
		if err := n.wal.MarkClean(); err == nil || !errors.Is(err, ringwal.ErrWait) {
			c.clean = true
		}
	}
	if c.clean && !l.superBusy {
		if offset, b, ok := n.wal.NextSuperblock(l.nowNS); ok {
			l.superBusy = true
			n.super <- superblockJob{offset: offset, bytes: b}
		} else if n.wal.SuperblockInForce() {
			c.told = true
			c.done <- nil
		}
	}
	return false
}

// leaveSessions lets go of the sessions, in the loop's last round: the process, and what their
// clients take of its memory, may outlive the log.
func (n *Node) leaveSessions() {
	l := &n.loop
	if l.chunk != nil {
		l.chunk.Release()
		l.chunk = nil
	}
	for _, s := range append(l.ready, n.inbox.end()...) {
		n.tellEnd(s)
	}
	l.ready = nil
	for ; l.answers.head < l.answers.tail; l.answers.head++ { // these wait for what nobody sees
		a := &l.answers.ring[l.answers.head&uint64(len(l.answers.ring)-1)]
		n.tellEnd(a.session)
	}
}

// tellEnd tells a session that the commit loop has ended.
func (n *Node) tellEnd(s *session.Session) {
	if e := n.refusing.Load(); e != nil {
		s.LogEnded(e.Code, e.Message)
		return
	}
	s.LogEnded(wire.CodeDraining, "the log is not served here any more")
}

// stopError is what clients are told once the log takes nothing more.
func (n *Node) stopError() *wire.Error {
	e := new(wire.Error)
	session.FillError(e, n.wal.Err())
	if info := e.Code.Info(); !info.OutcomeUnknown {
		// Rot that a trim met, say: what is in flight may be in the log all the same.
		e.Code, e.Hint = wire.CodeLogFailed, info.Hint
	}
	return e
}
