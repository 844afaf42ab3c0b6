package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/wire"
)

// recoveryBudgetBytes is what a whole process may take to recover any log. The
// least hot tail is 20 MiB of it.
const recoveryBudgetBytes = 128 << 20

// A start needs the same memory for a long log as for a short one.
// WALSIDECAR_TEST_LOG_BYTES makes the log longer; 4 GiB was tried.
func TestRecoveryMemoryDoesNotGrowWithTheLog(t *testing.T) {
	if path := os.Getenv("WALSIDECAR_TEST_RECOVER"); path != "" {
		recoverInChild(t, path)
		return
	}
	size := int64(512 << 20)
	if s := os.Getenv("WALSIDECAR_TEST_LOG_BYTES"); s != "" {
		var err error
		if size, err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		size = 128 << 20
	}
	r := newRigOf(t, size)
	d := r.dial()
	s := d.create("s")
	if refusal, _ := appendUntilFull(t, d, s.ID, 200<<10); refusal.Code != wire.CodeLogFull {
		t.Fatalf("refused with %v", refusal.Code)
	}
	r.close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-test.run=^TestRecoveryMemoryDoesNotGrowWithTheLog$", "-test.v")
	child.Env = append(os.Environ(), "WALSIDECAR_TEST_RECOVER="+r.path)
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, rest, found := strings.Cut(string(out), "peak KiB ")
	if !found {
		t.Fatalf("no peak in %s", out)
	}
	peak, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("recovered a log of %d MiB with a peak of %d MiB of memory", size>>20, peak>>10)
	if peak<<10 > recoveryBudgetBytes {
		t.Fatalf("peak of %d MiB, the budget is %d", peak>>10, recoveryBudgetBytes>>20)
	}
}

func recoverInChild(t *testing.T, path string) {
	n, err := Open(context.Background(), Config{Path: path, Store: "none", MemoryBytes: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			fmt.Printf("peak KiB %s\n", strings.Fields(value)[0])
		}
	}
}
