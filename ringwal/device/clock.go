package device

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// NowNS is CLOCK_BOOTTIME in nanoseconds: it never goes back and runs on while
// the machine is suspended, so that a write that was in flight over a pause is
// seen to be late.
func NowNS() int64 {
	var t unix.Timespec
	// The raw call: reading a clock does not block, so the scheduler need not
	// be told, and this is on the path of every frame.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 {
		// Linux has had this clock since 2.6.39; with a valid address it
		// cannot fail.
		panic("clock_gettime(CLOCK_BOOTTIME): " + errno.Error())
	}
	return t.Nano()
}
