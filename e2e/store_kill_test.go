package e2e

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store/faultproxy"
)

// storeKills is how often a sidecar with a store is killed in a row, unless
// WALSIDECAR_TEST_KILLS says otherwise.
const storeKills = 5

func howManyKills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WALSIDECAR_TEST_KILLS")
	if text == "" {
		return storeKills
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("WALSIDECAR_TEST_KILLS: %v", err)
	}
	return n
}

// storm is what the network and the server do while sidecars are killed.
var storm = map[faultproxy.Fault]float64{
	faultproxy.Slow: 0.10, faultproxy.SlowDown: 0.04, faultproxy.InternalError: 0.03, faultproxy.InternalErrorAfter: 0.01,
	faultproxy.BadGateway: 0.01, faultproxy.Conflict: 0.02, faultproxy.Reset: 0.01, faultproxy.DropResponse: 0.02,
	faultproxy.Late: 0.02, faultproxy.Truncate: 0.01,
}

// Writers append while the store loses answers, refuses, delays and carries out late, and
// while the sidecar is killed at any step of upload, commit, trim and compaction. The log is
// small: most of what is read back has left it.
func TestP2_KillNineUnderLoadWithAStore(t *testing.T) {
	h := newS3Host(t, "WAL_SIZE=32MiB")
	random := seeded(t)
	p := h.serve()
	client := dial(t, h.host)
	var stop atomic.Bool
	var wg sync.WaitGroup
	writers := make([]*writer, 6)
	for i := range writers {
		writers[i] = &writer{stream: fmt.Sprintf("load-%d", i), salt: random.Uint64()}
		wg.Go(func() { writers[i].run(client, &stop) })
	}
	stormy := func() { h.proxy.Randomly(random.Uint64(), 300*time.Millisecond, storm) }
	n := howManyKills(t)
	stormy()
	compactions := uint64(0)
	for i := range n {
		switch i % 4 {
		case 3: // long enough for a compaction
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
				if s := h.run("status", "--json"); s.code == 0 {
					if c := decode[logStatus](t, s.stdout)[0].Uploads.Compactions; c > 0 {
						compactions += c
						break
					}
				}
			}
		default:
			time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond)
		}
		p.kill()
		if i%2 == 0 { // a start that is killed too
			q := h.start(nil, "serve")
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			q.kill()
		}
		p = h.serve()
	}
	stop.Store(true)
	awaitAll(t, &wg, p)
	h.proxy.Heal()
	h.proxy.WaitLate()
	total := 0
	check := func(read func(args ...string) []string) {
		t.Helper()
		total = 0
		for _, w := range writers {
			if w.err != nil {
				t.Fatal(w.err)
			}
			total += w.checkLines(t, lines(h.must(read("read", w.stream)...)))
		}
	}
	bySidecar := func(args ...string) []string { return args }
	check(bySidecar)
	checkReplay(t, h.host, writers)
	h.must("flush")
	check(func(args ...string) []string { return h.direct(args...) })
	h.must(h.direct("verify")...)
	p.kill()
	p = h.serve()
	check(bySidecar)
	h.must("flush")
	status := h.status()
	p.kill()
	check(func(args ...string) []string { return h.direct(args...) })
	h.checkStore()
	if status.Trim == 0 && n >= storeKills {
		t.Errorf("nothing has left the log: %+v", status)
	}
	t.Logf("%d records acked over %d kills, %d compactions seen, %d requests, log from %d to %d", total, n, compactions, h.proxy.Count("", ""), status.Trim, status.Durable)
}
