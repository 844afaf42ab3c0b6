// Package c_test builds the C client with what is installed here and runs its tests, so
// that `go test ./...` covers it. It is not beside walsidecar.c, as the go command takes
// a directory with C and Go in it for cgo.
package c_test

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long one command may take.
const patience = 4 * time.Minute

// run runs a command in clients/c and returns what it printed.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = ".."
	// The tests start sidecars: they end with the group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALSIDECAR_") || strings.HasPrefix(variable, "WALSIDECAR_SEED=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// need skips the test where a tool is not installed.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: %s is not installed here", tool)
		}
	}
}

// compiler is the C compiler of the tests that need only one.
func compiler(t *testing.T) string {
	t.Helper()
	need(t, "make")
	for _, cc := range []string{"cc", "gcc", "clang"} {
		if _, err := exec.LookPath(cc); err == nil {
			return cc
		}
	}
	t.Skip("SKIPPED: no C compiler is installed here")
	return ""
}

// built makes targets of the Makefile in a directory of the test and returns it.
func built(t *testing.T, cc string, targets []string, variables ...string) string {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{"CC=" + cc, "BUILD=" + dir}, variables...)
	run(t, nil, "make", append(args, targets...)...)
	return dir
}

// The directory of this run, with what several tests use.
var (
	common         string
	buildOnce      sync.Once
	sidecarOnce    sync.Once
	commonCompiler string
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "walsidecar-c-suite-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		common = dir
		return m.Run()
	}())
}

// everything builds all targets once and returns where they are.
func everything(t *testing.T) string {
	t.Helper()
	cc := compiler(t)
	dir := filepath.Join(common, "build")
	buildOnce.Do(func() {
		run(t, nil, "make", "CC="+cc, "BUILD="+dir, "CFLAGS=-O1 -g", "all", "examples", "tests", "sanitized")
		commonCompiler = cc
	})
	if commonCompiler == "" {
		t.Fatal("the build failed in the first test that needed it")
	}
	return dir
}

// sidecar builds the sidecar once.
func sidecar(t *testing.T) string {
	t.Helper()
	program := filepath.Join(common, "walsidecar")
	sidecarOnce.Do(func() {
		run(t, []string{"CGO_ENABLED=0"}, "go", "build", "-o", program, "../../cmd/walsidecar")
	})
	return program
}

func TestBuildsWithEveryCompiler(t *testing.T) {
	for _, cc := range []string{"gcc", "clang"} {
		t.Run(cc, func(t *testing.T) {
			need(t, "make", cc)
			built(t, cc, []string{"all", "bench", "examples", "tests"}, "CFLAGS=-O2")
			built(t, cc, []string{"all"}, "CFLAGS=-O0 -Wshadow -Wstrict-prototypes -Wmissing-prototypes")
		})
	}
}

// The caller's CFLAGS add to the required ones.
func TestCallersFlagsAdd(t *testing.T) {
	cc := compiler(t)
	out := run(t, nil, "make", "-n", "CC="+cc, "BUILD="+t.TempDir(), "CFLAGS=-DCALLERS=1")
	for _, flag := range []string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fPIC", "-DCALLERS=1"} {
		if !strings.Contains(out, flag+" ") {
			t.Errorf("%s is not given to the compiler:\n%s", flag, out)
		}
	}
}

