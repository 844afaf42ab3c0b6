package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/sidecar"
)

// newVersionCommand makes `walsidecar version`.
func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version of this binary",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			build := sidecar.ThisBuild()
			if a.json {
				return a.printJSON(build)
			}
			_, err := fmt.Fprintf(a.stdout, "walsidecar %s (%s, %s)\n", build.Version, build.Go, build.Platform)
			return err
		},
	}
}
