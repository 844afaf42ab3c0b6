package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/wire"
)

// beatEvery is how often the owner of a block device writes a superblock as a sign of
// life: well within the time after which it is taken for dead.
const beatEvery = fence.QuietBeats * fence.HeartbeatEvery / 3

// PreemptBy is how a reservation is taken from an earlier owner.
type PreemptBy string

// The ways to preempt.
const (
	PreemptAuto  PreemptBy = "auto" // abort on NVMe; on SCSI, where an abort may never return, plain
	PreemptAbort PreemptBy = "abort"
	PreemptPlain PreemptBy = "plain"
)

// Fencing says how the device is fenced. The zero value: by reservations where the device
// has them and keeps them through a power loss, taken from an owner that is not alive.
type Fencing struct {
	Wish           fence.Wish
	AcceptVolatile bool
	Preempt        PreemptBy
	Forced         bool // take it from an owner that is alive, too
	// LateWrites is T: how long a write that the device has accepted, and that nobody aborted,
	// may take to land; 0: fence.LateWrites.
	LateWrites time.Duration
	// Replaces is the owner whose log is to be taken over, as it was seen before: an owner that
	// came since was faster. nil: whoever it is.
	Replaces *fence.Owner
}

// fenced is the hold of this start on its device.
type fenced struct {
	fence       *fence.Fence
	incarnation [16]byte
	key         fence.Key // 0: without reservations
	outcome     fence.Outcome

	wrote   bool         // a superblock of this start may be on its way, or there
	beating func() error // ends the beats of a start; the fence's loss during it. Once; nil: none
	watch   context.CancelFunc
	ended   chan struct{} // the watch has
}

// acquireFence makes sure that no earlier owner can write any more, nor that a write of
// one can do harm, and draws this start's incarnation. Until the first frame it goes on
// to tell other hosts that somebody is at work.
func (n *Node) acquireFence(ctx context.Context, sb *ringwal.Superblock) error {
	f, err := n.openFence()
	if err != nil {
		return err
	}
	return n.acquire(ctx, f, sb)
}

// openFence finds out how the device is fenced. It changes nothing.
func (n *Node) openFence() (*fence.Fence, error) {
	if n.cfg.seams.fence != nil {
		return n.cfg.seams.fence(), nil
	}
	path, err := filepath.EvalSymlinks(n.cfg.Path)
	if err != nil {
		return nil, err
	}
	return fence.Open(path, fence.OpenOptions{Wish: n.cfg.Fencing.Wish, AcceptVolatile: n.cfg.Fencing.AcceptVolatile})
}

// acquire is acquireFence with a fence that is open.
func (n *Node) acquire(ctx context.Context, f *fence.Fence, sb *ringwal.Superblock) error {
	h := &n.hold
	h.fence = f
	_, _ = rand.Read(h.incarnation[:]) // never fails
	if f.Mode() == fence.ModePR {
		h.key = fence.KeyOf(sb.Node, h.incarnation)
	}
	take := fence.TakeQuiet
	if n.cfg.Fencing.Forced {
		take = fence.TakeForced
	}
	var err error
	h.outcome, err = fence.Acquire(ctx, f, fence.Request{
		Key: h.key, Boot: n.boot, Exclusive: true, Abort: n.aborts(), Take: take, LateWrites: n.lateWrites(),
		Newest: n.owner, Progress: n.progress, Clock: fence.SystemClock{}, Before: n.tellStep,
	})
	n.start.waited = h.outcome.Waited
	if err != nil {
		return err
	}
	beats, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fence.Watch(beats, f, h.key, fence.SystemClock{}, true) }()
	h.beating = func() error {
		stop()
		return <-done
	}
	return nil
}

// aborts reports whether a preempt aborts the victim's writes.
func (n *Node) aborts() bool {
	return fence.PreemptByAbort(string(cmp.Or(n.cfg.Fencing.Preempt, PreemptAuto)), n.hold.fence.Capabilities())
}

