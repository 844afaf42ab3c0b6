package upload

import (
	"encoding/binary"
	"sort"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/stream"
)

// A block holds records of one stream with dense offsets. Raw, little-endian:
//
//	stream id u64, offset of the first record u64, records u32, 0 u32
//	per record: checksum u64, timestamp i64, position of its batch u64,
//	            headers bytes u32 (bit 31: the last record of its batch), payload bytes u32
//	per record: headers, payload
//
// A journal block begins alike, with stream id 0, and the position of its first entry
// in place of an offset.
const (
	blockHeaderBytes = 24
	blockRecordBytes = 32

	batchEndBit = 1 << 31
)

// Record is one record as the log holds it. Headers and Payload point into memory that
// others share: they are not to be changed.
type Record struct {
	Stream      stream.ID
	Offset      uint64
	Position    uint64 // of the batch that holds it
	TimestampNS int64
	Headers     []byte // an encoded headers block, or empty
	Payload     []byte
	Checksum    uint64 // as the device has it
	BatchEnd    bool   // the last record of its batch
}

// Verify reports whether the record's own checksum, taken when it was appended, holds:
// xxhash64 over stream id, offset, timestamp, both lengths, headers and payload.
func (r *Record) Verify() bool {
	var d xxhash.Digest
	return recordSum(&d, r) == r.Checksum
}

func recordSum(d *xxhash.Digest, r *Record) uint64 {
	return stream.RecordSum(d, r.Stream, r.Offset, r.TimestampNS, r.Headers, r.Payload)
}

// deviceBytes is what the record takes in its batch on the device, at least: 16 more but for
// a lone one.
func (r *Record) deviceBytes() int { return (24 + len(r.Headers) + len(r.Payload) + 7) &^ 7 }

func putBlockHeader(dst []byte, id stream.ID, first uint64, count uint32) {
	le := binary.LittleEndian
	le.PutUint64(dst, uint64(id))
	le.PutUint64(dst[8:], first)
	le.PutUint32(dst[16:], count)
	le.PutUint32(dst[20:], 0)
}

// Block is a decoded block of records.
type Block struct {
	Stream stream.ID
	First  uint64
	Count  int

	raw   []byte
	heaps []uint32 // where each record's bytes begin in raw, and the end of the last
}

// decode takes raw, the checked contents of the block that info describes. The block
// refers to raw from then on.
func (b *Block) decode(info *BlockInfo, raw []byte) error {
	le := binary.LittleEndian
	const part = "block"
	at := int(info.Place)
	if len(raw) < blockHeaderBytes {
		return problem(ErrDamagedObject, part, at, "%d bytes", len(raw))
	}
	b.Stream, b.First, b.Count = stream.ID(le.Uint64(raw)), le.Uint64(raw[8:]), int(le.Uint32(raw[16:]))
	if b.Stream != info.Stream || b.First != info.First || b.Count != int(info.Count) || le.Uint32(raw[20:]) != 0 {
		return problem(ErrDamagedObject, part, at, "it says stream %d, %d records from %d; the index says stream %d, %d from %d",
			b.Stream, b.Count, b.First, info.Stream, info.Count, info.First)
	}
	heap := uint64(blockHeaderBytes) + uint64(b.Count)*blockRecordBytes
	if heap > uint64(len(raw)) {
		return problem(ErrDamagedObject, part, at, "it ends inside its %d records", b.Count)
	}
	b.raw, b.heaps = raw, append(b.heaps[:0], uint32(heap))
	last := info.FirstNS
	for e := raw[blockHeaderBytes:heap]; len(e) > 0; e = e[blockRecordBytes:] {
		heap += uint64(le.Uint32(e[24:])&^batchEndBit) + uint64(le.Uint32(e[28:]))
		if heap > uint64(len(raw)) {
			return problem(ErrDamagedObject, part, at, "it ends inside its records")
		}
		ns := int64(le.Uint64(e[8:]))
		if ns < last || ns > info.LastNS {
			return problem(ErrDamagedObject, part, at, "a timestamp out of order")
		}
		last = ns
		b.heaps = append(b.heaps, uint32(heap))
	}
	if heap != uint64(len(raw)) {
		return problem(ErrDamagedObject, part, at, "bytes follow its last record")
	}
	return nil
}

// Record decodes record i, 0 to Count−1, into r and checks its own checksum.
func (b *Block) Record(i int, r *Record) error {
	le := binary.LittleEndian
	e := b.raw[blockHeaderBytes+i*blockRecordBytes:][:blockRecordBytes]
	headers := le.Uint32(e[24:])
	from, to := b.heaps[i], b.heaps[i+1]
	mid := from + headers&^batchEndBit
	*r = Record{Stream: b.Stream, Offset: b.First + uint64(i), Checksum: le.Uint64(e), TimestampNS: int64(le.Uint64(e[8:])),
		Position: le.Uint64(e[16:]), Headers: b.raw[from:mid:mid], Payload: b.raw[mid:to:to], BatchEnd: headers&batchEndBit != 0}
	if !r.Verify() {
		return problem(ErrDamagedObject, "record", blockHeaderBytes+i*blockRecordBytes,
			"stream %d, offset %d: the checksum that it got when it was appended does not hold", r.Stream, r.Offset)
	}
	return nil
}

// timestamp returns that of record i.
func (b *Block) timestamp(i int) int64 {
	return int64(binary.LittleEndian.Uint64(b.raw[blockHeaderBytes+i*blockRecordBytes+8:]))
}

// put writes the record's entry in a block's table.
func (p *pendingRecord) put(dst []byte) {
	le := binary.LittleEndian
	le.PutUint64(dst, p.checksum)
	le.PutUint64(dst[8:], uint64(p.timestamp))
	le.PutUint64(dst[16:], p.position)
	le.PutUint32(dst[24:], p.headers)
	le.PutUint32(dst[28:], p.payload)
}

// seekTime returns the first record whose timestamp is at least ns, Count where there
// is none.
func (b *Block) seekTime(ns int64) int {
	return sort.Search(b.Count, func(i int) bool { return b.timestamp(i) >= ns })
}
