package main

import (
	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/node"
)

// newVerifyCommand makes `walsidecar verify`.
func newVerifyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "verify PATH",
		Short: "read a whole log and check every checksum",
		Long: "Read a whole log as a start would, and check the checksum of every record. Only reads;\n" +
			"safe on a live device.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := node.Verify(args[0])
			if err != nil {
				return err
			}
			return a.printReport(report)
		},
	}
}
