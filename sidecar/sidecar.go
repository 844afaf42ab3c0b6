// Package sidecar is the process: it takes the settings, brings up the logs that it hosts,
// opens the doors to them, runs the admin address and the application's child process,
// and takes all of it down again in order.
package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walsidecar/walsidecar/admin"
	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/httpapi"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

const (
	// sessionShare is the part of WALSIDECAR_MEMORY that sessions may use; a quarter is the
	// node's hot tail, and the rest is for tables, indexes and the runtime.
	sessionShare = 2

	// closeMargin is added to the stall limit for the wait until a log is closed: within
	// the limit a write is done or has failed.
	closeMargin = 2 * time.Second

	// sessionPoll is how often a drain looks whether the last session has ended.
	sessionPoll = 20 * time.Millisecond

	// adminPatience is how long the admin server may take to finish its requests.
	adminPatience = time.Second
)

// Options are what a sidecar runs with.
type Options struct {
	Settings *settings.Settings
	Profile  device.Profile // makes the device as slow as a volume type; for measurements
	Child    []string       // command that runs beside the sidecar, nil for none
	Log      *slog.Logger
	// WithoutStore serves the log though its store is not there: nothing leaves it.
	WithoutStore bool
	// StoreStartsHere serves it though the store lacks what the log has let go.
	StoreStartsHere bool
}

// process is a running sidecar.
type process struct {
	Options
	path     string // of the log
	storeURL string
	budget   *session.Budget // of the sessions, and of adopted logs
	adopted  adoptions
	control  *control // nil: the socket's path is too long for one
	stop     chan os.Signal
	began    time.Time
	phase    atomic.Pointer[phase]
	waiting  atomic.Pointer[node.Wait] // what the start waits for; nil: nothing
	node     atomic.Pointer[node.Node]
	cause    atomic.Pointer[error] // why the log has failed or could not be opened
	parked   atomic.Bool
	host     *session.Host
	door     *uds.Server
	http     *httpapi.Server // nil: off
	admin    *admin.Server
	child    *child
	doorDone chan error
	doors    sync.Once       // closes them
	requests *store.Counters // nil without a store

	processors *processors // nil: GOMAXPROCS is set
}

// phase is where in its life the process is.
type phase string

const (
	starting   phase = "starting"
	recovering phase = "recovering the log"
	serving    phase = "serving"
	draining   phase = "shutting down"
	failed     phase = "the log has failed"
)

