package node

import (
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/wire"
)

// BucketsNS are the upper bounds of a Histogram's buckets: 16 µs, doubled up to 16 s.
var BucketsNS = func() (b [21]int64) {
	for i := range b {
		b[i] = 16_000 << i
	}
	return b
}()

// Histogram counts durations in buckets. One writer; any reader.
type Histogram struct {
	buckets [len(BucketsNS) + 1]atomic.Uint64
	sumNS   atomic.Int64
}

func (h *Histogram) observe(ns int64) {
	i := 0
	for i < len(BucketsNS) && ns > BucketsNS[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sumNS.Add(ns)
}

// Snapshot returns the cumulative counts per upper bound in seconds, the number of
// observations, and their sum in seconds.
func (h *Histogram) Snapshot() (buckets map[float64]uint64, count uint64, sumSeconds float64) {
	buckets = make(map[float64]uint64, len(BucketsNS))
	for i, bound := range BucketsNS {
		count += h.buckets[i].Load()
		buckets[float64(bound)/1e9] = count
	}
	count += h.buckets[len(BucketsNS)].Load()
	return buckets, count, float64(h.sumNS.Load()) / 1e9
}

// Stages of an append, each from the end of the one before it.
const (
	StageTotal  = iota // decided → answer handed to its session
	StageQueue         // frame closed → handed to a writer
	StageDevice        // handed to a writer → completion seen by the commit loop
	StageOrder         // completion seen → every earlier frame complete too
	StageCount
)

// StageNames are the metric labels of the stages.
var StageNames = [StageCount]string{"total", "queue", "device", "order"}

// Metrics are the numbers of a node since it was opened. Counters only grow.
type Metrics struct {
	Stages           [StageCount]Histogram
	Appends, Records atomic.Uint64
	PayloadBytes     atomic.Uint64
	Frames           [5]atomic.Uint64 // by ringwal.FrameKind
	DeviceWrites     atomic.Uint64
	DeviceBytes      atomic.Uint64
	Refused          [128]atomic.Uint64 // by wire.Code
	Stall            atomic.Uint32      // ringwal.StallState
}

// Metrics returns the numbers; they go on changing.
func (n *Node) Metrics() *Metrics { return &n.stats.Metrics }

// stats is Metrics and what the loop keeps beside it.
type stats struct {
	Metrics
	sampleNS     int64  // when the last sample was taken
	sampleHead   uint64 // head then
	bytesPerSec  float64
	slowLoggedNS int64
}

func (s *stats) issued(f *ringwal.Frame) {
	s.Frames[f.Kind].Add(1)
	s.DeviceWrites.Add(1)
	s.DeviceBytes.Add(uint64(len(f.Buf)))
	s.Stages[StageQueue].observe(f.IssuedNS - f.ClosedNS)
}

func (s *stats) durable(f *ringwal.Frame, nowNS int64) {
	s.Stages[StageDevice].observe(f.CompletedNS - f.IssuedNS)
	s.Stages[StageOrder].observe(nowNS - f.CompletedNS)
}

func (s *stats) appended(entries []wire.Entry) {
	bytes := 0
	for i := range entries {
		bytes += len(entries[i].Payload)
	}
	s.Appends.Add(1)
	s.Records.Add(uint64(len(entries)))
	s.PayloadBytes.Add(uint64(bytes))
}

func (s *stats) refused(c wire.Code) {
	if int(c) < len(s.Refused) {
		s.Refused[c].Add(1)
	}
}

// rateHalfLife smooths the growth of the log for the time to full.
const rateHalfLife = 10 * time.Second

// sample follows how fast the log grows, at most once a second.
func (s *stats) sample(nowNS int64, head uint64) {
	passed := nowNS - s.sampleNS
	if passed < int64(time.Second) {
		return
	}
	if s.sampleNS != 0 {
		rate := float64(head-s.sampleHead) / (float64(passed) / 1e9)
		weight := min(1, float64(passed)/float64(2*rateHalfLife))
		s.bytesPerSec += weight * (rate - s.bytesPerSec)
	}
	s.sampleNS, s.sampleHead = nowNS, head
}
