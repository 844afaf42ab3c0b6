package peers

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// programs is where bench/build puts what it builds.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../bin")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func setup(t *testing.T, c drive.Cell) drive.Setup {
	t.Helper()
	return drive.Setup{Dir: t.TempDir(), Scratch: t.TempDir(), StoreBytes: 64 << 20, Programs: programs(t), Cell: c}
}

// Every adapter appends, in a closed loop and pipelined.
func TestEveryAdapterAppends(t *testing.T) {
	for _, p := range All {
		t.Run(p.Name, func(t *testing.T) {
			if reason := p.Reason(programs(t)); reason != "" {
				t.Skip(reason)
			}
			if p.Name == "postgresql" {
				t.Skip("its own user cannot get into the directory of a test")
			}
			for _, c := range []drive.Cell{{Size: 100, Producers: 1, InFlight: 1}, {Size: 100, Producers: 4, InFlight: 1}, {Size: 100, Producers: 1, InFlight: 16}} {
				if !p.Measures(c) {
					continue
				}
				var r drive.Result
				for window := 100 * time.Millisecond; r.Appends == 0 && window < 10*time.Second; window *= 4 { // a busy disk
					var err error
					if r, err = drive.Measure(t.Context(), p.Make(), setup(t, c), drive.Times{WarmUp: 20 * time.Millisecond, Measure: window}); err != nil {
						t.Fatalf("%+v: %v", c, err)
					}
				}
				if r.Appends == 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max || r.CPU < 0 {
					t.Errorf("%+v: %+v", c, r)
				}
			}
		})
	}
}

// The sidecar has what its clients were answered, and is trimmed as the load goes.
func TestTheSidecarKeepsWhatItAnswersAndIsTrimmed(t *testing.T) {
	p, err := Named("walsidecar-shm")
	if err != nil {
		t.Fatal(err)
	}
	if reason := p.Reason(programs(t)); reason != "" {
		t.Skip(reason)
	}
	g := p.Make().(*goSidecar)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const inFlight = 64
	s := setup(t, drive.Cell{Size: 1 << 10, Producers: 1, InFlight: inFlight})
	if err := g.Open(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	record := make([]byte, s.Size)
	appended := uint64(0)
	for int64(appended)*int64(s.Size) < s.StoreBytes/trimShare*2 {
		for range inFlight {
			if err := g.Submit(record); err != nil {
				t.Fatal(err)
			}
		}
		for range inFlight {
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		appended += inFlight
	}
	for {
		stream, err := g.control.Stat(ctx, benchStream)
		if err != nil {
			t.Fatal(err)
		}
		if stream.NextOffset != appended {
			t.Fatalf("it has %d records of %d", stream.NextOffset, appended)
		}
		if stream.FirstOffset > 0 {
			break
		}
		time.Sleep(trimEvery)
	}
}
