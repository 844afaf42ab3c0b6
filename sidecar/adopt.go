package sidecar

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/walsidecar/walsidecar/admin"
	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

const (
	// adoptedShare is the part of WALSIDECAR_MEMORY that an adopted log gets. It is taken
	// from what sessions may use.
	adoptedShare = 8

	// maxAdopted is how many logs a sidecar hosts beside its own.
	maxAdopted = 3
)

// adoption is a log of a peer that this process hosts.
type adoption struct {
	device string // with its links resolved
	node   *node.Node
	report *failover.Report
	bytes  int64         // of the sessions' budget
	ended  chan struct{} // closed when it is not hosted any more
}

// adoptions are all of them.
type adoptions struct {
	mu   sync.Mutex // one adoption or release at a time
	list sync.RWMutex
	logs []*adoption
}

// of returns the adopted log that a client selects, nil where there is none.
func (a *adoptions) of(selector string) *node.Node {
	a.list.RLock()
	defer a.list.RUnlock()
	for _, x := range a.logs {
		if w := x.node.Welcome(); selector == w.Node || selector == uuidText(w.Log) {
			return x.node
		}
	}
	return nil
}

// all returns the adopted logs.
func (a *adoptions) all() []*adoption {
	a.list.RLock()
	defer a.list.RUnlock()
	return append([]*adoption(nil), a.logs...)
}

// metrics are what the adopted logs tell at a scrape.
func (a *adoptions) metrics() []admin.AdoptedLog {
	var logs []admin.AdoptedLog
	for _, x := range a.all() {
		s := x.node.Status()
		logs = append(logs, admin.AdoptedLog{Node: s.Node, Metrics: x.node.Metrics(), Status: s})
	}
	return logs
}

// on returns the log that was adopted from a device.
func (a *adoptions) on(device string) *adoption {
	for _, x := range a.all() {
		if x.device == device {
			return x
		}
	}
	return nil
}

func (a *adoptions) add(x *adoption) {
	a.list.Lock()
	defer a.list.Unlock()
	a.logs = append(a.logs, x)
}

// remove forgets a log, and reports whether it was still there.
func (a *adoptions) remove(x *adoption) bool {
	a.list.Lock()
	defer a.list.Unlock()
	for i := range a.logs {
		if a.logs[i] == x {
			a.logs = append(a.logs[:i:i], a.logs[i+1:]...)
			return true
		}
	}
	return false
}

// errAdopt refuses an adoption that this sidecar cannot take.
func errAdopt(code wire.Code, format string, args ...any) error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// adopt takes a peer's log over and hosts it beside the own one, until it is released, fails
// or the process ends. Adopting what is adopted already changes nothing.
func (p *process) adopt(ctx context.Context, r *controlRequest, tell func(string)) (*failover.Report, error) {
	device, err := filepath.EvalSymlinks(r.Device)
	if err != nil {
		return nil, err
	}
	p.adopted.mu.Lock()
	defer p.adopted.mu.Unlock()
	if x := p.adopted.on(device); x != nil {
		again := *x.report
		again.Already = true
		return &again, nil
	}
	if err := p.mayAdopt(device, r.Node); err != nil {
		return nil, err
	}
	o := failover.Options{
		Device: device, Node: r.Node, Store: r.Store, OwnerIsDetached: r.OwnerIsDetached,
		Fencing: p.fencing(), StallAfter: p.stallAfter(), MemoryBytes: int64(p.Settings.Memory) / adoptedShare,
		Linger: p.Settings.Linger, Retention: p.retention(), SlowAfter: p.Settings.SlowAppend, Server: p.server(), Log: p.Log.With("adopting", r.Device),
		Waiting: func(w *node.Wait) {
			if w != nil {
				tell(w.String())
			}
		},
		Uploading: func(lag node.Lag) { tell(fmt.Sprintf("%d bytes to upload", lag.Bytes)) },
	}
	o.Fencing.Forced = r.Force
	if o.Store == "" {
		o.Store = p.storeURL
	}
	if o.Store == string(settings.NoStore) {
		return nil, errAdopt(wire.CodeUsage, "this sidecar has no store, and none was named: --store says where the log's records go")
	}
	if o.Objects, err = store.Open(ctx, o.Store, store.Options{Counters: p.requests}); err != nil {
		return nil, err
	}
	if !p.budget.Take(o.MemoryBytes) {
		return nil, errAdopt(wire.CodeOutOfMemory, "an adopted log takes %d bytes, and sessions use %d of %d", o.MemoryBytes, p.budget.Used(), p.budget.Total())
	}
	tell("taking it over")
	n, report, err := failover.Adopt(ctx, o)
	if err != nil {
		p.budget.Give(o.MemoryBytes)
		return nil, err
	}
	x := &adoption{device: device, node: n, report: report, bytes: o.MemoryBytes, ended: make(chan struct{})}
	p.adopted.add(x)
	p.Log.Info("adopted a log", "device", device, "node", report.Node, "epoch", report.Epoch, "seconds", report.Seconds)
	go p.watchAdopted(x)
	return report, nil
}

