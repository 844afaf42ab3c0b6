package suite_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/clients/go/suite"
)

// program is the sidecar as this test run built it.
var program string

func TestMain(m *testing.M) {
	if s := os.Getenv(victimOf); s != "" {
		victim(s)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "walsidecar-suite-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "walsidecar")
		if out, err := exec.Command("go", "build", "-o", program, "../../../cmd/walsidecar").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// process is one sidecar, a process apart.
type process struct {
	t    testing.TB
	dir  string
	size string // of the log; "": the smallest
	cmd  *exec.Cmd
	logs bytes.Buffer
}

func (p *process) socket() string { return filepath.Join(p.dir, "s") }

func (p *process) start() {
	p.cmd = exec.Command(program, "serve")
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALSIDECAR_") {
			p.cmd.Env = append(p.cmd.Env, variable)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "WALSIDECAR_WAL="+filepath.Join(p.dir, "wal"), "WALSIDECAR_WAL_SIZE="+cmp.Or(p.size, "32MiB"),
		"WALSIDECAR_SOCKET="+p.socket(), "WALSIDECAR_STORE=none", "WALSIDECAR_ADMIN=off")
	p.cmd.Stderr = &p.logs
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

// dial waits for the sidecar to take clients.
func (p *process) dial(t testing.TB, opts ...walsidecar.Option) *walsidecar.Client {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := walsidecar.Dial(context.Background(), p.socket(), opts...)
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		if time.Now().After(until) {
			t.Fatalf("%v\n%s", err, p.logs.String())
		}
	}
}

// run runs the suite with clients that append by the door.
func run(t *testing.T, door walsidecar.Door) {
	suite.Run(t, func(t testing.TB, size string) *suite.Sidecar {
		p := &process{t: t, dir: t.TempDir(), size: size}
		p.start()
		t.Cleanup(p.kill)
		dial := func(t testing.TB, opts ...walsidecar.Option) *walsidecar.Client {
			t.Helper()
			return p.dial(t, append([]walsidecar.Option{walsidecar.WithDoor(door)}, opts...)...)
		}
		return &suite.Sidecar{Dial: dial, Crash: func() { p.kill(); p.start() }}
	})
}

func TestUnixSocket(t *testing.T) { run(t, walsidecar.DoorSocket) }

func TestSharedMemory(t *testing.T) { run(t, walsidecar.DoorShm) }
