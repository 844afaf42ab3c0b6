package main

import (
	"context"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// newStreamCommand makes `walsidecar stream create|seal|delete|token`.
func newStreamCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stream",
		Short: "create, seal or delete a stream, or set its token",
		RunE:  func(*cobra.Command, []string) error { return usagef("say what: create, seal, delete or token") },
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(
		streamAction("create STREAM", "create a stream; one that exists is left as it is",
			func(ctx context.Context, c *walsidecar.Client, name string) error {
				info, err := c.CreateStream(ctx, name)
				return a.printStream(info, err)
			}),
		streamAction("seal STREAM", "end a stream: it takes no more records",
			func(ctx context.Context, c *walsidecar.Client, name string) error {
				info, err := c.SealStream(ctx, name)
				return a.printStream(info, err)
			}),
		streamAction("delete STREAM", "delete a stream and its records",
			func(ctx context.Context, c *walsidecar.Client, name string) error { return c.DeleteStream(ctx, name) }),
		newTokenCommand(),
	)
	return cmd
}

// streamAction makes a subcommand that does one thing to one stream.
func streamAction(use, short string, action func(context.Context, *walsidecar.Client, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error { return action(ctx, c, args[0]) })
		},
	}
	addClientFlags(cmd)
	return cmd
}

// printStream prints a stream's state with --json, and nothing without.
func (a *app) printStream(info walsidecar.StreamInfo, err error) error {
	if err != nil || !a.json {
		return err
	}
	return a.printJSON(newStreamLine(&info))
}

func newTokenCommand() *cobra.Command {
	var before, after string
	cmd := streamAction("token STREAM", "set a stream's token, if it is the one that --old says",
		func(ctx context.Context, c *walsidecar.Client, name string) error {
			return c.SetToken(ctx, name, []byte(before), []byte(after))
		})
	cmd.Long = "Set the token that appends to the stream must carry from here on, if the present one is\n" +
		"the one that --old says. An empty token is none."
	cmd.Flags().StringVar(&before, "old", "", "the token in force")
	cmd.Flags().StringVar(&after, "new", "", "the token to be set")
	return cmd
}
