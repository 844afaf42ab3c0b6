package simdev

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

func TestRestoreIsAnOldSelf(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	mustWrite(t, v, filled(8192, 1), 0)
	old := d.Snapshot()
	for value := byte(2); value < 5; value++ {
		mustWrite(t, v, filled(4096, value), 4096)
		mustWrite(t, v, filled(4096, value), 65536)
		d.Restore(old)
		v = d.Open("b")
		if got := mustRead(t, v, 0, 8192); !bytes.Equal(got, filled(8192, 1)) {
			t.Fatalf("round %d: the snapshot changed", value)
		}
		if got := mustRead(t, v, 65536, 4096); !bytes.Equal(got, make([]byte, 4096)) {
			t.Fatalf("round %d: something newer is left", value)
		}
	}
}

func TestSnapshotHoldsNothingVolatile(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Cached: 1}})
	mustBegin(t, d.Open("a"), filled(4096, 1), 0)
	d.Crash()
	if full, _, _ := sectorsOf(mustRead(t, d.Open("b"), 0, 4096), 1); full != 8 {
		t.Fatal("not in the cache")
	}
	d.Restore(d.Snapshot())
	if full, _, _ := sectorsOf(mustRead(t, d.Open("c"), 0, 4096), 1); full != 0 {
		t.Fatal("the snapshot holds what was only in the cache")
	}
}

func TestGrow(t *testing.T) {
	d := newDisk(t, Config{})
	before := d.Open("a")
	mustWrite(t, before, filled(4096, 1), diskBytes-4096)
	d.Grow(2 * diskBytes)
	after := d.Open("b")
	if before.SizeBytes() != diskBytes || after.SizeBytes() != 2*diskBytes {
		t.Fatalf("sizes %d and %d", before.SizeBytes(), after.SizeBytes())
	}
	if got := mustRead(t, after, diskBytes-4096, 8192); !bytes.Equal(got, append(filled(4096, 1), make([]byte, 4096)...)) {
		t.Fatal("other bytes around the old end")
	}
	mustWrite(t, after, filled(4096, 2), 2*diskBytes-4096)
}

func TestPokeAndPeekTakeAnyOffset(t *testing.T) {
	d := newDisk(t, Config{Odds: Odds{Cached: 1}})
	mustBegin(t, d.Open("a"), filled(4096, 1), 4096)
	d.Crash() // the cache now speaks for [4096, 8192)
	d.Poke([]byte("hello"), 4094)
	got := make([]byte, 9)
	d.Peek(got, 4092)
	if want := "\x00\x00hello\x00\x00"; string(got) != want {
		t.Errorf("peeked %q, want %q", got, want)
	}
	d.Peek(got[:2], 4096+SectorBytes-1)
	if !bytes.Equal(got[:2], []byte{0, 1}) {
		t.Errorf("peeked %v over the edge of the cache, want 0 and 1", got[:2])
	}
}

// play does random things to a disk from a source of its own and returns
// everything that it saw.
func play(d *Disk, rng *rand.Rand, steps int) string {
	var log strings.Builder
	v := d.Open("first")
	var flight []*Write
	for step := range steps {
		offset := rng.Int64N(diskBytes/4096-4) * 4096
		p := filled((1+rng.IntN(4))*4096, byte(step))
		switch rng.IntN(12) {
		case 0, 1, 2:
			fmt.Fprintln(&log, step, v.WriteSync(p, offset))
		case 3, 4, 5:
			if w, err := v.Begin(p, offset); err == nil {
				flight = append(flight, w)
			}
		case 6:
			if len(flight) > 0 {
				v.Progress(flight[rng.IntN(len(flight))])
			}
		case 7, 8:
			if len(flight) > 0 {
				i := rng.IntN(len(flight))
				fmt.Fprintln(&log, step, v.Finish(flight[i]))
				flight = append(flight[:i], flight[i+1:]...)
			}
		case 9:
			fmt.Fprintln(&log, step, v.Flush())
		case 10:
			d.Inject(Fault{Kind: Kind(1 + rng.IntN(int(Conflict))), Times: 1, Chance: 0.7})
		case 11:
			if rng.IntN(3) == 0 {
				d.Crash()
				v, flight = d.Open(fmt.Sprint("host", step)), nil
			}
		}
		seen := make([]byte, len(p))
		n, err := v.ReadAt(seen, offset)
		fmt.Fprintln(&log, step, n, err, seen[0], seen[len(seen)-1])
	}
	return log.String()
}

func content(d *Disk) []byte {
	p := make([]byte, diskBytes)
	d.Peek(p, 0)
	return p
}

func TestEqualSeedsGiveEqualHistories(t *testing.T) {
	seed := newSeed(t)
	run := func(diskSeed uint64) (*Disk, string) {
		d := New(Config{Seed: diskSeed, SizeBytes: diskBytes})
		return d, play(d, rand.New(rand.NewPCG(seed, 2)), 500)
	}
	a, sawA := run(seed)
	b, sawB := run(seed)
	if sawA != sawB || a.Trace() != b.Trace() || !bytes.Equal(content(a), content(b)) {
		t.Errorf("two runs from seed %d differ:\n%s\n%s", seed, a.Trace(), b.Trace())
	}
	c, _ := run(seed + 1)
	if bytes.Equal(content(a), content(c)) {
		t.Error("another seed gives the same disk")
	}
}

