package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")

// seeded gives a random source whose seed is printed, and can be given again with -seed.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if text := os.Getenv("WALSIDECAR_SEED"); seed == 0 && text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("WALSIDECAR_SEED: %v", err)
		}
		seed = n
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// kills is how often the sidecar is killed in a row.
const kills = 20

func TestP2_KillNineUnderLoadOnAFile(t *testing.T) {
	killUnderLoad(t, newHost(t, "WAL_SIZE=512MiB"))
}

func TestP2_KillNineUnderLoadOnALoopDevice(t *testing.T) {
	dev := loopDevice(t, 512<<20)
	h := newHost(t, "WAL="+dev)
	h.env = without(h.env, "WALSIDECAR_WAL_SIZE")
	h.must("format", dev, "--node", "loop")
	p := h.serve()
	var status struct {
		Device struct{ Engine string }
	}
	if err := json.Unmarshal([]byte(h.must("status", "--json")), &status); err != nil || status.Device.Engine != device.EngineAIO {
		t.Errorf("a device is written by %q (%v): what is tested here is asynchronous I/O", status.Device.Engine, err)
	}
	p.kill()
	killUnderLoad(t, h)
}

// killUnderLoad kills the sidecar again and again while writers append, and checks that
// every acknowledged record is there once, in order, byte for byte.
func killUnderLoad(t *testing.T, h *host) {
	random := seeded(t)
	p := h.serve()
	client := dial(t, h)
	var stop atomic.Bool
	var wg sync.WaitGroup
	writers := make([]*writer, 4)
	for i := range writers {
		writers[i] = &writer{stream: fmt.Sprintf("load-%d", i), salt: random.Uint64()}
		wg.Go(func() { writers[i].run(client, &stop) })
	}
	for range kills {
		time.Sleep(time.Duration(30+random.IntN(220)) * time.Millisecond)
		p.kill()
		p = h.serve()
	}
	stop.Store(true)
	awaitAll(t, &wg, p)
	p.kill()
	h.serve()

	total := 0
	for _, w := range writers {
		if w.err != nil {
			t.Fatal(w.err)
		}
		total += w.check(t, h)
	}
	if total < kills {
		t.Fatalf("only %d records were acknowledged: this was no load", total)
	}
	checkReplay(t, h, writers)
	t.Logf("%d records acknowledged over %d kills", total, kills)
}

// awaitAll waits for the writers. If they hang, it fails the test with the stacks of both
// sides: this is the only place where one waits for the other without a limit of its own.
func awaitAll(t *testing.T, wg *sync.WaitGroup, sidecar *process) {
	t.Helper()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-time.After(patience):
	}
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	_ = sidecar.cmd.Process.Signal(syscall.SIGQUIT)
	<-sidecar.done
	t.Fatalf("the writers hang.\n\nSidecar:\n%s\n\nThis process:\n%s", sidecar.stderr, stacks)
}

// writer appends numbered records to one stream, sixteen in flight, and notes how many were
// acknowledged. As the only writer of its stream it must get the offsets 0, 1, 2, … however
// often the sidecar dies under it.
type writer struct {
	stream string
	salt   uint64
	acked  int
	err    error
}

// payload is the n-th record: its number and up to 600 bytes that depend on it.
func (w *writer) payload(n int) []byte {
	r := rand.New(rand.NewPCG(w.salt, uint64(n)))
	b := fmt.Appendf(nil, "%s %d ", w.stream, n)
	for range r.IntN(48) {
		b = strconv.AppendUint(b, r.Uint64(), 36)
	}
	return b
}

func (w *writer) run(c *walsidecar.Client, stop *atomic.Bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	var flight []walsidecar.Ticket
	settle := func() {
		result, err := flight[0].Wait(ctx)
		flight = flight[1:]
		switch {
		case w.err != nil:
		case err != nil:
			w.err = fmt.Errorf("%s: record %d: %w", w.stream, w.acked, err)
		case result.Offset != uint64(w.acked):
			w.err = fmt.Errorf("%s: record %d got offset %d", w.stream, w.acked, result.Offset)
		default:
			w.acked++
		}
	}
	for n := 0; !stop.Load() && w.err == nil; n++ {
		ticket, err := c.Submit(ctx, w.stream, w.payload(n))
		if err != nil {
			w.err = err
			break
		}
		if flight = append(flight, ticket); len(flight) == 16 {
			settle()
		}
	}
	for len(flight) > 0 {
		settle()
	}
}

// check reads the stream back and returns how many records it holds.
func (w *writer) check(t *testing.T, h *host) int {
	t.Helper()
	return w.checkLines(t, lines(h.must("read", w.stream)))
}

