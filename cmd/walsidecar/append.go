package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// appendFlags are the flags of `walsidecar append`.
type appendFlags struct {
	raw      bool
	timeout  time.Duration
	expect   uint64
	token    string
	headers  []string
	producer string
	sequence uint64
}

// newAppendCommand makes `walsidecar append`.
func newAppendCommand(a *app) *cobra.Command {
	var f appendFlags
	cmd := &cobra.Command{
		Use:   "append STREAM [TEXT]",
		Short: "append TEXT, or each line of standard input, as a record",
		Long: "Append TEXT as one record, or each line of standard input as one (--raw: all of it as one).\n" +
			"A missing stream is created. Prints the offset of each record once it is durable, one per\n" +
			"line, in input order. Exit code 1 after the sidecar was lost for --timeout: the outcome of\n" +
			"records whose offset was not printed is unknown.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return runAppend(a, cmd, args, f) },
	}
	cmd.Flags().BoolVar(&f.raw, "raw", false, "append all of standard input as one record")
	cmd.Flags().DurationVar(&f.timeout, "timeout", lostAfter, "give up so long after the sidecar was lost")
	cmd.Flags().Uint64Var(&f.expect, "expect", 0, "append only if the first record gets this offset")
	cmd.Flags().StringVar(&f.token, "token", "", "the stream's token")
	cmd.Flags().StringArrayVar(&f.headers, "header", nil, "KEY=VALUE, a header of each record; may be repeated")
	cmd.Flags().StringVar(&f.producer, "producer", "", "append one record under this named producer")
	cmd.Flags().Uint64Var(&f.sequence, "sequence", 0, "the record's sequence, larger than the producer's last")
	cmd.MarkFlagsRequiredTogether("producer", "sequence")
	addClientFlags(cmd)
	return cmd
}

func runAppend(a *app, cmd *cobra.Command, args []string, f appendFlags) error {
	options, err := f.options(cmd)
	if err != nil {
		return err
	}
	single := f.raw || len(args) == 2
	if f.raw && len(args) == 2 {
		return usagef("--raw appends standard input: leave TEXT out")
	}
	if f.producer != "" && !single {
		return usagef("--producer and --sequence are for one record: give TEXT or --raw")
	}
	client, err := dialRestarting(cmd, f.timeout)
	if err != nil {
		return err
	}
	defer client.Close()
	w := &appendWriter{app: a, stream: args[0]}
	if !single {
		return appendLines(cmd.Context(), a.stdin, client, w, options, cmd.Flags().Changed("expect"))
	}
	data := []byte(strings.Join(args[1:], ""))
	if f.raw {
		if data, err = io.ReadAll(a.stdin); err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
	}
	result, err := client.Append(cmd.Context(), args[0], data, options...)
	if err != nil {
		return err
	}
	return w.print(result)
}

// options are the append options that the flags ask for. The first is --expect's, where
// that is given.
func (f *appendFlags) options(cmd *cobra.Command) ([]walsidecar.AppendOption, error) {
	var options []walsidecar.AppendOption
	if cmd.Flags().Changed("expect") {
		options = append(options, walsidecar.ExpectOffset(f.expect))
	}
	if f.token != "" {
		options = append(options, walsidecar.WithToken([]byte(f.token)))
	}
	for _, header := range f.headers {
		key, value, ok := strings.Cut(header, "=")
		if !ok || key == "" {
			return nil, usagef("--header %q is not KEY=VALUE", header)
		}
		options = append(options, walsidecar.WithHeader(key, []byte(value)))
	}
	if f.producer != "" {
		options = append(options, walsidecar.WithProducer(f.producer, f.sequence))
	}
	return options, nil
}

// maxPending is how many lines may be submitted and not printed yet. The client bounds what
// is in flight by itself; this bounds the tickets.
const maxPending = 4096

// appendLines submits each line of in, and prints the offsets in that order as they become
// durable. It stops at the first record that fails, even while it waits for a line: what
// submits is left behind then, to end with the process.
func appendLines(ctx context.Context, in io.Reader, client *walsidecar.Client, w *appendWriter, options []walsidecar.AppendOption, expect bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tickets := make(chan walsidecar.Ticket, maxPending)
	submitted := make(chan error, 1)
	go func() {
		defer close(tickets)
		submitted <- submitLines(ctx, in, client, w.stream, tickets, options, expect)
	}()
	if err := w.printAll(ctx, tickets); err != nil {
		return err
	}
	return <-submitted
}

func submitLines(ctx context.Context, in io.Reader, client *walsidecar.Client, stream string, tickets chan<- walsidecar.Ticket, options []walsidecar.AppendOption, expect bool) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for count := 0; ; count++ {
		line, err := r.ReadBytes('\n')
		last := errors.Is(err, io.EOF) // a last line without a newline is a line too
		if err != nil && !last {
			return fmt.Errorf("read standard input: %w", err)
		}
		if last && len(line) == 0 {
			return nil
		}
		ticket, submitErr := client.Submit(ctx, stream, bytes.TrimSuffix(line, []byte("\n")), options...)
		if submitErr != nil {
			return recordError(count, submitErr)
		}
		if expect {
			options, expect = options[1:], false // the condition is the first record's
		}
		select {
		case tickets <- ticket:
		case <-ctx.Done():
			return ctx.Err()
		}
		if last {
			return nil
		}
	}
}

// recordError says which record of the input failed, counted from 0.
func recordError(n int, err error) error { return fmt.Errorf("record %d of the input: %w", n, err) }

// appendWriter prints results as they come.
type appendWriter struct {
	app    *app
	stream string
	count  int
}

// printAll waits for the tickets in order and prints their results until one fails.
func (w *appendWriter) printAll(ctx context.Context, tickets <-chan walsidecar.Ticket) error {
	for ticket := range tickets {
		result, err := ticket.Wait(ctx)
		if err != nil {
			return recordError(w.count, err)
		}
		if err := w.print(result); err != nil {
			return err
		}
	}
	return nil
}

func (w *appendWriter) print(r walsidecar.Result) error {
	w.count++
	if w.app.json {
		return w.app.printJSON(appended{Stream: w.stream, Offset: r.Offset, Position: r.Position, Duplicate: r.Duplicate, LastSequence: r.LastSequence})
	}
	if r.Duplicate {
		_, err := fmt.Fprintf(w.app.stdout, "duplicate: the producer's last sequence is %d\n", r.LastSequence)
		return err
	}
	_, err := fmt.Fprintln(w.app.stdout, r.Offset)
	return err
}

// appended is one record of `append --json`.
type appended struct {
	Stream       string `json:"stream"`
	Offset       uint64 `json:"offset"`
	Position     uint64 `json:"position"`
	Duplicate    bool   `json:"duplicate,omitempty"`
	LastSequence uint64 `json:"last_sequence,omitempty"`
}
