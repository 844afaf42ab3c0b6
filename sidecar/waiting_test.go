package sidecar

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/node"
)

// While a start waits for late writes, /status and /readyz say until when, by which setting,
// and why; no longer than that.
func TestAStartThatWaitsSaysWhatFor(t *testing.T) {
	p := &process{}
	p.phase.Store(new(recovering))
	until := time.Date(2027, 1, 2, 3, 4, 5, 0, time.Local)
	p.waiting.Store(&node.Wait{Until: until, Setting: "WALSIDECAR_LATE_WRITES", Why: "nobody held the device"})
	var shown struct {
		State   string
		Waiting *struct {
			Until        time.Time
			Setting, Why string
		}
	}
	look := func() {
		t.Helper()
		b, err := json.Marshal(p.status())
		if err == nil {
			err = json.Unmarshal(b, &shown)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	look()
	if w := shown.Waiting; w == nil || !w.Until.Equal(until) || w.Setting != "WALSIDECAR_LATE_WRITES" || w.Why != "nobody held the device" {
		t.Errorf("/status: %+v", shown)
	}
	const want = "recovering the log: waiting until 03:04:05, by WALSIDECAR_LATE_WRITES: nobody held the device"
	if err := p.ready(); err == nil || err.Error() != want {
		t.Errorf("/readyz: %v, want %s", err, want)
	}
	p.phase.Store(new(failed))
	shown.Waiting = nil
	look()
	if err := p.ready(); shown.Waiting != nil || err == nil || strings.Contains(err.Error(), "waiting") {
		t.Errorf("after it has failed: %+v, %v", shown, err)
	}
}
