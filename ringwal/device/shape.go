package device

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// burst is how far a volume may run ahead of its budgets after it was idle. The
// clouds do not publish theirs; this is small against any measurement and large
// enough to let a queue of writes start at once.
const burst = 20 * time.Millisecond

// Shape makes d as slow as p says. Data goes to d at once and only the answer
// waits, so what is durable does not depend on it, and a device that is slower
// than the profile stays so. The result closes d.
func Shape(d Device, p Profile) Device {
	if !p.shapes() {
		return d
	}
	// Two fixed words, so that equal seeds give equal delays.
	rng := rand.New(rand.NewPCG(p.Seed, 0x9e3779b97f4a7c15))
	s := &shaped{below: d, timing: timing{profile: p, rng: rng}}
	s.timing.drawPause(NowNS())
	return s
}

type shaped struct {
	below  Device
	mu     sync.Mutex // of timing
	timing timing
}

func (s *shaped) Path() string     { return s.below.Path() }
func (s *shaped) SizeBytes() int64 { return s.below.SizeBytes() }
func (s *shaped) BlockBytes() int  { return s.below.BlockBytes() }
func (s *shaped) Close() error     { return s.below.Close() }

func (s *shaped) ReadAt(p []byte, offset int64) (int, error) {
	until := s.answerAt(s.timing.profile.ReadLatency, len(p))
	n, err := s.below.ReadAt(p, offset)
	sleepUntil(until)
	return n, err
}

func (s *shaped) WriteSync(p []byte, offset int64) error {
	until := s.answerAt(s.timing.profile.WriteLatency, len(p))
	err := s.below.WriteSync(p, offset)
	sleepUntil(until)
	return err
}

func (s *shaped) Flush() error {
	until := s.answerAt(s.timing.profile.WriteLatency, 0)
	err := s.below.Flush()
	sleepUntil(until)
	return err
}

func (s *shaped) answerAt(latency []Quantile, bytes int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timing.answerAt(NowNS(), latency, bytes)
}

// timing decides when an operation is answered. It is pure but for its random
// source, and takes the time from outside.
type timing struct {
	profile Profile
	rng     *rand.Rand

	// When each budget would be spent to the last if nothing more came: the
	// theoretical arrival time of the generic cell rate algorithm.
	operationsNS, bytesNS int64

	// The next pause, or the one under way.
	pauseFromNS, pauseToNS int64
}

// answerAt charges an operation of bytes, submitted now, and returns when it is
// to be answered.
func (t *timing) answerAt(nowNS int64, latency []Quantile, bytes int) int64 {
	p := &t.profile
	start := nowNS
	if p.IOPS > 0 {
		operations := 1
		if p.OpBytes > 0 {
			operations = max(1, (bytes+p.OpBytes-1)/p.OpBytes)
		}
		cost := int64(operations) * int64(time.Second) / int64(p.IOPS)
		start = max(start, charge(&t.operationsNS, nowNS, cost))
	}
	if p.BytesPerSecond > 0 {
		cost := int64(float64(bytes) * float64(time.Second) / float64(p.BytesPerSecond))
		start = max(start, charge(&t.bytesNS, nowNS, cost))
	}
	answer := start + int64(drawLatency(latency, t.rng))
	for p.PauseEvery > 0 && answer >= t.pauseFromNS {
		if nowNS < t.pauseToNS {
			return max(answer, t.pauseToNS)
		}
		t.drawPause(t.pauseToNS)
	}
	return answer
}

// charge takes cost from a budget and returns when it is covered.
func charge(budgetNS *int64, nowNS, cost int64) int64 {
	*budgetNS = max(*budgetNS, nowNS) + cost
	return *budgetNS - int64(burst)
}

// drawPause sets the next pause: exponential in between, uniform in length.
func (t *timing) drawPause(afterNS int64) {
	if t.profile.PauseEvery <= 0 {
		return
	}
	t.pauseFromNS = afterNS + int64(t.rng.ExpFloat64()*float64(t.profile.PauseEvery))
	shortest := t.profile.PauseFor / 4
	t.pauseToNS = t.pauseFromNS + int64(shortest) + t.rng.Int64N(int64(t.profile.PauseFor-shortest)+1)
}

// drawLatency draws from a distribution given by quantiles: between two of them
// the logarithm of the latency is linear in the share.
func drawLatency(latency []Quantile, rng *rand.Rand) time.Duration {
	if len(latency) == 0 {
		return 0
	}
	share := rng.Float64()
	below := latency[0]
	for _, above := range latency {
		if share > above.P {
			below = above
			continue
		}
		if above.P == below.P || below.D == 0 {
			return above.D
		}
		part := (share - below.P) / (above.P - below.P)
		return time.Duration(float64(below.D) * math.Pow(float64(above.D)/float64(below.D), part))
	}
	return latency[len(latency)-1].D
}

// sleepUntil returns at CLOCK_BOOTTIME untilNS or later. It blocks a thread, as
// the I/O that it stands for would: the runtime's timers are too coarse here (an
// idle program waits whole milliseconds).
func sleepUntil(untilNS int64) {
	at := unix.NsecToTimespec(untilNS)
	for NowNS() < untilNS {
		err := unix.ClockNanosleep(unix.CLOCK_BOOTTIME, unix.TIMER_ABSTIME, &at, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
