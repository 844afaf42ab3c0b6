package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/walsidecar/walsidecar/load"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/shm"
)

// benchFlags are the flags of `walsidecar bench`.
type benchFlags struct {
	wal       string
	door      string
	null      bool
	sizes     []int
	producers []int
	inFlight  []int
	rate      float64
	duration  time.Duration
	profile   string
	shmWait   string
}

// newBenchCommand makes `walsidecar bench`.
func newBenchCommand(a *app) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "measure appends",
		Long: "Measure durable appends through a running sidecar (--socket), or with --wal through one of\n" +
			"the bench's own, a process apart, on a blank device or a new file: it formats that, measures\n" +
			"the raw device in an area outside the log in turns with the load, and removes the log at the\n" +
			"end. What holds data is refused. --null measures the door alone, and keeps nothing.\n" +
			"\n" +
			"--size, --producers and --inflight may be lists: one result for each combination. Latencies\n" +
			"count from the intended send time; of producers with 64 in flight or more, one record of 8 is\n" +
			"timed. Without --rate each producer has --inflight records unanswered (1: the closed loop);\n" +
			"with it, all together send so many a second, as far as --inflight allows, and the raw device\n" +
			"is written to at the rate of the load's frames, a tail to compare with. Over HTTP each\n" +
			"record is a request of its own. A --profile shapes the device (latency, operations and bytes a\n" +
			"second, pauses), and the sidecar is told the same budgets, as WALSIDECAR_WAL_IOPS and\n" +
			"WALSIDECAR_WAL_BANDWIDTH would tell it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runBench(a, cmd, f) },
	}
	cmd.Flags().StringVar(&f.wal, "wal", "", "a blank device, or a new file, for a sidecar of the bench's own")
	cmd.Flags().StringVar(&f.door, "door", "uds", "the door to append through: uds, shm or http")
	cmd.Flags().BoolVar(&f.null, "null", false, "measure the door alone: nothing is kept")
	cmd.Flags().IntSliceVar(&f.sizes, "size", []int{1024}, "bytes of a record")
	cmd.Flags().IntSliceVar(&f.producers, "producers", []int{1}, "how many append at once")
	cmd.Flags().IntSliceVar(&f.inFlight, "inflight", []int{1}, "records that each producer has unanswered")
	cmd.Flags().Float64Var(&f.rate, "rate", 0, "records a second of all producers together; 0: as many as go through")
	cmd.Flags().DurationVar(&f.duration, "duration", 5*time.Second, "of the load of each result")
	cmd.Flags().StringVar(&f.profile, "profile", "none", "make the device of --wal as slow as a volume type: gp3, io2 or none; gp3:iops=500 with so many operations a second")
	cmd.Flags().StringVar(&f.shmWait, "shm-wait", "adaptive", "how this process, and a sidecar of its own, wait in shared memory: adaptive, spin or block")
	cmd.MarkFlagsMutuallyExclusive("wal", "null")
	addClientFlags(cmd)
	cmd.MarkFlagsMutuallyExclusive("wal", "socket")
	cmd.MarkFlagsMutuallyExclusive("null", "socket")
	return cmd
}

// newBenchNullCommand makes the hidden command that is the other process of
// `bench --null`.
func newBenchNullCommand() *cobra.Command {
	return &cobra.Command{
		Use: "bench-null WAITING SOCKET", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			return load.ServeNull(ctx, args[1], shm.Waitings[args[0]])
		},
	}
}

// benchLimits are the largest legal values of the flags.
const (
	benchMaxSize      = 1 << 20
	benchMaxProducers = 4096
	benchMaxInFlight  = 8192
)

// cells are the combinations that the flags ask for.
func (f *benchFlags) cells() ([]load.Cell, error) {
	if _, ok := load.Doors[f.door]; !ok {
		return nil, usagef("--door %q: the doors are uds, shm and http", f.door)
	}
	waiting, ok := shm.Waitings[f.shmWait]
	if !ok {
		return nil, usagef("--shm-wait %q: legal is adaptive, spin or block", f.shmWait)
	}
	if f.duration <= 0 || f.rate < 0 {
		return nil, usagef("--duration must be above 0, --rate not below")
	}
	for _, flag := range []struct {
		name   string
		values []int
		least  int
		most   int
	}{{"size", f.sizes, 0, benchMaxSize}, {"producers", f.producers, 1, benchMaxProducers}, {"inflight", f.inFlight, 1, benchMaxInFlight}} {
		for _, v := range flag.values {
			if v < flag.least || v > flag.most {
				return nil, usagef("--%s %d: legal is %d to %d", flag.name, v, flag.least, flag.most)
			}
		}
	}
	if most := slices.Max(f.producers) * slices.Max(f.inFlight); f.door == "http" && most > load.MaxOverHTTP {
		return nil, usagef("--door http: %d records in flight, each with a connection: legal is %d", most, load.MaxOverHTTP)
	}
	var cells []load.Cell
	for _, size := range f.sizes {
		for _, producers := range f.producers {
			for _, inFlight := range f.inFlight {
				cells = append(cells, load.Cell{
					SizeBytes: size, Producers: producers, InFlight: inFlight, RatePerSecond: f.rate, Duration: f.duration, Door: f.door, Waiting: waiting,
				})
			}
		}
	}
	return cells, nil
}

