package e2e

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// isClean reports whether the log was closed in order.
func isClean(t *testing.T, h *host) bool {
	t.Helper()
	return newestSuperblock(t, h, h.path("wal")).Clean
}

// superblock is what inspect shows of one.
type superblock struct {
	UUID  string `json:"log_uuid"`
	Node  string `json:"node"`
	Epoch uint64 `json:"epoch"`
	Clean bool   `json:"clean"`
}

// newestSuperblock is the one in force, as inspect shows it.
func newestSuperblock(t *testing.T, h *host, path string) superblock {
	t.Helper()
	type inspection struct {
		Newest      int          `json:"newest_slot"`
		Superblocks []superblock `json:"superblocks"`
	}
	report := decode[inspection](t, h.must("inspect", path, "--json"))[0]
	if report.Newest < 0 {
		t.Fatalf("%s has no superblock", path)
	}
	return report.Superblocks[report.Newest]
}

func TestSIGTERMWithoutSessionsSealsAtOnce(t *testing.T) {
	h := newHost(t, "DRAIN=1m")
	p := h.serve()
	h.must("append", "s", "x")
	if isClean(t, h) {
		t.Fatal("a log that is served is not clean")
	}
	from := time.Now()
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if took := time.Since(from); took > 20*time.Second {
		t.Errorf("it took %s with nobody connected", took)
	}
	if !isClean(t, h) {
		t.Fatal("the log was not sealed")
	}
	h.serve().kill()
	if isClean(t, h) {
		t.Fatal("after kill -9 the log must not be called clean")
	}
}

func TestSIGTERMServesUntilTheLastSessionEnds(t *testing.T) {
	h := newHost(t, "DRAIN=1m")
	p := h.serve()
	c := dial(t, h)
	if _, err := c.Append(t.Context(), "s", []byte("before")); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(sigterm); err != nil {
		t.Fatal(err)
	}
	await(t, "the drain", func() bool { return strings.Contains(p.stderr.String(), "shutting down") })
	await(t, "wait-ready that fails", func() bool { return h.run("wait-ready", "--timeout", "50ms").code == 17 })
	if status := h.must("status", "--json"); !strings.Contains(status, `"state":"draining"`) {
		t.Errorf("status while it drains: %s", status)
	}
	if _, err := c.Append(t.Context(), "s", []byte("while it drains")); err != nil {
		t.Fatalf("a session that is open is served on: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if !isClean(t, h) {
		t.Fatal("the log was not sealed")
	}
	h.serve()
	if got := h.must("read", "s"); got != "before\nwhile it drains\n" {
		t.Fatalf("read %q", got)
	}
}

func TestSIGTERMHasADeadlineAndASecondOneHurries(t *testing.T) {
	h := newHost(t, "DRAIN=300ms")
	p := h.serve()
	dial(t, h)
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if !isClean(t, h) {
		t.Fatal("the log was not sealed after the deadline")
	}
	h.set("DRAIN=1h")
	p = h.serve()
	dial(t, h)
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	await(t, "the drain", func() bool { return strings.Contains(p.stderr.String(), "shutting down") })
	if code := p.signal(syscall.SIGINT); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if !isClean(t, h) {
		t.Fatal("the log was not sealed after the second signal")
	}
}

func TestServeWithAChild(t *testing.T) {
	h := newHost(t, "DRAIN=10s")
	h.env = append(h.env, "PROGRAM="+program)
	// The child appends through the socket that it was told of, and again when it is asked
	// to stop: the sidecar must still serve then.
	script := `"$PROGRAM" append child started >/dev/null
		trap '"$PROGRAM" append child stopped >/dev/null; exit 0' TERM
		: > up; while :; do sleep 0.02; done`
	p := h.start(nil, "serve", "--", "sh", "-c", script)
	await(t, "the child", func() bool { return exists(h.path("up")) })
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if !isClean(t, h) {
		t.Fatal("the log was not sealed")
	}
	h.serve()
	if got := h.must("read", "child"); got != "started\nstopped\n" {
		t.Fatalf("read %q", got)
	}
}

func TestServeEndsAsItsChildDoes(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137} {
		h := newHost(t)
		p := h.start(nil, "serve", "--", "sh", "-c", script)
		if got := p.wait(); got != want {
			t.Errorf("%s: exit %d, want %d\n%s", script, got, want, p.stderr)
		}
		if !isClean(t, h) {
			t.Errorf("%s: the log was not sealed", script)
		}
	}
	h := newHost(t)
	h.run("serve", "--", "/nonexistent/program").fails(t, 1, "/nonexistent/program")
	if !isClean(t, h) {
		t.Error("the log was not sealed")
	}
}

