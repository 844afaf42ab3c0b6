package sidecar

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// processorsEvery is how often a running sidecar looks whether its processors have changed.
const processorsEvery = 10 * time.Second

// processors keeps the Go scheduler at one processor more than the process may use: the
// commit loop sleeps in the kernel by itself, which the scheduler learns late, and without one
// more the others would wait for that. The runtime follows a container's limit no more once a
// number was asked for, and its own answer to how many there are stops the world. So what that
// answer depends on is read here first, and the runtime asked only when it has changed.
type processors struct {
	limits []string // files with the limit of the control group; none: there is none
	seen   []byte   // what they held when the runtime was asked, and which processors there were
}

// followProcessors sets the scheduler and returns what keeps it so; nil where GOMAXPROCS is set
// in the environment, which holds.
func followProcessors() *processors {
	if os.Getenv("GOMAXPROCS") != "" {
		return nil
	}
	p := &processors{limits: openLimits()}
	p.look()
	return p
}

// openLimits returns the files that the runtime looks into for the limit: it keeps them open.
func openLimits() (paths []string) {
	const open = "/proc/self/fd"
	entries, err := os.ReadDir(open)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(open, e.Name())
		to, err := os.Readlink(path)
		if err != nil {
			continue
		}
		switch filepath.Base(to) {
		case "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us":
			paths = append(paths, path) // opened by this name it is the same file, wherever it lies
		}
	}
	return paths
}

// look sets the scheduler anew if the processors have changed since the last look, and reports
// whether they have. It takes some microseconds where they have not. A nil one changes nothing.
func (p *processors) look() bool {
	if p == nil {
		return false
	}
	now := p.now()
	if bytes.Equal(now, p.seen) {
		return false
	}
	p.seen = now
	runtime.SetDefaultGOMAXPROCS()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	return true
}

// now is what the number of processors depends on.
func (p *processors) now() (b []byte) {
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set) // fails nowhere that Go runs
	b = fmt.Appendf(nil, "%x", set)
	for _, path := range p.limits {
		limit, _ := os.ReadFile(path) // of a control group that has gone: no limit
		b = append(b, limit...)
	}
	return b
}
