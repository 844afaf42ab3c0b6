package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// newRestoreCommand makes `walsidecar restore`.
func newRestoreCommand(a *app) *cobra.Command {
	var where storeFlags
	var size string
	var gone bool
	cmd := &cobra.Command{
		Use:   "restore PATH --store URL --node NAME --old-device-is-gone",
		Short: "make a log that goes on where a lost one ended in the store",
		Long: "Make a log on a blank device, or in a file that it creates, that takes the place of the\n" +
			"node's log whose device is lost: with every stream and producer as they were at the uploaded\n" +
			"position. What only the lost device held is given up, and readers are told where: each\n" +
			"stream goes on at its next offset behind a gap \"data lost\", under a new id.\n\n" +
			"From then on the lost log can never be served with this store again, should its device come\n" +
			"back: --old-device-is-gone says that it is gone, and that no sidecar serves it any more. A\n" +
			"restore that was interrupted is repeated with the same arguments.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !gone {
				return usagef("restore gives up what only the old device holds: if it is gone, and no sidecar serves it, say so with --old-device-is-gone")
			}
			return runRestore(a, cmd, args[0], &where, size)
		},
	}
	cmd.Flags().StringVar(&where.url, "store", "", "the object store: s3://bucket/prefix?endpoint=…&region=…&path_style=true, or a directory")
	cmd.Flags().StringVar(&where.node, "node", "", "the node whose log was lost")
	cmd.Flags().StringVar(&size, "size", "", "size of a new file (1GiB unless given), or how much of a device to use (all)")
	cmd.Flags().BoolVar(&gone, "old-device-is-gone", false, "the lost log's device is gone, and no sidecar serves it")
	return cmd
}

func runRestore(a *app, cmd *cobra.Command, path string, where *storeFlags, size string) error {
	given := map[string]string{}
	if cmd.Flags().Changed("size") {
		given["wal-size"] = size
	}
	checked, err := settings.LoadFlags(given)
	if err != nil {
		return err
	}
	s, name, err := where.open(cmd.Context())
	if err != nil {
		return err
	}
	done, err := node.Restore(cmd.Context(), node.RestoreOptions{Path: path, SizeBytes: int64(checked.WALSize), Store: s, Node: name})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(done)
	}
	how := "takes the place of"
	if done.Already {
		how = "already took the place of"
	}
	since := ""
	if !done.LostSince.IsZero() {
		since = ", which is since about " + done.LostSince.Format(time.RFC3339)
	}
	_, err = fmt.Fprintf(a.stdout, "%s: log %s of node %s, %s, %s log %s\n"+
		"%d streams, %d named and %d session producers, as of position %d; new records from position %d on\n"+
		"lost, if there was any: what was acked at or above position %d%s\n",
		done.Path, done.LogUUID, done.Node, settings.Size(done.CapacityBytes), how, done.LostLogUUID,
		done.Streams, done.NamedProducers, done.SessionProducers, done.LostFromPosition, done.OriginPosition,
		done.LostFromPosition, since)
	return err
}
