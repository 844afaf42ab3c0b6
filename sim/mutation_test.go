package sim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mutantHistories is how many histories a planted bug may survive; a variant has to
// survive variantHistories.
const (
	mutantHistories  = 20_000
	variantHistories = 3_000
)

// TestPlantedBugsAreFound plants the bugs of testdata/mutations one at a time into a
// copy of the module and has the simulator look for them there: each has to break a
// promise. It takes minutes, and runs where WALSIDECAR_MUTATIONS is set
// (`make mutations`); its value may name one of the files.
func TestPlantedBugsAreFound(t *testing.T) {
	only := os.Getenv("WALSIDECAR_MUTATIONS")
	if only == "" {
		t.Skip("takes minutes: `make mutations`")
	}
	files, err := filepath.Glob("testdata/mutations/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d mutations: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if only != "1" && !strings.HasPrefix(name, only) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			root := copyModule(t)
			about, kind := plant(t, root, file)
			promise, histories, seconds := hunt(t, root, kind)
			t.Logf("%s\n%s, after %d histories, %.1fs", about, promise, histories, seconds)
		})
	}
}

// TestVariantsKeepThePromises plays histories on copies of the module in which a number
// is so small that what is rare happens all the time.
func TestVariantsKeepThePromises(t *testing.T) {
	if os.Getenv("WALSIDECAR_MUTATIONS") == "" {
		t.Skip("takes minutes: `make mutations`")
	}
	files, _ := filepath.Glob("testdata/variants/*.txt")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			root := copyModule(t)
			about, kind := plant(t, root, file)
			t.Log(about)
			if out, err := histories(t, root, kind, variantHistories); err != nil {
				t.Errorf("%v\n%s", err, endOf(out))
			}
		})
	}
}

// TestMutationsApply: a change of the code must not leave a planted bug behind
// unnoticed.
func TestMutationsApply(t *testing.T) {
	files, _ := filepath.Glob("testdata/[mv]*/*.txt")
	for _, file := range files {
		for _, edit := range readMutation(t, file).edits {
			text, err := os.ReadFile(filepath.Join("..", edit.path))
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte(edit.old)); n != 1 {
				t.Errorf("%s: %s holds this %d times, want once:\n%s", file, edit.path, n, edit.old)
			}
		}
	}
}

// mutation is a planted bug: what it is, and texts to be replaced, each of which a
// file holds exactly once.
type mutation struct {
	about string
	kind  string // of the histories that find it soonest; "": any
	edits []edit
}

type edit struct{ path, old, new string }

// readMutation reads a mutation: a line about it and, perhaps, "kind K", then "=== path" and, any number of
// times, "---", the old text, "+++", the new one.
func readMutation(t *testing.T, file string) (m mutation) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path, to := "", &m.about
	for line := range strings.Lines(string(text)) {
		switch strings.TrimSpace(line) {
		case "---":
			m.edits = append(m.edits, edit{path: path})
			to = &m.edits[len(m.edits)-1].old
			continue
		case "+++":
			to = &m.edits[len(m.edits)-1].new
			continue
		}
		if after, is := strings.CutPrefix(line, "kind "); is && path == "" {
			m.kind = strings.TrimSpace(after)
			continue
		}
		if after, is := strings.CutPrefix(line, "=== "); is {
			path = strings.TrimSpace(after)
			continue
		}
		*to += line
	}
	return m
}

// plant makes the edits in the module at root.
func plant(t *testing.T, root, file string) (about, kind string) {
	t.Helper()
	m := readMutation(t, file)
	for _, e := range m.edits {
		path := filepath.Join(root, e.path)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(text, []byte(e.old)) != 1 {
			t.Fatalf("%s does not hold exactly once:\n%s", e.path, e.old)
		}
		text = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return strings.TrimSpace(m.about), m.kind
}

// copyModule copies what the simulator is built of, without tests but its own.
func copyModule(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		copyFile(t, filepath.Join("..", name), filepath.Join(root, name))
	}
	for _, room := range []string{"ringwal", "ringwal/device", "ringwal/device/simdev", "stream", "readcache", "reader",
		"upload", "upload/store", "upload/store/simstore", "fence", "fence/simfence", "sim"} {
		files, err := filepath.Glob(filepath.Join("..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("room %s: %v", room, err)
		}
		for _, file := range files {
			base := filepath.Base(file)
			if strings.HasSuffix(base, "_test.go") && (room != "sim" || base != "sim_test.go") {
				continue
			}
			copyFile(t, file, filepath.Join(root, room, base))
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "sim/testdata"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "sim/testdata/seeds.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var foundLine = regexp.MustCompile(`(?m)^\s+sim_test\.go:\d+: ((?:P\d+|rule|panic): .*)\n\s*after (\d+) histories`)

// hunt plays histories on the module at root until one fails.
func hunt(t *testing.T, root, kind string) (promise string, played int, seconds float64) {
	t.Helper()
	began := time.Now()
	out, err := histories(t, root, kind, mutantHistories)
	found := foundLine.FindSubmatch(out)
	if err == nil || found == nil {
		t.Fatalf("the bug survived, or does not build: %v\n%s", err, endOf(out))
	}
	played, _ = strconv.Atoi(string(found[2]))
	return string(found[1]), played, time.Since(began).Seconds()
}

// histories plays n of them on the module at root.
func histories(t *testing.T, root, kind string, n int) (out []byte, err error) {
	t.Helper()
	cmd := exec.Command("go", "test", "-count=1", "-timeout=20m", "-run=^TestHistories$", "./sim", "-histories", strconv.Itoa(n), "-kind", kind)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "WALSIDECAR_SIM_OUTCOMES=1", "WALSIDECAR_SEED=", "GOFLAGS=-mod=mod")
	out, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out, err
}

func endOf(out []byte) string {
	const most = 4000
	if len(out) > most {
		return fmt.Sprintf("…%s", out[len(out)-most:])
	}
	return string(out)
}
