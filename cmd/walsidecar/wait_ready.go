package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// readyPoll is how often wait-ready looks for a sidecar that is not there yet.
const readyPoll = 20 * time.Millisecond

// errNotReady ends wait-ready.
var errNotReady = errors.New("the sidecar is not ready")

// newWaitReadyCommand makes `walsidecar wait-ready`.
func newWaitReadyCommand(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait-ready",
		Short: "wait until the sidecar serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return waitReady(ctx, string(s.Socket), timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	addClientFlags(cmd)
	return cmd
}

func waitReady(ctx context.Context, socket string, timeout time.Duration) error {
	var last error
	for ctx.Err() == nil {
		client, err := walsidecar.Dial(ctx, socket, walsidecar.WithDoor(walsidecar.DoorSocket))
		if err == nil {
			err = client.Ping(ctx)
			_ = client.Close()
		}
		if err == nil {
			return nil
		}
		last = err
		if errors.Is(err, walsidecar.ErrUnauthorized) {
			return err // time will not help
		}
		select {
		case <-ctx.Done():
		case <-time.After(readyPoll):
		}
	}
	return fmt.Errorf("%w after %s: %w", errNotReady, timeout, last)
}
