package e2e

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newStoreHost is a host whose log is uploaded to a directory.
func newStoreHost(t *testing.T, settings ...string) *host {
	t.Helper()
	h := newHost(t, append([]string{"NODE=shop-1", "LINGER=50ms"}, settings...)...)
	h.set("STORE=" + h.path("objects"))
	return h
}

// stored adds the flags that read the host's store without a sidecar.
func (h *host) stored(args ...string) []string {
	return append(args, "--store", h.path("objects"), "--node", "shop-1")
}

// objects are the files of the store, without the manifest.
func (h *host) objects() (paths []string) {
	h.t.Helper()
	for _, kind := range []string{"o", "state", "index"} {
		some, err := filepath.Glob(h.path("objects/*/shop-1/" + kind + "/*"))
		if err != nil {
			h.t.Fatal(err)
		}
		paths = append(paths, some...)
	}
	return paths
}

// fill appends to several streams, in several objects.
func (h *host) fill() {
	h.t.Helper()
	for round := range 3 {
		h.pipe(numbers(1000*round, 1000*round+700), "append", "orders").ok(h.t)
		h.pipe("\xff\x00\n\n", "append", "bytes").ok(h.t)
		h.must("append", fmt.Sprintf("stream-%d", round), "alone")
		h.must("flush")
	}
	h.must("trim", "orders", "--before", "500")
	h.must("stream", "seal", "stream-1")
	h.must("stream", "delete", "stream-2")
	h.must("append", "bytes", "the last one")
	h.must("flush")
}

func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "number %d\n", i)
	}
	return b.String()
}

func TestWithoutASidecarTheStoreSaysTheSame(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	h.fill()
	same := func(args ...string) {
		t.Helper()
		asked := h.must(args...)
		if got := h.must(h.stored(args...)...); got != asked {
			t.Errorf("walsidecar %s: the sidecar says\n%.300s\nthe store\n%.300s", strings.Join(args, " "), asked, got)
		}
	}
	same("streams")
	same("streams", "--json", "--prefix", "stream")
	for _, format := range []string{"--json=false", "--json"} {
		same("read", "orders", format)
		same("read", "bytes", format)
		same("read", "orders", format, "--offset", "1234", "--max", "100")
		same("read", "orders", format, "--last", "3")
		same("read", "orders", format, "--since", "1h")
		same("read", "stream-1", format)
	}
	middle := decode[record](t, h.must("read", "orders", "--json", "--offset", "1399", "--max", "1"))
	same("read", "orders", "--since", middle[0].Timestamp.Format(time.RFC3339Nano))
	if all := decode[record](t, h.must(h.stored("replay")...)); len(all) != 2100+7+3 {
		t.Errorf("replay shows %d records", len(all))
	}
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	// Nobody runs any more.
	if got := h.must(h.stored("read", "orders", "--last", "1")...); got != "number 2699\n" {
		t.Errorf("read printed %q", got)
	}
	if got := h.must(h.stored("verify")...); !strings.Contains(got, "findings           0") {
		t.Errorf("verify printed %s", got)
	}
}

func TestTheStoreIsNamedByFlagsAlone(t *testing.T) {
	h := newStoreHost(t)
	for _, c := range []struct {
		code int
		what string
		args []string
	}{
		{1, "no sidecar at", []string{"read", "orders"}}, // whatever the environment's store is
		{2, "go together", []string{"read", "orders", "--store", h.path("objects")}},
		{2, "go together", []string{"streams", "--node", "shop-1"}},
		{2, "names no store", []string{"streams", "--store", "none", "--node", "shop-1"}},
		{2, "needs a sidecar", h.stored("read", "orders", "--follow")},
		{2, "one log", []string{"verify"}},
		{15, "", h.stored("read", "orders")}, // there is no such directory yet
		{15, "", h.stored("verify")},
	} {
		h.run(c.args...).fails(t, c.code, c.what)
	}
	h.serve()
	h.must("append", "orders", "one")
	h.must("flush")
	h.run("read", "orders", "--store", h.path("objects"), "--node", "shop-2").fails(t, 1, "no manifest of this node", "shop-2")
	h.run(h.stored("read", "order")...).fails(t, 1, `stream "order"`)
	if f := h.run("verify", "--json", "--store", h.path("objects"), "--node", "shop-2").failure(t); f.Code != "not_found" {
		t.Errorf("%+v", f)
	}
}

