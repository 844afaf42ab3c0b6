package ringwal

// PacerBurstNS is how far ahead of its budgets a Pacer lets frames go: long enough that
// a loop that wakes late does not lose bandwidth, short against what a volume's own
// queue holds.
const PacerBurstNS = 5_000_000

// Pacer decides when the next frame is written. It keeps no timer: an idle device gets
// a record at once; with k frames in flight the next one waits for k quanta of
// bytes or for a completion. Two budgets, what the volume was bought with, bound it.
// The zero value has no budget, no limit of frames in flight and no quantum. One
// owner, times handed in.
type Pacer struct {
	QuantumBytes   int   // bytes that each frame in flight makes the next one wait for
	MaxInFlight    int   // most frames in flight, 0: no limit
	IOPS           int64 // writes per second, 0: no budget
	BytesPerSecond int64 // 0: no budget

	completed  bool  // since the last frame went out
	writesFree int64 // when the writes that went out are paid for, ns
	bytesFree  int64 // when the bytes that went out are paid for, ns
}

// Ready reports whether the next frame may go out now, with inFlight frames on their
// way and waitingBytes in the open frame and the closed ones. If not, wakeAtNS is
// when time alone will change that, 0 when only a completion or more bytes will.
func (p *Pacer) Ready(nowNS int64, inFlight, waitingBytes int) (ready bool, wakeAtNS int64) {
	if waitingBytes <= 0 || p.MaxInFlight > 0 && inFlight >= p.MaxInFlight {
		return false, 0
	}
	if inFlight > 0 && !p.completed && waitingBytes < inFlight*p.QuantumBytes {
		return false, 0
	}
	if free := max(p.writesFree, p.bytesFree) - PacerBurstNS; nowNS < free {
		return false, free
	}
	return true, 0
}

// Issued takes a frame of n bytes that went out now from the budgets.
func (p *Pacer) Issued(nowNS int64, n int) {
	const second = 1_000_000_000
	p.completed = false
	if p.IOPS > 0 {
		p.writesFree = max(p.writesFree, nowNS) + second/p.IOPS
	}
	if p.BytesPerSecond > 0 {
		cost := int64(n) * second
		p.bytesFree = max(p.bytesFree, nowNS) + cost/p.BytesPerSecond
	}
}

// Completed says that a frame came back: the next one need not wait for more bytes.
func (p *Pacer) Completed() { p.completed = true }
