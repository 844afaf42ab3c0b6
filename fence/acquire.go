package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// HeartbeatEvery is how often a start that waits or recovers registers its key anew,
	// and how often a watch looks for signs of life.
	HeartbeatEvery = time.Second

	// QuietBeats is how many heartbeats in a row an owner must show no sign of life before
	// its device is taken without an operator.
	QuietBeats = 5

	// maxTries is how often a step that a rival spoiled is planned anew.
	maxTries = 8
)

// Request says for whom to acquire a fence.
type Request struct {
	Key       Key      // of this start: KeyOf(node, incarnation)
	Boot      [16]byte // of this kernel
	Exclusive bool     // the device is open exclusively (a file: locked)
	Abort     bool     // preempt by preempt-and-abort: see Preempt
	Take      Take     // when a reservation of another attachment may be taken

	LateWrites time.Duration // T; 0: LateWrites

	// Newest reads the superblocks and checks that the log is the right one; it is
	// called before the first change and then before every step.
	Newest func(context.Context) (Owner, error)

	// Progress is a number that stays the same only while the log's owner writes
	// nothing: of the newest superblock's sequence and the frames after its durable
	// position, say. nil: only the reservation's generation shows life.
	Progress func(context.Context) (uint64, error)

	Clock Clock

	// Before is called before each step and can end the acquisition by an error, which is
	// returned as it is. nil: nothing is told.
	Before func(Step) error
}

// Taken is a step that was carried out.
type Taken struct {
	Action Action        `json:"action"`
	Key    Key           `json:"key,omitempty"`
	Took   time.Duration `json:"took_ns"`
	Err    error         `json:"-"` // what it came to, where the routine went on all the same
}

// Outcome is what Acquire did and what the new epoch owes.
type Outcome struct {
	Mode     Mode
	Key      Key
	Jump     bool          // the new epoch jumps W, and does not write the window that it jumped over before T has passed
	Why      string        // why it jumps, or need not
	Waited   time.Duration // from the first look as holder to the end
	Owner    Owner         // whom the decision was about; superblocks that name another one later call for Acquire again
	Replaced Key           // this attachment held under this key
	Victim   Key           // it was preempted
	Aborted  bool          // with all its writes
	Steps    []Taken
}

// Acquire carries out the fencing part of a start or a takeover: it registers, reserves or
// preempts, verifies each step by reading the device's state back, and waits where Plan
// says so. On success this attachment is the holder (ModePR) and no write of an earlier
// owner can do harm, provided that the new epoch does what Outcome says.
//
// An error leaves the device in a state from which Acquire can be called again, here or on
// another host. Errors match ErrHeld, ErrLostRace, ErrFenced, ErrForeign, ErrNotExclusive,
// ErrPermission, ErrUnanswered, ErrNotVerified, or are those of Newest, Progress and Before.
// A registration that came to nothing is taken back where that is possible, and a
// reservation that was this attachment's goes back to the owner's key; none is released.
func Acquire(ctx context.Context, f *Fence, r Request) (Outcome, error) {
	a := &acquisition{f: f, r: r, began: r.Clock.Now()}
	a.s = Situation{Mode: f.Mode(), Me: r.Key, Boot: r.Boot, Exclusive: r.Exclusive, Abort: r.Abort, Take: r.Take, LateWrites: cmp.Or(r.LateWrites, LateWrites)}
	err := a.run(ctx)
	if err != nil && !errors.Is(err, ErrUnanswered) {
		if a.registered {
			a.withdraw()
		}
		_ = HandBack(f, Outcome{Key: r.Key, Owner: a.s.Owner, Replaced: a.s.Replaced, Victim: a.s.Preempted}) // best effort
	}
	return a.out, err
}

// HandBack ends a start that came to nothing: its process has written nothing to the device,
// not even a superblock, and does not go on. Where o tells that this attachment held under
// the key of the log's owner, it holds under that key again, so that the next start is not
// taken for one behind a start that died. Anything else is left as it is, since a
// reservation that was taken from another attachment must not look like that one's. Errors
// are those of Replace.
func HandBack(f *Fence, o Outcome) error {
	if o.Replaced == 0 || o.Replaced != o.Owner.Key || o.Victim != 0 {
		return nil
	}
	return f.Replace(o.Key, o.Replaced)
}

// withdraw takes a registration back that came to nothing; without it nobody is kept out
// either. A holder's is left: its reservation would go with it.
func (a *acquisition) withdraw() {
	if st, err := a.f.Read(); err == nil && st.Has(a.s.Me) && st.Holder != a.s.Me {
		_ = a.f.Withdraw(a.s.Me) // best effort
	}
}

type acquisition struct {
	f          *Fence
	r          Request
	s          Situation
	out        Outcome
	began      time.Duration
	heldSince  time.Duration
	registered bool
	spoiled    int // steps that a rival spoiled
}

