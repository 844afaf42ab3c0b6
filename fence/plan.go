package fence

import (
	"fmt"
	"slices"
	"time"
)

// Margin is what the wait for late writes adds to L, for the difference between two
// clocks.
const Margin = time.Second

// LateWrites is T unless it is set: how long a write that was once accepted may take to
// reach the medium of a device that was not made to abort it. A start waits for so long
// where a superblock of a start that died may be on its way, and after a start that jumped,
// the window that was jumped over is not written before it has passed. It is more than the
// kernel's default for a SCSI command with all its retries (6 × 30 s).
const LateWrites = 5 * time.Minute

// Owner is what the newest superblock says about who ran the log last.
type Owner struct {
	Node       string
	Epoch      uint64        // 0: formatted, never started
	Key        Key           // its reservation key; 0: it had none
	Boot       [16]byte      // its kernel's boot id
	StallAfter time.Duration // L
	Clean      bool          // it closed in order
	// Unsettled says that the log still holds a window that was jumped over, by this owner or
	// one before: T may not have passed since that one was superseded.
	Unsettled bool
}

// Take says when the reservation of another attachment may be taken.
type Take uint8

const (
	// TakeNever refuses every reservation of another attachment.
	TakeNever Take = iota
	// TakeQuiet takes from an owner that closed in order or showed no sign of life over
	// the watch. It is for a start and a takeover without --force.
	TakeQuiet
	// TakeForced takes from whoever holds it, alive or not.
	TakeForced
)

// Situation is all that the next step depends on.
type Situation struct {
	Mode      Mode
	Me        Key      // of this start
	Boot      [16]byte // of this kernel
	Exclusive bool     // the device is open exclusively (or, a file, locked)
	Abort     bool     // preempt by preempt-and-abort
	Take      Take
	// LateWrites is T.
	LateWrites time.Duration
	Owner      Owner  // read again before every step
	Status     Status // read again before every step; only in ModePR

	// What this start has done so far.
	OwnerQuiet bool          // the owner in the superblock showed no sign of life over the watch
	NotHere    Key           // replacing this holder's key was refused: it holds through another attachment
	Quiet      Key           // this holder showed no sign of life over the watch
	Replaced   Key           // this attachment held under this key, which was replaced by Me
	Preempted  Key           // the last victim, whatever came of it
	Aborted    Key           // preempt-and-abort of this victim returned success
	Held       bool          // it has seen itself as holder
	HeldFor    time.Duration // since it first did
	MustWait   time.Duration // the longest wait that was found necessary, since it held
}

// Action is what a step does.
type Action string

// The actions, in their usual order.
const (
	ActReplace  Action = "replace"  // the key Step.Key by mine, which proves that this attachment held
	ActWatch    Action = "watch"    // the holder Step.Key, or where that is 0 the owner in the superblock, for signs of life
	ActRegister Action = "register" // my key
	ActReserve  Action = "reserve"  // what nobody holds
	ActPreempt  Action = "preempt"  // the holder Step.Key, and abort its writes where Step.Abort
	ActWait     Action = "wait"     // Step.For, until no write of an earlier owner can be acked there
	ActDone     Action = "done"     // held, and nothing is left to wait for
	ActRefuse   Action = "refuse"   // Step.Err
)

// Step is one step of the routine.
type Step struct {
	Action Action
	Key    Key           // of ActReplace, ActWatch and ActPreempt
	Abort  bool          // of ActPreempt
	For    time.Duration // of ActWait: what is left of the wait
	Late   bool          // of ActWait: until T has passed, and not L only
	Jump   bool          // of ActDone: the new epoch jumps W
	Err    error         // of ActRefuse
	Why    string        // of ActWait and ActDone, for people
}

