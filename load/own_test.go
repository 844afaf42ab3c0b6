package load_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bench builds the program once and runs `walsidecar bench`.
func bench(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(program(t), append([]string{"bench"}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

var built string

func program(t *testing.T) string {
	if built == "" {
		t.Fatal("TestMain did not build the program")
	}
	return built
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "walsidecar-bench-test-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		built = filepath.Join(dir, "walsidecar")
		if out, err := exec.Command("go", "build", "-o", built, "../cmd/walsidecar").CombinedOutput(); err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

func TestBenchOnAFileOfItsOwnPrintsWhatItIsToPrint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wal")
	stdout, stderr, code := bench(t, "--wal", path, "--duration", "600ms", "--size", "512", "--producers", "1,8", "--inflight", "4", "--json")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines for two cells:\n%s", len(lines), stdout)
	}
	for i, line := range lines {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		number := func(name string) float64 {
			v, ok := r[name].(float64)
			if !ok {
				t.Errorf("line %d has no %s", i, name)
			}
			return v
		}
		for _, name := range []string{
			"seconds", "appends", "appends_per_s", "mb_per_s", "p50_us", "p99_us", "p999_us", "max_us", "cpu_us_per_append",
			"device_writes_per_append", "device_writes_per_s", "device_bytes_per_payload_byte", "rtt_p50_us",
			"raw_p50_us", "raw_p99_us", "raw_p999_us", "raw_mb_per_s", "ratio_p50", "ratio_p99", "ratio_bandwidth",
		} {
			if number(name) <= 0 {
				t.Errorf("line %d: %s is %v", i, name, r[name])
			}
		}
		if r["door"] != "uds" || r["durable"] != true || number("size") != 512 || number("producers") != []float64{1, 8}[i] || number("inflight") != 4 {
			t.Errorf("line %d is of another cell: %s", i, line)
		}
		if number("device_bytes_per_payload_byte") < 1 || number("raw_write_bytes") < 512 {
			t.Errorf("line %d: the device took less than the payload: %s", i, line)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBenchOfTheDoorAloneSaysThatNothingIsDurable(t *testing.T) {
	for _, door := range []string{"uds", "shm", "http"} {
		stdout, stderr, code := bench(t, "--null", "--duration", "200ms", "--door", door)
		if code != 0 || !strings.Contains(stdout, door+", NOT durable") {
			t.Errorf("%s: exit code %d: %s%s", door, code, stdout, stderr)
		}
	}
}

func TestBenchRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--door", "tcp"}, 2, "uds, shm and http"},
		{[]string{"--door", "http", "--producers", "16", "--inflight", "16"}, 2, "legal is 240"},
		{[]string{"--door", "http"}, 2, "WALSIDECAR_HTTP"},
		{[]string{"--size", "2000000"}, 2, "legal is 0 to 1048576"},
		{[]string{"--inflight", "0"}, 2, "legal is 1 to 8192"},
		{[]string{"--profile", "floppy", "--wal", file + "2"}, 2, "gp3"},
		{[]string{"--profile", "gp3", "--null"}, 2, "--wal"},
		{[]string{"--wal", file, "--null"}, 2, "wal"},
		{[]string{"--wal", file}, 12, "exists"},
		{[]string{"--socket", file + ".sock"}, 1, "no sidecar"},
	} {
		_, stderr, code := bench(t, append(test.args, "--duration", "100ms")...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%q: exit code %d, %s", test.args, code, stderr)
		}
	}
}
