package ringwal

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPacerWithoutBudgets(t *testing.T) {
	p := Pacer{QuantumBytes: 64 << 10, MaxInFlight: 4}
	for _, c := range []struct {
		inFlight, waiting int
		want              bool
	}{
		{0, 0, false},           // nothing to write
		{0, 1, true},            // idle: a record goes out at once
		{1, 64<<10 - 1, false},  // one in flight: a quantum
		{1, 64 << 10, true},     //
		{3, 128 << 10, false},   // three in flight: three quanta
		{3, 192 << 10, true},    //
		{4, 100 << 20, false},   // no more than MaxInFlight
		{100, 100 << 20, false}, //
	} {
		if ready, wake := p.Ready(0, c.inFlight, c.waiting, c.waiting); ready != c.want || wake != 0 {
			t.Errorf("%d in flight, %d bytes: %v, wake at %d", c.inFlight, c.waiting, ready, wake)
		}
	}
	p.Completed() // a completion lets one frame go without its quanta
	if ready, _ := p.Ready(0, 3, 1, 1); !ready {
		t.Error("after a completion")
	}
	p.Issued(0, 4096)
	if ready, _ := p.Ready(0, 3, 1, 1); ready {
		t.Error("one completion let two frames go")
	}
}

func TestPacerKeepsItsBudgets(t *testing.T) {
	const second = int64(1_000_000_000)
	for _, c := range []struct {
		name  string
		p     Pacer
		frame int
		want  int64 // frames per second
	}{
		{"IOPS", Pacer{IOPS: 3000, BytesPerSecond: 125_000_000}, 4096, 3000},
		{"few IOPS", Pacer{IOPS: 100}, PacerOpBytes, 100},
		{"IOPS of large frames", Pacer{IOPS: 100}, PacerOpBytes + 1, 50},
		{"bandwidth", Pacer{IOPS: 3000, BytesPerSecond: 125_000_000}, 500_000, 250},
		{"no budget", Pacer{}, 500_000, 1e6}, // as often as it is asked
	} {
		now, frames := 10*second, int64(0)
		for now < 20*second {
			ready, wake := c.p.Ready(now, 0, c.frame, c.frame)
			if !ready {
				if wake <= now {
					t.Fatalf("%s: at %d told to wake at %d", c.name, now, wake)
				}
				now = wake
				continue
			}
			frames++
			c.p.Issued(now, c.frame)
			now += 1000
		}
		burst := int64(PacerBurstNS)*c.want/second + 1
		if frames < 10*c.want-1 || frames > 10*c.want+burst {
			t.Errorf("%s: %d frames in 10 s, want %d", c.name, frames, 10*c.want)
		}
	}
}

// Whatever the frames, and however late the loop wakes, no second holds more operations
// than were bought, and none that were asked for all the time are lost.
func TestPacerKeepsEverySecondWithinItsOperations(t *testing.T) {
	const second, span = int64(1_000_000_000), 20
	random := rand.New(rand.NewPCG(testSeed(t), 0))
	sizes := map[string]func() int{
		"single operations": func() int { return 4096 },
		"up to four each":   func() int { return 1 + random.IntN(4*PacerOpBytes) },
		"mostly small":      func() int { return 1 + random.IntN(PacerOpBytes) + random.IntN(20)/19*3*PacerOpBytes },
	}
	for _, iops := range []int64{1, 3, 100, 500, 1000} {
		for name, size := range sizes {
			p := Pacer{IOPS: iops}
			var times []int64 // of operations
			now := 5 * second
			for next := size(); now < (5+span)*second; {
				if ready, wake := p.Ready(now, 0, next, next); !ready {
					if wake <= now {
						t.Fatalf("%d IOPS, %s: at %d told to wake at %d", iops, name, now, wake)
					}
					now = wake + random.Int64N(300_000) // a timer is late
					continue
				}
				p.Issued(now, next)
				for range p.operations(next) {
					times = append(times, now)
				}
				next = size()
			}
			for i := int(iops); i < len(times); i++ {
				if gap := times[i] - times[i-int(iops)]; gap < second {
					t.Fatalf("%d IOPS, %s: %d operations within %d ns", iops, name, iops+1, gap)
				}
			}
			// A frame of several operations waits until all of them are free.
			if least := span * iops * 95 / 100; iops > 3 && int64(len(times)) < least {
				t.Errorf("%d IOPS, %s: %d operations in %d s, want at least %d", iops, name, len(times), span, least)
			}
			if !slices.IsSorted(times) {
				t.Fatal("the test's clock went back")
			}
		}
	}
}

// What the log writes beside its frames counts too.
func TestPacerChargesOtherWrites(t *testing.T) {
	const second = int64(1_000_000_000)
	p := Pacer{IOPS: 2}
	p.Completed()
	p.Charge(second, 4096)
	p.Charge(second, 4096)
	if ok, at := p.Affords(second+second/2, 1); ok || at < 2*second-PacerBurstNS {
		t.Errorf("two of two operations are used up: %v, next at %d", ok, at)
	}
	if ready, _ := p.Ready(2*second, 1, 1, 1); !ready {
		t.Error("a charge used up the completion")
	}
}

