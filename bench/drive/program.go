package drive

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/walsidecar/walsidecar/bench/machine"
)

// What is said to a load program.
const (
	sayMeasure = "measure\n"
	sayStop    = "stop\n"
)

// measureProgram has a process of its own make the load.
func measureProgram(ctx context.Context, p Program, s Setup, t Times, r *Result) (err error) {
	cmd := p.LoadCommand()
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the load: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })() // it may have ended
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	defer in.Close()
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("the load program said %q in place of ready: %w", line, err)
	}
	time.Sleep(t.WarmUp)
	before := machine.Look(s.Device)
	if _, err := io.WriteString(in, sayMeasure); err != nil {
		return err
	}
	time.Sleep(t.Measure)
	if _, err := io.WriteString(in, sayStop); err != nil {
		return err
	}
	after := machine.Look(s.Device)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the load program ended without a result: %w", err)
	}
	if err := json.Unmarshal(line, &r.Counted); err != nil {
		return fmt.Errorf("the load program printed %q: %w", line, err)
	}
	r.fill(machine.Between(before, after))
	return nil
}