// owner is what the newest superblock says about who ran the log last.
func (n *Node) owner(context.Context) (fence.Owner, error) {
	sbs, err := n.identify()
	if err != nil {
		return fence.Owner{}, err
	}
	o := ownerOf(sbs.Newest)
	if seen := n.cfg.Fencing.Replaces; seen != nil && (o.Epoch != seen.Epoch || o.Key != seen.Key) {
		return o, fmt.Errorf("%w: epoch %d, key %s, came after epoch %d, key %s", fence.ErrLostRace, o.Epoch, o.Key, seen.Epoch, seen.Key)
	}
	return o, nil
}

func ownerOf(sb *ringwal.Superblock) fence.Owner {
	_, unsettled := sb.Jumped()
	return fence.Owner{Node: sb.Node, Epoch: sb.Epoch, Key: fence.Key(sb.FenceKey), Boot: sb.BootID, StallAfter: sb.StallAfter, Clean: sb.Clean, Unsettled: unsettled}
}

// progress moves on with every sign of life on the device: an owner writes a superblock
// every beatEvery.
func (n *Node) progress(context.Context) (uint64, error) {
	sbs, err := n.identify()
	if err != nil {
		return 0, err
	}
	return sbs.Newest.Sequence, nil
}

// Wait is what a start waits for, and for how long.
type Wait struct {
	Until   time.Time `json:"until"`   // by this host's clock
	Setting string    `json:"setting"` // that says how long
	Why     string    `json:"why"`
}

// String says it in one line.
func (w Wait) String() string {
	return fmt.Sprintf("waiting until %s, by %s: %s", w.Until.Format(time.TimeOnly), w.Setting, w.Why)
}

// lateWritesSetting is how long T is.
const lateWritesSetting = "WALSIDECAR_LATE_WRITES"

// waitSetting names the setting that a wait goes by. L is what the log's last owner had.
func waitSetting(s fence.Step) string {
	if s.Late {
		return lateWritesSetting
	}
	return "WALSIDECAR_STALL"
}

// tellStep tells what the start is about to do, but for each single heartbeat of a wait.
func (n *Node) tellStep(s fence.Step) error {
	switch s.Action {
	case fence.ActWait:
		if n.start.waitsFor == s.Why {
			return nil
		}
		n.start.waitsFor = s.Why
		w := Wait{Until: time.Now().Add(s.For), Setting: waitSetting(s), Why: s.Why}
		n.log.Info("waiting until no write of an earlier owner can do harm", "seconds", math.Ceil(s.For.Seconds()), "until", w.Until.Format(time.TimeOnly), "setting", w.Setting, "why", w.Why)
		n.tellWait(&w)
	case fence.ActWatch:
		n.log.Info("looking for signs of life of the log's owner", "seconds", (fence.QuietBeats * fence.HeartbeatEvery).Seconds(), "key", s.Key.String())
	case fence.ActPreempt:
		n.log.Warn("taking the reservation from an earlier owner", "victim", s.Key.String(), "abort", s.Abort)
	case fence.ActDone:
		n.log.Info("the device is ours", "fence", string(n.hold.fence.Mode()), "key", n.hold.key.String(), "why", s.Why)
		n.tellWait(nil)
	}
	return nil
}

func (n *Node) tellWait(w *Wait) {
	if n.cfg.Waiting != nil {
		n.cfg.Waiting(w)
	}
}

