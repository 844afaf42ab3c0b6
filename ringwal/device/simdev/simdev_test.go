package simdev

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

const diskBytes = 1 << 20

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: WALSIDECAR_SEED, else a new one")

// newSeed is the seed to replay, or a new one, and prints it and the disk's trace
// where the test fails.
func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed, _ = strconv.ParseUint(os.Getenv("WALSIDECAR_SEED"), 10, 64)
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with WALSIDECAR_SEED=%d", seed)
		}
	})
	return seed
}

func newDisk(t *testing.T, c Config) *Disk {
	t.Helper()
	if c.Seed == 0 {
		c.Seed = newSeed(t)
	}
	if c.SizeBytes == 0 {
		c.SizeBytes = diskBytes
	}
	d := New(c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.Trace())
		}
	})
	return d
}

// filled is n bytes of one value.
func filled(n int, value byte) []byte { return bytes.Repeat([]byte{value}, n) }

func mustWrite(t *testing.T, v *View, p []byte, offset int64) {
	t.Helper()
	if err := v.WriteSync(p, offset); err != nil {
		t.Fatal(err)
	}
}

func mustBegin(t *testing.T, v *View, p []byte, offset int64) *Write {
	t.Helper()
	w, err := v.Begin(p, offset)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mustRead(t *testing.T, v *View, offset int64, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	if got, err := v.ReadAt(p, offset); err != nil || got != n {
		t.Fatalf("read %d bytes at %d: %d, %v", n, offset, got, err)
	}
	return p
}

// onMedium is what is on stable media.
func onMedium(d *Disk, offset int64, n int) []byte {
	p := make([]byte, n)
	d.PeekMedium(p, offset)
	return p
}

// sectorsOf counts the sectors of p that are all value, all zero, and neither.
func sectorsOf(p []byte, value byte) (full, zero, torn int) {
	for i := 0; i < len(p); i += SectorBytes {
		switch s := p[i : i+SectorBytes]; {
		case bytes.Equal(s, filled(SectorBytes, value)):
			full++
		case bytes.Equal(s, make([]byte, SectorBytes)):
			zero++
		default:
			torn++
		}
	}
	return full, zero, torn
}

func TestWriteSyncIsDurable(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	if v.Path() != "sim:a" || v.SizeBytes() != diskBytes || v.BlockBytes() != 4096 {
		t.Fatalf("%s, %d, %d", v.Path(), v.SizeBytes(), v.BlockBytes())
	}
	want := filled(8192, 7)
	mustWrite(t, v, want, 4096)
	if !bytes.Equal(onMedium(d, 4096, 8192), want) {
		t.Fatal("an answered write is not on the medium")
	}
	d.Crash()
	if got := mustRead(t, d.Open("b"), 4096, 8192); !bytes.Equal(got, want) {
		t.Fatal("an answered write did not survive a crash")
	}
	if got := mustRead(t, d.Open("c"), 0, 4096); !bytes.Equal(got, make([]byte, 4096)) {
		t.Fatal("its neighbour changed")
	}
}

func TestRangesAreChecked(t *testing.T) {
	d := newDisk(t, Config{BlockBytes: 8192})
	v := d.Open("a")
	tests := []struct {
		length int
		offset int64
		want   error
	}{
		{4096, 0, device.ErrNotAligned}, // 4 KiB is not a block here
		{8192, 4096, device.ErrNotAligned},
		{8192, diskBytes, device.ErrOutOfRange},
		{16384, diskBytes - 8192, device.ErrOutOfRange},
		{8192, -8192, device.ErrOutOfRange},
	}
	for _, tt := range tests {
		p := make([]byte, tt.length)
		if _, err := v.ReadAt(p, tt.offset); !errors.Is(err, tt.want) || !errors.Is(err, device.ErrRead) {
			t.Errorf("read %d at %d: %v, want %v", tt.length, tt.offset, err, tt.want)
		}
		if err := v.WriteSync(p, tt.offset); !errors.Is(err, tt.want) || !errors.Is(err, device.ErrWrite) {
			t.Errorf("write %d at %d: %v, want %v", tt.length, tt.offset, err, tt.want)
		}
	}
}

func TestWriteInFlightIsNotSeen(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	w := mustBegin(t, v, filled(4096, 1), 0)
	if len(v.InFlight()) != 1 || w.Length() != 4096 || w.Offset() != 0 || w.Number() != 1 {
		t.Fatalf("in flight: %v", v.InFlight())
	}
	if full, _, _ := sectorsOf(mustRead(t, v, 0, 4096), 1); full != 0 {
		t.Fatalf("%d sectors are seen before it finished", full)
	}
	if err := v.Finish(w); err != nil {
		t.Fatal(err)
	}
	if full, _, _ := sectorsOf(onMedium(d, 0, 4096), 1); full != 8 || len(v.InFlight()) != 0 {
		t.Fatalf("%d sectors on the medium after it finished", full)
	}
}

func TestWritesFinishInAnyOrder(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	first := mustBegin(t, v, filled(4096, 1), 0)
	second := mustBegin(t, v, filled(4096, 2), 4096)
	third := mustBegin(t, v, filled(4096, 3), 0) // over the first
	for _, w := range []*Write{third, second, first} {
		if err := v.Finish(w); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustRead(t, v, 0, 8192); !bytes.Equal(got, append(filled(4096, 1), filled(4096, 2)...)) {
		t.Error("the last to finish does not win")
	}
}

func TestMisuseOfAWritePanics(t *testing.T) {
	wantPanic := func(name, says string, f func()) {
		t.Helper()
		defer func() {
			if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), says) {
				t.Errorf("%s: %v, want a panic that says %q", name, r, says)
			}
		}()
		f()
	}
	d := newDisk(t, Config{})
	a, b := d.Open("a"), d.Open("b")
	p := filled(4096, 1)
	w := mustBegin(t, a, p, 0)
	wantPanic("another host's write", "belongs to sim:a", func() { _ = b.Finish(w) })
	p[17] = 9
	wantPanic("a buffer that was reused too early", "changed in flight", func() { _ = a.Finish(w) })
	w = mustBegin(t, a, filled(4096, 1), 0)
	_ = a.Finish(w)
	wantPanic("the same write twice", "ended twice", func() { _ = a.Finish(w) })
	wantPanic("a size of no blocks", "size", func() { New(Config{SizeBytes: 1000}) })
	wantPanic("a small block", "block", func() { New(Config{SizeBytes: 4096, BlockBytes: 512}) })
}

