package load

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/shm"
)

func nullSidecar(t *testing.T) string {
	socket := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeNull(ctx, socket, shm.Adaptive) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			return socket
		}
		if time.Now().After(until) {
			t.Fatal("the null sidecar does not start")
		}
	}
}

func TestClosedLoopHasNoMoreInFlightThanItMay(t *testing.T) {
	r, err := Measure(t.Context(), Target{Socket: nullSidecar(t), PID: os.Getpid()}, Cell{SizeBytes: 100, Producers: 3, InFlight: 4, Duration: 200 * time.Millisecond, Door: "uds"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Durable || r.Appends == 0 || r.AppendsPerSecond <= 0 || r.Sessions != 1 || r.Seconds != 0.2 {
		t.Errorf("%+v", r)
	}
	if !(r.P50 > 0 && r.P50 <= r.P99 && r.P99 <= r.P999 && r.P999 <= r.Max) {
		t.Errorf("percentiles %v, %v, %v, %v", r.P50, r.P99, r.P999, r.Max)
	}
	if r.CPU <= 0 || r.ClientCPU <= 0 || r.RTT <= 0 {
		t.Errorf("cpu %v, of the client %v, round trip %v", r.CPU, r.ClientCPU, r.RTT)
	}
	// Little's law: with 12 in flight at most, the rate times the latency is no more.
	if inFlight := r.AppendsPerSecond * r.P50 / 1e6; inFlight > 12*2 {
		t.Errorf("%v records were in flight", inFlight)
	}
}

func TestCellTakesAsManySessionsAsItsBytesNeed(t *testing.T) {
	for _, test := range []struct {
		cell Cell
		want int
	}{
		{Cell{SizeBytes: 1024, Producers: 1, InFlight: 1}, 1},
		{Cell{SizeBytes: 128, Producers: 1, InFlight: 1024}, 1},
		{Cell{SizeBytes: 1024, Producers: 256, InFlight: 16}, 2},
		{Cell{SizeBytes: 16 << 10, Producers: 256, InFlight: 16}, 22},
		{Cell{SizeBytes: 1 << 20, Producers: 2, InFlight: 100}, 2},
		{Cell{SizeBytes: 0, Producers: 1000, InFlight: 100}, 13},
	} {
		if got := test.cell.sessions(); got != test.want {
			t.Errorf("%+v takes %d sessions, want %d", test.cell, got, test.want)
		}
	}
}

// A pause of the sidecar must be seen by all the records that should have been sent
// in it, not only by those that were in flight.
func TestOpenLoopDoesNotHideAPause(t *testing.T) {
	const rate, pause = 2000, 200 * time.Millisecond
	behind := nullSidecar(t)
	front := filepath.Join(t.TempDir(), "front")
	listener, err := net.Listen("unix", front)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	hold := make(chan time.Duration, 1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			sidecar, err := net.Dial("unix", behind)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, sidecar) }()
			go func() {
				buf := make([]byte, 64<<10)
				for {
					n, err := conn.Read(buf)
					select {
					case d := <-hold:
						time.Sleep(d)
					default:
					}
					if _, failed := sidecar.Write(buf[:n]); failed != nil || err != nil {
						_ = sidecar.Close()
						return
					}
				}
			}()
		}
	}()
	g, err := newGenerator(t.Context(), Target{Socket: front}, Cell{SizeBytes: 10, Producers: 2, InFlight: 2, RatePerSecond: rate, Door: "uds"})
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	time.AfterFunc(300*time.Millisecond, func() { hold <- pause })
	var all tally
	if err := g.phase(t.Context(), time.Second, &all); err != nil {
		t.Fatal(err)
	}
	g.collect(&all)
	if all.acked < rate*95/100 || all.acked > rate*105/100 {
		t.Errorf("%d records in a second, the rate is %d", all.acked, rate)
	}
	if all.latency.Max() < pause*9/10 {
		t.Errorf("the longest latency is %v after a pause of %v", all.latency.Max(), pause)
	}
	// 400 records were due in the pause: the latency of 5 % is above half of it.
	if slow := all.latency.Quantile(0.95); slow < pause/3 {
		t.Errorf("the 95th percentile is %v: the pause was hidden", slow)
	}
}

func TestProcessorTimeOfAProcessIsThatOfItsThreads(t *testing.T) {
	for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); {
	}
	got, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if own := cpuOfSelf(); own < 40*time.Millisecond || got < own-20*time.Millisecond || got > own+20*time.Millisecond {
		t.Errorf("%v by the clock, %v by getrusage", got, own)
	}
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := cpuOf(gone.Process.Pid); err == nil {
		t.Error("a process that is not there has a processor time")
	}
}

func TestRawStaysInItsArea(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	const size, from, to = 40 << 20, 8 << 20, 32 << 20
	if err := device.CreateFile(path, size); err != nil {
		t.Fatal(err)
	}
	r, err := OpenRaw(path, from, to, device.Profile{})
	if err != nil {
		t.Skipf("no direct I/O here: %v", err)
	}
	if err := r.turn(5000, 0, 40*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r.latency.Count() == 0 || r.mbPerSecond() <= 0 {
		t.Errorf("%d writes, %v MB/s", r.latency.Count(), r.mbPerSecond())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, from)
	if !bytes.Equal(all[:from], zeros) || !bytes.Equal(all[to:], zeros[:size-to]) {
		t.Error("something was written outside of the area")
	}
	if bytes.Equal(all[from:from+4096], zeros[:4096]) {
		t.Error("nothing was written in the area")
	}
}

func TestFileThatExistsIsRefusedAndLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StartOwn(t.Context(), "/bin/false", path, device.Profile{Name: "none"}, "adaptive"); !errors.Is(err, node.ErrNotOurs) {
		t.Errorf("error %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != "mine" {
		t.Errorf("the file now holds %q, %v", now, err)
	}
}

func TestOwnFilesAreGoneAfterASidecarThatDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	if _, err := StartOwn(t.Context(), "/bin/false", filepath.Join(dir, "f"), device.Profile{Name: "none"}, "adaptive"); err == nil {
		t.Error("/bin/false serves a log")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
