package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// memory is what the kernel says a process takes, in bytes.
type memory struct{ resident, peak, shared int }

func (p *process) memory() (m memory) {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, line := range lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		if err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			m.resident = kib << 10
		case "VmHWM":
			m.peak = kib << 10
		case "RssShmem":
			m.shared = kib << 10
		}
	}
	return m
}

// puts counts the puts of data objects and of the manifest so far.
func (h *s3Host) puts() (objects, manifests int) {
	for _, r := range h.proxy.Requests() {
		switch {
		case r.Method != "PUT":
		case strings.Contains(r.Path, "/o/"):
			objects++
		case strings.HasSuffix(r.Path, "/manifest"):
			manifests++
		}
	}
	return objects, manifests
}

// However many streams there are, an object takes all of them: at most one put per linger,
// and the manifest.
func TestManyStreamsShareTheirObjects(t *testing.T) {
	streams := number(t, "WALSIDECAR_TEST_STREAMS", 20_000)
	h := newS3Host(t, "LINGER=1s", "WAL_SIZE=256MiB")
	p := h.serve()
	c := dial(t, h.host)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	name := func(i int) string { return fmt.Sprintf("stream-%05d", i) }
	round := func(n int) {
		t.Helper()
		tickets := make([]walsidecar.Ticket, 0, 1000)
		for i := range streams {
			ticket, err := c.Submit(ctx, name(i), fmt.Appendf(nil, "record %d of %d", n, i))
			if err != nil {
				t.Fatal(err)
			}
			if tickets = append(tickets, ticket); len(tickets) == cap(tickets) || i == streams-1 {
				for _, ticket := range tickets {
					if r, err := ticket.Wait(ctx); err != nil || r.Offset != uint64(n) {
						t.Fatalf("offset %d, %v", r.Offset, err)
					}
				}
				tickets = tickets[:0]
			}
		}
	}
	var creating sync.WaitGroup
	for first := range 64 { // a stream is made by a request that is answered once it is durable
		creating.Go(func() {
			for i := first; i < streams; i += 64 {
				if _, err := c.CreateStream(ctx, name(i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	creating.Wait()
	round(0)
	h.must("flush")
	before, manifests := h.puts()
	began := time.Now()
	for n := 1; n < 4; n++ {
		round(n)
	}
	h.must("flush")
	lingers := int(time.Since(began).Seconds()) + 1
	objects, after := h.puts()
	// A flush does not wait for the linger, and a slow machine has time for compactions.
	if objects-before > lingers+1+lingers/8 || after-manifests > lingers+2+lingers/8 {
		t.Errorf("%d objects and %d manifests were put in %d lingers", objects-before, after-manifests, lingers)
	}
	m := p.memory()
	t.Logf("%d streams: %d objects and %d manifests in %d lingers; resident %d MiB, at most %d MiB, shared %d MiB; manifest of %d bytes",
		streams, objects-before, after-manifests, lingers, m.resident>>20, m.peak>>20, m.shared>>20, h.status().Uploads.Manifest)
	p.kill()
	p = h.serve()
	for i := 0; i < streams; i += streams / 20 {
		want := fmt.Sprintf("record 0 of %[1]d\nrecord 1 of %[1]d\nrecord 2 of %[1]d\nrecord 3 of %[1]d\n", i)
		if got := h.must("read", name(i)); got != want {
			t.Errorf("the sidecar says %q", got)
		}
		if got := h.must(h.direct("read", name(i))...); got != want {
			t.Errorf("the store says %q", got)
		}
	}
	h.must(h.direct("verify")...)
	t.Logf("after a restart: at most %d MiB", p.memory().peak>>20)
}

// The budget holds under load, uploads, scans of the past and followers at once, measured
// from outside.
func TestTheMemoryBudgetHolds(t *testing.T) {
	seconds := number(t, "WALSIDECAR_TEST_SECONDS", 3)
	for _, budget := range []int{256, 512} {
		t.Run(fmt.Sprintf("%dMiB", budget), func(t *testing.T) {
			h := newS3Host(t, "LINGER=1s", "WAL_SIZE=128MiB", fmt.Sprintf("MEMORY=%dMiB", budget))
			p := h.serve()
			l := startLoad(t, h.host, "small", 1, 4)
			ctx, cancel := context.WithCancel(t.Context())
			var busy sync.WaitGroup
			var scanned, followed atomic.Int64
			large := dial(t, h.host)
			if _, err := large.CreateStream(ctx, "large"); err != nil {
				t.Fatal(err)
			}
			busy.Go(func() {
				f := &filler{}
				for n := 0; ctx.Err() == nil; n++ {
					if _, err := large.Append(ctx, "large", f.payload(n)); err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
			for range 3 {
				c := dial(t, h.host)
				busy.Go(func() { // from the beginning, again and again
					for ctx.Err() == nil {
						for _, err := range c.Read(ctx, "large") {
							if err != nil && ctx.Err() == nil {
								t.Error(err)
								return
							}
							scanned.Add(1)
						}
					}
				})
			}
			for i := range 4 {
				c := dial(t, h.host)
				busy.Go(func() {
					for _, err := range c.Follow(ctx, fmt.Sprintf("small-%d", i)) {
						if err != nil {
							if ctx.Err() == nil {
								t.Error(err)
							}
							return
						}
						followed.Add(1)
					}
				})
			}
			for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				l.awaitSome()
			}
			cancel()
			busy.Wait()
			l.end()
			m, s := p.memory(), h.status()
			if m.peak > (budget+budget/8)<<20 { // the kernel counts by batches, and the program's own pages too
				t.Errorf("the process took %d MiB, with a budget of %d MiB", m.peak>>20, budget)
			}
			t.Logf("at most %d MiB of %d MiB, shared memory %d MiB at the end; %d records scanned, %d followed, %d MB uploaded, cold hits %d, misses %d",
				m.peak>>20, budget, m.shared>>20, scanned.Load(), followed.Load(), s.Uploads.Uploaded/1_000_000, s.Uploads.ColdHits, s.Uploads.ColdMisses)
		})
	}
}
