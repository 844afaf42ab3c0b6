package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/upload"
)

// newVerifyCommand makes `walsidecar verify`.
func newVerifyCommand(a *app) *cobra.Command {
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "verify PATH | --store URL --node NAME",
		Short: "read a whole log and check every checksum",
		Long: "Read a whole log as a start would, and check the checksum of every record. Only reads;\n" +
			"safe on a live device.\n\n" +
			"With --store and --node: read every object that the node's manifest names, and check all\n" +
			"checksums, that the offsets of every stream follow each other, and that the state follows\n" +
			"from the log. What is wrong is printed with the key of its object; exit code 11 then.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if store.given(cmd) {
				return verifyStore(a, cmd, &store, args)
			}
			if len(args) != 1 {
				return usagef("verify takes the path of one log, or --store and --node")
			}
			report, err := node.Verify(args[0])
			if err != nil {
				return err
			}
			return a.printReport(report)
		},
	}
	store.add(cmd)
	return cmd
}

// findingLine is what is wrong in a store.
type findingLine struct {
	Finding string `json:"finding"` // the key of the object
	Message string `json:"message"`
}

// storeReport is what was looked at.
type storeReport struct {
	Store            string `json:"store"`
	Node             string `json:"node"`
	OriginPosition   uint64 `json:"origin_position"`
	UploadedPosition uint64 `json:"uploaded_position"`
	Groups           uint64 `json:"groups"`
	Objects          uint64 `json:"objects"`
	ObjectBytes      uint64 `json:"object_bytes"`
	Streams          uint64 `json:"streams"`
	Batches          uint64 `json:"batches"`
	Records          uint64 `json:"records"`
	Findings         uint64 `json:"findings"`
}

func verifyStore(a *app, cmd *cobra.Command, f *storeFlags, args []string) error {
	if len(args) > 0 {
		return usagef("verify takes the path of one log, or --store and --node, not both")
	}
	s, name, err := f.open(cmd.Context())
	if err != nil {
		return err
	}
	var printed error
	sum, err := upload.Verify(cmd.Context(), &watchedStore{Store: s, app: a}, name, func(found upload.Finding) {
		a.progress("")
		line := findingLine{Finding: found.Key, Message: found.Err.Error()}
		if a.json {
			printed = a.printJSON(line)
			return
		}
		_, printed = fmt.Fprintf(a.stdout, "%s: %s\n", line.Finding, line.Message)
	})
	a.progress("")
	if err != nil {
		return err
	}
	if printed != nil {
		return printed
	}
	if err := a.printReport(storeReport{Store: f.url, Node: name, OriginPosition: sum.Origin, UploadedPosition: sum.Uploaded, Groups: sum.Groups,
		Objects: sum.Objects, ObjectBytes: sum.Bytes, Streams: sum.Streams, Batches: sum.Batches, Records: sum.Records, Findings: sum.Findings}); err != nil {
		return err
	}
	if sum.Findings > 0 {
		return fmt.Errorf("%s, node %q: %w: %d findings", f.url, name, errStoreDamaged, sum.Findings)
	}
	return nil
}

// errStoreDamaged ends a verify that found something.
var errStoreDamaged = fmt.Errorf("%w in the store", upload.ErrDamagedObject)