// Every outcome of a crash appears: whole writes and lost ones, a write behind a
// hole, torn sectors, and sectors that are seen and then gone.
func TestCrashKeepsDropsAndTears(t *testing.T) {
	seed := newSeed(t)
	var whole, gone, behindHole, torn, partly, vanished int
	for i := range uint64(400) {
		d := newDisk(t, Config{Seed: seed + i})
		v := d.Open("a")
		for k := range 4 {
			mustBegin(t, v, filled(16<<10, byte(k+1)), int64(k)*(16<<10))
		}
		d.Crash()
		after := d.Open("b")
		var isWhole [4]bool
		for k := range 4 {
			seen := mustRead(t, after, int64(k)*(16<<10), 16<<10)
			full, zero, ripped := sectorsOf(seen, byte(k+1))
			isWhole[k] = full == 32
			switch {
			case full == 32:
				whole++
			case zero == 32:
				gone++
			default:
				partly++
			}
			torn += ripped
		}
		for k := range 3 {
			if !isWhole[k] && isWhole[k+1] {
				behindHole++
			}
		}
		before := mustRead(t, after, 0, 64<<10)
		if err := after.Flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, mustRead(t, after, 0, 64<<10)) {
			vanished++
		}
		if !bytes.Equal(mustRead(t, after, 0, 64<<10), onMedium(d, 0, 64<<10)) {
			t.Fatal("something is still only in the cache after a flush")
		}
	}
	t.Logf("of 1600 writes: %d whole, %d gone, %d in part; %d whole behind a hole, %d torn sectors; %d of 400 flushes changed what is seen",
		whole, gone, partly, behindHole, torn, vanished)
	if whole < 300 || gone < 200 || partly < 200 || behindHole < 100 || torn < 100 || vanished < 100 {
		t.Error("some outcome is too rare to find bugs with")
	}
}

func TestCrashReordersWhatIsInFlight(t *testing.T) {
	seed := newSeed(t)
	wins := map[byte]int{}
	for i := range uint64(60) {
		d := newDisk(t, Config{Seed: seed + i, Odds: Odds{Kept: 1}})
		v := d.Open("a")
		for value := byte(1); value <= 3; value++ {
			mustBegin(t, v, filled(4096, value), 0)
		}
		d.Crash()
		wins[onMedium(d, 0, 1)[0]]++
	}
	if wins[1] < 5 || wins[2] < 5 || wins[3] < 5 {
		t.Errorf("of three writes to one place these came last: %v", wins)
	}
}

// The rule of the second read: bytes that a reader saw after a crash may be gone
// after a flush that went well.
func TestBytesSeenAfterACrashMayVanishAtTheFlush(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Cached: 1, Vanishes: 1}})
	mustBegin(t, d.Open("a"), filled(4096, 1), 0)
	d.Crash()
	b := d.Open("b")
	if full, _, _ := sectorsOf(mustRead(t, b, 0, 4096), 1); full != 8 {
		t.Fatalf("%d sectors seen, want all 8 from the cache", full)
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, zero, _ := sectorsOf(mustRead(t, b, 0, 4096), 1); zero != 8 {
		t.Fatalf("%d sectors gone, want 8", zero)
	}
}