// Plan gives the next step. It is "The wait" of the design: a start waits since it first
// saw itself as holder, and then jumps W. It waits T where a superblock may be on its way
// that could land on its own: where, with reservations, the key that it replaced or
// preempted is not the newest superblock's, or nobody held, or the owner is Unsettled. Else
// it waits L + Margin. It does neither where
//
//   - its own preempt-and-abort returned success in this run and the victim was the owner
//     in the newest superblock, or
//   - that owner ran under this same kernel boot, the device could be opened exclusively
//     and, where there are reservations, this very attachment held under that owner's key
//     and nobody was preempted: an ordinary restart, or
//   - the log is new (where there are reservations: and nobody held one), or a file.
//
// Every step can be carried out again, by this or by another start: the next one follows
// from what the device says.
func Plan(s Situation) Step {
	switch s.Mode {
	case ModeLock:
		return Step{Action: ActDone, Why: "a file under an exclusive lock"}
	case ModeAttach:
		if !s.Exclusive {
			return refuse(ErrNotExclusive)
		}
		return settle(s)
	}
	if !s.Exclusive {
		return refuse(ErrNotExclusive)
	}
	st := s.Status
	switch {
	case st.Type != NoReservation && st.Type != WriteExclusive:
		return refuse(fmt.Errorf("%w: %s, held by key %s; `walsidecar fence status` shows it", ErrForeign, st.Type, st.Holder))
	case st.Type == WriteExclusive && st.Holder == s.Me:
		return settle(s)
	case s.Held && st.Type == NoReservation:
		return refuse(fmt.Errorf("%w: nobody holds the reservation any more: a target reset, or `fence clear`; start again", ErrFenced))
	case s.Held:
		return refuse(fmt.Errorf("%w: key %s took the reservation from %s", ErrLostRace, st.Holder, s.Me))
	case st.Type == NoReservation && mayLive(s):
		return Step{Action: ActWatch}
	case st.Type == NoReservation && !st.Has(s.Me):
		return Step{Action: ActRegister}
	case st.Type == NoReservation:
		return Step{Action: ActReserve}
	case st.Holder.Node() != s.Me.Node(): // even where this attachment holds it
		return refuse(fmt.Errorf("%w: key %s is another node's; `walsidecar fence status` shows it", ErrForeign, st.Holder))
	case s.NotHere != st.Holder:
		return Step{Action: ActReplace, Key: st.Holder}
	}
	return takeFromAnother(s)
}

// Foresee gives the steps that a start would take if nobody else did anything and every
// command succeeded; the last one is ActDone or ActRefuse. It is for a dry run. here says
// whether this attachment is taken for the one that holds, which only ActReplace finds out.
func Foresee(s Situation, here bool) []Step {
	var steps []Step
	for {
		step := Plan(s)
		steps = append(steps, step)
		switch step.Action {
		case ActDone, ActRefuse:
			return steps
		case ActReplace:
			if !here {
				s.NotHere = step.Key
				continue
			}
			s.Replaced, s.Held = step.Key, true
			s.Status = Status{Keys: []Key{s.Me}, Holder: s.Me, Type: WriteExclusive}
		case ActWatch:
			s.Quiet, s.OwnerQuiet = step.Key, s.OwnerQuiet || step.Key == 0
		case ActRegister:
			s.Status.Keys = append(slices.Clone(s.Status.Keys), s.Me)
		case ActReserve:
			s.Held, s.Status.Holder, s.Status.Type = true, s.Me, WriteExclusive
		case ActPreempt:
			s.Preempted, s.Held, s.Status.Holder = step.Key, true, s.Me
			if step.Abort {
				s.Aborted = step.Key
			}
		case ActWait:
			s.HeldFor += step.For
			s.MustWait = s.HeldFor
		}
	}
}

// takeFromAnother plans for a reservation that another attachment holds.
func takeFromAnother(s Situation) Step {
	holder := s.Status.Holder
	closed := s.Owner.Clean && s.Owner.Key == holder
	switch {
	case s.Preempted != 0 && s.Preempted != holder:
		return refuse(fmt.Errorf("%w: key %s took the device from %s first", ErrLostRace, holder, s.Preempted))
	case s.Take == TakeNever:
		return refuse(fmt.Errorf("%w: key %s", ErrHeld, holder))
	case s.Take != TakeForced && !closed && s.Quiet != holder:
		return Step{Action: ActWatch, Key: holder}
	case !s.Status.Has(s.Me):
		return Step{Action: ActRegister}
	}
	return Step{Action: ActPreempt, Key: holder, Abort: s.Abort}
}

