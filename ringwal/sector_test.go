package ringwal

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

const sectorBytes = 512

// varied is a small log with everything in it: several epochs, a jump, pads, a torn
// tail that was cut off, checkpoints in parts, a trim, frames of all sizes. acked is
// called whenever items[from:] is what the log holds.
func varied(t *testing.T, d *disk, acked func(items string, from int)) *rig {
	t.Helper()
	g := Geometry{BlockBytes: 4096, MaxFrameBytes: 16 << 10, CapacityBytes: 50 * 4096, WindowBytes: 32 << 10, CheckpointMaxBytes: 20 << 10}
	if _, err := Format(d, FormatOptions{UUID: testUUID, Node: "varied", Geometry: &g, Origin: 7 * 4096}); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	r := &rig{t: t, d: d}
	items, from, next := "", 0, byte('a')
	write := func(n int) {
		for i := range n {
			r.put(next, 1+rng.IntN(g.MaxItemBytes()/2))
			if i%3 == 0 {
				r.put('!', 10) // a second item: its frame's first is the one that counts
			}
			r.drain()
			items += string(next)
			next++
			acked(items, from)
		}
	}
	start := func(jump bool) {
		r.start(jump)
		r.log.limits[ClassAppend] = g.CapacityBytes
	}
	start(false)
	write(6)
	r.checkpoint(make([]byte, 18<<10))
	write(3)
	r.trimToCheckpoint()
	from = 6
	acked(items, from)
	r.land(r.issue('X', 3000)) // not acked, but the next start sees it
	start(false)
	items += "X"
	acked(items, from)
	write(2)
	r.issue('Y', 3000)
	r.land(r.issue('Z', 3000))
	start(true)
	write(3)
	return r
}

// A power cut may come after any sector of any write. What was acked by then is there,
// and nothing that was not submitted.
func TestP2_CutAtEverySector(t *testing.T) {
	type moment struct {
		writes int
		items  string
		from   int
	}
	var journal []journaled
	d := newDisk(RingStart+50*4096, 4096)
	d.journal = &journal
	const formatWrites = SlotCount
	moments := []moment{{formatWrites, "", 0}}
	varied(t, d, func(items string, from int) { moments = append(moments, moment{len(journal), items, from}) })
	last := moments[len(moments)-1]
	moments = append(moments, last)

	replay := (&rig{t: t}).on(newDisk(d.SizeBytes(), 4096))
	at := 0
	for i, w := range journal {
		for s := 0; s < len(w.b); s += sectorBytes {
			copy(replay.d.b[w.offset+int64(s):], w.b[s:s+sectorBytes])
			got, err := replay.items()
			if i < formatWrites { // the format has not returned yet
				if err == nil && i < formatWrites/2 {
					t.Fatalf("half a format is a log: write %d, sector %d", i, s/sectorBytes)
				}
				continue
			}
			for at+1 < len(moments) && moments[at+1].writes <= i {
				at++
			}
			if err != nil {
				t.Fatalf("write %d, sector %d: %v", i, s/sectorBytes, err)
			}
			was, soon := moments[at], moments[min(at+1, len(moments)-1)]
			ok := false
			for from := was.from; from <= soon.from; from++ {
				ok = ok || strings.HasPrefix(last.items[from:], got) && from+len(got) >= len(was.items)
			}
			if !ok {
				t.Fatalf("write %d, sector %d: recovered %q, acked %q from %d", i, s/sectorBytes, got, was.items, was.from)
			}
		}
	}
	if at < 15 {
		t.Fatalf("only %d moments", at)
	}
}

