package device

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func profileNamed(t testing.TB, name string) Profile {
	t.Helper()
	p, err := ProfileNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newTiming(p Profile) *timing {
	t := &timing{profile: p, rng: rand.New(rand.NewPCG(p.Seed, 1))}
	t.drawPause(0)
	return t
}

func TestProfilesByName(t *testing.T) {
	gp3, io2 := profileNamed(t, "gp3"), profileNamed(t, "io2")
	if gp3.IOPS != 3000 || gp3.BytesPerSecond != 125_000_000 {
		t.Errorf("gp3: %+v", gp3)
	}
	if io2.IOPS != 16_000 || io2.BytesPerSecond != 500_000_000 {
		t.Errorf("io2: %+v", io2)
	}
	for _, p := range []Profile{gp3, io2} {
		for _, latency := range [][]Quantile{p.ReadLatency, p.WriteLatency} {
			if latency[0].P != 0 || latency[len(latency)-1].P != 1 || !slices.IsSortedFunc(latency, func(a, b Quantile) int {
				return int(a.D - b.D)
			}) {
				t.Errorf("%s: latency %v", p.Name, latency)
			}
		}
	}
	d := newFile(t, 1<<20)
	if Shape(d, profileNamed(t, "none")) != d {
		t.Error("the profile none puts something in between")
	}
	few := profileNamed(t, "gp3:iops=100")
	if few.Name != "gp3:iops=100" || few.IOPS != 100 || few.OpBytes != 256<<10 || few.BytesPerSecond != 125_000_000 || len(few.WriteLatency) != len(gp3.WriteLatency) {
		t.Errorf("few operations: %+v", few)
	}
	if p := profileNamed(t, "none:iops=1000"); p.IOPS != 1000 || p.OpBytes != 256<<10 || p.BytesPerSecond != 0 || len(p.WriteLatency) != 0 {
		t.Errorf("nothing but operations: %+v", p)
	}
	for name, want := range map[string]string{
		"gp2":              `profile "gp2": want gp3, io2 or none, and behind it :iops=N for another number of operations`,
		"gp3:":             `profile "gp3:": behind gp3: comes iops=N, N from 1 to 1000000`,
		"gp3:iops=0":       `profile "gp3:iops=0": behind gp3: comes iops=N, N from 1 to 1000000`,
		"gp3:iops=1000001": `profile "gp3:iops=1000001": behind gp3: comes iops=N, N from 1 to 1000000`,
		"gp3:500":          `profile "gp3:500": behind gp3: comes iops=N, N from 1 to 1000000`,
	} {
		if _, err := ProfileNamed(name); err == nil || err.Error() != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLatencyHasTheProfilesQuantiles(t *testing.T) {
	const draws = 200_000
	for _, name := range []string{"gp3", "io2"} {
		p := profileNamed(t, name)
		rng := rand.New(rand.NewPCG(1, 1))
		seen := make([]time.Duration, draws)
		for i := range seen {
			seen[i] = drawLatency(p.WriteLatency, rng)
		}
		slices.Sort(seen)
		for _, q := range p.WriteLatency {
			if q.P == 0 || q.P == 1 {
				continue
			}
			got := seen[int(q.P*draws)]
			if got < q.D*9/10 || got > q.D*11/10 {
				t.Errorf("%s: p%v is %v, want %v", name, 100*q.P, got, q.D)
			}
		}
		if first, last := seen[0], seen[draws-1]; first < p.WriteLatency[0].D || last > p.WriteLatency[len(p.WriteLatency)-1].D {
			t.Errorf("%s: from %v to %v", name, first, last)
		}
	}
}

// saturate runs operations with depth in flight for ten simulated seconds and
// returns operations and bytes per second.
func saturate(t *timing, depth, bytes int) (operations, rate float64) {
	const span = 10 * int64(time.Second)
	answers := make([]int64, depth)
	n := 0
	for {
		slices.Sort(answers)
		now := answers[0]
		if now >= span || n > 10_000_000 {
			return float64(n) / 10, float64(n*bytes) / 10
		}
		answers[0] = t.answerAt(now, t.profile.WriteLatency, bytes)
		n++
	}
}

func TestBudgetsHold(t *testing.T) {
	tests := []struct {
		profile         string
		depth, bytes    int
		operations      float64 // per second; 0: not the limit
		bytesPerSecond  float64
		withoutAnyLimit bool
	}{
		{profile: "gp3", depth: 16, bytes: 4 << 10, operations: 3000},
		{profile: "gp3", depth: 16, bytes: 1 << 20, bytesPerSecond: 125e6},
		{profile: "io2", depth: 32, bytes: 4 << 10, operations: 16_000},
		{profile: "io2", depth: 16, bytes: 256 << 10, bytesPerSecond: 500e6},
		{profile: "gp3", depth: 1, bytes: 4 << 10, withoutAnyLimit: true},
	}
	for _, tt := range tests {
		p := profileNamed(t, tt.profile)
		p.PauseEvery = 0
		operations, rate := saturate(newTiming(p), tt.depth, tt.bytes)
		switch {
		case tt.operations > 0 && (operations < 0.98*tt.operations || operations > 1.02*tt.operations):
			t.Errorf("%s, %d deep, %d bytes: %.0f operations/s, want %.0f", tt.profile, tt.depth, tt.bytes, operations, tt.operations)
		case tt.bytesPerSecond > 0 && (rate < 0.98*tt.bytesPerSecond || rate > 1.02*tt.bytesPerSecond):
			t.Errorf("%s, %d deep, %d bytes: %.0f bytes/s, want %.0f", tt.profile, tt.depth, tt.bytes, rate, tt.bytesPerSecond)
		case tt.withoutAnyLimit && (operations < 1000 || operations > 1800):
			// One at a time is bound by the latency alone: mean about 0.75 ms.
			t.Errorf("%s, one at a time: %.0f operations/s", tt.profile, operations)
		}
	}
}

func TestLargeRequestsCountAsSeveralOperations(t *testing.T) {
	p := Profile{IOPS: 1000, OpBytes: 256 << 10}
	if operations, _ := saturate(newTiming(p), 16, 1<<20); operations < 245 || operations > 256 {
		t.Errorf("%.0f requests/s of 1 MiB, want 250: four operations each", operations)
	}
}

func TestPausesHoldAnswersBack(t *testing.T) {
	p := Profile{PauseEvery: time.Second, PauseFor: 100 * time.Millisecond, WriteLatency: []Quantile{{0, time.Millisecond}, {1, time.Millisecond}}}
	timing := newTiming(p)
	var longest, pauses int64
	for now := int64(0); now < int64(300*time.Second); {
		answer := timing.answerAt(now, p.WriteLatency, 4096)
		took := answer - now
		if took < int64(time.Millisecond) {
			t.Fatalf("answered after %v", time.Duration(took))
		}
		if took > 2*int64(time.Millisecond) {
			pauses++
		}
		longest = max(longest, took)
		now = answer
	}
	if pauses < 200 || pauses > 400 {
		t.Errorf("%d pauses in 300 s, want about one a second", pauses)
	}
	if longest > int64(110*time.Millisecond) || longest < int64(50*time.Millisecond) {
		t.Errorf("longest pause %v", time.Duration(longest))
	}
}

func TestEqualSeedsGiveEqualDelays(t *testing.T) {
	p := profileNamed(t, "gp3")
	p.Seed = 42
	a, b := newTiming(p), newTiming(p)
	p.Seed = 43
	other, differ := newTiming(p), false
	for now := int64(0); now < int64(time.Second); now += int64(time.Millisecond) {
		x, y, z := a.answerAt(now, p.WriteLatency, 4096), b.answerAt(now, p.WriteLatency, 4096), other.answerAt(now, p.WriteLatency, 4096)
		if x != y {
			t.Fatalf("at %d: %d and %d", now, x, y)
		}
		differ = differ || x != z
	}
	if !differ {
		t.Error("another seed gives the same delays")
	}
}

func TestShapedDeviceIsSlowAndTrue(t *testing.T) {
	below := newFile(t, 1<<20)
	p := Profile{
		WriteLatency: []Quantile{{0, 5 * time.Millisecond}, {1, 5 * time.Millisecond}},
		ReadLatency:  []Quantile{{0, 3 * time.Millisecond}, {1, 3 * time.Millisecond}},
	}
	d := Shape(below, p)
	if d.Path() != below.Path() || d.SizeBytes() != 1<<20 || d.BlockBytes() != 4096 {
		t.Error("it is not the device's path, size and block")
	}
	want, got := patterned(t, 4096, 1), buffer(t, 4096)
	took := func(f func()) time.Duration {
		start := NowNS()
		f()
		return time.Duration(NowNS() - start)
	}
	if at := took(func() {
		if err := d.WriteSync(want, 8192); err != nil {
			t.Fatal(err)
		}
	}); at < 5*time.Millisecond {
		t.Errorf("a write took %v, want 5 ms", at)
	}
	if at := took(func() {
		if _, err := d.ReadAt(got, 8192); err != nil || !bytes.Equal(got, want) {
			t.Fatal(err)
		}
	}); at < 3*time.Millisecond {
		t.Errorf("a read took %v, want 3 ms", at)
	}
	if at := took(func() {
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
	}); at < 5*time.Millisecond {
		t.Errorf("a flush took %v, want 5 ms", at)
	}
	wantError(t, d.WriteSync(want[:100], 0), ErrNotAligned)
	if n := testing.AllocsPerRun(10, func() { _ = d.WriteSync(want, 0) }); n != 0 {
		t.Errorf("a shaped write allocates %v times", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, below.WriteSync(want, 0), ErrClosed)
}
