package device

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Profile is the behaviour of a kind of volume; the zero value shapes nothing.
type Profile struct {
	Name           string
	Seed           uint64     // of latencies and pauses
	ReadLatency    []Quantile // ascending in P and D, from P = 0 to P = 1; none: no latency
	WriteLatency   []Quantile
	IOPS           int           // operations per second; 0: no limit
	OpBytes        int           // a larger request counts as several operations; 0: as one
	BytesPerSecond int64         // reads and writes together; 0: no limit
	PauseEvery     time.Duration // mean time between pauses, in which nothing is answered; 0: none
	PauseFor       time.Duration // the longest pause; they are uniform from a quarter of it
}

// Quantile is one point of a latency distribution: a share P of the operations
// takes at most D.
type Quantile struct {
	P float64 // 0 to 1
	D time.Duration
}

// ssdOpBytes is the largest request that EBS counts as one operation on an SSD
// volume (EBS user guide, "I/O characteristics and monitoring": I/O size is
// capped at 256 KiB).
const ssdOpBytes = 256 << 10

// maxIOPS is above what any volume is sold with.
const maxIOPS = 1_000_000

// ProfileNamed is the profile "gp3", "io2" or "none", with ":iops=N" behind the name
// (1 to 1,000,000) with that many operations per second of ssdOpBytes each. The error
// for anything else says what there is.
//
//   - gp3: the baseline that every volume has, 3,000 IOPS and 125 MiB/s, "single-digit
//     millisecond" latency (EBS user guide, "General Purpose SSD volumes"). We take
//     125 MB/s, the smaller reading.
//   - io2: 16,000 IOPS and 500 MB/s, an ordinary size; Block Express is designed for
//     an average below 500 µs at 16 KiB and over ten times fewer operations above
//     800 µs than gp3 (EBS user guide, "Amazon EBS optimization").
//   - none: the device as it is.
//
// The guide gives no distributions. The quantiles are ours, within what it
// says: gp3 with a median of 0.7 ms and about one operation in five above 800 µs,
// io2 with a median of 0.3 ms and one in a hundred above. Pauses stand for what
// happens when a volume's backend moves: none are documented, some are seen.
func ProfileNamed(name string) (Profile, error) {
	kind, option, more := strings.Cut(name, ":")
	p, err := profileOf(kind)
	if err == nil && more {
		digits, named := strings.CutPrefix(option, "iops=")
		n, bad := strconv.ParseUint(digits, 10, 32)
		if !named || bad != nil || n < 1 || n > maxIOPS {
			return Profile{}, fmt.Errorf("profile %q: behind %s: comes iops=N, N from 1 to %d", name, kind, maxIOPS)
		}
		p.Name, p.IOPS, p.OpBytes = name, int(n), ssdOpBytes
	}
	return p, err
}

func profileOf(name string) (Profile, error) {
	switch name {
	case "none":
		return Profile{Name: name}, nil
	case "gp3":
		return Profile{
			Name: name,
			ReadLatency: []Quantile{
				{0, 350 * time.Microsecond}, {0.5, 550 * time.Microsecond}, {0.9, 800 * time.Microsecond},
				{0.99, 1600 * time.Microsecond}, {0.999, 5 * time.Millisecond}, {1, 12 * time.Millisecond},
			},
			WriteLatency: []Quantile{
				{0, 450 * time.Microsecond}, {0.5, 700 * time.Microsecond}, {0.9, 950 * time.Microsecond},
				{0.99, 2 * time.Millisecond}, {0.999, 6 * time.Millisecond}, {1, 15 * time.Millisecond},
			},
			IOPS:           3000,
			OpBytes:        ssdOpBytes,
			BytesPerSecond: 125_000_000,
			PauseEvery:     60 * time.Second,
			PauseFor:       80 * time.Millisecond,
		}, nil
	case "io2":
		return Profile{
			Name: name,
			ReadLatency: []Quantile{
				{0, 180 * time.Microsecond}, {0.5, 270 * time.Microsecond}, {0.9, 380 * time.Microsecond},
				{0.99, 750 * time.Microsecond}, {0.999, 1500 * time.Microsecond}, {1, 5 * time.Millisecond},
			},
			WriteLatency: []Quantile{
				{0, 200 * time.Microsecond}, {0.5, 300 * time.Microsecond}, {0.9, 420 * time.Microsecond},
				{0.99, 800 * time.Microsecond}, {0.999, 1500 * time.Microsecond}, {1, 5 * time.Millisecond},
			},
			IOPS:           16_000,
			OpBytes:        ssdOpBytes,
			BytesPerSecond: 500_000_000,
			PauseEvery:     300 * time.Second,
			PauseFor:       40 * time.Millisecond,
		}, nil
	}
	return Profile{}, fmt.Errorf("profile %q: want gp3, io2 or none, and behind it :iops=N for another number of operations", name)
}

// shapes reports whether p changes anything.
func (p *Profile) shapes() bool {
	return len(p.ReadLatency) > 0 || len(p.WriteLatency) > 0 || p.IOPS > 0 || p.BytesPerSecond > 0 || p.PauseEvery > 0
}
