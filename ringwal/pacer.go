package ringwal

// PacerBurstNS is how far ahead of its budget of bytes a Pacer lets frames go: long enough
// that a loop that wakes late, on a busy machine, loses none of it; what comes too early
// waits in the volume's queue instead. Of operations it lets none go ahead by more than
// half the time of one: a second one that goes at once takes half of what the first could
// have carried, and then the two halves take turns for ever.
const PacerBurstNS = 20_000_000

// PacerOpBytes is the longest write that a volume counts as one operation; a longer one
// counts as several (EBS, SSD volumes). Frames that are no longer make the most of a
// budget of operations: see Log.LimitFrames.
const PacerOpBytes = 256 << 10

// Pacer decides when the next frame is written. It keeps no timer: an idle device gets
// a record at once; with k frames in flight the next one waits for k quanta of
// bytes or for a completion. Two budgets, what the volume was bought with, bound it:
// no second, wherever it begins, holds more operations than IOPS.
// The zero value has no budget, no limit of frames in flight and no quantum. One
// owner, times handed in.
type Pacer struct {
	QuantumBytes   int   // bytes that each frame in flight makes the next one wait for
	MaxInFlight    int   // most frames in flight, 0: no limit
	IOPS           int64 // operations per second, 0: no budget
	BytesPerSecond int64 // 0: no budget

	completed  bool  // since the last frame went out
	writesFree int64 // when the operations that went out are paid for, ns
	bytesFree  int64 // when the bytes that went out are paid for, ns

	// When each of the last IOPS operations went out, in ns; the oldest is next.
	issued []int64
	oldest int
}

const secondNS = 1_000_000_000

// Ready reports whether the next frame, of nextBytes, may go out now, with inFlight
// frames on their way and waitingBytes in the open frame and the closed ones. If not,
// wakeAtNS is when time alone will change that, 0 when only a completion or more
// bytes will.
func (p *Pacer) Ready(nowNS int64, inFlight, waitingBytes, nextBytes int) (ready bool, wakeAtNS int64) {
	if waitingBytes <= 0 || p.MaxInFlight > 0 && inFlight >= p.MaxInFlight {
		return false, 0
	}
	if inFlight > 0 && !p.completed && waitingBytes < inFlight*p.QuantumBytes {
		return false, 0
	}
	return p.Affords(nowNS, nextBytes)
}

// Affords reports whether the budgets allow a write of n bytes now, and if not, when.
func (p *Pacer) Affords(nowNS int64, n int) (ok bool, wakeAtNS int64) {
	free := p.bytesFree - PacerBurstNS
	if p.issued != nil {
		free = max(free, p.writesFree-secondNS/p.IOPS/2)
		last := (p.oldest + p.operations(n) - 1) % len(p.issued)
		free = max(free, p.issued[last]+secondNS)
	}
	if nowNS < free {
		return false, free
	}
	return true, 0
}

// operations is what a write of n bytes counts as, at most the budget of a second.
func (p *Pacer) operations(n int) int {
	return int(min(max(1, (int64(n)+PacerOpBytes-1)/PacerOpBytes), p.IOPS))
}

// Issued takes a frame of n bytes that went out now from the budgets.
func (p *Pacer) Issued(nowNS int64, n int) {
	p.completed = false
	p.Charge(nowNS, n)
}

// Charge takes a write of n bytes that is no frame from the budgets.
func (p *Pacer) Charge(nowNS int64, n int) {
	if p.IOPS > 0 {
		if p.issued == nil {
			p.issued = make([]int64, p.IOPS)
			for i := range p.issued {
				p.issued[i] = nowNS - secondNS
			}
		}
		operations := p.operations(n)
		for range operations {
			p.issued[p.oldest] = nowNS
			p.oldest = (p.oldest + 1) % len(p.issued)
		}
		p.writesFree = max(p.writesFree, nowNS) + int64(operations)*secondNS/p.IOPS
	}
	if p.BytesPerSecond > 0 {
		p.bytesFree = max(p.bytesFree, nowNS) + int64(n)*secondNS/p.BytesPerSecond
	}
}

// Completed says that a frame came back: the next one need not wait for more bytes.
func (p *Pacer) Completed() { p.completed = true }