// What was not used of a budget is not saved up.
func TestPacerSavesNothing(t *testing.T) {
	const second = int64(1_000_000_000)
	p := Pacer{IOPS: 100}
	p.Issued(0, 1)
	frames := 0
	for ready := true; ready; frames++ {
		p.Issued(1000*second, 1)
		ready, _ = p.Ready(1000*second, 0, 1, 1)
	}
	if frames != 1 {
		t.Fatalf("%d frames at once after a long rest", frames)
	}
}

// paced is a log under a load of records that are sent again when they are durable, on a
// volume that has the same budgets and no patience, in a time of its own. Of the volume there
// is only the time: frames come back latencyNS after their turn.
type paced struct {
	log       *Log
	pacer     Pacer
	latencyNS int64
	itemBytes int
	waiting   int // records

	flying  []*Frame // in order
	backNS  []int64  // when they come back
	freeNS  int64    // when the volume takes the next one
	records int      // durable
	times   []int64  // of operations
}

// run goes on until untilNS.
func (p *paced) run(t *testing.T, nowNS, untilNS int64) {
	t.Helper()
	for nowNS < untilNS {
		for len(p.flying) > 0 && p.backNS[0] <= nowNS {
			p.log.Complete(p.flying[0], nil, nowNS)
			p.flying, p.backNS = p.flying[1:], p.backNS[1:]
			p.pacer.Completed()
		}
		for f := p.log.PopDurable(); f != nil; f = p.log.PopDurable() {
			p.records += int(f.Records)
			p.waiting += int(f.Records)
			p.log.Release(f)
		}
		for ; p.waiting > 0; p.waiting-- {
			if _, _, err := p.log.Reserve(ClassAppend, p.itemBytes, 1); err != nil {
				break
			}
		}
		wake := p.issue(nowNS)
		if len(p.flying) > 0 && (wake == 0 || p.backNS[0] < wake) {
			wake = p.backNS[0]
		}
		if wake <= nowNS {
			t.Fatalf("at %d nothing will happen any more: %v", nowNS, p.log.Err())
		}
		nowNS = wake
	}
}

// issue is what a commit loop does to put frames on their way.
func (p *paced) issue(nowNS int64) (wakeAtNS int64) {
	for {
		bytes := p.log.OpenBytes() + p.log.QueuedBytes()
		ready, wake := p.pacer.Ready(nowNS, p.log.InFlight(), bytes, p.log.NextBytes())
		if !ready {
			return wake
		}
		if p.log.QueuedBytes() == 0 {
			p.log.CloseFrame(nowNS)
		}
		f := p.log.Next(nowNS)
		for range p.pacer.operations(len(f.Buf)) {
			p.times = append(p.times, nowNS)
		}
		p.pacer.Issued(nowNS, len(f.Buf))
		turn := max(nowNS, p.freeNS)
		p.freeNS = turn + max(int64(p.pacer.operations(len(f.Buf)))*secondNS/p.pacer.IOPS, int64(len(f.Buf))*secondNS/p.pacer.BytesPerSecond)
		p.flying, p.backNS = append(p.flying, f), append(p.backNS, turn+p.latencyNS)
	}
}

// With enough records waiting, the log writes as much as the smaller of its budgets lets
// through, operations of PacerOpBytes each or bytes, and keeps to both.
func TestBudgetsAreUsedToTheFull(t *testing.T) {
	const second, bandwidth, itemBytes = int64(1_000_000_000), 125_000_000, 1056
	g := tiny
	g.MaxFrameBytes, g.WindowBytes, g.CapacityBytes = DefaultMaxFrameBytes, DefaultWindowBytes, 64<<20
	for _, c := range []struct {
		iops    int64
		records int // outstanding
	}{{100, 256}, {100, 4096}, {500, 4096}, {1000, 4096}, {3000, 4096}} {
		log := newRig(t, g, 0).start(false).log
		log.buffers = &oneBuffer{alignedBytes(int(g.MaxFrameBytes), 4096)}
		log.limits[ClassAppend], log.limits[classSystem] = 1<<62, 1<<62
		log.LimitFrames(PacerOpBytes)
		p := paced{log: log, latencyNS: 1_000_000, itemBytes: itemBytes, waiting: c.records / 2,
			pacer: Pacer{QuantumBytes: 32 << 10, MaxInFlight: 8, IOPS: c.iops, BytesPerSecond: bandwidth}}
		p.run(t, second, second+200_000)
		p.waiting += c.records / 2 // half batches must not stay halves
		p.run(t, second+200_000, 2*second)
		p.records = 0
		p.run(t, 2*second, 5*second)
		got := float64(p.records) * itemBytes / 3
		most := float64(min(bandwidth, c.iops*PacerOpBytes))
		if got < 0.96*most || got > 1.01*most {
			t.Errorf("%d IOPS, %d records outstanding: %.1f MB/s, the budgets allow %.1f", c.iops, c.records, got/1e6, most/1e6)
		}
		for i := int(c.iops); i < len(p.times); i++ {
			if gap := p.times[i] - p.times[i-int(c.iops)]; gap < second {
				t.Fatalf("%d IOPS: %d operations within %d ns", c.iops, c.iops+1, gap)
			}
		}
	}
}