func TestCloneHasTheSameFuture(t *testing.T) {
	seed := newSeed(t)
	d := New(Config{Seed: seed, SizeBytes: diskBytes})
	play(d, rand.New(rand.NewPCG(seed, 2)), 200)
	d.Crash() // a clone takes no hosts along
	d.HealAll()
	clone := d.Clone()
	if !bytes.Equal(content(d), content(clone)) {
		t.Fatal("the clone holds other bytes")
	}
	before := content(clone)
	saw := play(d, rand.New(rand.NewPCG(seed, 3)), 200)
	if !bytes.Equal(before, content(clone)) {
		t.Fatal("writing the disk changed its clone")
	}
	if sawClone := play(clone, rand.New(rand.NewPCG(seed, 3)), 200); saw != sawClone || !bytes.Equal(content(d), content(clone)) {
		t.Error("equal calls did other things to the clone")
	}
}

// A finished write outlives everything, whatever happens around it.
func TestFinishedWritesSurviveAnyHistory(t *testing.T) {
	seed := newSeed(t)
	for i := range uint64(200) {
		d := newDisk(t, Config{Seed: seed + i})
		rng := rand.New(rand.NewPCG(seed+i, 4))
		want := map[int64]byte{} // block to the value that was answered
		v := d.Open("a")
		open := map[int64]*Write{}
		for step := range 60 {
			block := rng.Int64N(16)
			value := byte(1 + step)
			switch rng.IntN(6) {
			case 0, 1, 2:
				if open[block] != nil {
					continue // a block has one write at a time, as in the log
				}
				open[block] = mustBegin(t, v, filled(4096, value), block*4096)
				delete(want, block)
			case 3, 4:
				w := open[block]
				if w == nil {
					continue
				}
				if err := v.Finish(w); err != nil {
					t.Fatal(err)
				}
				want[block] = w.data[0]
				delete(open, block)
			case 5:
				if rng.IntN(2) == 0 {
					d.Crash()
					v = d.Open("again")
					clear(open)
				} else if err := v.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			for b, value := range want {
				if got := mustRead(t, v, b*4096, 4096); !bytes.Equal(got, filled(4096, value)) {
					t.Fatalf("seed %d, step %d: block %d lost value %d", seed+i, step, b, value)
				}
			}
		}
	}
}

func TestTraceTellsWhatHappened(t *testing.T) {
	d := newDisk(t, Config{Seed: 7, Odds: Odds{Kept: 1}})
	v := d.Open("a")
	mustWrite(t, v, filled(4096, 1), 8192)
	d.Inject(Fault{Kind: LostWrite, Times: 1})
	mustWrite(t, v, filled(4096, 1), 0)
	mustBegin(t, v, filled(4096, 2), 4096)
	d.Rot(5, 1)
	d.Crash()
	want := `simdev: seed 7, 1048576 bytes, block 4096, 10 events
    1 a: open
    2 a: begin write 1 [8192, 12288)
    3 a: finish write 1 [8192, 12288)
    4 disk: inject lost write
    5 a: begin write 2 [0, 4096) lost write
    6 a: finish write 2 [0, 4096) lost write
    7 a: begin write 3 [4096, 8192)
    8 disk: rot [5, 6) 0x00 to 0x01
    9 disk: crash the cache was empty
   10 a: lands write 3 [4096, 8192) sectors: 8 kept, 0 dropped, 0 torn, 0 cached
`
	if got := d.Trace(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTraceIsBounded(t *testing.T) {
	d := newDisk(t, Config{Seed: 1})
	v := d.Open("a")
	for range TraceEvents {
		mustWrite(t, v, filled(4096, 1), 0)
	}
	lines := strings.Split(strings.TrimSpace(d.Trace()), "\n")
	if len(lines) != TraceEvents+2 { // and the seed, and what is forgotten
		t.Fatalf("%d lines", len(lines))
	}
	if !strings.Contains(lines[1], "4097 earlier events") || !strings.Contains(lines[len(lines)-1], " 8193 a: finish write 4096") {
		t.Errorf("%s\n%s", lines[1], lines[len(lines)-1])
	}
}

// The simulated disk behind the real wrappers.
func TestReadAheadOverTheSimulatedDisk(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	for block := range int64(diskBytes / 4096) {
		mustWrite(t, v, filled(4096, byte(block)), block*4096)
	}
	r, err := device.NewReadAhead(v, 64<<10, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	p := make([]byte, 4096)
	for block := range int64(diskBytes / 4096) {
		if _, err := r.ReadAt(p, block*4096); err != nil || !bytes.Equal(p, filled(4096, byte(block))) {
			t.Fatalf("block %d: %v", block, err)
		}
	}
}

func BenchmarkWriteSync(b *testing.B) {
	d := New(Config{SizeBytes: 64 << 20})
	v := d.Open("a")
	p := filled(64<<10, 1)
	b.SetBytes(int64(len(p)))
	at := int64(0)
	for b.Loop() {
		if err := v.WriteSync(p, at); err != nil {
			b.Fatal(err)
		}
		at = (at + int64(len(p))) % (64 << 20)
	}
}

func BenchmarkReadBlank(b *testing.B) {
	v := New(Config{SizeBytes: 64 << 20}).Open("a")
	p := make([]byte, 4096)
	b.SetBytes(4096)
	at := int64(0)
	for b.Loop() {
		if _, err := v.ReadAt(p, at); err != nil {
			b.Fatal(err)
		}
		at = (at + 4096) % (64 << 20)
	}
}
