package ringwal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
)

func TestBoundariesThatMerge(t *testing.T) {
	const trim, proven = 100, 800
	single := func(epoch, at uint64) Boundary {
		return Boundary{Epoch: epoch, IncarnationHash: 1000 + epoch, FollowEnd: at, FollowSum: 2000 + epoch, Start: at}
	}
	jump := func(epoch, at uint64) Boundary {
		b := single(epoch, at)
		b.Start += 50
		return b
	}
	merged := func(oldest, newest, at uint64) Boundary {
		b := single(oldest, at)
		b.Epoch, b.IncarnationHash = newest, 0
		return b
	}
	for name, c := range map[string]struct{ from, to []Boundary }{
		"none":                        {nil, nil},
		"one":                         {[]Boundary{single(1, 100)}, []Boundary{single(1, 100)}},
		"the newest stays":            {[]Boundary{single(1, 100), single(2, 200)}, []Boundary{single(1, 100), single(2, 200)}},
		"neighbours":                  {[]Boundary{single(1, 100), single(2, 200), single(3, 300)}, []Boundary{merged(1, 2, 100), single(3, 300)}},
		"epochs that wrote nothing":   {[]Boundary{single(1, 100), single(7, 200), single(9, 300)}, []Boundary{merged(1, 7, 100), single(9, 300)}},
		"merged before":               {[]Boundary{merged(1, 5, 100), single(6, 200), single(7, 300)}, []Boundary{merged(1, 6, 100), single(7, 300)}},
		"below trim stays":            {[]Boundary{single(1, 50), single(2, 200), single(3, 300), single(4, 400)}, []Boundary{single(1, 50), merged(2, 3, 200), single(4, 400)}},
		"a jump stays":                {[]Boundary{single(1, 100), single(2, 200), jump(3, 300), single(4, 400), single(5, 500), single(6, 600)}, []Boundary{merged(1, 2, 100), jump(3, 300), merged(4, 5, 400), single(6, 600)}},
		"first frame proven, just so": {[]Boundary{single(1, 100), single(2, 200), single(3, 800)}, []Boundary{merged(1, 2, 100), single(3, 800)}},
		"first frame not proven":      {[]Boundary{single(1, 100), single(2, 200), single(3, 700), single(4, 900)}, []Boundary{merged(1, 2, 100), single(3, 700), single(4, 900)}},
	} {
		sb := &Superblock{Trim: trim, Boundaries: append([]Boundary(nil), c.from...)}
		sb.mergeBoundaries(proven)
		if fmt.Sprint(sb.Boundaries) != fmt.Sprint(c.to) {
			t.Errorf("%s:\n%+v, want\n%+v", name, sb.Boundaries, c.to)
		}
	}
}

// loopGeometry has room for some nine hundred starts of one frame each.
var loopGeometry = Geometry{BlockBytes: 4096, MaxFrameBytes: 8 << 10, CapacityBytes: 4 << 20, WindowBytes: 32 << 10, CheckpointMaxBytes: 16 << 10}

// loop is a log that crashes in a loop.
type loop struct {
	*rig
	acked  string
	ghosts []*Frame // that landed behind a hole: never acked
	holes  []*Frame // that never landed
}

// newLoop is a log with so many boundaries that the next start merges. Each run wrote one
// frame, then one that never landed, then one that did: a ghost behind a hole. The
// next run's frame fills the hole, and so the ghost lies where that run ends.
func newLoop(t *testing.T) *loop {
	theLoop.Do(func() {
		theLoop.loop = &loop{rig: newRig(t, loopGeometry, 7*4096)}
		for i := range mergeAbove {
			theLoop.run(byte('a' + i%26))
		}
	})
	l := *theLoop.loop
	l.rig = &rig{t: t, d: l.d.clone(), epoch: l.epoch}
	return &l
}

// theLoop is made once for all tests.
var theLoop struct {
	sync.Once
	*loop
}

