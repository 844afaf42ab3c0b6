// Package scenario measures what is not the rate of appends: how long recovery and
// takeover take, what clients and streams take of memory, and what appends feel of
// uploads, followers and cold reads.
package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"

	"github.com/walsidecar/walsidecar/bench/machine"
)

// Host is where sidecars run.
type Host struct {
	Store   *machine.Store // of the log
	Objects string         // directory for the object store
	Program string         // path of walsidecar
	Say     func(format string, args ...any)
}

const (
	startWithin = 60 * time.Second
	lookEvery   = time.Millisecond
)

// sidecar is one running sidecar.
type sidecar struct {
	cmd     *exec.Cmd
	socket  string
	dir     string // of the socket
	control *walsidecar.Client
	ready   time.Duration // from its start to the first session
}

// format makes a new log on the emptied store, on the raw device where there is one, and
// returns its path.
func (h *Host) format(ctx context.Context) (wal string, err error) {
	dir, err := h.Store.Fresh(true)
	if err != nil {
		return "", err
	}
	args := []string{"format", h.Store.Device, "--node", "bench"}
	if wal = h.Store.Device; wal == "" {
		wal = filepath.Join(dir, "wal")
		args = []string{"format", wal, "--node", "bench", "--size", strconv.FormatInt(h.Store.Bytes, 10) + "B"}
	}
	_, err = h.run(ctx, args...)
	return wal, err
}

// objects is a new, empty directory for the object store, and removes the one before.
func (h *Host) objects() (string, error) {
	dir := filepath.Join(h.Objects, "objects")
	return dir, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755))
}

// run runs a command of walsidecar and returns what it prints.
func (h *Host) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, h.Program, args...)
	cmd.Env = environment()
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("walsidecar %s: %w: %s", strings.Join(args, " "), err, failed.String())
	}
	return out, nil
}

// environment is that of this process, without settings of walsidecar.
func environment(settings ...string) (env []string) {
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALSIDECAR_") {
			env = append(env, variable)
		}
	}
	return append(env, settings...)
}

// serve starts a sidecar and waits for it to take clients.
func (h *Host) serve(ctx context.Context, wal, store string, settings ...string) (*sidecar, error) {
	dir, err := os.MkdirTemp("", "walsidecar-bench-")
	if err != nil {
		return nil, err
	}
	s := &sidecar{cmd: exec.Command(h.Program, "serve"), dir: dir, socket: filepath.Join(dir, "s")}
	s.cmd.Env = append(environment("WALSIDECAR_WAL="+wal, "WALSIDECAR_STORE="+store, "WALSIDECAR_SOCKET="+s.socket, "WALSIDECAR_ADMIN=off", "WALSIDECAR_DRAIN=1s"), settings...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var logs strings.Builder
	s.cmd.Stderr = &logs
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() {
		_ = s.cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		if s.control, err = walsidecar.Dial(ctx, s.socket, walsidecar.WithDoor(walsidecar.DoorSocket)); err == nil {
			s.ready = time.Since(began)
			return s, nil
		}
		select {
		case <-ended:
			return nil, errors.Join(fmt.Errorf("the sidecar ended while it started:\n%s", logs.String()), os.RemoveAll(dir))
		case <-ctx.Done():
			s.end(syscall.SIGKILL)
			return nil, fmt.Errorf("the sidecar does not take clients: %w", err)
		case <-time.After(lookEvery):
		}
	}
}

// end sends a signal, and waits until the process is gone.
func (s *sidecar) end(signal syscall.Signal) {
	if s.control != nil {
		_ = s.control.Close() // never fails
	}
	_ = s.cmd.Process.Signal(signal) // it may have ended
	for s.cmd.Process.Signal(syscall.Signal(0)) == nil {
		time.Sleep(lookEvery)
	}
	_ = os.RemoveAll(s.dir) // a socket
}

// status reads a part of the sidecar's status.
func (s *sidecar) status(ctx context.Context, into any) error {
	document, err := s.control.Status(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(document, into)
}

// fillRecord is the size of the records that logs are filled with.
const fillRecord = 1 << 10

// fill appends records to a stream until so many bytes of the log are used.
func (s *sidecar) fill(ctx context.Context, stream string, bytes int64) error {
	c, err := walsidecar.Dial(ctx, s.socket, walsidecar.WithInFlight(walsidecar.MaxInFlight, 32<<20))
	if err != nil {
		return err
	}
	defer c.Close()
	payload := randomBytes()
	var flying []walsidecar.Ticket
	for n := int64(0); n < bytes/fillRecord; n++ {
		at := int(n*fillRecord) % (len(payload) - fillRecord)
		ticket, err := c.Submit(ctx, stream, payload[at:at+fillRecord])
		if err != nil {
			return err
		}
		if flying = append(flying, ticket); len(flying) == walsidecar.MaxInFlight/2 {
			if err := waitAll(ctx, flying); err != nil {
				return err
			}
			flying = flying[:0]
		}
	}
	return waitAll(ctx, flying)
}

func waitAll(ctx context.Context, tickets []walsidecar.Ticket) error {
	for _, t := range tickets {
		if _, err := t.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
