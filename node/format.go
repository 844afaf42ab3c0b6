package node

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// FormatOptions say where to make a log, and of what.
type FormatOptions struct {
	Path       string
	Node       string        // "": a name is minted
	SizeBytes  int64         // of a new file (0: DefaultFileBytes), or how much of a device to use (0: all)
	StallAfter time.Duration // L; 0: the default
	Force      bool          // replace a log, whose UUID is ExpectUUID
	ExpectUUID uuid.UUID

	origin uint64                                         // first position
	begin  func(device.Device, *ringwal.Superblock) error // completes the log, unless nil, before it gets its name
}

// Formatted describes a new log.
type Formatted struct {
	Path          string `json:"path"`
	LogUUID       string `json:"log_uuid"`
	Node          string `json:"node"`
	CapacityBytes uint64 `json:"capacity_bytes"`
	BlockBytes    uint32 `json:"block_bytes"`
	Created       bool   `json:"created"` // the file did not exist
}

// Format makes a log on a device, or in a file, which it creates if need be. It
// refuses, before any write, what holds a log (unless Force names its UUID), a
// filesystem, a partition table, other data, or is in use: ErrNotOurs,
// device.ErrInUse.
func Format(o FormatOptions) (*Formatted, error) {
	if o.Node == "" {
		o.Node = mintNode()
	}
	_, err := os.Stat(o.Path)
	switch {
	case err == nil:
		return formatExisting(o)
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	case belongsToKernel(o.Path):
		return nil, fmt.Errorf("%w: %s does not exist: is the volume attached?", ErrNoLog, o.Path)
	}
	return formatNew(o)
}

func formatExisting(o FormatOptions) (*Formatted, error) {
	dev, err := device.Open(o.Path, device.OpenOptions{Exclusive: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := mayFormat(dev, o); err != nil {
		return nil, fmt.Errorf("format %w; nothing was written", atPath(o.Path, err))
	}
	var capacity uint64
	if o.SizeBytes > 0 {
		if o.SizeBytes > dev.SizeBytes() {
			return nil, fmt.Errorf("format %s: %w: size of %d bytes, the device has %d", o.Path, ringwal.ErrGeometry, o.SizeBytes, dev.SizeBytes())
		}
		g, err := ringwal.DefaultGeometry(o.SizeBytes, dev.BlockBytes())
		if err != nil {
			return nil, fmt.Errorf("format %w", atPath(o.Path, err))
		}
		capacity = g.CapacityBytes
	}
	return write(dev, o, capacity)
}

// formatNew makes a log in a new file. It gets its name only when it is a log: a crash
// on the way leaves nothing there that a start would have to refuse.
func formatNew(o FormatOptions) (*Formatted, error) {
	size := o.SizeBytes
	if size == 0 {
		size = DefaultFileBytes
	}
	if size < ringwal.MinLogBytes {
		return nil, fmt.Errorf("format %s: %w: %d bytes, the least is %d (WALSIDECAR_WAL_SIZE)", o.Path, ringwal.ErrTooSmall, size, ringwal.MinLogBytes)
	}
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o755); err != nil {
		return nil, err
	}
	unfinished := fmt.Sprintf("%s.unfinished-%d", o.Path, os.Getpid())
	_ = os.Remove(unfinished) // of a process that had our pid
	if err := device.CreateFile(unfinished, size); err != nil {
		return nil, err
	}
	defer os.Remove(unfinished)
	dev, err := device.Open(unfinished, device.OpenOptions{Exclusive: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	made, err := write(dev, o, 0)
	if err != nil {
		return nil, err
	}
	if err := os.Link(unfinished, o.Path); err != nil { // never over a file that came meanwhile
		return nil, fmt.Errorf("format %w", atPath(o.Path, err))
	}
	made.Created = true
	return made, syncDirectory(filepath.Dir(o.Path))
}

func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// write makes dev a new log.
func write(dev device.Device, o FormatOptions, capacity uint64) (*Formatted, error) {
	sb, err := ringwal.Format(dev, ringwal.FormatOptions{UUID: uuid.New(), Node: o.Node, StallAfter: o.StallAfter, CapacityBytes: capacity, Origin: o.origin})
	if err == nil && o.begin != nil {
		err = o.begin(dev, sb)
	}
	if err != nil {
		return nil, fmt.Errorf("format %w", atPath(o.Path, err))
	}
	return &Formatted{Path: o.Path, LogUUID: uuid.UUID(sb.UUID).String(), Node: sb.Node, CapacityBytes: sb.Geometry.CapacityBytes,
		BlockBytes: sb.Geometry.BlockBytes}, nil
}

// mayFormat refuses what holds something.
func mayFormat(dev device.Device, o FormatOptions) error {
	sbs, err := ringwal.ReadSuperblocks(dev)
	switch {
	case errors.Is(err, ringwal.ErrNotALog):
	case sbs != nil && sbs.Newest != nil:
		return mayReplace(sbs.Newest, o)
	case errors.Is(err, ringwal.ErrDamaged) || errors.Is(err, ringwal.ErrFormat):
		if !o.Force {
			return fmt.Errorf("%w: it holds a log whose superblocks cannot be read (%w): --force replaces it", ErrNotOurs, err)
		}
		return nil
	default:
		return err
	}
	what, err := device.SignatureOn(dev)
	if err != nil {
		return err
	}
	if what != "" {
		return fmt.Errorf("%w: it holds %s: if that may go, clear it first (wipefs -a for a filesystem or partition table; else blkdiscard -z, or zeros over its first and last MiB)", ErrNotOurs, what)
	}
	return nil
}

func mayReplace(sb *ringwal.Superblock, o FormatOptions) error {
	id := uuid.UUID(sb.UUID)
	switch {
	case !o.Force:
		return fmt.Errorf("%w: it holds log %s of node %q: to replace it, --force --expect-uuid %s", ErrNotOurs, id, sb.Node, id)
	case o.ExpectUUID != id:
		return fmt.Errorf("%w: it holds log %s of node %q, and --expect-uuid says %s", ErrNotOurs, id, sb.Node, o.ExpectUUID)
	}
	return nil
}

// mintNode is a node name: the host's, with four random digits, since a host may
// have several logs.
func mintNode() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "node"
	}
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return host[:min(len(host), ringwal.MaxNodeBytes-5)] + "-" + hex.EncodeToString(b[:])
}
