package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/sidecar"
	"github.com/walsidecar/walsidecar/sidecar/doctor"
	"github.com/walsidecar/walsidecar/wire"
)

// newDoctorCommand makes `walsidecar doctor`.
func newDoctorCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [DEVICE]",
		Short: "say what a device and this host are good for, and what is missing",
		Long: "Look at a device or file (WALSIDECAR_WAL unless named) and at this host: permissions, write\n" +
			"cache, what lies there, who uses and who holds it, how it is fenced, the kernel. Each finding\n" +
			"says what to do. Only reads; safe on a live device. Exit 1 where a log could not be served.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				path, err := sidecar.ResolveWAL(s.WAL)
				if err != nil {
					return err
				}
				args = []string{path}
			}
			report := doctor.Examine(args[0], doctor.Options{Fence: fence.Wish(s.Fence), AcceptVolatile: s.Volatile == "accept"})
			if report.Problems > 0 {
				a.exit = wire.ExitFailed
			}
			return a.printDiagnosis(report)
		},
	}
	addSettingFlags(cmd, "WALSIDECAR_FENCE", "WALSIDECAR_FENCE_VOLATILE")
	return cmd
}

// printDiagnosis prints one finding a line, what to do below it.
func (a *app) printDiagnosis(r *doctor.Report) error {
	if a.json {
		return a.printJSON(r)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Check, f.Found)
		if f.Advice != "" {
			fmt.Fprintf(w, "\t\t→ %s\n", f.Advice)
		}
	}
	fmt.Fprintf(w, "%s: %d problems, %d warnings\n", r.Path, r.Problems, r.Warnings)
	return w.Flush()
}
