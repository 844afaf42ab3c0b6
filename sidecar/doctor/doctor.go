package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Note    Level = "note"    // good to know
	Warning Level = "warning" // works, and not as well or as safely as it could
	Problem Level = "problem" // a log cannot be served like this
)

// Finding is one thing that was looked at.
type Finding struct {
	Check  string `json:"check"` // snake_case, stable
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"` // what to do
}

// Report is all of it, in a stable order.
type Report struct {
	Path     string    `json:"path"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

func (r *Report) add(check string, level Level, found, advice string) {
	r.Findings = append(r.Findings, Finding{check, level, found, advice})
	switch level {
	case Problem:
		r.Problems++
	case Warning:
		r.Warnings++
	}
}

// Options are the settings that findings depend on.
type Options struct {
	Fence          fence.Wish
	AcceptVolatile bool
}

// Examine looks at the device or file at path and at this host. It changes nothing and is
// safe on a live device. A path that does not exist is a finding, not an error.
func Examine(path string, o Options) *Report {
	r := &Report{Path: path, Findings: []Finding{}}
	info, err := device.Describe(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.missing(path)
	case err != nil && info.Kind == "":
		r.add("path", Problem, err.Error(), "name a block device or a file")
	default:
		r.add("path", OK, fmt.Sprintf("%s, %s", info.Kind, describe(info)), "")
		r.access(path, info, err)
		r.medium(info)
		r.contents(path)
		r.holders(path)
		r.fence(path, info, o)
	}
	r.host()
	return r
}

func describe(info device.Info) string {
	parts := []string{fmt.Sprintf("%d bytes", info.SizeBytes)}
	for _, s := range []string{info.Model, info.Serial, info.Filesystem, info.Disk} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ", ")
}

// missing is for a path where nothing is yet.
func (r *Report) missing(path string) {
	if strings.HasPrefix(filepath.Clean(path), "/dev/") {
		r.add("path", Problem, "there is no such device", "attach the volume; its name may have changed: uuid:… and ebs:vol-… find it")
		return
	}
	r.add("path", Note, "there is no such file", "serve makes a log there")
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			if err := unix.Access(dir, unix.W_OK); err != nil {
				r.add("access", Problem, fmt.Sprintf("no write access to the directory %s (%v)", dir, err), "make it writable for this user, or name another")
			}
			return
		}
	}
}

// access is whether this user may open it as a log needs it.
func (r *Report) access(path string, info device.Info, describeErr error) {
	if describeErr != nil {
		advice := "see docs/operations.md"
		if errors.Is(describeErr, device.ErrNoDirectIO) {
			advice = "put the file on ext4 or xfs, or use a block device"
		}
		r.add("direct_io", Problem, describeErr.Error(), advice)
	} else {
		r.add("direct_io", OK, "direct I/O works", "")
	}
	err := unix.Access(path, unix.R_OK|unix.W_OK)
	if err == nil {
		r.add("access", OK, fmt.Sprintf("user %d may read and write it", os.Geteuid()), "")
		return
	}
	var st unix.Stat_t
	_ = unix.Stat(path, &st) // it was there a moment ago
	advice := "run as its owner, or in its group"
	if info.Kind == device.KindBlock {
		advice += fmt.Sprintf("; in Kubernetes: the volume in volumeDevices and securityContext: {supplementalGroups: [%d]}", st.Gid)
	}
	r.add("access", Problem, fmt.Sprintf("user %d may not read and write it (%v); it belongs to user %d, group %d, mode %04o", os.Geteuid(), err, st.Uid, st.Gid, st.Mode&0o7777), advice)
}

// medium is what the disk promises.
func (r *Report) medium(info device.Info) {
	if info.BlockBytes > 0 {
		r.add("block_size", OK, fmt.Sprintf("log block %d bytes; the disk has %d logical, %d physical", info.BlockBytes, info.LogicalBytes, info.PhysicalBytes), "")
	}
	switch {
	case info.Volatile:
		r.add("medium", Warning, "it lives in memory: nothing survives a power failure", "use it for tests alone")
	case info.Rotational:
		r.add("medium", Note, "the kernel takes it for a rotating disk", "each append waits for the platter; expect milliseconds")
	default:
		r.add("medium", OK, "not rotating", "")
	}
	switch {
	case info.WriteCache == "":
		r.add("write_cache", Note, "the kernel does not say whether there is a volatile write cache", "every write is sent with data sync either way")
	case strings.Contains(info.WriteCache, "through"):
		r.add("write_cache", OK, "write through: a write that is answered is durable", "")
	case info.FUA:
		r.add("write_cache", OK, "write back, with FUA: a data-sync write goes to the medium by itself", "")
	default:
		r.add("write_cache", Warning, "write back, without FUA: every data-sync write flushes the whole cache", "appends are slower; a volume with power loss protection says write through")
	}
}

// contents is what lies there.
func (r *Report) contents(path string) {
	log, err := readLog(path)
	switch {
	case log != nil && err == nil:
		r.add("contents", OK, fmt.Sprintf("log %s of node %s, epoch %d", log.UUID, log.Node, log.Epoch), "")
	case errors.Is(err, ringwal.ErrNotALog):
		what, err := device.Signature(path)
		switch {
		case err != nil:
			r.add("contents", Problem, err.Error(), "check the device and its permissions")
		case what == "":
			r.add("contents", Note, "blank", "make a log with `walsidecar format "+path+"`")
		default:
			r.add("contents", Problem, what+", and no log", "walsidecar does not touch it: is it the right device?")
		}
	case err != nil:
		r.add("contents", Problem, err.Error(), "`walsidecar inspect "+path+"` shows more")
	}
}

// holders is who uses it on this host.
func (r *Report) holders(path string) {
	found, err := device.Holders(path)
	if err != nil {
		r.add("in_use", Note, "cannot be found out: "+err.Error(), "")
		return
	}
	var what []string
	for _, h := range append(found, device.OpenIn(path)...) {
		what = append(what, h.What)
	}
	if len(what) > 0 {
		r.add("in_use", Warning, strings.Join(what, ", "), "release it before a sidecar is started on it; where it is the sidecar's own, all is well")
		return
	}
	r.add("in_use", OK, "no mount, swap, stacked device or process on this host, as far as this user may see", "")
}
