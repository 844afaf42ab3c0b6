package main

import (
	"context"
	"fmt"
	"iter"
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
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "list the streams",
		Long: "List the streams with the offsets that they hold. With --store and --node no sidecar is\n" +
			"asked: they are as of the uploaded position.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if store.given(cmd) {
				return archivedStreams(a, cmd, &store, prefix)
			}
			return ask(cmd, func(ctx context.Context, c *walsidecar.Client) error { return listStreams(ctx, a, c, prefix) })
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose name begins with it")
	store.add(cmd)
	addClientFlags(cmd)
	return cmd
}

func listStreams(ctx context.Context, a *app, c *walsidecar.Client, prefix string) error {
	return printStreams(a, c.Streams(ctx, prefix))
}

// archivedStreams is `streams` without a sidecar.
func archivedStreams(a *app, cmd *cobra.Command, f *storeFlags, prefix string) error {
	if err := f.onlyWithout(cmd, "socket"); err != nil {
		return err
	}
	archive, err := f.openArchive(cmd.Context())
	if err != nil {
		return err
	}
	directory, _, err := archive.Streams(cmd.Context())
	if err != nil {
		return err
	}
	return printStreams(a, func(yield func(walsidecar.StreamInfo, error) bool) {
		for s := range allStreams(directory, prefix) {
			info := walsidecar.StreamInfo{Name: s.Name, ID: uint64(s.ID), FirstOffset: s.First, NextOffset: s.Next,
				Created: time.Unix(0, s.Created), Sealed: s.Sealed, HasToken: len(s.Token) > 0}
			if s.Last != 0 {
				info.Last = time.Unix(0, s.Last)
			}
			if !yield(info, nil) {
				return
			}
		}
	})
}

func printStreams(a *app, streams iter.Seq2[walsidecar.StreamInfo, error]) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for s, err := range streams {
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
