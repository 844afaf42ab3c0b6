package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store/s3test"
)

// copyOf makes another host with a copy of this one's device, and the same store: a zombie's
// successor, or a snapshot of the volume.
func (h *s3Host) copyOf() *s3Host {
	h.t.Helper()
	other := &s3Host{host: newHost(h.t), server: h.server, proxy: h.proxy}
	other.env = append([]string(nil), h.env...)
	other.set("WAL="+other.path("wal"), "SOCKET="+other.path("s"))
	other.snapshot(h.path("wal"))
	return other
}

// snapshot makes the host's device what is at path.
func (h *s3Host) snapshot(path string) {
	h.t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	h.make("wal", body)
}

// refused starts a sidecar that has to refuse the log by name, before it writes anything: not
// to the log, not to the store.
func (h *s3Host) refused(what ...string) {
	h.t.Helper()
	before, err := os.ReadFile(h.path("wal"))
	if err != nil {
		h.t.Fatal(err)
	}
	manifest, keys := h.manifestInForce(), h.keysOf()
	p := h.start(nil, "serve")
	if code := p.wait(); code != 12 {
		h.t.Errorf("exit %d, want 12\n%s", code, p.stderr)
	}
	for _, w := range what {
		if !strings.Contains(p.stderr.String(), w) {
			h.t.Errorf("%q is not said in: %s", w, p.stderr)
		}
	}
	if after, _ := os.ReadFile(h.path("wal")); !bytes.Equal(before, after) {
		h.t.Error("the log was written to")
	}
	if m := h.manifestInForce(); m.Attempt != manifest.Attempt || m.Incarnation != manifest.Incarnation {
		h.t.Error("the manifest was replaced")
	}
	if left, _ := os.ReadDir(filepath.Join(h.server.Dir, s3test.Bucket, s3Prefix, "probe")); len(left) > 0 {
		h.t.Errorf("the probe left %v", left)
	}
	if after := h.keysOf(); fmt.Sprint(after) != fmt.Sprint(keys) {
		h.t.Errorf("the store has %v, before %v", after, keys)
	}
}

// Two sidecars of one node, each with a device that it takes for the only one. The older one
// is stopped by the store alone, and its device can never come back.
func TestP6_TheStoreAloneStopsAZombie(t *testing.T) {
	t.Parallel()
	zombie := newS3Host(t)
	p := zombie.serve()
	zombie.pipe(numbers(0, 100), "append", "orders").ok(t)
	zombie.must("flush")
	p.stop()
	next := zombie.copyOf()
	p.carryOn()
	// What the zombie appends from here on is in no successor.
	zombie.must("append", "orders", "zombie")
	zombie.must("flush")
	p.stop()
	// An owner that sleeps with its requests in the air.
	successor := next.start(nil, "serve")
	if code := successor.wait(); code != 12 || !strings.Contains(successor.stderr.String(), "older snapshot") {
		t.Fatalf("a copy that lacks what is in the store: exit %d: %s", code, successor.stderr)
	}
	p.carryOn()
	zombie.must("append", "orders", "another")
	zombie.must("flush")
	p.stop()
	next.snapshot(zombie.path("wal"))
	next.serve()
	epoch := next.status().Epoch
	if got := next.must("append", "orders", "mine"); got != "102\n" {
		t.Errorf("append printed %q", got)
	}
	p.carryOn()
	// It acks until it hears of it: an ack is of its device, and that is not fenced here.
	for deadline := time.Now().Add(patience); ; {
		if time.Now().After(deadline) {
			t.Fatal("the zombie goes on")
		}
		if zombie.run("append", "orders", "nobody's", "--timeout", "1s").code != 0 {
			break
		}
	}
	if code := p.wait(); code != 10 || !strings.Contains(p.stderr.String(), "fenced") {
		t.Errorf("the zombie ends with %d: %s", code, p.stderr)
	}
	next.must("flush")
	if m := next.manifestInForce(); m.Epoch != epoch {
		t.Errorf("epoch %d has the manifest, want %d", m.Epoch, epoch)
	}
	want := numbers(0, 100) + "zombie\nanother\nmine\n"
	if got := next.must(next.direct("read", "orders")...); got != want {
		t.Errorf("the store says %.200s", got)
	}
	// Started again, however often, it is refused: its device is one of two.
	zombie.refused("older snapshot")
	zombie.refused("older snapshot")
	next.must("append", "orders", "on")
	next.must("flush")
	if got := next.must(next.direct("read", "orders")...); got != want+"on\n" {
		t.Errorf("the store says %.200s", got)
	}
	next.must(next.direct("verify")...)
}

// The volume is what it was some time ago.
func TestP8_ARolledBackVolumeIsRefused(t *testing.T) {
	t.Parallel()
	h := newS3Host(t)
	p := h.serve()
	h.pipe(numbers(0, 100), "append", "orders").ok(t)
	h.must("flush")
	p.kill()
	now := func(name string) {
		t.Helper()
		body, err := os.ReadFile(h.path("wal"))
		if err != nil {
			t.Fatal(err)
		}
		h.make(name, body)
	}
	now("older")
	p = h.serve()
	h.pipe(numbers(100, 200), "append", "orders").ok(t)
	h.must("flush")
	p.kill()
	now("newest")
	h.snapshot(h.path("older"))
	h.refused("older snapshot")

	// An operator who insists, and lets it grow beyond what the store has.
	h.snapshot(h.path("older"))
	for range 3 {
		p = h.start(nil, "serve", "--without-store")
		h.awaitReady(p)
		h.pipe(numbers(500, 800), "append", "orders").ok(t)
		p.kill()
		h.refused("older snapshot")
	}

	// Formatted anew, by somebody who did not look.
	if err := os.Remove(h.path("wal")); err != nil {
		t.Fatal(err)
	}
	anew := newHost(t)
	anew.must("format", h.path("wal"), "--node", s3Node, "--size", "32MiB")
	h.refused("another log of this node")
	if err := os.Remove(h.path("wal")); err != nil {
		t.Fatal(err)
	}
	h.start(nil, "serve").wait() // makes no log where the store has one
	if _, err := os.Stat(h.path("wal")); err == nil {
		t.Error("a log was made where the store has one of this node")
	}

	// The right one goes on.
	h.snapshot(h.path("newest"))
	p = h.serve()
	if got := h.must("append", "orders", "on"); got != "200\n" {
		t.Errorf("append printed %q", got)
	}
	h.must("flush")
	p.kill()
	if got := h.must(h.direct("read", "orders")...); got != numbers(0, 200)+"on\n" {
		t.Errorf("the store says %.200s", got)
	}

	// Restored elsewhere; the old device comes back.
	h.run(h.direct("restore", h.path("new"), "--size", "32MiB", "--old-device-is-gone")...).ok(t)
	h.refused("given up")
	h.checkStore()
}
