package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/fence/simfence"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// The lab tests run in the guest of tools/prlab alone (make prlab), where these name two
// attachments of one device.
var buses = []string{"NVME", "SCSI"}

func lab(t *testing.T, run func(t *testing.T, bus string, a, b *attachment)) {
	t.Helper()
	if os.Getenv("PRLAB_NVME_A") == "" {
		t.Skip("only in the lab: make prlab")
	}
	for _, bus := range buses {
		t.Run(bus, func(t *testing.T) {
			a, b := attach(t, os.Getenv("PRLAB_"+bus+"_A")), attach(t, os.Getenv("PRLAB_"+bus+"_B"))
			wipe(t, a, b)
			run(t, bus, a, b)
		})
	}
}

// attachment is one host's side of a shared device.
type attachment struct {
	path   string
	target fence.Target
	caps   fence.Capabilities
	dev    device.Device
	page   []byte
}

func attach(t *testing.T, path string) *attachment {
	t.Helper()
	x := &attachment{path: path}
	var err error
	if x.dev, err = device.Open(path, device.OpenOptions{Exclusive: true, BusyFor: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if x.target, x.caps, err = fence.OpenTarget(path); err != nil {
		t.Fatal(err)
	}
	arena, err := device.NewArena(4096)
	if err != nil {
		t.Fatal(err)
	}
	x.page = arena.Bytes()
	t.Cleanup(func() { x.target.Close(); x.dev.Close() })
	return x
}

func (x *attachment) fence() *fence.Fence { return fence.New(x.target, x.caps) }

// wipe leaves the device with nobody registered.
func wipe(t *testing.T, all ...*attachment) {
	t.Helper()
	for _, x := range all {
		st, err := x.target.Read()
		if err != nil {
			t.Fatal(err)
		}
		if err := x.fence().Clear(0x77, st.Holder); err != nil {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLabCapabilities(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		t.Logf("%s: %+v", a.path, a.caps)
		want := fence.Capabilities{Transport: fence.NVMe, Reservations: fence.Yes, WriteExclusive: fence.Yes, PersistsThroughPower: fence.No,
			SharedAttachment: fence.Yes, ReadByKernel: fence.Yes, RawReservationOptions: 0xfe}
		if bus == "SCSI" {
			want.Transport, want.PersistsThroughPower, want.SharedAttachment = fence.SCSI, fence.Yes, fence.Unknown
			want.RawReservationOptions = a.caps.RawReservationOptions
		}
		if a.caps != want {
			t.Errorf("got  %+v\nwant %+v", a.caps, want)
		}
		_, err := fence.Open(a.path, fence.OpenOptions{})
		if refused := errors.Is(err, fence.ErrVolatile); refused != (bus == "NVME") {
			t.Errorf("open without accepting volatile reservations: %v", err)
		}
		f, err := fence.Open(a.path, fence.OpenOptions{AcceptVolatile: true})
		must(t, err)
		if f.Mode() != fence.ModePR || fence.PreemptByAbort("auto", f.Capabilities()) != (bus == "NVME") {
			t.Errorf("mode %s, abort %v", f.Mode(), fence.PreemptByAbort("auto", f.Capabilities()))
		}
		must(t, f.Close())
	})
}

// Every command is read back, by the kernel's ioctls and by passthrough alike.
func TestLabEachCommandIsVerified(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		fa, fb := a.fence(), b.fence()
		show := func(want fence.Status) {
			t.Helper()
			byKernel, byPassthrough, err := fence.ReadBothWays(a.target)
			must(t, err)
			byPassthrough.Persists = fence.Unknown
			for _, got := range []fence.Status{byKernel, byPassthrough} {
				got.Generation = 0
				slices.Sort(got.Keys)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
			if byKernel.Generation != byPassthrough.Generation {
				t.Errorf("generation %d by the kernel, %d by passthrough", byKernel.Generation, byPassthrough.Generation)
			}
		}
		show(fence.Status{})
		must(t, fa.Register(0xa1))
		must(t, fa.Register(0xa2)) // in the place of 0xa1
		show(fence.Status{Keys: []fence.Key{0xa2}})
		must(t, fa.Reserve(0xa2))
		must(t, fa.Reserve(0xa2))
		must(t, fa.Replace(0xa2, 0xa3)) // a holder stays holder
		show(fence.Status{Keys: []fence.Key{0xa3}, Holder: 0xa3, Type: fence.WriteExclusive})
		must(t, fa.Register(0xa4)) // and so with whatever key it had
		show(fence.Status{Keys: []fence.Key{0xa4}, Holder: 0xa4, Type: fence.WriteExclusive})
		must(t, fb.Register(0xb1))
		for what, err := range map[string]error{
			"replace another's key":     fb.Replace(0xa4, 0xb2),
			"reserve while A holds":     fb.Reserve(0xb1),
			"preempt nobody":            fb.Preempt(0xb1, 0xdead, false),
			"preempt with a wrong key":  fb.Preempt(0xb9, 0xa4, false),
			"clear of another's holder": fb.Clear(0xb1, 0xb1),
		} {
			if !errors.Is(err, fence.ErrConflict) {
				t.Errorf("%s: %v", what, err)
			}
		}
		show(fence.Status{Keys: []fence.Key{0xa4, 0xb1}, Holder: 0xa4, Type: fence.WriteExclusive})
		must(t, fb.Preempt(0xb1, 0xa4, bus == "NVME"))
		show(fence.Status{Keys: []fence.Key{0xb1}, Holder: 0xb1, Type: fence.WriteExclusive})
		if err := fa.Replace(0xa4, 0xa4); !errors.Is(err, fence.ErrConflict) {
			t.Errorf("the victim asks whether it is still in: %v", err)
		}
		must(t, fa.Register(0xa5))
		show(fence.Status{Keys: []fence.Key{0xa5, 0xb1}, Holder: 0xb1, Type: fence.WriteExclusive})
		if err := a.dev.WriteSync(a.page, 0); !errors.Is(err, device.ErrReservationConflict) {
			t.Errorf("the victim, registered anew, writes: %v", err)
		}
		must(t, fa.Withdraw(0xa5))
		show(fence.Status{Keys: []fence.Key{0xb1}, Holder: 0xb1, Type: fence.WriteExclusive})
		must(t, fa.Clear(0x77, 0xb1))
		show(fence.Status{})
	})
}

// The simulated target answers as the real one does, command by command.
func TestLabTheSimulationIsFaithful(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		seed := uint64(time.Now().UnixNano())
		rng := rand.New(rand.NewPCG(seed, 1))
		transport := fence.NVMe
		if bus == "SCSI" {
			transport = fence.SCSI
		}
		simulated := simfence.New(simfence.Config{Transport: transport})
		pairs := [2][2]fence.Target{{a.target, simulated.Attach("A", nil)}, {b.target, simulated.Attach("B", nil)}}
		key := func(host int) fence.Key { return fence.Key(0xa0 + 16*host + 1 + rng.IntN(3)) }
		before, err := a.target.Read()
		must(t, err)
		var differences []string
		for i := range 600 {
			host := rng.IntN(2)
			own, other, abort := key(host), key(1-host), bus == "NVME" && rng.IntN(2) == 0
			var what string
			var run func(fence.Target) error
			switch rng.IntN(7) {
			case 0, 1:
				old, ignore := fence.Key(0), rng.IntN(3) == 0
				if rng.IntN(2) == 0 {
					old = key(host)
				}
				what = fmt.Sprintf("register %s %s ignore %v", old, own, ignore)
				run = func(t fence.Target) error { return t.Register(old, own, ignore) }
			case 2:
				what, run = "reserve "+own.String(), func(t fence.Target) error { return t.Reserve(own) }
			case 3, 4:
				what = fmt.Sprintf("preempt %s %s abort %v", own, other, abort)
				run = func(t fence.Target) error { return t.Preempt(own, other, abort) }
			case 5:
				what, run = "unregister "+own.String(), func(t fence.Target) error { return t.Unregister(own) }
			case 6:
				if rng.IntN(5) > 0 {
					continue
				}
				what, run = "clear "+own.String(), func(t fence.Target) error { return t.Clear(own) }
			}
			real, sim := run(pairs[host][0]), run(pairs[host][1])
			st, err := a.target.Read()
			must(t, err)
			want, _ := pairs[0][1].Read()
			slices.Sort(st.Keys)
			slices.Sort(want.Keys)
			st.Generation -= before.Generation
			st.Persists, want.Persists = 0, 0
			got := fmt.Sprint(kindOf(real), st.Keys, st.Holder, st.Type, st.Generation)
			if expect := fmt.Sprint(kindOf(sim), want.Keys, want.Holder, want.Type, want.Generation); got != expect {
				differences = append(differences, fmt.Sprintf("step %d, host %d: %s\n real:      %s (%v)\n simulated: %s (%v)", i, host, what, got, real, expect, sim))
			}
			if len(differences) > 20 {
				break
			}
		}
		if len(differences) > 0 {
			t.Errorf("seed %d\n%s", seed, strings.Join(differences, "\n"))
		}
	})
}

func kindOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, fence.ErrConflict):
		return "conflict"
	case errors.Is(err, fence.ErrFailed):
		return "failed"
	}
	return err.Error()
}

// request is a start or takeover through the attachment.
func (x *attachment) request(incarnation byte, owner *fence.Owner) fence.Request {
	return fence.Request{Key: fence.KeyOf("n", [16]byte{incarnation}), Boot: [16]byte{1}, Exclusive: true, Abort: fence.PreemptByAbort("auto", x.caps),
		Take: fence.TakeQuiet, LateWrites: 3 * time.Second, Clock: fence.SystemClock{}, Newest: func(context.Context) (fence.Owner, error) { return *owner, nil }}
}

func report(t *testing.T, what string, out fence.Outcome, took time.Duration) {
	t.Helper()
	var parts []string
	for _, s := range out.Steps {
		parts = append(parts, fmt.Sprintf("%s %s", s.Action, s.Took.Round(100*time.Microsecond)))
	}
	t.Logf("%s: %s (%s); jump %v: %s", what, took.Round(time.Millisecond), strings.Join(parts, ", "), out.Jump, out.Why)
}

func TestLabAcquire(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		owner := fence.Owner{Node: "n", StallAfter: time.Second}
		acquire := func(what string, x *attachment, incarnation byte, boot byte, did string) fence.Request {
			t.Helper()
			r := x.request(incarnation, &owner)
			r.Boot = [16]byte{boot}
			from := time.Now()
			out, err := fence.Acquire(context.Background(), x.fence(), r)
			must(t, err)
			report(t, what, out, time.Since(from))
			if steps(out) != did {
				t.Errorf("%s: it did %q, want %q", what, steps(out), did)
			}
			must(t, x.dev.WriteSync(x.page, 0))
			owner = fence.Owner{Node: "n", Epoch: owner.Epoch + 1, Key: r.Key, Boot: r.Boot, StallAfter: time.Second}
			return r
		}
		acquire("a new log", a, 1, 1, "register reserve")
		acquire("ordinary restart", a, 2, 1, "replace")
		last := acquire("reboot of the host", a, 3, 2, "replace wait")
		must(t, fence.Check(a.fence(), last.Key))
		if err := b.dev.WriteSync(b.page, 0); !errors.Is(err, device.ErrReservationConflict) {
			t.Errorf("B writes: %v", err)
		}
		takeover := "replace watch register preempt"
		if bus == "SCSI" {
			takeover += " wait"
		}
		taken := acquire("takeover by B", b, 4, 3, takeover)
		if err := a.dev.WriteSync(a.page, 0); !errors.Is(err, device.ErrReservationConflict) {
			t.Errorf("A writes after the takeover: %v", err)
		}
		if err := fence.Check(a.fence(), last.Key); !errors.Is(err, fence.ErrFenced) || !strings.Contains(err.Error(), taken.Key.String()) {
			t.Errorf("A checks: %v", err)
		}
		if err := fence.Watch(context.Background(), a.fence(), last.Key, fence.SystemClock{}, true); !errors.Is(err, fence.ErrFenced) {
			t.Errorf("A's heartbeat: %v", err)
		}
	})
}

