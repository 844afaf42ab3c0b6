package sidecar

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// child is the application's process that the sidecar runs beside itself. It is started
// once the doors are open and stopped before they close.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of Wait, after done
}

// startChild runs argv with this process's standard files and environment, and with
// WALSIDECAR_SOCKET, and WALSIDECAR_HTTP where there is that door, as absolute paths, so
// that it finds the sidecar from any directory.
func startChild(argv []string, s *settings.Settings) (*child, error) {
	c := &child{cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.cmd.Env = append(os.Environ(), "WALSIDECAR_SOCKET="+s.Socket.Absolute())
	if !s.HTTP.Off() {
		c.cmd.Env = append(c.cmd.Env, "WALSIDECAR_HTTP="+s.HTTP.Path().Absolute())
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the child process: %w", err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// stop asks the child to end, waits for it, and kills it when patience is over or hurry
// is closed.
func (c *child) stop(patience time.Duration, hurry <-chan struct{}) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.done:
		return
	case <-timer.C:
	case <-hurry:
	}
	_ = c.cmd.Process.Kill()
	<-c.done
}

// exitCode is what a shell would report for the child; call it after done.
func (c *child) exitCode() int {
	var exit *exec.ExitError
	switch {
	case c.err == nil:
		return 0
	case !errors.As(c.err, &exit):
		return 1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
