package fence

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Wish is what WALSIDECAR_FENCE asks for.
type Wish string

// The wishes.
const (
	WishAuto   Wish = "auto"   // reservations where the device has them, else attach
	WishPR     Wish = "pr"     // reservations, or not at all
	WishAttach Wish = "attach" // none, even where the device has them
)

// OpenOptions say how to fence.
type OpenOptions struct {
	Wish Wish // "" is WishAuto

	// AcceptVolatile uses reservations that a target reset forgets, or may forget:
	// WALSIDECAR_FENCE_VOLATILE=accept.
	AcceptVolatile bool
}

// Open finds out how the block device or file at path can be fenced, and opens it for the
// reservation commands. It changes nothing. path must name the very device that the log is
// open on: open that one first, by the path with its links resolved, and keep it open, so
// that the kernel gives its name to no other device.
//
// Errors match ErrUnsupported (WishPR and the device has no reservations), ErrVolatile,
// ErrPermission (whether it has any cannot be asked), or are those of the system. For
// WishAuto a device whose answer is unknown is an error, never ModeAttach: another host
// may hold it.
func Open(path string, o OpenOptions) (*Fence, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("fence of %s: %w", path, err)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFBLK {
		if o.Wish == WishPR {
			return nil, fmt.Errorf("fence of %s: %w on a file; WALSIDECAR_FENCE=auto locks it", path, ErrUnsupported)
		}
		return Without(ModeLock, Capabilities{Transport: NoTransport, Reservations: No}), nil
	}
	if o.Wish == WishAttach {
		return Without(ModeAttach, Capabilities{Transport: NoTransport}), nil
	}
	k, caps, err := openKernel(path, unix.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("fence of %s: %w", path, err)
	}
	f, err := choose(k, caps, o)
	if err != nil {
		_ = k.Close()
		return nil, fmt.Errorf("fence of %s: %w", path, err)
	}
	if f.mode != ModePR {
		_ = k.Close()
	}
	return f, nil
}

// choose decides by what the device can do.
func choose(k *kernel, caps Capabilities, o OpenOptions) (*Fence, error) {
	usable := caps.Reservations == Yes && caps.WriteExclusive != No
	switch {
	case caps.Reservations == Unknown:
		return nil, fmt.Errorf("%w: whether it has persistent reservations: %s", ErrPermission, caps.Missing)
	case !usable && o.Wish == WishPR:
		return nil, fmt.Errorf("%w (%s, options %#x): WALSIDECAR_FENCE=attach rests on the volume being attached once", ErrUnsupported, caps.Transport, caps.RawReservationOptions)
	case !usable:
		return Without(ModeAttach, caps), nil
	case caps.PersistsThroughPower != Yes && !o.AcceptVolatile:
		return nil, volatileError(caps)
	}
	return New(k, caps), nil
}

func volatileError(caps Capabilities) error {
	if caps.PersistsThroughPower == Unknown {
		return fmt.Errorf("%w, as far as can be asked: %s; or accept that a reset of the target may let a fenced host write again, by WALSIDECAR_FENCE_VOLATILE=accept",
			ErrVolatile, caps.Missing)
	}
	return fmt.Errorf("%w: after a reset of the target a fenced host could write again; WALSIDECAR_FENCE_VOLATILE=accept uses them all the same", ErrVolatile)
}

// Inspect reads capabilities and status of a block device without changing anything. What
// the device or the kernel keeps from us is Unknown, and Missing says why. It needs no
// write access where the kernel wants none to read. ErrUnsupported: not a block device.
func Inspect(path string) (Capabilities, Status, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Capabilities{}, Status{}, fmt.Errorf("fence of %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Capabilities{Transport: NoTransport, Reservations: No}, Status{}, fmt.Errorf("fence of %s: %w: it is a file", path, ErrUnsupported)
	}
	k, caps, err := openKernel(path, unix.O_RDWR)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		k, caps, err = openKernel(path, unix.O_RDONLY)
	}
	if err != nil {
		return caps, Status{}, fmt.Errorf("fence of %s: %w", path, err)
	}
	defer func() { _ = k.Close() }()
	if caps.Reservations == No {
		return caps, Status{}, nil
	}
	status, err := k.Read()
	return caps, status, err
}

