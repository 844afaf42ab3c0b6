package ringwal

import "testing"

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
		if ready, wake := p.Ready(0, c.inFlight, c.waiting); ready != c.want || wake != 0 {
			t.Errorf("%d in flight, %d bytes: %v, wake at %d", c.inFlight, c.waiting, ready, wake)
		}
	}
	p.Completed() // a completion lets one frame go without its quanta
	if ready, _ := p.Ready(0, 3, 1); !ready {
		t.Error("after a completion")
	}
	p.Issued(0, 4096)
	if ready, _ := p.Ready(0, 3, 1); ready {
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
		{"bandwidth", Pacer{IOPS: 3000, BytesPerSecond: 125_000_000}, 500_000, 250},
		{"no budget", Pacer{}, 500_000, 1e6}, // as often as it is asked
	} {
		now, frames := 10*second, int64(0)
		for now < 20*second {
			ready, wake := c.p.Ready(now, 0, c.frame)
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
		if frames < 10*c.want || frames > 10*c.want+burst {
			t.Errorf("%s: %d frames in 10 s, want %d", c.name, frames, 10*c.want)
		}
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
		ready, _ = p.Ready(1000*second, 0, 1)
	}
	if frames != 1 {
		t.Fatalf("%d frames at once after a long rest", frames)
	}
}
