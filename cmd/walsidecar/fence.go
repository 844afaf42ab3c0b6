package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/sidecar/doctor"
)

// newFenceCommand makes `walsidecar fence` with its subcommands.
func newFenceCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "show or clear who may write to a device",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFenceStatusCommand(a), newFenceClearCommand(a))
	return cmd
}

func newFenceStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status DEVICE",
		Short: "show who holds a device",
		Long: "Show what a device can do about fencing, who is registered and who holds it, and what the\n" +
			"superblock of the log says. Only reads; safe on a live device.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := doctor.FenceStatus(args[0])
			if err != nil {
				return err
			}
			return a.printReport(report)
		},
	}
}

func newFenceClearCommand(a *app) *cobra.Command {
	var expect string
	cmd := &cobra.Command{
		Use:   "clear DEVICE --expect-holder KEY",
		Short: "take the reservation away, so that every host may write",
		Long: "Take the reservation and all registrations of a device away: every host may write then,\n" +
			"also one that was fenced. --expect-holder says whose reservation it is, as `fence status`\n" +
			"shows it; any other is left alone. Refused while the device is in use on this host.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			key, err := fence.ParseKey(expect)
			if err != nil {
				return usagef("--expect-holder: %w", err)
			}
			report, err := doctor.FenceClear(args[0], key)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(report)
			}
			_, err = fmt.Fprintf(a.stdout, "%s: cleared; every host may write to it\n", report.Path)
			return err
		},
	}
	cmd.Flags().StringVar(&expect, "expect-holder", "", "the holder's key, 0x…, or none")
	_ = cmd.MarkFlagRequired("expect-holder") // the flag is there
	return cmd
}
