package load

import (
	"context"
	"fmt"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// Target is the sidecar to measure.
type Target struct {
	Socket  string
	HTTP    string // path of the HTTP door's socket; "": it has none
	PID     int    // of the sidecar; 0: its processor time is not known
	Profile string // that its device is shaped like
	Raw     *Raw   // beside the log; nil: none
}

const (
	// turns is how many turns the load and the raw device take, each of the load's
	// not shorter than shortestTurn.
	turns        = 10
	shortestTurn = 200 * time.Millisecond
	// warmUpShare is the part of the duration that the load runs before it counts,
	// warmUpLongest at most.
	warmUpShare   = 5
	warmUpLongest = time.Second
	// rttPings is how many round trips of the door are measured in each turn.
	rttPings = 50
	// rawShare is the part of a turn's length that single raw writes get.
	rawShare = 5
	// trimShare is the part of the log's capacity that is appended between two
	// trims, trimEvery how often that is looked at.
	trimShare = 8
	trimEvery = 10 * time.Millisecond
)

// run is one cell under measurement.
type run struct {
	target  Target
	load    *generator
	control *walsidecar.Client
	tally   tally
	rtt     Histogram
	ring    *walsidecar.Client // for the round trips of a ring, where nothing is behind it
	lasted  time.Duration      // the load, with what was in flight at the ends of its turns
	own     time.Duration      // processor time of this process, in the load
	sidecar time.Duration      // of the sidecar
	device  counters           // of the load
}

// Measure measures one cell. The streams that it appends to are deleted at the end.
func Measure(ctx context.Context, t Target, cell Cell) (*Report, error) {
	control, err := walsidecar.Dial(ctx, t.Socket, walsidecar.WithName("walsidecar bench"), walsidecar.WithDoor(walsidecar.DoorSocket))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	if t.Raw != nil {
		t.Raw.reset()
	}
	load, err := newGenerator(ctx, t, cell)
	if err != nil {
		return nil, err
	}
	defer load.close()
	r := &run{target: t, load: load, control: control}
	if cell.Door == "shm" && control.Log().NotDurable {
		if r.ring, err = walsidecar.Dial(ctx, t.Socket, walsidecar.WithName("walsidecar bench"), walsidecar.WithDoor(walsidecar.DoorShm), walsidecar.WithWaiting(cell.Waiting)); err != nil {
			return nil, err
		}
		defer r.ring.Close()
	}
	if err := r.measure(ctx); err != nil {
		return nil, err
	}
	if !control.Log().NotDurable {
		if err := load.remove(ctx); err != nil {
			return nil, fmt.Errorf("delete the streams of the load: %w", err)
		}
	}
	return r.report(), nil
}

func (r *run) measure(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !r.control.Log().NotDurable {
		now, err := readCounters(ctx, r.control)
		if err != nil {
			return err
		}
		trimmed := make(chan struct{})
		go func() {
			defer close(trimmed)
			if err := r.trimAsItGoes(ctx, now.CapacityBytes/trimShare); err != nil {
				cancel(err)
			}
		}()
		defer func() { cancel(nil); <-trimmed }()
	}
	duration := r.load.cell.Duration
	var warm tally
	if err := r.load.phase(ctx, min(duration/warmUpShare, warmUpLongest), &warm); err != nil {
		return err
	}
	r.load.collect(&warm)
	length := max(duration/turns, shortestTurn)
	for left := duration; left > 0; left -= length {
		if err := r.turn(ctx, min(length, left)); err != nil {
			return err
		}
	}
	return nil
}

// turn measures the load for d, then the door and the device alone.
func (r *run) turn(ctx context.Context, d time.Duration) error {
	before, err := r.snapshot(ctx)
	if err != nil {
		return err
	}
	if err := r.load.phase(ctx, d, &r.tally); err != nil {
		return err
	}
	after, err := r.snapshot(ctx)
	if err != nil {
		return err
	}
	r.load.collect(&r.tally)
	r.lasted += after.at.Sub(before.at)
	r.own += after.own - before.own
	r.sidecar += after.sidecar - before.sidecar
	r.device.PayloadBytes += after.device.PayloadBytes - before.device.PayloadBytes
	r.device.DeviceWrites += after.device.DeviceWrites - before.device.DeviceWrites
	r.device.DeviceBytes += after.device.DeviceBytes - before.device.DeviceBytes
	for range rttPings {
		begin := time.Now()
		if err := r.ping(ctx); err != nil {
			return err
		}
		r.rtt.Record(time.Since(begin))
	}
	if r.target.Raw == nil {
		return nil
	}
	if r.load.cell.RatePerSecond > 0 { // the tail of the same frames at the same times
		return r.target.Raw.turn(r.frameBytes(), per(float64(r.device.DeviceWrites), r.lasted.Seconds()), d)
	}
	return r.target.Raw.turn(r.frameBytes(), 0, d/rawShare)
}

// ping is one round trip of the door. That of a ring is an append that nothing is done
// for; where there is a log behind it, it is the socket's.
func (r *run) ping(ctx context.Context) error {
	if r.ring != nil {
		_, err := r.ring.Append(ctx, r.load.streams[0], nil)
		return err
	}
	if w := r.load.web; w != nil {
		return w.ping()
	}
	return r.control.Ping(ctx)
}

// snapshot is what counts on while the load runs.
type snapshot struct {
	at           time.Time
	own, sidecar time.Duration
	device       counters
}

func (r *run) snapshot(ctx context.Context) (s snapshot, err error) {
	if !r.control.Log().NotDurable {
		if s.device, err = readCounters(ctx, r.control); err != nil {
			return s, err
		}
	}
	if r.target.PID != 0 {
		if s.sidecar, err = cpuOf(r.target.PID); err != nil {
			return s, err
		}
	}
	s.at, s.own = time.Now(), cpuOfSelf()
	return s, nil
}

// frameBytes is the mean device write of the load so far.
func (r *run) frameBytes() int {
	return int(per(float64(r.device.DeviceBytes), float64(r.device.DeviceWrites)))
}

// trimAsItGoes trims the streams of the load each time that so many bytes more
// were appended.
func (r *run) trimAsItGoes(ctx context.Context, every uint64) error {
	client, err := walsidecar.Dial(ctx, r.target.Socket, walsidecar.WithName("walsidecar bench, trims"))
	if err != nil {
		return err
	}
	defer client.Close()
	trimmed := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(trimEvery):
		}
		records := uint64(0)
		for i := range r.load.appended {
			records += r.load.appended[i].Load()
		}
		if (records-trimmed)*uint64(r.load.cell.SizeBytes+messageBytes) < every {
			continue
		}
		trimmed = records
		if err := r.load.trim(ctx, client); err != nil && ctx.Err() == nil {
			return fmt.Errorf("trim as the load goes: %w", err)
		}
	}
}

