package main

import (
	"context"
	"encoding/json"
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
			err = served(ctx, client)
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

// served says why the log takes no appends now, or no longer soon: the same as the admin
// address's /readyz.
func served(ctx context.Context, client *walsidecar.Client) error {
	b, err := client.Status(ctx)
	if err != nil {
		return err
	}
	var status struct {
		State string `json:"state"`
	}
	if err := json.Unmarshal(b, &status); err != nil {
		return fmt.Errorf("the sidecar's status: %w", err)
	}
	if status.State != "open" && status.State != "degraded" {
		return fmt.Errorf("the log is %s", status.State)
	}
	return nil
}
