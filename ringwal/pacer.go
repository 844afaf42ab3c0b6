package ringwal

// Pacer decides when the open frame is written. It keeps no timer: an idle device
// gets a record at once; with k frames in flight the next one waits for k quanta
// of bytes or for a completion. Two budgets, what the volume was bought with, bound
// it. The zero value has no budget, no limit of frames in flight and no quantum.
// One owner, times handed in.
type Pacer struct {
	QuantumBytes   int    // bytes that each frame in flight makes the next one wait for
	MaxInFlight    int    // most frames in flight, 0: no limit
	IOPS           uint64 // writes per second, 0: no budget
	BytesPerSecond uint64 // 0: no budget
}

// Ready reports whether the next frame may go out now, with inFlight frames on
// their way and openBytes waiting (the open frame and closed ones). If not,
// wakeAtNS is when time alone will change that, 0 when only a completion or more
// bytes will.
func (p *Pacer) Ready(nowNS int64, inFlight, openBytes int) (ready bool, wakeAtNS int64) {
	return false, 0
}

// Issued takes a frame of n bytes that went out now from the budgets.
func (p *Pacer) Issued(nowNS int64, n int) {}

// Completed says that a frame came back: the next one need not wait for its bytes.
func (p *Pacer) Completed() {}
