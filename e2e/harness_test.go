// Package e2e runs the built binary as a person or a service manager would: it types
// commands, kills sidecars, and compares what comes back.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is the path of bin/walsidecar as this test run built it, or, in the lab, was given it.
var program string

// sigterm asks a sidecar to stop.
const sigterm = syscall.SIGTERM

// patience is how long a command may take before the test gives up on it: far above what
// it needs on a slow machine.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if program = os.Getenv("PRLAB_PROGRAM"); program != "" {
		os.Exit(m.Run())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "walsidecar-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "walsidecar")
		build := exec.Command("go", "build", "-trimpath", "-o", program, "../cmd/walsidecar")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// host is a directory with the settings of one sidecar in it.
type host struct {
	t    *testing.T
	dir  string
	env  []string
	boot string // a file with the kernel boot id that it sees, "": this kernel's
}

// newHost makes a host whose log is a new file of the smallest size and has no store.
// Further settings (NAME=VALUE, without the prefix) override.
func newHost(t *testing.T, settings ...string) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALSIDECAR_") {
			h.env = append(h.env, variable)
		}
	}
	h.set("WAL="+h.path("wal"), "WAL_SIZE=32MiB", "SOCKET="+h.path("s"), "STORE=none", "ADMIN=off", "DRAIN=2s")
	h.set(settings...)
	return h
}

// set adds settings; a later one of the same name wins.
func (h *host) set(settings ...string) {
	for _, s := range settings {
		h.env = append(h.env, "WALSIDECAR_"+s)
	}
}

// path is a path in the host's directory.
func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// command prepares a command of this host.
func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	if h.boot != "" {
		// One process through and through: a signal to it reaches the program.
		const asAnother = `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`
		cmd = exec.CommandContext(ctx, "unshare", append([]string{"--mount", "sh", "-c", asAnother, h.boot, program}, args...)...)
	}
	cmd.Dir, cmd.Env = h.dir, h.env
	return cmd
}

// result is what a command left.
type result struct {
	args           []string
	stdout, stderr string
	code           int
}

// run runs a command to its end.
func (h *host) run(args ...string) result {
	h.t.Helper()
	return h.pipe("", args...)
}

// pipe is run with standard input.
func (h *host) pipe(stdin string, args ...string) result {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := h.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		h.t.Fatalf("walsidecar %s: %v %v\n%s", strings.Join(args, " "), err, ctx.Err(), errs.String())
	}
	return result{args, out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command that has to succeed, and returns its standard output.
func (h *host) must(args ...string) string {
	h.t.Helper()
	return h.pipe("", args...).ok(h.t)
}

// ok fails the test unless the command succeeded, and returns its standard output.
func (r result) ok(t *testing.T) string {
	t.Helper()
	if r.code != 0 {
		t.Fatalf("walsidecar %s: exit %d\n%s%s", strings.Join(r.args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fails fails the test unless the command ended with the exit code and said all of what.
func (r result) fails(t *testing.T, code int, what ...string) {
	t.Helper()
	if r.code != code {
		t.Fatalf("walsidecar %s: exit %d, want %d\n%s%s", strings.Join(r.args, " "), r.code, code, r.stdout, r.stderr)
	}
	for _, w := range what {
		if !strings.Contains(r.stderr, w) {
			t.Fatalf("walsidecar %s: %q is not said in: %s", strings.Join(r.args, " "), w, r.stderr)
		}
	}
}

// failure is an error as --json shows it.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// failure decodes the error object of a command that ran with --json and failed.
func (r result) failure(t *testing.T) failure {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	var f failure
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &f); err != nil || r.code == 0 {
		t.Fatalf("walsidecar %s: exit %d, no error object: %v\n%s", strings.Join(r.args, " "), r.code, err, r.stderr)
	}
	return f
}

// process is a sidecar, or another command that stays.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *lockedBuffer
	done   chan struct{}
}

// serve starts a sidecar and waits until it serves.
func (h *host) serve(args ...string) *process {
	h.t.Helper()
	p := h.start(nil, append([]string{"serve"}, args...)...)
	h.awaitReady(p)
	return p
}

// awaitReady waits until the sidecar serves.
func (h *host) awaitReady(p *process) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if h.run("wait-ready", "--timeout", "1s").code == 0 {
			return
		}
		select {
		case <-p.done:
			h.t.Fatalf("the sidecar ended with %d before it was ready:\n%s", p.cmd.ProcessState.ExitCode(), p.stderr)
		default:
		}
	}
	h.t.Fatalf("the sidecar did not become ready:\n%s", p.stderr)
}

// start starts a command with its standard output going to stdout, nil for nowhere. It is
// killed at the end of the test if it still runs.
func (h *host) start(stdout io.Writer, args ...string) *process {
	h.t.Helper()
	return h.startWith(nil, stdout, args...)
}

// startWith is start with standard input.
func (h *host) startWith(stdin io.Reader, stdout io.Writer, args ...string) *process {
	h.t.Helper()
	p := &process{t: h.t, cmd: h.command(context.Background(), args...), stderr: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	h.t.Cleanup(p.kill)
	return p
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// signal sends a signal and returns the exit code.
func (p *process) signal(s syscall.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	return p.wait()
}

// wait returns the exit code of a process that is about to end.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		<-p.done
		p.t.Fatalf("it did not end:\n%s", p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

// lockedBuffer is written by a process's copier and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lines splits output into its lines.
func lines(text string) []string {
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// decode parses one JSON object per line.
func decode[T any](t *testing.T, text string) []T {
	t.Helper()
	var all []T
	for _, line := range lines(text) {
		var one T
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, one)
	}
	return all
}

// loopDevice attaches a loop device of that many bytes over a new file, for the length of
// the test. It skips the test where that cannot be done.
func loopDevice(t *testing.T, bytes int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a loop device needs root")
	}
	return loopOver(t, filepath.Join(t.TempDir(), "backing"), bytes, "--direct-io=on")
}

// loopOver attaches a loop device over a new sparse file.
func loopOver(t *testing.T, file string, bytes int64, options ...string) string {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, bytes); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", append(options, "--find", "--show", file)...).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device can be had: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}
