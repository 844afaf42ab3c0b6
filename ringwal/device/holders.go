package device

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysfs is where the kernel tells about devices.
const sysfs = "/sys"

// Holder is one reason why a device is in use.
type Holder struct {
	// What is "mounted at /data", "partition nvme1n1p1: mounted at /data",
	// "used by dm-0 (luks-data)", "used as swap", "attached to loop0",
	// "open in process 712 (mysqld)".
	What string
}

// Holders lists what uses the block device or file at path: mounts, swap,
// stacked devices (LVM, md, dm-crypt), the same of its partitions and of the disk
// around it, loop devices over a file. Empty when nothing does, as far as this
// process's mount namespace shows; the kernel's own answer is an exclusive Open.
func Holders(path string) ([]Holder, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, openError(path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return fileHolders(st.Dev, st.Ino), nil
	case unix.S_IFBLK:
		return blockHolders(st.Rdev), nil
	}
	return nil, fmt.Errorf("holders of %s: %w", path, ErrNotADevice)
}

func fileHolders(dev, ino uint64) []Holder {
	var out []Holder
	for _, loop := range loopsOver(sysfs, dev, ino) {
		out = append(out, Holder{What: "attached to " + loop})
	}
	for _, swap := range swaps() {
		var st unix.Stat_t
		if unix.Stat(swap, &st) == nil && st.Dev == dev && st.Ino == ino {
			out = append(out, Holder{What: "used as swap"})
		}
	}
	return out
}

func blockHolders(rdev uint64) []Holder {
	mounts := mountsByDevice()
	out := deviceHolders(rdev, mounts, "")
	dir, err := filepath.EvalSymlinks(sysDevice(sysfs, rdev))
	if err != nil {
		return out
	}
	if exists(filepath.Join(dir, "partition")) {
		parent := filepath.Dir(dir)
		if number, ok := parseDevice(readLine(filepath.Join(parent, "dev"))); ok {
			out = append(out, deviceHolders(number, mounts, "disk "+filepath.Base(parent)+": ")...)
		}
		return out
	}
	for _, partition := range children(dir) {
		if !exists(filepath.Join(dir, partition, "partition")) {
			continue
		}
		if number, ok := parseDevice(readLine(filepath.Join(dir, partition, "dev"))); ok {
			out = append(out, deviceHolders(number, mounts, "partition "+partition+": ")...)
		}
	}
	return out
}

// deviceHolders is what uses this very device number.
func deviceHolders(rdev uint64, mounts map[uint64][]string, prefix string) []Holder {
	var out []Holder
	for _, at := range mounts[rdev] {
		out = append(out, Holder{What: prefix + "mounted at " + at})
	}
	for _, name := range children(filepath.Join(sysDevice(sysfs, rdev), "holders")) {
		what := prefix + "used by " + name
		if alias := readLine(filepath.Join(sysfs, "class/block", name, "dm/name")); alias != "" {
			what += " (" + alias + ")"
		}
		out = append(out, Holder{What: what})
	}
	for _, swap := range swaps() {
		var st unix.Stat_t
		if unix.Stat(swap, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == rdev {
			out = append(out, Holder{What: prefix + "used as swap"})
		}
	}
	return out
}

// mountsByDevice is the mount points of this namespace by block device number.
func mountsByDevice() map[uint64][]string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	out := map[uint64][]string{}
	for _, m := range parseMountinfo(f) {
		numbers := map[uint64]bool{m.device: true}
		// btrfs and others mount under a number of their own; the source
		// names the block device.
		var st unix.Stat_t
		if strings.HasPrefix(m.source, "/") && unix.Stat(m.source, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			numbers[st.Rdev] = true
		}
		for n := range numbers {
			out[n] = append(out[n], m.at)
		}
	}
	return out
}

type mount struct {
	device     uint64
	at, source string
}

// parseMountinfo reads proc_pid_mountinfo(5); lines that it cannot read are left
// out.
func parseMountinfo(r io.Reader) []mount {
	var out []mount
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		// 36 35 98:0 /root /mount options optional… - fstype source options
		if len(fields) < 5 {
			continue
		}
		number, ok := parseDevice(fields[2])
		if !ok {
			continue
		}
		m := mount{device: number, at: unescapeOctal(fields[4])}
		for i, f := range fields[5:] {
			if f == "-" && 5+i+2 < len(fields) {
				m.source = unescapeOctal(fields[5+i+2])
				break
			}
		}
		out = append(out, m)
	}
	return out
}

// unescapeOctal undoes the kernel's \040 for spaces and the like.
func unescapeOctal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// swaps is the paths of the swap areas in use.
func swaps() []string {
	data, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return nil
	}
	var out []string
	for i, line := range strings.Split(string(data), "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) > 0 {
			out = append(out, unescapeOctal(fields[0]))
		}
	}
	return out
}

// loopsOver is the names of the loop devices that are backed by the file with
// these device and inode numbers.
func loopsOver(sys string, dev, ino uint64) []string {
	backing, err := filepath.Glob(filepath.Join(sys, "block/loop*/loop/backing_file"))
	if err != nil {
		return nil
	}
	var out []string
	for _, at := range backing {
		var st unix.Stat_t
		if unix.Stat(readLine(at), &st) == nil && st.Dev == dev && st.Ino == ino {
			out = append(out, filepath.Base(filepath.Dir(filepath.Dir(at))))
		}
	}
	return out
}

// inUseError names who holds path, as far as can be found out.
func inUseError(path string) error {
	holders, _ := Holders(path) // the error is ErrInUse whoever it is
	holders = append(holders, OpenIn(path)...)
	if len(holders) == 0 {
		return fmt.Errorf("open %s: %w by another process; stop it, or name another device", path, ErrInUse)
	}
	var what []string
	for _, h := range holders {
		what = append(what, h.What)
	}
	return fmt.Errorf("open %s: %w: %s; release it, or name another device", path, ErrInUse, strings.Join(what, ", "))
}

// OpenIn is the processes that have path open, as far as this user may look.
func OpenIn(path string) []Holder {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return nil
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil
	}
	var out []Holder
	seen := map[string]bool{}
	for _, fd := range fds {
		pid := strings.Split(fd, "/")[2]
		if link, err := os.Readlink(fd); err != nil || link != resolved || seen[pid] {
			continue
		}
		seen[pid] = true
		out = append(out, Holder{What: fmt.Sprintf("open in process %s (%s)", pid, readLine("/proc/"+pid+"/comm"))})
	}
	return out
}
