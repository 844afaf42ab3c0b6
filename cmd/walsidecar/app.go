package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/sidecar"
	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/wire"
)

// app is one run of the program: where it reads and writes, and the flags that every
// subcommand has. A subcommand is a function newXCommand(a *app) *cobra.Command.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	json   bool // --json: results and errors as objects, one per line
	exit   int  // exit code of a command that succeeded; that of serve's child
}

// run parses the arguments, runs one subcommand, reports its error on stderr and returns
// the exit code.
func (a *app) run(args []string) int {
	a.json = asksForJSON(args)
	root := &cobra.Command{
		Use:           "walsidecar",
		Short:         "a write-ahead log as a local socket",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.PersistentFlags().BoolVar(&a.json, "json", a.json, "print objects, one JSON line each; errors too, on standard error")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newServeCommand(a), newFormatCommand(a),
		newAppendCommand(a), newReadCommand(a), newReplayCommand(a),
		newStreamsCommand(a), newStreamCommand(a), newTrimCommand(a), newProducerCommand(a),
		newStatusCommand(a), newFlushCommand(a), newWaitReadyCommand(a),
		newInspectCommand(a), newVerifyCommand(a), newSalvageCommand(a), newRestoreCommand(a), newGCCommand(a),
		newTakeoverCommand(a), newStandbyCommand(a),
		newFenceCommand(a), newDoctorCommand(a),
		newConfigCommand(a), newVersionCommand(a),
		newBenchCommand(a), newBenchNullCommand(),
	)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return a.exit
	}
	shown := explain(err)
	a.printError(shown)
	return shown.exit
}

// asksForJSON reports whether --json is among the arguments: a mistake among the flags is
// found before they are parsed, and is to be shown as an object too.
func asksForJSON(args []string) bool {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	return slices.Contains(args[:end], "--json")
}

// usageError is a mistake in what was typed.
type usageError struct{ error }

// Unwrap gives the cause.
func (e usageError) Unwrap() error { return e.error }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errorReport is an error as it is shown.
type errorReport struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
	exit    int
}

// explain finds the code, the hint and the exit code of an error. All but those of what was
// typed wrong come from the one error table.
func explain(err error) errorReport {
	var usage usageError
	var unknown unknownSettings
	var fromSidecar *walsidecar.Error
	switch {
	case errors.Is(err, settings.ErrMalformed):
		return errorReport{"malformed_setting", err.Error(), "walsidecar config lists every setting and what is legal", wire.ExitUsage}
	case errors.As(err, &unknown):
		return errorReport{wire.CodeUsage.String(), err.Error(), "walsidecar config lists every setting", wire.ExitUsage}
	case errors.As(err, &usage), isCobraUsage(err):
		return errorReport{wire.CodeUsage.String(), err.Error(), "see walsidecar help", wire.ExitUsage}
	case errors.Is(err, errNotReady):
		const hint = "is the sidecar running, and the socket path right?"
		return report(wire.CodeNotReady, strings.Replace(err.Error(), "; "+hint, "", 1), hint)
	case errors.Is(err, errNoUploads):
		return errorReport{wire.CodeStoreUnavailable.String(), err.Error(), "WALSIDECAR_STORE says where records go; status has it", wire.ExitStore}
	case errors.As(err, &fromSidecar):
		// Its text ends in the hint, which is shown apart.
		return report(fromSidecar.Code, strings.Replace(err.Error(), "; "+fromSidecar.Hint, "", 1), fromSidecar.Hint)
	}
	code := sidecar.CodeOf(err)
	if code == wire.CodeInternal { // no code of its own, and no bug: a file that is missing, say
		return errorReport{"failed", err.Error(), "", wire.ExitFailed}
	}
	return report(code, err.Error(), code.Info().Hint)
}

func report(code wire.Code, message, hint string) errorReport {
	return errorReport{code.String(), message, hint, code.Info().ExitCode}
}

// isCobraUsage reports whether cobra itself found the arguments wrong: it has no type for
// an unknown command or a wrong number of arguments.
func isCobraUsage(err error) bool {
	for _, start := range []string{"unknown command", "accepts ", "requires ", "invalid argument", "unknown flag", "unknown shorthand", "flag needs", "if any flags in the group", "required flag"} {
		if strings.HasPrefix(err.Error(), start) {
			return true
		}
	}
	return false
}

// printError writes the error to stderr: an object with --json, else a line and a hint.
func (a *app) printError(r errorReport) {
	if a.json {
		line, _ := json.Marshal(r) // three strings always encode
		fmt.Fprintf(a.stderr, "%s\n", line)
		return
	}
	fmt.Fprintf(a.stderr, "walsidecar: %s\n", r.Message)
	if r.Hint != "" {
		fmt.Fprintf(a.stderr, "  hint: %s\n", r.Hint)
	}
}

// printJSON writes one object as one line to stdout.
func (a *app) printJSON(object any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(object)
}
