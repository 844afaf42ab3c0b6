package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// finding is one line of `doctor --json`.
type finding struct {
	Check, Level, Found, Advice string
}

func diagnose(t *testing.T, r result) map[string]finding {
	t.Helper()
	var report struct {
		Path     string
		Problems int
		Findings []finding
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	byCheck := map[string]finding{}
	for _, f := range report.Findings {
		if f.Found == "" || f.Level != "ok" && f.Level != "note" && f.Advice == "" {
			t.Errorf("finding says nothing or not what to do: %+v", f)
		}
		byCheck[f.Check] = f
	}
	if failed := r.code != 0; failed != (report.Problems > 0) || r.code > 1 {
		t.Errorf("exit %d with %d problems", r.code, report.Problems)
	}
	return byCheck
}

// expect fails unless the check has that level and says all of what, in its finding or its
// advice.
func expect(t *testing.T, found map[string]finding, check, level string, what ...string) {
	t.Helper()
	f := found[check]
	if f.Level != level {
		t.Errorf("%s is %+v, want level %s", check, f, level)
	}
	for _, w := range what {
		if !strings.Contains(f.Found+f.Advice, w) {
			t.Errorf("%s does not say %q: %+v", check, w, f)
		}
	}
}

func TestDoctorOfAFile(t *testing.T) {
	h := newHost(t)
	found := diagnose(t, h.run("doctor", "--json"))
	expect(t, found, "path", "note", "no such file", "serve")
	expect(t, found, "kernel", "ok", "Linux")
	h.serve()
	found = diagnose(t, h.run("doctor", "--json")) // of WALSIDECAR_WAL, while it is served
	expect(t, found, "contents", "ok", "log ", "epoch 1")
	expect(t, found, "in_use", "warning", "walsidecar")
	expect(t, found, "fence", "ok", "lock")
	expect(t, found, "direct_io", "ok")
	h.must("append", "s", "still there")
}

func TestDoctorOfWhatIsNoLog(t *testing.T) {
	h := newHost(t)
	expect(t, diagnose(t, h.run("doctor", "/dev/walsidecar-is-not-there", "--json")), "path", "problem", "no such device")
	expect(t, diagnose(t, h.run("doctor", "/dev/null", "--json")), "path", "problem", "neither a block device")
	dev := loopDevice(t, 64<<20)
	found := diagnose(t, h.run("doctor", dev, "--json"))
	expect(t, found, "contents", "note", "blank", "walsidecar format "+dev)
	expect(t, found, "fence", "warning", "attached once")
	tool("mkfs.ext4", "-q", "-F")(t, dev)
	before := digest(t, dev)
	expect(t, diagnose(t, h.run("doctor", dev, "--json")), "contents", "problem", "ext4")
	if digest(t, dev) != before {
		t.Error("doctor wrote to the device")
	}
	if text := h.run("doctor", dev).stdout; !strings.Contains(text, "problem") || !strings.Contains(text, "→ ") {
		t.Errorf("for people: %s", text)
	}
}

// fenceStatus is what `fence status --json` says.
type fenceStatus struct {
	Kind, Mode, Holder, Type string
	HolderIs                 string `json:"holder_is"`
	LockedBy                 []int  `json:"locked_by_pids"`
	Log                      struct {
		Node  string
		Epoch uint64
	}
}

func (h *host) fenceStatus(path string) fenceStatus {
	h.t.Helper()
	var s fenceStatus
	if err := json.Unmarshal([]byte(h.must("fence", "status", path, "--json")), &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func TestFenceOfAFile(t *testing.T) {
	h := newHost(t, "NODE=n1")
	p := h.serve()
	if s := h.fenceStatus(h.path("wal")); s.Mode != "lock" || s.Holder != "none" || s.Log.Node != "n1" || s.Log.Epoch != 1 {
		t.Errorf("while it is served: %+v", s)
	}
	p.signal(sigterm)
	if s := h.fenceStatus(h.path("wal")); len(s.LockedBy) != 0 {
		t.Errorf("after it: %+v", s)
	}
	h.run("fence", "clear", h.path("wal"), "--expect-holder", "none").fails(t, 1, "no persistent reservations")
}

func TestFenceOfADeviceWithoutReservations(t *testing.T) {
	dev := loopDevice(t, 64<<20)
	h := newHost(t)
	h.must("format", dev, "--node", "n1")
	before := digest(t, dev)
	if s := h.fenceStatus(dev); s.Mode != "attach" || s.Type != "none" || s.Log.Node != "n1" || !strings.Contains(s.HolderIs, "no persistent reservations") {
		t.Errorf("%+v", s)
	}
	h.run("fence", "clear", dev, "--expect-holder", "none").fails(t, 1, "no persistent reservations")
	if digest(t, dev) != before {
		t.Error("the device was written")
	}
}

func TestFenceClearWantsTheHolder(t *testing.T) {
	h := newHost(t)
	h.run("fence", "clear", "/dev/null").fails(t, 2, "expect-holder")
	h.run("fence", "clear", "--expect-holder", "none").fails(t, 2)
	h.run("fence", "clear", "/dev/null", "--expect-holder", "12").fails(t, 2, "0x")
	h.run("fence", "clear", "/dev/null", "--expect-holder", "none").fails(t, 12)
	h.run("fence", "clear", h.path("nothing"), "--expect-holder", "none").fails(t, 1, "no such file")
	h.run("fence", "status", "/dev/null").fails(t, 12)
	if out := h.must("fence"); !strings.Contains(out, "clear") || !strings.Contains(out, "status") {
		t.Errorf("help: %s", out)
	}
}