func (l *loop) run(value byte) {
	l.t.Helper()
	if err := l.begin(false); err != nil {
		l.t.Fatalf("start %d: %v", l.epoch, err)
	}
	l.superblocks()
	if !l.rec.HasCheckpoint || l.epoch%100 == 0 {
		l.checkpoint([]byte("0123456789abcdef"))
	}
	l.durable = nil
	l.write(value, 10)
	l.acked += string(value)
	l.holes = append(l.holes, l.issue('!', 10))
	ghost := l.issue('X', 10)
	l.land(ghost)
	l.ghosts = append(l.ghosts, ghost)
}

// at is the loop with what lies on its disk, to be spoilt.
func (l *loop) at(d *disk) *loop {
	c := *l
	c.rig = l.on(d.clone())
	return &c
}

func TestStartMergesWhatTheCrashLoopLeft(t *testing.T) {
	l := newLoop(t)
	l.holds(l.acked)
	before := l.sbs.Newest.Boundaries
	if len(before) != mergeAbove || before[300].merged() {
		t.Fatalf("%d boundaries, epoch 301: %+v", len(before), before[300])
	}
	l.run('!')
	l.holds(l.acked)
	got := l.sbs.Newest.Boundaries
	if len(got) != 3 {
		t.Fatalf("%d boundaries", len(got))
	}
	newest := before[mergeAbove-1]
	want := []Boundary{
		{Epoch: mergeAbove - 1, FollowEnd: 7 * 4096, Start: 7 * 4096},
		newest,
		{Epoch: mergeAbove + 1, IncarnationHash: xxhash.Sum64(ptr(incarnation(mergeAbove + 1))), FollowEnd: newest.FollowEnd + 4096,
			Start: newest.FollowEnd + 4096},
	}
	want[2].FollowSum = got[2].FollowSum // of the last frame of the run before
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	end, err := Salvage(l.d, l.sbs, SalvageVisitor{Gap: func(g Gap) error { return fmt.Errorf("a gap: %+v", g) }})
	if err != nil || end != l.rec.End {
		t.Fatalf("salvage ends at %d, recovery at %d: %v", end, l.rec.End, err)
	}
}

func ptr(b [16]byte) []byte { return b[:] }

// An epoch whose frames nothing proves stays by itself: what was only in a cache may
// be gone, and an older frame back in its place.
func TestP3_UnprovenEpochsAreNotMerged(t *testing.T) {
	l := newLoop(t)
	if err := l.begin(false); err != nil {
		t.Fatal(err)
	}
	newest := l.sbs.Newest.Boundaries[mergeAbove-1]
	if l.rec.Proven != newest.FollowEnd || l.rec.End != newest.FollowEnd+4096 {
		t.Fatalf("proven %d, end %d, newest boundary %+v", l.rec.Proven, l.rec.End, newest)
	}
	got := l.log.Superblock().Boundaries
	if len(got) != 3 {
		t.Fatalf("%d boundaries", len(got))
	}
	if !got[0].merged() || got[0].Epoch != mergeAbove-1 || got[1] != newest || got[2].Epoch != mergeAbove+1 {
		t.Fatalf("%+v", got)
	}
}

// A start that merges and crashes in any of its writes, of which any part lands, is
// repeated by another that merges, and the log is what it was.
func TestP2_CrashAtEveryWriteOfAMergingStart(t *testing.T) {
	l := newLoop(t)
	base := l.d
	for _, jumps := range []int{0, 3} {
		for k := range 4 {
			for _, sectors := range []int{0, 1, 8} {
				x := l.at(base)
				if !x.startUpTo(jumps&1 != 0, k, sectors) {
					t.Fatalf("a start has only %d writes", k)
				}
				x.holds(l.acked)
				once := x.d
				for k2 := range 2 {
					y := l.at(once)
					y.startUpTo(jumps&2 != 0, k2, 1)
					y.start(false).write('?', 10)
					y.holds(l.acked + "?")
					if n := len(y.sbs.Newest.Boundaries); n > 10 {
						t.Fatalf("%d boundaries", n)
					}
				}
			}
		}
	}
}