// dm runs dmsetup on the store below a pair.
func dm(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("dmsetup", args...).CombinedOutput(); err != nil {
		t.Fatalf("dmsetup %v: %v\n%s", args, err, out)
	}
}

// A write of A is held in the store while B preempts: an abort returns once it has landed,
// a plain preempt at once, and the write lands afterwards, which is what the wait is for.
func TestLabAWriteInFlight(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		store := os.Getenv("PRLAB_" + bus + "_STORE")
		for _, abort := range []bool{false, true} {
			if abort && bus == "SCSI" {
				continue // LIO below tcm_loop never answers it
			}
			wipe(t, a)
			fa, fb := a.fence(), b.fence()
			must(t, fa.Register(0xa1))
			must(t, fa.Reserve(0xa1))
			must(t, fb.Register(0xb1))
			clear(a.page)
			must(t, a.dev.WriteSync(a.page, 0))
			dm(t, "suspend", "--nolockfs", store)
			a.page[0] = 'A'
			wrote, preempted := make(chan error, 1), make(chan error, 1)
			go func() { wrote <- a.dev.WriteSync(a.page, 0) }()
			waitForIO(t, a.path)
			go func() { preempted <- fb.Preempt(0xb1, 0xa1, abort) }()
			select {
			case err := <-preempted:
				if abort {
					t.Errorf("the abort returned (%v) with the write in flight", err)
				}
				preempted <- err
			case <-wrote:
				t.Error("the write ended while the store was suspended")
			case <-time.After(2 * time.Second):
				if !abort {
					t.Error("a plain preempt waited for the write")
				}
			}
			dm(t, "resume", store)
			must(t, <-preempted)
			if _, err := b.dev.ReadAt(b.page, 0); err != nil || abort && b.page[0] != 'A' {
				t.Errorf("after the abort returned: %v, byte %q", err, b.page[0])
			}
			if err := <-wrote; err != nil {
				t.Errorf("the write that was in flight: %v", err)
			}
			_, err := b.dev.ReadAt(b.page, 0)
			must(t, err)
			t.Logf("%s, abort %v: the write landed, A was told ok, B reads %q", bus, abort, b.page[0])
			if err := a.dev.WriteSync(a.page, 0); !errors.Is(err, device.ErrReservationConflict) {
				t.Errorf("A's next write: %v", err)
			}
		}
	})
}

