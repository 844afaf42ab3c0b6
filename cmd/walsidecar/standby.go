package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/sidecar"
)

// newStandbyCommand makes `walsidecar standby`.
func newStandbyCommand(a *app) *cobra.Command {
	var o failover.StandbyOptions
	var into string
	cmd := &cobra.Command{
		Use:   "standby DEVICE…",
		Short: "watch the logs of other hosts, and take over those whose owner is gone",
		Long: "Watch the logs on devices that other hosts serve, and take each one over, as `takeover` does,\n" +
			"once its owner shows no sign of life: an owner writes one about every 1.7 s. A log that was\n" +
			"closed in order is left alone. Runs until SIGTERM or an interrupt; prints every takeover.\n\n" +
			"--on-exec names another failure detector: a shell command that is run again and again with\n" +
			"the device and its node as arguments; exit code 0 says that the owner is dead, 1 that it is\n" +
			"alive. Several standbys may watch one device: one of them takes it over.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.SilentFor < fence.QuietBeats*fence.HeartbeatEvery {
				return usagef("--silent-for is at least %s: an owner that is alive may be silent for less", fence.QuietBeats*fence.HeartbeatEvery)
			}
			if o.Detect == "" && (o.Fencing.Forced || o.OwnerIsDetached) {
				return usagef("--force and --owner-is-detached go with --on-exec: silence alone is no proof of either")
			}
			return runStandby(a, cmd, o, into, args)
		},
	}
	cmd.Flags().DurationVar(&o.SilentFor, "silent-for", failover.SilentFor, "how long an owner may show no sign of life (5s or more)")
	cmd.Flags().StringVar(&o.Detect, "on-exec", "", "a shell command that tells whether an owner is dead, in the place of its silence")
	cmd.Flags().BoolVar(&o.Fencing.Forced, "force", false, "with --on-exec: take over at its word, whatever signs of life there are")
	cmd.Flags().BoolVar(&o.OwnerIsDetached, "owner-is-detached", false, "with --on-exec: when it says dead, a device without reservations is detached from its owner")
	cmd.Flags().StringVar(&into, "into", "", "have the sidecar that serves this socket adopt the logs, in the place of draining them")
	addSettingFlags(cmd, takeoverSettings...)
	return cmd
}

func runStandby(a *app, cmd *cobra.Command, o failover.StandbyOptions, into string, devices []string) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	become := drained
	given, err := takeoverOptions(ctx, cmd, "")
	if into != "" {
		become = adopted
		given, err = intoOptions(cmd, "")
		o.Take = func(ctx context.Context, o failover.Options) (*failover.Report, error) {
			return sidecar.Control(ctx, into, "adopt", o, func(string) {})
		}
	}
	if err != nil {
		return err
	}
	given.Fencing.Forced, given.OwnerIsDetached = o.Fencing.Forced, o.OwnerIsDetached
	o.Options, o.Devices = *given, devices
	o.Log = sidecar.NewLogger(os.Stderr)
	var printed error
	o.Taken = func(r *failover.Report) {
		if a.json {
			printed = a.printJSON(r)
			return
		}
		printed = a.printTakeover(r, become)
	}
	from := time.Now()
	o.Log.Info("watching", "devices", devices, "silent_for_seconds", o.SilentFor.Seconds(), "store", o.Store)
	if err := failover.Standby(ctx, o); err != nil {
		return err
	}
	o.Log.Info("told to stop", "watched_seconds", time.Since(from).Seconds())
	return printed
}