func runBench(a *app, cmd *cobra.Command, f benchFlags) (err error) {
	cells, err := f.cells()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	target, closeTarget, err := f.target(ctx, cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTarget()) }()
	for i, cell := range cells {
		a.progress("measuring %d of %d: %d B, %d producers, %d in flight", i+1, len(cells), cell.SizeBytes, cell.Producers, cell.InFlight)
		report, err := load.Measure(ctx, target, cell)
		if err != nil {
			return err
		}
		a.progress("")
		if err := a.printMeasured(report); err != nil {
			return err
		}
	}
	return nil
}

// target is the sidecar that the flags say, and what ends it if it is the bench's own.
func (f *benchFlags) target(ctx context.Context, cmd *cobra.Command) (load.Target, func() error, error) {
	program, err := os.Executable()
	if err != nil {
		return load.Target{}, nil, fmt.Errorf("the path of this program: %w", err)
	}
	profile, err := device.ProfileNamed(f.profile)
	if err != nil {
		return load.Target{}, nil, usageError{err}
	}
	var own *load.Own
	switch {
	case f.wal != "":
		own, err = load.StartOwn(ctx, program, f.wal, profile, f.shmWait)
	case f.profile != "none":
		return load.Target{}, nil, usagef("--profile shapes the device of --wal")
	case f.null:
		own, err = load.StartNull(ctx, program, "bench-null", f.shmWait)
	default:
		s, err := loadSettings(cmd)
		if err != nil {
			return load.Target{}, nil, err
		}
		target, err := load.Running(ctx, string(s.Socket))
		if target.HTTP = string(s.HTTP); s.HTTP.Off() && f.door == "http" {
			return load.Target{}, nil, usagef("--door http: set WALSIDECAR_HTTP to the path of the sidecar's HTTP door")
		}
		return target, func() error { return nil }, err
	}
	if err != nil {
		return load.Target{}, nil, err
	}
	return own.Target, own.Close, nil
}

// progress shows one line on a terminal in the place of the last one; nothing elsewhere.
func (a *app) progress(format string, args ...any) {
	if file, ok := a.stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		fmt.Fprintf(file, "\r\033[K"+format, args...)
	}
}

// printMeasured prints one result: an object with --json, else a line per number.
func (a *app) printMeasured(r *load.Report) error {
	if a.json {
		return a.printJSON(r)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	what := "durable appends"
	if !r.Durable {
		what = "NOT durable: the door alone"
	}
	fmt.Fprintf(w, "%s, %s: %d B, producers %d, in flight %d\n", r.Door, what, r.Size, r.Producer, r.InFlight)
	fmt.Fprintf(w, "  appends/s\t%.0f\t(%.1f MB/s, %d in %.1f s)\n", r.AppendsPerSecond, r.MBPerSecond, r.Appends, r.Seconds)
	fmt.Fprintf(w, "  latency µs\t%.0f p50\t%.0f p99\t%.0f p99.9\t%.0f max\n", r.P50, r.P99, r.P999, r.Max)
	fmt.Fprintf(w, "  cpu µs\t%.2f per append\t(%.2f of the client)\n", r.CPU, r.ClientCPU)
	fmt.Fprintf(w, "  door µs\t%.0f p50\n", r.RTT)
	if r.Durable {
		fmt.Fprintf(w, "  device\t%.4f writes per append\t%.3f bytes per payload byte\t%.0f writes/s\n", r.DeviceWrites, r.DeviceBytes, r.DeviceWritesRate)
	}
	printRaw(w, r.RawReport)
	_, err := fmt.Fprintln(w)
	return errors.Join(err, w.Flush())
}

func printRaw(w io.Writer, r *load.RawReport) {
	if r == nil {
		return
	}
	fmt.Fprintf(w, "  raw µs\t%.0f p50\t%.0f p99\t%.0f p99.9\t(one write of %d B)\n", r.P50, r.P99, r.P999, r.FrameBytes)
	fmt.Fprintf(w, "  raw MB/s\t%.1f\n", r.MBPerSecond)
	fmt.Fprintf(w, "  ratios\t%.2f p50\t%.2f p99\t%.2f bandwidth\n", r.RatioP50, r.RatioP99, r.RatioOfBandwidth)
}