// waitForIO waits until the device has I/O in flight.
func waitForIO(t *testing.T, path string) {
	t.Helper()
	for range 500 {
		b, err := os.ReadFile("/sys/block/" + filepath.Base(path) + "/inflight")
		must(t, err)
		if f := strings.Fields(string(b)); len(f) == 2 && f[1] != "0" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no write is in flight")
}

// unprivileged is set in the child that TestLabWithoutRoot runs.
const unprivileged = "FENCE_TEST_UNPRIVILEGED"

// Without root and capabilities: what write access to the device node is enough for.
func TestLabWithoutRoot(t *testing.T) {
	if os.Getenv(unprivileged) != "" {
		childWithoutRoot(t)
		return
	}
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		for _, owned := range []bool{false, true} {
			uid := 0
			if owned {
				uid = 65534
			}
			must(t, os.Chown(a.path, uid, 0))
			must(t, os.Chmod(a.path, 0o600))
			cmd := exec.Command("/proc/self/exe", "-test.run", "^TestLabWithoutRoot$", "-test.v")
			cmd.Env = append(os.Environ(), unprivileged+"="+a.path, fmt.Sprintf("OWNED=%v", owned))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, err := cmd.CombinedOutput()
			t.Logf("owned %v:\n%s", owned, out)
			must(t, err)
		}
		must(t, os.Chown(a.path, 0, 0))
	})
}

func childWithoutRoot(t *testing.T) {
	path := os.Getenv(unprivileged)
	f, err := fence.Open(path, fence.OpenOptions{AcceptVolatile: true})
	if os.Getenv("OWNED") == "false" {
		if !errors.Is(err, fence.ErrPermission) || !strings.Contains(err.Error(), "supplementalGroups") {
			t.Fatalf("a device of another user: %v", err)
		}
		return
	}
	must(t, err)
	t.Logf("as uid %d: %+v", os.Getuid(), f.Capabilities())
	must(t, f.Register(0xa1))
	must(t, f.Reserve(0xa1))
	must(t, f.Replace(0xa1, 0xa2))
	must(t, fence.Check(f, 0xa2))
	t.Logf("unregister: %v", f.Withdraw(0xa2))
	st, err := f.Read()
	must(t, err)
	must(t, f.Clear(0xa3, st.Holder))
}

