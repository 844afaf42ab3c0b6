package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/walsidecar/walsidecar/bench/report"
	"github.com/walsidecar/walsidecar/bench/scenario"
)

// What `more` measures when it is not told, sizes in bytes.
var (
	recoverySizes = []int64{64 << 20, 256 << 20, 1 << 30, 2 << 30}
	takeoverSizes = []int64{0, 64 << 20, 256 << 20, 1 << 30}
	idleClients   = []int{1, 100, 1000}
	idleRings     = []int{1, 10, 40}
	streamCounts  = []int{100, 1000, 20_000}
)

// moreThings are the measurements of `more`, by name.
var moreThings = []struct {
	name    string
	measure func(ctx context.Context, m *more) error
}{
	{"steady", func(ctx context.Context, m *more) (err error) {
		rows, err := m.host.MeasureSteady(ctx, m.length, m.repeats)
		m.results.Steady = append(m.results.Steady, rows...)
		return err
	}},
	{"recovery", func(ctx context.Context, m *more) (err error) {
		rows, err := m.host.MeasureRecovery(ctx, m.sizes(recoverySizes), m.repeats)
		m.results.Recovery = append(m.results.Recovery, rows...)
		return err
	}},
	{"takeover", func(ctx context.Context, m *more) (err error) {
		rows, err := m.host.MeasureTakeover(ctx, m.sizes(takeoverSizes), m.repeats)
		m.results.Takeover = append(m.results.Takeover, rows...)
		return err
	}},
	{"memory", func(ctx context.Context, m *more) (err error) {
		if len(m.results.Memory) > 0 {
			return nil // the store makes no difference
		}
		m.results.Memory, err = m.host.MeasureMemory(ctx, idleClients, idleRings, streamCounts)
		return err
	}},
	{"together", func(ctx context.Context, m *more) (err error) {
		rows, err := m.host.MeasureTogether(ctx, m.length, m.repeats)
		m.results.Together = append(m.results.Together, rows...)
		return err
	}},
	{"profiles", measureProfiles},
}

// more is one run of `more`.
type more struct {
	host    *scenario.Host
	repeats int
	length  time.Duration // of a load
	results report.Results
}

// sizes are those that fit into the store, with room for what is appended beside.
func (m *more) sizes(all []int64) (fit []int64) {
	for _, size := range all {
		if size <= m.host.Store.Bytes/2 {
			fit = append(fit, size)
		}
	}
	return fit
}

func runMore(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("more", flag.ContinueOnError)
	m := &more{}
	stores := f.String("store", os.Getenv(storeVariable), "as of run")
	only := f.String("only", "", "comma list of steady, recovery, takeover, memory, together, profiles; without it, all")
	out := f.String("out", "", "file for the results, JSON; what it holds is replaced")
	objects := f.String("objects", os.TempDir(), "directory for the object store")
	f.IntVar(&m.repeats, "repeats", 3, "")
	f.DurationVar(&m.length, "measure", 4*time.Second, "length of a load")
	programs := programsFlag(f)
	if err := parse(f, args); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(*only, ",") {
		wanted[name] = name != ""
	}
	s := &suite{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(*stores); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(*objects, "walsidecar-bench-objects-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m.results.About = about(*programs)
	for _, store := range s.stores {
		m.host = &scenario.Host{Store: store, Objects: dir, Program: filepath.Join(*programs, "walsidecar"), Say: say}
		for _, thing := range moreThings {
			if *only != "" && !wanted[thing.name] {
				continue
			}
			if err := thing.measure(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", thing.name, err)
			}
			if *out != "" {
				if err := m.results.Save(*out); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// measureProfiles runs `walsidecar bench --profile`.
func measureProfiles(ctx context.Context, m *more) error {
	for repeat := 1; repeat <= m.repeats; repeat++ {
		for _, profile := range []string{"gp3", "io2"} {
			dir, err := m.host.Store.Fresh(true)
			if err != nil {
				return err
			}
			wal := m.host.Store.Device
			if wal == "" {
				wal = filepath.Join(dir, "wal")
			}
			out, err := exec.CommandContext(ctx, m.host.Program, "bench", "--wal", wal, "--door", "shm", "--profile", profile, "--size", strconv.Itoa(kib),
				"--producers", "1,16,256", "--inflight", "1,16", "--duration", m.length.String(), "--json").Output()
			if err != nil {
				return fmt.Errorf("walsidecar bench --profile %s: %w", profile, err)
			}
			for line := range strings.Lines(string(out)) {
				p := report.Profile{Store: m.host.Store.Label, Repeat: repeat}
				if err := json.Unmarshal([]byte(line), &p.Report); err != nil {
					return err
				}
				say("%s, %s, %d × %d: %.0f appends/s, %.1f MB/s, p50 %.0f p99 %.0f µs", p.Store, profile, p.Producer, p.InFlight, p.AppendsPerSecond, p.MBPerSecond, p.Report.P50, p.Report.P99)
				m.results.Profiles = append(m.results.Profiles, p)
			}
		}
	}
	return nil
}
