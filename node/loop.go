package node

import (
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
)

// loopState is what only the commit loop touches.
type loopState struct {
	ready   []*session.Session // have chunks, in the order of their turn
	chunk   *session.Chunk     // the one whose next message waits for the log, nil when none does
	done    []*device.Write
	calls   []func()
	flush   []*session.Session // got answers since the last flush
	answers answers
	work    []*work // free

	uses    map[*session.Session]*uses
	named   map[stream.ProducerID]namedUse
	gone    map[*session.Session]struct{} // their clients have left; what they sent may still wait here
	request request

	lastFrameNS  int64           // CLOCK_BOOTTIME of the newest completion, for the seal
	sealed       bool            // nothing was written since the last try to seal
	superBusy    bool            // the superblock goroutine has a job
	trimWanted   bool            // look for something to trim
	freeUntil    uint64          // once durable there, a trim lets more of the log go
	checkpointAt uint64          // head when the newest checkpoint was asked for
	plan         stream.TrimPlan // the newest
	plannedAt    uint64          // head then
	plannedNS    int64           // CLOCK_BOOTTIME then
	failedTold   bool            // everybody was told that the log has stopped
	quit         bool            // the loop ends
	stall        ringwal.StallState
	closing      *closing
	beatNS       int64        // when the next superblock is due as a sign of life
	heldAt       uint64       // the log is not trimmed beyond it before heldUntilNS; see holdOldWindow
	heldUntilNS  int64        // 0: any more
	nowNS        int64        // CLOCK_BOOTTIME of this round: a system call, so asked for twice at most
	wakeAtNS     int64        // when the loop must look again without being rung, 0: never
	ended        bool         // the last round was run
	look         session.Look // at rings, before the loop sleeps
}

// work ties a device write to its frame; recycled.
type work struct {
	write device.Write
	frame *ringwal.Frame
}

// run starts the goroutines of the node.
func (n *Node) run() {
	n.loop.uses = make(map[*session.Session]*uses)
	n.loop.named = make(map[stream.ProducerID]namedUse)
	n.loop.gone = make(map[*session.Session]struct{})
	n.loop.trimWanted = true
	n.loop.lastFrameNS = device.NowNS()
	n.writers = device.NewWriters(n.dev, WritersInFlight, n.sleeper.listen, n.inbox.addWrites)
	n.startUploads()
	go n.superblocks()
	go n.commitLoop()
	n.inbox.turn.ring()
}

// commitLoop runs the commit loop whenever it is handed the turn, or something happened
// that nobody else takes care of, until the log ends.
func (n *Node) commitLoop() {
	defer close(n.stopped)
	defer n.sleeper.close()
	for {
		if !n.sleeper.sleep() && !n.inbox.turn.claim() {
			continue
		}
		for !n.rounds(ownRounds) {
			if n.loop.ended {
				return
			}
		}
	}
}

const (
	// guestRounds is how many rounds a goroutine runs that brought something to the loop:
	// it has work of its own to go back to.
	guestRounds = 2
	// ownRounds is the same of the loop's own goroutine, which has none.
	ownRounds = 1 << 20
)

// serve runs the commit loop for what the caller has just brought, unless somebody runs it
// already. The caller holds no lock.
func (n *Node) serve() {
	if n.inbox.turn.claim() && !n.rounds(guestRounds) {
		n.inbox.turn.handOver()
	}
}

// rounds is the one owner of the state, whichever goroutine has the turn. It runs rounds
// until there is nothing to do, and gives the turn back; false: it has it still, having
// run so many, or the log has ended: a guest may have run the last round.
func (n *Node) rounds(most int) bool {
	for i := 0; i < most && !n.loop.ended; i++ {
		if n.round() {
			continue
		}
		if most == ownRounds && n.wal.InFlight() == 0 {
			n.loop.look.Before(n.inbox.turn.rung) // a guest has other things to look at
		}
		if at := n.loop.wakeAtNS; at != 0 {
			n.sleeper.wakeAt(at, n.loop.nowNS)
		}
		if n.inbox.turn.done() {
			return true
		}
	}
	return false
}

// round takes what came in, completes, decides, issues and answers; none of it
// blocks. It reports whether the next round may find something to do without anything
// coming in.
func (n *Node) round() (again bool) {
	l := &n.loop
	l.ready, l.done, l.calls = n.inbox.take(l.ready, l.done, l.calls)
	l.nowNS = device.NowNS()
	idle := len(l.done) == 0 && len(l.calls) == 0
	l.wakeAtNS = 0
	n.runCalls()
	n.completeWrites()
	decided := n.decide()
	if decided {
		l.nowNS = device.NowNS()
	}
	n.publish()
	n.maintain()
	n.issue()
	n.flushSessions()
	l.ended = n.finished()
	return l.ended || !idle || decided
}

