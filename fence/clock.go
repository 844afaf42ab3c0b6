package fence

import (
	"context"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Clock is the time that Acquire and Watch go by. Now runs on while the machine is
// suspended.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error // ctx's error where that ends first
}

// SystemClock is the kernel's boot time, as device.NowNS has it.
type SystemClock struct{}

// Now is the time since the kernel was booted.
func (SystemClock) Now() time.Duration { return time.Duration(device.NowNS()) }

// Sleep waits for d, not counting a suspended machine.
func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
