package upload

import (
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// Builder makes one data object out of frames, or, for compaction, out of the records
// and entries of others. What is added is copied: the object takes RawBytes while it is
// added to, and once more what it has compressed to when it is built. After an error
// it has to be Reset. Not safe for concurrent use; Reset lets its memory be used again.
type Builder struct {
	from, to uint64

	heap    []byte // headers and payloads of the records, as they came
	records []pendingRecord
	streams []pendingStream
	byID    map[stream.ID]uint32 // index in streams

	journal  journalWriter
	journals []byte // finished blocks of the journal, as they are stored
	blocks   []BlockInfo
	entries  int
	control  bool
	entryAt  uint64 // position of the last entry

	items   stream.ItemReader
	entry   Entry
	digest  xxhash.Digest
	scratch []byte
	order   []uint32
}

type pendingRecord struct {
	checksum  uint64
	timestamp int64
	position  uint64
	stream    uint32 // index in streams
	at        uint32 // in heap
	headers   uint32 // bytes, with batchEndBit
	payload   uint32 // bytes
}

type pendingStream struct {
	id    stream.ID
	first uint64
	count uint32
	last  int64 // timestamp
	start uint32
}

// pendingBytes is what the builder keeps of a record beside its headers and payload.
const pendingBytes = 40

// NewBuilder returns a builder whose object begins at position from.
func NewBuilder(from uint64) *Builder {
	b := &Builder{byID: map[stream.ID]uint32{}}
	b.Reset(from)
	return b
}

// Reset forgets what was added. The next object begins at position from.
func (b *Builder) Reset(from uint64) {
	b.from, b.to = from, from
	b.heap, b.records, b.streams = b.heap[:0], b.records[:0], b.streams[:0]
	clear(b.byID)
	b.journal.reset()
	b.journals, b.blocks = b.journals[:0], b.blocks[:0]
	b.entries, b.control, b.entryAt = 0, false, 0
}

// To is the position behind the last frame that was added, or what Extend said.
func (b *Builder) To() uint64 { return b.to }

// Extend makes the object reach to position to, at least: no item lies between.
func (b *Builder) Extend(to uint64) { b.to = max(b.to, to) }

// Records is the number of records that were added.
func (b *Builder) Records() int { return len(b.records) }

// Streams is the number of streams that they belong to.
func (b *Builder) Streams() int { return len(b.streams) }

// RawBytes is about what was added, before compression, and what the builder holds.
func (b *Builder) RawBytes() int {
	return len(b.heap) + pendingBytes*len(b.records) + len(b.journals) + len(b.journal.raw)
}

// Empty reports whether no item was added: such an object is not worth a put.
func (b *Builder) Empty() bool { return b.entries == 0 && len(b.records) == 0 }

// AddFrame adds a frame of the log; frames come in log order, and the frame's memory
// may be used again after the call. Every record's checksum is verified. Frames
// without items only move To. Errors: stream.ErrDamaged (the frame is not what the log
// writes), ErrNotSorted, ErrTooLarge.
func (b *Builder) AddFrame(f *ringwal.FrameView) error {
	if f.Position < b.to {
		return fmt.Errorf("%w: a frame at position %d behind one that ended at %d", ErrNotSorted, f.Position, b.to)
	}
	b.to = f.End()
	if f.Kind != ringwal.FrameData {
		return nil
	}
	b.items.Reset(f.Body, f.Position)
	for it := b.items.Next(); it != nil; it = b.items.Next() {
		if err := b.addItem(it, f); err != nil {
			return err
		}
	}
	return b.items.Err()
}

func (b *Builder) addItem(it *stream.Item, f *ringwal.FrameView) error {
	e := &b.entry
	*e = Entry{Position: it.Position, Extents: e.Extents[:0]}
	if it.Kind != stream.KindBatch {
		at := it.Position - f.Position - ringwal.FrameHeaderBytes
		e.Item = f.Body[at:][:it.Bytes]
		return b.AddEntry(e)
	}
	e.Producer, e.Sequence, e.Acked = it.Producer, it.Sequence, it.Acked
	var rec stream.Record
	for n := 1; it.NextRecord(&rec); n++ {
		if !rec.Verify() {
			return fmt.Errorf("%w: position %d, stream %d, offset %d: the record's checksum does not hold", stream.ErrDamaged, it.Position, rec.Stream, rec.Offset)
		}
		r := Record{Stream: rec.Stream, Offset: rec.Offset, Position: it.Position, TimestampNS: rec.Timestamp,
			Headers: rec.Headers, Payload: rec.Payload, Checksum: rec.Checksum, BatchEnd: n == it.Count}
		if err := b.add(&r); err != nil {
			return err
		}
		if last := len(e.Extents) - 1; last >= 0 && e.Extents[last].Stream == rec.Stream {
			e.Extents[last].Count++
			e.Extents[last].Timestamp = rec.Timestamp
		} else {
			e.Extents = append(e.Extents, stream.Extent{Stream: rec.Stream, First: rec.Offset, Count: 1, Timestamp: rec.Timestamp})
		}
	}
	return b.AddEntry(e)
}

// AddEntry adds an entry to the journal, for compaction: entries come in the order of
// their positions. Errors: ErrNotSorted.
func (b *Builder) AddEntry(e *Entry) error {
	if b.entries > 0 && e.Position <= b.entryAt || e.Position < b.from || e.Position%ringwal.ItemAlignBytes != 0 {
		return fmt.Errorf("%w: an entry at position %d behind one at %d", ErrNotSorted, e.Position, b.entryAt)
	}
	b.journal.add(e)
	b.entries++
	b.entryAt = e.Position
	b.to = max(b.to, e.Position+ringwal.ItemAlignBytes)
	b.control = b.control || e.Item != nil
	if len(b.journal.raw) >= BlockBytes {
		b.endJournal()
	}
	return nil
}

// endJournal stores the block of the journal that was begun.
func (b *Builder) endJournal() {
	if b.journal.count == 0 {
		return
	}
	raw, first, count := b.journal.finish()
	info := BlockInfo{First: first, Count: count}
	b.journals, info.Section = appendSection(b.journals, raw)
	info.Place += headerBytes
	b.blocks = append(b.blocks, info)
	b.journal.reset()
}

// AddRecord adds a record, for compaction: those of a stream come in the order of
// their offsets, those of different streams in any. Errors: ErrDamagedObject (its
// checksum does not hold), ErrNotSorted, ErrTooLarge.
func (b *Builder) AddRecord(r *Record) error {
	if recordSum(&b.digest, r) != r.Checksum {
		return fmt.Errorf("%w: stream %d, offset %d: the record's checksum does not hold", ErrDamagedObject, r.Stream, r.Offset)
	}
	return b.add(r)
}

// add takes a record whose checksum was verified.
func (b *Builder) add(r *Record) error {
	if b.RawBytes()+len(r.Headers)+len(r.Payload) > MaxObjectBytes/2 {
		return fmt.Errorf("%w: more than %d bytes in one object", ErrTooLarge, MaxObjectBytes/2)
	}
	i, known := b.streamOf(r.Stream)
	if !known {
		i = uint32(len(b.streams))
		b.byID[r.Stream] = i
		b.streams = append(b.streams, pendingStream{id: r.Stream, first: r.Offset})
	}
	s := &b.streams[i]
	if r.Offset != s.first+uint64(s.count) || r.TimestampNS < s.last || r.Stream == 0 {
		return fmt.Errorf("%w: stream %d, offset %d (timestamp %d) behind %d records from %d (the last of %d)",
			ErrNotSorted, r.Stream, r.Offset, r.TimestampNS, s.count, s.first, s.last)
	}
	s.count++
	s.last = r.TimestampNS
	p := pendingRecord{checksum: r.Checksum, timestamp: r.TimestampNS, position: r.Position, stream: i,
		at: uint32(len(b.heap)), headers: uint32(len(r.Headers)), payload: uint32(len(r.Payload))}
	if r.BatchEnd {
		p.headers |= batchEndBit
	}
	b.heap = append(append(b.heap, r.Headers...), r.Payload...)
	b.records = append(b.records, p)
	return nil
}

// streamOf finds a stream; most records belong to that of the one before.
func (b *Builder) streamOf(id stream.ID) (uint32, bool) {
	if n := len(b.records); n > 0 {
		if i := b.records[n-1].stream; b.streams[i].id == id {
			return i, true
		}
	}
	i, known := b.byID[id]
	return i, known
}

// Object is a built object.
type Object struct {
	Header
	Body []byte    // what to put under its key
	Ref  ObjectRef // what the manifest says of it
	// Control: its journal holds control items.
	Control bool
}

// Key is where the object goes.
func (o *Object) Key(node string) string { return o.ID.Key(node, o.Kind) }

// Build makes the object out of all that was added. Log, Epoch and ID are the caller's;
// From and To are the builder's. The body is appended to dst[:0] where that has room.
// The builder stays as it is until Reset. Errors: ErrTooLarge.
func (b *Builder) Build(log [16]byte, epoch uint64, id ObjectID, dst []byte) (*Object, error) {
	b.endJournal()
	o := &Object{Header: Header{Kind: KindData, Log: log, Epoch: epoch, ID: id, From: b.from, To: b.to}, Control: b.control}
	body := append(appendHeader(dst[:0], &o.Header), b.journals...)
	blocks := len(b.blocks)
	body = b.appendBlocks(body)
	b.scratch = appendObjectIndex(b.scratch[:0], b.blocks)
	if len(b.scratch) > MaxIndexBytes || len(body) > MaxObjectBytes/2 {
		return nil, fmt.Errorf("%w: an object of %d bytes with an index of %d", ErrTooLarge, len(body), len(b.scratch))
	}
	body, section := appendSection(body, b.scratch)
	o.Body = appendFooter(body, section)
	o.Ref = ObjectRef{ID: id, Bytes: uint64(len(o.Body)), Index: section, Records: uint64(len(b.records))}
	o.Ref.setRanges(b.blocks[blocks:])
	b.blocks = b.blocks[:blocks]
	return o, nil
}

// appendBlocks appends the records in blocks, sorted by stream and offset.
func (b *Builder) appendBlocks(body []byte) []byte {
	byID := make([]uint32, len(b.streams))
	for i := range byID {
		byID[i] = uint32(i)
	}
	slices.SortFunc(byID, func(i, j uint32) int {
		if b.streams[i].id < b.streams[j].id {
			return -1
		}
		return 1
	})
	start := uint32(0)
	for _, i := range byID {
		b.streams[i].start = start
		start += b.streams[i].count
	}
	b.order = slices.Grow(b.order[:0], len(b.records))[:len(b.records)]
	for i := range b.records {
		s := &b.streams[b.records[i].stream]
		b.order[s.start] = uint32(i)
		s.start++
	}
	for _, i := range byID {
		s := &b.streams[i]
		for from := s.start - s.count; from < s.start; {
			to := b.blockEnd(from, s.start)
			first := s.first + uint64(from-(s.start-s.count))
			body = b.appendBlock(body, s.id, first, b.order[from:to])
			from = to
		}
	}
	return body
}

// blockEnd is where the block that begins with record from ends, at most at end.
func (b *Builder) blockEnd(from, end uint32) uint32 {
	n := blockHeaderBytes
	for i := from; i < end; i++ {
		p := &b.records[b.order[i]]
		n += blockRecordBytes + int(p.headers&^batchEndBit) + int(p.payload)
		if n > BlockBytes && i > from {
			return i
		}
	}
	return end
}

func (b *Builder) appendBlock(body []byte, id stream.ID, first uint64, order []uint32) []byte {
	heap := blockHeaderBytes + blockRecordBytes*len(order)
	raw := slices.Grow(b.scratch[:0], heap)[:heap]
	putBlockHeader(raw, id, first, uint32(len(order)))
	for i, at := range order {
		p := &b.records[at]
		p.put(raw[blockHeaderBytes+i*blockRecordBytes:])
		raw = append(raw, b.heap[p.at:][:p.headers&^batchEndBit+p.payload]...)
	}
	info := BlockInfo{Stream: id, First: first, Count: uint32(len(order)),
		FirstNS: b.records[order[0]].timestamp, LastNS: b.records[order[len(order)-1]].timestamp}
	body, info.Section = appendSection(body, raw)
	b.blocks = append(b.blocks, info)
	b.scratch = raw
	return body
}
