package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

const (
	// SilentFor is how long an owner may be silent, unless said otherwise: it ticks three
	// times in the time that a takeover looks for signs of life, and this is twice that.
	SilentFor = 2 * fence.QuietBeats * fence.HeartbeatEvery

	// blindAfter is how long a standby may not have looked before what it saw last means
	// nothing any more: it was stopped itself, or the device did not answer.
	blindAfter = 3 * fence.HeartbeatEvery

	// retryFrom and retryTo bound the wait after a takeover that failed.
	retryFrom = fence.HeartbeatEvery
	retryTo   = time.Minute
)

// StandbyOptions say what to watch, and what to do.
type StandbyOptions struct {
	Options          // of every takeover; its Device is not used
	Devices []string // to watch

	SilentFor time.Duration // how long an owner may show no sign of life; 0: SilentFor
	// Detect, unless empty, is a shell command that tells whether an owner is dead, in the
	// place of its silence. It is run again and again, with device and node as arguments:
	// exit code 0 says dead, 1 alive, and every other one that it does not know.
	Detect string

	// Take is how a log is taken over; nil: Takeover.
	Take  func(context.Context, Options) (*Report, error)
	Clock fence.Clock   // nil: the system's
	Taken func(*Report) // told of every takeover, one at a time
}

// Standby watches the logs on devices and takes each one over, as Takeover does, once its
// owner shows no sign of life. It goes on watching until ctx ends: a log that was taken
// over may be served again. A log that was closed in order is left as it is.
//
// Several standbys may watch one device: one of them takes it over. What they see decides
// when they try, and never whether it is safe.
func Standby(ctx context.Context, o StandbyOptions) error {
	if o.SilentFor == 0 {
		o.SilentFor = SilentFor
	}
	if o.Take == nil {
		o.Take = Takeover
	}
	if o.Clock == nil {
		o.Clock = fence.SystemClock{}
	}
	var all sync.WaitGroup
	var reports sync.Mutex
	for _, path := range o.Devices {
		w := &watcher{o: o, log: o.Log.With("device", path), identify: node.Identify, takeover: o.Take}
		w.o.Device = path
		if err := mayTake(&w.o.Options); err != nil {
			return err // before anything is watched: an operator is there to read it
		}
		w.o.Taken = func(r *Report) {
			reports.Lock()
			defer reports.Unlock()
			o.Taken(r)
		}
		all.Go(func() { w.run(ctx) })
	}
	all.Wait()
	return nil
}

// watcher watches one device.
type watcher struct {
	o        StandbyOptions
	log      *slog.Logger
	identify func(path, node string) (*node.Identity, error)
	takeover func(context.Context, Options) (*Report, error)

	seen     sight
	since    time.Duration // that it has been so
	lookedAt time.Duration
	problem  string // told last
}

// sight is what shows that an owner lives, when it changes.
type sight struct {
	log      [16]byte
	epoch    uint64
	sequence uint64
	clean    bool
}

func (w *watcher) run(ctx context.Context) {
	wait := retryFrom
	for w.o.Clock.Sleep(ctx, fence.HeartbeatEvery) == nil {
		dead, err := w.dead(ctx)
		w.tell(ctx, err)
		if !dead {
			continue
		}
		w.log.Warn("the owner shows no sign of life: taking its log over", "epoch", w.seen.epoch)
		r, err := w.takeover(ctx, w.o.Options)
		w.since = w.o.Clock.Now()
		if err == nil {
			wait = retryFrom
			if r.Already {
				continue // its owner is a file's, which shows no signs of life
			}
			w.log.Info("taken over", "node", r.Node, "epoch", r.Epoch, "uploaded_records", r.UploadedRecords, "seconds", r.Seconds)
			w.o.Taken(r)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		level := slog.LevelWarn
		if errors.Is(err, fence.ErrHeld) || errors.Is(err, fence.ErrLostRace) || errors.Is(err, device.ErrInUse) {
			level = slog.LevelInfo // it lives, or somebody else was faster
		}
		w.log.Log(ctx, level, "not taken over", "error", err, "again_after_seconds", wait.Seconds())
		_ = w.o.Clock.Sleep(ctx, wait) // the loop ends with ctx
		wait = min(2*wait, retryTo)
	}
}

// tell logs a problem once, and that it has passed.
func (w *watcher) tell(ctx context.Context, err error) {
	problem := ""
	if err != nil && ctx.Err() == nil {
		problem = err.Error()
	}
	switch {
	case problem == w.problem:
		return
	case problem != "":
		w.log.Warn("cannot tell whether the owner is alive", "error", problem)
	default:
		w.log.Info("watching again")
	}
	w.problem = problem
}

// dead looks once, and reports whether the log's owner is taken for dead.
func (w *watcher) dead(ctx context.Context) (bool, error) {
	id, err := w.identify(w.o.Device, w.o.Node)
	now := w.o.Clock.Now()
	blind := now-w.lookedAt > blindAfter
	w.lookedAt = now
	if err != nil {
		w.since = now
		return false, err
	}
	seen := sight{log: id.LogUUID, epoch: id.Owner.Epoch, sequence: id.Sequence, clean: id.Owner.Clean}
	if seen != w.seen || blind {
		w.seen, w.since = seen, now
	}
	switch {
	case seen.clean || seen.epoch == 0:
		w.since = now
		return false, nil
	case w.o.Detect != "":
		return w.detect(ctx, id.Owner.Node)
	}
	return now-w.since >= w.o.SilentFor, nil
}

// detect asks the command.
func (w *watcher) detect(ctx context.Context, of string) (bool, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", w.o.Detect+` "$@"`, "standby", w.o.Device, of)
	cmd.WaitDelay = fence.HeartbeatEvery // what it started may outlive it
	out, err := cmd.CombinedOutput()
	w.lookedAt = w.o.Clock.Now() // it may take its time
	var exit *exec.ExitError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return false, nil
	}
	return false, fmt.Errorf("the failure detector %q: %w: %.200s", w.o.Detect, err, out)
}