// Detached and attached again, the host still holds: an ordinary restart, under another
// device name perhaps.
func TestLabReattached(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		if bus != "NVME" {
			t.Skip("NVMe only")
		}
		owner := fence.Owner{Node: "n", StallAfter: time.Second}
		first := a.request(1, &owner)
		_, err := fence.Acquire(context.Background(), a.fence(), first)
		must(t, err)
		owner = fence.Owner{Node: "n", Epoch: 1, Key: first.Key, Boot: first.Boot, StallAfter: time.Second}
		controller := "/sys/class/nvme/" + strings.TrimSuffix(filepath.Base(a.path), "n1")
		a.target.Close()
		a.dev.Close()
		must(t, os.WriteFile(controller+"/delete_controller", []byte("1"), 0))
		if err := b.dev.WriteSync(b.page, 0); !errors.Is(err, device.ErrReservationConflict) {
			t.Errorf("B writes while A is detached: %v", err)
		}
		fabrics, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
		must(t, err)
		_, err = fabrics.WriteString(os.Getenv("PRLAB_NVME_CONNECT_A"))
		must(t, err)
		must(t, fabrics.Close())
		again := attach(t, findNVMe(t, "aaaaaaaa"))
		os.Setenv("PRLAB_NVME_A", again.path)
		out, err := fence.Acquire(context.Background(), again.fence(), again.request(2, &owner))
		must(t, err)
		if steps(out) != "replace" || out.Jump {
			t.Errorf("%s came back as %s: %q, jump %v", a.path, again.path, steps(out), out.Jump)
		}
	})
}

// findNVMe is the namespace of the controller whose host ID begins so.
func findNVMe(t *testing.T, hostID string) string {
	t.Helper()
	for range 1000 {
		found, _ := filepath.Glob("/sys/class/nvme/nvme*/nvme*n*")
		for _, f := range found {
			id, _ := os.ReadFile(filepath.Dir(f) + "/hostid")
			path := "/dev/" + filepath.Base(f)
			if !strings.HasPrefix(string(id), hostID) {
				continue
			}
			if f, err := os.Open(path); err == nil { // it is there before it can be opened
				f.Close()
				return path
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the namespace did not come back")
	return ""
}

// A target without persistence forgets on a reset: the owner finds out, and the next start
// waits. It is the last test: devices come back under other names.
func TestLabTargetReset(t *testing.T) {
	lab(t, func(t *testing.T, bus string, a, b *attachment) {
		if bus != "NVME" {
			t.Skip("NVMe only: LIO keeps its registrations in a file of the guest")
		}
		owner := fence.Owner{Node: "n", StallAfter: time.Second}
		r := a.request(1, &owner)
		_, err := fence.Acquire(context.Background(), a.fence(), r)
		must(t, err)
		owner = fence.Owner{Node: "n", Epoch: 1, Key: r.Key, Boot: r.Boot, StallAfter: time.Second}
		for _, x := range []*attachment{a, b} {
			x.target.Close()
			x.dev.Close()
		}
		const enable = "/sys/kernel/config/nvmet/subsystems/nqn.2014-08.org.example:prlab/namespaces/1/enable"
		must(t, os.WriteFile(enable, []byte("0"), 0))
		for range 500 { // until the host side has seen it
			if _, err := os.Stat(a.path); err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		must(t, os.WriteFile(enable, []byte("1"), 0))
		again := attach(t, findNVMe(t, "aaaaaaaa"))
		if err := fence.Check(again.fence(), r.Key); !errors.Is(err, fence.ErrFenced) {
			t.Errorf("the owner checks: %v", err)
		}
		next := again.request(2, &owner)
		from := time.Now()
		out, err := fence.Acquire(context.Background(), again.fence(), next)
		must(t, err)
		report(t, "start after the reset", out, time.Since(from))
		if steps(out) != "register reserve wait" || !out.Jump {
			t.Errorf("%q, jump %v", steps(out), out.Jump)
		}
	})
}