// openKernel opens a block device and asks what it can do.
func openKernel(path string, access int) (*kernel, Capabilities, error) {
	none := Capabilities{Transport: NoTransport, Reservations: No}
	fd, err := unix.Open(path, access|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, none, openPermission(path, err)
	}
	k := &kernel{path: path, fd: fd}
	if isPartition(fd) {
		none.Missing = "it is a partition: reservations are of whole disks"
		return k, none, nil
	}
	if k.transport, k.namespace = transportOf(fd); k.transport == NoTransport {
		none.Missing = "it is neither an NVMe namespace nor a SCSI disk"
		return k, none, nil
	}
	return k, k.capabilities(), nil
}

func isPartition(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	_, err := os.Stat(filepath.Join("/sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), "partition"))
	return err == nil
}

// capabilities asks the device, and where it may not be asked that way, infers from what
// it answers.
func (k *kernel) capabilities() Capabilities {
	var caps Capabilities
	var err error
	if k.transport == NVMe {
		caps, err = k.nvmeCapabilities()
	} else {
		caps, _, err = k.scsiCapabilities()
	}
	_, readErr := k.readKeys()
	k.readable = readErr == nil
	caps.ReadByKernel = triOf(!errors.Is(readErr, ErrUnsupported))
	if err == nil {
		return caps
	}
	caps.Missing = err.Error()
	switch {
	case k.readable:
		caps.Reservations = Yes
	case errors.Is(err, ErrUnsupported):
		caps.Reservations = No
	case errors.Is(readErr, ErrPermission):
		caps.Missing = readErr.Error()
	}
	return caps
}

// PreemptByAbort is what WALSIDECAR_PREEMPT (auto, abort or plain) means for a device:
// auto aborts on NVMe; SCSI targets exist on which an abort never returns.
func PreemptByAbort(setting string, caps Capabilities) bool {
	return setting == "abort" || setting != "plain" && caps.Transport == NVMe
}

// permission says which right is missing and how to get it.
func (k *kernel) permission(request uintptr, errno unix.Errno) error {
	need, add, what := "write access to the device (on recent kernels) or CAP_SYS_ADMIN", "SYS_ADMIN", "persistent reservations"
	switch request {
	case iocSGIO:
		need, add, what = "CAP_SYS_RAWIO", "SYS_RAWIO", "asking a SCSI disk about its reservations (SG_IO)"
	case iocNVMeIO:
		what = "NVMe reservation commands (passthrough)"
	case iocNVMeAdmin:
		what = "asking an NVMe controller what it can do (passthrough)"
	}
	return fmt.Errorf("%w: %s on %s wants %s (%w). In Kubernetes: securityContext: {runAsUser: 0, capabilities: {add: [%s]}}, and the volume in volumeDevices",
		ErrPermission, what, k.path, need, errno, add)
}

// openPermission says whose the device node is.
func openPermission(path string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: open %s for reading and writing: the container's device rules forbid it (%w). In Kubernetes: name the volume in volumeDevices", ErrPermission, path, err)
	}
	var st unix.Stat_t
	if !errors.Is(err, unix.EACCES) || unix.Stat(path, &st) != nil {
		return err
	}
	return fmt.Errorf("%w: open %s for reading and writing: it belongs to user %s, group %s, mode %04o (%w). Run as that user or in that group; in Kubernetes: securityContext: {supplementalGroups: [%d]}",
		ErrPermission, path, userName(st.Uid), groupName(st.Gid), st.Mode&0o7777, err, st.Gid)
}

func userName(id uint32) string {
	text := strconv.Itoa(int(id))
	if u, err := user.LookupId(text); err == nil {
		return u.Username
	}
	return text
}

func groupName(id uint32) string {
	text := strconv.Itoa(int(id))
	if g, err := user.LookupGroupId(text); err == nil {
		return strings.TrimSpace(g.Name)
	}
	return text
}
