package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

// An object is a file with its bytes and nothing else, where its key says.
func TestDirectoryObjectsArePlainFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, store.Options{})
	if _, err := s.PutIfAbsent(t.Context(), "0f/node/o/1", []byte("bytes")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "0f", "node", "o", "1")); err != nil || string(got) != "bytes" {
		t.Errorf("%q, %v", got, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, ".tmp")); err != nil || len(left) != 0 {
		t.Errorf(".tmp has %v, %v", left, err)
	}
}

// What a crash left half written is nobody's object, and goes with the first put of the next start.
func TestDirectoryLeftoversOfACrash(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, store.Options{})
	if _, err := s.PutIfAbsent(t.Context(), "o", []byte("x")); err != nil {
		t.Fatal(err)
	}
	old, young := filepath.Join(dir, ".tmp", "old"), filepath.Join(dir, ".tmp", "young")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, store.Options{})
	if found, err := s.List(t.Context(), "", "", 10); err != nil || len(found) != 1 || found[0].Key != "o" {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := os.Stat(old); err != nil {
		t.Errorf("who only reads removed something: %v", err)
	}
	if _, err := s.PutIfAbsent(t.Context(), "p", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an old leftover is still there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what another process may be writing was removed: %v", err)
	}
}

func TestDirectoryThatIsNotThere(t *testing.T) {
	parent := t.TempDir()
	missing := filepath.Join(parent, "objects")
	if _, err := store.Open(t.Context(), missing, store.Options{}); !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), missing) {
		t.Errorf("open of a missing directory: %v", err)
	}
	if _, err := store.Open(t.Context(), filepath.Join(missing, "deeper"), store.Options{CreateDirectory: true}); !errors.Is(err, store.ErrDenied) {
		t.Errorf("open with a missing parent: %v", err)
	}
	file := filepath.Join(parent, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), file, store.Options{CreateDirectory: true}); !errors.Is(err, store.ErrDenied) {
		t.Errorf("open of a file: %v", err)
	}
	s := open(t, missing, store.Options{CreateDirectory: true})
	if err := store.Probe(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	// Gone while in use, as a mount may be: refused by name, and never made anew.
	if err := os.RemoveAll(missing); err != nil {
		t.Fatal(err)
	}
	for op, err := range everything(t.Context(), s) {
		if op == "delete" {
			continue // what is gone is deleted
		}
		if !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), "the directory is missing") {
			t.Errorf("%s: %v", op, err)
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the directory was made anew")
	}
}

// A replaced object whose generations were not copied along is not taken for an old one.
func TestDirectoryWithoutItsGenerations(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, store.Options{})
	v, err := s.PutIfAbsent(t.Context(), "manifest", []byte("0"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfMatch(t.Context(), "manifest", []byte("1"), v); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, ".g-manifest")); err != nil {
		t.Fatal(err)
	}
	if body, _, err := s.Get(t.Context(), "manifest"); !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), ".g-") {
		t.Errorf("%q, %v", body, err)
	}
}

// A writer that sleeps between its look and its link finds a number that came and went
// meanwhile; it must not believe that it replaced anything.
func TestDirectoryWriterThatSleptIsNotBelieved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, store.Options{})
	v, err := s.PutIfAbsent(t.Context(), "manifest", []byte("0"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 100; i++ {
		if v, err = s.PutIfMatch(t.Context(), "manifest", fmt.Append(nil, i), v); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []uint64{1, 50, 68, 69, 100} {
		err := store.LinkGeneration(s, "manifest", []byte("zombie"), n)
		gone := n <= 68 // the 32 newest are kept
		if gone && !errors.Is(err, store.ErrUnknownOutcome) || !gone && !errors.Is(err, os.ErrExist) {
			t.Errorf("generation %d: %v", n, err)
		}
	}
	if body, got, err := s.Get(t.Context(), "manifest"); err != nil || string(body) != "100" || got != v {
		t.Errorf("%q in %s, %v; must be 100 in %s", body, got, err, v)
	}
	if _, err := s.PutIfMatch(t.Context(), "manifest", []byte("101"), v); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, ".g-manifest")); err != nil || len(left) > 33 {
		t.Errorf("%d generations are kept, %v", len(left), err)
	}
}

const countingProcesses, countingTimes = 4, 25

// Processes that count up one object by compare-and-swap, some of them killed in the middle:
// no step is lost and none is made twice.
func TestDirectoryHoldsBetweenProcesses(t *testing.T) {
	if dir := os.Getenv("WALSIDECAR_TEST_COUNT_IN"); dir != "" {
		countUp(t, dir)
		return
	}
	dir := t.TempDir()
	s := open(t, dir, store.Options{})
	if _, err := s.PutIfAbsent(t.Context(), "count", []byte("0")); err != nil {
		t.Fatal(err)
	}
	type result struct{ sure, most int }
	results := make(chan result)
	for i := range countingProcesses {
		command := exec.Command(os.Args[0], "-test.run=^TestDirectoryHoldsBetweenProcesses$", "-test.v")
		command.Env = append(os.Environ(), "WALSIDECAR_TEST_COUNT_IN="+dir)
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			var r result
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				switch lines.Text() {
				case "try":
					r.most++
				case "done":
					r.sure++
					if i%2 == 0 && r.sure == 5+i {
						_ = command.Process.Kill()
					}
				case "lost the race":
					r.most--
				}
			}
			_ = command.Wait()
			results <- r
		}()
	}
	var sum result
	for range countingProcesses {
		r := <-results
		sum.sure += r.sure
		sum.most += r.most
	}
	body, _, err := s.Get(t.Context(), "count")
	if err != nil {
		t.Fatal(err)
	}
	count, err := strconv.Atoi(string(body))
	if err != nil || count < sum.sure || count > sum.most {
		t.Errorf("the count is %q; %d steps were confirmed, %d may have been made", body, sum.sure, sum.most)
	}
	if sum.sure < countingTimes {
		t.Errorf("only %d steps were made", sum.sure)
	}
	if err := store.Probe(t.Context(), s); err != nil {
		t.Error(err)
	}
}

func countUp(t *testing.T, dir string) {
	s := open(t, dir, store.Options{})
	for range countingTimes {
		for {
			body, v, err := s.Get(context.Background(), "count")
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(string(body))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("try")
			_, err = s.PutIfMatch(context.Background(), "count", fmt.Append(nil, n+1), v)
			if err == nil {
				fmt.Println("done")
				break
			}
			if !errors.Is(err, store.ErrChanged) {
				t.Fatal(err)
			}
			fmt.Println("lost the race")
		}
	}
}

// Where a filesystem was unmounted below a running sidecar an empty directory appears. What
// would be put there would be gone with the next mount, after a manifest named it.
func TestP5_AnotherDirectoryIsNotTheStore(t *testing.T) {
	root := filepath.Join(t.TempDir(), "mounted")
	s, err := store.Open(t.Context(), root, store.Options{CreateDirectory: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root, root+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfAbsent(t.Context(), "a/b", []byte("x")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a put: %v", err)
	}
	if _, _, err := s.Get(t.Context(), "a/b"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a get: %v", err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("it holds %v (%v)", left, err)
	}
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root+".away", root); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfAbsent(t.Context(), "a/b", []byte("x")); err != nil {
		t.Errorf("mounted again: %v", err)
	}
}
