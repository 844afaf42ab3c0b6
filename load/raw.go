package load

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Raw is an area of the device that the log does not use, to measure the device
// itself in: sequential data-sync writes with direct I/O, from Go as the sidecar
// makes them. Not safe for concurrent use.
type Raw struct {
	dev      device.Device
	from, to int64
	at       int64
	arena    *device.Arena
	latency  Histogram
	combos   []rawCombo
	next     int // of combos, to be measured next
}

// rawCombo is one way to write for bandwidth, and what it reached.
type rawCombo struct {
	bytes, depth int
	written      int64
	lasted       time.Duration
}

const (
	// RawBytes is the size of the raw area, at most an eighth of a device.
	RawBytes = 64 << 20
	// rawMaxWrite is the largest single write, rawMaxDepth the deepest queue.
	rawMaxWrite = 1 << 20
	rawMaxDepth = 16
	// rawSettle is how long writes for bandwidth go before they count, rawCounts how
	// long they count: a volume that was idle lends some bandwidth, the shaped one
	// 20 ms of it, and the deepest queue holds 16 MiB.
	rawSettle = 50 * time.Millisecond
	rawCounts = 150 * time.Millisecond
	// rawPerTurn is how many ways of writing for bandwidth have their turn at once.
	rawPerTurn = 2
)

// OpenRaw opens the area [from, to) of the device or file at path, shaped like the
// profile.
func OpenRaw(path string, from, to int64, profile device.Profile) (*Raw, error) {
	dev, err := device.Open(path, device.OpenOptions{})
	if err != nil {
		return nil, err
	}
	if to <= 0 {
		to = dev.SizeBytes()
	}
	arena, err := device.NewArena(rawMaxWrite)
	if err != nil {
		_ = dev.Close() // nothing was written
		return nil, err
	}
	if to-from < rawMaxDepth*rawMaxWrite {
		_ = dev.Close()
		return nil, fmt.Errorf("the raw area of %s has %d bytes, it needs %d", path, to-from, rawMaxDepth*rawMaxWrite)
	}
	random := rand.NewChaCha8([32]byte{'r', 'a', 'w'})
	_, _ = random.Read(arena.Bytes()) // never fails
	r := &Raw{dev: device.Shape(dev, profile), from: from, to: to, at: from, arena: arena}
	r.reset()
	return r, nil
}

// reset forgets what was measured.
func (r *Raw) reset() {
	r.latency, r.combos, r.next = Histogram{}, nil, 0
	for _, bytes := range []int{256 << 10, rawMaxWrite} {
		for _, depth := range []int{1, 4, rawMaxDepth} {
			r.combos = append(r.combos, rawCombo{bytes: bytes, depth: depth})
		}
	}
}

// Close closes the device.
func (r *Raw) Close() error {
	_ = r.arena.Free() // the process ends soon
	return r.dev.Close()
}

// turn measures for one turn: the latency of writes of frameBytes for d, one after the
// other or so many a second; then some of the ways of writing for bandwidth, which take turns.
func (r *Raw) turn(frameBytes int, perSecond float64, d time.Duration) error {
	block := r.dev.BlockBytes()
	frameBytes = min(max((frameBytes+block-1)/block, 1)*block, rawMaxWrite)
	if perSecond > 0 {
		if err := r.openLoop(frameBytes, perSecond, d); err != nil {
			return err
		}
	} else if err := r.oneByOne(frameBytes, d); err != nil {
		return err
	}
	for range rawPerTurn {
		if err := r.burst(&r.combos[r.next%len(r.combos)]); err != nil {
			return err
		}
		r.next++
	}
	return nil
}

// oneByOne writes one after the other.
func (r *Raw) oneByOne(frameBytes int, d time.Duration) error {
	for until := time.Now().Add(d); ; {
		before := time.Now()
		if !before.Before(until) {
			break
		}
		if err := r.dev.WriteSync(r.arena.Bytes()[:frameBytes], r.place(frameBytes)); err != nil {
			return err
		}
		r.latency.Record(time.Since(before))
	}
	return nil
}

// place is where the next write of n bytes goes.
func (r *Raw) place(n int) int64 {
	if r.at+int64(n) > r.to {
		r.at = r.from
	}
	at := r.at
	r.at += int64(n)
	return at
}

// burst keeps depth writes in flight, and counts what completes in rawCounts.
func (r *Raw) burst(c *rawCombo) error {
	var mu sync.Mutex
	var failed error
	start := time.Now().Add(rawSettle)
	until := start.Add(rawCounts)
	var group sync.WaitGroup
	for range c.depth {
		group.Go(func() {
			for time.Now().Before(until) {
				mu.Lock()
				at, stop := r.place(c.bytes), failed != nil
				mu.Unlock()
				if stop {
					return
				}
				err := r.dev.WriteSync(r.arena.Bytes()[:c.bytes], at)
				mu.Lock()
				if err != nil && failed == nil {
					failed = err
				}
				if now := time.Now(); now.After(start) && now.Before(until) {
					c.written += int64(c.bytes)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	c.lasted += rawCounts
	return failed
}

// mbPerSecond is the bandwidth of the best way to write, in 10^6 bytes per second.
func (r *Raw) mbPerSecond() float64 {
	best := 0.0
	for i := range r.combos {
		if c := &r.combos[i]; c.lasted > 0 {
			best = max(best, float64(c.written)/1e6/c.lasted.Seconds())
		}
	}
	return best
}
