package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/load"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Steady is an open loop at 70 % of the peak, in turns with the raw device under the same
// frames: as many writes a second, sent at their times.
type Steady struct {
	Store  string  `json:"store"`
	Repeat int     `json:"repeat"`
	Peak   float64 `json:"peak_appends_per_s"` // of as many closed-loop producers
	load.Report
}

const (
	steadyProducers = 256
	steadyInFlight  = 16 // of each, at most: an open loop waits for nobody
	steadyShare     = 0.7
)

// MeasureSteady measures peak and open loop, one after the other, several times.
func (h *Host) MeasureSteady(ctx context.Context, d time.Duration, repeats int) (rows []Steady, err error) {
	for repeat := 1; repeat <= repeats; repeat++ {
		r, err := h.steady(ctx, d)
		if err != nil {
			return rows, err
		}
		r.Repeat = repeat
		h.Say("%s, 70 %% of %.0f: %.0f appends/s, p50 %.0f p99 %.0f p99.9 %.0f µs; raw, %d B: p50 %.0f p99 %.0f p99.9 %.0f µs",
			r.Store, r.Peak, r.AppendsPerSecond, r.P50, r.P99, r.P999, r.FrameBytes, r.RawReport.P50, r.RawReport.P99, r.RawReport.P999)
		rows = append(rows, r)
	}
	return rows, nil
}

func (h *Host) steady(ctx context.Context, d time.Duration) (r Steady, err error) {
	dir, err := h.Store.Fresh(true)
	if err != nil {
		return r, err
	}
	wal := h.Store.Device
	if wal == "" {
		wal = filepath.Join(dir, "wal")
	}
	unshaped, err := device.ProfileNamed("none")
	if err != nil {
		return r, err
	}
	own, err := load.StartOwn(ctx, h.Program, wal, unshaped, "adaptive")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	cell := load.Cell{SizeBytes: fillRecord, Producers: steadyProducers, InFlight: 1, Duration: d, Door: "shm", Waiting: walsidecar.WaitAdaptive}
	peak, err := load.Measure(ctx, own.Target, cell)
	if err != nil {
		return r, fmt.Errorf("the peak: %w", err)
	}
	cell.InFlight, cell.RatePerSecond = steadyInFlight, steadyShare*peak.AppendsPerSecond
	open, err := load.Measure(ctx, own.Target, cell)
	if err != nil {
		return r, err
	}
	return Steady{Store: h.Store.Label, Peak: peak.AppendsPerSecond, Report: *open}, nil
}
