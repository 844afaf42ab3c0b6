package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

// The lab tests run in the guest of tools/prlab alone (make prlab), where two attachments of
// one device are two hosts: each host's commands see a kernel boot id of their own.

var takeoversFlag = flag.Int("takeovers", 2, "how often the lab takes a log from an owner under load, on each bus")

// pair is a device that two hosts share, with a log on it.
type pair struct {
	t      *testing.T
	bus    string
	a, b   *host
	device map[*host]string
	store  string
	node   string
}

// lab runs a test on each bus, on a new log.
func lab(t *testing.T, run func(t *testing.T, l *pair)) {
	t.Helper()
	if os.Getenv("PRLAB_NVME_A") == "" {
		t.Skip("only in the lab: make prlab")
	}
	for _, bus := range []string{"NVME", "SCSI"} {
		t.Run(bus, func(t *testing.T) {
			l := newPair(t, bus, os.Getenv("PRLAB_"+bus+"_A"), os.Getenv("PRLAB_"+bus+"_B"))
			l.format()
			run(t, l)
		})
	}
}

// newPair makes two hosts that share a device and a store.
func newPair(t *testing.T, bus, a, b string) *pair {
	t.Helper()
	l := &pair{t: t, bus: bus, store: t.TempDir(), device: map[*host]string{}}
	for _, x := range []struct {
		h    **host
		path string
	}{{&l.a, a}, {&l.b, b}} {
		h := newHost(t, "WAL="+x.path, "STORE="+l.store, "FENCE_VOLATILE=accept", "STALL=2s", "LATE_WRITES=5s")
		h.env = without(h.env, "WALSIDECAR_WAL_SIZE")
		h.reboot()
		*x.h, l.device[h] = h, x.path
	}
	return l
}

// reboot gives the host's commands another boot id from now on.
func (h *host) reboot() {
	h.t.Helper()
	h.boot = h.path("boot_id")
	if err := os.WriteFile(h.boot, []byte(uuid.NewString()+"\n"), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// format makes a new log, of another node, on the device, that nobody holds.
func (l *pair) format() {
	l.t.Helper()
	device := l.device[l.a]
	if l.bus != "" {
		clear := l.a.fenceStatus(device).Holder
		l.a.must("fence", "clear", device, "--expect-holder", clear)
	}
	l.node = "lab-" + uuid.NewString()[:8]
	args := []string{"format", device, "--node", l.node}
	var before struct {
		Superblocks []struct {
			LogUUID string `json:"log_uuid"`
		}
	}
	if err := json.Unmarshal([]byte(l.a.must("inspect", device, "--json")), &before); err != nil {
		l.t.Fatal(err)
	}
	for _, sb := range before.Superblocks {
		if sb.LogUUID != "" {
			args = append(args, "--force", "--expect-uuid", sb.LogUUID)
			break
		}
	}
	l.a.must(args...)
}

// other is the host that h is not.
func (l *pair) other(h *host) *host {
	if h == l.a {
		return l.b
	}
	return l.a
}

// takeoverReport is what takeover --json prints.
type takeoverReport struct {
	Device, Node, Store string
	Epoch               uint64
	FormerEpoch         uint64 `json:"former_epoch"`
	RecoveredRecords    uint64 `json:"recovered_records"`
	UploadedRecords     uint64 `json:"uploaded_records"`
	Fence               struct {
		Mode, Key, Victim, Why string
		Aborted, Jumped        bool
	}
	Streams []struct {
		Stream string
		Next   uint64 `json:"next_offset"`
	}
	Steps []struct {
		Step    string
		Seconds float64
	}
	Seconds float64
}

func (r *takeoverReport) String() string {
	var parts []string
	for _, s := range r.Steps {
		parts = append(parts, fmt.Sprintf("%s %.2f", s.Step, s.Seconds))
	}
	return fmt.Sprintf("%.2f s (%s), %d records recovered, %d uploaded, jumped %v", r.Seconds, strings.Join(parts, ", "), r.RecoveredRecords, r.UploadedRecords, r.Fence.Jumped)
}

// takeover takes the log over from the host's side of the device; it has to succeed.
func (l *pair) takeover(h *host, flags ...string) *takeoverReport {
	l.t.Helper()
	r := h.run(append([]string{"takeover", l.device[h], "--json"}, flags...)...)
	return reportOf(l.t, r)
}

// reportOf decodes what a takeover that succeeded printed.
func reportOf(t *testing.T, r result) *takeoverReport {
	t.Helper()
	report := new(takeoverReport)
	if err := json.Unmarshal([]byte(r.ok(t)), report); err != nil {
		t.Fatal(err)
	}
	return report
}

// checkStored compares what the store holds, without asking any sidecar, with what was acked.
func (l *pair) checkStored(load *load) {
	l.t.Helper()
	load.check(l.t, func(stream string) string { return l.a.must("read", stream, "--store", l.store, "--node", l.node) })
}

// P2, P6: whatever the instant, all that was acked is in the store once; after the takeover
// has returned nothing else is acked, and the former owner finds out within a heartbeat or
// two, under load at its next write.
func TestLabP6_TakeoverFromAnOwnerUnderLoad(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		for round := range *takeoversFlag {
			if l.bus == "SCSI" && round > 0 && round%5 == 0 {
				l.format() // each plain preempt jumps W, and the old window stays unwritten for minutes
			}
			owner, taker := l.a, l.b
			if round%2 == 1 {
				owner, taker = l.b, l.a
			}
			p := owner.serve()
			load := startLoad(t, owner, fmt.Sprint("round-", round), random.Uint64(), 3)
			load.awaitSome()
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			report := l.takeover(taker, "--force")
			returned := time.Now()
			if code := p.wait(); code != 10 {
				t.Fatalf("round %d: the former owner ended with %d\n%s", round, code, p.stderr)
			}
			t.Logf("%s round %d: %s; the owner was gone %.2f s after it", l.bus, round, report, time.Since(returned).Seconds())
			load.end()
			l.checkStored(load)
			if report.Fence.Jumped != (l.bus == "SCSI") || report.Fence.Aborted == report.Fence.Jumped || report.Fence.Victim == "none" {
				t.Errorf("round %d: %+v", round, report.Fence)
			}
			if s := owner.fenceStatus(l.device[owner]); s.Holder != report.Fence.Key {
				t.Errorf("round %d: the reservation is held by %s, not by the takeover, %s", round, s.Holder, report.Fence.Key)
			}
		}
	})
}