// Run runs a sidecar until it is told to stop, its child ends, or its log fails. It returns
// the exit code of a child that ended by itself, else 0; the error is why it could not
// start, or why the log failed.
func Run(ctx context.Context, o Options) (exitCode int, err error) {
	p := &process{Options: o, stop: make(chan os.Signal, 2), began: time.Now(), doorDone: make(chan error, 2)}
	p.phase.Store(new(starting))
	signal.Notify(p.stop, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(p.stop)
	p.warnUnknown()
	if os.Getenv("GOMEMLIMIT") == "" {
		// The hot tail lies outside of what the garbage collector sees.
		debug.SetMemoryLimit(int64(o.Settings.Memory) * 3 / 4)
	}
	p.processors = followProcessors()
	defer p.close()
	if err := p.open(ctx); errors.Is(err, errStopped) {
		return 0, nil
	} else if err != nil {
		if p.Settings.OnFatal == "park" && p.path != "" && parkable(err) {
			p.park(err)
		}
		return 0, err
	}
	return p.serve()
}

// parkable reports whether an error of the start is about the log's device: a wrong setting
// or an address in use is for the operator to mend at once.
func parkable(err error) bool {
	switch CodeOf(err) {
	case wire.CodeLogFailed, wire.CodeDamaged, wire.CodeFenced:
		return true
	}
	return false
}

func (p *process) warnUnknown() {
	for _, u := range settings.Unknown() {
		p.Log.Warn("unknown setting is ignored", "setting", u.Name, "nearest", u.Nearest)
	}
}

// open brings everything up but the child. The socket is taken before the log is touched:
// of two sidecars with one socket the second must not begin an epoch.
func (p *process) open(ctx context.Context) error {
	target, err := findTarget(p.Settings)
	if err != nil {
		return err
	}
	if err := target.makeDirectories(p.Settings); err != nil {
		return err
	}
	objects, err := p.openStore(ctx, target)
	if err != nil {
		return err
	}
	budget := session.NewBudget(int64(p.Settings.Memory) / sessionShare)
	if target.store != settings.NoStore {
		if p.Settings.Memory < node.MinMemoryBytes {
			return fmt.Errorf("%w: it is %s, and a log with a store needs %s (with WALSIDECAR_STORE=none 64MiB will do)", errMemory, p.Settings.Memory, settings.Size(node.MinMemoryBytes))
		}
		budget = session.NewBudget(int64(p.Settings.Memory) / sessionShare / 2) // the rest is for uploads and for reads of the store
	}
	server := p.server()
	p.budget, p.storeURL = budget, string(target.store)
	p.host = session.NewHost(session.Options{Log: p.hosted, Budget: budget, Server: server, Logger: p.Log, Waiting: shm.Waitings[p.Settings.ShmWait]})
	if err := p.openDoors(budget); err != nil {
		return err
	}
	if err := p.openAdmin(); err != nil {
		return err
	}
	p.path = target.path
	p.phase.Store(new(recovering))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opened, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s := <-p.stop:
			p.Log.Info("told to stop before the log was open", "signal", s.String())
			cancel(errStopped)
		case <-opened:
		}
	}()
	probed := p.probe(ctx, objects)
	proved := sync.OnceValue(func() error { return <-probed })
	n, err := node.Open(ctx, node.Config{
		Path: target.path, SizeBytes: int64(p.Settings.WALSize), Node: string(p.Settings.Node), Store: string(target.store),
		Objects: objects, StoreStartsHere: p.StoreStartsHere, Proved: proved, Linger: p.Settings.Linger,
		Fencing: p.fencing(), Waiting: p.waiting.Store, Retention: p.retention(),
		StallAfter: p.stallAfter(), MemoryBytes: int64(p.Settings.Memory), Profile: p.Profile,
		IOPS: int64(p.Settings.IOPS), Bandwidth: int64(p.Settings.Bandwidth), SlowAfter: p.Settings.SlowAppend, Server: server, Log: p.Log,
	})
	if err != nil {
		// It removes what it has put; a put that is cut off might come through behind that.
		defer time.AfterFunc(probeEnds, func() { cancel(nil) }).Stop()
	} else {
		p.node.Store(n)
	}
	refused := proved()
	close(opened)
	<-watched
	stopped := errors.Is(context.Cause(ctx), errStopped)
	switch {
	case err != nil && stopped:
		return errStopped
	case err != nil:
		return err
	case stopped:
		return cmp.Or(p.shutDown(n), errStopped)
	case refused != nil:
		return errors.Join(refused, p.shutDown(n))
	}
	p.sayWhatHolds(target, n)
	return nil
}

func (p *process) server() string { return "walsidecar " + ThisBuild().Version }

func (p *process) fencing() node.Fencing {
	return node.Fencing{Wish: fence.Wish(p.Settings.Fence), AcceptVolatile: p.Settings.Volatile == "accept", Preempt: node.PreemptBy(p.Settings.Preempt),
		LateWrites: p.Settings.LateWrites}
}

func (p *process) retention() upload.Retention {
	return upload.Retention{Age: p.Settings.RetentionAge, Bytes: uint64(p.Settings.RetentionBytes)}
}

// errMemory says that the budget is too small for what was asked for.
var errMemory error = &wire.Error{Code: wire.CodeUsage, Message: "WALSIDECAR_MEMORY is too small"}

// errStopped is the cause of a start that a signal ended.
var errStopped = errors.New("told to stop")

// stallAfter is L where it was asked for; else the log's own holds.
func (p *process) stallAfter() time.Duration {
	if p.Settings.SourceOf("WALSIDECAR_STALL") == settings.FromDefault {
		return 0
	}
	return p.Settings.Stall
}

