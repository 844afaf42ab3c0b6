package ringwal

import (
	"encoding/binary"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// goldenSuperblock has another value in every field.
func goldenSuperblock() *Superblock {
	return &Superblock{
		Major: 1, Minor: 0, Compat: 1 << 3, ROCompat: 1 << 5, Incompat: 1 << 7, Sequence: 42,
		UUID: testUUID, Node: "node-7", Epoch: 9, Incarnation: incarnation(9), BootID: incarnation(90), FenceKey: 0x1122334455667788,
		Geometry:        Geometry{BlockBytes: 4096, MaxFrameBytes: 1 << 20, CapacityBytes: 33292288, WindowBytes: 8 << 20, CheckpointMaxBytes: 4161536},
		FormatSizeBytes: 32 << 20, StallAfter: 10 * time.Second,
		Origin: 4096, Durable: 81920, Trim: 40960, TrimPrevSum: 0xfeedfacecafebeef, Clean: true,
		Boundaries: []Boundary{
			{Epoch: 7, IncarnationHash: 0x7777, FollowEnd: 36864, FollowSum: 0x0123456789abcdef, Start: 36864},
			{Epoch: 9, IncarnationHash: 0x9999, FollowEnd: 45056, FollowSum: 0xfedcba9876543210, Start: 8433664},
		},
	}
}

func TestGoldenSuperblock(t *testing.T) {
	b := make([]byte, SlotBytes)
	n := EncodeSuperblock(b, goldenSuperblock())
	golden(t, "testdata/superblock.bin", b[:n])
	s := decodeSlot(b)
	if s.State != SlotValid || !reflect.DeepEqual(s.Superblock, goldenSuperblock()) {
		t.Fatalf("%v %v\n%+v", s.State, s.Err, s.Superblock)
	}
	// Places that a reader in another language relies on.
	le := binary.LittleEndian
	for at, want := range map[int]uint64{40: 42, 128: 9, 184: 33292288, 240: 40960, 264: 7, 304: 9, 344: xxhash.Sum64(b[:344])} {
		if got := le.Uint64(b[at:]); got != want {
			t.Errorf("word at %d is %d, want %d", at, got, want)
		}
	}
}

// golden compares b with a committed file. The layout is frozen: a difference is a bug
// unless the format's version changes with it; WALSIDECAR_GOLDEN=write writes it.
func golden(t *testing.T, path string, b []byte) {
	t.Helper()
	if os.Getenv("WALSIDECAR_GOLDEN") == "write" {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(b) {
		t.Fatalf("%s: %d bytes differ from the %d committed ones", path, len(b), len(want))
	}
}

func TestFlippedBitInASuperblockIsFound(t *testing.T) {
	b := make([]byte, SlotBytes)
	n := EncodeSuperblock(b, goldenSuperblock())
	for bit := range n * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		want := SlotDamaged
		if bit/8 < len(superblockMagic) {
			want = SlotBlank
		}
		if s := decodeSlot(b); s.State != want {
			t.Fatalf("bit %d: %v", bit, s.State)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

func TestSuperblockThatMakesNoSense(t *testing.T) {
	for name, change := range map[string]func(*Superblock){
		"no node":              func(sb *Superblock) { sb.Node = "" },
		"block":                func(sb *Superblock) { sb.BlockBytes = 5000 },
		"block too small":      func(sb *Superblock) { sb.BlockBytes = 512 },
		"frame":                func(sb *Superblock) { sb.MaxFrameBytes = 4097 },
		"capacity":             func(sb *Superblock) { sb.CapacityBytes = 0 },
		"capacity too large":   func(sb *Superblock) { sb.CapacityBytes = 1 << 61 },
		"window below a frame": func(sb *Superblock) { sb.WindowBytes = 4096 },
		"no stall limit":       func(sb *Superblock) { sb.StallAfter = 0 },
		"trim below origin":    func(sb *Superblock) { sb.Trim = 0 },
		"durable below trim":   func(sb *Superblock) { sb.Durable = 4096 },
		"unaligned":            func(sb *Superblock) { sb.Trim++ },
		"positions run out":    func(sb *Superblock) { sb.Durable = 1<<64 - 4096 },
		"start below":          func(sb *Superblock) { sb.Boundaries[1].Start = 40960 },
		"boundaries descend":   func(sb *Superblock) { sb.Boundaries[1].FollowEnd = 36864 },
		"epochs descend":       func(sb *Superblock) { sb.Boundaries[0].Epoch = 9 },
		"epoch of the future":  func(sb *Superblock) { sb.Epoch = 8 },
	} {
		sb := goldenSuperblock()
		change(sb)
		b := make([]byte, SlotBytes)
		EncodeSuperblock(b, sb)
		if s := decodeSlot(b); s.State != SlotDamaged || !errors.Is(s.Err, ErrDamaged) {
			t.Errorf("%s: %v %v", name, s.State, s.Err)
		}
	}
}

func TestMostBoundariesFit(t *testing.T) {
	sb := goldenSuperblock()
	sb.Boundaries = nil
	for i := range uint64(MaxBoundaries) {
		sb.Boundaries = append(sb.Boundaries, Boundary{Epoch: i + 1, IncarnationHash: i + 1, FollowEnd: 4096 * (i + 1), Start: 4096 * (i + 1)})
	}
	sb.Epoch = MaxBoundaries
	sb.extra = make([]byte, maxExtraBytes)
	b := make([]byte, SlotBytes)
	if n := EncodeSuperblock(b, sb); n != SlotBytes {
		t.Fatalf("%d bytes", n)
	}
	if s := decodeSlot(b); s.State != SlotValid || !reflect.DeepEqual(s.Superblock, sb) {
		t.Fatal(s.State, s.Err)
	}
}

// slotsOf puts superblocks (nil: blank, &Superblock{}: a torn one) on a disk.
func slotsOf(t *testing.T, copies ...*Superblock) *disk {
	t.Helper()
	d := newDisk(32<<20, 4096)
	for i, sb := range copies {
		slot := d.b[i*SlotBytes:]
		switch {
		case sb == nil:
		case sb.Major == 0:
			copy(slot, superblockMagic)
		default:
			EncodeSuperblock(slot, sb)
		}
	}
	return d
}

func version(epoch, sequence uint64) *Superblock {
	sb := goldenSuperblock()
	sb.ROCompat, sb.Incompat = 0, 0
	sb.Epoch, sb.Sequence = epoch, sequence
	sb.Boundaries = nil
	return sb
}

func TestChoiceOfTheNewestSuperblock(t *testing.T) {
	torn := &Superblock{}
	for _, c := range []struct {
		name   string
		slots  []*Superblock
		newest int // −1: error
		err    error
		set    int // first slot that the next epoch writes
		first  int // slot that it writes first
	}{
		{"formatted", []*Superblock{version(0, 1), version(0, 1), version(0, 1), version(0, 1)}, 0, nil, 2, 2},
		{"first start half done", []*Superblock{version(0, 1), version(0, 1), version(1, 2), version(0, 1)}, 2, nil, 0, 0},
		{"first start", []*Superblock{version(0, 1), version(0, 1), version(1, 2), version(1, 2)}, 2, nil, 0, 0},
		{"update half done", []*Superblock{version(0, 1), version(0, 1), version(1, 3), version(1, 2)}, 2, nil, 0, 0},
		{"first copy of an update torn", []*Superblock{version(0, 1), version(0, 1), torn, version(1, 2)}, 3, nil, 0, 0},
		{"epoch before sequence", []*Superblock{version(3, 9), version(3, 10), version(4, 8), version(2, 7)}, 2, nil, 0, 0},
		{"lowest sequence first", []*Superblock{version(4, 12), version(4, 12), version(3, 11), version(3, 10)}, 0, nil, 2, 3},
		{"invalid first", []*Superblock{version(4, 12), version(4, 12), version(3, 10), torn}, 0, nil, 2, 3},
		{"blank device", []*Superblock{nil, nil, nil, nil}, -1, ErrNotALog, 0, 0},
		{"all torn", []*Superblock{torn, torn, torn, torn}, -1, ErrDamaged, 0, 0},
		{"one torn, rest blank", []*Superblock{nil, torn, nil, nil}, -1, ErrDamaged, 0, 0},
		{"a set rotted", []*Superblock{version(3, 9), version(3, 10), torn, torn}, -1, ErrDamaged, 0, 0},
		{"a set blank", []*Superblock{version(0, 1), version(0, 1), nil, nil}, -1, ErrDamaged, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			sbs, err := ReadSuperblocks(slotsOf(t, c.slots...))
			if c.newest < 0 {
				if !errors.Is(err, c.err) {
					t.Fatalf("%v, want %v", err, c.err)
				}
				return
			}
			if err != nil || sbs.NewestSlot != c.newest {
				t.Fatalf("newest is slot %d, %v", sbs.NewestSlot, err)
			}
			l, err := Start(sbs, &Recovery{End: 81920, Next: 81920, CheckpointIsLast: true}, Epoch{Number: sbs.MaxEpoch + 1}, nil)
			if err != nil {
				t.Fatal(err)
			}
			one, _, _ := l.NextSuperblock(0)
			l.SuperblockDone(nil, 0)
			two, _, _ := l.NextSuperblock(0)
			if one != int64(c.first)*SlotBytes || one+two != int64(2*c.set+1)*SlotBytes {
				t.Fatalf("the next epoch writes offsets %d and %d", one, two)
			}
		})
	}
}

func TestUpdatesAlternateBetweenTheCopiesOfOneSet(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	seen := map[int64]int{}
	for range 10 {
		r.log.RecordDurable()
		for {
			offset, b, ok := r.log.NextSuperblock(0)
			if !ok {
				break
			}
			if _, _, again := r.log.NextSuperblock(0); again {
				t.Fatal("two copies on their way at once")
			}
			seen[offset]++
			r.log.SuperblockDone(r.d.WriteSync(b, offset), 0)
		}
	}
	if len(seen) != 2 || seen[2*SlotBytes] != 10 || seen[3*SlotBytes] != 10 {
		t.Fatalf("writes per offset: %v", seen)
	}
}

// Within T of a jump, which is as long as its window is in the log, a start that does not jump
// keeps off the slots of the owner before the last: one of its copies may still land there.
func TestP2_ARestartBehindAJumpKeepsItsPredecessorsSlots(t *testing.T) {
	r := newRig(t, tiny, 0).start(false)
	set := func() int { return r.log.superblock.set }
	first := set()
	if r.start(false); set() == first {
		t.Fatal("a restart wrote the slots of its predecessor, though nothing had jumped")
	}
	if r.start(true); set() != first {
		t.Fatal("a start that jumps wrote the slots of its predecessor")
	}
	for range 2 {
		if r.start(false); set() != first {
			t.Fatal("a restart within T wrote the slots of the owner before the last")
		}
	}
	if r.start(true); set() == first {
		t.Fatal("a start that jumps, from one that had jumped, wrote the slots of its predecessor")
	}
	r.checkpoint([]byte("the newest state"))
	mark, _ := r.log.NewestCheckpoint()
	if err := r.log.SetTrim(mark.Start, mark.PrevSum); err != nil {
		t.Fatal(err)
	}
	r.superblocks()
	if b, unsettled := r.log.Superblock().Jumped(); unsettled {
		t.Fatalf("trimmed to %d, and the boundary %+v still counts as one that jumped", r.log.Trim(), b)
	}
	if r.start(false); set() != first {
		t.Fatal("a restart wrote the slots of its predecessor, though what was jumped over is trimmed")
	}
}

func TestP8_CopiesOfTwoLogsAreRefused(t *testing.T) {
	other := version(9, 9)
	other.UUID[0]++
	_, err := ReadSuperblocks(slotsOf(t, version(0, 1), version(0, 1), other, other))
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "two logs") {
		t.Fatal(err)
	}
}

func TestUnreadableSlots(t *testing.T) {
	d := slotsOf(t, version(3, 9), version(3, 10), version(4, 11), version(4, 12))
	d.badFrom, d.badTo = 3*SlotBytes, 3*SlotBytes+512
	sbs, err := ReadSuperblocks(d)
	if err != nil || sbs.NewestSlot != 2 || sbs.Slots[3].State != SlotUnreadable {
		t.Fatalf("one copy unreadable: %v", err)
	}
	d.badFrom = 2 * SlotBytes
	if _, err := ReadSuperblocks(d); !errors.Is(err, device.ErrRead) || errors.Is(err, ErrDamaged) {
		t.Fatalf("a set unreadable: %v", err)
	}
	d.badFrom, d.badTo = 0, RingStart
	if sbs, err := ReadSuperblocks(d); !errors.Is(err, device.ErrRead) || sbs.Newest != nil {
		t.Fatalf("all unreadable: %v", err)
	}
}

func TestFeatureBits(t *testing.T) {
	with := func(change func(*Superblock)) *disk {
		sb := version(3, 9)
		change(sb)
		return slotsOf(t, sb, sb, version(2, 8), version(2, 7))
	}
	start := func(sbs *Superblocks) (*Log, error) {
		return Start(sbs, &Recovery{End: 81920, Next: 81920, CheckpointIsLast: true}, Epoch{Number: 4}, nil)
	}

	d := with(func(sb *Superblock) { sb.Incompat = 1 << 63 })
	if sbs, err := ReadSuperblocks(d); !errors.Is(err, ErrFormat) || sbs.Newest == nil || !strings.Contains(err.Error(), "0x8000000000000000") {
		t.Errorf("unknown incompatible feature: %v", err)
	}

	d = with(func(sb *Superblock) { sb.ROCompat = 1 })
	sbs, err := ReadSuperblocks(d)
	if err != nil || sbs.UnknownROCompat != 1 {
		t.Errorf("unknown read-only compatible feature: %v", err)
	}
	if _, err := Recover(d, sbs, Visitor{}); errors.Is(err, ErrFormat) {
		t.Errorf("... may be read: %v", err)
	}
	if _, err := start(sbs); !errors.Is(err, ErrFormat) {
		t.Errorf("... may not be started: %v", err)
	}

	// What a later minor version added is carried along by this one.
	d = with(func(sb *Superblock) {
		sb.Minor, sb.Compat, sb.otherFlags, sb.extra = 3, 5, 1<<31, []byte("later field")
	})
	sbs, err = ReadSuperblocks(d)
	if err != nil {
		t.Fatal(err)
	}
	l, err := start(sbs)
	if err != nil {
		t.Fatal(err)
	}
	_, b, _ := l.NextSuperblock(0)
	s := decodeSlot(append(b, make([]byte, SlotBytes)...)[:SlotBytes])
	if sb := s.Superblock; sb == nil || sb.Minor != 3 || sb.Compat != 5 || sb.otherFlags != 1<<31 || string(sb.extra) != "later field" {
		t.Errorf("%+v %v", sb, s.Err)
	}

	d = with(func(sb *Superblock) { sb.Major = 2 })
	if sbs, err := ReadSuperblocks(d); !errors.Is(err, ErrFormat) || sbs.Slots[0].State != SlotForeign || !strings.Contains(err.Error(), "version 2.0") {
		t.Errorf("another major version: %v", err)
	}
}

func TestP8_GeometryOfTheDevice(t *testing.T) {
	d := slotsOf(t, version(0, 1), version(0, 1), version(0, 1), version(0, 1))
	whole := d.b

	d.b = whole[:RingStart+33292288-4096]
	if _, err := ReadSuperblocks(d); !errors.Is(err, ErrGeometry) || !strings.Contains(err.Error(), "33554432") {
		t.Errorf("larger than its device: %v", err)
	}
	d.b, d.block = whole, 8192
	if _, err := ReadSuperblocks(d); !errors.Is(err, ErrGeometry) || !strings.Contains(err.Error(), "8192") {
		t.Errorf("another block size: %v", err)
	}
	d.b, d.block = append(whole, make([]byte, 8<<20)...), 4096
	sbs, err := ReadSuperblocks(d)
	if err != nil || sbs.GrownBytes != 8<<20 || sbs.Newest.CapacityBytes != 33292288 {
		t.Errorf("a device that grew: %v, %+v", err, sbs)
	}
}

func TestFormat(t *testing.T) {
	d := newDisk(MinLogBytes, 4096)
	for i := range d.b {
		d.b[i] = 0xFF
	}
	sb, err := Format(d, FormatOptions{UUID: testUUID, Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	want := Geometry{BlockBytes: 4096, MaxFrameBytes: 1 << 20, CapacityBytes: MinLogBytes - RingStart, WindowBytes: 8 << 20, CheckpointMaxBytes: (MinLogBytes - RingStart) / 8}
	if sb.Geometry != want || sb.StallAfter != 10*time.Second || sb.Limit(ClassAppend) < 12<<20 {
		t.Fatalf("%+v, room for appends %d", sb.Geometry, sb.Limit(ClassAppend))
	}
	sbs, err := ReadSuperblocks(d)
	if err != nil || !reflect.DeepEqual(sbs.Newest, sb) || sbs.MaxEpoch != 0 {
		t.Fatalf("%v\n%+v\n%+v", err, sbs.Newest, sb)
	}
	if r, err := Recover(d, sbs, Visitor{}); err != nil || r.End != 0 || r.HasCheckpoint {
		t.Fatalf("a new log: %+v, %v", r, err)
	}

	sb, err = Format(newDisk(64<<20, 4096), FormatOptions{UUID: testUUID, Node: "n", CapacityBytes: 40 << 20, StallAfter: 3 * time.Second, Origin: 1 << 40})
	if err != nil || sb.CapacityBytes != 40<<20 || sb.CheckpointMaxBytes != 5<<20 || sb.StallAfter != 3*time.Second || sb.Trim != 1<<40 {
		t.Fatalf("%v %+v", err, sb)
	}
	if g, err := DefaultGeometry(1<<40, 65536); err != nil || g.CheckpointMaxBytes != 64<<20 || g.CapacityBytes != 1<<40-RingStart {
		t.Fatalf("%v %+v", err, g)
	}
}

func TestFormatRefuses(t *testing.T) {
	good := FormatOptions{UUID: testUUID, Node: "n"}
	for name, c := range map[string]struct {
		size   int64
		change func(*FormatOptions)
		want   error
	}{
		"too small":        {MinLogBytes - 4096, func(o *FormatOptions) {}, ErrTooSmall},
		"capacity small":   {64 << 20, func(o *FormatOptions) { o.CapacityBytes = 16 << 20 }, ErrTooSmall},
		"no uuid":          {64 << 20, func(o *FormatOptions) { o.UUID = [16]byte{} }, nil},
		"no node":          {64 << 20, func(o *FormatOptions) { o.Node = "" }, nil},
		"long node":        {64 << 20, func(o *FormatOptions) { o.Node = strings.Repeat("n", 64) }, nil},
		"stall":            {64 << 20, func(o *FormatOptions) { o.StallAfter = time.Microsecond }, nil},
		"origin unaligned": {64 << 20, func(o *FormatOptions) { o.Origin = 100 }, nil},
		"origin too far":   {64 << 20, func(o *FormatOptions) { o.Origin = 1<<63 + 4096 }, nil},
		"geometry":         {64 << 20, func(o *FormatOptions) { o.Geometry = &Geometry{BlockBytes: 4096} }, ErrGeometry},
		"geometry too big": {1 << 20, func(o *FormatOptions) { g := tiny; o.Geometry = &g }, ErrGeometry},
		"another block":    {64 << 20, func(o *FormatOptions) { g := tiny; g.BlockBytes = 8192; o.Geometry = &g }, ErrGeometry},
	} {
		d := newDisk(c.size, 4096)
		o := good
		c.change(&o)
		if _, err := Format(d, o); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Trim(string(d.b[:RingStart]), "\x00") != "" {
			t.Errorf("%s: refused, and the device was written", name)
		}
	}

	d := newDisk(64<<20, 4096)
	d.failed = func(offset int64) error {
		if offset == SlotBytes {
			return &device.Error{Op: device.OpWrite, Err: device.ErrNoSpace}
		}
		return nil
	}
	if _, err := Format(d, good); !errors.Is(err, device.ErrNoSpace) {
		t.Errorf("a failed write: %v", err)
	}
	if _, err := ReadSuperblocks(d); !errors.Is(err, ErrDamaged) {
		t.Errorf("a format that did not finish: %v", err)
	}
}

func TestFormatReadsBack(t *testing.T) {
	d := newDisk(64<<20, 4096)
	if _, err := Format(losesWrites{d, 2 * SlotBytes}, FormatOptions{UUID: testUUID, Node: "n"}); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a lost write: %v", err)
	}
}

// losesWrites is a disk that answers a write at one offset and forgets it.
type losesWrites struct {
	*disk
	at int64
}

func (l losesWrites) WriteSync(p []byte, offset int64) error {
	if offset == l.at {
		return nil
	}
	return l.disk.WriteSync(p, offset)
}

func TestEpochsAreDrawnAboveEveryCopy(t *testing.T) {
	sbs, err := ReadSuperblocks(slotsOf(t, version(3, 9), version(3, 10), version(2, 8), version(2, 7)))
	if err != nil || sbs.MaxEpoch != 3 {
		t.Fatal(err)
	}
	r := &Recovery{End: 81920, Next: 81920, CheckpointIsLast: true}
	for name, e := range map[string]Epoch{
		"an epoch that was":        {Number: 3},
		"a stall limit of nothing": {Number: 4, StallAfter: time.Nanosecond},
		"a stall limit of a week":  {Number: 4, StallAfter: 7 * 24 * time.Hour},
	} {
		if _, err := Start(sbs, r, e, nil); !errors.Is(err, ErrEpoch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l, err := Start(sbs, r, Epoch{Number: 4, StallAfter: 2500 * time.Microsecond, FenceKey: 5, BootID: [16]byte{6}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sb := l.Superblock(); sb.StallAfter != 2*time.Millisecond || sb.FenceKey != 5 || sb.BootID[0] != 6 || sb.Epoch != 4 {
		t.Fatalf("%+v", sb)
	}
}