// Frames that merged boundaries voided are back, each in its place, as if the write over
// it had been lost. They are not returned, and what they have taken away is noticed.
func TestP3_GhostsOfMergedEpochs(t *testing.T) {
	l := newLoop(t)
	l.start(false).write('?', 10)
	l.acked += "?"
	l.holds(l.acked)
	base, newest := l.d, l.sbs.Newest.Boundaries[len(l.sbs.Newest.Boundaries)-1]
	for i := 0; i < mergeAbove-3; i += 31 {
		x := l.at(base)
		x.land(l.ghosts[i]) // carries the sum of a frame that was never there
		x.sbs = l.sbs
		x.damaged(l.ghosts[i].Position, newest.FollowEnd)

		// This one carries the sum of the frame before it: it could have come next, and
		// what came instead does not follow it.
		x = l.at(base)
		x.land(l.holes[i])
		if got, err := x.items(); !errors.Is(err, ErrDamaged) {
			t.Fatalf("recovery returned %q, %v", got, err)
		}
	}
}

// A jump stays by itself among merged ones: a late write lands where it left the log void.
func TestP3_LateWritesBetweenMergedEpochs(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	r.write('a', 10)
	r.start(false).write('b', 10)
	late := r.issue('!', 10)
	r.start(true).write('c', 10)
	r.start(false).write('d', 10)
	r.start(false).write('e', 10)
	r.start(false)
	r.mergeNow()
	r.land(late)
	r.holds("abcde")
	got := r.sbs.Newest.Boundaries
	if len(got) != 4 || !got[0].merged() || got[1].merged() || got[1].Start != got[1].FollowEnd+tiny.WindowBytes || !got[2].merged() {
		t.Fatalf("%+v", got)
	}
	r.start(true).write('f', 10)
	r.holds("abcdef")
}

func TestP7_FlippedBitInAMergedRange(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 3))
	l := newLoop(t)
	l.start(false).write('?', 10)
	l.holds(l.acked + "?")
	newest := l.sbs.Newest.Boundaries[len(l.sbs.Newest.Boundaries)-1]
	for range 200 {
		p := 7*4096 + rng.Uint64N((newest.FollowEnd-7*4096)/4096)*4096 // every frame takes one block
		at, bit := l.offset(p)+rng.Int64N(4096), byte(1)<<rng.IntN(8)
		l.d.b[at] ^= bit
		l.damaged(p, newest.FollowEnd)
		l.d.b[at] ^= bit
	}
	l.holds(l.acked + "?")
}

// marks are the places between the frames of a log, with the items behind each.
func (l *loop) marks() (out []frameMark, behind []string) {
	l.t.Helper()
	seen := 0
	if _, err := l.recover(Visitor{Frame: func(f *FrameView) error {
		out, behind = append(out, frameMark{f.Position, f.PrevSum}), append(behind, l.acked[seen:])
		if f.Kind == FrameData {
			seen++
		}
		return nil
	}}); err != nil {
		l.t.Fatal(err)
	}
	return out, behind
}

func TestTrimIntoAMergedRange(t *testing.T) {
	l := newLoop(t)
	l.start(false).write('?', 10)
	l.acked += "?"
	marks, behind := l.marks()
	base, before := l.d, l.sbs.Newest.Boundaries
	for i := 1; i < len(marks)-10; i += 97 {
		x := l.at(base)
		x.start(false)
		if err := x.log.SetTrim(marks[i].position, marks[i].sum); err != nil {
			t.Fatal(err)
		}
		x.superblocks()
		x.holds(behind[i])
		if got := x.sbs.Newest.Boundaries[0]; got != before[0] {
			t.Fatalf("trim at %d: %+v, want %+v", marks[i].position, got, before[0])
		}
		// The epochs go on, and are merged again, the first range as it is: its
		// oldest frames are not there to be read.
		trimmed := x.d.clone()
		for range 4 {
			x.start(false).write('.', 10)
		}
		x.mergeNow()
		x.holds(behind[i] + "....")
		if got := x.sbs.Newest.Boundaries; len(got) != 3 || got[0] != before[0] || !got[1].merged() {
			t.Fatalf("%+v", got)
		}
		// The frame at trim is lost, and an older one is back that trim's sum allows: the
		// sums behind it do not.
		if ghost := l.ghostAt(marks[i].position); ghost != nil {
			x = l.at(trimmed)
			x.land(ghost)
			x.setSuperblocks(func(sb *Superblock) {
				if sb.Trim == marks[i].position {
					sb.TrimPrevSum = ghost.PrevSum
				}
			})
			if got, err := x.items(); !errors.Is(err, ErrDamaged) {
				t.Fatalf("recovery returned %q, %v", got, err)
			}
		}
	}
}