func TestAFlippedBitIsFoundAndNeverReturned(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	h.fill()
	p.signal(sigterm)
	want := h.must(h.stored("replay")...)
	for _, path := range append(h.objects(), h.manifest()) {
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{0, len(whole) / 3, len(whole) / 2, len(whole) - 1} {
			broken := bytes.Clone(whole)
			broken[at] ^= 1 << (at % 8)
			h.write(path, broken)
			key := filepath.Base(path)
			if path == h.manifest() {
				key = "manifest"
			}
			found := h.run(h.stored("verify", "--json")...)
			if found.code != 11 || !strings.Contains(found.stdout, key) {
				t.Errorf("byte %d of %s: verify ends with %d: %s%s", at, key, found.code, found.stdout, found.stderr)
			}
			read := h.run(h.stored("replay")...)
			if !strings.HasPrefix(want, read.stdout) || read.code != 0 && read.code != 11 {
				t.Errorf("byte %d of %s: replay ends with %d: %s", at, key, read.code, read.stderr)
			}
			if read.code == 0 && strings.Contains(path, "/o/") && len(read.stdout) != len(want) {
				t.Errorf("byte %d of %s: replay leaves out records", at, key)
			}
		}
		h.write(path, whole)
	}
	h.must(h.stored("verify")...)
}

// manifest is the path of the file that holds the manifest in force.
func (h *host) manifest() string {
	h.t.Helper()
	found, err := filepath.Glob(h.path("objects/*/shop-1/.g-manifest/*"))
	if err != nil || len(found) == 0 {
		h.t.Fatalf("manifests %v, %v", found, err)
	}
	return found[len(found)-1]
}

