// Package doctor looks at a device or file and at this host, and says what a log there
// would meet: capabilities, permissions, who holds it. Only FenceClear changes anything.
package doctor

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Fence is how a device is fenced and who holds it.
type Fence struct {
	Path         string              `json:"path"`
	Kind         string              `json:"kind"`
	Mode         string              `json:"mode"` // what WALSIDECAR_FENCE=auto would use: pr, attach or lock
	Capabilities *fence.Capabilities `json:"capabilities,omitempty"`
	Generation   uint32              `json:"generation"`
	Holder       fence.Key           `json:"holder"`
	HolderIs     string              `json:"holder_is"` // in words
	Type         fence.Type          `json:"type"`
	Registrants  []fence.Key         `json:"registrants"`
	LockedBy     []int               `json:"locked_by_pids,omitempty"` // of a file, as this host knows them
	Log          *Log                `json:"log,omitempty"`
	Problem      string              `json:"problem,omitempty"` // what could not be found out
}

// Log is what the newest superblock says.
type Log struct {
	UUID  string    `json:"log_uuid"`
	Node  string    `json:"node"`
	Epoch uint64    `json:"epoch"`
	Clean bool      `json:"clean"`
	Key   fence.Key `json:"owner_key"`
}

// FenceStatus reads who holds the device or file at path. It changes nothing and is safe
// on a live one.
func FenceStatus(path string) (*Fence, error) {
	info, err := device.Describe(path)
	if err != nil && info.Kind == "" {
		return nil, err
	}
	f := &Fence{Path: path, Kind: string(info.Kind), Mode: string(fence.ModeLock), Registrants: []fence.Key{}}
	f.Log, err = readLog(path)
	if err != nil && !errors.Is(err, ringwal.ErrNotALog) {
		f.Problem = err.Error()
	}
	if info.Kind == device.KindFile {
		f.LockedBy = lockedBy(path)
		f.HolderIs = "nobody has it locked on this host"
		if len(f.LockedBy) > 0 {
			f.HolderIs = "a process of this host"
		}
		return f, nil
	}
	f.readReservation(path)
	return f, nil
}

// readReservation fills in what the device says; what it does not say is a Problem.
func (f *Fence) readReservation(path string) {
	caps, st, err := fence.Inspect(path)
	f.Capabilities, f.Mode = &caps, mode(caps)
	if err != nil {
		f.Problem, f.HolderIs = err.Error(), "unknown"
		return
	}
	f.Generation, f.Holder, f.Type = st.Generation, st.Holder, st.Type
	f.Registrants = append(f.Registrants, st.Keys...)
	f.HolderIs = holderIs(st, caps, f.Log)
}

// mode is what auto makes of the capabilities; "" where they refuse a start.
func mode(caps fence.Capabilities) string {
	switch {
	case caps.Reservations == fence.Unknown:
		return ""
	case caps.Reservations == fence.Yes && caps.WriteExclusive != fence.No:
		return string(fence.ModePR)
	}
	return string(fence.ModeAttach)
}

// holderIs tells who the holder is, by its key and the newest superblock.
func holderIs(st fence.Status, caps fence.Capabilities, log *Log) string {
	switch {
	case caps.Reservations != fence.Yes:
		return "the device has no persistent reservations: whoever it is attached to may write"
	case st.Type == fence.NoReservation:
		return "nobody: every host may write"
	case st.Type != fence.WriteExclusive:
		return "another program: walsidecar makes write exclusive reservations only"
	case log == nil:
		return "unknown: there is no log to compare its key with"
	case st.Holder == log.Key:
		return fmt.Sprintf("the last owner in the superblock, node %s, epoch %d", log.Node, log.Epoch)
	case st.Holder.Node() == fence.NodeHash(log.Node):
		return "a start or takeover of node " + log.Node + " that has written no superblock (yet)"
	}
	return "another node or program: its key is not of node " + log.Node
}

// FenceClear takes the reservation on the block device at path from expect, which must be
// the holder, and ends every registration. Every host may write then. It refuses a device
// that is in use on this host.
func FenceClear(path string, expect fence.Key) (*Fence, error) {
	dev, err := device.Open(path, device.OpenOptions{Exclusive: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	f, err := fence.Open(path, fence.OpenOptions{Wish: fence.WishPR, AcceptVolatile: true})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var incarnation [16]byte
	_, _ = rand.Read(incarnation[:]) // never fails
	if err := f.Clear(fence.KeyOf("fence clear", incarnation), expect); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return FenceStatus(path)
}

// readLog reads the newest superblock; nil and an error where there is none.
func readLog(path string) (*Log, error) {
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	sbs, err := ringwal.ReadSuperblocks(dev)
	if sbs == nil || sbs.Newest == nil {
		return nil, err
	}
	sb := sbs.Newest
	return &Log{UUID: uuid.UUID(sb.UUID).String(), Node: sb.Node, Epoch: sb.Epoch, Clean: sb.Clean, Key: fence.Key(sb.FenceKey)}, err
}

// lockedBy is the processes of this host that have the file locked, from /proc/locks.
func lockedBy(path string) []int {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer f.Close()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	var pids []int
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 1: FLOCK ADVISORY WRITE 712 08:01:1311 0 EOF
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != want {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