// mayAdopt refuses what is this sidecar's own, or too much.
func (p *process) mayAdopt(device, expected string) error {
	own, err := filepath.EvalSymlinks(p.path)
	if err == nil && own == device {
		return errAdopt(wire.CodeUsage, "%s is this sidecar's own log", device)
	}
	id, err := node.Identify(device, expected)
	if err != nil {
		return err
	}
	if name := id.Owner.Node; name == p.node.Load().Welcome().Node || p.adopted.of(name) != nil {
		return errAdopt(wire.CodeInUse, "this sidecar hosts a log of node %q already", name)
	}
	if len(p.adopted.all()) >= maxAdopted {
		return errAdopt(wire.CodeOutOfMemory, "this sidecar hosts %d adopted logs, which is the limit: release one", maxAdopted)
	}
	return nil
}

// watchAdopted ends the hosting of a log that has failed. The own log is not touched.
func (p *process) watchAdopted(x *adoption) {
	select {
	case <-x.ended:
	case cause := <-x.node.Failed():
		p.failAdopted(x, cause)
	}
}

// failAdopted ends the hosting of a log that has failed, unless it is being released or
// closed.
func (p *process) failAdopted(x *adoption, cause error) {
	if !p.adopted.remove(x) {
		return
	}
	p.Log.Error("an adopted log has failed: what was not answered has an unknown outcome", "device", x.device, "node", x.report.Node, "error", cause.Error())
	p.dismiss(x, CodeOf(cause), cause.Error())
	ctx, cancel := context.WithTimeout(context.Background(), closeMargin)
	defer cancel()
	_ = x.node.Close(ctx) // it has failed; this only gives the device back
	p.forget(x)
}

// dismiss ends the sessions of an adopted log.
func (p *process) dismiss(x *adoption, code wire.Code, why string) {
	p.host.GoodbyeFrom(session.Backend(x.node), code, why)
}

// forget gives back what an adopted log took.
func (p *process) forget(x *adoption) {
	close(x.ended)
	p.budget.Give(x.bytes)
}

// release drains an adopted log and ends its hosting; its device keeps the reservation, for
// whoever serves it next. Its clients are sent away once all but the newest is uploaded.
func (p *process) release(ctx context.Context, r *controlRequest, tell func(string)) (*failover.Report, error) {
	device, err := filepath.EvalSymlinks(r.Device)
	if err != nil {
		return nil, err
	}
	p.adopted.mu.Lock()
	defer p.adopted.mu.Unlock()
	x := p.adopted.on(device)
	if x == nil {
		return nil, errAdopt(wire.CodeWrongLog, "this sidecar has adopted no log from %s", device)
	}
	uploading := func(lag node.Lag) { tell(fmt.Sprintf("%d bytes to upload", lag.Bytes)) }
	if err := x.node.Upload(ctx, uploading); err != nil {
		if ctx.Err() == nil {
			p.failAdopted(x, err) // who watches it may not have heard of it
			return nil, fmt.Errorf("log %s has failed: %w", device, err)
		}
		return nil, fmt.Errorf("interrupted; log %s is hosted on: %w", device, err)
	}
	if !p.adopted.remove(x) {
		return nil, errAdopt(wire.CodeWrongLog, "the log on %s has just failed", device)
	}
	defer p.forget(x)
	if err := x.node.Drain(ctx); err != nil && !errors.Is(err, context.Canceled) {
		p.Log.Warn("an adopted log does not drain", "device", device, "error", err)
	}
	p.dismiss(x, wire.CodeDraining, "the log is handed back")
	report := *x.report
	report.Steps = nil
	if err := failover.Drain(ctx, x.node, &report, uploading); err != nil {
		return nil, err
	}
	p.Log.Info("released a log", "device", device, "node", report.Node)
	return &report, nil
}

// closeAdopted closes the adopted logs in order, at the end of the process. Nobody can
// adopt any more.
func (p *process) closeAdopted() {
	for _, x := range p.adopted.all() {
		if !p.adopted.remove(x) {
			continue
		}
		p.dismiss(x, wire.CodeDraining, "the sidecar is shutting down")
		ctx, cancel := context.WithTimeout(context.Background(), p.Settings.Stall+closeMargin)
		if err := x.node.Close(ctx); err != nil {
			p.Log.Error("close an adopted log", "device", x.device, "error", err)
		}
		cancel()
		p.forget(x)
	}
}
