package upload

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// What a probe left that was killed is an orphan once it is older than the grace time, and
// nothing else below its prefix is.
func TestGCFindsWhatAKilledProbeLeft(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	killed := false
	s := &simstore.Store{Now: func() time.Time { return now }, Inject: func(c simstore.Call) simstore.Fault {
		if killed && c.Op == simstore.Delete {
			return simstore.Unavailable
		}
		return simstore.None
	}}
	_, err := Claim(background, s, Claimant{Log: testLog, Node: "test", Epoch: 1, Incarnation: [16]byte{1}})
	must(t, err)
	killed = true
	if err := store.Probe(background, s); err == nil {
		t.Fatal("the probe removed what it had put")
	}
	killed = false
	left := slices.DeleteFunc(s.Keys(), func(key string) bool { return !strings.HasPrefix(key, store.ProbePrefix) })
	if len(left) == 0 {
		t.Fatal("the probe left nothing")
	}
	for _, key := range []string{"probe/readme", "probe/0123", "probe/" + strings.Repeat("0", 26)} {
		_, err := s.PutIfAbsent(background, key, []byte("of somebody else"))
		must(t, err)
	}
	gc := func(o GCOptions) (*GCReport, []string) {
		t.Helper()
		var keys []string
		report, err := GC(background, s, "test", o, func(x Orphan) { keys = append(keys, x.Key) })
		must(t, err)
		return report, keys
	}
	if report, keys := gc(GCOptions{Delete: true}); report.Young != len(left) || len(keys) != 0 {
		t.Errorf("right away: %+v, %q", report, keys)
	}
	now = now.Add(DefaultOrphanGrace)
	_, err = s.PutIfAbsent(background, "test/young", nil) // by which the time at the store is known
	must(t, err)
	_, err = s.PutIfAbsent(background, "probe/new", nil)
	must(t, err)
	if report, keys := gc(GCOptions{}); report.Orphans != len(left) || report.Deleted != 0 || !slices.Equal(keys, left) {
		t.Errorf("later: %+v, %q; want %q", report, keys, left)
	}
	if report, _ := gc(GCOptions{Delete: true}); report.Deleted != len(left) {
		t.Errorf("deleted: %+v", report)
	}
	if report, keys := gc(GCOptions{Delete: true}); len(keys) != 0 || len(s.Keys()) != 6 {
		t.Errorf("at last: %+v, %q, %q", report, keys, s.Keys())
	}
}
