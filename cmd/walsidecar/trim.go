package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// newTrimCommand makes `walsidecar trim`.
func newTrimCommand(a *app) *cobra.Command {
	var before uint64
	cmd := &cobra.Command{
		Use:   "trim STREAM --before N",
		Short: "give up the records of a stream below an offset",
		Long:  "Give up the records of the stream below offset N. Prints the first offset that is left.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error {
				first, err := c.Trim(ctx, args[0], before)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(trimmed{Stream: args[0], FirstOffset: first})
				}
				_, err = fmt.Fprintln(a.stdout, first)
				return err
			})
		},
	}
	cmd.Flags().Uint64Var(&before, "before", 0, "the first offset to keep")
	_ = cmd.MarkFlagRequired("before") // it exists
	addClientFlags(cmd)
	return cmd
}

// trimmed is what trim --json prints.
type trimmed struct {
	Stream      string `json:"stream"`
	FirstOffset uint64 `json:"first_offset"`
}
