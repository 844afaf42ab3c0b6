// Package growth is for tests that an append takes as many instructions among many things
// as with one.
package growth

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	// asked is the environment variable that asks for the tests: they take minutes.
	asked = "WALSIDECAR_TEST_GROWTH"
	// subject makes a test its own subject: COUNT,APPENDS.
	subject = "WALSIDECAR_TEST_GROWTH_WORK"

	// few and many are appends of two runs, the difference of which counts: so starts do not.
	few, many = 100_000, 400_000
)

// InstructionsPerAppend fails t where an append takes over a tenth more instructions among
// one of counts of the things than with one. work makes that many of them, and then that many
// appends; it runs under valgrind, in a process of its own. The test must do nothing else. It
// is skipped unless WALSIDECAR_TEST_GROWTH is set, and where there is no valgrind.
func InstructionsPerAppend(t *testing.T, things string, counts []int, work func(count, appends int)) {
	t.Helper()
	if text := os.Getenv(subject); text != "" {
		var count, appends int
		if _, err := fmt.Sscanf(text, "%d,%d", &count, &appends); err != nil {
			t.Fatal(err)
		}
		work(count, appends)
		return
	}
	if os.Getenv(asked) == "" {
		t.Skipf("%s is not set: `make growth` does that", asked)
	}
	perAppend := func(count int) float64 {
		return float64(instructions(t, count, many)-instructions(t, count, few)) / (many - few)
	}
	one := perAppend(1)
	t.Logf("1 of the %s: %.0f instructions per append", things, one)
	for _, count := range counts {
		got := perAppend(count)
		t.Logf("%d %s: %.0f instructions per append, %.3f of one's", count, things, got, got/one)
		if got > 1.1*one {
			t.Errorf("%d %s: %.0f instructions per append, with one %.0f", count, things, got, one)
		}
	}
}

// instructions runs the test under valgrind, as its own subject, and returns what it took.
func instructions(t *testing.T, count, appends int) uint64 {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", program, "-test.run=^"+t.Name()+"$")
	// One goroutine at a time, and no collection that comes when it likes.
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%d", subject, count, appends), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no valgrind")
	}
	found := regexp.MustCompile(`I\s+refs:\s+([\d,]+)`).FindSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("valgrind: %v\n%s", err, out)
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(string(found[1]), ",", ""), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
