// Package failover takes over the log of a host that is gone: Takeover drains it into its
// store by the one routine of a start, Standby watches logs and takes over those whose owner
// has fallen silent. Whether an owner is dead is only ever guessed, here as everywhere; that
// it cannot do harm rests on the fence and the manifest alone.
package failover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

// Why a takeover is refused that a start would not be.
var (
	// ErrNotDetached refuses a device without reservations unless the operator says that
	// its former owner has it no more.
	ErrNotDetached = errors.New("nothing keeps the former owner from writing")

	// ErrOtherStore refuses a store that does not know the node of a log that was served.
	ErrOtherStore error = &wire.Error{Code: wire.CodeStoreUnavailable, Message: "not the store of this log"}
)

// closeMargin is added to the stall limit for the wait until a log is closed: within the
// limit a write is done or has failed.
const closeMargin = 2 * time.Second

// Options say which log to take over, and how.
type Options struct {
	Device  string
	Node    string // whose log it has to be; "": any
	Store   string // its URL, shown to people
	Objects store.Store

	// Fencing as a start has it; Forced takes the log from an owner that is alive.
	Fencing node.Fencing
	// OwnerIsDetached asserts, of a device without reservations, that its former owner
	// cannot write to it any more.
	OwnerIsDetached bool

	StallAfter  time.Duration // L of the new epoch; 0: as in the superblock
	MemoryBytes int64
	Linger      time.Duration // of a log that goes on; 0: the default
	Retention   upload.Retention
	SlowAfter   time.Duration
	Server      string // name and version
	Log         *slog.Logger

	// Waiting, unless nil, hears what the takeover waits for, and nil when that is over.
	Waiting func(*node.Wait)
	// Uploading, unless nil, hears about once a second how much is still to be uploaded.
	Uploading func(node.Lag)
}

// Report is what a takeover did.
type Report struct {
	Device      string `json:"device"`
	Already     bool   `json:"already,omitempty"` // the sidecar had adopted it before; how is told again
	LogUUID     string `json:"log_uuid"`
	Node        string `json:"node"`
	FormerEpoch uint64 `json:"former_epoch"`
	Epoch       uint64 `json:"epoch"`
	WasClean    bool   `json:"was_clean"` // the former owner had closed in order
	Fence       Fence  `json:"fence"`

	RecoveredFrames  uint64 `json:"recovered_frames"`
	RecoveredRecords uint64 `json:"recovered_records"` // that the log held
	RecoveredBytes   uint64 `json:"recovered_bytes"`   // of the log
	UploadedRecords  uint64 `json:"uploaded_records"`  // of them that the store did not have
	UploadedBytes    uint64 `json:"uploaded_bytes"`    // of the log
	UploadedPosition uint64 `json:"uploaded_position"` // once it is drained
	Store            string `json:"store"`

	Streams []node.StreamEnd `json:"streams"`
	Steps   []node.Lap       `json:"steps"`
	Seconds float64          `json:"seconds"` // in all

	stallAfter time.Duration
}

// Fence is how the former owner was kept out.
type Fence struct {
	Mode    fence.Mode `json:"mode"`
	Key     fence.Key  `json:"key"`    // of this takeover, which holds the device from now on
	Victim  fence.Key  `json:"victim"` // whose reservation was taken
	Aborted bool       `json:"aborted"`
	Jumped  bool       `json:"jumped"`
	Why     string     `json:"why"`
	Steps   []Step     `json:"steps"`
}

// Step is one step of acquiring the fence.
type Step struct {
	Action  fence.Action `json:"action"`
	Seconds float64      `json:"seconds"`
}

// Takeover drains the log on o.Device: it makes the former owner unable to write and to
// change the manifest, recovers what that one acked, uploads what the store does not have
// yet, and marks the log clean. The reservation stays held, so that a former owner that
// sleeps and wakes up stays shut out. It can be repeated after any failure, by anyone.
//
// A store that does not answer is waited for; ctx ends the waiting, and then the log stays
// as a crash would leave it.
//
// Errors match ErrNotDetached, ErrOtherStore, or are those of a start: node.ErrNotOurs,
// fence.ErrHeld (the owner is alive), fence.ErrLostRace and others.
func Takeover(ctx context.Context, o Options) (*Report, error) {
	n, r, err := Adopt(ctx, o)
	if err != nil {
		return nil, err
	}
	from := time.Now()
	if err := Drain(ctx, n, r, o.Uploading); err != nil {
		return nil, err
	}
	r.Seconds += time.Since(from).Seconds()
	return r, nil
}

// Adopt is the first half of Takeover: the log is open then, and goes on. The report says
// how that came about. Errors are those of Takeover.
func Adopt(ctx context.Context, o Options) (*node.Node, *Report, error) {
	began := time.Now()
	id, err := look(ctx, &o)
	if err != nil {
		return nil, nil, err
	}
	if err := takesWrites(ctx, &o); err != nil {
		return nil, nil, fmt.Errorf("log %s: nothing was changed: %w", o.Device, err)
	}
	lookedAt := node.Lap{Step: "look", Seconds: time.Since(began).Seconds()}
	proving, cancel := context.WithCancel(ctx)
	defer cancel()
	proved := proveStore(proving, &o)
	n, err := node.Open(ctx, o.config(id))
	if err != nil {
		cancel()
		_ = proved() // it removes what it has put
		return nil, nil, overtaken(err)
	}
	if err := proved(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("log %s was taken over and cannot be uploaded: %w", o.Device, err), n.Abandon())
	}
	r := report(&o, id, n)
	r.Steps = append(append(r.Steps, lookedAt), n.Laps()...)
	r.stallAfter = cmp.Or(o.StallAfter, id.Owner.StallAfter)
	r.Seconds = time.Since(began).Seconds()
	return n, r, nil
}

