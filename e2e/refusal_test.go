package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
)

func TestMalformedSettingNamesItselfAndWhatIsLegal(t *testing.T) {
	for _, c := range []struct{ setting, legal string }{
		{"STALL=10", "a duration from 1s to 10m"},
		{"STALL=", "a duration from 1s to 10m"},
		{"WAL_SIZE=1g", "a whole number with a unit"},
		{"MEMORY=010", "a whole number with a unit"},
		{"FENCE=yes", "auto, pr or attach"},
		{"HTTP=@http", "a path of at most 107 bytes, or off"},
		{"FENCE_VOLATILE=on", "refuse or accept"},
		{"STORE=gs://bucket", "s3://bucket/prefix"},
	} {
		h := newHost(t, c.setting)
		name := "WALSIDECAR_" + strings.SplitN(c.setting, "=", 2)[0]
		for _, command := range []string{"serve", "config"} {
			h.run(command).fails(t, 2, name, c.legal)
		}
		if exists(h.path("wal")) {
			t.Errorf("%s: a log was made all the same", c.setting)
		}
	}
}

func TestUnknownSettingIsAWarningAtStartAndAnErrorInCheck(t *testing.T) {
	h := newHost(t, "SOKET=/tmp/x", "SERVICE_HOST=10.0.0.1", "PORT_9470_TCP=tcp://10.0.0.1:9470")
	p := h.serve()
	if log := p.stderr.String(); !strings.Contains(log, "WALSIDECAR_SOKET") || !strings.Contains(log, "WALSIDECAR_SOCKET") ||
		strings.Contains(log, "WALSIDECAR_SERVICE_HOST") || strings.Contains(log, "WALSIDECAR_PORT") {
		t.Errorf("log: %s", log)
	}
	h.run("config", "--check").fails(t, 2, "WALSIDECAR_SOKET", "WALSIDECAR_SOCKET")
}

func TestADeviceMustBeGivenAStore(t *testing.T) {
	dev := loopDevice(t, 64<<20)
	h := newHost(t, "WAL="+dev)
	h.env = without(without(h.env, "WALSIDECAR_STORE"), "WALSIDECAR_WAL_SIZE")
	h.must("format", dev)
	h.run("serve").fails(t, 2, "WALSIDECAR_STORE")
}

func TestADeviceIsNeverFormattedByServe(t *testing.T) {
	dev := loopDevice(t, 64<<20)
	h := newHost(t, "WAL="+dev)
	before := digest(t, dev)
	h.run("serve").fails(t, 12, "format")
	if digest(t, dev) != before {
		t.Fatal("the device was written")
	}
}

func TestP8_WhatIsNotOursIsRefusedByNameBeforeAnyWrite(t *testing.T) {
	for _, c := range []struct {
		what string
		make func(t *testing.T, dev string)
		name string
	}{
		{"ext4", tool("mkfs.ext4", "-q", "-F"), "ext4"},
		{"partition table", partition, "partition table"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dev := loopDevice(t, 64<<20)
			c.make(t, dev)
			before := digest(t, dev)
			h := newHost(t, "WAL="+dev)
			h.run("format", dev).fails(t, 12, c.name)
			h.run("serve").fails(t, 12, c.name)
			if out := h.must("inspect", dev); !strings.Contains(out, c.name) {
				t.Errorf("inspect does not name it: %s", out)
			}
			h.run("verify", dev).fails(t, 12, "not a walsidecar log")
			h.run("salvage", dev).fails(t, 12, "not a walsidecar log")
			if digest(t, dev) != before {
				t.Fatal("the device was written")
			}
		})
	}
}

func TestP8_AnotherNodesLogIsRefused(t *testing.T) {
	h := newHost(t, "NODE=blue")
	h.serve().signal(sigterm)
	before := digest(t, h.path("wal"))
	h.set("NODE=green")
	h.run("serve").fails(t, 12, `"blue"`, `"green"`)
	if digest(t, h.path("wal")) != before {
		t.Fatal("the log was written")
	}
	h.set("NODE=blue")
	h.serve()
}

func TestP8_FormatRefusesWhatHoldsALog(t *testing.T) {
	h := newHost(t)
	h.must("format", h.path("wal"), "--size", "32MiB", "--node", "n")
	before := digest(t, h.path("wal"))
	h.run("format", h.path("wal")).fails(t, 12, "log")
	h.run("format", h.path("wal"), "--force").fails(t, 2, "--expect-uuid")
	h.run("format", h.path("wal"), "--force", "--expect-uuid", "018f4e7a-0000-7000-8000-0123456789ab").fails(t, 12, "018f4e7a")
	if digest(t, h.path("wal")) != before {
		t.Fatal("the log was written")
	}
	uuid := newestSuperblock(t, h, h.path("wal")).UUID
	h.must("format", h.path("wal"), "--force", "--expect-uuid", uuid)
	if newestSuperblock(t, h, h.path("wal")).UUID == uuid {
		t.Fatal("the new log has the UUID of the old one")
	}
}

func TestAnotherFormatIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(sb []byte)
		says   string
	}{
		{"a newer major version", func(sb []byte) { binary.LittleEndian.PutUint16(sb[8:], 99) }, "99"},
		{"an unknown incompatible feature", func(sb []byte) { sb[32] |= 0x80 }, "feature"},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := newHost(t)
			h.must("format", h.path("wal"), "--size", "32MiB")
			changeSuperblocks(t, h.path("wal"), c.change)
			before := digest(t, h.path("wal"))
			h.run("serve").fails(t, 12, c.says)
			if digest(t, h.path("wal")) != before {
				t.Fatal("the log was written")
			}
		})
	}
}

// changeSuperblocks changes every superblock copy and mends its checksum, as another version
// would have written it.
func changeSuperblocks(t *testing.T, path string, change func(sb []byte)) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for slot := range int64(ringwal.SlotCount) {
		b := make([]byte, ringwal.SlotBytes)
		if _, err := f.ReadAt(b, slot*ringwal.SlotBytes); err != nil {
			t.Fatal(err)
		}
		change(b)
		length := binary.LittleEndian.Uint32(b[12:])
		binary.LittleEndian.PutUint64(b[length:], xxhash.Sum64(b[:length]))
		if _, err := f.WriteAt(b, slot*ringwal.SlotBytes); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func TestALogLargerThanItsDeviceIsRefused(t *testing.T) {
	h := newHost(t)
	h.must("format", h.path("wal"), "--size", "64MiB")
	if err := os.Truncate(h.path("wal"), 48<<20); err != nil {
		t.Fatal(err)
	}
	h.run("serve").fails(t, 12, "the log needs", "the device has")
}

func TestADeviceThatGrewStartsAndSaysSo(t *testing.T) {
	h := newHost(t)
	h.must("format", h.path("wal"), "--size", "32MiB")
	if err := os.Truncate(h.path("wal"), 48<<20); err != nil {
		t.Fatal(err)
	}
	p := h.serve()
	await(t, "the log line about it", func() bool { return strings.Contains(p.stderr.String(), "grew") })
	h.must("append", "s", "x")
}

func TestTooSmallALogIsRefused(t *testing.T) {
	h := newHost(t)
	h.run("format", h.path("small"), "--size", "31MiB").fails(t, 2, "32MiB")
	if exists(h.path("small")) {
		t.Fatal("the file was made all the same")
	}
	dev := loopDevice(t, 16<<20)
	h.run("format", dev).fails(t, 12, "small")
}

func TestARecordOverTheLimit(t *testing.T) {
	h := newHost(t)
	h.serve()
	r := h.pipe(strings.Repeat("x", 2<<20), "append", "s", "--raw", "--json")
	if f := r.failure(t); r.code != 1 || f.Code != "too_large" || !strings.Contains(f.Message, "limit") {
		t.Fatalf("exit %d: %+v", r.code, f)
	}
	r = h.pipe("fits\n"+strings.Repeat("x", 2<<20)+"\nnever\n", "append", "s")
	r.fails(t, 1, "record 1 of the input")
	if r.stdout != "0\n" {
		t.Fatalf("printed %q", r.stdout)
	}
	if got := h.must("read", "s"); got != "fits\n" {
		t.Fatalf("read %q", got)
	}
	h.run("append", strings.Repeat("n", 256), "x").fails(t, 2)
	h.run("append", "a\nb", "x").fails(t, 2)
	h.run("append", "", "x").fails(t, 2)
}

func TestASecondSidecarIsRefusedAndTheFirstUnharmed(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must("append", "s", "a")
	epoch := func() string {
		return fmt.Sprint(decode[map[string]any](t, h.must("status", "--json"))[0]["epoch"])
	}
	before := epoch()

	sameLog := newHost(t, "WAL="+h.path("wal"))
	sameLog.run("serve").fails(t, 14, h.path("wal"))
	sameSocket := newHost(t, "SOCKET="+h.path("s"))
	sameSocket.run("serve").fails(t, 14, h.path("s"))
	if exists(sameSocket.path("wal")) {
		t.Error("the refused sidecar made a log")
	}
	h.run("serve").fails(t, 14)
	h.run("format", h.path("wal"), "--force", "--expect-uuid", newestSuperblock(t, h, h.path("wal")).UUID).fails(t, 14)

	if got := h.must("append", "s", "b"); got != "1\n" || epoch() != before {
		t.Fatalf("the first sidecar was harmed: offset %q, epoch %s, was %s", got, epoch(), before)
	}
}

func TestTheSocketOfADeadSidecarIsTakenOver(t *testing.T) {
	h := newHost(t)
	h.serve().kill()
	if !exists(h.path("s")) {
		t.Fatal("kill -9 leaves the socket behind")
	}
	h.serve()
}

func TestP12_AFullLogRefusesAndHealsByTrim(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must("append", "old", "this pins the log")
	line := strings.Repeat("x", 64<<10) + "\n"
	r := h.pipe(strings.Repeat(line, 600), "append", "new")
	r.fails(t, 16, "old")
	kept := len(lines(r.stdout))
	if kept < 100 {
		t.Fatalf("only %d records fit", kept)
	}
	if f := h.run("append", "new", strings.Repeat("y", 60<<10), "--json").failure(t); f.Code != "log_full" || !strings.Contains(f.Message, "old") {
		t.Fatalf("%+v", f)
	}
	h.must("trim", "old", "--before", "1")
	h.must("trim", "new", "--before", fmt.Sprint(kept))
	await(t, "room", func() bool { return h.pipe(line, "append", "new").code == 0 })
	if got := h.must("read", "new", "--json"); !strings.Contains(got, fmt.Sprintf(`"offset":%d,`, kept)) {
		t.Fatalf("after healing: %.200s", got)
	}
}

func TestP7_DamageStopsTheStartAndSalvageGivesWhatIsLeft(t *testing.T) {
	h := newHost(t)
	p := h.serve()
	for i := range 8 {
		h.must("append", "s", fmt.Sprintf("record-%d %s", i, strings.Repeat("x", 5000)))
	}
	p.signal(sigterm)
	wal, err := os.ReadFile(h.path("wal"))
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(wal, []byte("record-3 "))
	if at < 0 {
		t.Fatal("the record is not in the file")
	}
	wal[at] ^= 1
	if err := os.WriteFile(h.path("wal"), wal, 0o600); err != nil {
		t.Fatal(err)
	}
	before := digest(t, h.path("wal"))
	h.run("serve").fails(t, 11, "damaged", "position")
	h.run("verify", h.path("wal")).fails(t, 11)
	r := h.run("salvage", h.path("wal"))
	r.fails(t, 11)
	var offsets, gaps []string
	for _, line := range decode[record](t, r.stdout) {
		switch {
		case line.Gap != "":
			gaps = append(gaps, line.Gap)
		case line.Payload != nil:
			offsets = append(offsets, fmt.Sprint(line.Offset))
		}
	}
	if got := strings.Join(offsets, " "); got != "0 1 2 4 5 6 7" || len(gaps) == 0 {
		t.Fatalf("salvaged %s with gaps %v\n%s", got, gaps, r.stdout)
	}
	if digest(t, h.path("wal")) != before {
		t.Fatal("the damaged log was written")
	}
}

func TestVerifyOfASoundLog(t *testing.T) {
	h := newHost(t)
	p := h.serve()
	h.must("append", "s", "x")
	h.must("verify", h.path("wal")) // beside the running sidecar
	h.must("inspect", h.path("wal"), "--frames")
	p.signal(sigterm)
	h.must("verify", h.path("wal"))
	got := decode[record](t, h.must("salvage", h.path("wal")))
	if len(got) != 1 || *got[0].Payload != "x" {
		t.Fatalf("salvage of a sound log: %+v", got)
	}
}

// tool runs a program on a device; the test is skipped where it is not installed.
func tool(name string, args ...string) func(*testing.T, string) {
	return func(t *testing.T, dev string) {
		t.Helper()
		path, err := exec.LookPath(name)
		if err != nil {
			if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
				t.Skipf("%s is not installed", name)
			}
		}
		if out, err := exec.Command(path, append(args, dev)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
}

// partition writes a partition table with one partition.
func partition(t *testing.T, dev string) {
	t.Helper()
	path, err := exec.LookPath("sfdisk")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/sfdisk"); err != nil {
			t.Skip("sfdisk is not installed")
		}
	}
	cmd := exec.Command(path, "--quiet", "--no-reread", dev)
	cmd.Stdin = strings.NewReader("label: gpt\n2048,4096\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sfdisk: %v\n%s", err, out)
	}
}

// digest hashes a device or file.
func digest(t *testing.T, path string) [32]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}
