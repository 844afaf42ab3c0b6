package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// newProducerCommand makes `walsidecar producer`.
func newProducerCommand(a *app) *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "producer NAME",
		Short: "print the last sequence of a named producer",
		Long: "Print the last sequence of a named producer that is in the log: a source goes on with\n" +
			"what comes after it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error {
				if remove {
					return producerError(args[0], c.RemoveProducer(ctx, args[0]))
				}
				info, err := c.Producer(ctx, args[0])
				if err != nil {
					return producerError(args[0], err)
				}
				if a.json {
					return a.printJSON(producerLine{Name: info.Name, LastSequence: info.LastSequence})
				}
				_, err = fmt.Fprintln(a.stdout, info.LastSequence)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "forget the producer and its last sequence")
	addClientFlags(cmd)
	return cmd
}

func producerError(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("producer %q: %w", name, err)
}

// producerLine is what producer --json prints.
type producerLine struct {
	Name         string `json:"name"`
	LastSequence uint64 `json:"last_sequence"`
}