func (a *acquisition) run(ctx context.Context) error {
	a.out.Mode, a.out.Key = a.s.Mode, a.s.Me
	for {
		if err := a.look(ctx); err != nil {
			return err
		}
		step := Plan(a.s)
		if step.Action == ActRefuse {
			return step.Err
		}
		if a.r.Before != nil {
			if err := a.r.Before(step); err != nil {
				return err
			}
		}
		if step.Action == ActDone {
			a.finish(step)
			return nil
		}
		from := a.r.Clock.Now()
		err := a.do(ctx, step)
		a.note(step, a.r.Clock.Now()-from, err)
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotVerified) && !errors.Is(err, ErrFailed) {
			return err
		}
		// Refused, changed at once by another, or unknown: what to do follows from the state.
		if a.spoiled++; a.spoiled > maxTries {
			return fmt.Errorf("%w; tried %d times", err, a.spoiled)
		}
	}
}

// look reads everything that the next step depends on.
func (a *acquisition) look(ctx context.Context) (err error) {
	if a.s.Owner, err = a.r.Newest(ctx); err != nil {
		return err
	}
	if a.s.Status, err = a.f.Read(); err != nil {
		return err
	}
	now := a.r.Clock.Now()
	switch {
	case a.s.Mode != ModePR:
		a.s.HeldFor = now - a.began
	case a.s.Held:
		a.s.HeldFor = now - a.heldSince
	case a.s.Status.Type == WriteExclusive && a.s.Status.Holder == a.s.Me:
		a.s.Held, a.heldSince = true, now
	}
	return nil
}

func (a *acquisition) do(ctx context.Context, step Step) error {
	f, me := a.f, a.s.Me
	switch step.Action {
	case ActReplace:
		err := f.Replace(step.Key, me)
		switch {
		case err == nil:
			a.s.Replaced, a.out.Replaced = step.Key, step.Key
		case errors.Is(err, ErrConflict):
			a.s.NotHere = step.Key
			return nil
		}
		return err
	case ActWatch:
		return a.watch(ctx, step.Key)
	case ActRegister:
		a.registered = true
		return f.Register(me)
	case ActReserve:
		return f.Reserve(me)
	case ActPreempt:
		a.s.Preempted, a.out.Victim = step.Key, step.Key
		err := f.Preempt(me, step.Key, step.Abort)
		if err == nil && step.Abort {
			a.s.Aborted, a.out.Aborted = step.Key, true
		}
		if errors.Is(err, ErrUnanswered) && step.Abort {
			return fmt.Errorf("%w: this target may not be able to abort: WALSIDECAR_PREEMPT=plain preempts without, and waits", err)
		}
		return err
	case ActWait:
		return a.wait(ctx, step.For)
	}
	panic("fence: no such action: " + string(step.Action))
}

// wait waits for at most one heartbeat, so that the state is looked at again, and lets
// others see that somebody is at work.
func (a *acquisition) wait(ctx context.Context, left time.Duration) error {
	a.s.MustWait = a.s.HeldFor + left
	if err := a.r.Clock.Sleep(ctx, min(left, HeartbeatEvery)); err != nil {
		return err
	}
	if a.s.Mode != ModePR {
		return nil
	}
	return a.f.Replace(a.s.Me, a.s.Me)
}

// watch looks for signs of life of the holder, or, where holder is 0, of the owner in the
// superblock: its writes, and heartbeats of whoever is starting. It ends at the first one.
func (a *acquisition) watch(ctx context.Context, holder Key) error {
	before, err := a.life(ctx)
	if err != nil {
		return err
	}
	if before.holder != holder {
		return fmt.Errorf("%w: the holder is now %s", ErrConflict, before.holder)
	}
	for range QuietBeats {
		if err := a.r.Clock.Sleep(ctx, HeartbeatEvery); err != nil {
			return err
		}
		now, err := a.life(ctx)
		if err != nil {
			return err
		}
		switch {
		case now.holder != before.holder:
			return fmt.Errorf("%w: key %s took the device from %s", ErrLostRace, now.holder, before.holder)
		case now != before && holder == 0:
			return fmt.Errorf("%w: the log's owner, epoch %d, is at work elsewhere", ErrHeld, a.s.Owner.Epoch)
		case now != before:
			return fmt.Errorf("%w: key %s, and it is alive: it made progress within %s", ErrHeld, holder, QuietBeats*HeartbeatEvery)
		}
	}
	if a.s.Quiet = holder; holder == 0 {
		a.s.OwnerQuiet = true
	}
	return nil
}

// life is all that a living owner changes.
type life struct {
	holder     Key
	generation uint32
	progress   uint64
}

func (a *acquisition) life(ctx context.Context) (l life, err error) {
	st, err := a.f.Read()
	if err != nil {
		return l, err
	}
	l.holder, l.generation = st.Holder, st.Generation
	if a.r.Progress != nil {
		l.progress, err = a.r.Progress(ctx)
	}
	return l, err
}

func (a *acquisition) finish(step Step) {
	a.out.Jump, a.out.Why, a.out.Owner = step.Jump, step.Why, a.s.Owner
	if step.Jump {
		a.out.Waited = a.s.HeldFor
	}
}

// note keeps what was done; the heartbeats of a wait are one step.
func (a *acquisition) note(step Step, took time.Duration, err error) {
	if last := len(a.out.Steps) - 1; last >= 0 && step.Action == ActWait && a.out.Steps[last].Action == ActWait {
		a.out.Steps[last].Took += took
		a.out.Steps[last].Err = err
		return
	}
	a.out.Steps = append(a.out.Steps, Taken{Action: step.Action, Key: step.Key, Took: took, Err: err})
}
