package drive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/bench/machine"
)

// Times are how long a cell goes.
type Times struct {
	WarmUp  time.Duration // before it counts
	Measure time.Duration
}

// Result is one measured cell of one system.
type Result struct {
	System string `json:"system"`
	Store  string `json:"store"`
	Cell
	Repeat  int     `json:"repeat"`
	Seconds float64 `json:"seconds"`
	Counted

	AppendsPerSecond float64 `json:"appends_per_s"`
	MBPerSecond      float64 `json:"mb_per_s"`
	// CPU is the processor time of all processes of the load and of the system, and of
	// kernel threads.
	CPU          float64 `json:"cpu_us_per_append"`
	KernelCPU    float64 `json:"kernel_cpu_us_per_append"` // the kernel threads of CPU
	DeviceWrites float64 `json:"device_writes_per_append"`
	DeviceBytes  float64 `json:"device_bytes_per_payload_byte"`
	Flushes      float64 `json:"device_flushes_per_append"`
	MeanBatch    float64 `json:"mean_batch,omitempty"` // records per write of the driver's group committer
	ForeignCores float64 `json:"foreign_cores"`        // processor time of everything else, per second
	StolenCores  float64 `json:"stolen_cores"`         // that the hypervisor gave to others, per second
	When         string  `json:"when"`
	Error        string  `json:"error,omitempty"`
}

// Measure opens the system, makes the load of the cell, and closes it.
func Measure(ctx context.Context, system System, s Setup, t Times) (r Result, err error) {
	r = Result{Cell: s.Cell, When: time.Now().UTC().Format(time.RFC3339)}
	if err = system.Open(ctx, s); err != nil {
		return r, errors.Join(fmt.Errorf("open: %w", err), system.Close())
	}
	defer func() {
		if failed := system.Close(); failed != nil && err == nil {
			err = fmt.Errorf("close: %w", failed)
		}
	}()
	if p, ok := system.(Program); ok {
		return r, measureProgram(ctx, p, s, t, &r)
	}
	return r, measureHere(system, s, t, &r)
}

// measureHere makes the load in this process.
func measureHere(system System, s Setup, t Times, r *Result) error {
	g := newGenerator(s.Cell)
	c, err := start(g, system)
	if err != nil {
		return err
	}
	time.Sleep(t.WarmUp)
	var batches, records int64
	if c != nil {
		batches, records = c.batches.Load(), c.records.Load()
	}
	before := machine.Look(s.Device)
	g.phase.CompareAndSwap(warming, measuring)
	for until := time.Now().Add(t.Measure); time.Now().Before(until) && g.phase.Load() == measuring; {
		time.Sleep(min(10*time.Millisecond, time.Until(until)))
	}
	g.phase.Store(stopped)
	after := machine.Look(s.Device)
	if c != nil {
		batches, records = c.batches.Load()-batches, c.records.Load()-records
		r.MeanBatch = per(float64(records), float64(batches))
	}
	r.Counted, err = g.stop()
	if c != nil {
		c.close()
	}
	r.fill(machine.Between(before, after))
	return err
}

// start begins the load by the way that the system has for it; the committer is nil if
// the system needs none.
func start(g *generator, system System) (*committer, error) {
	pipeline, hasPipeline := system.(Pipeline)
	appender, hasAppender := system.(Appender)
	batcher, hasBatcher := system.(Batcher)
	switch pipelined := g.cell.Pipelined(); {
	case pipelined && g.cell.Producers != 1:
		return nil, errors.New("only one producer can be pipelined")
	case pipelined && hasPipeline:
		g.pipelined(pipeline)
	case !pipelined && hasAppender:
		g.closed(appender)
	case hasBatcher:
		c := newCommitter(batcher)
		if pipelined {
			g.pipelined(newPipe(c, g.cell.InFlight))
		} else {
			g.closed(c)
		}
		return c, nil
	default:
		return nil, errors.New("it has no way to append for this cell")
	}
	return nil, nil
}

// fill derives what is per append from what was counted.
func (r *Result) fill(used machine.Used) {
	n := float64(r.Appends)
	r.Seconds = used.Lasted.Seconds()
	r.AppendsPerSecond = per(n, r.Seconds)
	r.MBPerSecond = r.AppendsPerSecond * float64(r.Size) / 1e6
	r.CPU, r.KernelCPU = per(micros(used.Processes+used.KernelThreads), n), per(micros(used.KernelThreads), n)
	r.DeviceWrites, r.Flushes = per(float64(used.Device.Writes), n), per(float64(used.Device.Flushes), n)
	r.DeviceBytes = per(float64(used.Device.WrittenBytes), n*float64(r.Size))
	r.ForeignCores, r.StolenCores = per(used.Foreign.Seconds(), r.Seconds), per(used.Stolen.Seconds(), r.Seconds)
}

// per divides; by 0 it is 0.
func per(sum, count float64) float64 {
	if count == 0 {
		return 0
	}
	return sum / count
}