// An owner that was stopped, drained meanwhile and wakes up does no harm.
func TestLabP6_AStoppedOwnerWakesUpAfterTheDrain(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "stopped", random.Uint64(), 3)
		load.awaitSome()
		p.stop()
		report := l.takeover(l.b, "--expect-node", l.node)
		t.Logf("%s: %s", l.bus, report)
		manifest := l.manifest()
		p.carryOn()
		if code := p.wait(); code != 10 && code != 13 { // 13: it finds its writes stalled first
			t.Fatalf("the former owner ended with %d\n%s", code, p.stderr)
		}
		load.end()
		l.checkStored(load)
		if l.manifest() != manifest {
			t.Error("the former owner changed the manifest")
		}
		l.verify()
	})
}

// manifest is the whole manifest of the pair's node.
func (l *pair) manifest() string {
	l.t.Helper()
	objects, err := store.Open(l.t.Context(), l.store, store.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	b, _, err := objects.Get(l.t.Context(), upload.ManifestKey(l.node))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

// verify reads the whole store.
func (l *pair) verify() {
	l.t.Helper()
	l.a.must("verify", "--store", l.store, "--node", l.node)
}

// A takeover that dies at any instant is repeated by anyone, and comes to the same end.
func TestLabP6_ATakeoverDiesAndIsRepeated(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "killed", random.Uint64(), 3)
		load.awaitSome()
		p.kill()
		load.end()
		taker := l.b
		for range 4 {
			died := taker.start(nil, "takeover", l.device[taker], "--force")
			timer := time.NewTimer(time.Duration(random.IntN(2500)) * time.Millisecond)
			select {
			case <-timer.C:
			case <-died.done:
			}
			died.kill()
			if random.IntN(2) == 0 {
				taker = l.other(taker)
				taker.reboot() // of the host that died first, too
			}
		}
		t.Logf("%s: %s", l.bus, l.takeover(taker, "--force"))
		l.checkStored(load)
		l.verify()
	})
}

// Of two takeovers at once one wins, and the other says who did.
func TestLabP6_TwoTakeoversAtOnce(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "race", random.Uint64(), 2)
		load.awaitSome()
		p.kill()
		load.end()
		l.a.reboot()
		race(t, l, load, nil)
	})
}

// race lets both hosts take the log over at once.
func race(t *testing.T, l *pair, load *load, flags []string) {
	t.Helper()
	results := make(chan result, 2)
	for _, h := range []*host{l.a, l.b} {
		go func() { results <- h.run(append([]string{"takeover", l.device[h], "--json"}, flags...)...) }()
	}
	won := 0
	for range 2 {
		r := <-results
		if r.code == 0 {
			won++
			t.Logf("%s: %s", l.bus, reportOf(t, r))
			continue
		}
		f := r.failure(t)
		if r.code != 14 || !strings.Contains(f.Message, "key 0x") && !strings.Contains(f.Message, "epoch") {
			t.Errorf("the loser: exit %d, %+v", r.code, f)
		}
		t.Logf("%s: the other one: %s", l.bus, f.Message)
	}
	if won != 1 {
		t.Fatalf("%d takeovers won", won)
	}
	l.checkStored(load)
}