// watchFence goes on to look whether the fence still holds; its loss stops the log.
func (n *Node) watchFence() error {
	h := &n.hold
	beating := h.beating
	h.beating = nil
	if err := beating(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.watch, h.ended = cancel, make(chan struct{})
	go func() {
		defer close(h.ended)
		if err := fence.Watch(ctx, h.fence, h.key, fence.SystemClock{}, false); err != nil {
			n.fenced(err)
		}
	}()
	return nil
}

// fenced stops the log: another host holds the device or has the manifest, or nobody can
// tell.
func (n *Node) fenced(cause error) {
	err := &wire.Error{Code: wire.CodeFenced, Message: cause.Error()}
	n.inbox.addCall(func() { n.wal.Fail(err) })
}

// releaseFence ends the use of the fence. What it holds stays held: a sleeping owner that
// wakes up, or a former one, stays shut out. A start that ends without having written gives
// its key back, where it can.
func (n *Node) releaseFence() error {
	h := &n.hold
	if h.fence == nil {
		return nil
	}
	var err error
	if h.watch != nil {
		h.watch()
		<-h.ended
	} else if h.beating != nil {
		err = h.beating()
	}
	if err == nil && !h.wrote {
		// Best effort: without it the next start takes this one for one that died, and waits.
		_ = fence.HandBack(h.fence, h.outcome)
	}
	return errors.Join(err, h.fence.Close())
}

// beat writes a superblock now and then, as a sign of life to other hosts.
func (n *Node) beat() {
	l := &n.loop
	if n.info.Kind != device.KindBlock {
		return // a file's owner is known by its lock
	}
	if l.nowNS >= l.beatNS {
		l.beatNS = l.nowNS + int64(beatEvery)
		n.wal.RecordDurable()
	}
	l.wakeAt(l.beatNS)
}

// holdOldWindow keeps the log from writing again, too soon, where a start has jumped over
// the window of an owner: a write that the device had accepted may still land there, on
// what was written since. It goes by the boundaries, not by what this start has done or how
// it is set: the jump may be that of an earlier start, and where writes were aborted, or a
// file's owner is gone, there is none. A trim to where the window begins would free it, so
// the last frame before it stays.
func (n *Node) holdOldWindow() {
	sb := n.wal.Superblock()
	b, jumped := sb.Jumped()
	if !jumped {
		return
	}
	at, found := n.reader.FrameBelow(b.FollowEnd)
	if !found {
		at = sb.Trim
	}
	n.loop.heldAt, n.loop.heldUntilNS = at, device.NowNS()+int64(n.lateWrites())
}

// lateWrites is T.
func (n *Node) lateWrites() time.Duration { return cmp.Or(n.cfg.Fencing.LateWrites, fence.LateWrites) }

// heldBack is how far the log may be trimmed while an old window must not be written.
func (n *Node) heldBack(target uint64) uint64 {
	if n.loop.heldUntilNS == 0 {
		return target
	}
	return min(target, n.loop.heldAt)
}

// giveUpOldWindow ends the hold in time: what it kept can be trimmed then.
func (n *Node) giveUpOldWindow() {
	l := &n.loop
	switch {
	case l.heldUntilNS == 0:
	case l.nowNS < l.heldUntilNS:
		l.wakeAt(l.heldUntilNS)
	default:
		l.heldUntilNS, l.trimWanted = 0, true
	}
}

// StatusFence tells what keeps others from writing.
type StatusFence struct {
	Mode   string `json:"mode"` // pr, attach, lock
	Key    string `json:"key,omitempty"`
	Why    string `json:"why,omitempty"` // why the start had to wait, or not
	Jumped bool   `json:"jumped,omitempty"`
	Victim string `json:"victim,omitempty"` // the key that it was taken from
	// Transport and PersistsThroughPower are what the device says of its reservations.
	Transport            string `json:"transport,omitempty"`
	PersistsThroughPower string `json:"persists_through_power,omitempty"`
	Incarnation          string `json:"incarnation"`
}

func (n *Node) fenceStatus() StatusFence {
	h := &n.hold
	s := StatusFence{Mode: string(h.fence.Mode()), Why: h.outcome.Why, Jumped: h.outcome.Jump, Incarnation: uuid.UUID(h.incarnation).String()}
	if h.key != 0 {
		c := h.fence.Capabilities()
		s.Key, s.Transport, s.PersistsThroughPower = h.key.String(), string(c.Transport), c.PersistsThroughPower.String()
	}
	if h.outcome.Victim != 0 {
		s.Victim = h.outcome.Victim.String()
	}
	return s
}

// sameOwner refuses superblocks that changed hands since the fence was acquired.
func (n *Node) sameOwner(sb *ringwal.Superblock) error {
	if o := n.hold.outcome.Owner; sb.Epoch != o.Epoch || fence.Key(sb.FenceKey) != o.Key {
		return fmt.Errorf("%w: a superblock of epoch %d landed after the fence was acquired, when it was %d: start again", fence.ErrLostRace, sb.Epoch, o.Epoch)
	}
	return nil
}
