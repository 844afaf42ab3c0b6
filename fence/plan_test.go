package fence

import (
	"errors"
	"strings"
	"testing"
	"time"
)

var (
	here, elsewhere = [16]byte{1}, [16]byte{2}
	mine            = KeyOf("n", [16]byte{0, 0, 0, 9})
	ownerKey        = KeyOf("n", [16]byte{0, 0, 0, 1})
	deadStart       = KeyOf("n", [16]byte{0, 0, 0, 5}) // took the device and died before its superblock
	rival           = KeyOf("n", [16]byte{0, 0, 0, 7})
	foreign         = KeyOf("other", [16]byte{0, 0, 0, 1})
)

const (
	stall = 10 * time.Second
	late  = 300 * time.Second // T
)

func owner(boot [16]byte) Owner {
	return Owner{Node: "n", Epoch: 3, Key: ownerKey, Boot: boot, StallAfter: stall}
}

// held is the status while k holds; others are registered too.
func held(k Key, others ...Key) Status {
	return Status{Generation: 4, Keys: append([]Key{k}, others...), Holder: k, Type: WriteExclusive}
}

func free(registered ...Key) Status { return Status{Generation: 4, Keys: registered} }

// base is a start with reservations, by abort, of a log whose owner ran elsewhere.
func base(st Status) Situation {
	return Situation{Mode: ModePR, Me: mine, Boot: here, Exclusive: true, Abort: true, Take: TakeQuiet, LateWrites: late, Owner: owner(elsewhere), Status: st}
}

func with(s Situation, change func(*Situation)) Situation {
	change(&s)
	return s
}

