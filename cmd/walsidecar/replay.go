package main

import (
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// newReplayCommand makes `walsidecar replay`.
func newReplayCommand(a *app) *cobra.Command {
	var position uint64
	var follow bool
	var timeout time.Duration
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "print the whole log in commit order, as JSON lines",
		Long: "Print every record of the log in commit order, one JSON object per line. Records of one\n" +
			"batch have one position; the last of them has batch_end. With --store and --node no sidecar\n" +
			"is asked: the log is what was uploaded of it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if store.given(cmd) {
				return replayArchived(a, cmd, &store, position)
			}
			client, err := dialReader(cmd, timeout, follow)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, stop := untilInterrupted(cmd.Context())
			defer stop()
			a.json = true // gaps are lines too
			p := newRecordPrinter(a)
			caughtUp := walsidecar.OnCaughtUp(func(uint64) { p.flush() })
			if follow {
				return p.printAll(ctx, client.FollowLog(ctx, position, caughtUp), p.object)
			}
			return p.printAll(ctx, client.Replay(ctx, position, caughtUp), p.object)
		},
	}
	cmd.Flags().Uint64Var(&position, "position", 0, "begin at the first batch at or after this position")
	cmd.Flags().BoolVar(&follow, "follow", false, "wait for more at the end")
	cmd.Flags().DurationVar(&timeout, "timeout", lostAfter, "give up so long after the sidecar was lost; with --follow, never")
	store.add(cmd)
	addClientFlags(cmd)
	return cmd
}
