package sidecar

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// ErrNoSuchDevice says that no attached block device is the one that was named.
var ErrNoSuchDevice = errors.New("no such device attached")

// resolver finds block devices by what they are: their names change from boot to boot.
type resolver struct {
	sys string // /sys
	dev string // /dev
}

// ResolveWAL is the path of the log that p names. A uuid: is looked up in the superblocks
// of all block devices, which are only read; an ebs: in the serial numbers of the NVMe
// devices. Two devices that answer are an error: which one is right is not to be guessed.
func ResolveWAL(p settings.WALPath) (string, error) {
	return resolver{sys: "/sys", dev: "/dev"}.resolve(p)
}

func (r resolver) resolve(p settings.WALPath) (string, error) {
	if id, ok := p.UUID(); ok {
		return r.only(string(p), func(name string) bool { return holdsLog(filepath.Join(r.dev, name), id) })
	}
	if volume, ok := p.EBSVolume(); ok {
		serial := strings.Replace(volume, "-", "", 1) // EBS leaves the dash out
		return r.only(string(p), func(name string) bool { return r.attribute(name, "device/serial") == serial })
	}
	return string(p), nil
}

// only returns the one block device that is wanted.
func (r resolver) only(what string, wanted func(name string) bool) (string, error) {
	entries, err := os.ReadDir(filepath.Join(r.sys, "class", "block"))
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", what, err)
	}
	var found []string
	for _, entry := range entries {
		if size := r.attribute(entry.Name(), "size"); size != "" && size != "0" && wanted(entry.Name()) {
			found = append(found, filepath.Join(r.dev, entry.Name()))
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("%s: %w", what, ErrNoSuchDevice)
	}
	return "", fmt.Errorf("%s: more than one device is it: %s; name its path", what, strings.Join(found, ", "))
}

// attribute reads one file of a block device in sysfs, "" when there is none.
func (r resolver) attribute(name, file string) string {
	b, err := os.ReadFile(filepath.Join(r.sys, "class", "block", name, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// holdsLog reports whether the device's newest superblock is of that log. A device that
// cannot be read or holds no log is not the one; a damaged one may be, and is refused by
// name later.
func holdsLog(path string, id uuid.UUID) bool {
	d, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return false
	}
	defer d.Close()
	sbs, _ := ringwal.ReadSuperblocks(d)
	return sbs != nil && sbs.Newest != nil && sbs.Newest.UUID == id
}