// The table of "The wait", from the design: what a start does next, for each thing it can
// find.
func TestPlanIsTheRoutineOfTheDesign(t *testing.T) {
	wait := func(left time.Duration) Step { return Step{Action: ActWait, For: left} }
	waitLate := func(left time.Duration) Step { return Step{Action: ActWait, For: left, Late: true} }
	goOn, jump := Step{Action: ActDone}, Step{Action: ActDone, Jump: true}
	for _, c := range []struct {
		name string
		s    Situation
		want Step
	}{
		// Getting hold of it.
		{"a new log, nobody registered", with(base(free()), func(s *Situation) { s.Owner = Owner{Node: "n", StallAfter: stall} }), Step{Action: ActRegister}},
		{"registered, nobody holds", with(base(free(mine)), func(s *Situation) { s.Owner = Owner{Node: "n", StallAfter: stall} }), Step{Action: ActReserve}},
		{"nobody holds, and the owner may live elsewhere", base(free()), Step{Action: ActWatch}},
		{"nobody holds, and the owner was quiet", with(base(free()), func(s *Situation) { s.OwnerQuiet = true }), Step{Action: ActRegister}},
		{"nobody holds, and the owner closed in order", with(base(free()), func(s *Situation) { s.Owner.Clean = true }), Step{Action: ActRegister}},
		{"nobody holds, and the owner ran here", with(base(free()), func(s *Situation) { s.Owner.Boot = here }), Step{Action: ActRegister}},
		{"nobody holds, by force", with(base(free()), func(s *Situation) { s.Take = TakeForced }), Step{Action: ActRegister}},
		{"held: perhaps through this attachment", base(held(ownerKey)), Step{Action: ActReplace, Key: ownerKey}},
		{"held through another, life unknown", with(base(held(ownerKey)), func(s *Situation) { s.NotHere = ownerKey }), Step{Action: ActWatch, Key: ownerKey}},
		{"held through another, quiet", with(base(held(ownerKey)), func(s *Situation) { s.NotHere, s.Quiet = ownerKey, ownerKey }), Step{Action: ActRegister}},
		{"held through another, quiet, registered", with(base(held(ownerKey, mine)), func(s *Situation) { s.NotHere, s.Quiet = ownerKey, ownerKey }),
			Step{Action: ActPreempt, Key: ownerKey, Abort: true}},
		{"the same without abort", with(base(held(ownerKey, mine)), func(s *Situation) { s.NotHere, s.Quiet, s.Abort = ownerKey, ownerKey, false }),
			Step{Action: ActPreempt, Key: ownerKey}},
		{"held through another that closed in order", with(base(held(ownerKey, mine)), func(s *Situation) { s.NotHere, s.Owner.Clean = ownerKey, true }),
			Step{Action: ActPreempt, Key: ownerKey, Abort: true}},
		{"closed in order, but a start took it since", with(base(held(deadStart, mine)), func(s *Situation) { s.NotHere, s.Owner.Clean = deadStart, true }),
			Step{Action: ActWatch, Key: deadStart}},
		{"the quiet one was another", with(base(held(rival, mine)), func(s *Situation) { s.NotHere, s.Quiet = rival, ownerKey }), Step{Action: ActWatch, Key: rival}},
		{"by force, no watch", with(base(held(ownerKey, mine)), func(s *Situation) { s.NotHere, s.Take = ownerKey, TakeForced }),
			Step{Action: ActPreempt, Key: ownerKey, Abort: true}},

		// Held: a wait, or none.
		{"preempted and aborted the newest owner", with(base(held(mine)), func(s *Situation) { s.Preempted, s.Aborted = ownerKey, ownerKey }), goOn},
		{"preempted it plainly", with(base(held(mine)), func(s *Situation) { s.Preempted = ownerKey }), wait(11 * time.Second)},
		{"aborted another than the newest owner", with(base(held(mine)), func(s *Situation) { s.Preempted, s.Aborted = deadStart, deadStart }), waitLate(late)},
		{"an ordinary restart", with(base(held(mine)), func(s *Situation) { s.Replaced, s.Owner.Boot = ownerKey, here }), goOn},
		{"the host rebooted", with(base(held(mine)), func(s *Situation) { s.Replaced = ownerKey }), wait(11 * time.Second)},
		{"a start died here between fence and superblock", with(base(held(mine)), func(s *Situation) { s.Replaced, s.Owner.Boot = deadStart, here }), waitLate(late)},
		{"reserved what nobody held", with(base(held(mine)), func(s *Situation) { s.OwnerQuiet = true }), waitLate(late)},
		{"the same after a target reset on one host", with(base(held(mine)), func(s *Situation) { s.Owner.Boot = here }), waitLate(late)},
		{"an owner without a key is nobody's victim", with(base(held(mine)), func(s *Situation) { s.Owner.Key, s.Owner.Boot = 0, here }), waitLate(late)},
		{"a new log that nobody held", with(base(held(mine)), func(s *Situation) { s.Owner = Owner{Node: "n", StallAfter: stall} }), goOn},
		{"a new log that a start died on", with(base(held(mine)), func(s *Situation) { s.Owner, s.Replaced = Owner{Node: "n", StallAfter: stall}, deadStart }), waitLate(late)},
		{"a new log taken from a start", with(base(held(mine)), func(s *Situation) {
			s.Owner, s.Preempted, s.Aborted = Owner{Node: "n", StallAfter: stall}, deadStart, deadStart
		}), waitLate(late)},
		{"half-way through the wait", with(base(held(mine)), func(s *Situation) { s.Preempted, s.MustWait, s.HeldFor = ownerKey, 11*time.Second, 4*time.Second }), wait(7 * time.Second)},
		{"after the wait", with(base(held(mine)), func(s *Situation) { s.Preempted, s.MustWait, s.HeldFor = ownerKey, 11*time.Second, 11*time.Second }), jump},
		{"a superblock that landed late does not shorten the wait", with(base(held(mine)), func(s *Situation) {
			s.Preempted, s.Aborted, s.MustWait, s.HeldFor = ownerKey, ownerKey, 11*time.Second, time.Second
		}), wait(10 * time.Second)},
		{"nor does that of the start that died", with(base(held(mine)), func(s *Situation) {
			s.Owner.Key, s.Preempted, s.MustWait, s.HeldFor = deadStart, deadStart, late, 20*time.Second
		}), waitLate(late - 20*time.Second)},
		{"one of another start makes it longer", with(base(held(mine)), func(s *Situation) {
			s.Owner.Key, s.Preempted, s.MustWait, s.HeldFor = deadStart, ownerKey, 11*time.Second, 4*time.Second
		}), waitLate(late - 4*time.Second)},
		{"half-way through T", with(base(held(mine)), func(s *Situation) { s.Preempted, s.MustWait, s.HeldFor = deadStart, late, 11*time.Second }), waitLate(late - 11*time.Second)},
		{"after T", with(base(held(mine)), func(s *Situation) { s.Preempted, s.MustWait, s.HeldFor = deadStart, late, late }), jump},
		{"T is the setting's", with(base(held(mine)), func(s *Situation) { s.Preempted, s.LateWrites = deadStart, time.Minute }), waitLate(time.Minute)},
		{"a T below L", with(base(held(mine)), func(s *Situation) { s.Preempted, s.LateWrites = deadStart, time.Second }), wait(11 * time.Second)},
		{"the log changed hands not long ago: preempted plainly", with(base(held(mine)), func(s *Situation) { s.Preempted, s.Owner.Unsettled = ownerKey, true }), waitLate(late)},
		{"and the host rebooted", with(base(held(mine)), func(s *Situation) { s.Replaced, s.Owner.Unsettled = ownerKey, true }), waitLate(late)},
		{"and an ordinary restart", with(base(held(mine)), func(s *Situation) { s.Replaced, s.Owner.Boot, s.Owner.Unsettled = ownerKey, here, true }), goOn},
		{"and its writes were aborted", with(base(held(mine)), func(s *Situation) { s.Preempted, s.Aborted, s.Owner.Unsettled = ownerKey, ownerKey, true }), goOn},
		{"replaced the owner's key, then took it from a start that died", with(base(held(mine)), func(s *Situation) { s.Replaced, s.Preempted = ownerKey, deadStart }), waitLate(late)},
		{"L is the owner's", with(base(held(mine)), func(s *Situation) { s.Preempted, s.Owner.StallAfter = ownerKey, time.Second }), wait(2 * time.Second)},

		// Without reservations.
		{"a file", Situation{Mode: ModeLock, Exclusive: true, Boot: here, Owner: owner(elsewhere)}, goOn},
		{"attach: a new log", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: Owner{StallAfter: stall}}, goOn},
		{"attach: an ordinary restart", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: owner(here)}, goOn},
		{"attach: the owner ran elsewhere", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: owner(elsewhere), Take: TakeQuiet}, Step{Action: ActWatch}},
		{"attach: and was quiet", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: owner(elsewhere), OwnerQuiet: true, HeldFor: 5 * time.Second}, wait(6 * time.Second)},
		{"attach: T is not waited for", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: with(base(free()), func(s *Situation) { s.Owner.Unsettled = true }).Owner,
			LateWrites: late, OwnerQuiet: true}, wait(11 * time.Second)},
		{"attach: after the wait", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: owner(elsewhere), OwnerQuiet: true, HeldFor: 11 * time.Second}, jump},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Plan(c.s)
			if got.Why == "" && (got.Action == ActWait || got.Action == ActDone) {
				t.Errorf("%s says not why", got.Action)
			}
			if got.Why = ""; got != c.want {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestForesee(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Situation
		here bool
		want string
	}{
		{"takeover by abort", base(held(ownerKey)), false, "replace watch register preempt done"},
		{"plain takeover", with(base(held(ownerKey)), func(s *Situation) { s.Abort = false }), false, "replace watch register preempt wait=11s done"},
		{"a restart after a reboot", base(held(ownerKey)), true, "replace wait=11s done"},
		{"an ordinary restart", with(base(held(ownerKey)), func(s *Situation) { s.Owner.Boot = here }), true, "replace done"},
		{"after a reset", base(free()), false, "watch register reserve wait=5m0s done"},
		{"from a start that died", base(held(deadStart)), false, "replace watch register preempt wait=5m0s done"},
		{"a restart behind a start that died", base(held(deadStart)), true, "replace wait=5m0s done"},
		{"another node's", base(held(foreign)), false, "refuse"},
		{"attach", Situation{Mode: ModeAttach, Exclusive: true, Boot: here, Owner: owner(elsewhere), LateWrites: late}, false, "watch wait=11s done"},
		{"a file", Situation{Mode: ModeLock}, false, "done"},
	} {
		var got []string
		for _, step := range Foresee(c.s, c.here) {
			if step.Action == ActWait {
				got = append(got, "wait="+step.For.String())
				continue
			}
			got = append(got, string(step.Action))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, strings.Join(got, " "), c.want)
		}
	}
}

