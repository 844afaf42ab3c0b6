package sim

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the one history to play")

func TestHistories(t *testing.T) {
	first, n := uint64(1), 200
	if s := os.Getenv("WALSIDECAR_SIM_HISTORIES"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	var total Stats
	began := time.Now()
	failures := map[string]int{}
	for i := range uint64(n) {
		stats, failure := Run(Options{Seed: first + i})
		total.Add(stats)
		if failure != nil {
			if failures[failure.Promise] < 3 || n == 1 {
				t.Errorf("%v", failure)
			}
			failures[failure.Promise]++
			if n == 1 {
				t.Logf("%s", failure.Trace)
			}
		}
	}
	t.Logf("%v in %v: %+v", failures, time.Since(began), total)
}
