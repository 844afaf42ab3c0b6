package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is what a path is.
type Kind string

// The kinds of device.
const (
	KindBlock Kind = "block device"
	KindFile  Kind = "file"
)

// Info is what the kernel tells about a device or, for a file, about the
// filesystem and the disk below it. Strings are empty and numbers 0 where the
// kernel does not say.
type Info struct {
	Path          string // as given
	Resolved      string // with symbolic links followed
	Kind          Kind
	SizeBytes     int64  // exact, not rounded to blocks
	BlockBytes    int    // the unit that Open gives
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

// Describe asks the kernel about the device or file at path. It opens it for
// reading, reads nothing and changes nothing; safe on a live one. Beside an error,
// such as ErrNoDirectIO, Info holds what was found out before.
func Describe(path string) (Info, error) {
	info := Info{Path: path}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return info, fmt.Errorf("describe %s: %w", path, err)
	}
	info.Resolved = resolved
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return info, fmt.Errorf("describe %s: %w", path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		info.Kind = KindBlock
		info.describeDisk(sysfs, st.Rdev)
		return info, info.askBlock()
	case unix.S_IFREG:
		info.Kind = KindFile
		info.SizeBytes = st.Size
		info.describeDisk(sysfs, st.Dev)
		return info, info.askFile()
	}
	return info, fmt.Errorf("describe %s: %w", path, ErrNotADevice)
}

func (i *Info) askBlock() error {
	fd, err := unix.Open(i.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return openError(i.Path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	size, sizeErr := ioctlUint64(fd, unix.BLKGETSIZE64)
	logical, logicalErr := ioctlInt(fd, unix.BLKSSZGET)
	physical, physicalErr := ioctlInt(fd, unix.BLKPBSZGET)
	if err := errors.Join(sizeErr, logicalErr, physicalErr); err != nil {
		return fmt.Errorf("describe %s: ask its size and blocks: %w", i.Path, err)
	}
	i.SizeBytes, i.LogicalBytes, i.PhysicalBytes = int64(size), int(logical), int(physical)
	i.BlockBytes = max(MinBlockBytes, i.LogicalBytes)
	i.Volatile = strings.HasPrefix(i.Disk, "ram") || strings.HasPrefix(i.Disk, "zram")
	return nil
}

func (i *Info) askFile() error {
	fd, err := openDirect(i.Path, unix.O_RDONLY)
	if err != nil {
		return openError(i.Path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("describe %s: statfs: %w", i.Path, err)
	}
	i.Filesystem = filesystemName(st.Type)
	i.Volatile = i.Filesystem == "tmpfs" || i.Filesystem == "ramfs"
	align, err := fileAlignment(i.Path, fd)
	if err != nil {
		return err
	}
	i.BlockBytes = max(MinBlockBytes, align)
	return nil
}

// describeDisk reads sysfs about the disk that holds this device number; a
// number without a disk (tmpfs, overlay) leaves all empty.
func (i *Info) describeDisk(sys string, rdev uint64) {
	dir, err := filepath.EvalSymlinks(sysDevice(sys, rdev))
	if err != nil {
		return
	}
	if exists(filepath.Join(dir, "partition")) {
		dir = filepath.Dir(dir)
	}
	i.Disk = filepath.Base(dir)
	queue := func(name string) string { return readLine(filepath.Join(dir, "queue", name)) }
	i.WriteCache = queue("write_cache")
	i.FUA = queue("fua") == "1"
	i.Rotational = queue("rotational") == "1"
	i.LogicalBytes, _ = strconv.Atoi(queue("logical_block_size"))
	i.PhysicalBytes, _ = strconv.Atoi(queue("physical_block_size"))
	i.Model = readLine(filepath.Join(dir, "device/model"))
	// NVMe and SCSI tell it at the device, virtio at the disk.
	for _, name := range []string{"device/serial", "serial", "device/vpd_pg80"} {
		if i.Serial = readLine(filepath.Join(dir, name)); i.Serial != "" {
			break
		}
	}
}

// sysDevice is the directory of a block device in sysfs.
func sysDevice(sys string, rdev uint64) string {
	return filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)))
}

// parseDevice reads "259:3".
func parseDevice(s string) (uint64, bool) {
	major, minor, found := strings.Cut(s, ":")
	if !found {
		return 0, false
	}
	a, err := strconv.ParseUint(major, 10, 32)
	if err != nil {
		return 0, false
	}
	b, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return 0, false
	}
	return unix.Mkdev(uint32(a), uint32(b)), true
}

// readLine is the printable text of a small file; empty when it cannot be read.
func readLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	printable := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0xfffd {
			return -1
		}
		return r
	}, string(data))
	return strings.TrimSpace(printable)
}

func children(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// filesystems names the f_type of statfs(2); ext2 and ext3 share ext4's.
var filesystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC:      "ext4",
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.NFS_SUPER_MAGIC:       "nfs",
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	unix.FUSE_SUPER_MAGIC:      "fuse",
	unix.V9FS_MAGIC:            "9p",
	unix.CEPH_SUPER_MAGIC:      "ceph",
	unix.CIFS_SUPER_MAGIC:      "cifs",
	unix.SMB2_SUPER_MAGIC:      "smb2",
	unix.EXFAT_SUPER_MAGIC:     "exfat",
	unix.MSDOS_SUPER_MAGIC:     "vfat",
	0x2fc12fc1:                 "zfs",
	0xca451a4e:                 "bcachefs",
}

func filesystemName(magic int64) string {
	if name, ok := filesystems[magic&0xffffffff]; ok {
		return name
	}
	return fmt.Sprintf("filesystem type %#x", magic&0xffffffff)
}
