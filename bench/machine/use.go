// Package machine knows the machine that is measured on: what its processors and its
// devices did, the devices that are made for a measurement, and what it is.
package machine

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Moment is the counters of the machine at one time.
type Moment struct {
	at          time.Time
	mine        time.Duration         // this process and its descendants, ended ones too
	kernel      map[int]time.Duration // each kernel thread
	busy, stole time.Duration         // of all processors
	device      Device
}

// Device is what a block device has done since it was made.
type Device struct {
	Writes, WrittenBytes, Flushes int64
}

// Used is what was used between two moments.
type Used struct {
	Lasted        time.Duration
	Processes     time.Duration // processor time of this process and its descendants
	KernelThreads time.Duration // of all kernel threads: they do the device's work
	Foreign       time.Duration // of everything else: a noisy machine
	Stolen        time.Duration // that the hypervisor gave to others
	Device        Device
}

// Look reads the counters; device is the path of a block device, or "".
func Look(device string) Moment {
	m := Moment{kernel: map[int]time.Duration{}, device: deviceCounters("/sys", device)}
	m.readProcesses("/proc", os.Getpid())
	m.readProcessors("/proc")
	m.at = time.Now()
	return m
}

// Between is what was used from the one moment to the other.
func Between(before, after Moment) Used {
	u := Used{
		Lasted: after.at.Sub(before.at), Processes: after.mine - before.mine, Stolen: after.stole - before.stole,
		Device: Device{
			Writes:       after.device.Writes - before.device.Writes,
			WrittenBytes: after.device.WrittenBytes - before.device.WrittenBytes,
			Flushes:      after.device.Flushes - before.device.Flushes,
		},
	}
	for thread, used := range after.kernel { // what ended meanwhile is lost
		u.KernelThreads += max(0, used-before.kernel[thread])
	}
	u.Foreign = max(0, after.busy-before.busy-u.Processes-u.KernelThreads)
	return u
}

// tick is the unit of the kernel's counters of processor time (USER_HZ).
const tick = 10 * time.Millisecond

// kthreadd is the parent of all kernel threads.
const kthreadd = 2

// process is one line of /proc/PID/stat.
type process struct {
	parent   int
	used     time.Duration // all its threads
	children time.Duration // those that ended and were waited for
}

// readProcesses sorts all processes into ours and kernel threads.
func (m *Moment) readProcesses(proc string, self int) {
	entries, _ := os.ReadDir(proc) // without /proc all counts are 0
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		p, ok := parseProcess(stat)
		switch {
		case !ok:
		case pid == kthreadd || p.parent == kthreadd:
			m.kernel[pid] = p.used
		default:
			all[pid] = p
		}
	}
	for pid, p := range all {
		for at := pid; at > 1; at = all[at].parent {
			if at == self {
				m.mine += p.used + p.children
				break
			}
		}
	}
}

// parseProcess takes what counts from /proc/PID/stat. The name, in brackets, may hold
// anything.
func parseProcess(stat []byte) (process, bool) {
	name := bytes.LastIndexByte(stat, ')')
	if name < 0 {
		return process{}, false
	}
	f := strings.Fields(string(stat[name+1:]))
	if len(f) < 15 {
		return process{}, false
	}
	parent, err := strconv.Atoi(f[1])
	return process{parent: parent, used: ticks(f[11]) + ticks(f[12]), children: ticks(f[13]) + ticks(f[14])}, err == nil
}

func ticks(field string) time.Duration {
	n, _ := strconv.ParseInt(field, 10, 64) // the kernel's own numbers
	return time.Duration(n) * tick
}

// readProcessors reads the line of all processors: user, nice, system, idle, iowait,
// irq, softirq, steal.
func (m *Moment) readProcessors(proc string) {
	stat, _ := os.ReadFile(filepath.Join(proc, "stat")) // without it all counts are 0
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line) {
		switch i {
		case 1, 2, 3, 6, 7:
			m.busy += ticks(field)
		case 8:
			m.stole = ticks(field)
		}
	}
}

// deviceCounters reads /sys/block/NAME/stat.
func deviceCounters(sys, device string) Device {
	if device == "" {
		return Device{}
	}
	stat, err := os.ReadFile(filepath.Join(sys, "class/block", filepath.Base(device), "stat"))
	if err != nil {
		return Device{}
	}
	f := strings.Fields(string(stat))
	field := func(i int) int64 {
		if i >= len(f) {
			return 0
		}
		n, _ := strconv.ParseInt(f[i], 10, 64) // the kernel's own numbers
		return n
	}
	const sector = 512
	return Device{Writes: field(4), WrittenBytes: field(6) * sector, Flushes: field(15)}
}

// A machine is quiet when its processors do nothing for quietFor but for quietShare of it.
const (
	quietFor   = 200 * time.Millisecond
	quietShare = 0.05
)

// AwaitQuiet waits until nothing else uses the processors, but no longer than most.
func AwaitQuiet(ctx context.Context, most time.Duration) {
	for until := time.Now().Add(most); time.Now().Before(until) && ctx.Err() == nil; {
		var before, after Moment
		before.readProcessors("/proc")
		time.Sleep(quietFor)
		after.readProcessors("/proc")
		if after.busy-before.busy <= time.Duration(quietShare*float64(quietFor)*float64(runtime.NumCPU())) {
			return
		}
	}
}
