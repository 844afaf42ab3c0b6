package device

import "errors"

// Kind is what a path is.
type Kind string

// The kinds of device.
const (
	KindBlock Kind = "block device"
	KindFile  Kind = "file"
)

// Info is what the kernel tells about a device or, for a file, about the
// filesystem and the disk below it. Strings are empty where the kernel does not say.
type Info struct {
	Path          string // as given
	Resolved      string // with symbolic links followed
	Kind          Kind
	SizeBytes     int64  // exact, not rounded to blocks
	BlockBytes    int    // the unit that Open would give
	LogicalBytes  int    // logical block of the disk: what it addresses
	PhysicalBytes int    // physical block of the disk: what it writes at once
	WriteCache    string // "write back" (volatile: flushes matter) or "write through"
	FUA           bool   // forced unit access: a data-sync write needs no flush of the whole cache
	Model         string
	Serial        string // an EBS volume gives its id here, as vol0123…
	Rotational    bool
	Disk          string // kernel name of the whole disk, such as nvme1n1
	Filesystem    string // of a file: "ext4", "xfs", "tmpfs", …
	Volatile      bool   // the bytes live in memory: nothing survives a power failure
}

// Describe asks the kernel about the device or file at path. It opens the
// device for reading only and changes nothing; safe on a live one.
func Describe(path string) (Info, error) { return Info{}, errors.New("skeleton") }

// Holder is one reason why a device is in use.
type Holder struct {
	What string // "mounted at /data", "partition nvme1n1p1", "used by dm-0 (luks-data)", "swap", "open in process 712 (mysqld)"
}

// Holders lists what uses the block device or file at path: mounts, swap,
// stacked devices, its partitions' mounts, loop devices over a file. Empty when
// nothing does, as far as this mount namespace can see.
func Holders(path string) ([]Holder, error) { return nil, errors.New("skeleton") }
