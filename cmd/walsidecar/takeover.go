package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/sidecar"
	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/upload/store"
)

// listedStreams is how many streams are listed for people; --json lists all.
const listedStreams = 20

// takeoverSettings are the settings that a takeover goes by. The device is none of them:
// what can destroy takes its target as an argument.
var takeoverSettings = []string{"WALSIDECAR_STORE", "WALSIDECAR_FENCE", "WALSIDECAR_FENCE_VOLATILE", "WALSIDECAR_PREEMPT", "WALSIDECAR_LATE_WRITES", "WALSIDECAR_STALL", "WALSIDECAR_MEMORY"}

// newTakeoverCommand makes `walsidecar takeover`.
func newTakeoverCommand(a *app) *cobra.Command {
	var expect string
	var dryRun, force, detached, release bool
	var into string
	cmd := &cobra.Command{
		Use:   "takeover DEVICE",
		Short: "take over the log of a host that is gone, and drain it into its store",
		Long: "Take over the log on a device that another host served: make that host unable to write,\n" +
			"recover what it acked, upload what is not in the store yet, and mark the log clean. The\n" +
			"reservation stays held, so that the former owner stays shut out should it wake up.\n\n" +
			"An owner that shows signs of life is left alone, exit code 14, unless --force. A device\n" +
			"without reservations has to be detached from its former owner first: --owner-is-detached\n" +
			"says that it is.\n\n" +
			"With --into, the sidecar that serves SOCKET adopts the log: it serves it beside its own, to\n" +
			"clients that select it by its node's name, until it is drained and handed back by --release.\n\n" +
			"While the store does not answer it is waited for. A takeover that was\n" +
			"interrupted, or that died, is repeated with the same arguments.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if release && into == "" || into != "" && dryRun {
				return usagef("--release goes with --into, and --dry-run without")
			}
			if into != "" {
				o, err := intoOptions(cmd, args[0])
				if err != nil {
					return err
				}
				o.Node, o.Fencing.Forced, o.OwnerIsDetached = expect, force, detached
				return a.takeOverInto(ctx, into, release, *o)
			}
			o, err := takeoverOptions(ctx, cmd, args[0])
			if err != nil {
				return err
			}
			o.Node, o.Fencing.Forced, o.OwnerIsDetached = expect, force, detached
			o.Log, o.Uploading = slog.New(progressLog{a: a}), a.showLag
			defer a.progress("")
			if dryRun {
				return a.foreseeTakeover(ctx, *o)
			}
			return a.takeOver(ctx, *o)
		},
	}
	cmd.Flags().StringVar(&expect, "expect-node", "", "refuse the log of any other node")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "write nothing; print what would happen")
	cmd.Flags().BoolVar(&force, "force", false, "take it from an owner that is alive, too")
	cmd.Flags().BoolVar(&detached, "owner-is-detached", false, "the device has no reservations, and its former owner has it no more")
	cmd.Flags().StringVar(&into, "into", "", "have the sidecar that serves this socket adopt the log; its settings hold")
	cmd.Flags().BoolVar(&release, "release", false, "with --into: drain the adopted log, and hand it back")
	addSettingFlags(cmd, takeoverSettings...)
	return cmd
}

// takeoverOptions are the options that settings give.
func takeoverOptions(ctx context.Context, cmd *cobra.Command, device string) (*failover.Options, error) {
	s, err := loadSettings(cmd)
	if err != nil {
		return nil, err
	}
	if s.Store == "" {
		return nil, usagef("--store (WALSIDECAR_STORE) says where the log's records go: the store that it was served with")
	}
	if s.Store == settings.NoStore {
		return nil, usagef("--store none: a log without a store cannot be drained; serve it where it is")
	}
	objects, err := store.Open(ctx, string(s.Store), store.Options{})
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	o := &failover.Options{
		Device: device, Store: string(s.Store), Objects: objects, MemoryBytes: int64(s.Memory), Server: "walsidecar " + sidecar.ThisBuild().Version,
		Fencing: fencingOf(s),
	}
	if s.SourceOf("WALSIDECAR_STALL") != settings.FromDefault {
		o.StallAfter = s.Stall
	}
	return o, nil
}

// fencingOf is how settings fence.
func fencingOf(s *settings.Settings) node.Fencing {
	return node.Fencing{Wish: fence.Wish(s.Fence), AcceptVolatile: s.Volatile == "accept", Preempt: node.PreemptBy(s.Preempt), LateWrites: s.LateWrites}
}

func (a *app) takeOver(ctx context.Context, o failover.Options) error {
	r, err := failover.Takeover(ctx, o)
	a.progress("")
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		// The store's error, say, is only what the interruption came to.
		return fmt.Errorf("interrupted; the same command goes on: %v", err) //nolint:errorlint // see above
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	return a.printTakeover(r, drained)
}

// drained is what has become of a log that was taken over for good.
const drained = "was taken over and is drained"