// write replaces what is in a file.
func (h *host) write(path string, body []byte) {
	h.t.Helper()
	if err := os.Chmod(path, 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, body, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// The device is lost with records that never reached the store; `restore` makes a log that
// goes on, and the old one has no way back.
func TestRestoreAfterALostDevice(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	h.fill()
	before := h.must("read", "orders", "--json")
	h.must("stream", "create", "empty")
	h.must("flush")
	p.kill()
	// What follows never reaches the store.
	h.set("STORE=none")
	p = h.serve()
	h.must("append", "bytes", "lost")
	p.kill()
	h.set("STORE=" + h.path("objects"))
	if err := os.Rename(h.path("wal"), h.path("old")); err != nil {
		t.Fatal(err)
	}

	h.run(h.stored("restore", h.path("new"), "--size", "32MiB")...).fails(t, 2, "--old-device-is-gone")
	restore := func(path string) result {
		return h.run(h.stored("restore", path, "--size", "32MiB", "--old-device-is-gone", "--json")...)
	}
	restore(h.path("old")).fails(t, 12, "it is not lost")
	h.make("text", bytes.Repeat([]byte("data"), 16<<20/4))
	h.run(h.stored("restore", h.path("text"), "--old-device-is-gone")...).fails(t, 12)
	type restored struct {
		LogUUID  string `json:"log_uuid"`
		Already  bool   `json:"already"`
		LostFrom uint64 `json:"lost_from_position"`
		Origin   uint64 `json:"origin_position"`
		Streams  int    `json:"streams"`
	}
	first := decode[restored](t, restore(h.path("new")).ok(t))[0]
	again := decode[restored](t, restore(h.path("new")).ok(t))[0]
	if first.Already || !again.Already || again.LogUUID != first.LogUUID || first.Streams != 5 || first.Origin <= first.LostFrom {
		t.Errorf("restored %+v, then %+v", first, again)
	}

	h.set("WAL=" + h.path("new"))
	p = h.serve()
	if got := h.must("read", "orders", "--json"); !strings.HasPrefix(got, before) {
		t.Errorf("read printed %.300s", got)
	}
	for i, line := range []string{"7", "8", "9"} {
		if got := h.must("append", "bytes", "new"); got != line+"\n" {
			t.Errorf("append %d printed %q", i, got)
		}
	}
	h.run("append", "stream-1", "more").fails(t, 1, "sealed")
	shown := decode[record](t, h.must("read", "bytes", "--json"))
	if len(shown) != 7+1+3 {
		t.Errorf("the stream shows %+v", shown)
	}
	h.must("flush")
	if byStore, bySidecar := h.must(h.stored("read", "bytes", "--json")...), h.must("read", "bytes", "--json"); byStore != bySidecar {
		t.Errorf("the sidecar reads\n%s\nthe store says\n%s", bySidecar, byStore)
	}
	h.must(h.stored("verify")...)
	p.kill()

	// The old device comes back.
	h.set("WAL=" + h.path("old"))
	old := h.start(nil, "serve")
	if code := old.wait(); code != 12 || !strings.Contains(old.stderr.String(), "given up") {
		t.Errorf("the old log's start: exit %d: %s", code, old.stderr)
	}
}

func TestRestoreOntoABlockDevice(t *testing.T) {
	dev := loopDevice(t, 64<<20)
	h := newStoreHost(t)
	p := h.serve()
	h.must("append", "orders", "one")
	h.must("flush")
	p.kill()
	for _, how := range []string{"takes the place", "already took the place"} {
		if got := h.must(h.stored("restore", dev, "--old-device-is-gone")...); !strings.Contains(got, how) {
			t.Errorf("restore printed %s", got)
		}
	}
	h.set("WAL=" + dev)
	h.serve()
	if got := h.must("append", "orders", "two") + h.must("read", "orders"); got != "1\none\ntwo\n" {
		t.Errorf("append and read printed %q", got)
	}
	h.run(h.stored("restore", dev, "--old-device-is-gone")...).fails(t, 14, "in use")
}

// A restore that is killed anywhere is repeated until it says that it is done: one log has
// taken the place of the lost one, and nothing is lost on the way.
func TestP4_ARestoreIsKilledAndRepeated(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	h.fill()
	p.kill()
	want := h.must(h.stored("read", "orders", "--json")...)
	h.make("new", make([]byte, 32<<20))
	args := h.stored("restore", h.path("new"), "--old-device-is-gone", "--json")
	for i := range 20 {
		restore := h.start(nil, args...)
		select {
		case <-restore.done:
		case <-time.After(time.Duration(4*i) * time.Millisecond):
		}
		restore.kill()
	}
	type restored struct {
		LogUUID string `json:"log_uuid"`
		Lost    string `json:"lost_log_uuid"`
	}
	done := decode[restored](t, h.must(args...))[0]
	found := decode[restored](t, h.must("verify", h.path("new"), "--json"))[0]
	if lost := decode[restored](t, h.must("verify", h.path("wal"), "--json"))[0]; found.LogUUID != done.LogUUID || lost.LogUUID != done.Lost {
		t.Errorf("restored %+v, there is %+v instead of %+v", done, found, lost)
	}
	h.must(h.stored("verify")...)
	h.set("WAL=" + h.path("new"))
	h.serve()
	for who, got := range map[string]string{"sidecar": h.must("read", "orders", "--json"), "store": h.must(h.stored("read", "orders", "--json")...)} {
		gap := strings.TrimPrefix(got, want)
		if gap == got || strings.Count(gap, "\n") != 1 || !strings.Contains(gap, `"gap":"data_lost"`) {
			t.Errorf("the %s shows %.200s … %s", who, got, gap)
		}
	}
}

// An operator who was wrong: the old log is still served while another one takes its place.
// It stops by the store alone, and acks nothing that the new one does not have for long.
func TestP6_ARestoreStopsTheOldOwner(t *testing.T) {
	h := newStoreHost(t)
	old := h.serve()
	h.must("append", "orders", "one")
	h.must("flush")
	h.run(h.stored("restore", h.path("new"), "--size", "32MiB", "--old-device-is-gone")...).ok(t)
	h.run("append", "orders", "nobody's") // acked or not: its sidecar has lost the log, and hears of it at its next commit
	if code := old.wait(); code != 10 || !strings.Contains(old.stderr.String(), "taken this one's place") {
		t.Errorf("the old owner ends with %d: %s", code, old.stderr)
	}
	h.set("WAL=" + h.path("new"))
	h.serve()
	if got := h.must("append", "orders", "two"); got != "1\n" {
		t.Errorf("append printed %q", got)
	}
	h.must("flush")
	if got := h.must(h.stored("read", "orders")...); got != "one\ntwo\n" {
		t.Errorf("read printed %q", got)
	}
}

// make makes a file in the host's directory.
func (h *host) make(name string, body []byte) {
	h.t.Helper()
	if err := os.WriteFile(h.path(name), body, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func TestGCFindsWhatNothingNames(t *testing.T) {
	h := newStoreHost(t)
	p := h.serve()
	h.fill()
	named := h.objects()
	body, err := os.ReadFile(named[0])
	if err != nil {
		t.Fatal(err)
	}
	// A sidecar that died before its commit left two objects: one of yesterday, one of now.
	orphan := func(sequence int, age time.Duration) string {
		path := filepath.Join(filepath.Dir(named[0]), fmt.Sprintf("%016x-%s", sequence, hex.EncodeToString(bytes.Repeat([]byte{7}, 16))))
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old, young := orphan(100, 25*time.Hour), orphan(101, 0)
	type report struct {
		Orphan  string `json:"orphan"`
		Deleted any    `json:"deleted"` // of an orphan whether, at the end how many
	}
	for _, c := range []struct {
		args    []string
		deleted bool
	}{{nil, false}, {[]string{"--delete"}, true}} {
		got := decode[report](t, h.must(h.stored(append([]string{"gc", "--json"}, c.args...)...)...))
		if len(got) != 2 || filepath.Base(got[0].Orphan) != filepath.Base(old) || got[0].Deleted != c.deleted {
			t.Errorf("gc %v: %+v", c.args, got)
		}
		if _, err := os.Stat(old); os.IsNotExist(err) != c.deleted {
			t.Errorf("gc %v: the orphan: %v", c.args, err)
		}
	}
	for _, path := range append(named, young) {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	h.run(h.stored("gc", "--grace", "1m")...).fails(t, 2, "at least 1h")
	h.must(h.stored("verify")...)
	p.kill()
}

func TestFlushNeedsAStore(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.run("flush").fails(t, 15, "no object store")
}

// A store that is gone for a while fails no append; flush says so, and goes on once it is back.
func TestFlushWaitsForTheStore(t *testing.T) {
	h := newStoreHost(t)
	h.serve()
	h.must("append", "orders", "one")
	h.must("flush")
	if err := os.Rename(h.path("objects"), h.path("away")); err != nil {
		t.Fatal(err)
	}
	h.must("append", "orders", "two")
	for deadline := time.Now().Add(patience); h.run("flush", "--timeout", "2s").code != 15; {
		if time.Now().After(deadline) {
			t.Fatal("flush does not say that the store is gone")
		}
	}
	if err := os.Rename(h.path("away"), h.path("objects")); err != nil {
		t.Fatal(err)
	}
	h.must("flush", "--timeout", "50s")
	if got := h.must(h.stored("read", "orders")...); got != "one\ntwo\n" {
		t.Errorf("read printed %q", got)
	}
}
