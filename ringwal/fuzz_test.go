package ringwal

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// FuzzSuperblock decodes arbitrary bytes, as they are and with a checksum that holds.
func FuzzSuperblock(f *testing.F) {
	b := make([]byte, SlotBytes)
	f.Add(b[:EncodeSuperblock(b, goldenSuperblock())])
	f.Add([]byte(superblockMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		slot := make([]byte, SlotBytes)
		copy(slot, data)
		for range 2 {
			s := decodeSlot(slot)
			if (s.State == SlotValid) != (s.Superblock != nil) || (s.State == SlotDamaged || s.State == SlotForeign) != (s.Err != nil) {
				t.Fatalf("%+v", s)
			}
			if s.State == SlotValid {
				again := make([]byte, SlotBytes)
				EncodeSuperblock(again, s.Superblock)
				if got := decodeSlot(again); !reflect.DeepEqual(got.Superblock, s.Superblock) {
					t.Fatalf("%+v\n%+v", got.Superblock, s.Superblock)
				}
			}
			length := int(binary.LittleEndian.Uint32(slot[sbLength:]))
			if length > SlotBytes-checksumBytes {
				return
			}
			binary.LittleEndian.PutUint64(slot[length:], xxhash.Sum64(slot[:length]))
		}
	})
}

// FuzzFrameHeader decodes arbitrary bytes, as they are and with sums that hold.
func FuzzFrameHeader(f *testing.F) {
	f.Add(goldenFrames()[0].Buf)
	f.Add([]byte("WSF1\x01\x02"))
	check := NewFrameChecker(goldenSuperblock())
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, ok := check.Header(data, 40960); ok && len(data) >= check.StoredBytes(&h) {
			check.Whole(&h, data[:check.StoredBytes(&h)])
		}
		b := make([]byte, 4096)
		copy(b, data)
		h, ok := DecodeFrameHeader(b)
		if !ok {
			binary.LittleEndian.PutUint64(b[fhSum:], xxhash.Sum64(b[:fhSum]))
			if h, ok = DecodeFrameHeader(b); !ok {
				return
			}
		}
		var d xxhash.Digest
		again := h
		encodeFrame(b, &again, &d)
		got, ok := DecodeFrameHeader(b)
		if !ok || got != again || !check.Whole(&got, b) {
			t.Fatalf("%+v\n%+v", got, again)
		}
		again.FrameSum, again.Sum = h.FrameSum, h.Sum
		if again != h {
			t.Fatalf("%+v\n%+v", again, h)
		}
	})
}

// FuzzRecover puts arbitrary bytes over a real log. As they are, every frame that
// comes back is one that was written; with sums that hold, it must only not crash.
func FuzzRecover(f *testing.F) {
	d := newDisk(RingStart+50*4096, 4096)
	r := varied(&testing.T{}, d, func(string, int) {})
	written := map[uint64]uint64{}
	if _, err := r.recover(Visitor{Frame: func(v *FrameView) error { written[v.Position] = v.Sum; return nil }}); err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(RingStart), []byte("WSF1"), false)
	f.Add(uint32(RingStart+15*4096+fhLength), []byte{0xff, 0xff, 0xff, 0xff}, true)
	f.Add(uint32(2*SlotBytes+sbTrim), []byte{0, 0x10}, true)
	f.Fuzz(func(t *testing.T, at uint32, patch []byte, sums bool) {
		x := &rig{t: t, d: d.clone()}
		at %= uint32(len(x.d.b))
		copy(x.d.b[at:], patch)
		if sums {
			fixSums(x.d.b, int64(at))
		}
		sbs, err := ReadSuperblocks(x.d)
		if err != nil {
			if sbs.Newest != nil {
				salvageAll(t, x.d, sbs)
			}
			return
		}
		got, err := Recover(x.d, sbs, Visitor{Frame: func(v *FrameView) error {
			if sum, ok := written[v.Position]; !sums && (!ok || sum != v.Sum) {
				t.Fatalf("a frame at %d that nobody wrote", v.Position)
			}
			return nil
		}})
		if err == nil {
			if err := VerifyTail(x.d, sbs, got); err != nil {
				t.Fatal(err)
			}
			_, _ = Start(sbs, got, Epoch{Number: sbs.MaxEpoch + 1}, nil)
		} else if !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		salvageAll(t, x.d, sbs)
	})
}

func salvageAll(t *testing.T, d *disk, sbs *Superblocks) {
	t.Helper()
	next := sbs.Newest.Trim
	end, err := Salvage(d, sbs, SalvageVisitor{
		Frame: func(f *FrameView) error {
			if f.Position != next {
				t.Fatalf("frame at %d, want %d", f.Position, next)
			}
			next = f.End()
			return nil
		},
		Gap: func(g Gap) error {
			if g.From != next || g.To < g.From {
				t.Fatalf("gap [%d, %d), want one from %d", g.From, g.To, next)
			}
			next = g.To
			return nil
		},
	})
	if err != nil || end != next {
		t.Fatalf("salvage ended at %d, last at %d: %v", end, next, err)
	}
}

// fixSums makes the checksums of the superblock or the frame at offset hold.
func fixSums(b []byte, at int64) {
	le := binary.LittleEndian
	if at < RingStart {
		slot := b[at/SlotBytes*SlotBytes:][:SlotBytes]
		if length := int(le.Uint32(slot[sbLength:])); length <= SlotBytes-checksumBytes {
			le.PutUint64(slot[length:], xxhash.Sum64(slot[:length]))
		}
		return
	}
	frame := b[at/4096*4096:]
	length := int(le.Uint32(frame[fhLength:]))
	if length < FrameHeaderBytes || length > len(frame) {
		length = 4096
	}
	var d xxhash.Digest
	le.PutUint64(frame[fhFrameSum:], frameSum(FrameKind(frame[fhKind]), frame[:length], &d))
	le.PutUint64(frame[fhSum:], xxhash.Sum64(frame[:fhSum]))
}