// printTakeover prints for people what a takeover did; what has become of the log.
func (a *app) printTakeover(r *failover.Report, what string) error {
	fmt.Fprintf(a.stdout, "%s: log %s of node %s %s: epoch %d, after %d\n", r.Device, r.LogUUID, r.Node, what, r.Epoch, r.FormerEpoch)
	how := string(r.Fence.Mode)
	if r.Fence.Key != 0 {
		how += fmt.Sprintf(", held with key %s", r.Fence.Key)
	}
	if r.Fence.Victim != 0 {
		how += fmt.Sprintf(", taken from key %s", r.Fence.Victim)
	}
	fmt.Fprintf(a.stdout, "fence: %s: %s\n", how, r.Fence.Why)
	fmt.Fprintf(a.stdout, "recovered %d records (%d bytes of the log); the store %s did not have %d of them (%d bytes)\n",
		r.RecoveredRecords, r.RecoveredBytes, r.Store, r.UploadedRecords, r.UploadedBytes)
	if err := a.printStreamEnds(r.Streams); err != nil {
		return err
	}
	var parts []string
	for _, s := range r.Steps {
		parts = append(parts, fmt.Sprintf("%s %.3f", s.Step, s.Seconds))
	}
	_, err := fmt.Fprintf(a.stdout, "%.3f s: %s\n", r.Seconds, strings.Join(parts, ", "))
	return err
}

func (a *app) printStreamEnds(ends []node.StreamEnd) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "stream\tnext offset\n")
	for i, s := range ends {
		if i == listedStreams {
			fmt.Fprintf(w, "… and %d more; --json lists all\t\n", len(ends)-i)
			break
		}
		fmt.Fprintf(w, "%s\t%d\n", s.Stream, s.Next)
	}
	return w.Flush()
}

// foreseeTakeover prints what a takeover would do.
func (a *app) foreseeTakeover(ctx context.Context, o failover.Options) error {
	f, err := failover.Foresee(ctx, o)
	a.progress("")
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(f)
	}
	fmt.Fprintf(a.stdout, "%s: log %s of node %s, epoch %d; nothing was written. A takeover would:\n", f.Path, f.LogUUID, f.Node, f.Epoch)
	for _, s := range f.Steps {
		fmt.Fprintf(a.stdout, "  %s\n", inWords(f.Fence, s))
	}
	fmt.Fprintf(a.stdout, "  recover %d records in %d frames\n", f.Records, f.Frames)
	fmt.Fprintf(a.stdout, "  begin epoch %d or higher, and claim the manifest of node %s in %s\n", f.Epoch+1, f.Node, o.Store)
	if r := f.Room; r != nil {
		fmt.Fprintf(a.stdout, "  make room first: %s\n", makingRoom(r))
	}
	fmt.Fprintf(a.stdout, "  upload %d records (%d bytes of the log), and mark the log clean\n", f.UploadRecords, f.UploadBytes)
	return a.printStreamEnds(f.Streams)
}

// inWords is a step of the fence for people.
func inWords(mode fence.Mode, s node.ForeseeStep) string {
	switch s.Action {
	case fence.ActReplace:
		return fmt.Sprintf("find out whether this attachment holds, by replacing key %s", s.Key)
	case fence.ActWatch:
		return "look for signs of life of the owner: there were none just now"
	case fence.ActRegister:
		return "register a key"
	case fence.ActReserve:
		return "reserve the device, which nobody holds"
	case fence.ActPreempt:
		if s.Abort {
			return fmt.Sprintf("preempt key %s and abort its writes", s.Key)
		}
		return fmt.Sprintf("preempt key %s", s.Key)
	case fence.ActWait:
		return fmt.Sprintf("wait %.0f s, by %s: %s", s.Seconds, s.Setting, s.Why)
	}
	return fmt.Sprintf("hold the device (%s): %s", mode, s.Why)
}

// makingRoom is how a takeover finds room in a full log, for people.
func makingRoom(r *node.ForeseeRoom) string {
	full := fmt.Sprintf("the log is full (%d of %d bytes, the jump included)", r.UsedBytes, r.CapacityBytes)
	if r.Trims {
		return fmt.Sprintf("%s, so upload and trim it; at most %.0f s, by %s, then begin where it ends", full, r.Seconds, r.Setting)
	}
	return fmt.Sprintf("%s, and a trim would not be enough: wait %.0f s, by %s, and begin where it ends", full, r.Seconds, r.Setting)
}

// showLag shows how an upload gets on.
func (a *app) showLag(lag node.Lag) {
	if lag.Problem != nil {
		a.progress("the store fails; %d bytes to go: %s", lag.Bytes, lag.Problem)
		return
	}
	a.progress("uploading: %d bytes to go", lag.Bytes)
}

// progressLog shows what would be logged as progress: on a terminal, and only the newest.
type progressLog struct{ a *app }

// Enabled is true from Info on.
func (progressLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle shows a record.
func (p progressLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	_, _ = io.WriteString(&b, r.Message)
	r.Attrs(func(at slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%s", at.Key, at.Value)
		return true
	})
	p.a.progress("%s %s", time.Now().Format(time.TimeOnly), b.String())
	return nil
}

// WithAttrs adds nothing: no logger here has attributes.
func (p progressLog) WithAttrs([]slog.Attr) slog.Handler { return p }

// WithGroup adds nothing.
func (p progressLog) WithGroup(string) slog.Handler { return p }
