package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/load"
)

// Together is the latency of appends at a steady rate while other things go on.
type Together struct {
	Store  string `json:"store"`
	With   string `json:"with"`
	Repeat int    `json:"repeat"`
	load.Report
	ReadMBPerSecond   float64 `json:"cold_read_mb_per_s,omitempty"`
	FollowMBPerSecond float64 `json:"follow_mb_per_s,omitempty"` // all followers together
}

const (
	// togetherRate is records of 1 KiB per second, sent at their times whatever happens.
	togetherRate      = 20_000
	togetherProducers = 8
	togetherInFlight  = 256
	followers         = 4
	scanners          = 2
	// coldBytes are read from the object store over and over: more than what is cached.
	coldBytes = 512 << 20
)

// MeasureTogether measures appends without a store, and with one while nothing else, while
// followers, and while followers and cold reads run.
func (h *Host) MeasureTogether(ctx context.Context, d time.Duration, repeats int) (rows []Together, err error) {
	for repeat := 1; repeat <= repeats; repeat++ {
		for _, with := range []func(context.Context, time.Duration) ([]Together, error){h.withoutStore, h.withStore} {
			more, err := with(ctx, d)
			for i := range more {
				r := &more[i]
				r.Store, r.Repeat = h.Store.Label, repeat
				h.Say("%s, %s: %.0f appends/s, p50 %.0f p99 %.0f p99.9 %.0f µs; followed %.0f MB/s, read %.0f MB/s", r.Store, r.With, r.AppendsPerSecond, r.P50, r.P99, r.P999, r.FollowMBPerSecond, r.ReadMBPerSecond)
			}
			rows = append(rows, more...)
			if err != nil {
				return rows, err
			}
		}
	}
	return rows, nil
}

func (h *Host) withoutStore(ctx context.Context, d time.Duration) ([]Together, error) {
	wal, err := h.format(ctx)
	if err != nil {
		return nil, err
	}
	s, err := h.serve(ctx, wal, "none")
	if err != nil {
		return nil, err
	}
	defer s.end(syscall.SIGTERM)
	report, err := s.steady(ctx, d)
	return []Together{{With: "nothing else", Report: report}}, err
}

func (h *Host) withStore(ctx context.Context, d time.Duration) (rows []Together, err error) {
	wal, err := h.format(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := h.objects()
	if err != nil {
		return nil, err
	}
	s, err := h.serve(ctx, wal, objects)
	if err != nil {
		return nil, err
	}
	defer s.end(syscall.SIGTERM)
	if err := s.fill(ctx, "past", coldBytes); err != nil {
		return nil, err
	}
	if _, err := h.run(ctx, "flush", "--socket", s.socket); err != nil {
		return nil, err
	}
	for _, with := range []struct {
		name            string
		follow, scanned int
	}{{"uploads", 0, 0}, {"uploads, 4 followers", followers, 0}, {"uploads, 4 followers, 2 cold scans", followers, scanners}} {
		r, err := s.beside(ctx, d, with.follow, with.scanned)
		if err != nil {
			return rows, fmt.Errorf("with %s: %w", with.name, err)
		}
		r.With = with.name
		rows = append(rows, r)
	}
	return rows, nil
}

// beside measures while so many follow the whole log and so many read the past.
func (s *sidecar) beside(ctx context.Context, d time.Duration, follow, scan int) (r Together, err error) {
	reading, stop := context.WithCancel(ctx)
	var followed, read atomic.Int64
	var readers sync.WaitGroup
	failed := make(chan error, follow+scan)
	var position struct {
		Durable uint64 `json:"durable_position"`
	}
	if err := s.status(ctx, &position); err != nil {
		stop()
		return r, err
	}
	for i := range follow + scan {
		readers.Go(func() {
			c, err := walsidecar.Dial(reading, s.socket, walsidecar.WithDoor(walsidecar.DoorSocket))
			if err == nil && i < follow {
				err = s.follow(reading, c, position.Durable, &followed)
			} else if err == nil {
				err = s.scan(reading, c, &read)
			}
			if err != nil && reading.Err() == nil {
				failed <- err
			}
		})
	}
	began := time.Now()
	r.Report, err = s.steady(ctx, d)
	seconds := time.Since(began).Seconds()
	r.FollowMBPerSecond, r.ReadMBPerSecond = float64(followed.Load())/1e6/seconds, float64(read.Load())/1e6/seconds
	stop()
	readers.Wait()
	select {
	case late := <-failed:
		err = errors.Join(err, late)
	default:
	}
	return r, err
}

// follow counts what comes of the whole log.
func (s *sidecar) follow(ctx context.Context, c *walsidecar.Client, from uint64, bytes *atomic.Int64) error {
	defer c.Close()
	for r, err := range c.FollowLog(ctx, from) {
		if err != nil && !errors.As(err, new(*walsidecar.Gap)) { // the load trims as it goes
			return err
		}
		bytes.Add(int64(len(r.Data)))
	}
	return nil
}

// scan reads the past from its beginning, over and over.
func (s *sidecar) scan(ctx context.Context, c *walsidecar.Client, bytes *atomic.Int64) error {
	defer c.Close()
	for ctx.Err() == nil {
		for r, err := range c.Read(ctx, "past") {
			if err != nil {
				return err
			}
			bytes.Add(int64(len(r.Data)))
		}
	}
	return nil
}

// steady appends at a steady rate, by the load of `walsidecar bench --rate`.
func (s *sidecar) steady(ctx context.Context, d time.Duration) (load.Report, error) {
	target, err := load.Running(ctx, s.socket)
	if err != nil {
		return load.Report{}, err
	}
	report, err := load.Measure(ctx, target, load.Cell{
		SizeBytes: fillRecord, Producers: togetherProducers, InFlight: togetherInFlight, RatePerSecond: togetherRate, Duration: d, Door: "shm", Waiting: walsidecar.WaitAdaptive,
	})
	if err != nil {
		return load.Report{}, err
	}
	return *report, nil
}
