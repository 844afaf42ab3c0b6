package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/node"
)

// newInspectCommand makes `walsidecar inspect`.
func newInspectCommand(a *app) *cobra.Command {
	var frames bool
	cmd := &cobra.Command{
		Use:   "inspect PATH",
		Short: "show what lies on a device or in a file",
		Long: "Show the superblocks of a log, and with --frames every frame, one per line. Only reads;\n" +
			"safe on a live device.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if frames {
				return node.InspectFrames(args[0], func(f node.InspectFrame) error { return a.printJSON(f) })
			}
			report, err := node.Inspect(args[0])
			if err != nil {
				return err
			}
			return a.printReport(report)
		},
	}
	cmd.Flags().BoolVar(&frames, "frames", false, "every frame from the trim position on, as JSON lines")
	return cmd
}

// printReport prints an object: as it is with --json, else field by field.
func (a *app) printReport(object any) error {
	if a.json {
		return a.printJSON(object)
	}
	document, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return printDocument(a.stdout, document)
}
