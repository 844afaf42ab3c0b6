package node

import "sync/atomic"

// turn is the right to run the commit loop. One goroutine has it at a time: the loop's own,
// which hears by itself of clients' bells and of writes that ended, or one that has just read
// a request from a socket and runs the loop then and there. So under the light load of one
// client nothing waits for another goroutine, and often another processor, to wake up.
// Under load whoever comes finds the loop running, says so and goes on.
//
// Whoever has something for the loop puts it where the loop will find it, and then
// calls ring, or claim and runs the loop. done gives the turn back; it fails if something
// came since, which the loop then has to look for.
type turn struct {
	state    atomic.Uint32
	handOver func() // gives the turn, which the caller has, to the loop's own goroutine
}

// States of a turn.
const (
	turnFree  uint32 = iota
	turnTaken        // somebody runs the loop
	turnRung         // and something came since
)

// newTurn returns a turn that nobody has. handOver gives it to the loop's own goroutine; it
// must not block.
func newTurn(handOver func()) *turn { return &turn{handOver: handOver} }

// claim says that something has come, and reports whether the caller has the turn now.
func (t *turn) claim() bool {
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

// ring says that something has come; the loop's own goroutine runs it, unless somebody
// does already. It never blocks.
func (t *turn) ring() {
	if t.claim() {
		t.handOver()
	}
}

// rung reports whether something came since the turn was taken.
func (t *turn) rung() bool { return t.state.Load() == turnRung }

// done gives the turn back. False: something has come, the caller keeps the turn.
func (t *turn) done() bool {
	if t.state.CompareAndSwap(turnTaken, turnFree) {
		return true
	}
	t.state.Store(turnTaken) // only the one who has the turn changes it from here
	return false
}