// Foresee finds out what Takeover would do, and refuses what it would refuse, as far as
// reading tells. It writes nothing.
func Foresee(ctx context.Context, o Options) (*node.Forecast, error) {
	id, err := look(ctx, &o)
	if err != nil {
		return nil, err
	}
	return node.Foresee(ctx, o.config(id))
}

// look does what comes before the first change of any kind: it reads whose log this is, and
// whether it may be taken over into this store.
func look(ctx context.Context, o *Options) (*node.Identity, error) {
	id, err := node.Identify(o.Device, o.Node)
	if err != nil {
		return nil, err
	}
	if err := mayTake(o); err != nil {
		return nil, err
	}
	has, err := node.HasManifest(ctx, o.config(id), id)
	if err == nil && !has && o.Objects != nil && id.Started {
		err = fmt.Errorf("%w: %s knows no log of node %q, which was served up to epoch %d: name the store that it was served with; nothing was written",
			ErrOtherStore, o.Store, id.Owner.Node, id.Owner.Epoch)
	}
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", o.Device, err)
	}
	return id, nil
}

// mayTake refuses a device without reservations unless its owner is said to be detached.
func mayTake(o *Options) error {
	f, err := fence.Open(o.Device, fence.OpenOptions{Wish: o.Fencing.Wish, AcceptVolatile: o.Fencing.AcceptVolatile})
	if err != nil {
		return err
	}
	mode := f.Mode()
	if err := f.Close(); err != nil {
		return err
	}
	if mode == fence.ModeAttach && !o.OwnerIsDetached {
		return fmt.Errorf("log %s: %w: the device is fenced by no reservation. Detach it from its former owner, then say so with --owner-is-detached; nothing was written",
			o.Device, ErrNotDetached)
	}
	return nil
}

// overtaken makes a lost race of the error of a takeover that was fenced itself.
func overtaken(err error) error {
	var e *wire.Error
	fenced := errors.Is(err, fence.ErrFenced) || errors.Is(err, upload.ErrFenced) || errors.Is(err, device.ErrReservationConflict) ||
		errors.As(err, &e) && e.Code == wire.CodeFenced
	if !fenced {
		return err
	}
	return fmt.Errorf("%w: %v", fence.ErrLostRace, err) //nolint:errorlint // it is that error no more
}

// config is how the log is opened: to be drained, for as long as that takes.
func (o *Options) config(id *node.Identity) node.Config {
	fencing := o.Fencing
	fencing.Replaces = &id.Owner
	return node.Config{
		Path: o.Device, Node: id.Owner.Node, Store: o.Store, Objects: o.Objects, StorePatience: math.MaxInt64,
		Fencing: fencing, Waiting: o.Waiting, StallAfter: o.StallAfter, MemoryBytes: o.MemoryBytes, Linger: o.Linger, Retention: o.Retention, SlowAfter: o.SlowAfter, Server: o.Server, Log: o.Log,
	}
}

// report is what is known once the log is open.
func report(o *Options, id *node.Identity, n *node.Node) *Report {
	s, out, missing := n.Status(), n.Fenced(), n.Missing()
	r := &Report{
		Device: o.Device, LogUUID: uuid.UUID(id.LogUUID).String(), Node: s.Node, FormerEpoch: id.Owner.Epoch, Epoch: s.Epoch, WasClean: s.Start.Clean,
		Fence:           Fence{Mode: out.Mode, Key: out.Key, Victim: out.Victim, Aborted: out.Aborted, Jumped: out.Jump, Why: out.Why, Steps: []Step{}},
		RecoveredFrames: s.Start.Frames, RecoveredRecords: s.Start.Records, RecoveredBytes: n.RecoveredBytes(),
		UploadedRecords: missing.Records, UploadedBytes: missing.Bytes, Store: o.Store,
		Streams: n.StreamEnds(),
	}
	for _, taken := range out.Steps {
		r.Fence.Steps = append(r.Fence.Steps, Step{Action: taken.Action, Seconds: taken.Took.Seconds()})
	}
	return r
}

// Drain is the second half of Takeover: it uploads what the store does not have, adds to the
// report what that was, and closes the log. It takes no new appends from then on. Where the
// upload fails the log is left to the next takeover.
func Drain(ctx context.Context, n *node.Node, r *Report, uploading func(node.Lag)) error {
	from := time.Now()
	err := n.Drain(ctx)
	if err == nil {
		err = n.Upload(ctx, uploading)
	}
	if err != nil {
		return overtaken(errors.Join(fmt.Errorf("log %s was taken over and is not drained; take it over again to go on: %w", r.Device, err), n.Abandon()))
	}
	if s := n.Status(); s.Uploads != nil {
		r.UploadedPosition = s.Uploads.UploadedPosition
	}
	uploaded := time.Now()
	r.Steps = append(r.Steps, node.Lap{Step: "upload", Seconds: uploaded.Sub(from).Seconds()})
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.stallAfter+closeMargin)
	defer cancel()
	if err := n.Close(patience); err != nil {
		return overtaken(fmt.Errorf("log %s was drained and is not closed in order; take it over again: %w", r.Device, err))
	}
	r.Steps = append(r.Steps, node.Lap{Step: "close", Seconds: time.Since(uploaded).Seconds()})
	return nil
}