func TestBytesSeenAfterACrashMayVanishAtTheNextCrash(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Cached: 1, Vanishes: 1}})
	mustBegin(t, d.Open("a"), filled(4096, 1), 0)
	d.Crash()
	if full, _, _ := sectorsOf(mustRead(t, d.Open("b"), 0, 4096), 1); full != 8 {
		t.Fatalf("%d sectors seen", full)
	}
	d.Crash()
	if _, zero, _ := sectorsOf(mustRead(t, d.Open("c"), 0, 4096), 1); zero != 8 {
		t.Fatalf("%d sectors gone", zero)
	}
}

func TestFlushedBytesStay(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Cached: 1, Reaches: 1}})
	mustBegin(t, d.Open("a"), filled(4096, 1), 0)
	d.Crash()
	if err := d.Open("b").Flush(); err != nil {
		t.Fatal(err)
	}
	d.SetOdds(Odds{Dropped: 1, Vanishes: 1})
	d.Crash()
	if full, _, _ := sectorsOf(mustRead(t, d.Open("c"), 0, 4096), 1); full != 8 {
		t.Fatalf("%d sectors after the flush and another crash, want 8", full)
	}
}

func TestWriteThroughHasNoCache(t *testing.T) {
	seed := newSeed(t)
	for i := range uint64(100) {
		d := newDisk(t, Config{Seed: seed + i, WriteThrough: true})
		v := d.Open("a")
		w := mustBegin(t, v, filled(16<<10, 1), 0)
		v.Progress(w)
		d.Crash()
		b := d.Open("b")
		if !bytes.Equal(mustRead(t, b, 0, 16<<10), onMedium(d, 0, 16<<10)) {
			t.Fatal("something is seen that is not on the medium")
		}
	}
}

func TestProgressIsSeenAndNotDurable(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Dropped: 1}})
	v := d.Open("a")
	w := mustBegin(t, v, filled(64<<10, 1), 0)
	v.Progress(w)
	full, zero, torn := sectorsOf(mustRead(t, v, 0, 64<<10), 1)
	if full == 0 || zero == 0 || torn != 0 {
		t.Fatalf("%d sectors seen, %d not, %d torn", full, zero, torn)
	}
	if full, _, _ := sectorsOf(onMedium(d, 0, 64<<10), 1); full != 0 {
		t.Fatalf("%d sectors on the medium", full)
	}
	d.Crash()
	if full, _, _ := sectorsOf(mustRead(t, d.Open("b"), 0, 64<<10), 1); full != 0 {
		t.Fatalf("%d sectors of a dropped write", full)
	}
}

func TestFailedWriteLeavesAnything(t *testing.T) {
	seed := newSeed(t)
	states := map[string]int{}
	for i := range uint64(200) {
		d := newDisk(t, Config{Seed: seed + i})
		v := d.Open("a")
		w := mustBegin(t, v, filled(8192, 1), 4096)
		err := v.Fail(w, syscall.EIO)
		if !errors.Is(err, device.ErrWrite) || !errors.Is(err, device.ErrIO) || !strings.Contains(err.Error(), "8192 bytes at offset 4096") {
			t.Fatalf("error %v", err)
		}
		full, zero, _ := sectorsOf(mustRead(t, v, 4096, 8192), 1)
		switch {
		case full == 16:
			states["whole"]++
		case zero == 16:
			states["gone"]++
		default:
			states["part"]++
		}
	}
	if states["whole"] < 20 || states["gone"] < 20 || states["part"] < 20 {
		t.Errorf("a failed write left %v", states)
	}
}

func TestDeadHostsCanDoNothing(t *testing.T) {
	d := newDisk(t, Config{})
	a, b := d.Open("a"), d.Open("b")
	w := mustBegin(t, a, filled(4096, 1), 0)
	d.Crash()
	p := make([]byte, 4096)
	_, readErr := a.ReadAt(p, 0)
	_, beginErr := b.Begin(p, 0)
	for name, err := range map[string]error{
		"finish": a.Finish(w), "read": readErr, "begin": beginErr, "write": a.WriteSync(p, 0), "flush": b.Flush(),
	} {
		if !errors.Is(err, ErrDead) {
			t.Errorf("%s of a crashed host: %v", name, err)
		}
	}
	c := d.Open("c")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSync(p, 0); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}
}

func TestCrashOfOneHostLeavesTheOthers(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Dropped: 1}})
	a, b := d.Open("a"), d.Open("b")
	mustBegin(t, a, filled(4096, 1), 0)
	w := mustBegin(t, b, filled(4096, 2), 4096)
	a.Crash()
	if err := a.WriteSync(filled(4096, 1), 0); !errors.Is(err, ErrDead) {
		t.Fatalf("a: %v", err)
	}
	if err := b.Finish(w); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, b, 0, 8192); !bytes.Equal(got, append(make([]byte, 4096), filled(4096, 2)...)) {
		t.Fatal("a's write was not dropped, or b's was")
	}
}
