package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// startWithin is how long a sidecar of the bench's own may take to start.
const startWithin = 30 * time.Second

// Process is a sidecar that the bench runs as a child.
type Process struct {
	Socket string
	cmd    *exec.Cmd
	logs   tail
	ended  chan struct{}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-tailBytes):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.end))
}

// StartProcess runs program with args, none of this process's WALSIDECAR_*
// settings but those given, and waits until it takes clients at socket.
func StartProcess(ctx context.Context, socket, program string, args []string, settings ...string) (*Process, error) {
	p := &Process{Socket: socket, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALSIDECAR_") {
			p.cmd.Env = append(p.cmd.Env, variable)
		}
	}
	p.cmd.Env = append(p.cmd.Env, settings...)
	p.cmd.Stderr = &p.logs
	// It is stopped by its parent, also where an interrupt goes to both, and dies with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the sidecar: %w", err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		c, err := walsidecar.Dial(ctx, socket, walsidecar.WithName("walsidecar bench"), walsidecar.WithDoor(walsidecar.DoorSocket))
		if err == nil {
			return p, c.Close()
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("the sidecar ended while it started:\n%s", p.logs.String())
		case <-ctx.Done():
			p.Stop()
			return nil, fmt.Errorf("the sidecar does not take clients: %w\n%s", err, p.logs.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop ends the child: it may close its log.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(startWithin):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Running is the target of a sidecar that runs already.
func Running(ctx context.Context, socket string) (Target, error) {
	c, err := walsidecar.Dial(ctx, socket, walsidecar.WithName("walsidecar bench"), walsidecar.WithDoor(walsidecar.DoorSocket))
	if err != nil {
		return Target{}, err
	}
	defer c.Close()
	pid, err := peerPID(socket)
	return Target{Socket: socket, PID: pid}, err
}

// peerPID returns the process that listens at a socket; 0 where it is in another
// PID namespace.
func peerPID(socket string) (int, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("ask who listens at %s: %w", socket, err)
	}
	return int(credentials.Pid), nil
}

// cpuOf returns the processor time that all threads of a process, ended ones too,
// have used. It reads the process's CPU clock (clock_getcpuclockid(3)).
func cpuOf(pid int) (time.Duration, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// cpuOfSelf is cpuOf this process, by getrusage.
func cpuOfSelf() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage) // cannot fail for RUSAGE_SELF
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// counters are the sidecar's own, from its status.
type counters struct {
	CapacityBytes uint64 `json:"capacity_bytes"`
	PayloadBytes  uint64 `json:"payload_bytes"`
	DeviceWrites  uint64 `json:"device_writes"`
	DeviceBytes   uint64 `json:"device_bytes"`
}

func readCounters(ctx context.Context, c *walsidecar.Client) (counters, error) {
	var n counters
	document, err := c.Status(ctx)
	if err == nil {
		err = json.Unmarshal(document, &n)
	}
	return n, err
}