func TestPlanRefusesByName(t *testing.T) {
	registrants := held(ownerKey)
	registrants.Type = WriteExclusiveRegistrantsOnly
	allRegistrants := Status{Keys: []Key{ownerKey}, Type: WriteExclusiveAllRegistrants} // the holder's key is 0
	for _, c := range []struct {
		name string
		s    Situation
		want error
	}{
		{"not open exclusively", with(base(held(ownerKey)), func(s *Situation) { s.Exclusive = false }), ErrNotExclusive},
		{"attach, not open exclusively", with(base(free()), func(s *Situation) { s.Mode, s.Exclusive = ModeAttach, false }), ErrNotExclusive},
		{"another type", base(registrants), ErrForeign},
		{"all registrants hold", base(allRegistrants), ErrForeign},
		{"another node's key", with(base(held(foreign)), func(s *Situation) { s.NotHere = foreign }), ErrForeign},
		{"another node's key, by force", with(base(held(foreign)), func(s *Situation) { s.NotHere, s.Take = foreign, TakeForced }), ErrForeign},
		{"another node's key, held by this attachment", base(held(foreign)), ErrForeign},
		{"held elsewhere and never to be taken", with(base(held(ownerKey)), func(s *Situation) { s.NotHere, s.Take = ownerKey, TakeNever }), ErrHeld},
		{"another preempted the victim first", with(base(held(rival, mine)), func(s *Situation) { s.NotHere, s.Quiet, s.Preempted = rival, ownerKey, ownerKey }), ErrLostRace},
		{"preempted while it waits", with(base(held(rival)), func(s *Situation) { s.Held, s.MustWait = true, late }), ErrLostRace},
		{"reset while it waits", with(base(free()), func(s *Situation) { s.Held, s.MustWait = true, late }), ErrFenced},
		{"registered but reset while it waits", with(base(free(mine)), func(s *Situation) { s.Held, s.MustWait = true, late }), ErrFenced},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Plan(c.s); got.Action != ActRefuse || !errors.Is(got.Err, c.want) {
				t.Errorf("got %+v, want a refusal for %v", got, c.want)
			}
		})
	}
}

func TestKeysAreTheNodeAndTheIncarnation(t *testing.T) {
	a := KeyOf("n", [16]byte{0xde, 0xad, 0xbe, 0xef, 1})
	if a.Node() != NodeHash("n") || uint32(a) != 0xdeadbeef {
		t.Errorf("key %s of node hash %08x", a, NodeHash("n"))
	}
	if k := KeyOf("n", [16]byte{0, 0, 0, 0, 1}); uint32(k) != 1 {
		t.Errorf("an incarnation that begins with zeros has key %s", k)
	}
	for _, k := range []Key{0, 1, a, 1<<64 - 1} {
		if back, err := ParseKey(k.String()); err != nil || back != k {
			t.Errorf("%s is read back as %s, %v", k, back, err)
		}
	}
	for _, s := range []string{"", "1", "0x", "0x1g", "0x10000000000000000", "-0x1", "None"} {
		if k, err := ParseKey(s); err == nil {
			t.Errorf("%q is read as %s", s, k)
		}
	}
}