// An owner that is alive is left alone, by a takeover and by a start, and is not disturbed.
func TestLabALivingOwnerIsRefused(t *testing.T) {
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		l.a.must("append", "s", "one")
		before := l.a.fenceStatus(l.device[l.a])
		device := l.device[l.b]
		l.b.run("takeover", device).fails(t, 14, before.Holder, "alive")
		l.b.run("takeover", device, "--dry-run").fails(t, 14, before.Holder, "alive")
		l.b.run("serve").fails(t, 14, before.Holder, "alive")
		l.b.run("takeover", device, "--expect-node", "another", "--force").fails(t, 12, "another", l.node)
		l.b.run("takeover", device, "--force", "--store", t.TempDir()).fails(t, 15, "not the store of this log")
		if after := l.a.fenceStatus(l.device[l.a]); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the fence was %+v and is %+v", before, after)
		}
		l.a.must("append", "s", "two")
		if out := l.b.must("takeover", device, "--dry-run", "--force"); !strings.Contains(out, "preempt key "+before.Holder) {
			t.Errorf("the dry run says:\n%s", out)
		}
		l.a.must("append", "s", "three")
		if code := p.signal(sigterm); code != 0 {
			t.Errorf("exit %d\n%s", code, p.stderr)
		}
	})
}

// A target reset takes the reservation from the owner, who ends fenced; the next start waits.
func TestLabP6_TheReservationIsLost(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "reset", random.Uint64(), 2)
		load.awaitSome()
		if l.bus == "NVME" {
			resetTarget(t)
		} else { // LIO's forgets nothing
			l.b.must("fence", "clear", l.device[l.b], "--expect-holder", l.b.fenceStatus(l.device[l.b]).Holder)
		}
		lost := time.Now()
		if code := p.wait(); code != 10 && code != 13 { // 13: the reset failed a write of its
			t.Fatalf("the owner ended with %d\n%s", code, p.stderr)
		}
		t.Logf("%s: the owner was gone %.2f s after the reservation", l.bus, time.Since(lost).Seconds())
		load.end()
		if foreseen := l.b.must("takeover", l.device[l.b], "--dry-run"); !strings.Contains(foreseen, "wait 5 s, by WALSIDECAR_LATE_WRITES: nobody held") {
			t.Errorf("the dry run says:\n%s", foreseen)
		}
		report := l.takeover(l.b)
		t.Logf("%s: %s", l.bus, report)
		if !report.Fence.Jumped || !strings.Contains(report.Fence.Why, "can land any more") {
			t.Errorf("it did not wait for T: jumped %t, %s", report.Fence.Jumped, report.Fence.Why)
		}
		l.checkStored(load)
	})
}

// resetTarget makes the NVMe target forget its reservations.
func resetTarget(t *testing.T) {
	t.Helper()
	const enable = "/sys/kernel/config/nvmet/subsystems/nqn.2014-08.org.example:prlab/namespaces/1/enable"
	for _, value := range []string{"0", "1"} {
		if err := os.WriteFile(enable, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); ; { // both attachments are looked at again
		if _, _, err := fence.Inspect(os.Getenv("PRLAB_NVME_B")); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// A pod that comes up on another host goes on with its own log, without an operator.
func TestLabARescheduledPod(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "pod", random.Uint64(), 2)
		load.awaitSome()
		p.kill()
		load.end()
		l.b.set("NODE=" + l.node)
		from := time.Now()
		l.b.serve()
		t.Logf("%s: serves again after %.1f s", l.bus, time.Since(from).Seconds())
		load.check(t, func(stream string) string { return l.b.must("read", stream) })
		l.b.must("append", "killed", "after it")
	})
}