// The shared object has its soname and shows the functions of the header, nothing else.
func TestSharedObject(t *testing.T) {
	dir := everything(t)
	f, err := elf.Open(filepath.Join(dir, "libwalsidecar.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{"libwalsidecar.so.0"}) {
		t.Errorf("soname %v, %v", names, err)
	}
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) != 1 || !strings.HasPrefix(libraries[0], "libc.") {
		t.Errorf("needs %v, %v; it must need libc alone", libraries, err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile("../walsidecar.h")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		shown++
		if !bytes.Contains(header, []byte(s.Name+"(")) {
			t.Errorf("%s is visible and not in the header", s.Name)
		}
	}
	if want := bytes.Count(header, []byte("\nWAL_API ")); shown != want {
		t.Errorf("%d functions are visible, the header has %d", shown, want)
	}
}

// A program of C or C++ finds an installed library through pkg-config.
func TestInstalled(t *testing.T) {
	cc := compiler(t)
	root := t.TempDir()
	run(t, nil, "make", "CC="+cc, "BUILD="+t.TempDir(), "DESTDIR="+root, "PREFIX=/opt/wal", "install")
	for _, file := range []string{"include/walsidecar.h", "lib/libwalsidecar.a", "lib/libwalsidecar.so", "lib/libwalsidecar.so.0", "lib/pkgconfig/walsidecar.pc"} {
		if _, err := os.Stat(filepath.Join(root, "opt/wal", file)); err != nil {
			t.Error(err)
		}
	}
	need(t, "pkg-config")
	env := []string{"PKG_CONFIG_SYSROOT_DIR=" + root, "PKG_CONFIG_LIBDIR=" + filepath.Join(root, "opt/wal/lib/pkgconfig")}
	flags := strings.Fields(run(t, env, "pkg-config", "--cflags", "--libs", "walsidecar"))
	source := filepath.Join(t.TempDir(), "program")
	text := `#include <walsidecar.h>
int main(void) { wal *w; wal_opts o = {WAL_ZERO}; o.size = sizeof o; return wal_open(&w, "/nonexistent", &o) == -WAL_DISCONNECTED ? 0 : 1; }
`
	for _, language := range []struct{ compiler, suffix, zero, standard string }{{cc, ".c", "0", "-std=c11"}, {"c++", ".cc", "", "-std=c++11"}} {
		if _, err := exec.LookPath(language.compiler); err != nil {
			fmt.Printf("SKIPPED: %s is not installed here\n", language.compiler)
			continue
		}
		if err := os.WriteFile(source+language.suffix, []byte(strings.Replace(text, "WAL_ZERO", language.zero, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		args := append([]string{language.standard, "-Wall", "-Wextra", "-Werror", "-pedantic", source + language.suffix, "-o", source}, flags...)
		run(t, nil, language.compiler, args...)
		run(t, []string{"LD_LIBRARY_PATH=" + filepath.Join(root, "opt/wal/lib")}, source)
	}
}

// Golden vectors, hostile sidecars and a fuzz loop, under the sanitizers.
func TestMessagesSanitized(t *testing.T) {
	dir := everything(t)
	t.Log(run(t, nil, filepath.Join(dir, "san_test_wire"), "../../wire/testdata"))
	seconds := "5"
	if testing.Short() {
		seconds = "1"
	}
	t.Log(run(t, nil, filepath.Join(dir, "san_test_hostile"), seconds))
}

// P2: the suite against real sidecars, that are killed and restarted too, over both doors;
// every record is there once. Under the sanitizers, and under valgrind where it is
// installed.
func TestP2_SuiteAgainstRealSidecars(t *testing.T) {
	dir := everything(t)
	program := sidecar(t)
	for _, door := range []string{"socket", "shm"} {
		t.Run(door+"/Plain", func(t *testing.T) {
			t.Log(run(t, nil, filepath.Join(dir, "test_sidecar"), program, door))
		})
		t.Run(door+"/Sanitized", func(t *testing.T) {
			t.Log(run(t, nil, filepath.Join(dir, "san_test_sidecar"), program, door))
		})
		t.Run(door+"/Valgrind", func(t *testing.T) {
			need(t, "valgrind")
			if testing.Short() {
				t.Skip("SKIPPED: valgrind takes long")
			}
			t.Log(run(t, nil, "valgrind", "-q", "--leak-check=full", "--error-exitcode=9", filepath.Join(dir, "test_sidecar"), program,
				door, "append_read_replay", "batches_and_conditions", "tickets", "batches_over_crashes"))
		})
	}
}

// The examples, and that of another language over the ABI.
func TestExamples(t *testing.T) {
	dir := everything(t)
	program := sidecar(t)
	home := t.TempDir()
	socket := filepath.Join(home, "s")
	env := []string{"WALSIDECAR_SOCKET=" + socket, "LD_LIBRARY_PATH=" + dir}
	serve := exec.Command(program, "serve")
	serve.Env = append(os.Environ(), "WALSIDECAR_WAL="+filepath.Join(home, "wal"), "WALSIDECAR_WAL_SIZE=128MiB",
		"WALSIDECAR_SOCKET="+socket, "WALSIDECAR_STORE=none", "WALSIDECAR_ADMIN=off")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	}()
	run(t, env, program, "wait-ready", "--timeout", "30s")
	if out := run(t, env, filepath.Join(dir, "example_append"), "greetings", "hello"); !strings.HasPrefix(out, "offset 0, position ") {
		t.Errorf("append: %q", out)
	}
	pipe := "seq 1 20000 | " + filepath.Join(dir, "example_pipeline") + " numbers"
	if out := run(t, env, "sh", "-c", pipe); out != "20000 durable, 0 failed\n" {
		t.Errorf("pipeline: %q", out)
	}
	if out := run(t, env, program, "read", "numbers", "--last", "1"); out != "20000\n" {
		t.Errorf("the last number: %q", out)
	}
	follow := "timeout 2 " + filepath.Join(dir, "example_follow") + " greetings || true"
	if out := run(t, env, "sh", "-c", follow); out != "0 hello\n" {
		t.Errorf("follow: %q", out)
	}
	t.Run("Python", func(t *testing.T) {
		need(t, "python3")
		if out := run(t, env, "python3", "examples/append.py"); out != "offset 1\n" {
			t.Errorf("python: %q", out)
		}
	})
}