// checkLines checks what was read back and returns how many records it is.
func (w *writer) checkLines(t *testing.T, got []string) int {
	t.Helper()
	if len(got) != w.acked {
		t.Errorf("%s holds %d records, %d were acknowledged and none is in doubt", w.stream, len(got), w.acked)
	}
	for n, line := range got {
		if want := string(w.payload(n)); line != want {
			t.Fatalf("%s: record %d is %.80q, want %.80q", w.stream, n, line, want)
		}
	}
	return len(got)
}

// checkReplay replays the whole log and checks that it holds exactly the writers' records,
// each stream in its order.
func checkReplay(t *testing.T, h *host, writers []*writer) {
	t.Helper()
	next := map[string]int{}
	for _, r := range decode[record](t, h.must("replay")) {
		for _, w := range writers {
			if w.stream != r.Stream {
				continue
			}
			n := next[r.Stream]
			if r.Offset != uint64(n) || r.Payload == nil || *r.Payload != string(w.payload(n)) {
				t.Fatalf("replay: %s: record %d at position %d is not what was appended", r.Stream, n, r.Position)
			}
			next[r.Stream]++
		}
	}
	for _, w := range writers {
		if next[w.stream] != w.acked {
			t.Errorf("replay: %s: %d records, want %d", w.stream, next[w.stream], w.acked)
		}
	}
}

// TestP2_RealTextSurvivesCrashes appends every line of real files, one stream a file, with
// the command line, kills the sidecar in the middle and at the end, and compares hashes.
func TestP2_RealTextSurvivesCrashes(t *testing.T) {
	files := realTexts(t)
	h := newHost(t, "WAL_SIZE=256MiB")
	p := h.serve()
	var appends []*process
	for i, file := range files {
		appends = append(appends, h.appendFile(fmt.Sprintf("text-%d", i), file))
	}
	for range 3 {
		time.Sleep(150 * time.Millisecond)
		p.kill()
		p = h.serve()
	}
	for i, a := range appends {
		if code := a.wait(); code != 0 {
			t.Fatalf("append of %s: exit %d\n%s", files[i], code, a.stderr)
		}
	}
	p.kill()
	h.serve()

	replayed := map[string]*bytes.Buffer{}
	for _, r := range decode[record](t, h.must("replay")) {
		b := replayed[r.Stream]
		if b == nil {
			b = &bytes.Buffer{}
			replayed[r.Stream] = b
		}
		b.Write(r.bytes(t))
		b.WriteByte('\n')
	}
	for i, file := range files {
		stream := fmt.Sprintf("text-%d", i)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(text, []byte("\n")) {
			text = append(text, '\n') // as read and replay show a last line without one
		}
		want := sha256.Sum256(text)
		if got := sha256.Sum256([]byte(h.must("read", stream))); got != want {
			t.Errorf("%s: read gives other bytes than were appended", file)
		}
		if b := replayed[stream]; b == nil || sha256.Sum256(b.Bytes()) != want {
			t.Errorf("%s: replay gives other bytes than were appended", file)
		}
	}
}

// bytes is the payload of a record.
func (r record) bytes(t *testing.T) []byte {
	t.Helper()
	if r.Payload != nil {
		return []byte(*r.Payload)
	}
	if r.Base64 == nil {
		t.Fatalf("a line without a payload: %+v", r)
	}
	b, err := base64.StdEncoding.DecodeString(*r.Base64)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// realTexts are text files that this machine has: sources of the Go toolchain, and what the
// package system keeps.
func realTexts(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	var files []string
	for _, pattern := range []string{
		root + "/src/net/http/*.go", root + "/src/unicode/tables.go", root + "/src/runtime/p*.go", root + "/LICENSE",
		"/var/log/dpkg.log", "/var/lib/dpkg/status",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 10 {
		t.Fatalf("only %d real files found: %v", len(files), files)
	}
	if len(files) > 24 {
		files = append(files[:22], files[len(files)-2:]...)
	}
	t.Logf("%d files", len(files))
	return files
}

// appendFile starts `walsidecar append` with the file as standard input.
func (h *host) appendFile(stream, file string) *process {
	h.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	return h.startWith(f, nil, "append", stream, "--timeout", "60s")
}

// dial connects this test to the host's sidecar.
func dial(t *testing.T, h *host) *walsidecar.Client {
	t.Helper()
	c, err := walsidecar.Dial(t.Context(), h.path("s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, walsidecar.ErrClosed) {
			t.Error(err)
		}
	})
	return c
}

// without returns the environment without a variable.
func without(env []string, name string) []string {
	var rest []string
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			rest = append(rest, v)
		}
	}
	return rest
}
