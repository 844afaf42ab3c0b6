package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// OwnLogBytes is the size of the log in a new file. On a device the log takes all
// but the raw area.
const OwnLogBytes = 512 << 20

// Own is a sidecar of the bench's own on a log of its own.
type Own struct {
	Target
	path    string
	process *Process
	dir     string // of the socket
	created bool   // path is a new file
	rawPath string // of the raw area's file; "": it lies on the device behind the log
}

// StartOwn formats the blank device or new file at path, opens the raw area beside
// the log, and runs program as its sidecar, with the device shaped like the profile,
// told what that was bought with, and waiting for WALSIDECAR_SHM_WAIT.
// It refuses what holds data (node.ErrNotOurs) before any write.
func StartOwn(ctx context.Context, program, path string, profile device.Profile, waiting string) (own *Own, err error) {
	o := &Own{path: path, Target: Target{Profile: profile.Name}}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if err := o.format(profile); err != nil {
		return nil, err
	}
	if o.dir, err = os.MkdirTemp("", "walsidecar-bench-"); err != nil {
		return nil, err
	}
	o.Socket = filepath.Join(o.dir, "s")
	o.HTTP = o.Socket + httpSuffix
	settings := append(budgets(profile),
		"WALSIDECAR_WAL="+path, "WALSIDECAR_SOCKET="+o.Socket, "WALSIDECAR_HTTP="+o.HTTP, "WALSIDECAR_STORE=none", "WALSIDECAR_ADMIN=off", "WALSIDECAR_DRAIN=1s", "WALSIDECAR_SHM_WAIT="+waiting)
	o.process, err = StartProcess(ctx, o.Socket, program, []string{"serve", "--profile", profile.Name}, settings...)
	if err != nil {
		return nil, err
	}
	o.PID = o.process.cmd.Process.Pid
	return o, nil
}

// budgets are the settings that tell a sidecar what the profile's volume was bought with.
func budgets(profile device.Profile) (settings []string) {
	if profile.IOPS > 0 {
		settings = append(settings, fmt.Sprintf("WALSIDECAR_WAL_IOPS=%d", profile.IOPS))
	}
	if profile.BytesPerSecond > 0 {
		settings = append(settings, fmt.Sprintf("WALSIDECAR_WAL_BANDWIDTH=%dB", profile.BytesPerSecond))
	}
	return settings
}

// format makes the log and the raw area.
func (o *Own) format(profile device.Profile) error {
	info, err := os.Stat(o.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return o.formatFile(profile)
	case err != nil:
		return err
	case info.Mode().IsRegular():
		return fmt.Errorf("%w: %s exists: the bench makes its log in a new file, or on a blank device", node.ErrNotOurs, o.path)
	}
	return o.formatDevice(profile)
}

func (o *Own) formatFile(profile device.Profile) (err error) {
	if _, err = node.Format(node.FormatOptions{Path: o.path, Node: "bench", SizeBytes: OwnLogBytes}); err != nil {
		return err
	}
	o.created = true
	rawPath := o.path + ".raw"
	if err = device.CreateFile(rawPath, RawBytes); err != nil {
		return err
	}
	o.rawPath = rawPath
	o.Raw, err = OpenRaw(rawPath, 0, RawBytes, profile)
	return err
}

// formatDevice leaves the last bytes of the device alone: with the first ones, they
// are where a device shows that it is blank.
func (o *Own) formatDevice(profile device.Profile) error {
	info, err := device.Describe(o.path)
	if err != nil {
		return err
	}
	end := info.SizeBytes - device.SignatureBytes
	raw := min(RawBytes, info.SizeBytes/8) &^ (rawMaxWrite - 1)
	logBytes := (end - raw) &^ (rawMaxWrite - 1)
	if _, err := node.Format(node.FormatOptions{Path: o.path, Node: "bench", SizeBytes: logBytes}); err != nil {
		return err
	}
	o.Raw, err = OpenRaw(o.path, logBytes, logBytes+raw, profile)
	return err
}

// Close stops the sidecar, and removes the file or makes the device blank again.
func (o *Own) Close() error {
	if o.process != nil {
		o.process.Stop()
	}
	var errs []error
	formatted := o.Raw != nil
	if formatted {
		errs = append(errs, o.Raw.Close())
	}
	if o.dir != "" {
		errs = append(errs, os.RemoveAll(o.dir))
	}
	if o.rawPath != "" {
		errs = append(errs, os.Remove(o.rawPath))
	}
	if o.created {
		errs = append(errs, os.Remove(o.path))
	} else if formatted {
		errs = append(errs, blank(o.path))
	}
	return errors.Join(errs...)
}

// blank writes zeros over the beginning of the device, where the superblocks are.
func blank(path string) error {
	dev, err := device.Open(path, device.OpenOptions{Exclusive: true, BusyFor: startWithin})
	if err != nil {
		return err
	}
	defer dev.Close()
	zeros, err := device.NewArena(device.SignatureBytes)
	if err != nil {
		return err
	}
	defer func() { _ = zeros.Free() }() // the process ends soon
	return dev.WriteSync(zeros.Bytes(), 0)
}
