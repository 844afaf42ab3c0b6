package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// readFlags are the flags of `walsidecar read`.
type readFlags struct {
	offset  uint64
	since   string
	last    uint64
	max     uint64
	follow  bool
	timeout time.Duration
	store   storeFlags
}

// newReadCommand makes `walsidecar read`.
func newReadCommand(a *app) *cobra.Command {
	var f readFlags
	cmd := &cobra.Command{
		Use:   "read STREAM",
		Short: "print the records of a stream, one per line",
		Long: "Print the payload of each record of the stream, from the first one unless a flag says\n" +
			"otherwise. Where records are missing, that is said on standard error, or with --json as an\n" +
			"object with gap, from and to. With --store and --node no sidecar is asked: the records are\n" +
			"those that were uploaded.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runRead(a, cmd, args[0], f) },
	}
	cmd.Flags().Uint64Var(&f.offset, "offset", 0, "begin at this offset")
	cmd.Flags().StringVar(&f.since, "since", "", "begin at this time (RFC 3339), or so long ago (10m)")
	cmd.Flags().Uint64Var(&f.last, "last", 0, "begin so many records before the end")
	cmd.Flags().Uint64Var(&f.max, "max", 0, "end after so many records")
	cmd.Flags().BoolVar(&f.follow, "follow", false, "wait for more at the end")
	cmd.Flags().DurationVar(&f.timeout, "timeout", lostAfter, "give up so long after the sidecar was lost; with --follow, never")
	cmd.MarkFlagsMutuallyExclusive("offset", "since", "last")
	f.store.add(cmd)
	addClientFlags(cmd)
	return cmd
}

func runRead(a *app, cmd *cobra.Command, stream string, f readFlags) error {
	options, err := f.options(cmd)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("max") && f.max == 0 || cmd.Flags().Changed("last") && f.last == 0 && !f.follow {
		return nil
	}
	if f.store.given(cmd) {
		return readArchived(a, cmd, stream, f)
	}
	client, err := dialReader(cmd, f.timeout, f.follow)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := untilInterrupted(cmd.Context())
	defer stop()
	p := newRecordPrinter(a)
	options = append(options, walsidecar.OnCaughtUp(func(uint64) { p.flush() }))
	records := client.Read(ctx, stream, options...)
	if f.follow {
		records = client.Follow(ctx, stream, options...)
	}
	return p.printAll(ctx, records, p.line)
}

// options are the read options that the flags ask for.
func (f *readFlags) options(cmd *cobra.Command) ([]walsidecar.ReadOption, error) {
	options := []walsidecar.ReadOption{walsidecar.Limit(f.max)}
	switch {
	case cmd.Flags().Changed("offset"):
		options = append(options, walsidecar.FromOffset(f.offset))
	case cmd.Flags().Changed("last"):
		options = append(options, walsidecar.FromLast(f.last))
	case cmd.Flags().Changed("since"):
		t, err := parseSince(f.since)
		if err != nil {
			return nil, err
		}
		options = append(options, walsidecar.FromTime(t))
	}
	return options, nil
}

// parseSince reads a time, or how long ago it was.
func parseSince(text string) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, usagef("--since %q is neither a time as RFC 3339 has it (2026-01-02T15:04:05Z) nor a duration (10m)", text)
	}
	return t, nil
}

// dialReader connects for a read; one that follows waits for a lost sidecar for ever.
func dialReader(cmd *cobra.Command, timeout time.Duration, follow bool) (*walsidecar.Client, error) {
	if follow {
		return dialPatiently(cmd, timeout)
	}
	return dial(cmd, timeout)
}

// untilInterrupted is done at an interrupt or SIGTERM, which is how a follow ends.
func untilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// recordPrinter prints records in one of the two forms. Output is buffered until flush.
type recordPrinter struct {
	app *app
	out *bufio.Writer
}

func newRecordPrinter(a *app) *recordPrinter {
	return &recordPrinter{app: a, out: bufio.NewWriterSize(a.stdout, 64<<10)}
}

func (p *recordPrinter) flush() { _ = p.out.Flush() } // the error comes again at the next write

// printAll prints what the iteration yields. A gap does not end it.
func (p *recordPrinter) printAll(ctx context.Context, records iter.Seq2[walsidecar.Record, error], print func(*walsidecar.Record) error) error {
	defer p.flush()
	for record, err := range records {
		var gap *walsidecar.Gap
		switch {
		case errors.As(err, &gap):
			if err := p.gap(gap); err != nil {
				return err
			}
		case err != nil && ctx.Err() != nil:
			return nil // interrupted, which is how it was meant to end
		case err != nil:
			return err
		default:
			if err := print(&record); err != nil {
				return err
			}
		}
	}
	return p.out.Flush()
}

// line prints a record as `read` does.
func (p *recordPrinter) line(r *walsidecar.Record) error {
	if p.app.json {
		return p.object(r)
	}
	_, _ = p.out.Write(r.Data) // a bufio.Writer keeps its error for the next call
	return p.out.WriteByte('\n')
}

// gap says that records are missing.
func (p *recordPrinter) gap(g *walsidecar.Gap) error {
	if p.app.json {
		return p.gapObject(gapLine{Gap: g.Kind.String(), Stream: g.Stream, From: g.From, To: g.To})
	}
	p.flush()
	_, err := fmt.Fprintf(p.app.stderr, "walsidecar: %s\n", g.Error())
	return err
}
