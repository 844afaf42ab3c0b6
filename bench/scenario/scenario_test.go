package scenario

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/walsidecar/walsidecar/bench/machine"
)

// host is one on a directory. The sidecar is what bench/build built.
func host(t *testing.T) *Host {
	t.Helper()
	program, err := filepath.Abs("../bin/walsidecar")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skipf("bench/build has not built the sidecar: %v", err)
	}
	store, err := machine.OpenStore("here=" + t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Host{Store: store, Objects: t.TempDir(), Program: program, Say: t.Logf}
}

const testBytes = 8 << 20

func TestRecoveryFindsWhatWasFilledIn(t *testing.T) {
	rows, err := host(t).MeasureRecovery(t.Context(), []int64{testBytes}, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := rows[0]
	if r.Records != testBytes/fillRecord || r.LogBytes < testBytes || r.ReadySeconds < r.RecoverySeconds || r.RecoverySeconds <= 0 || r.ReadMBPerSecond <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestATakeoverUploadsWhatTheStoreDidNotGet(t *testing.T) {
	rows, err := host(t).MeasureTakeover(t.Context(), []int64{testBytes}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r := rows[0]; r.Records != testBytes/fillRecord || r.Bytes < testBytes || r.Seconds <= 0 || len(r.Steps) == 0 {
		t.Errorf("%+v", r)
	}
}

func TestMemoryIsCountedBeyondThatOfNone(t *testing.T) {
	rows, err := host(t).MeasureMemory(t.Context(), []int{2}, []int{1}, []int{10})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 6 {
		t.Fatalf("%d rows", len(rows))
	}
	for i := 0; i < len(rows); i += 2 {
		none, some := rows[i], rows[i+1]
		if none.Count != 0 || none.Bytes == 0 || some.Count == 0 || some.Each != float64(some.Bytes-none.Bytes)/float64(some.Count) {
			t.Errorf("%+v, %+v", none, some)
		}
	}
	if rows[3].Each < 1<<20 { // a ring is megabytes of shared memory
		t.Errorf("a client with a ring takes %.0f bytes", rows[3].Each)
	}
}