func (l *loop) ghostAt(position uint64) *Frame {
	for _, f := range l.ghosts {
		if f.Position == position {
			return f
		}
	}
	return nil
}

// setSuperblocks changes every copy on the disk.
func (r *rig) setSuperblocks(change func(*Superblock)) {
	for i := range SlotCount {
		if sb := decodeSlot(r.d.b[i*SlotBytes : (i+1)*SlotBytes]).Superblock; sb != nil {
			change(sb)
			EncodeSuperblock(r.d.b[i*SlotBytes:], sb)
		}
	}
}

// What a merged boundary lets in: its epochs, none twice, each of one incarnation.
func TestEpochsOfAMergedRange(t *testing.T) {
	type frame struct{ epoch, incarnation uint64 }
	for name, c := range map[string]struct {
		frames []frame
		taken  int
	}{
		"one epoch":            {[]frame{{3, 1}, {3, 1}}, 2},
		"each has its own":     {[]frame{{3, 1}, {4, 2}, {5, 3}}, 3},
		"some wrote nothing":   {[]frame{{5, 3}, {9, 3}}, 2},
		"an epoch falls":       {[]frame{{4, 2}, {3, 1}}, 1},
		"an epoch comes back":  {[]frame{{3, 1}, {4, 2}, {3, 1}}, 2},
		"another incarnation":  {[]frame{{3, 1}, {3, 2}}, 1},
		"of the epoch before":  {[]frame{{1, incarnationHash(incarnation(1))}, {3, 1}}, 0},
		"of the epoch behind":  {[]frame{{3, 1}, {10, 4}}, 1},
		"above all that it is": {[]frame{{1 << 60, 1}}, 0},
	} {
		r := newRig(t, tiny, 0).start(false)
		start, sum := r.log.Head(), r.durable[len(r.durable)-1].Sum
		for _, f := range c.frames {
			r.log.identity.Epoch, r.log.identity.IncarnationHash = f.epoch, f.incarnation
			r.write('x', 10)
		}
		end := r.log.Head()
		r.setSuperblocks(func(sb *Superblock) {
			sb.Epoch = 10
			sb.Boundaries = []Boundary{
				{Epoch: 1, IncarnationHash: incarnationHash(incarnation(1))},
				{Epoch: 9, FollowEnd: start, FollowSum: sum, Start: start},
				{Epoch: 10, IncarnationHash: 4, FollowEnd: end, FollowSum: r.log.sum, Start: end},
			}
		})
		got, err := r.items()
		if c.taken == len(c.frames) {
			if err != nil || len(got) != c.taken {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			continue
		}
		var damage *DamageError
		if !errors.As(err, &damage) || damage.From != start+uint64(c.taken)*4096 || damage.To != end {
			t.Errorf("%s: %q, %v; want damage [%d, %d)", name, got, err, start+uint64(c.taken)*4096, end)
		}
	}
}

// mergeNow merges the boundaries on the disk, however few they are.
func (r *rig) mergeNow() {
	r.t.Helper()
	if _, err := r.recover(Visitor{}); err != nil {
		r.t.Fatal(err)
	}
	r.setSuperblocks(func(sb *Superblock) { sb.mergeBoundaries(r.rec.End) })
}

// salvaged are the first bytes of the data frames that survive.
func (r *rig) salvaged() (items string, lost []Gap) {
	r.t.Helper()
	sbs, err := ReadSuperblocks(r.d)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := Salvage(r.d, sbs, SalvageVisitor{
		Frame: func(f *FrameView) error {
			if f.Kind == FrameData {
				items += string(f.Body[:1])
			}
			return nil
		},
		Gap: func(g Gap) error { lost = append(lost, g); return nil },
	}); err != nil {
		r.t.Fatal(err)
	}
	salvageAll(r.t.(*testing.T), r.d, sbs)
	return items, lost
}

func TestSalvageInAMergedRange(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	var at []uint64
	for _, value := range "abcdefghijkl" {
		r.start(false)
		at = append(at, r.write(byte(value), 10)-FrameHeaderBytes)
	}
	r.start(false)
	r.mergeNow()
	r.wipe(at[1])
	if items, lost := r.salvaged(); items != "acdefghijkl" || len(lost) != 1 || lost[0] != (Gap{Kind: GapLost, From: at[1], To: at[1] + 4096}) {
		t.Fatalf("%q, %+v", items, lost)
	}
	// Less than a frame between two gaps is given up.
	r.wipe(at[3])
	if items, lost := r.salvaged(); items != "aefghijkl" || len(lost) != 1 || lost[0] != (Gap{Kind: GapLost, From: at[1], To: at[3] + 4096}) {
		t.Fatalf("%q, %+v", items, lost)
	}
	// What ends with the range is as good as a longer one.
	r.wipe(at[10])
	if items, _ := r.salvaged(); items != "aefghijl" {
		t.Fatalf("%q", items)
	}
}

// A client that knows the log's UUID, the epoch and the position can write a frame into
// its payload. It does not come out as one, not even where the frame around it
// is lost.
func TestP9_ForgedFrameInAMergedRange(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	for range 5 {
		r.start(false)
		r.write('a', 10)
	}
	dst, position, err := r.log.Reserve(ClassAppend, 9000, 1)
	if err != nil {
		t.Fatal(err)
	}
	position -= FrameHeaderBytes
	clear(dst)
	forge := func(at, length int, prev uint64) uint64 {
		h := FrameHeader{Kind: FrameData, UUIDHash: r.log.identity.UUIDHash, Epoch: r.epoch, IncarnationHash: 0x5555,
			Position: position + uint64(at), LengthBytes: uint32(length), BodyBytes: 10, Items: 1, PrevSum: prev, Durable: position}
		var d xxhash.Digest
		frame := make([]byte, length)
		frame[FrameHeaderBytes] = 'F'
		encodeFrame(frame, &h, &d)
		copy(dst[at-FrameHeaderBytes:], frame)
		return h.Sum
	}
	forge(8192, 4096, forge(4096, 4096, 0))
	dst[0] = 'b'
	r.drain()
	for range 5 {
		r.start(false)
		r.write('c', 10)
	}
	r.start(false)
	r.mergeNow()
	r.holds("aaaaabccccc")
	r.wipe(position)
	if items, lost := r.salvaged(); items != "aaaaaccccc" || len(lost) != 1 {
		t.Fatalf("%q, %+v", items, lost)
	}
}

// The last boundaries that cannot be merged run out, and nothing else.
func TestTooManyJumps(t *testing.T) {
	sb := version(1, 1)
	sb.Origin, sb.Trim, sb.Durable = 0, 0, 0
	const step = 1 << 16
	for i := range uint64(MaxBoundaries) {
		sb.Boundaries = append(sb.Boundaries, Boundary{Epoch: i + 1, IncarnationHash: 1, FollowEnd: i * step, Start: i*step + 4096})
	}
	sb.Epoch = MaxBoundaries
	sbs := &Superblocks{Newest: sb, MaxEpoch: sb.Epoch}
	next := uint64(MaxBoundaries * step)
	r := &Recovery{End: next, Next: next, Proven: next, HasCheckpoint: true, CheckpointIsLast: true}
	sb.CapacityBytes = 1 << 40
	_, err := Start(sbs, r, Epoch{Number: sb.Epoch + 1}, nil)
	if !errors.Is(err, ErrTooManyBoundaries) || !strings.Contains(err.Error(), "salvage") {
		t.Fatal(err)
	}
	// One that follows the same frame as the last replaces it.
	r.End, r.Next = next-step, next-step+4096
	if _, err := Start(sbs, r, Epoch{Number: sb.Epoch + 1}, nil); err != nil {
		t.Fatal(err)
	}
	// Without jumps it is never too many.
	for i := range sb.Boundaries {
		sb.Boundaries[i].Start = sb.Boundaries[i].FollowEnd
	}
	r.End, r.Next = next, next
	if l, err := Start(sbs, r, Epoch{Number: sb.Epoch + 1}, nil); err != nil || len(l.Superblock().Boundaries) != 2 {
		t.Fatal(err)
	}
}

// xxhash64 of 16 bytes can be inverted, so there is an incarnation whose hash is 0.
func TestIncarnationWhoseHashIsZero(t *testing.T) {
	const p1, p2, p4, p5 = 11400714785074694791, 14029467366897019727, 9650029242287828579, 2870177450012600261
	inverse := func(x uint64) uint64 { // of an odd number, modulo 2^64
		y := x
		for range 6 {
			y *= 2 - x*y
		}
		return y
	}
	round := func(k uint64) uint64 { return bits.RotateLeft64(k*p2, 31) * p1 }
	unround := func(x uint64) uint64 { return bits.RotateLeft64(x*inverse(p1), -31) * inverse(p2) }
	var zero [16]byte
	binary.LittleEndian.PutUint64(zero[:], 42)
	h := uint64(p5) + 16
	h = bits.RotateLeft64(h^round(42), 27)*p1 + p4
	minus := ^uint64(p4) + 1
	binary.LittleEndian.PutUint64(zero[8:], unround(bits.RotateLeft64(minus*inverse(p1), -27)^h))
	if xxhash.Sum64(zero[:]) != 0 || incarnationHash(zero) != 1 || incarnationHash(incarnation(1)) != xxhash.Sum64(ptr(incarnation(1))) {
		t.Fatalf("hash %016x, %016x", xxhash.Sum64(zero[:]), incarnationHash(zero))
	}
	r := newRig(t, tiny, 0)
	if _, err := r.recover(Visitor{}); err != nil {
		t.Fatal(err)
	}
	l, err := Start(r.sbs, r.rec, Epoch{Number: 1, Incarnation: zero, CheckpointStateBytes: 16}, nil)
	if err != nil || l.Superblock().Boundaries[0].IncarnationHash != 1 || l.identity.IncarnationHash != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
}

func TestGoldenMergedSuperblock(t *testing.T) {
	sb := goldenSuperblock()
	sb.Boundaries = []Boundary{
		{Epoch: 3, IncarnationHash: 0x3333, FollowEnd: 32768, FollowSum: 0x1111, Start: 32768},
		{Epoch: 7, FollowEnd: 36864, FollowSum: 0x0123456789abcdef, Start: 36864},
		{Epoch: 9, IncarnationHash: 0x9999, FollowEnd: 45056, FollowSum: 0xfedcba9876543210, Start: 8433664},
	}
	b := make([]byte, SlotBytes)
	golden(t, "testdata/superblock-merged.bin", b[:EncodeSuperblock(b, sb)])
	if s := decodeSlot(b); s.State != SlotValid || !s.Superblock.Boundaries[1].merged() {
		t.Fatal(s.State, s.Err)
	}
	for name, change := range map[string]func(b []Boundary){
		"the newest":  func(b []Boundary) { b[2].IncarnationHash, b[2].Start = 0, b[2].FollowEnd },
		"one jumping": func(b []Boundary) { b[1].Start += 4096 },
	} {
		sb := *sb
		sb.Boundaries = append([]Boundary(nil), sb.Boundaries...)
		change(sb.Boundaries)
		EncodeSuperblock(b, &sb)
		if s := decodeSlot(b); s.State != SlotDamaged {
			t.Errorf("merged %s: %v", name, s.State)
		}
	}
}
