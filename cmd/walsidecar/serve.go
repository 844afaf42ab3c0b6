package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/sidecar"
)

// newServeCommand makes `walsidecar serve`.
func newServeCommand(a *app) *cobra.Command {
	var profile string
	var withoutStore, storeStartsHere bool
	cmd := &cobra.Command{
		Use:   "serve [-- CMD ARGS…]",
		Short: "run the sidecar, and CMD as its child",
		Long: "Run the sidecar until SIGTERM or an interrupt. A file log that does not exist is made; a\n" +
			"device is never formatted. CMD runs as the sidecar's child with WALSIDECAR_SOCKET set, and\n" +
			"is stopped first; when it ends by itself, the sidecar ends with its exit code.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usagef("a command to run goes behind --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			shape, err := device.ProfileNamed(profile)
			if err != nil {
				return usageError{err}
			}
			a.exit, err = sidecar.Run(cmd.Context(), sidecar.Options{Settings: s, Profile: shape, Child: args,
				Log: sidecar.NewLogger(os.Stderr), WithoutStore: withoutStore, StoreStartsHere: storeStartsHere})
			return err
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "none", "make the device as slow as a volume type: gp3, io2 or none, and behind it :iops=N; for measurements")
	cmd.Flags().BoolVar(&withoutStore, "without-store", false, "serve though the store is not there; nothing leaves the log, and the store fences nobody")
	cmd.Flags().BoolVar(&storeStartsHere, "store-starts-here", false, "serve though the store lacks what the log has let go: the log had none, or another one")
	addSettingFlags(cmd)
	return cmd
}