// mayLive reports whether the owner in the newest superblock may be running on another
// host that no reservation tells of.
func mayLive(s Situation) bool {
	return s.Owner.Epoch != 0 && s.Owner.Boot != s.Boot && !s.Owner.Clean && !s.OwnerQuiet && s.Take != TakeForced
}

// settle plans for a start that holds the fence: wait or go on.
func settle(s Situation) Step {
	if why := ordinary(s); why != "" && s.MustWait == 0 {
		return Step{Action: ActDone, Why: why}
	}
	if s.Mode == ModeAttach && mayLive(s) {
		return Step{Action: ActWatch} // the time counts for the wait
	}
	untilFailed := s.Owner.StallAfter + Margin
	wait, why := max(untilFailed, s.MustWait), "a write of an earlier owner may still be on its way"
	if unseen := unseen(s); unseen != "" {
		wait = max(wait, s.LateWrites)
		why = unseen
	}
	if s.HeldFor < wait {
		return Step{Action: ActWait, For: wait - s.HeldFor, Late: wait > untilFailed, Why: why}
	}
	if wait > untilFailed {
		return Step{Action: ActDone, Jump: true, Why: "no write of an earlier owner can land any more"}
	}
	return Step{Action: ActDone, Jump: true, Why: "no earlier owner counts a write any more; one that still lands hits the window that is jumped over"}
}

// unseen says why a superblock may be on its way that would land where this start writes its
// own; "" where none can be. A start writes where the newest owner did not, so that the
// superblocks of that one do no harm, but those of two kinds do: of a start that died before
// any of its superblocks had landed, which this one would follow in the same place and with
// the same epoch, and of the owner before the newest one.
//
// A start that died is known by its key alone, and only while it holds. Without reservations
// there is nothing to know it by: there it is relied on that what a host had on its way when
// its attachment or its kernel ended lands within L + Margin, or never.
func unseen(s Situation) string {
	from := s.Replaced
	if s.Preempted != 0 {
		from = s.Preempted
	}
	switch {
	case s.Mode == ModeAttach:
		return ""
	case from == 0:
		return "nobody held the device, so that nothing tells of a start that died: its superblock may still be on its way"
	case from != s.Owner.Key:
		return fmt.Sprintf("key %s is not the newest superblock's: it is that of a start that died, whose superblock may still be on its way", from)
	case s.Owner.Unsettled:
		return "the log changed hands not long ago: a superblock of the owner before the last one may still be on its way"
	}
	return ""
}

// ordinary says why no write of an earlier owner can be on its way; "" where one can.
//
// The keys are compared with the newest superblock's on purpose. A start that took the
// device and died before its superblock leaves a key that is in no superblock; the writes
// that it had to wait for, the next one must wait for too.
func ordinary(s Situation) string {
	sameBoot := s.Owner.Boot == s.Boot && s.Owner.Epoch != 0
	switch {
	case s.Mode == ModeAttach && s.Owner.Epoch == 0:
		return "a new log"
	case s.Mode == ModeAttach && sameBoot:
		return "the last owner ran under this kernel, and is gone"
	case s.Mode == ModeAttach:
		return ""
	case s.Owner.Epoch == 0 && s.Replaced == 0 && s.Preempted == 0:
		return "a new log that nobody held"
	case s.Aborted != 0 && s.Aborted == s.Owner.Key:
		return "the last owner's writes were aborted"
	case s.Replaced != 0 && s.Replaced == s.Owner.Key && s.Preempted == 0 && sameBoot:
		return "the last owner ran under this kernel with this attachment, and is gone"
	}
	return ""
}

func refuse(err error) Step { return Step{Action: ActRefuse, Err: err} }
