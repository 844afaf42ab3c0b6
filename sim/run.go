package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// Options say which history to play.
type Options struct {
	Seed uint64
	Kind Kind // Any: drawn from the seed

	adjust func(*profile) // changes what was drawn; may be nil
}

// Stats count what a history consisted of.
type Stats struct {
	Histories, Steps, Starts, Crashes, Faults int
	Requests, Answers, Refused, Full          int
	Frames, Laps                              int
	Takeovers                                 int // starts that succeeded in a fleet
	RoomMade, InPlace                         int // starts of a full log that trimmed it; that began where it ends
	Manifests, StoreFaults, Deleted, Cold     int // commits and claims; faults of the store; objects deleted; reads from the store alone
	Damaged, Salvaged, Undetectable           int // starts refused for damage; salvages; acked tails lost without a proof
	Healed                                    int // ends of a history at which the log was emptied and took appends
}

// Add sums up.
func (s *Stats) Add(o Stats) {
	s.Histories += o.Histories
	s.Steps += o.Steps
	s.Starts += o.Starts
	s.Crashes += o.Crashes
	s.Faults += o.Faults
	s.Requests += o.Requests
	s.Answers += o.Answers
	s.Refused += o.Refused
	s.Full += o.Full
	s.Frames += o.Frames
	s.Laps += o.Laps
	s.Takeovers += o.Takeovers
	s.RoomMade += o.RoomMade
	s.InPlace += o.InPlace
	s.Manifests += o.Manifests
	s.StoreFaults += o.StoreFaults
	s.Deleted += o.Deleted
	s.Cold += o.Cold
	s.Damaged += o.Damaged
	s.Salvaged += o.Salvaged
	s.Undetectable += o.Undetectable
	s.Healed += o.Healed
}

// Failure is a promise that was broken.
type Failure struct {
	Promise string // "P1" to "P12"; "rule": of docs/design.md; "panic"
	Problem string
	Seed    uint64
	Kind    Kind
	Step    int
	Trace   string // what the hosts and the disk did
}

// Error names the promise, the problem and how to see it again.
func (f *Failure) Error() string {
	return fmt.Sprintf("%s: %s (seed %d, %s, step %d)", f.Promise, f.Problem, f.Seed, f.Kind, f.Step)
}

// World is one history under way.
type World struct {
	rng     *rand.Rand
	profile *profile
	disk    *simdev.Disk
	bucket  *bucket // the object store; nil: none
	fleet   *fleet  // of several machines; nil: one
	host    *host   // nil between two
	former  []*host // crashed, with writes that may still land

	progressed map[*simdev.Write]bool // some of it has been in the disk's cache

	hosts   int
	oracle  *oracle
	clients []*client
	source  func() *request // makes up the requests, nil where there is none now; nil: draw

	now   int64 // CLOCK_BOOTTIME, ns
	wall  int64 // the wall clock, ns
	step  int
	quiet bool // no crash, no fault: the history is being brought to its end
	over  bool // damage was found, nothing can follow
	saved *saved
	stats Stats

	traced bool
	trace  []string
}

// Run plays one history. The same options give the same history. A failure is
// played a second time for its trace.
func Run(o Options) (Stats, *Failure) {
	stats, failure := run(o, false)
	if failure != nil {
		_, failure = run(o, true)
		if failure == nil {
			failure = &Failure{Promise: "rule", Problem: "the same seed gave two histories", Seed: o.Seed, Kind: o.Kind}
		}
	}
	return stats, failure
}

func run(o Options, traced bool) (stats Stats, failure *Failure) {
	w := newWorld(o, traced)
	defer func() {
		stats = w.stats
		stats.Histories, stats.Steps = 1, w.step
		if r := recover(); r != nil {
			f, ok := r.(*Failure)
			if !ok {
				f = &Failure{Promise: "panic", Problem: fmt.Sprintf("%v\n%s", r, debug.Stack())}
			}
			f.Seed, f.Kind, f.Step = o.Seed, w.profile.kind, w.step
			if traced {
				f.Trace = strings.Join(w.trace, "\n") + "\n" + w.disk.Trace()
			}
			failure = f
		}
		w.close()
	}()
	w.play()
	return stats, nil
}