// One flipped bit in any sector: everything comes back, or damage is reported at the
// place; what only a later proof could tell from a torn tail is behind the seal.
func TestP7_FlippedBitInEverySector(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 3))
	r := varied(t, newDisk(RingStart+50*4096, 4096), func(string, int) {})
	r.log.Seal(0)
	r.drain()
	seal := r.durable[len(r.durable)-1]
	want, err := r.items()
	if err != nil || seal.Kind != FrameSeal || len(want) < 8 {
		t.Fatalf("%q, %v", want, err)
	}
	trim := r.log.Trim()
	reported, unharmed := 0, 0
	for at := int64(0); at < r.d.SizeBytes(); at += sectorBytes {
		bit := rng.IntN(sectorBytes * 8)
		r.d.b[at+int64(bit/8)] ^= 1 << (bit % 8)
		got, err := r.items()
		var damage *DamageError
		switch {
		case err == nil && got == want:
			unharmed++
		case errors.As(err, &damage):
			reported++
			p := positionOf(r, at, trim)
			if damage.From > p || damage.To <= p {
				t.Fatalf("sector %d, position %d: damage reported at [%d, %d)", at/sectorBytes, p, damage.From, damage.To)
			}
			checkSalvage(t, r, want, damage.From)
		default:
			t.Fatalf("sector %d: recovered %q, %v", at/sectorBytes, got, err)
		}
		r.d.b[at+int64(bit/8)] ^= 1 << (bit % 8)
	}
	// Every sector of every frame from trim to the seal is proven, but for the void
	// of the jump and what a pad does not write.
	stored := 0
	if _, err := r.recover(Visitor{Frame: func(f *FrameView) error {
		if f.Kind == FramePad {
			stored++ // of its block only the first sector is the frame's
		} else {
			stored += int(f.LengthBytes) / sectorBytes
		}
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if stored -= 4096 / sectorBytes; reported != stored {
		t.Fatalf("%d of %d sectors reported, %d unharmed", reported, stored, unharmed)
	}
}

func positionOf(r *rig, at int64, trim uint64) uint64 {
	c := r.sbs.Newest.CapacityBytes
	p := uint64(at-RingStart) / 4096 * 4096
	return trim + (p+c-trim%c)%c
}

// checkSalvage wants everything but the frame at lost, and one gap in its place.
func checkSalvage(t *testing.T, r *rig, want string, lost uint64) {
	t.Helper()
	var got string
	var gaps []Gap
	next := r.sbs.Newest.Trim
	end, err := Salvage(r.d, r.sbs, SalvageVisitor{
		Frame: func(f *FrameView) error {
			if f.Position != next {
				t.Fatalf("frame at %d, want %d", f.Position, next)
			}
			next = f.End()
			if f.Kind == FrameData {
				got += string(f.Body[:1])
			}
			return nil
		},
		Gap: func(g Gap) error {
			if g.From != next {
				t.Fatalf("gap [%d, %d), want one from %d", g.From, g.To, next)
			}
			next = g.To
			if g.Kind == GapLost {
				gaps = append(gaps, g)
			}
			return nil
		},
	})
	if err != nil || end != next {
		t.Fatalf("salvage ended at %d, last frame at %d: %v", end, next, err)
	}
	if len(gaps) != 1 || gaps[0].From != lost {
		t.Fatalf("lost %d: gaps %+v", lost, gaps)
	}
	if len(got) < len(want)-1 || !isSubsequence(got, want) {
		t.Fatalf("salvaged %q of %q", got, want)
	}
}

func isSubsequence(sub, all string) bool {
	for i := range len(all) {
		if sub != "" && sub[0] == all[i] {
			sub = sub[1:]
		}
	}
	return sub == ""
}

func TestP7_ZeroedSectors(t *testing.T) {
	r := varied(t, newDisk(RingStart+50*4096, 4096), func(string, int) {})
	r.log.Seal(0)
	r.drain()
	want, err := r.items()
	if err != nil {
		t.Fatal(err)
	}
	whole := r.d.b
	for at := int64(0); at < r.d.SizeBytes(); at += sectorBytes {
		r.d = r.d.clone()
		copy(r.d.b, whole)
		clear(r.d.b[at : at+sectorBytes])
		got, err := r.items()
		if err != nil && !errors.Is(err, ErrDamaged) || err == nil && got != want {
			t.Fatalf("sector %d: recovered %q, %v", at/sectorBytes, got, err)
		}
	}
}

// The last group, which nothing has proven yet, cannot be told from a torn tail; what
// lies before it can.
func TestLastGroupIsNotProvenWithoutASeal(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	b := r.write('b', 10) - FrameHeaderBytes
	r.wipe(b)
	r.holds("a")

	r = newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	b = r.write('b', 10) - FrameHeaderBytes
	r.log.Seal(0)
	r.drain()
	r.holds("ab")
	r.wipe(b)
	r.damaged(b, b+4096)
}

func TestSalvageOfWhatCannotBeRead(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	b := r.write('b', 5000) - FrameHeaderBytes
	c := r.write('c', 10) - FrameHeaderBytes
	r.write('d', 10)
	r.holds("abcd")
	r.d.badFrom = r.offset(b) + 4096
	r.d.badTo = r.d.badFrom + 512
	var got string
	var gap Gap
	end, err := Salvage(r.d, r.sbs, SalvageVisitor{
		Frame: func(f *FrameView) error { got += string(append(f.Body, '.')[:1]); return nil },
		Gap:   func(g Gap) error { gap = g; return nil },
	})
	if err != nil || got != "sacd" || end != r.log.Durable() {
		t.Fatalf("salvaged %q up to %d, %v", got, end, err)
	}
	if gap.Kind != GapLost || gap.From != b || gap.To != c || !errors.Is(gap.Err, device.ErrRead) {
		t.Fatalf("%+v", gap)
	}
}

// A long stretch of rot, longer than any scan of a recovery, and one at the very end.
func TestSalvageOfALongGap(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	from := r.log.Durable()
	for range 40 {
		r.write('x', 10000)
	}
	to := r.log.Durable()
	r.write('b', 10)
	r.start(true)
	r.write('c', 10)
	end := r.log.Durable()
	r.log.RecordDurable()
	r.superblocks()
	r.holds("a" + strings.Repeat("x", 40) + "bc")
	clear(r.d.b[r.offset(from) : r.offset(from)+int64(to-from)])
	r.wipe(end - 4096)

	var got string
	var gaps []Gap
	salvaged, err := Salvage(r.d, r.sbs, SalvageVisitor{
		Frame: func(f *FrameView) error {
			if f.Kind == FrameData {
				got += string(f.Body[:1])
			}
			return nil
		},
		Gap: func(g Gap) error { gaps = append(gaps, g); return nil },
	})
	if err != nil || got != "ab" || salvaged != end {
		t.Fatalf("salvaged %q up to %d of %d, %v", got, salvaged, end, err)
	}
	void := r.sbs.Newest.Boundaries[len(r.sbs.Newest.Boundaries)-1]
	want := []Gap{{Kind: GapLost, From: from, To: to}, {Kind: GapVoid, From: void.FollowEnd, To: void.Start}, {Kind: GapLost, From: end - 4096, To: end}}
	if len(gaps) != 3 || gaps[0] != want[0] || gaps[1] != want[1] || gaps[2] != want[2] {
		t.Fatalf("gaps %+v, want %+v", gaps, want)
	}
}

// A device that was cut, or a copy that did not finish: what lies on it is read.
func TestSalvageOfALogThatWasCut(t *testing.T) {
	r := newRig(t, tiny, tiny.CapacityBytes-6*4096).start(false)
	r.write('a', 10)
	r.write('b', tiny.MaxItemBytes()) // to the ring's end
	if r.log.Head()%tiny.CapacityBytes > tiny.CapacityBytes/2 {
		t.Fatalf("the log does not wrap: head %d", r.log.Head())
	}
	r.write('c', 10)
	r.write('d', 10)
	r.d.b = r.d.b[:len(r.d.b)-5*4096] // a and b are gone
	sbs, err := ReadSuperblocks(r.d)
	if !errors.Is(err, ErrGeometry) {
		t.Fatal(err)
	}
	got := ""
	end, err := Salvage(r.d, sbs, SalvageVisitor{Frame: func(f *FrameView) error { got += string(append(f.Body, '.')[:1]); return nil }})
	if err != nil || got != "scd" || end != r.log.Durable() {
		t.Fatalf("salvaged %q up to %d of %d, %v", got, end, r.log.Durable(), err)
	}
}

func TestSalvageNeedsASuperblock(t *testing.T) {
	d := newDisk(1<<20, 4096)
	sbs, err := ReadSuperblocks(d)
	if !errors.Is(err, ErrNotALog) {
		t.Fatal(err)
	}
	if _, err := Salvage(d, sbs, SalvageVisitor{}); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
}
