package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/faultproxy"
)

// Writers that count up one object by compare-and-swap, and settle by reading what they are
// not told, lose no step and make none twice, whatever happens between them and the server.
func TestCountingThroughAllFaults(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("WALSIDECAR_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("WALSIDECAR_SEED=%d", seed)
	f := openFaulty(t, func(o *store.Options) { o.AttemptTimeout, o.RetryFor = 800*time.Millisecond, 2*time.Minute })
	if _, err := f.direct.PutIfAbsent(t.Context(), "count", []byte("0 nobody")); err != nil {
		t.Fatal(err)
	}
	rates := map[faultproxy.Fault]float64{}
	for fault := faultproxy.Slow; fault <= faultproxy.HangBody; fault++ {
		if fault != faultproxy.Denied {
			rates[fault] = 0.015
		}
	}
	f.proxy.Randomly(seed, 50*time.Millisecond, rates)
	var sure, tried atomic.Int64
	var all sync.WaitGroup
	for writer := range 3 {
		all.Go(func() {
			attempt := 0
			for range 15 {
				for {
					attempt++
					name := fmt.Sprintf("%d.%d", writer, attempt)
					done, err := countOne(t, f, name, &tried)
					if err != nil {
						t.Error(err)
						return
					}
					if done {
						sure.Add(1)
						break
					}
				}
			}
		})
	}
	all.Wait()
	f.proxy.WaitLate()
	body, _, err := f.direct.Get(t.Context(), "count")
	if err != nil {
		t.Fatal(err)
	}
	var count int64
	var last string
	if _, err := fmt.Sscan(string(body), &count, &last); err != nil {
		t.Fatal(err)
	}
	if count < sure.Load() || count > tried.Load() {
		t.Errorf("the count is %d; %d steps were confirmed, %d tried", count, sure.Load(), tried.Load())
	}
	t.Logf("%d puts for %d steps, count %d", f.proxy.Count(http.MethodPut, "count"), sure.Load(), count)
}

// countOne makes one step, or learns that it was not made (yet).
func countOne(t *testing.T, f faulty, name string, tried *atomic.Int64) (bool, error) {
	body, v, err := f.Get(t.Context(), "count")
	if err != nil {
		return false, err
	}
	var n int
	var by string
	if _, err := fmt.Sscan(string(body), &n, &by); err != nil {
		return false, err
	}
	tried.Add(1)
	_, err = f.PutIfMatch(t.Context(), "count", fmt.Appendf(nil, "%d %s", n+1, name), v)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrUnavailable):
		tried.Add(-1) // certainly not made
		return false, nil
	case !errors.Is(err, store.ErrUnknownOutcome):
		return false, err
	}
	body, _, err = f.Get(t.Context(), "count")
	if err != nil {
		return false, err
	}
	if _, err := fmt.Sscan(string(body), &n, &by); err != nil {
		return false, err
	}
	return by == name, nil
}