func newWorld(o Options, traced bool) *World {
	rng := rand.New(rand.NewPCG(o.Seed, 0x77616c73696465))
	w := &World{rng: rng, progressed: map[*simdev.Write]bool{}, profile: drawProfile(rng, o.Kind), traced: traced, now: 1 + rng.Int64N(1<<40), wall: 1_700_000_000_000_000_000}
	w.profile.drawPeers(rand.New(rand.NewPCG(o.Seed, 0x7065657273)), o.Kind)
	w.profile.drawStore(rand.New(rand.NewPCG(o.Seed, 0x73746f7265)))
	w.profile.drawFull(rand.New(rand.NewPCG(o.Seed, 0x66756c6c)))
	if o.adjust != nil {
		o.adjust(w.profile)
	}
	w.disk = simdev.New(simdev.Config{Seed: rng.Uint64(), SizeBytes: ringwal.RingStart + int64(w.profile.geometry.CapacityBytes),
		BlockBytes: int(w.profile.geometry.BlockBytes), WriteThrough: w.profile.through, Odds: w.profile.odds})
	w.oracle = newOracle(w)
	if w.profile.store {
		w.bucket = newBucket(w)
	}
	if w.profile.kind == Peers {
		w.fleet = newFleet(w)
	}
	for range 1 + rng.IntN(3) {
		w.clients = append(w.clients, newClient())
	}
	w.tracef("%s", w.profile)
	return w
}

// play formats the disk and takes steps until the history is over, and then sees
// that the log heals.
func (w *World) play() {
	w.format()
	for w.step = 1; w.step <= w.profile.steps && !w.over; w.step++ {
		if w.fleet != nil {
			w.fleet.step()
			continue
		}
		if w.host == nil {
			w.between()
			w.start()
			continue
		}
		w.hostStep()
	}
	if !w.over {
		w.heal()
	}
	w.stats.Laps = int((w.oracle.furthest - w.profile.origin) / w.profile.geometry.CapacityBytes)
}

// format makes the log, again as a whole after a crash.
func (w *World) format() {
	for {
		v := w.disk.Open("format")
		p := &port{w: w, view: v, quiet: w.chance(0.9)}
		_, err := ringwal.Format(p, ringwal.FormatOptions{UUID: [16]byte{7, 7, 7}, Node: "sim", StallAfter: w.profile.stall,
			Origin: w.profile.origin, Geometry: &w.profile.geometry})
		if err == nil {
			_ = v.Close()
			w.oracle.formatted()
			return
		}
		if !p.dead {
			w.fail("rule", "format of an honest disk failed: %v", err)
		}
		// The next one opens the device exclusively, which it can once the kernel has seen
		// the writes of the process that died to their end.
		w.disk.Abort(v)
	}
}

// close gives back what the history holds outside of Go's heap.
func (w *World) close() {
	if w.host != nil {
		w.host.close()
	}
	for _, h := range w.former {
		h.close()
	}
	if w.fleet != nil {
		w.fleet.close()
	}
}

// begins notes when a write was begun.
func (w *World) begins(write *simdev.Write) {
	if w.fleet != nil && write != nil {
		w.fleet.begun[write] = w.now
	}
}

// fail ends the history.
func (w *World) fail(promise, format string, args ...any) {
	panic(&Failure{Promise: promise, Problem: fmt.Sprintf(format, args...)})
}

func (w *World) tracef(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf("step %d, %d ns: ", w.step, w.now)+fmt.Sprintf(format, args...))
	}
}

func (w *World) chance(p float64) bool { return w.rng.Float64() < p }

// pick is an index with the chance of its weight; at least one weight is not 0.
func (w *World) pick(weights ...int) int {
	sum := 0
	for _, n := range weights {
		sum += n
	}
	n := w.rng.IntN(sum)
	for i, weight := range weights {
		if n < weight {
			return i
		}
		n -= weight
	}
	return len(weights) - 1
}
