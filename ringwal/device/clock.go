package device

import "golang.org/x/sys/unix"

// NowNS is CLOCK_BOOTTIME in nanoseconds: it never goes back and runs on while
// the machine is suspended, so that a write that was in flight over a pause is
// seen to be late.
func NowNS() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		// Linux has had this clock since 2.6.39 and it cannot fail with a
		// valid address.
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error())
	}
	return t.Nano()
}