// wantTrim asks for a look at what can be trimmed, once position is durable.
func (l *loopState) wantTrim(position uint64) {
	l.trimWanted, l.freeUntil = true, max(l.freeUntil, position)
}

// wakeAt asks for a look at that time at the latest.
func (l *loopState) wakeAt(ns int64) {
	if l.wakeAtNS == 0 || ns < l.wakeAtNS {
		l.wakeAtNS = ns
	}
}

func (n *Node) runCalls() {
	for i, f := range n.loop.calls {
		f()
		n.loop.calls[i] = nil
	}
	n.loop.calls = n.loop.calls[:0]
}

func (n *Node) completeWrites() {
	l := &n.loop
	if len(l.done) == 0 {
		return
	}
	now := l.nowNS
	for i, w := range l.done {
		job := w.Owner.(*work)
		n.wal.Complete(job.frame, w.Err, now)
		n.pacer.Completed()
		job.frame = nil
		l.work = append(l.work, job)
		l.done[i] = nil
	}
	l.done = l.done[:0]
	l.lastFrameNS, l.sealed = now, false
}

// issue hands frames to the writers, as the pacer allows.
func (n *Node) issue() {
	l := &n.loop
	for {
		bytes := n.wal.OpenBytes() + n.wal.QueuedBytes()
		if n.wal.CheckpointUnderWay() {
			bytes += int(n.wal.Geometry().MaxFrameBytes) // its next part waits for us
		}
		if bytes == 0 {
			break
		}
		now := l.nowNS
		ready, wakeAt := n.pacer.Ready(now, n.wal.InFlight(), bytes, n.wal.NextBytes())
		if !ready {
			if wakeAt != 0 {
				l.wakeAt(wakeAt)
			}
			break
		}
		if n.wal.QueuedBytes() == 0 && !n.wal.CheckpointUnderWay() {
			n.wal.CloseFrame(now)
		}
		f := n.wal.Next(now)
		if f == nil {
			break
		}
		n.submit(f, now)
	}
	if n.wal.InFlight() > 0 {
		l.wakeAt(l.nowNS + int64(TickAfter))
	}
}

func (n *Node) submit(f *ringwal.Frame, now int64) {
	l := &n.loop
	var job *work
	if k := len(l.work); k > 0 {
		job, l.work = l.work[k-1], l.work[:k-1]
	} else {
		job = new(work)
		job.write.Owner = job
	}
	job.frame = f
	job.write.Buf, job.write.Offset, job.write.Err = f.Buf, f.Offset, nil
	n.pacer.Issued(now, len(f.Buf))
	n.stats.issued(f)
	if !n.writers.Submit(&job.write) {
		n.wal.Fail(fmt.Errorf("%w: frame at position %d: the writers did not take it", ringwal.ErrWriteFailed, f.Position))
	}
}

// publish shows what became durable: to readers first, then in the answers, so that
// whoever hears of a record can read it.
func (n *Node) publish() {
	l := &n.loop
	durable := n.wal.Durable()
	for f := n.wal.PopDurable(); f != nil; f = n.wal.PopDurable() {
		now := l.nowNS
		n.tail.Publish(f.End())
		if err := n.reader.Publish(&f.FrameHeader, frameBody(f)); err != nil {
			n.wal.Fail(err)
			break
		}
		if u := n.uploads; u != nil && f.Kind == ringwal.FrameData {
			u.dataEnd = f.End()
			u.records += uint64(f.Records)
		}
		n.stats.durable(f, now)
		n.stats.sample(now, f.End())
		l.answers.release(n, f.End(), f, now)
		n.wal.Release(f)
	}
	if n.wal.Err() == nil {
		l.answers.release(n, durable, nil, 0)
		n.advance()
	}
}

// frameBody is the used bytes of a frame of the write path.
func frameBody(f *ringwal.Frame) []byte {
	if f.Kind == ringwal.FramePad {
		return nil
	}
	return f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes]
}

func (n *Node) flushSessions() {
	alone := len(n.loop.flush) == 1
	for i, s := range n.loop.flush {
		s.Flush(alone)
		n.loop.flush[i] = nil
	}
	n.loop.flush = n.loop.flush[:0]
}

// answered notes that s has answers to be flushed.
func (l *loopState) answered(s *session.Session) {
	// Answers come in runs per session; a double flush costs little.
	if k := len(l.flush); k == 0 || l.flush[k-1] != s {
		l.flush = append(l.flush, s)
	}
}
