package load

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

func newRaw(t *testing.T, profile device.Profile) *Raw {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(path, make([]byte, 2*rawMaxDepth*rawMaxWrite), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := OpenRaw(path, 0, 0, profile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// Each write that is due counts, from the time that it was due: those that a slow device makes
// wait for their turn too.
func TestRawOpenLoopDoesNotHideASlowDevice(t *testing.T) {
	const perSecond, lasts = 500, 400 * time.Millisecond
	// 16 in flight of 100 ms each are 160 a second: of those due in 0.4 s most wait.
	slow := device.Profile{WriteLatency: []device.Quantile{{P: 0, D: 100 * time.Millisecond}, {P: 1, D: 100 * time.Millisecond}}}
	r := newRaw(t, slow)
	if err := r.openLoop(4096, perSecond, lasts); err != nil {
		t.Fatal(err)
	}
	counted := float64(perSecond) * (lasts - openSettle).Seconds()
	if got := float64(r.latency.Count()); got < counted-1 || got > counted+1 {
		t.Errorf("%v writes were timed, %v were due after the first %v", got, counted, openSettle)
	}
	// 200 writes take 13 turns of 100 ms, the last one was due after 0.4 s.
	if r.latency.Max() < 700*time.Millisecond || r.latency.Quantile(0.01) < 100*time.Millisecond {
		t.Errorf("latencies %v to %v", r.latency.Quantile(0.01), r.latency.Max())
	}
}

func TestListenHearsUntilForgotten(t *testing.T) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	heard := make(chan struct{}, 1)
	forget, err := listen(bell, func() time.Duration { heard <- struct{}{}; return 0 })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := unix.Write(bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		<-heard
	}
	forget()
	if _, err := unix.Write(bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard:
		t.Error("heard after it was forgotten")
	default:
	}
}