// sayWhatHolds logs what an operator has to know about this start.
func (p *process) sayWhatHolds(t *target, n *node.Node) {
	s := n.Status()
	p.Log.Info("device", "kind", s.Device.Kind, "model", s.Device.Model, "size_bytes", s.Device.SizeBytes,
		"block_bytes", s.Device.BlockBytes, "write_cache", s.Device.WriteCache)
	if asked := int64(p.Settings.WALSize); asked != 0 && asked != s.Device.SizeBytes {
		p.Log.Warn("WALSIDECAR_WAL_SIZE is for a new log; this one keeps its size", "asked_bytes", asked, "size_bytes", s.Device.SizeBytes)
	}
	if s.Fence.Mode == string(fence.ModeAttach) {
		p.Log.Warn("no reservation fences an earlier owner: exclusivity rests on the volume being attached to one host at a time", "fence", s.Fence.Mode)
	}
	if p.WithoutStore && t.store != settings.NoStore {
		p.Log.Warn("running without the store: records stay in the log, and a full log refuses appends", "store", string(t.store))
	}
}

// hosted is the log that a client selects: by UUID, by node name, or "" for the own one;
// nil where this process hosts no such log.
func (p *process) hosted(selector string) session.Backend {
	n := p.node.Load()
	if n == nil {
		return nil
	}
	if w := n.Welcome(); selector == "" || selector == w.Node || selector == uuidText(w.Log) {
		return n
	}
	if x := p.adopted.of(selector); x != nil {
		return x
	}
	return nil
}

func (p *process) openAdmin() error {
	if p.Settings.Admin.Off() {
		return nil
	}
	build := ThisBuild()
	registry := prometheus.NewRegistry()
	registry.MustRegister(admin.NewCollector(admin.Sources{
		Version: build.Version, Revision: build.Revision, GoVersion: build.Go,
		Ready:   func() bool { return p.ready() == nil },
		Metrics: p.logMetrics,
		Status:  p.logStatus,
		Host:    p.host,
		Store:   p.storeCounters,
		Adopted: p.adopted.metrics,
	}))
	admin.RegisterRuntime(registry)
	var err error
	p.admin, err = admin.Listen(admin.Options{
		Address: string(p.Settings.Admin), PProf: p.Settings.PProf == "on",
		Parked: p.parkedOn, Ready: p.ready, Status: p.status, Gatherer: registry, Log: p.Log,
	})
	return err
}

// ready says why clients cannot be served now.
func (p *process) ready() error {
	now := *p.phase.Load()
	if w := p.waitsFor(); w != nil {
		return fmt.Errorf("%s: %s", now, w)
	}
	if now != serving {
		return errors.New(string(now))
	}
	return nil
}

// waitsFor is what the start waits for now; nil: nothing, or it is over.
func (p *process) waitsFor() *node.Wait {
	if *p.phase.Load() != recovering {
		return nil
	}
	return p.waiting.Load()
}

func (p *process) parkedOn() error {
	if p.parked.Load() {
		return *p.cause.Load()
	}
	return nil
}

func (p *process) storeCounters() *store.Counters { return p.requests }

func (p *process) logMetrics() *node.Metrics {
	if n := p.node.Load(); n != nil {
		return n.Metrics()
	}
	return nil
}

// logStatus is the status of the log, nil before it is open. Of one that has failed it is
// the last one known, with the cause.
func (p *process) logStatus() *node.Status {
	n := p.node.Load()
	if n == nil {
		return nil
	}
	s := *n.Status()
	if cause := p.cause.Load(); cause != nil {
		s.State, s.Failure = "failed", (*cause).Error()
	}
	return &s
}

// status is what /status shows: the log's own status once there is one.
func (p *process) status() any {
	if s := p.logStatus(); s != nil {
		with := struct {
			*node.Status
			Adopted []*node.Status `json:"adopted,omitempty"`
		}{Status: s}
		for _, x := range p.adopted.all() {
			with.Adopted = append(with.Adopted, x.node.Status())
		}
		return with
	}
	s := struct {
		State   string `json:"state"`
		Failure string `json:"failure,omitempty"`
		// Waiting is what the start waits for before the log is open.
		Waiting *node.Wait `json:"waiting,omitempty"`
	}{State: string(*p.phase.Load()), Waiting: p.waitsFor()}
	if cause := p.cause.Load(); cause != nil {
		s.Failure = (*cause).Error()
	}
	return s
}

