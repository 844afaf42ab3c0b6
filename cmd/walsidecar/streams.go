package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// streamLine is a stream as JSON.
type streamLine struct {
	Name        string     `json:"name"`
	ID          uint64     `json:"id"`
	FirstOffset uint64     `json:"first_offset"`
	NextOffset  uint64     `json:"next_offset"`
	Created     time.Time  `json:"created"`
	Last        *time.Time `json:"last,omitempty"` // of the newest record
	Sealed      bool       `json:"sealed"`
	HasToken    bool       `json:"has_token"`
}

func newStreamLine(s *walsidecar.StreamInfo) streamLine {
	line := streamLine{
		Name: s.Name, ID: s.ID, FirstOffset: s.FirstOffset, NextOffset: s.NextOffset,
		Created: s.Created.UTC(), Sealed: s.Sealed, HasToken: s.HasToken,
	}
	if !s.Last.IsZero() {
		last := s.Last.UTC()
		line.Last = &last
	}
	return line
}

// newStreamsCommand makes `walsidecar streams`.
func newStreamsCommand(a *app) *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "list the streams",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error { return listStreams(ctx, a, c, prefix) })
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose name begins with it")
	addClientFlags(cmd)
	return cmd
}

func listStreams(ctx context.Context, a *app, c *walsidecar.Client, prefix string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for s, err := range c.Streams(ctx, prefix) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.printJSON(newStreamLine(&s)); err != nil {
				return err
			}
			continue
		}
		notes := ""
		if s.Sealed {
			notes = "sealed"
		}
		fmt.Fprintf(w, "%s\t[%d, %d)\t%s\n", s.Name, s.FirstOffset, s.NextOffset, notes)
	}
	return w.Flush()
}