// An owner that reboots while it is taken over: whoever is faster has the log, and all that
// was acked is there.
func TestLabP6_TheOwnerRebootsDuringTheTakeover(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "reboot", random.Uint64(), 2)
		load.awaitSome()
		p.kill()
		load.end()
		l.a.reboot()
		taken := make(chan result, 1)
		go func() { taken <- l.b.run("takeover", l.device[l.b], "--json") }()
		time.Sleep(time.Duration(random.IntN(7000)) * time.Millisecond)
		again := l.a.start(nil, "serve")
		r := <-taken
		if r.code != 0 && r.code != 14 {
			t.Errorf("takeover: exit %d\n%s", r.code, r.stderr)
		}
		ready := l.a.run("wait-ready", "--timeout", "20s").code == 0
		t.Logf("%s: takeover exit %d, the rebooted owner serves: %v", l.bus, r.code, ready)
		switch {
		case ready:
			load.check(t, func(stream string) string { return l.a.must("read", stream) })
		case r.code != 0:
			t.Fatalf("neither has the log:\n%s\n%s", r.stderr, again.stderr)
		default:
			if code := again.wait(); code != 10 && code != 14 {
				t.Errorf("the rebooted owner ended with %d\n%s", code, again.stderr)
			}
			l.checkStored(load)
		}
	})
}

// Of several standbys one takes the log over, without an operator.
func TestLabStandbysRace(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "standby", random.Uint64(), 2)
		load.awaitSome()
		l.a.reboot()
		var printed lockedBuffer
		var standbys []*process
		for _, h := range []*host{l.a, l.b, l.b} {
			standbys = append(standbys, h.start(&printed, "standby", l.device[h], "--json", "--silent-for", "5s"))
		}
		load.awaitSome()
		p.kill()
		load.end()
		from := time.Now()
		for printed.String() == "" {
			if time.Since(from) > patience {
				t.Fatalf("nobody took it over:\n%s", standbys[0].stderr)
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("%s: drained %.1f s after the owner died", l.bus, time.Since(from).Seconds())
		for _, s := range standbys {
			if code := s.signal(sigterm); code != 0 {
				t.Errorf("exit %d\n%s", code, s.stderr)
			}
		}
		if all := decode[takeoverReport](t, printed.String()); len(all) != 1 {
			t.Errorf("taken over %d times:\n%s", len(all), printed.String())
		}
		l.checkStored(load)
	})
}

// A running sidecar adopts the log of an owner under load: its clients go on there, with each
// record once, and the log goes home again. The survivor's own log notices nothing.
func TestLabP2_ASidecarAdoptsALog(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		s := survivor(t)
		s.set("FENCE_VOLATILE=accept", "STALL=2s", "LATE_WRITES=5s")
		s.boot = l.b.boot
		s.serve()
		s.must("append", "own", "one")
		p := l.a.serve()
		load := startLoadOn(t, l.a, l.node, "adopted", random.Uint64(), 2)
		load.awaitSome()
		p.kill() // without a goodbye: a fenced owner tells its clients to look elsewhere
		report := reportOf(t, s.run("takeover", l.device[l.b], "--into", s.path("s"), "--store", l.store, "--json"))
		t.Logf("%s: takes appends after %s", l.bus, report)
		l.a.leadTo(s)
		load.goesOn(t)
		load.checkExactly(t, func(stream string) string { return s.must("read", stream, "--log", l.node) })
		l.b.run("takeover", l.device[l.a]).fails(t, 14, "alive", report.Fence.Key)
		s.must("takeover", l.device[l.b], "--into", s.path("s"), "--release")
		load.checkExactly(t, func(stream string) string { return l.a.must("read", stream, "--store", l.store, "--node", l.node) })
		if got := s.must("read", "own"); got != "one\n" {
			t.Errorf("the survivor's own log holds %q", got)
		}
		if err := os.Remove(l.a.path("s")); err != nil {
			t.Fatal(err)
		}
		l.a.reboot()
		l.a.serve()
		l.a.must("append", "own", "back home")
	})
}

// A write that is in flight while it is taken over is recovered, or was never acked.
func TestLabP6_WritesInFlightWhileItIsTakenOver(t *testing.T) {
	random := seeded(t)
	lab(t, func(t *testing.T, l *pair) {
		p := l.a.serve()
		load := startLoad(t, l.a, "held", random.Uint64(), 3)
		load.awaitSome()
		dm(t, "suspend", "--noflush", "--nolockfs", os.Getenv("PRLAB_"+l.bus+"_STORE"))
		taken := l.b.start(nil, "takeover", l.device[l.b], "--force")
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		dm(t, "resume", os.Getenv("PRLAB_"+l.bus+"_STORE"))
		if code := taken.wait(); code != 0 {
			t.Fatalf("takeover: exit %d\n%s", code, taken.stderr)
		}
		if code := p.wait(); code != 10 && code != 13 { // 13: its writes were stuck for too long
			t.Fatalf("the former owner ended with %d\n%s", code, p.stderr)
		}
		load.end()
		l.checkStored(load)
	})
}

// dm runs dmsetup on the store below a pair.
func dm(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("dmsetup", args...).CombinedOutput(); err != nil {
		t.Fatalf("dmsetup %v: %v\n%s", args, err, out)
	}
}
