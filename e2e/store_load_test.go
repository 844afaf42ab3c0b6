package e2e

import (
	"context"
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// quantile of sorted durations.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

// openLoop appends records of 16 KiB at a rate in bytes per second (0: as fast as it goes)
// and tells the latencies of the appends, from when each was due, and the rate that came
// about.
func openLoop(t *testing.T, c *walsidecar.Client, rate int, d time.Duration) (latencies []time.Duration, perSecond float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d+patience)
	defer cancel()
	const size, writers = 16 << 10, 8
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for w := range writers {
		all.Go(func() {
			b := (&filler{}).payload(w)[:size]
			var own []time.Duration
			for n := 0; time.Since(began) < d; n++ {
				due := time.Now()
				if rate > 0 {
					due = began.Add(time.Duration(n*writers+w) * time.Second * size / time.Duration(rate))
					time.Sleep(time.Until(due))
				}
				binary.LittleEndian.PutUint64(b, uint64(time.Now().UnixNano()))
				if _, err := c.Append(ctx, "load", b); err != nil {
					t.Error(err)
					return
				}
				own = append(own, time.Since(due))
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
		})
	}
	all.Wait()
	slices.Sort(latencies)
	return latencies, float64(len(latencies)*size) / time.Since(began).Seconds()
}

// TestMeasureUploads measures, and asserts nothing: the lag of uploads under a steady load of
// WALSIDECAR_TEST_RATE bytes per second, what a store costs appends, with and without in
// turns, and how soon a follower has what was acked. It runs with WALSIDECAR_TEST_MEASURE.
func TestMeasureUploads(t *testing.T) {
	if os.Getenv("WALSIDECAR_TEST_MEASURE") == "" {
		t.Skip("it measures: set WALSIDECAR_TEST_MEASURE")
	}
	rate := number(t, "WALSIDECAR_TEST_RATE", 40_000_000)
	stored, alone := newS3Host(t, "LINGER=1s", "WAL_SIZE=512MiB"), newHost(t, "WAL_SIZE=1GiB")
	stored.serve()
	alone.serve()
	with, without := dial(t, stored.host), dial(t, alone)

	ctx, cancel := context.WithCancel(t.Context())
	var behind []time.Duration
	var watching sync.WaitGroup
	follower := dial(t, stored.host)
	if _, err := with.CreateStream(ctx, "load"); err != nil {
		t.Fatal(err)
	}
	watching.Go(func() {
		for r, err := range follower.Follow(ctx, "load") {
			if err != nil {
				return
			}
			behind = append(behind, time.Duration(time.Now().UnixNano()-int64(binary.LittleEndian.Uint64(r.Data))))
		}
	})
	var lags []float64
	watching.Go(func() {
		for began := time.Now(); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			if s := stored.run("status", "--json"); s.code == 0 && time.Since(began) > 3*time.Second {
				lags = append(lags, decode[logStatus](t, s.stdout)[0].Uploads.LagSeconds)
			}
		}
	})
	latencies, got := openLoop(t, with, rate, 15*time.Second)
	cancel()
	watching.Wait()
	slices.Sort(lags)
	slices.Sort(behind)
	t.Logf("at %.1f MB/s: lag median %.2f s, most %.2f s (%d looks); append p50 %v p99 %v; from submit to follower p50 %v p99 %v",
		got/1e6, lags[len(lags)/2], lags[len(lags)-1], len(lags), quantile(latencies, .5), quantile(latencies, .99), quantile(behind, .5), quantile(behind, .99))

	makeRoom := func(h *host) {
		if h == alone {
			h.must("trim", "load", "--before", "1000000000")
		} else {
			h.must("flush")
		}
	}
	for range 4 {
		for _, side := range []struct {
			name string
			c    *walsidecar.Client
			h    *host
		}{{"none", without, alone}, {"store", with, stored.host}} {
			l, got := openLoop(t, side.c, rate/2, 3*time.Second)
			makeRoom(side.h)
			most, full := openLoop(t, side.c, 0, time.Second)
			makeRoom(side.h)
			t.Logf("%5s: at %.1f MB/s p50 %v p99 %v; as fast as it goes %.1f MB/s p99 %v",
				side.name, got/1e6, quantile(l, .5), quantile(l, .99), full/1e6, quantile(most, .99))
		}
	}
}
