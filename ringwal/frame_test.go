package ringwal

import (
	"encoding/binary"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// goldenFrames are one frame of each kind, of the log of goldenSuperblock, with the
// bytes that would be written.
func goldenFrames() []*Frame {
	sb := goldenSuperblock()
	identity := FrameHeader{UUIDHash: xxhash.Sum64(sb.UUID[:]), Epoch: 7, IncarnationHash: 0x7777}
	frame := func(kind FrameKind, position uint64, length int, body string, change func(*FrameHeader)) *Frame {
		f := &Frame{FrameHeader: identity, Buf: make([]byte, length)}
		f.Kind, f.Position, f.LengthBytes = kind, position, uint32(length)
		f.BodyBytes = uint32(len(body))
		copy(f.Buf[FrameHeaderBytes:], body)
		change(&f.FrameHeader)
		var d xxhash.Digest
		encodeFrame(f.Buf, &f.FrameHeader, &d)
		return f
	}
	first := frame(FrameCheckpoint, 36864, 4096, "the state of the streams", func(h *FrameHeader) {
		h.PrevSum, h.Durable, h.CheckpointStart, h.Parts = 0x0123456789abcdef, 36864, 36864, 1
	})
	second := frame(FrameData, 40960, 4096, "an item, padded to eight", func(h *FrameHeader) {
		h.PrevSum, h.Durable, h.Records, h.Items = first.Sum, 36864, 3, 1
	})
	seal := frame(FrameSeal, 45056, 4096, "", func(h *FrameHeader) { h.PrevSum, h.Durable = second.Sum, 45056 })
	pad := frame(FramePad, 33292288-3*4096, 4096, "", func(h *FrameHeader) {
		h.PrevSum, h.Durable, h.LengthBytes = seal.Sum, 49152, 3*4096
	})
	return []*Frame{first, second, seal, pad}
}

func TestGoldenFrames(t *testing.T) {
	var all []byte
	for _, f := range goldenFrames() {
		all = append(all, f.Buf...)
	}
	golden(t, "testdata/frames.bin", all)
	// Places that a reader in another language relies on.
	le := binary.LittleEndian
	b := all[4096:]
	if string(b[:6]) != "WSF1\x01\x01" || le.Uint64(b[16:]) != 7 || le.Uint64(b[32:]) != 40960 || le.Uint32(b[40:]) != 4096 ||
		le.Uint32(b[44:]) != 24 || le.Uint32(b[48:]) != 3 || le.Uint32(b[52:]) != 1 || le.Uint64(b[56:]) != le.Uint64(all[120:]) || le.Uint64(b[64:]) != 36864 {
		t.Fatalf("% x", b[:128])
	}
}

func TestHeadersThatAreNoFrameThere(t *testing.T) {
	sb := goldenSuperblock()
	check := NewFrameChecker(sb)
	good := goldenFrames()
	for i, position := range []uint64{36864, 40960} {
		if _, ok := check.Header(good[i].Buf, position); !ok {
			t.Fatalf("frame %d is refused", i)
		}
	}
	// Epoch 9 follows the frame that ends at 45056 and jumped: the seal there is void,
	// and so is every place up to its start.
	if _, ok := check.Header(good[2].Buf, 45056); ok {
		t.Error("a frame of an older epoch, where a later one follows")
	}
	if check.Next(45056) != 8433664 || check.Next(40960) != 40960 {
		t.Error("where the log goes on")
	}
	for name, change := range map[string]func(*FrameHeader){
		"another log":           func(h *FrameHeader) { h.UUIDHash++ },
		"another place":         func(h *FrameHeader) { h.Position += 4096 },
		"a lap later":           func(h *FrameHeader) { h.Position += sb.CapacityBytes },
		"an older epoch":        func(h *FrameHeader) { h.Epoch = 6 },
		"a later epoch":         func(h *FrameHeader) { h.Epoch = 9 },
		"another incarnation":   func(h *FrameHeader) { h.IncarnationHash++ },
		"no kind":               func(h *FrameHeader) { h.Kind = 5 },
		"no length":             func(h *FrameHeader) { h.LengthBytes = 0 },
		"half a block":          func(h *FrameHeader) { h.LengthBytes = 2048 },
		"over the limit":        func(h *FrameHeader) { h.LengthBytes = 1<<20 + 4096 },
		"over a boundary":       func(h *FrameHeader) { h.LengthBytes = 8192 },
		"body over the frame":   func(h *FrameHeader) { h.BodyBytes = 4096 - FrameHeaderBytes + 1 },
		"durable in the future": func(h *FrameHeader) { h.Durable = 45056 },
		"part of nothing":       func(h *FrameHeader) { h.Kind = FrameCheckpoint },
		"first part elsewhere":  func(h *FrameHeader) { h.Kind, h.Parts, h.CheckpointStart = FrameCheckpoint, 1, 36864 },
		"pad inside the ring":   func(h *FrameHeader) { h.Kind, h.BodyBytes = FramePad, 0 },
		"seal with a body":      func(h *FrameHeader) { h.Kind = FrameSeal },
	} {
		f := goldenFrames()[1]
		change(&f.FrameHeader)
		var d xxhash.Digest
		encodeFrame(f.Buf, &f.FrameHeader, &d)
		if _, ok := check.Header(f.Buf, 40960); ok {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFlippedBitInAFrameIsFound(t *testing.T) {
	check := NewFrameChecker(goldenSuperblock())
	f := goldenFrames()[1]
	for bit := range 4096 * 8 {
		f.Buf[bit/8] ^= 1 << (bit % 8)
		h, ok := check.Header(f.Buf, 40960)
		if ok != (bit/8 >= FrameHeaderBytes) || ok && check.Whole(&h, f.Buf) {
			t.Fatalf("bit %d: header %v", bit, ok)
		}
		f.Buf[bit/8] ^= 1 << (bit % 8)
	}
}
