package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// fence is what keeps an earlier owner from writing, and who holds it now.
func (r *Report) fence(path string, info device.Info, o Options) {
	if info.Kind == device.KindFile {
		r.add("fence", OK, "a file: fenced by its lock, on this host alone", "")
		return
	}
	f, err := fence.Open(path, fence.OpenOptions{Wish: o.Fence, AcceptVolatile: o.AcceptVolatile})
	if err == nil {
		defer f.Close()
	}
	caps, status, inspectErr := fence.Inspect(path)
	switch {
	case err != nil:
		r.add("fence", Problem, err.Error(), adviceFor(err))
	case f.Mode() == fence.ModePR:
		how := "plainly, and the wait of L"
		if fence.PreemptByAbort("auto", caps) {
			how = "with abort, without a wait"
		}
		r.add("fence", OK, fmt.Sprintf("persistent reservations by %s; a takeover preempts %s", caps.Transport, how), "")
	case caps.Reservations == fence.Yes:
		r.add("fence", Warning, "the device has persistent reservations, and WALSIDECAR_FENCE=attach does not use them", "WALSIDECAR_FENCE=auto")
	default:
		r.add("fence", Warning, "no persistent reservations ("+reason(caps)+"): exclusivity rests on the volume being attached once",
			"never attach it to two hosts; for takeover by a peer use a volume with reservations, such as io2 with Multi-Attach")
	}
	if caps.Reservations == fence.Yes {
		r.reservation(path, caps, status, inspectErr)
	}
}

func reason(caps fence.Capabilities) string {
	if caps.Missing != "" {
		return caps.Missing
	}
	return fmt.Sprintf("%s, options %#x", caps.Transport, caps.RawReservationOptions)
}

func adviceFor(err error) string {
	switch {
	case errors.Is(err, fence.ErrPermission):
		return "give the right that is named, or WALSIDECAR_FENCE=attach where the volume is attached once"
	case errors.Is(err, fence.ErrVolatile):
		return "use a volume whose reservations persist; for tests WALSIDECAR_FENCE_VOLATILE=accept"
	case errors.Is(err, fence.ErrUnsupported):
		return "WALSIDECAR_FENCE=auto or attach, and never attach the volume twice"
	}
	return "check the device"
}

// reservation is for a device that has them.
func (r *Report) reservation(path string, caps fence.Capabilities, st fence.Status, err error) {
	switch caps.PersistsThroughPower {
	case fence.Yes:
		r.add("reservations_persist", OK, "reservations survive a power loss of the target", "")
	case fence.No:
		r.add("reservations_persist", Warning, "a power loss of the target forgets reservations: a fenced host could write again", "use it only where that is accepted")
	default:
		r.add("reservations_persist", Note, "unknown: "+caps.Missing, "")
	}
	switch caps.SharedAttachment {
	case fence.Yes:
		r.add("multi_attach", OK, "the namespace can be attached to several hosts", "")
	case fence.No:
		r.add("multi_attach", Note, "the namespace cannot be attached to several hosts", "a peer can take it over only after it was detached here; on EBS enable Multi-Attach (io2)")
	}
	if err != nil {
		r.add("holder", Problem, err.Error(), adviceFor(err))
		return
	}
	log, _ := readLog(path) // its problems are told under contents
	found := holderIs(st, caps, log)
	switch {
	case st.Type == fence.NoReservation:
		r.add("holder", OK, found, "")
	case log != nil && st.Type == fence.WriteExclusive && st.Holder.Node() == fence.NodeHash(log.Node):
		r.add("holder", OK, fmt.Sprintf("key %s: %s", st.Holder, found), "")
	default:
		r.add("holder", Problem, fmt.Sprintf("key %s, %s: %s", st.Holder, st.Type, found), "if nothing uses the device any more: `walsidecar fence clear "+path+" --expect-holder "+st.Holder.String()+"`")
	}
}

// host is what the kernel and the limits of this process are.
func (r *Report) host() {
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		r.add("kernel", OK, fmt.Sprintf("Linux %s on %s", unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Machine[:])), "")
	}
	if _, err := unix.Pwritev2(-1, nil, 0, unix.RWF_DSYNC); errors.Is(err, unix.ENOSYS) {
		r.add("data_sync_writes", Warning, "no pwritev2 here: an emulator or a sandbox", "writes go with O_DSYNC instead, which does the same")
	} else {
		r.add("data_sync_writes", OK, "pwritev2 with RWF_DSYNC", "")
	}
	r.uring()
	r.memlock()
}

// uring tells whether io_uring could be had.
func (r *Report) uring() {
	const why = "this version does not use it"
	var params [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno == 0 {
		_ = unix.Close(int(fd))
		r.add("io_uring", OK, "available; "+why, "")
		return
	}
	r.add("io_uring", OK, fmt.Sprintf("not available (%v); %s", errno, why), "")
}

// memlock tells how much memory may be locked, and whether this host swaps.
func (r *Report) memlock() {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return
	}
	amount := fmt.Sprintf("%d bytes", limit.Cur)
	if limit.Cur == unix.RLIM_INFINITY {
		amount = "unlimited"
	}
	r.add("memlock", OK, amount+"; this version locks no memory", "")
	if b, err := os.ReadFile("/proc/sys/vm/swappiness"); err == nil && strings.TrimSpace(string(b)) != "0" {
		if swaps, err := os.ReadFile("/proc/swaps"); err == nil && strings.Count(string(swaps), "\n") > 1 {
			r.add("swap", Note, "this host swaps", "a sidecar that is swapped out answers late; L bounds how late a write may be seen")
		}
	}
}