func TestAdminEndpoints(t *testing.T) {
	h := newHost(t, "ADMIN=127.0.0.1:0", "STORE=./objects")
	p := h.serve()
	h.must("append", "s", "x")
	url := adminURL(t, p)
	get := func(path string) (int, string) {
		t.Helper()
		return fetch(t, url+path)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n"} {
		if code, body := get(path); code != 200 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, body := get("/status"); code != 200 || !strings.Contains(body, "./objects") || !strings.Contains(body, `"uploaded_position"`) {
		t.Errorf("/status: %d %s", code, body)
	}
	code, body := get("/metrics")
	if code != 200 {
		t.Fatalf("/metrics: %d %s", code, body)
	}
	for _, metric := range []string{
		`walsidecar_build_info{`, `walsidecar_append_stage_seconds_bucket{`, "walsidecar_append_seconds_count ",
		`walsidecar_frames_written_total{kind="data"} `, "walsidecar_device_written_bytes_total ", "walsidecar_payload_bytes_total ",
		"walsidecar_frames_in_flight ", "walsidecar_durable_position_bytes ", "walsidecar_trim_position_bytes ",
		"walsidecar_log_used_bytes ", "walsidecar_log_capacity_bytes ", "walsidecar_log_full_in_seconds ",
		"walsidecar_sessions ", `walsidecar_errors_total{code="log_full"} 0`, "walsidecar_ready 1",
		`walsidecar_fence{mode="lock"} 1`, "walsidecar_uploaded_position_bytes ", "walsidecar_upload_lag_bytes ", "walsidecar_upload_lag_records ",
		"walsidecar_upload_lag_seconds ", "walsidecar_upload_failing 0", "walsidecar_upload_commits_total ", "walsidecar_cold_cache_hits_total ",
		`walsidecar_store_requests_total{class="upload",operation="put"} `, `walsidecar_store_throttles_total{class="read"} 0`,
	} {
		if !strings.Contains(body, "\n"+metric) {
			t.Errorf("/metrics lacks %s", metric)
		}
	}
	if strings.Contains(body, "stream=") {
		t.Error("/metrics has a series per stream")
	}
	if code, _ := get("/debug/pprof/"); code != 404 {
		t.Errorf("profiles without being asked for: %d", code)
	}
}

// adminURL is where the sidecar says that its admin address is.
func adminURL(t *testing.T, p *process) string {
	t.Helper()
	var address string
	await(t, "the admin address", func() bool {
		found := regexp.MustCompile(`"admin":"(127\.0\.0\.1:\d+)"`).FindStringSubmatch(p.stderr.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	})
	return "http://" + address
}

func TestAnAdminAddressInUseStopsTheStart(t *testing.T) {
	first := newHost(t, "ADMIN=127.0.0.1:0")
	url := adminURL(t, first.serve())
	h := newHost(t, "ADMIN="+strings.TrimPrefix(url, "http://"))
	h.run("serve").fails(t, 14, "WALSIDECAR_ADMIN")
	if exists(h.path("wal")) {
		t.Error("a log was made all the same")
	}
}

func TestLogIsJSONWhereNobodyReadsIt(t *testing.T) {
	h := newHost(t)
	p := h.serve()
	p.signal(sigterm)
	for _, line := range lines(p.stderr.String()) {
		if !strings.HasPrefix(line, `{"time":"`) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

func TestSocketAndLogAreNotReadableByOthers(t *testing.T) {
	h := newHost(t, "WAL=./walsidecar-data/wal", "SOCKET=./walsidecar-data/wal.sock")
	h.serve()
	for name, want := range map[string]os.FileMode{"walsidecar-data": 0o750, "walsidecar-data/wal": 0o600, "walsidecar-data/wal.sock": 0o660} {
		info, err := os.Stat(h.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
}

func TestALogIsFoundByItsUUID(t *testing.T) {
	dev := loopDevice(t, 64<<20)
	h := newHost(t)
	h.env = without(h.env, "WALSIDECAR_WAL_SIZE")
	h.must("format", dev, "--node", "n")
	h.set("WAL=uuid:" + newestSuperblock(t, h, dev).UUID)
	p := h.serve()
	h.must("append", "s", "x")
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if !newestSuperblock(t, h, dev).Clean {
		t.Fatal("it was another log that was served")
	}
	h.set("WAL=uuid:018f4e7a-0000-7000-8000-0123456789ab")
	h.run("serve").fails(t, 12, "018f4e7a-0000-7000-8000-0123456789ab")
}

func TestASlowAppendIsLoggedWithItsStages(t *testing.T) {
	h := newHost(t, "SLOW_APPEND=1ms")
	p := h.serve("--profile", "gp3")
	await(t, "the log line", func() bool {
		h.must("append", "s", "x") // most take less than a millisecond there, some more
		return strings.Contains(p.stderr.String(), "slow append")
	})
	for _, line := range lines(p.stderr.String()) {
		if !strings.Contains(line, "slow append") {
			continue
		}
		for _, stage := range []string{"total_ms", "queue_ms", "device_ms", "order_ms"} {
			if !strings.Contains(line, `"`+stage+`":`) {
				t.Errorf("%s is not told: %s", stage, line)
			}
		}
	}
}
