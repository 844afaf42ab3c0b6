package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/machine"
	"github.com/walsidecar/walsidecar/bench/peers"
)

// runCell measures one cell in this process, and prints its result as one JSON line. Each
// cell has a process of its own: the memory of the system before it is gone, and what the
// process and its children used is what the cell used.
func runCell(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("cell", flag.ContinueOnError)
	var s drive.Setup
	var t drive.Times
	name := f.String("system", "", "a name of `bench list`")
	f.StringVar(&s.Device, "device", "", "block device")
	f.StringVar(&s.Dir, "dir", "", "empty directory")
	f.StringVar(&s.Scratch, "scratch", "", "empty directory for sockets, elsewhere")
	f.Int64Var(&s.StoreBytes, "bytes", 0, "size of the store")
	f.IntVar(&s.Size, "size", 1024, "bytes of a record")
	f.IntVar(&s.Producers, "producers", 1, "")
	f.IntVar(&s.InFlight, "inflight", 1, "")
	f.DurationVar(&t.WarmUp, "warm", time.Second, "")
	f.DurationVar(&t.Measure, "measure", 3*time.Second, "")
	programs := programsFlag(f)
	if err := parse(f, args); err != nil {
		return err
	}
	p, err := peers.Named(*name)
	if err != nil {
		return usageError{err}
	}
	s.Programs = *programs
	r, err := drive.Measure(ctx, p.Make(), s, t)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// cellPatience is how long a cell may take beside its load: PostgreSQL has to start, and
// RocksDB to compact.
const cellPatience = 90 * time.Second

// measureCell empties the store and measures one cell of one system on it, in a process of its own.
func measureCell(ctx context.Context, p peers.Peer, store *machine.Store, c drive.Cell, t drive.Times, programs string) drive.Result {
	r, err := tryCell(ctx, p, store, c, t, programs)
	r.System, r.Store, r.Cell = p.Name, store.Label, c
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

func tryCell(ctx context.Context, p peers.Peer, store *machine.Store, c drive.Cell, t drive.Times, programs string) (r drive.Result, err error) {
	dir, err := store.Fresh(p.Raw)
	if err != nil {
		return r, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	scratch, err := os.MkdirTemp("", "walsidecar-bench-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(scratch)
	ctx, cancel := context.WithTimeoutCause(ctx, t.WarmUp+t.Measure+cellPatience, errors.New("it took too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "cell", "-system", p.Name, "-device", store.Device, "-dir", dir, "-scratch", scratch, "-bytes", strconv.FormatInt(store.Bytes, 10),
		"-size", strconv.Itoa(c.Size), "-producers", strconv.Itoa(c.Producers), "-inflight", strconv.Itoa(c.InFlight),
		"-warm", t.WarmUp.String(), "-measure", t.Measure.String(), "-programs", programs)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	// Its children die with it (Pdeathsig).
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%w %s: %s", err, errorText(context.Cause(ctx)), bytes.TrimSpace(failed.Bytes()))
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
