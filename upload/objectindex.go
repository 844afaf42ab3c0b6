package upload

import (
	"encoding/binary"
	"sort"

	"github.com/walsidecar/walsidecar/stream"
)

// The index of a data object, raw, little-endian:
//
//	streams u32, blocks u32
//	per stream, ascending by id: id u64, its first block u32, its blocks u32
//	per block: first u64, count u32, raw bytes u32, first timestamp i64, last timestamp i64,
//	           place u64, stored bytes u32, 0 u32, sum of the stored bytes u64
//
// Stream 0, where there is one, is the journal: its offsets are positions, and the
// count is of entries.
const (
	indexHeaderBytes = 8
	indexStreamBytes = 16
	indexBlockBytes  = 56
)

// BlockInfo says where a block lies and what it holds.
type BlockInfo struct {
	Stream stream.ID // 0: a block of the journal
	// First is the offset of the first record; of a journal block the position of its
	// first entry.
	First           uint64
	Count           uint32 // records, or entries
	FirstNS, LastNS int64  // timestamps of the first and of the last record; of a journal 0
	Section
}

// ObjectIndex is the index of one data object. It never changes, and may be used from
// any goroutine.
type ObjectIndex struct {
	raw     []byte
	streams int
	blocks  int
}

// Streams is the number of streams, a journal not counted.
func (x *ObjectIndex) Streams() int { return x.streams - x.journals() }

// journals is 1 where there is a journal, else 0.
func (x *ObjectIndex) journals() int {
	if x.streams > 0 && x.id(0) == 0 {
		return 1
	}
	return 0
}

func (x *ObjectIndex) entry(i int) []byte {
	return x.raw[indexHeaderBytes+i*indexStreamBytes:][:indexStreamBytes]
}

func (x *ObjectIndex) id(i int) stream.ID {
	return stream.ID(binary.LittleEndian.Uint64(x.entry(i)))
}

// of returns the blocks [from, to) of the stream with index i.
func (x *ObjectIndex) of(i int) (from, to int) {
	e := x.entry(i)
	from = int(binary.LittleEndian.Uint32(e[8:]))
	return from, from + int(binary.LittleEndian.Uint32(e[12:]))
}

// Stream returns the range of records that the object holds of its stream i, ascending
// by id, 0 to Streams−1.
func (x *ObjectIndex) Stream(i int) Range {
	i += x.journals()
	from, to := x.of(i)
	first, last := x.Block(from), x.Block(to-1)
	return Range{Stream: x.id(i), First: first.First, Count: last.First + uint64(last.Count) - first.First,
		FirstNS: first.FirstNS, LastNS: last.LastNS}
}

// Find returns the blocks [from, to) of a stream, or of the journal (0); none where the
// object has nothing of it.
func (x *ObjectIndex) Find(id stream.ID) (from, to int) {
	i := sort.Search(x.streams, func(i int) bool { return x.id(i) >= id })
	if i == x.streams || x.id(i) != id {
		return 0, 0
	}
	return x.of(i)
}

// Blocks is the number of blocks, those of the journal included.
func (x *ObjectIndex) Blocks() int { return x.blocks }

// Block returns block i, 0 to Blocks−1: the order of their places. Stream is not set.
func (x *ObjectIndex) Block(i int) (b BlockInfo) {
	le := binary.LittleEndian
	e := x.raw[indexHeaderBytes+x.streams*indexStreamBytes+i*indexBlockBytes:][:indexBlockBytes]
	b.First, b.Count, b.RawBytes = le.Uint64(e), le.Uint32(e[8:]), le.Uint32(e[12:])
	b.FirstNS, b.LastNS = int64(le.Uint64(e[16:])), int64(le.Uint64(e[24:]))
	b.Place, b.StoredBytes, b.Sum = le.Uint64(e[32:]), le.Uint32(e[40:]), le.Uint64(e[48:])
	return b
}

// seek returns the block of [from, to) that holds offset, or the first behind it; to
// where there is none.
func (x *ObjectIndex) seek(from, to int, offset uint64) int {
	return from + sort.Search(to-from, func(i int) bool {
		b := x.Block(from + i)
		return b.First+uint64(b.Count) > offset
	})
}