func (r *run) report() *Report {
	cell, l := &r.load.cell, &r.tally.latency
	acked, seconds := float64(r.tally.acked), r.tally.lasted.Seconds()
	rate := float64(r.tally.onTime) / seconds
	report := &Report{
		Door: cell.Door, Durable: !r.control.Log().NotDurable, Profile: r.target.Profile,
		Size: cell.SizeBytes, Producer: cell.Producers, InFlight: cell.InFlight, Rate: cell.RatePerSecond, Sessions: len(r.load.sessions),
		Seconds: seconds, Appends: r.tally.acked, AppendsPerSecond: rate, MBPerSecond: rate * float64(cell.SizeBytes) / 1e6,
		P50: micros(l.Quantile(0.5)), P99: micros(l.Quantile(0.99)), P999: micros(l.Quantile(0.999)), Max: micros(l.Max()),
		CPU: per(micros(r.own+r.sidecar), acked), ClientCPU: per(micros(r.own), acked),
		DeviceWrites:     per(float64(r.device.DeviceWrites), acked),
		DeviceWritesRate: per(float64(r.device.DeviceWrites), r.lasted.Seconds()),
		DeviceBytes:      per(float64(r.device.DeviceBytes), float64(r.device.PayloadBytes)),
		RTT:              micros(r.rtt.Quantile(0.5)),
	}
	if raw := r.target.Raw; raw != nil {
		x := &RawReport{
			FrameBytes: r.frameBytes(), P50: micros(raw.latency.Quantile(0.5)), P99: micros(raw.latency.Quantile(0.99)), P999: micros(raw.latency.Quantile(0.999)), MBPerSecond: raw.mbPerSecond(),
		}
		x.RatioP50, x.RatioP99, x.RatioOfBandwidth = per(report.P50, x.P50), per(report.P99, x.P99), per(report.MBPerSecond, x.MBPerSecond)
		report.RawReport = x
	}
	return report
}