// serve opens the doors and waits for the end.
func (p *process) serve() (int, error) {
	n := p.node.Load()
	p.serveDoors()
	p.phase.Store(new(serving))
	attributes := []any{"socket", p.Settings.Socket.Absolute(), "log", p.path, "engine", n.Engine(), "start_seconds", time.Since(p.began).Seconds()}
	if p.http != nil {
		attributes = append(attributes, "http", p.Settings.HTTP.Path().Absolute())
	}
	if p.admin != nil {
		attributes = append(attributes, "admin", p.admin.Addr().String())
	}
	p.Log.Info("serving", attributes...)
	var childDone <-chan struct{}
	if len(p.Child) > 0 {
		var err error
		if p.child, err = startChild(p.Child, p.Settings); err != nil {
			return 0, errors.Join(err, p.shutDown(n))
		}
		childDone = p.child.done
	}
	look := time.NewTicker(processorsEvery)
	defer look.Stop()
	for {
		select {
		case s := <-p.stop:
			p.Log.Info("shutting down", "signal", s.String())
			return 0, p.shutDown(n)
		case <-childDone:
			code := p.child.exitCode()
			p.Log.Info("shutting down: the child process has ended", "exit_code", code)
			return code, p.shutDown(n)
		case err := <-p.doorDone:
			return 0, errors.Join(err, p.shutDown(n))
		case err := <-n.Failed():
			return 0, p.fail(n, err)
		case <-look.C:
			if p.processors.look() {
				p.Log.Info("the processors have changed", "scheduler", runtime.GOMAXPROCS(0))
			}
		}
	}
}

// shutDown stops the child, serves until the last session has ended or the deadline has
// passed, and closes the log in order. A second signal ends the waiting.
func (p *process) shutDown(n *node.Node) error {
	p.phase.Store(new(draining))
	n.AnnounceDrain()
	deadline := time.Now().Add(p.Settings.Drain)
	hurry := make(chan struct{})
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case s := <-p.stop:
			p.Log.Info("told to stop again: not waiting any longer", "signal", s.String())
			close(hurry)
		case <-over:
		}
	}()
	if p.child != nil {
		p.child.stop(time.Until(deadline), hurry)
	}
	if p.http != nil {
		// A connection that only waits for a next request is no reason to wait for it.
		p.http.Drain()
	}
	if err := p.awaitSessions(n, deadline, hurry); err != nil {
		return p.fail(n, err)
	}
	p.drainDoors()
	p.control.close()
	p.closeAdopted()
	ctx, cancel := context.WithTimeout(context.Background(), p.Settings.Stall+closeMargin)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	p.Log.Info("the log is closed")
	return nil
}

// awaitSessions waits until no session is left, the deadline, or hurry. The error is that of
// a log that failed meanwhile.
func (p *process) awaitSessions(n *node.Node, deadline time.Time, hurry <-chan struct{}) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	poll := time.NewTicker(sessionPoll)
	defer poll.Stop()
	for p.host.Stats().Sessions > 0 {
		select {
		case <-poll.C:
		case <-timer.C:
			p.Log.Info("the drain deadline has passed", "sessions", p.host.Stats().Sessions)
			return nil
		case <-hurry:
			return nil
		case err := <-n.Failed():
			return err
		}
	}
	return nil
}

// fail takes the doors down after the log has failed, and stays parked if it was told to.
// The commit loop has answered what was waiting by then.
func (p *process) fail(n *node.Node, cause error) error {
	p.cause.Store(&cause)
	p.phase.Store(new(failed))
	p.Log.Error("the log has failed: what was not answered has an unknown outcome", "error", cause.Error())
	p.drainDoors()
	p.control.close()
	p.host.Goodbye(CodeOf(cause), cause.Error())
	p.closeAdopted()
	if p.child != nil {
		p.child.stop(p.Settings.Drain, p.signalled())
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeMargin)
	defer cancel()
	_ = n.Close(ctx) // it has failed; this only gives the device back
	if p.Settings.OnFatal == "park" {
		p.park(cause)
	}
	return cause
}

// signalled is closed at the next signal.
func (p *process) signalled() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		<-p.stop
		close(c)
	}()
	return c
}

// park waits for a signal with only the admin address alive.
func (p *process) park(cause error) {
	p.closeDoors()
	p.cause.Store(&cause)
	p.phase.Store(new(failed))
	p.parked.Store(true)
	p.Log.Error("parked: only the admin address is alive (WALSIDECAR_ON_FATAL=park)", "error", cause.Error())
	<-p.stop
}

// close ends everything but the log.
func (p *process) close() {
	p.closeDoors()
	if p.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), adminPatience)
		defer cancel()
		_ = p.admin.Close(ctx) // a request that does not end must not keep the process
	}
}