// appendObjectIndex appends the index of blocks, which are sorted by stream and lie
// one behind the other.
func appendObjectIndex(dst []byte, blocks []BlockInfo) []byte {
	le := binary.LittleEndian
	streams := 0
	for i := range blocks {
		if i == 0 || blocks[i].Stream != blocks[i-1].Stream {
			streams++
		}
	}
	dst = le.AppendUint32(dst, uint32(streams))
	dst = le.AppendUint32(dst, uint32(len(blocks)))
	for i := 0; i < len(blocks); {
		n := 1
		for i+n < len(blocks) && blocks[i+n].Stream == blocks[i].Stream {
			n++
		}
		dst = le.AppendUint64(dst, uint64(blocks[i].Stream))
		dst = le.AppendUint32(dst, uint32(i))
		dst = le.AppendUint32(dst, uint32(n))
		i += n
	}
	for i := range blocks {
		b := &blocks[i]
		dst = le.AppendUint64(dst, b.First)
		dst = le.AppendUint32(dst, b.Count)
		dst = le.AppendUint32(dst, b.RawBytes)
		dst = le.AppendUint64(dst, uint64(b.FirstNS))
		dst = le.AppendUint64(dst, uint64(b.LastNS))
		dst = le.AppendUint64(dst, b.Place)
		dst = le.AppendUint32(dst, b.StoredBytes)
		dst = le.AppendUint32(dst, 0)
		dst = le.AppendUint64(dst, b.Sum)
	}
	return dst
}

// decodeObjectIndex checks raw, the contents of the section s, of an object with
// header h. The index refers to raw from then on.
func decodeObjectIndex(h *Header, s Section, raw []byte) (*ObjectIndex, error) {
	const part = "index"
	le := binary.LittleEndian
	wrong := func(at int, reason string) (*ObjectIndex, error) {
		return nil, problem(ErrDamagedObject, part, at, "%s", reason)
	}
	if len(raw) < indexHeaderBytes {
		return wrong(0, "it ends inside its header")
	}
	x := &ObjectIndex{raw: raw, streams: int(le.Uint32(raw)), blocks: int(le.Uint32(raw[4:]))}
	if uint64(len(raw)) != indexHeaderBytes+uint64(x.streams)*indexStreamBytes+uint64(x.blocks)*indexBlockBytes {
		return wrong(0, "its length does not fit its counts")
	}
	block, place, id := 0, uint64(headerBytes), stream.ID(0)
	for i := range x.streams {
		at := indexHeaderBytes + i*indexStreamBytes
		from, to := x.of(i)
		if from != block || to == from || to > x.blocks || i > 0 && x.id(i) <= id {
			return wrong(at, "a stream is out of order or has no blocks of its own")
		}
		id, block = x.id(i), to
		if reason := x.checkBlocks(id, from, to, h, &place); reason != "" {
			return wrong(at, reason)
		}
	}
	if block != x.blocks || place != s.Place {
		return wrong(0, "its blocks do not fill the object")
	}
	return x, nil
}

// checkBlocks checks the blocks of one stream, which begin at place.
func (x *ObjectIndex) checkBlocks(id stream.ID, from, to int, h *Header, place *uint64) string {
	var before BlockInfo
	for i := from; i < to; i++ {
		b := x.Block(i)
		switch {
		case binary.LittleEndian.Uint32(x.raw[indexHeaderBytes+x.streams*indexStreamBytes+i*indexBlockBytes+44:]) != 0:
			return "reserved bytes of a block are not zero"
		case b.Count == 0 || b.First+uint64(b.Count) < b.First || b.StoredBytes == 0 || b.StoredBytes > b.RawBytes || b.RawBytes > MaxBlockBytes:
			return "a block's counts are out of range"
		case b.Place != *place:
			return "a block does not lie behind the one before it"
		case b.FirstNS < 0 || b.FirstNS > b.LastNS:
			return "a block's timestamps are out of order"
		case id == 0 && (b.First < h.From || b.First >= h.To || i > from && b.First <= before.First || b.LastNS != 0):
			return "a block of the journal is out of order"
		case id != 0 && i > from && (b.First != before.First+uint64(before.Count) || b.FirstNS < before.LastNS):
			return "a block does not follow the one before it in its stream"
		}
		*place, before = b.End(), b
	}
	return ""
}

// checkedIndex is the index that raw holds, which decodeObjectIndex has accepted.
func checkedIndex(raw []byte) *ObjectIndex {
	return &ObjectIndex{raw: raw, streams: int(binary.LittleEndian.Uint32(raw)), blocks: int(binary.LittleEndian.Uint32(raw[4:]))}
}

// Range returns what the object holds of a stream.
func (x *ObjectIndex) Range(id stream.ID) (Range, bool) {
	i := sort.Search(x.streams, func(i int) bool { return x.id(i) >= id })
	if id == 0 || i == x.streams || x.id(i) != id {
		return Range{}, false
	}
	return x.Stream(i - x.journals()), true
}

// seekTime returns the first block of a stream whose last timestamp is at least ns.
func (x *ObjectIndex) seekTime(id stream.ID, ns int64) (BlockInfo, bool) {
	from, to := x.Find(id)
	i := from + sort.Search(to-from, func(i int) bool { return x.Block(from+i).LastNS >= ns })
	if i == to {
		return BlockInfo{}, false
	}
	info := x.Block(i)
	info.Stream = id
	return info, true
}
