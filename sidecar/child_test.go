package sidecar

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// run starts sh -c script as a child and returns it.
func run(t *testing.T, script string) *child {
	t.Helper()
	c, err := startChild([]string{"sh", "-c", script}, &settings.Settings{Socket: "wal.sock", HTTP: "off"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChildSeesTheSocketAsAnAbsolutePath(t *testing.T) {
	t.Chdir(t.TempDir())
	c := run(t, `printf %s "$WALSIDECAR_SOCKET" > seen`)
	<-c.done
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	seen, err := os.ReadFile("seen")
	if err != nil || string(seen) != filepath.Join(dir, "wal.sock") {
		t.Fatalf("saw %q, %v", seen, err)
	}
}

func TestExitCodeOfAChild(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + 9} {
		c := run(t, script)
		<-c.done
		if got := c.exitCode(); got != want {
			t.Errorf("%s: got %d, want %d", script, got, want)
		}
	}
}

func TestStopAsksFirstAndKillsWhenPatienceIsOver(t *testing.T) {
	t.Chdir(t.TempDir())
	polite := run(t, `trap 'exit 3' TERM; : > ready; while :; do sleep 0.01; done`)
	awaitFile(t, "ready")
	polite.stop(10*time.Second, nil)
	if got := polite.exitCode(); got != 3 {
		t.Errorf("a child that ends on SIGTERM exits with %d, want its own 3", got)
	}
	deaf := run(t, `trap '' TERM; : > deaf; while :; do sleep 0.01; done`)
	awaitFile(t, "deaf")
	deaf.stop(50*time.Millisecond, nil)
	if got := deaf.exitCode(); got != 128+9 {
		t.Errorf("a deaf child exits with %d, want 137", got)
	}
}

func TestStopHurries(t *testing.T) {
	t.Chdir(t.TempDir())
	deaf := run(t, `trap '' TERM; : > deaf; while :; do sleep 0.01; done`)
	awaitFile(t, "deaf")
	hurry := make(chan struct{})
	close(hurry)
	deaf.stop(time.Hour, hurry)
}

func TestAChildThatCannotStartIsAnError(t *testing.T) {
	if _, err := startChild([]string{"/nonexistent/program"}, &settings.Settings{Socket: "s"}); err == nil {
		t.Fatal("no error")
	}
}

// awaitFile waits until the script has made the file.
func awaitFile(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(name); err == nil {
			return
		}
	}
	t.Fatalf("%s was not made", name)
}
