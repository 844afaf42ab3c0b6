package e2e

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// failingDevice is a loop device whose writes fail with EIO once goodBytes of it were
// written: its backing file is sparse and its filesystem small.
func failingDevice(t *testing.T, goodBytes string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a mount needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+goodBytes); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return loopOver(t, filepath.Join(dir, "backing"), 64<<20)
}

func TestP10_AFailedWriteIsFinal(t *testing.T) {
	dev := failingDevice(t, "4m")
	h := newHost(t, "WAL="+dev)
	h.env = without(h.env, "WALSIDECAR_WAL_SIZE")
	h.must("format", dev)
	p := h.serve()
	r := h.pipe(strings.Repeat(strings.Repeat("x", 60<<10)+"\n", 200), "append", "s", "--timeout", "1s")
	if r.code != 13 && r.code != 1 {
		t.Fatalf("append: exit %d\n%s", r.code, r.stderr)
	}
	if f := strings.ToLower(r.stderr); !strings.Contains(f, "unknown") {
		t.Errorf("the outcome is unknown, and that is to be said: %s", r.stderr)
	}
	if code := p.wait(); code != 13 {
		t.Fatalf("the sidecar: exit %d, want 13\n%s", code, p.stderr)
	}
}

func TestAFailedSidecarParksWhereToldTo(t *testing.T) {
	dev := failingDevice(t, "4m")
	h := newHost(t, "WAL="+dev, "ON_FATAL=park", "ADMIN=127.0.0.1:0")
	h.env = without(h.env, "WALSIDECAR_WAL_SIZE")
	h.must("format", dev)
	p := h.serve()
	url := adminURL(t, p)
	h.pipe(strings.Repeat(strings.Repeat("x", 60<<10)+"\n", 200), "append", "s", "--timeout", "1s")
	await(t, "the parking", func() bool { return strings.Contains(p.stderr.String(), "parked") })
	if code, body := fetch(t, url+"/healthz"); code != 200 || !strings.HasPrefix(body, "parked: ") {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, body := fetch(t, url+"/readyz"); code != 503 || !strings.Contains(body, "failed") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := fetch(t, url+"/status"); code != 200 || !strings.Contains(body, `"state": "failed"`) {
		t.Errorf("/status: %d %s", code, body)
	}
	if code, body := fetch(t, url+"/metrics"); code != 200 || !strings.Contains(body, "\nwalsidecar_log_failed 1\n") {
		t.Errorf("/metrics: %d", code)
	}
	h.must("inspect", dev)
	h.run("append", "s", "x").fails(t, 1)
	if code := p.signal(sigterm); code != 13 {
		t.Fatalf("exit %d, want 13", code)
	}
}

// frozenFilesystem is a directory on an ext4 of its own, and functions that stop and resume
// all writes to it.
func frozenFilesystem(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	dev := loopDevice(t, 256<<20)
	tool("mkfs.ext4", "-q", "-F")(t, dev)
	dir = t.TempDir()
	if err := syscall.Mount(dev, dir, "ext4", 0, ""); err != nil {
		t.Skipf("ext4 cannot be mounted: %v", err)
	}
	fsfreeze := func(flag string) func() {
		return func() { _ = exec.Command("fsfreeze", flag, dir).Run() }
	}
	if _, err := exec.LookPath("fsfreeze"); err != nil {
		t.Skip("fsfreeze is not installed")
	}
	t.Cleanup(func() {
		fsfreeze("--unfreeze")()
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, fsfreeze("--freeze"), fsfreeze("--unfreeze")
}

func TestP10_AStalledWriteIsFinalAndNobodyWaitsForIt(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		dir, freeze, thaw := frozenFilesystem(t)
		stalledWriteIsFinal(t, newHost(t, "WAL="+filepath.Join(dir, "wal")), freeze, thaw)
	})
	t.Run("device", func(t *testing.T) { // whose writes are stuck below it
		dir, freeze, thaw := frozenFilesystem(t)
		dev := loopOver(t, filepath.Join(dir, "backing"), 64<<20, "--direct-io=on")
		h := newHost(t, "WAL="+dev)
		h.env = without(h.env, "WALSIDECAR_WAL_SIZE")
		h.must("format", dev, "--node", "stalled")
		stalledWriteIsFinal(t, h, freeze, thaw)
	})
}

func stalledWriteIsFinal(t *testing.T, h *host, freeze, thaw func()) {
	t.Helper()
	h.set("STALL=1s", "ADMIN=127.0.0.1:0", "ON_FATAL=park")
	p := h.serve()
	url := adminURL(t, p)
	h.must("append", "s", "before")
	freeze()
	defer thaw() // before the clean-up, which waits for the process to end
	from := time.Now()
	if r := h.run("append", "s", "stuck", "--timeout", "1s"); r.code != 13 && r.code != 1 || !strings.Contains(r.stderr, "unknown") {
		t.Errorf("append: exit %d\n%s", r.code, r.stderr)
	}
	if took := time.Since(from); took > 15*time.Second {
		t.Errorf("the client was kept waiting for %s", took)
	}
	await(t, "the parking", func() bool {
		code, body := fetch(t, url+"/healthz")
		return code == 200 && strings.HasPrefix(body, "parked: ")
	})
	if code, _ := fetch(t, url+"/readyz"); code != 503 {
		t.Errorf("/readyz: %d", code)
	}
	thaw()
	if code := p.signal(sigterm); code != 13 {
		t.Fatalf("exit %d, want 13\n%s", code, p.stderr)
	}
	h.set("ON_FATAL=exit", "STALL=10s")
	h.serve()
	if got := h.must("read", "s"); got != "before\n" && got != "before\nstuck\n" {
		t.Fatalf("read %q", got)
	}
}

// fetch is one GET whose connection ends with it.
func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestOthersAreLetInOnlyWhenAllowed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("running as another user needs root")
	}
	const nobody = 65534
	h := newHost(t)
	asNobody := func(args ...string) (int, string) {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = "/", h.env
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	for _, dir := range []string{h.dir, filepath.Dir(h.dir), filepath.Dir(program)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := h.serve()
	if code, out := asNobody("append", "s", "x"); code != 1 || !strings.Contains(out, "permission") {
		t.Errorf("exit %d: %s", code, out)
	}
	// Even where the file lets it through, the credentials decide.
	if err := os.Chmod(h.path("s"), 0o666); err != nil {
		t.Fatal(err)
	}
	if code, out := asNobody("append", "s", "x"); code != 1 || !strings.Contains(out, "unauthorized") {
		t.Errorf("exit %d: %s", code, out)
	}
	p.signal(sigterm)
	h.set("ALLOW=uid:65534")
	h.serve()
	if code, out := asNobody("append", "s", "x"); code != 0 || out != "0\n" {
		t.Errorf("exit %d: %s", code, out)
	}
}
