package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cespare/xxhash/v2"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// processKills is how often the sidecar is killed under load.
const processKills = 8

// TestP11_AProcessThatIsKilledIsLinearizable: the same check as over the simulated disk,
// with the real process on a file, real clients at once, and kill -9.
func TestP11_AProcessThatIsKilledIsLinearizable(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the sidecar: seconds")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "walsidecar")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/walsidecar").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := &sidecarProcess{t: t, program: program, dir: dir}
	p.start()
	defer func() { p.kill() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := &processRecorder{began: time.Now()}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range recordedClients {
		c := p.dial(ctx)
		clients.Go(func() {
			defer c.Close()
			r.run(ctx, c, i, stop)
		})
	}
	for range processKills {
		time.Sleep(50*time.Millisecond + rand.N(150*time.Millisecond))
		p.kill()
		p.start()
		_ = p.dial(ctx).Close() // it is up again
	}
	time.Sleep(100 * time.Millisecond)
	close(stop)
	clients.Wait()
	if r.failed != nil {
		t.Fatal(r.failed)
	}
	if got := porcupine.CheckOperationsTimeout(streamModel, r.history, time.Minute); got != porcupine.Ok {
		t.Fatalf("the history is not linearizable: %s", got)
	}
	t.Logf("%d operations of %d clients, %d kills", len(r.history), recordedClients, processKills)
	if len(r.history) < 100 {
		t.Error("too little happened")
	}
}

// sidecarProcess is a sidecar on a file of its own.
type sidecarProcess struct {
	t            *testing.T
	program, dir string
	cmd          *exec.Cmd
	logs         strings.Builder
}

func (p *sidecarProcess) start() {
	p.cmd = exec.Command(p.program, "serve")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WALSIDECAR_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "WALSIDECAR_WAL="+filepath.Join(p.dir, "wal"), "WALSIDECAR_WAL_SIZE=32MiB", "WALSIDECAR_SOCKET="+filepath.Join(p.dir, "s"),
		"WALSIDECAR_STORE=none", "WALSIDECAR_ADMIN=off")
	p.cmd.Stderr = &p.logs
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *sidecarProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *sidecarProcess) dial(ctx context.Context) *walsidecar.Client {
	p.t.Helper()
	for {
		c, err := walsidecar.Dial(ctx, filepath.Join(p.dir, "s"))
		if err == nil {
			return c
		}
		if ctx.Err() != nil {
			p.t.Fatalf("%v\n%s", err, p.logs.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// processRecorder notes what clients in goroutines asked and heard, by the clock.
type processRecorder struct {
	began   time.Time
	mu      sync.Mutex
	history []porcupine.Operation
	failed  error
}

// run is one client: appends, with and without a condition, and reads of all, one at a
// time.
func (r *processRecorder) run(ctx context.Context, c *walsidecar.Client, client int, stop chan struct{}) {
	rng := rand.New(rand.NewPCG(uint64(client), 7))
	var next [recordedStreams]uint64
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		in := streamOperation{stream: rng.IntN(recordedStreams)}
		call := time.Since(r.began)
		var out streamAnswer
		var err error
		if rng.IntN(4) == 0 {
			in.kind = opRead
			out, err = readStream(ctx, c, in.stream)
		} else {
			data := fmt.Appendf(nil, "client %d operation %d", client, n)
			in.record, in.hasExpect, in.expect = xxhash.Sum64(data), rng.IntN(2) == 0, next[in.stream]
			out, err = appendStream(ctx, c, in, data)
		}
		if err != nil {
			r.fail(fmt.Errorf("client %d, %+v: %w", client, in, err))
			return
		}
		if next[in.stream] = out.next; out.appended {
			next[in.stream]++
		}
		r.note(client, in, out, call)
		time.Sleep(rand.N(2 * time.Millisecond))
	}
}

func (r *processRecorder) note(client int, in streamOperation, out streamAnswer, call time.Duration) {
	o := porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Output: out, Return: int64(time.Since(r.began))}
	if !out.known {
		o.Return = math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, o)
}

func (r *processRecorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
}

func streamName(stream int) string { return fmt.Sprintf("recorded%d", stream) }

func appendStream(ctx context.Context, c *walsidecar.Client, in streamOperation, data []byte) (streamAnswer, error) {
	var options []walsidecar.AppendOption
	if in.hasExpect {
		options = append(options, walsidecar.ExpectOffset(in.expect))
	}
	result, err := c.Append(ctx, streamName(in.stream), data, options...)
	var e *walsidecar.Error
	switch {
	case err == nil:
		return streamAnswer{known: true, appended: true, next: result.Offset}, nil
	case errors.As(err, &e) && e.OutcomeUnknown:
		return streamAnswer{}, nil
	case errors.As(err, &e) && errors.Is(err, walsidecar.ErrPreconditionFailed) && e.Actual != nil:
		return streamAnswer{known: true, mismatch: true, next: *e.Actual}, nil
	}
	return streamAnswer{}, err
}

func readStream(ctx context.Context, c *walsidecar.Client, stream int) (streamAnswer, error) {
	var s streamState
	for rec, err := range c.Read(ctx, streamName(stream)) {
		if errors.Is(err, walsidecar.ErrNotFound) {
			break // nobody has appended yet
		}
		if err != nil {
			return streamAnswer{}, err
		}
		s = s.append(xxhash.Sum64(rec.Data))
	}
	return streamAnswer{known: true, next: s.next, content: s.content}, nil
}
