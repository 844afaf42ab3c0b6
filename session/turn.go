package session

import "sync/atomic"

// Turn is the right to run a commit loop. One goroutine has it at a time: the loop's own,
// or one that has just brought it something and runs it then and there. That is what the
// light load of one client needs: a request that came out of a socket or a ring is decided and
// on its way to the device, and a write that ended is answered, without another goroutine,
// and often another processor, having to wake up first. Under load whoever comes finds
// the loop running, says so and goes on.
//
// Whoever has something for the loop puts it where the loop will find it, and then
// calls Ring, or Claim and runs the loop. Done gives the turn back; it fails if something
// came since, which the loop then has to look for.
type Turn struct {
	state    atomic.Uint32
	handOver func() // gives the turn to the loop's own goroutine
}

// States of a turn.
const (
	turnFree  uint32 = iota
	turnTaken        // somebody runs the loop
	turnRung         // and something came since
)

// NewTurn returns a turn that nobody has. handOver gives it to the loop's own goroutine; it
// must not block.
func NewTurn(handOver func()) *Turn { return &Turn{handOver: handOver} }

// Claim says that something has come, and reports whether the caller has the turn now.
func (t *Turn) Claim() bool {
	for {
		switch t.state.Load() {
		case turnFree:
			if t.state.CompareAndSwap(turnFree, turnTaken) {
				return true
			}
		case turnTaken:
			if t.state.CompareAndSwap(turnTaken, turnRung) {
				return false
			}
		default:
			return false
		}
	}
}

// Ring says that something has come; the loop's own goroutine runs it, unless somebody
// does already. It never blocks.
func (t *Turn) Ring() {
	if t.Claim() {
		t.HandOver()
	}
}

// HandOver gives the turn, which the caller has, to the loop's own goroutine.
func (t *Turn) HandOver() { t.handOver() }

// Rung reports whether something came since the turn was taken.
func (t *Turn) Rung() bool { return t.state.Load() == turnRung }

// Done gives the turn back. False: something has come, the caller keeps the turn.
func (t *Turn) Done() bool {
	if t.state.CompareAndSwap(turnTaken, turnFree) {
		return true
	}
	t.state.Store(turnTaken) // only the one who has the turn changes it from here
	return false
}
