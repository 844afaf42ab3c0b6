package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// newSalvageCommand makes `walsidecar salvage`.
func newSalvageCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "salvage PATH",
		Short: "print what survives of a damaged log, as replay lines with gaps",
		Long: "Print every record that survives in a damaged log in commit order, as `replay` does, and\n" +
			"an object with gap, from and to where something is missing. Only reads. Exit code 11 if\n" +
			"anything is missing; `format --force` or a new log is the way on then.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return runSalvage(a, args[0]) },
	}
}

func runSalvage(a *app, path string) error {
	p := newRecordPrinter(a)
	defer p.flush()
	var lost int
	found, err := node.Salvage(path, node.SalvageVisitor{
		Record: func(r *reader.Record, name string) error {
			return p.object(&walsidecar.Record{
				Stream: name, StreamID: uint64(r.Stream), Offset: r.Offset, Position: r.Position,
				Timestamp: time.Unix(0, r.TimestampNS), BatchEnd: r.BatchEnd, Headers: r.Headers, Data: r.Payload,
			})
		},
		Gap: func(g ringwal.Gap) error {
			if g.Kind == ringwal.GapLost {
				lost++
			}
			return p.gapObject(gapLine{Gap: g.Kind.String(), From: g.From, To: g.To})
		},
		StreamGap: func(_ stream.ID, name string, from, to uint64) error {
			lost++
			return p.gapObject(gapLine{Gap: "data_lost", Stream: name, From: from, To: to})
		},
	})
	if err != nil {
		return err
	}
	if found.Problem != "" {
		return fmt.Errorf("%s: %w: %s; %d records survive, and what only a lost superblock knew of may be missing",
			path, ringwal.ErrDamaged, found.Problem, found.Records)
	}
	if lost > 0 {
		return fmt.Errorf("%s: %w: %d records survive, up to %d bytes of the log are missing", path, ringwal.ErrDamaged, found.Records, found.LostBytes)
	}
	return nil
}
