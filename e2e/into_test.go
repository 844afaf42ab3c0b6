package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// survivor is a host that serves a log of its own, and adopts others.
func survivor(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "NODE=survivor")
	h.set("STORE=" + h.path("objects"))
	return h
}

// dialLog connects to one of the logs that a sidecar hosts.
func dialLog(t *testing.T, h *host, log string) *walsidecar.Client {
	t.Helper()
	c, err := walsidecar.Dial(t.Context(), h.path("s"), walsidecar.WithLog(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestP2_ASidecarAdoptsALog(t *testing.T) {
	peer, s := newStoreHost(t), survivor(t)
	s.set("ADMIN=127.0.0.1:0")
	p, q := peer.serve(), s.serve()
	peer.pipe(numbers(0, 500), "append", "orders").ok(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	before := dial(t, peer)
	if _, err := before.Append(ctx, "orders", []byte("number 500"), walsidecar.WithProducer("upstream", 7)); err != nil {
		t.Fatal(err)
	}
	_ = before.Close()
	s.must("append", "orders", "its own")
	into := []string{"takeover", peer.path("wal"), "--into", s.path("s"), "--store", peer.path("objects"), "--json"}
	s.run(append(into, "--force")...).fails(t, 14, "in use")
	p.kill()

	s.run(append(into, "--expect-node", "another")...).fails(t, 12, "another")
	report := reportOf(t, s.run(into...))
	t.Log(report)
	if report.Node != "shop-1" || report.RecoveredRecords != 501 || report.Epoch != 2 {
		t.Errorf("%+v", report)
	}
	if again := reportOf(t, s.run(into...)); again.Epoch != 2 {
		t.Errorf("adopted twice: %+v", again)
	}
	// Its clients go on: nothing twice, nothing missing, offsets as if nothing had happened.
	c := dialLog(t, s, "shop-1")
	if r, err := c.Append(ctx, "orders", []byte("number 500"), walsidecar.WithProducer("upstream", 7)); err != nil || !r.Duplicate {
		t.Errorf("resent: %+v, %v", r, err)
	}
	if r, err := c.Append(ctx, "orders", []byte("number 501"), walsidecar.WithProducer("upstream", 9)); err != nil || r.Offset != 501 {
		t.Errorf("the next one: %+v, %v", r, err)
	}
	if out := s.must("append", "orders", "number 502", "--log", "shop-1"); out != "502\n" {
		t.Errorf("append printed %q", out)
	}
	if got := s.must("read", "orders", "--log", "shop-1"); got != numbers(0, 503) {
		t.Errorf("the adopted log holds %d records", len(lines(got)))
	}
	// The survivor's own log is its own.
	if got := s.must("read", "orders"); got != "its own\n" {
		t.Errorf("the own log holds %q", got)
	}
	if got := s.must("status", "--log", "shop-1"); !strings.Contains(got, "shop-1") {
		t.Errorf("status: %s", got)
	}
	metrics := adminURL(t, q) + "/metrics"
	if code, body := fetch(t, metrics); code != 200 || !strings.Contains(body, "\nwalsidecar_records_total 1\n") || !strings.Contains(body, "\nwalsidecar_streams{node=\"shop-1\"} 1\n") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	s.run("takeover", s.path("wal"), "--into", s.path("s")).fails(t, 2, "own log")
	s.run("read", "orders", "--log", "nobody").fails(t, 1, "nobody")

	released := reportOf(t, s.run("takeover", peer.path("wal"), "--into", s.path("s"), "--release", "--json"))
	if released.Node != "shop-1" {
		t.Errorf("%+v", released)
	}
	if _, err := c.Append(ctx, "orders", []byte("too late")); err == nil {
		t.Error("a released log took an append")
	}
	if _, body := fetch(t, metrics); strings.Contains(body, "shop-1") {
		t.Errorf("/metrics still tells of the released log: %s", body)
	}
	s.run("read", "orders", "--log", "shop-1").fails(t, 1, "shop-1")
	s.run("takeover", peer.path("wal"), "--into", s.path("s"), "--release").fails(t, 1, "adopted no log")
	if got := peer.must(peer.stored("read", "orders")...); got != numbers(0, 503) {
		t.Errorf("the store holds %d records", len(lines(got)))
	}
	// Its own host takes it back.
	peer.serve()
	if out := peer.must("append", "orders", "number 503"); out != "503\n" {
		t.Errorf("back home, append printed %q", out)
	}
	if code := q.signal(sigterm); code != 0 {
		t.Errorf("exit %d\n%s", code, q.stderr)
	}
}

// P2, P4: clients that lost their sidecar find its log in another one, and go on: each record
// is there once, those in flight too, which they send again.
func TestP2_ClientsGoOnWhereTheirLogWasAdopted(t *testing.T) {
	random := seeded(t)
	peer, s := newStoreHost(t, "WAL_SIZE=128MiB"), survivor(t)
	p := peer.serve()
	s.serve()
	load := startLoadOn(t, peer, "shop-1", "moves", random.Uint64(), 3)
	load.awaitSome()
	time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
	p.kill()
	s.must("takeover", peer.path("wal"), "--into", s.path("s"), "--store", peer.path("objects"))
	peer.leadTo(s)
	load.goesOn(t)
	load.checkExactly(t, func(stream string) string { return s.must("read", stream, "--log", "shop-1") })
	s.must("takeover", peer.path("wal"), "--into", s.path("s"), "--release")
	load.checkExactly(t, func(stream string) string { return peer.must(peer.stored("read", stream)...) })
}

// leadTo makes the host's socket, whose sidecar is gone, lead to another host's.
func (h *host) leadTo(other *host) {
	h.t.Helper()
	if err := os.Remove(h.path("s")); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.t.Fatal(err)
	}
	if err := os.Symlink(other.path("s"), h.path("s")); err != nil {
		h.t.Fatal(err)
	}
}

// A sidecar that ends closes what it has adopted; one that is killed leaves two logs to be
// recovered, each to whoever comes.
func TestP2_AnAdoptingSidecarEnds(t *testing.T) {
	t.Parallel()
	peer, s := newStoreHost(t), survivor(t)
	p := peer.serve()
	peer.pipe(numbers(0, 100), "append", "orders").ok(t)
	p.kill()
	adopt := func() {
		t.Helper()
		s.must("takeover", peer.path("wal"), "--into", s.path("s"), "--store", peer.path("objects"))
	}
	q := s.serve()
	adopt()
	s.pipe(numbers(100, 200), "append", "orders", "--log", "shop-1").ok(t)
	q.kill()
	q = s.serve()
	adopt()
	s.pipe(numbers(200, 300), "append", "orders", "--log", "shop-1").ok(t)
	if code := q.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, q.stderr)
	}
	report := reportOf(t, peer.run("takeover", peer.path("wal"), "--json"))
	if report.Epoch != 4 {
		t.Errorf("%+v", report)
	}
	if got := peer.must(peer.stored("read", "orders")...); got != numbers(0, 300) {
		t.Errorf("the store holds %d records", len(lines(got)))
	}
}

// An adopted log that is fenced ends alone: its clients hear of it, and those of the
// sidecar's own log do not.
func TestP6_AnAdoptedLogIsTakenAway(t *testing.T) {
	t.Parallel()
	l := newLoopPair(t)
	s := survivor(t)
	s.set("LINGER=50ms")
	q := s.serve()
	p := l.a.serve()
	l.a.must("append", "orders", "one")
	p.kill()
	s.boot = l.b.boot
	into := []string{"takeover", l.device[l.b], "--into", s.path("s"), "--store", l.store, "--owner-is-detached"}
	s.run(into[:len(into)-1]...).fails(t, 2, "no reservation")
	s.must(into...)
	s.must("append", "orders", "two", "--log", l.node)
	s.must("flush", "--log", l.node)
	c := dialLog(t, s, l.node)
	l.takeover(l.a, "--owner-is-detached", "--force") // it was not: the manifest fences
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	for err == nil {
		_, err = c.Append(ctx, "orders", []byte("of a zombie"))
		time.Sleep(20 * time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Fatal("the adopted log was not fenced")
	}
	if !errors.Is(err, walsidecar.ErrFenced) {
		t.Logf("its client was told: %v", err)
	}
	s.run("read", "orders", "--log", l.node).fails(t, 1)
	s.must("append", "orders", "its own")
	if got := l.a.must("read", "orders", "--store", l.store, "--node", l.node); got != "one\ntwo\n" {
		t.Errorf("the store holds %q", got)
	}
	if code := q.signal(sigterm); code != 0 {
		t.Errorf("exit %d\n%s", code, q.stderr)
	}
}

func TestAStandbyTakesOverIntoASidecar(t *testing.T) {
	t.Parallel()
	peer, s := newStoreHost(t), survivor(t)
	p := peer.serve()
	peer.pipe(numbers(0, 100), "append", "orders").ok(t)
	s.serve()
	p.kill()
	var printed lockedBuffer
	standby := s.start(&printed, "standby", peer.path("wal"), "--into", s.path("s"), "--store", peer.path("objects"), "--json", "--on-exec", "exit 0;")
	for deadline := time.Now().Add(patience); printed.String() == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nobody took it over:\n%s", standby.stderr)
		}
	}
	if got := s.must("read", "orders", "--log", "shop-1"); got != numbers(0, 100) {
		t.Errorf("the adopted log holds %d records", len(lines(got)))
	}
	if code := standby.signal(sigterm); code != 0 {
		t.Errorf("exit %d\n%s", code, standby.stderr)
	}
	if all := decode[takeoverReport](t, printed.String()); len(all) != 1 {
		t.Errorf("told of %d takeovers", len(all))
	}
}
