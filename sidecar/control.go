package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

const (
	// controlSuffix is added to the path of the clients' socket for that of the control
	// socket, which is for the sidecar's own user and root alone.
	controlSuffix = ".control"

	// controlMode keeps others out; who connects is checked besides.
	controlMode = 0o600

	// maxControlBytes bounds a request.
	maxControlBytes = 64 << 10

	// controlPatience is how long a request may take to come.
	controlPatience = 10 * time.Second
)

// controlRequest is what a command asks of a running sidecar: one JSON line.
type controlRequest struct {
	Verb            string `json:"verb"` // adopt, release
	Device          string `json:"device"`
	Node            string `json:"node,omitempty"`  // whose log it has to be
	Store           string `json:"store,omitempty"` // "": the sidecar's own
	Force           bool   `json:"force,omitempty"`
	OwnerIsDetached bool   `json:"owner_is_detached,omitempty"`
}

// controlAnswer is one line of the answer: progress, and at the end one of the others.
type controlAnswer struct {
	Progress string           `json:"progress,omitempty"`
	Report   *failover.Report `json:"report,omitempty"`
	Code     wire.Code        `json:"code,omitempty"`
	Message  string           `json:"message,omitempty"`
}

// control is the control socket.
type control struct {
	p        *process
	listener *uds.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	requests sync.WaitGroup
	closing  sync.Once
}

// openControl listens for control requests. A socket whose path is too long is done without.
func (p *process) openControl() error {
	l, err := uds.NewListener(string(p.Settings.Socket)+controlSuffix, controlMode, "WALSIDECAR_SOCKET")
	if errors.Is(err, uds.ErrPathTooLong) {
		p.Log.Warn("no control socket: this sidecar can adopt no logs", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	c := &control{p: p, listener: l}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	p.control = c
	go c.accept()
	return nil
}

func (c *control) accept() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return // closed
		}
		if c.ctx.Err() != nil {
			_ = conn.Close()
			return
		}
		c.requests.Add(1)
		go func() {
			defer c.requests.Done()
			defer conn.Close()
			c.serve(conn.(*net.UnixConn))
		}()
	}
}

// close ends what is under way, as an interruption does, and waits for it.
func (c *control) close() {
	if c == nil {
		return
	}
	c.closing.Do(func() {
		c.cancel()
		c.listener.Stop()
		c.requests.Wait()
		c.listener.Unlock()
	})
}

// serve answers one request. A command that hangs up interrupts it.
func (c *control) serve(conn *net.UnixConn) {
	if err := c.authorise(conn); err != nil {
		c.answer(conn, controlError(err))
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(controlPatience))
	line, err := bufio.NewReader(io.LimitReader(conn, maxControlBytes)).ReadBytes('\n')
	var r controlRequest
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		c.answer(conn, controlError(errAdopt(wire.CodeBadRequest, "control request: %v", err)))
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // nothing more comes: it hung up
		cancel()
	}()
	report, err := c.do(ctx, &r, func(text string) { c.answer(conn, controlAnswer{Progress: text}) })
	if err != nil {
		c.p.Log.Warn("control request refused", "verb", r.Verb, "device", r.Device, "error", err)
		c.answer(conn, controlError(err))
		return
	}
	c.answer(conn, controlAnswer{Report: report})
}

func (c *control) do(ctx context.Context, r *controlRequest, tell func(string)) (*failover.Report, error) {
	if err := c.p.ready(); err != nil {
		return nil, errAdopt(wire.CodeNotReady, "the sidecar is not serving: %v", err)
	}
	switch r.Verb {
	case "adopt":
		return c.p.adopt(ctx, r, tell)
	case "release":
		return c.p.release(ctx, r, tell)
	}
	return nil, errAdopt(wire.CodeBadRequest, "no such control request: %q", r.Verb)
}

// authorise lets the sidecar's own user and root in.
func (c *control) authorise(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	peer, err := uds.PeerOf(raw)
	if err != nil {
		return err
	}
	if peer.UID != 0 && peer.UID != uint32(os.Geteuid()) {
		return errAdopt(wire.CodeUnauthorized, "user %d may not control this sidecar: its own user and root may", peer.UID)
	}
	return nil
}

func (c *control) answer(conn *net.UnixConn, a controlAnswer) {
	_ = conn.SetWriteDeadline(time.Now().Add(controlPatience))
	_ = json.NewEncoder(conn).Encode(a) // a command that has gone hears nothing
}

func controlError(err error) controlAnswer {
	return controlAnswer{Code: CodeOf(err), Message: err.Error()}
}

// Control asks the sidecar that serves the socket to adopt or release a log, as o says, and
// returns its report. tell hears of progress. ctx's end interrupts what is under way.
func Control(ctx context.Context, socket, verb string, o failover.Options, tell func(string)) (*failover.Report, error) {
	device, err := filepath.Abs(o.Device) // the sidecar may run elsewhere
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket+controlSuffix)
	if err != nil {
		return nil, errAdopt(wire.CodeDisconnected, "no sidecar takes control requests at %s: %v", socket+controlSuffix, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r := controlRequest{Verb: verb, Device: device, Node: o.Node, Store: o.Store, Force: o.Fencing.Forced, OwnerIsDetached: o.OwnerIsDetached}
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return nil, errAdopt(wire.CodeDisconnected, "control request: %v", err)
	}
	for answers := json.NewDecoder(conn); ; {
		var a controlAnswer
		switch err := answers.Decode(&a); {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, errAdopt(wire.CodeDisconnected, "the sidecar at %s went away: %v", socket, err)
		case a.Report != nil:
			return a.Report, nil
		case a.Code != 0 || a.Message != "":
			return nil, fmt.Errorf("the sidecar at %s: %w", socket, &wire.Error{Code: a.Code, Message: a.Message})
		}
		tell(a.Progress)
	}
}
