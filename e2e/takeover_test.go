package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload"
)

// newLoopPair is a device without reservations that two hosts share: two loop devices over
// one file.
func newLoopPair(t *testing.T) *pair {
	t.Helper()
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace can be had: %v: %s", err, out)
	}
	a := loopDevice(t, 128<<20)
	b := loopOverAgain(t, a)
	l := newPair(t, "", a, b)
	l.format()
	for _, h := range []*host{l.a, l.b} {
		h.set("STALL=4s") // what is waited for is short, and no slow disk is taken for a failed one
	}
	return l
}

// loopOverAgain attaches a second loop device over the file of the first.
func loopOverAgain(t *testing.T, first string) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(first), "loop/backing_file"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--direct-io=on", "--find", "--show", strings.TrimSpace(string(file))).CombinedOutput()
	if err != nil {
		t.Skipf("no second loop device can be had: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

func TestP2_TakeoverAfterKillNineUnderLoadOnAFile(t *testing.T) {
	random := seeded(t)
	h := newStoreHost(t, "WAL_SIZE=64MiB")
	for round := range 3 {
		p := h.serve()
		load := startLoad(t, h, fmt.Sprint("round-", round), random.Uint64(), 3)
		load.awaitSome()
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		p.kill()
		load.end()
		report := reportOf(t, h.run("takeover", h.path("wal"), "--expect-node", "shop-1", "--json"))
		t.Logf("round %d: %s", round, report)
		load.check(t, func(stream string) string { return h.must(h.stored("read", stream)...) })
	}
	if got := h.must(h.stored("verify")...); !strings.Contains(got, "findings           0") {
		t.Errorf("verify printed %s", got)
	}
}

// The device is named by the argument alone, and what may be refused is, by name.
func TestTakeoverRefusals(t *testing.T) {
	t.Parallel()
	h := newStoreHost(t)
	p := h.serve()
	h.must("append", "orders", "one")
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	h.run("takeover").fails(t, 2, "accepts 1 arg")
	h.run("takeover", h.path("wal"), "--force").fails(t, 14, "in use")
	h.run("takeover", h.path("wal"), "--dry-run").fails(t, 14, "in use")
	if err := p.cmd.Process.Signal(sigterm); err != nil {
		t.Fatal(err)
	}
	p.wait()
	before := digest(t, h.path("wal"))
	h.run("takeover", h.path("wal"), "--expect-node", "shop-2").fails(t, 12, "shop-1", "shop-2", "nothing was written")
	h.run("takeover", h.path("wal"), "--store", other).fails(t, 15, "not the store of this log")
	h.run("takeover", h.path("wal"), "--store", "none").fails(t, 2, "cannot be drained")
	h.run("takeover", h.path("wal"), "--store", h.path("nowhere")).fails(t, 15, "missing")
	h.run("takeover", h.path("nothing")).fails(t, 1, "no such file")
	h.run("takeover", "/dev/null").fails(t, 12)
	if f := h.run("takeover", h.path("wal"), "--expect-node", "shop-2", "--json").failure(t); f.Code != "not_our_device" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
	if out := h.must("takeover", h.path("wal"), "--dry-run"); !strings.Contains(out, "nothing was written") || !strings.Contains(out, "orders") {
		t.Errorf("the dry run says:\n%s", out)
	}
	if digest(t, h.path("wal")) != before {
		t.Error("the log was written")
	}
	h.set("STORE=" + h.path("objects"))
	h.env = without(h.env, "WALSIDECAR_STORE")
	h.run("takeover", h.path("wal")).fails(t, 2, "--store")
}

// A former owner that only sleeps has the lock of its file, however long.
func TestAStoppedOwnerKeepsItsFile(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	p.stop()
	h.run("takeover", h.path("wal"), "--force").fails(t, 14, "in use")
	p.carryOn()
	h.must("append", "orders", "still there")
}

func TestAnInterruptedTakeoverIsRepeated(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	h.pipe(numbers(0, 1000), "append", "orders").ok(t)
	p.kill()
	if err := os.Rename(h.path("objects"), h.path("away")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.path("objects"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.run("takeover", h.path("wal")).fails(t, 15, "not the store of this log")
	if err := os.Remove(h.path("objects")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.path("away"), h.path("objects")); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		taken := h.start(nil, "takeover", h.path("wal"))
		time.Sleep(time.Duration(20*i) * time.Millisecond)
		if code := taken.signal(syscall.SIGINT); code != 0 && code != 1 && code != -1 { // −1: before it could catch it
			t.Fatalf("exit %d\n%s", code, taken.stderr)
		}
	}
	h.must("takeover", h.path("wal"))
	if got := h.must(h.stored("read", "orders")...); got != numbers(0, 1000) {
		t.Errorf("the store holds %d records", len(lines(got)))
	}
}

// Without reservations, what keeps the former owner out is that it was detached; the
// operator says so, and signs of life are looked for all the same.
func TestP6_TakeoverOfADeviceThatWasDetached(t *testing.T) {
	t.Parallel()
	random := seeded(t)
	l := newLoopPair(t)
	p := l.a.serve()
	load := startLoad(t, l.a, "detached", random.Uint64(), 3)
	load.awaitSome()
	device := l.device[l.b]
	l.b.run("takeover", device).fails(t, 2, "--owner-is-detached", "no reservation")
	l.b.run("takeover", device, "--owner-is-detached").fails(t, 14, "at work")
	p.kill()
	load.end()
	report := l.takeover(l.b, "--owner-is-detached")
	t.Log(report)
	if !report.Fence.Jumped || report.Fence.Mode != "attach" {
		t.Errorf("%+v", report.Fence)
	}
	l.checkStored(load)
	l.verify()
	// On the same host, the exclusive open says what the wait would.
	q := l.b.serve()
	q.kill()
	if report := l.takeover(l.b, "--owner-is-detached"); report.Fence.Jumped {
		t.Errorf("after an owner of this host: %+v", report.Fence)
	}
	l.checkStored(load)
}

// An owner that was not detached, whatever was said, is fenced by the manifest: it changes
// nothing in the store, and ends with its next upload.
func TestP6_AZombieIsFencedByTheManifest(t *testing.T) {
	t.Parallel()
	l := newLoopPair(t)
	l.a.set("LINGER=50ms")
	p := l.a.serve()
	l.a.must("append", "orders", "acked")
	p.stop()
	l.takeover(l.b, "--owner-is-detached", "--force")
	manifest := l.manifest()
	p.carryOn()
	l.a.run("append", "orders", "of a zombie", "--timeout", "1s")
	if code := p.wait(); code != 10 && code != 13 { // 13: a sign of life was on its way when it was stopped
		t.Fatalf("the zombie ended with %d\n%s", code, p.stderr)
	}
	if l.manifest() != manifest {
		t.Error("the zombie changed the manifest")
	}
	if got := l.a.must("read", "orders", "--store", l.store, "--node", l.node); got != "acked\n" {
		t.Errorf("the store holds %q", got)
	}
}

func TestStandbyTakesOverWhoeverFallsSilent(t *testing.T) {
	t.Parallel()
	h := newStoreHost(t)
	h.run("standby").fails(t, 2, "requires at least 1 arg")
	h.run("standby", h.path("wal"), "--force").fails(t, 2, "--on-exec")
	h.run("standby", h.path("wal"), "--silent-for", "1s").fails(t, 2, "5s")
	p := h.serve()
	h.pipe(numbers(0, 100), "append", "orders").ok(t)
	var printed lockedBuffer
	dead := h.path("dead")
	one := h.start(&printed, "standby", h.path("wal"), "--json", "--on-exec", "test -e "+dead+" || exit 1;")
	two := h.start(&printed, "standby", h.path("wal"), "--json", "--silent-for", "5s")
	h.must("append", "orders", "number 100")
	p.kill()
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); printed.String() == ""; {
		if time.Now().After(deadline) {
			t.Fatalf("nobody took it over:\n%s\n%s", one.stderr, two.stderr)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, s := range []*process{one, two} {
		if code := s.signal(sigterm); code != 0 {
			t.Errorf("exit %d\n%s", code, s.stderr)
		}
	}
	all := decode[takeoverReport](t, printed.String())
	if len(all) != 1 || all[0].UploadedRecords == 0 && all[0].RecoveredRecords == 0 {
		t.Errorf("taken over: %+v", all)
	}
	if got := h.must(h.stored("read", "orders")...); got != numbers(0, 101) {
		t.Errorf("the store holds %d records", len(lines(got)))
	}
	var id struct {
		Superblocks []struct{ Clean bool }
		Newest      int `json:"newest_slot"`
	}
	if err := json.Unmarshal([]byte(h.must("inspect", h.path("wal"), "--json")), &id); err != nil || !id.Superblocks[id.Newest].Clean {
		t.Errorf("not marked drained: %+v, %v", id, err)
	}
}

// P12: however often a takeover of a full log dies behind its superblock, jumping a window
// each time, the next one finds room.
func TestP12_TakeoversOfAFullLogThatDie(t *testing.T) {
	t.Parallel()
	l := newLoopPair(t)
	p := l.a.serve()
	l.a.must("append", "orders", "one")
	l.a.must("flush")
	objects := filepath.Join(l.store, filepath.FromSlash(filepath.Dir(upload.ManifestKey(l.node))), "o")
	breakIt := func() {
		t.Helper()
		if err := os.Rename(objects, objects+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(objects, nil, 0o600); err != nil { // no object can be put, and the manifest can
			t.Fatal(err)
		}
	}
	breakIt()
	big := strings.Repeat("x", 100_000)
	want := 1
	for {
		r := l.a.pipe(strings.Repeat(big+"\n", 50), "append", "orders", "--timeout", "1s")
		want += len(lines(r.stdout))
		if r.code != 0 {
			break
		}
	}
	t.Logf("%d records until it was full", want)
	p.kill()
	for range 2 {
		before := l.manifest()
		l.b.reboot()
		died := l.b.start(nil, "takeover", l.device[l.b], "--owner-is-detached", "--force")
		for deadline := time.Now().Add(patience); l.manifest() == before; time.Sleep(10 * time.Millisecond) {
			select {
			case <-died.done:
				t.Fatalf("exit %d\n%s", died.cmd.ProcessState.ExitCode(), died.stderr)
			default:
			}
			if time.Now().After(deadline) {
				t.Fatal("the manifest was not claimed")
			}
		}
		time.Sleep(50 * time.Millisecond) // its checkpoint
		died.kill()
	}
	if err := os.Remove(objects); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(objects+".away", objects); err != nil {
		t.Fatal(err)
	}
	l.b.reboot()
	report := l.takeover(l.b, "--owner-is-detached", "--force")
	t.Log(report)
	if got := len(lines(l.a.must("read", "orders", "--store", l.store, "--node", l.node))); got < want {
		t.Errorf("the store holds %d records, %d were acked", got, want)
	}
}
