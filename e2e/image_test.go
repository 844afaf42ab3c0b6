package e2e

import (
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestImageStagesByHand does what the Dockerfile's stages do, without an engine: the binary
// alone in an empty root, as the image's user, in its working directory, with its
// environment (none), its command and its health check.
func TestImageStagesByHand(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("chroot needs root")
	}
	file, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	const user = 65532
	for _, line := range []string{"FROM scratch", "USER 65532:65532", "WORKDIR /data", `ENTRYPOINT ["/walsidecar"]`, `CMD ["serve"]`} {
		if !strings.Contains(string(file), "\n"+line+"\n") {
			t.Fatalf("the Dockerfile has no line %q any more: this test does something else than it", line)
		}
	}
	check := regexp.MustCompile(`HEALTHCHECK .* CMD \["/walsidecar", "(.*)"\]`).FindStringSubmatch(string(file))
	if check == nil {
		t.Fatal("the Dockerfile has no health check")
	}
	healthcheck := strings.Split(check[1], `", "`)

	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	buildStage(t, filepath.Join(root, "walsidecar"))
	for _, dir := range []string{"data", "proc"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// What every engine brings.
	if err := syscall.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		t.Skipf("no /proc for the image: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(filepath.Join(root, "proc"), syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(filepath.Join(root, "data"), user, user); err != nil {
		t.Fatal(err)
	}
	inside := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/walsidecar", args...)
		cmd.Dir, cmd.Env = "/data", []string{"WALSIDECAR_WAL_SIZE=32MiB", "WALSIDECAR_ADMIN=off", "WALSIDECAR_DRAIN=1s"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
		return cmd
	}
	if out, err := inside(t.Context(), healthcheck...).CombinedOutput(); err == nil {
		t.Fatalf("healthy before anything runs: %s", out)
	}
	log := &lockedBuffer{}
	serve := inside(context.Background(), "serve")
	serve.Stdout, serve.Stderr = log, log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill() })
	deadline := time.Now().Add(patience)
	for inside(t.Context(), healthcheck...).Run() != nil {
		if time.Now().After(deadline) {
			t.Fatalf("it did not become healthy:\n%s", log)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if out, err := inside(t.Context(), "append", "s", "from the image").CombinedOutput(); err != nil || string(out) != "0\n" {
		t.Fatalf("append: %v %s", err, out)
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Fatalf("stop: %v\n%s", err, log)
	}
}

// buildStage builds the binary as the Dockerfile's first stage does and checks that nothing
// is needed beside it.
func buildStage(t *testing.T, path string) {
	t.Helper()
	build := exec.Command("go", "build", "-trimpath",
		"-ldflags", "-s -w -X github.com/walsidecar/walsidecar/sidecar.Version=image-test", "-o", path, "../cmd/walsidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Fatal("the binary is not static: it names an interpreter")
		}
	}
	out, err := exec.Command(path, "version").Output()
	if err != nil || !strings.Contains(string(out), "image-test") {
		t.Fatalf("version: %v %s", err, out)
	}
}
