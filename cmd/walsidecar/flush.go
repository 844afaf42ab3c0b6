package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/wire"
)

// flushPollFrom and flushPollTo bound the pause between two looks of flush.
const (
	flushPollFrom = 20 * time.Millisecond
	flushPollTo   = 500 * time.Millisecond
)

// newFlushCommand makes `walsidecar flush`.
func newFlushCommand(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "flush",
		Short: "wait until all that is durable now is in the object store",
		Long: "Wait until everything that was durable when it was called is in the object store and in\n" +
			"its manifest. While the store fails it waits on, unless --timeout says how long: exit code\n" +
			"15 then, or 17 where the uploads only have not got so far. --json prints the position.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error {
				reached, err := flush(ctx, a, c, timeout)
				if err == nil && a.json {
					err = a.printJSON(flushed{UploadedPosition: reached})
				}
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after so long (never unless given)")
	addClientFlags(cmd)
	return cmd
}

// flushed is what flush --json prints.
type flushed struct {
	UploadedPosition uint64 `json:"uploaded_position"`
}

// uploadStatus is what flush looks at of the status document.
type uploadStatus struct {
	Store           string `json:"store"`
	DurablePosition uint64 `json:"durable_position"`
	Uploads         *struct {
		State            string `json:"state"`
		Problem          string `json:"problem"`
		UploadedPosition uint64 `json:"uploaded_position"`
		LagBytes         uint64 `json:"lag_bytes"`
	} `json:"uploads"`
}

// flush waits until all that was durable at its first look is uploaded, and returns the
// uploaded position.
func flush(ctx context.Context, a *app, c *walsidecar.Client, timeout time.Duration) (uint64, error) {
	began, wait := time.Now(), flushPollFrom
	defer a.progress("")
	target := uint64(0)
	for {
		document, err := c.Status(ctx)
		if err != nil {
			return 0, err
		}
		var s uploadStatus
		if err := json.Unmarshal(document, &s); err != nil {
			return 0, fmt.Errorf("the sidecar's status: %w", err)
		}
		u := s.Uploads
		switch {
		case u == nil && s.Store == string(settings.NoStore):
			return 0, fmt.Errorf("%w: the log has no object store (WALSIDECAR_STORE=none)", errNoUploads)
		case u == nil:
			return 0, fmt.Errorf("%w: the sidecar runs without its store %s", errNoUploads, s.Store)
		case u.State == "fenced":
			return 0, &wire.Error{Code: wire.CodeFenced, Message: u.Problem}
		}
		if target == 0 {
			target = s.DurablePosition
		}
		// Behind the newest data there may be frames that alone are not uploaded.
		if u.UploadedPosition >= target || u.LagBytes == 0 {
			return u.UploadedPosition, nil
		}
		if timeout > 0 && time.Since(began) >= timeout {
			return 0, notFlushed(timeout, u.LagBytes, u.Problem)
		}
		if u.Problem != "" {
			a.progress("the store fails; %d bytes to go: %s", u.LagBytes, u.Problem)
		} else {
			a.progress("uploading: %d bytes to go", u.LagBytes)
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, flushPollTo)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// errNoUploads ends a flush of a log that uploads nothing.
var errNoUploads = errors.New("nothing is uploaded")

// notFlushed is why a flush has given up.
func notFlushed(timeout time.Duration, lag uint64, problem string) error {
	if problem != "" {
		return &wire.Error{Code: wire.CodeStoreUnavailable, Message: fmt.Sprintf("%d bytes are not in the object store after %s: %s", lag, timeout, problem)}
	}
	return &wire.Error{Code: wire.CodeBusy, Message: fmt.Sprintf("%d bytes are not in the object store after %s: the uploads go on", lag, timeout)}
}
