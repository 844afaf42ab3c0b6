package main

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// newFormatCommand makes `walsidecar format`.
func newFormatCommand(a *app) *cobra.Command {
	var name, size, expect string
	var force bool
	cmd := &cobra.Command{
		Use:   "format PATH",
		Short: "make a log on a device, or in a file that it creates",
		Long: "Make a log on a device, or in a file that it creates. What already holds a log, a\n" +
			"filesystem, a partition table or other data is refused before any write; --force replaces\n" +
			"the log whose UUID --expect-uuid says, and its records are lost.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := formatOptions(cmd, args[0], name, size, force, expect)
			if err != nil {
				return err
			}
			made, err := node.Format(o)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(made)
			}
			_, err = fmt.Fprintf(a.stdout, "%s: log %s of node %s, %s\n", made.Path, made.LogUUID, made.Node, settings.Size(made.CapacityBytes))
			return err
		},
	}
	cmd.Flags().StringVar(&name, "node", "", "node name (minted from the host's unless given)")
	cmd.Flags().StringVar(&size, "size", "", "size of a new file (1GiB unless given), or how much of a device to use (all)")
	cmd.Flags().BoolVar(&force, "force", false, "replace the log that is there")
	cmd.Flags().StringVar(&expect, "expect-uuid", "", "the UUID of the log that --force may replace")
	return cmd
}

// formatOptions takes its target and everything about it from the arguments alone: a command
// that can destroy is not steered by the environment.
func formatOptions(cmd *cobra.Command, path, name, size string, force bool, expect string) (node.FormatOptions, error) {
	o := node.FormatOptions{Path: path, Node: name, Force: force}
	given := map[string]string{}
	if cmd.Flags().Changed("node") {
		given["node"] = name
	}
	if cmd.Flags().Changed("size") {
		given["wal-size"] = size
	}
	checked, err := settings.LoadFlags(given)
	if err != nil {
		return o, err
	}
	o.SizeBytes = int64(checked.WALSize)
	if force != (expect != "") {
		return o, usagef("--force and --expect-uuid go together: the UUID of the log that may be lost, as inspect shows it")
	}
	if expect == "" {
		return o, nil
	}
	if o.ExpectUUID, err = uuid.Parse(expect); err != nil {
		return o, usagef("--expect-uuid %q is not a UUID", expect)
	}
	return o, nil
}
