package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/upload"
)

// minOrphanGrace is the least --grace: a restore puts an object that nothing names yet.
const minOrphanGrace = time.Hour

// newGCCommand makes `walsidecar gc`.
func newGCCommand(a *app) *cobra.Command {
	var where storeFlags
	o := upload.GCOptions{}
	cmd := &cobra.Command{
		Use:   "gc --store URL --node NAME",
		Short: "find objects of a node that nothing names, and delete them if told to",
		Long: "Find the objects that crashes left behind in the store: those of the node that no manifest\n" +
			"names, or ever will. They are only printed unless --delete is given. The sidecar may be\n" +
			"running; what it has on its way is left alone.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Grace < minOrphanGrace {
				return usagef("--grace is at least %s", minOrphanGrace)
			}
			return runGC(a, cmd, &where, o)
		},
	}
	cmd.Flags().StringVar(&where.url, "store", "", "the object store: s3://bucket/prefix?endpoint=…&region=…&path_style=true, or a directory")
	cmd.Flags().StringVar(&where.node, "node", "", "the node whose objects they are")
	cmd.Flags().BoolVar(&o.Delete, "delete", false, "delete what was found")
	cmd.Flags().DurationVar(&o.Grace, "grace", upload.DefaultOrphanGrace, "leave objects alone that are younger, by the store's clock (1h or more)")
	return cmd
}

// orphanLine is an object that nothing names.
type orphanLine struct {
	Orphan   string    `json:"orphan"` // its key
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
	Deleted  bool      `json:"deleted"`
}

// gcReport is what was found in all.
type gcReport struct {
	Store       string `json:"store"`
	Node        string `json:"node"`
	Objects     int    `json:"objects"`
	Orphans     int    `json:"orphans"`
	OrphanBytes int64  `json:"orphan_bytes"`
	Deleted     int    `json:"deleted"`
	Young       int    `json:"young"`   // not old enough
	Current     int    `json:"current"` // of the sidecar that has the manifest: may be on their way
	Doomed      int    `json:"doomed"`  // the sidecar deletes them by itself
	Foreign     int    `json:"foreign"` // not of this format, left alone
}

func runGC(a *app, cmd *cobra.Command, where *storeFlags, o upload.GCOptions) error {
	s, name, err := where.open(cmd.Context())
	if err != nil {
		return err
	}
	var printed error
	report, err := upload.GC(cmd.Context(), s, name, o, func(x upload.Orphan) {
		if a.json {
			printed = a.printJSON(orphanLine{Orphan: x.Key, Bytes: x.Bytes, Modified: x.Modified.UTC(), Deleted: x.Deleted})
			return
		}
		what := "orphan"
		if x.Deleted {
			what = "deleted"
		}
		_, printed = fmt.Fprintf(a.stdout, "%s: %s, %d bytes, of %s\n", what, x.Key, x.Bytes, x.Modified.UTC().Format(time.RFC3339))
	})
	if err != nil {
		return err
	}
	if printed != nil {
		return printed
	}
	return a.printReport(gcReport{Store: where.url, Node: name, Objects: report.Objects, Orphans: report.Orphans, OrphanBytes: report.OrphanBytes,
		Deleted: report.Deleted, Young: report.Young, Current: report.Current, Doomed: report.Doomed, Foreign: report.Foreign})
}
