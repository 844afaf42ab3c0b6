package upload

import (
	"encoding/binary"
	"fmt"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// A journal holds, in commit order, what a range of the log holds beside records. Its
// blocks begin like those of records; then follow entries. A number is a base-128
// varint in its shortest form, 7 bits per byte, low ones first:
//
//	delta number     of the position to that of the entry before it (0: the first of its
//	                 block), divided by 8
//	kind u8          0: a control item, 1: a batch, 3: a batch with a producer part
//	0:               the item as it is on the device, with its padding
//	3:               producer id u64, sequence number, acked number
//	1 and 3:         extents number, then per extent, in the order of the batch's entries:
//	                 stream id number, first offset number, records number,
//	                 timestamp of the last one number: zigzag of the difference to that of
//	                 the extent before it in the block, 0 before the first
const (
	entryControl  = 0
	entryBatch    = 1
	entryProducer = 3
)

// Entry is one entry of a journal.
type Entry struct {
	Position uint64
	// Item is a control item as it is on the device; nil: a batch.
	Item []byte
	// Producer, Sequence and Acked are of a batch; Producer 0: without a producer.
	Producer stream.ProducerID
	Sequence uint64
	Acked    uint64
	// Extents are a batch's records in the order of its entries.
	Extents []stream.Extent
}

// Batch is the entry as an item without records, for ApplyExtents.
func (e *Entry) Batch() stream.Item {
	return stream.Item{Kind: stream.KindBatch, Position: e.Position, Producer: e.Producer, Sequence: e.Sequence, Acked: e.Acked, Count: e.Records()}
}

// Records is the number of a batch's records.
func (e *Entry) Records() int {
	n := 0
	for i := range e.Extents {
		n += int(e.Extents[i].Count)
	}
	return n
}

// journalWriter encodes the entries of one block.
type journalWriter struct {
	raw       []byte // the block, its header included; empty: none begun
	first     uint64
	position  uint64
	timestamp int64
	count     uint32
}

func (w *journalWriter) reset() { *w = journalWriter{raw: w.raw[:0]} }

func (w *journalWriter) add(e *Entry) {
	if w.count == 0 {
		w.raw = append(w.raw[:0], make([]byte, blockHeaderBytes)...)
		w.first, w.position, w.timestamp = e.Position, e.Position, 0
	}
	w.count++
	w.raw = binary.AppendUvarint(w.raw, (e.Position-w.position)/ringwal.ItemAlignBytes)
	w.position = e.Position
	switch {
	case e.Item != nil:
		w.raw = append(append(w.raw, entryControl), e.Item...)
		return
	case e.Producer != 0:
		w.raw = append(w.raw, entryProducer)
		w.raw = binary.LittleEndian.AppendUint64(w.raw, uint64(e.Producer))
		w.raw = binary.AppendUvarint(w.raw, e.Sequence)
		w.raw = binary.AppendUvarint(w.raw, e.Acked)
	default:
		w.raw = append(w.raw, entryBatch)
	}
	w.raw = binary.AppendUvarint(w.raw, uint64(len(e.Extents)))
	for i := range e.Extents {
		x := &e.Extents[i]
		w.raw = binary.AppendUvarint(w.raw, uint64(x.Stream))
		w.raw = binary.AppendUvarint(w.raw, x.First)
		w.raw = binary.AppendUvarint(w.raw, uint64(x.Count))
		w.raw = binary.AppendVarint(w.raw, x.Timestamp-w.timestamp)
		w.timestamp = x.Timestamp
	}
}

// finish completes the block, which is valid until reset.
func (w *journalWriter) finish() (raw []byte, first uint64, count uint32) {
	putBlockHeader(w.raw, 0, w.first, w.count)
	return w.raw, w.first, w.count
}

// journalReader decodes the entries of one block.
type journalReader struct {
	entry     Entry
	items     stream.ItemReader
	d         decoder
	left      uint32
	first     bool // the next entry is the first
	position  uint64
	timestamp int64
	to        uint64
	place     int
	err       error
}

// reset starts on raw, the checked contents of a journal block of an object about
// positions below to.
func (r *journalReader) reset(info *BlockInfo, raw []byte, to uint64) {
	*r = journalReader{entry: Entry{Extents: r.entry.Extents[:0]}, to: to, place: int(info.Place)}
	le := binary.LittleEndian
	if len(raw) < blockHeaderBytes || le.Uint64(raw) != 0 || le.Uint64(raw[8:]) != info.First ||
		le.Uint32(raw[16:]) != info.Count || le.Uint32(raw[20:]) != 0 {
		r.err = problem(ErrDamagedObject, "journal block", r.place, "its header is not what the index says")
		return
	}
	r.d = decoder{rest: raw[blockHeaderBytes:]}
	r.left, r.first, r.position = info.Count, true, info.First
}

// next returns the next entry, valid until the call after it; nil at the end, or where
// err says what is wrong.
func (r *journalReader) next() *Entry {
	if r.err != nil {
		return nil
	}
	if r.left == 0 {
		if len(r.d.rest) != 0 {
			r.err = problem(ErrDamagedObject, "journal block", r.place, "bytes follow its last entry")
		}
		return nil
	}
	r.left--
	before := r.position
	if reason := r.decode(); reason != "" {
		r.err = problem(ErrDamagedObject, "journal block", r.place, "the entry behind position %d: %s", before, reason)
		return nil
	}
	return &r.entry
}

func (r *journalReader) decode() string {
	e := &r.entry
	*e = Entry{Extents: e.Extents[:0]}
	delta := r.d.number()
	if (delta == 0) != r.first || delta > (r.to-r.position)/ringwal.ItemAlignBytes {
		return "its position is out of range"
	}
	r.first = false
	r.position += delta * ringwal.ItemAlignBytes
	e.Position = r.position
	if e.Position >= r.to {
		return "its position is out of range"
	}
	switch r.d.u8() {
	case entryControl:
		return r.control()
	case entryProducer:
		e.Producer, e.Sequence, e.Acked = stream.ProducerID(r.d.u64()), r.d.number(), r.d.number()
		if e.Producer == 0 || e.Sequence == 0 || e.Acked > e.Sequence {
			return "its producer part is out of range"
		}
	case entryBatch:
	default:
		return "unknown kind"
	}
	return r.extents()
}

func (r *journalReader) control() string {
	if len(r.d.rest) < 4 {
		return "it ends inside an item"
	}
	n := (uint64(binary.LittleEndian.Uint32(r.d.rest)) + ringwal.ItemAlignBytes - 1) &^ (ringwal.ItemAlignBytes - 1)
	if n == 0 || n > uint64(len(r.d.rest)) {
		return "it ends inside an item"
	}
	r.entry.Item = r.d.bytes(int(n))
	r.items.Reset(r.entry.Item, r.position-ringwal.FrameHeaderBytes)
	it := r.items.Next()
	if it == nil || it.Bytes != int(n) || it.Kind == stream.KindBatch {
		return "its item is not well formed"
	}
	return ""
}

func (r *journalReader) extents() string {
	n := r.d.number()
	if n == 0 || n > stream.MaxBatchRecords {
		return "its number of extents is out of range"
	}
	records := uint64(0)
	for range n {
		x := stream.Extent{Stream: stream.ID(r.d.number()), First: r.d.number()}
		count := r.d.number()
		x.Timestamp = r.timestamp + r.d.signed()
		records += count
		switch {
		case r.d.short:
			return "it ends inside its extents, or a number is not in its shortest form"
		case x.Stream == 0 || count == 0 || count > stream.MaxBatchRecords || records > stream.MaxBatchRecords || x.First+count < x.First || x.Timestamp < 0:
			return "an extent is out of range"
		}
		x.Count, r.timestamp = uint32(count), x.Timestamp
		r.entry.Extents = append(r.entry.Extents, x)
	}
	return ""
}

// decoder consumes bytes; what is read beyond the end, or is not in its shortest form,
// is 0 and sets short.
type decoder struct {
	rest  []byte
	short bool
}

func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.rest) {
		d.short, d.rest = true, nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) u8() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// number is an unsigned varint in its shortest form.
func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 {
		d.short, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// signed is a zigzag varint.
func (d *decoder) signed() int64 {
	u := d.number()
	return int64(u>>1) ^ -int64(u&1)
}

// Control is a control item, decoded. Errors: stream.ErrDamaged.
func (e *Entry) Control() (stream.Item, error) {
	var r stream.ItemReader
	r.Reset(e.Item, e.Position-ringwal.FrameHeaderBytes)
	it := r.Next()
	if it == nil {
		return stream.Item{}, fmt.Errorf("%w: no item at position %d", stream.ErrDamaged, e.Position)
	}
	return *it, nil
}
