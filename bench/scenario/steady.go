package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/load"
)

// Steady is an open loop at 70 % of the peak, and beside it the raw device under the same
// frames: data-sync writes of the mean frame, as many a second, sent at their times.
type Steady struct {
	Store      string  `json:"store"`
	Repeat     int     `json:"repeat"`
	Peak       float64 `json:"peak_appends_per_s"` // of 256 closed-loop producers
	Rate       float64 `json:"appends_per_s"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p999_us"`
	FrameBytes int     `json:"frame_bytes"`
	FramesPerS float64 `json:"frames_per_s"`
	RawP50     float64 `json:"raw_p50_us"`
	RawP99     float64 `json:"raw_p99_us"`
	RawP999    float64 `json:"raw_p999_us"`
	RawPerS    float64 `json:"raw_writes_per_s"`
}

const (
	steadyProducers = 256
	steadyInFlight  = 16 // of each, at most: an open loop waits for nobody
	steadyShare     = 0.7
	// rawWriters is how many raw writes may be in flight.
	rawWriters = 8
	rawArea    = 512 << 20
	rawBlock   = 4096
)

// MeasureSteady measures the two one after the other, several times.
func (h *Host) MeasureSteady(ctx context.Context, d time.Duration, repeats int) (rows []Steady, err error) {
	for repeat := 1; repeat <= repeats; repeat++ {
		r, err := h.steady(ctx, d)
		if err != nil {
			return rows, err
		}
		r.Store, r.Repeat = h.Store.Label, repeat
		h.Say("%s, 70 %% of %.0f: %.0f appends/s, p50 %.0f p99 %.0f p99.9 %.0f µs; raw, %.0f of %d B: p50 %.0f p99 %.0f p99.9 %.0f µs",
			r.Store, r.Peak, r.Rate, r.P50, r.P99, r.P999, r.RawPerS, r.FrameBytes, r.RawP50, r.RawP99, r.RawP999)
		rows = append(rows, r)
	}
	return rows, nil
}

func (h *Host) steady(ctx context.Context, d time.Duration) (r Steady, err error) {
	wal, err := h.format(ctx)
	if err != nil {
		return r, err
	}
	s, err := h.serve(ctx, wal, "none")
	if err != nil {
		return r, err
	}
	err = s.measureSteady(ctx, d, &r)
	s.end(syscall.SIGTERM)
	if err != nil {
		return r, err
	}
	dir, err := h.Store.Fresh(true)
	if err != nil {
		return r, err
	}
	path := h.Store.Device
	if path == "" {
		path = filepath.Join(dir, "raw")
		if err := os.WriteFile(path, make([]byte, rawArea/4), 0o600); err != nil {
			return r, err
		}
	}
	return r, rawSteady(path, d, &r)
}

func (s *sidecar) measureSteady(ctx context.Context, d time.Duration, r *Steady) error {
	target, err := load.Running(ctx, s.socket)
	if err != nil {
		return err
	}
	cell := load.Cell{SizeBytes: fillRecord, Producers: steadyProducers, InFlight: 1, Duration: d, Door: "shm", Waiting: walsidecar.WaitAdaptive}
	peak, err := load.Measure(ctx, target, cell)
	if err != nil {
		return fmt.Errorf("the peak: %w", err)
	}
	cell.InFlight, cell.RatePerSecond = steadyInFlight, steadyShare*peak.AppendsPerSecond
	report, err := load.Measure(ctx, target, cell)
	if err != nil {
		return err
	}
	r.Peak, r.Rate, r.P50, r.P99, r.P999 = peak.AppendsPerSecond, report.AppendsPerSecond, report.P50, report.P99, report.P999
	r.FramesPerS = report.DeviceWrites * report.AppendsPerSecond
	if r.FramesPerS == 0 {
		return errors.New("the sidecar counts no device writes")
	}
	mean := report.DeviceBytes * fillRecord / report.DeviceWrites
	r.FrameBytes = max(int(mean+rawBlock/2)/rawBlock, 1) * rawBlock
	return nil
}

// rawSteady writes frames at their times, each by whoever is free.
func rawSteady(path string, d time.Duration, r *Steady) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	buffer, err := unix.Mmap(-1, 0, r.FrameBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buffer) }() // it is ours
	_, _ = rand.NewChaCha8([32]byte{'r', 'a', 'w'}).Read(buffer)
	frames := int64(rawArea / 4 / r.FrameBytes)
	interval := time.Duration(float64(time.Second) / r.FramesPerS)
	var next atomic.Int64
	var writers sync.WaitGroup
	latencies := make([]load.Histogram, rawWriters)
	errs := make([]error, rawWriters)
	began := time.Now()
	for i := range rawWriters {
		writers.Go(func() {
			for {
				n := next.Add(1) - 1
				due := began.Add(time.Duration(n) * interval)
				if due.Sub(began) >= d {
					return
				}
				time.Sleep(time.Until(due))
				if _, errs[i] = f.WriteAt(buffer, n%frames*int64(r.FrameBytes)); errs[i] != nil {
					return
				}
				latencies[i].Record(time.Since(due))
			}
		})
	}
	writers.Wait()
	var all load.Histogram
	for i := range latencies {
		all.Add(&latencies[i])
	}
	us := func(q float64) float64 { return float64(all.Quantile(q).Nanoseconds()) / 1000 }
	r.RawP50, r.RawP99, r.RawP999 = us(0.5), us(0.99), us(0.999)
	r.RawPerS = float64(all.Count()) / time.Since(began).Seconds()
	return errors.Join(errs...)
}
