package suite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// startSidecar starts one that is killed when the test ends.
func startSidecar(t testing.TB, size string) *process {
	p := &process{t: t, dir: t.TempDir(), size: size}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// The environment variable that makes TestMain a client to be killed: the socket and
// the stream.
const victimOf = "WALSIDECAR_TEST_VICTIM"

// victim appends 0, 1, 2, ... through shared memory and prints how many were acked.
func victim(s string) {
	socket, stream, _ := strings.Cut(s, " ")
	ctx := context.Background()
	c, err := walsidecar.Dial(ctx, socket, walsidecar.WithDoor(walsidecar.DoorShm))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var tickets []walsidecar.Ticket
	for n := 0; ; n++ {
		ticket, err := c.Submit(ctx, stream, fmt.Append(nil, n))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if tickets = append(tickets, ticket); len(tickets) == 500 {
			for i, ticket := range tickets {
				if r, err := ticket.Wait(ctx); err != nil || r.Offset != uint64(n-499+i) {
					fmt.Println(r, err)
					os.Exit(1)
				}
			}
			tickets = tickets[:0]
			fmt.Println(n + 1)
		}
	}
}

// Clients are killed at random instants while another appends: what they had acked is
// there, what they had published is there once and in order, the other notices
// nothing, and the sidecar keeps nothing of them. WALSIDECAR_TEST_KILLS=1000 for the
// full number.
func TestP2_ClientsKilledOnTheRing(t *testing.T) {
	kills := 10
	if n, err := strconv.Atoi(os.Getenv("WALSIDECAR_TEST_KILLS")); err == nil {
		kills = n
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(kills)*2*time.Second+time.Minute)
	defer cancel()
	p := startSidecar(t, "192MiB") // a victim fills the smallest log faster than it is trimmed
	trimmer := p.dial(t)
	c := p.dial(t, walsidecar.WithDoor(walsidecar.DoorShm))
	stop := make(chan struct{})
	var appended atomic.Uint64
	done := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			r, err := c.Append(ctx, "bystander", []byte("x"))
			n := appended.Add(1)
			if err != nil || r.Offset != n-1 {
				done <- fmt.Errorf("%+v: %w", r, err)
				return
			}
			if n%5000 == 0 { // it fills the log too while a victim is looked for
				if _, err := trimmer.Trim(ctx, "bystander", n); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	time.Sleep(50 * time.Millisecond)
	before := p.holds()
	records := 0
	for i := range kills {
		stream := fmt.Sprintf("victim-%d", i)
		acked := p.killVictim(stream, time.Duration(20+rand.IntN(80))*time.Millisecond)
		p.awaitHolding(before) // until then it decides what the victim had published
		n := 0
		for r, err := range c.Read(ctx, stream) {
			if errors.Is(err, walsidecar.ErrNotFound) {
				break // it was killed before its first append
			}
			if err != nil {
				t.Fatal(err)
			}
			if string(r.Data) != strconv.Itoa(n) {
				t.Fatalf("%s has %q where %d is due", stream, r.Data, n)
			}
			n++
		}
		if n < acked {
			t.Errorf("%s has %d records, %d were acked", stream, n, acked)
		}
		records += n
		for name, before := range map[string]uint64{stream: uint64(n), "bystander": appended.Load()} {
			if _, err := c.Trim(ctx, name, before); err != nil && !errors.Is(err, walsidecar.ErrNotFound) {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Logf("%d records of %d clients, %d of the bystander", records, kills, appended.Load())
}

// awaitHolding waits until the sidecar has nothing but this of its clients.
func (p *process) awaitHolding(want holding) {
	p.t.Helper()
	for until := time.Now().Add(10 * time.Second); p.holds() != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			p.t.Fatalf("the sidecar holds %+v, before %+v", p.holds(), want)
		}
	}
}

// killVictim runs a victim for a while, and returns how many records it knew to be
// acked when it was killed.
func (p *process) killVictim(stream string, d time.Duration) (acked int) {
	p.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=none")
	cmd.Env = append(os.Environ(), victimOf+"="+p.socket()+" "+stream)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	time.AfterFunc(d, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if acked, err = strconv.Atoi(lines.Text()); err != nil {
			p.t.Errorf("the victim says %q", lines.Text())
		}
	}
	_ = cmd.Wait()
	return acked
}

// holding is what a process has of its clients.
type holding struct{ files, mappings int }

func (p *process) holds() (h holding) {
	proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		p.t.Fatal(err)
	}
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		p.t.Fatal(err)
	}
	return holding{len(files), strings.Count(string(maps), "walsidecar-")}
}

// cpu is the processor time of the sidecar.
func (p *process) cpu() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / 100
}

// A hundred clients that do nothing cost next to nothing; those for whose rings there
// is no memory got the socket, and all can append.
func TestIdleClientsCostNothing(t *testing.T) {
	p := startSidecar(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 100 {
		c := p.dial(t, walsidecar.WithInFlight(16, 1<<20)) // a small window: the smallest log has room for few large ones
		if _, err := c.Append(ctx, "s", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	rings := p.holds().mappings / 2
	if rings < 30 || rings > 50 {
		t.Errorf("%d clients have shared memory; under 512 MiB about 41 can", rings)
	}
	time.Sleep(time.Second)
	const d = 3 * time.Second
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	sidecar := p.cpu()
	time.Sleep(d)
	sidecar = p.cpu() - sidecar
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	clients := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	t.Logf("%d of 100 clients with rings: in %v the sidecar used %v, the clients %v", rings, d, sidecar, clients)
	if sidecar > d/100 || clients > d/50 {
		t.Errorf("idle clients are not idle")
	}
}

// More than the ring holds is submitted: the client waits for room, and goes on.
func TestFullRingWaitsAndHeals(t *testing.T) {
	p := startSidecar(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := p.dial(t, walsidecar.WithDoor(walsidecar.DoorShm))
	if _, err := c.Append(ctx, "s", []byte("the stream is known from here on")); err != nil {
		t.Fatal(err)
	}
	// A sidecar that stands still takes nothing out of the ring.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var tickets []walsidecar.Ticket
	full := false
	data := make([]byte, 300_000)
	for i := range 40 { // 12 MB through 4 MiB
		ticket, err := c.TrySubmit("s", data)
		if errors.Is(err, walsidecar.ErrWouldBlock) {
			if !full {
				full = true
				if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			ticket, err = c.Submit(ctx, "s", data)
		}
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		if r, err := ticket.Wait(ctx); err != nil || r.Offset != uint64(i+1) {
			t.Fatalf("%d: %+v, %v", i, r, err)
		}
	}
	if !full {
		t.Error("the ring was never full")
	}
}
