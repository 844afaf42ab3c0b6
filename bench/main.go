// Command bench measures durable appends of walsidecar and of its peers: the same work for
// all of them, in turns, on the same store. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/walsidecar/walsidecar/bench/peers"
)

// command is one subcommand.
type command struct {
	name  string
	short string
	run   func(ctx context.Context, args []string) error
}

var commands = []command{
	{"list", "the systems, and why some cannot be measured here", list},
	{"run", "measure systems in turns", runSuite},
	{"more", "measure recovery, takeover, memory, appends beside other work, shaped devices", runMore},
	{"report", "make tables and plots of results", runReport},
	{"cell", "measure one cell of one system, on a store that is ready (run calls it)", runCell},
}

// usageError is what was typed wrong.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 {
		for _, c := range commands {
			if c.name == args[0] {
				return c.run(ctx, args[1:])
			}
		}
	}
	var b strings.Builder
	b.WriteString("usage: bench COMMAND [flags]")
	for _, c := range commands {
		fmt.Fprintf(&b, "\n  %-10s %s", c.name, c.short)
	}
	return usageError{errors.New(b.String())}
}

// parse reads the flags of a command, which takes no other arguments.
func parse(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("%s takes no arguments: %q", f.Name(), f.Args())}
	}
	return nil
}

// programsFlag is the directory of what bench/build built: that of this program.
func programsFlag(f *flag.FlagSet) *string {
	dir := "."
	if self, err := os.Executable(); err == nil {
		dir = filepath.Dir(self)
	}
	return f.String("programs", dir, "directory of walsidecar and of the load programs")
}

func list(_ context.Context, args []string) error {
	f := flag.NewFlagSet("list", flag.ContinueOnError)
	programs := programsFlag(f)
	if err := parse(f, args); err != nil {
		return err
	}
	for _, p := range peers.All {
		line := fmt.Sprintf("%-22s %s", p.Name, p.Kind)
		if reason := p.Reason(*programs); reason != "" {
			line += ", SKIPPED: " + reason
		}
		fmt.Println(line)
	}
	return nil
}

// chosen returns the peers of a comma-separated list ("": all) that can be measured here,
// and says by name which cannot.
func chosen(names, programs string, say io.Writer) ([]peers.Peer, error) {
	from := peers.All
	if names != "" {
		from = nil
		for name := range strings.SplitSeq(names, ",") {
			p, err := peers.Named(name)
			if err != nil {
				return nil, usageError{err}
			}
			from = append(from, p)
		}
	}
	var usable []peers.Peer
	for _, p := range from {
		if reason := p.Reason(programs); reason != "" {
			fmt.Fprintf(say, "SKIPPED: %s: %s\n", p.Name, reason)
			continue
		}
		usable = append(usable, p)
	}
	return usable, nil
}
