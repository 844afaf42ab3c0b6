package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/machine"
	"github.com/walsidecar/walsidecar/bench/peers"
	"github.com/walsidecar/walsidecar/bench/report"
)

// storeVariable names stores where no flag does.
const storeVariable = "WALSIDECAR_BENCH_STORE"

// suite is the measurement of some systems on some stores.
type suite struct {
	plan
	peers    []peers.Peer
	stores   []*machine.Store
	programs string
	out      string // file of the results; "": none
	withFio  bool
	wait     time.Duration // for a quiet machine, before each cell, at most
	results  report.Results
	say      io.Writer
	began    time.Time
	failed   int
}

// runSuite measures: all systems have their turn at a cell, then at the next one, and all
// of that several times.
func runSuite(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	named := f.String("plan", "quick", "quick, full or smoke")
	stores := f.String("store", os.Getenv(storeVariable), "comma list of [LABEL=]STORE: ram or file:DIR (a loop device that is made and removed), a block device (what it holds is DESTROYED), a directory ("+storeVariable+"; default ram as root, else a new directory)")
	only := f.String("only", "", "comma list of systems; without it, all")
	cells := f.String("cells", "", "comma list of cells in place of the plan's, such as 1024x16,128xpipe")
	out := f.String("out", "", "file for the results, JSON; what it holds is replaced")
	repeats := f.Int("repeats", 0, "in place of the plan's")
	withFio := f.Bool("fio", true, "measure the raw store with fio too")
	measure := f.Duration("measure", 0, "length of a cell, in place of the plan's")
	wait := f.Duration("wait", 0, "longest wait for a quiet machine before each cell")
	programs := programsFlag(f)
	if err := parse(f, args); err != nil {
		return err
	}
	chosenPlan, ok := plans[*named]
	if !ok {
		return usageError{fmt.Errorf("-plan %q: legal is quick, full or smoke", *named)}
	}
	s := &suite{plan: chosenPlan, programs: *programs, out: *out, withFio: *withFio && *named != "smoke", wait: *wait, say: os.Stdout}
	if *cells != "" {
		s.cells = nil
		for text := range strings.SplitSeq(*cells, ",") {
			c, err := parseCell(text)
			if err != nil {
				return usageError{err}
			}
			s.cells = append(s.cells, c)
		}
	}
	if *repeats > 0 {
		s.repeats = *repeats
	}
	if *measure > 0 {
		s.times.Measure = *measure
	}
	if s.peers, err = chosen(*only, *programs, s.say); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(*stores); err != nil {
		return err
	}
	s.results.About = about(s.programs)
	return s.run(ctx)
}

// about is what is said of a file of results.
func about(programs string) machine.About {
	a := machine.Describe("bench "+strings.Join(os.Args[1:], " "), programs)
	a.Versions = versions(programs)
	return a
}

// open opens the stores.
func (s *suite) open(names string) error {
	if names == "" {
		names = "ram"
		if os.Geteuid() != 0 {
			dir, err := os.MkdirTemp("", "walsidecar-bench-store-")
			if err != nil {
				return err
			}
			names = "directory=" + dir
		}
	}
	for name := range strings.SplitSeq(names, ",") {
		store, err := machine.OpenStore(name)
		if err != nil {
			return err
		}
		s.stores = append(s.stores, store)
	}
	return nil
}

func (s *suite) close() error {
	var errs []error
	for _, store := range s.stores {
		errs = append(errs, store.Close())
	}
	return errors.Join(errs...)
}

// run measures everything as often as planned. What failed is in the results too.
func (s *suite) run(ctx context.Context) error {
	s.began = time.Now()
	for repeat := 1; repeat <= s.repeats; repeat++ {
		for _, store := range s.stores {
			for _, c := range s.cells {
				if err := s.turn(ctx, repeat, store, c); err != nil {
					return err
				}
			}
			if err := s.fio(ctx, repeat, store); err != nil {
				return err
			}
		}
	}
	if s.failed > 0 {
		return fmt.Errorf("%d of %d runs failed", s.failed, len(s.results.Runs))
	}
	return nil
}

// turn measures one cell of each system.
func (s *suite) turn(ctx context.Context, repeat int, store *machine.Store, c drive.Cell) error {
	for _, p := range s.peers {
		if !p.Measures(c) || s.skips != nil && s.skips(p, c) {
			continue
		}
		machine.AwaitQuiet(ctx, s.wait)
		r := measureCell(ctx, p, store, c, s.times, s.programs)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.Repeat = repeat
		if r.Error != "" {
			s.failed++
		}
		fmt.Fprintf(s.say, "%4.0f s  %d/%d  %s\n", time.Since(s.began).Seconds(), repeat, s.repeats, line(r))
		s.results.Runs = append(s.results.Runs, r)
		if err := s.save(); err != nil {
			return err
		}
	}
	return nil
}

// fio measures the raw store, where fio is installed and wanted.
func (s *suite) fio(ctx context.Context, repeat int, store *machine.Store) error {
	if !s.withFio {
		return nil
	}
	rows, err := runFio(ctx, store, s.times.Measure)
	if errors.Is(err, errSkipped) {
		if repeat == 1 {
			fmt.Fprintf(s.say, "SKIPPED: fio: %v\n", err)
		}
		return nil
	}
	for i := range rows {
		rows[i].Repeat = repeat
		fmt.Fprintf(s.say, "%4.0f s  %d/%d  %-6s fio %-8s depth %2d  %7d B %9.0f/s  p50 %7.0f  p99 %7.0f  p99.9 %7.0f µs  others %.2f cores\n", time.Since(s.began).Seconds(), repeat, s.repeats,
			store.Label, rows[i].Engine, rows[i].Depth, rows[i].Bytes, rows[i].WritesPerSecond, rows[i].P50, rows[i].P99, rows[i].P999, rows[i].ForeignCores)
	}
	s.results.Fio = append(s.results.Fio, rows...)
	return errors.Join(err, s.save())
}

func (s *suite) save() error {
	if s.out == "" {
		return nil
	}
	return s.results.Save(s.out)
}

// line is one run as it is printed.
func line(r drive.Result) string {
	what := fmt.Sprintf("%-6s %-20s %-22s", r.Store, report.CellName(r.Cell), r.System)
	if r.Error != "" {
		return what + " FAILED: " + r.Error
	}
	return fmt.Sprintf("%s %9.0f/s  p50 %7.0f  p99 %7.0f  p99.9 %7.0f µs  cpu %6.2f µs  bytes %5.2f  writes %6.4f  others %.2f cores",
		what, r.AppendsPerSecond, r.P50, r.P99, r.P999, r.CPU, r.DeviceBytes, r.DeviceWrites, r.ForeignCores)
}
