package stream

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
)

// Kind is the kind of an item. The numbers are part of the format.
type Kind uint8

// The kinds.
const (
	KindBatch           Kind = 1
	KindRefusal         Kind = 2 // of a session producer's batch
	KindStreamCreate    Kind = 3
	KindStreamSeal      Kind = 4
	KindStreamTrim      Kind = 5
	KindStreamDelete    Kind = 6
	KindStreamToken     Kind = 7
	KindSessionOpen     Kind = 8
	KindNamedCreate     Kind = 9
	KindProducerRemove  Kind = 10 // of a named producer, by command
	KindProducerExpired Kind = 11 // of a session producer, to make room

	maxKind = KindProducerExpired
)

var kindNames = [maxKind + 1]string{
	"", "batch", "refusal", "stream create", "stream seal", "stream trim", "stream delete",
	"stream token", "session producer open", "named producer create", "producer remove",
	"session producer expired",
}

// String returns the kind's name in lower case words.
func (k Kind) String() string {
	if k == 0 || k > maxKind {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// An item starts at a multiple of 8 with a header; little-endian, zeros up to the
// next multiple of 8:
//
//	length u32    with this header, without the padding behind it
//	kind u8
//	flags u8      of a batch: 1 a producer part follows, 2 continued, 4 lone; else 0
//	count u16     of a batch: its records, or of a lone one bits 32 to 47 of its offset; else 0
//
// What follows the header, by kind:
//
//	batch                   [producer id u64, sequence u64, acked u64], records
//	refusal                 producer id u64, sequence u64, acked u64, actual u64,
//	                        code u16, entry u16, 0 u32
//	stream create           stream id u64, timestamp i64, name
//	stream seal, delete     stream id u64
//	stream trim             stream id u64, first offset that remains u64
//	stream token            stream id u64, token (none: removed)
//	session producer open   producer id u64, window u32, 0 u32
//	named producer create   producer id u64, name
//	producer remove         producer id u64
//	session producer expired producer id u64
//
// A continued batch follows another batch with a producer, right behind it in the same
// frame: its producer part is that one's with the sequence one higher. So nobody knows
// the producer of a batch who has not decoded what lies before it in its frame.
//
// A record, zeros up to the next multiple of 8 included in its batch's length:
//
//	checksum u64            xxhash64 of the rest of the record, without the zeros
//	stream id u64, offset u64, timestamp i64 (ns since the Unix epoch)
//	headers bytes u32, payload bytes u32
//	headers, payload
//
// A lone batch has one record, without headers, its payload being the rest of the item:
//
//	checksum u64            as if the record were in the other form
//	stream id u32, offset u32 (its low bits), timestamp i64
//	payload
//
// Ids of session producers have the top bit set, those of named ones do not. Every
// item is exactly as long as its kind says; an unknown kind or flag, a count or
// reserved bytes that are not 0, or padding that is not zero is damage.
const (
	itemAlign        = ringwal.ItemAlignBytes
	itemHeaderBytes  = 8
	producerBytes    = 24
	recordFixedBytes = 40
	recordHeadBytes  = 32 // of them, those that the checksum covers
	loneFixedBytes   = 24
	loneOffsets      = 1 << 48 // the offset of a lone record is below
	refusalBytes     = 40
	idBytes          = 8
	createFixedBytes = 16
	trimBytes        = 16
	tokenFixedBytes  = 8
	openBytes        = 16
	namedFixedBytes  = 8

	flagProducer  = 1
	flagContinued = 2
	flagLone      = 4

	maxFlags = flagLone | flagContinued
)

func align8(n int) int { return (n + itemAlign - 1) &^ (itemAlign - 1) }

// Item is one decoded item. Which fields are set depends on Kind. Slices point
// into the frame's body.
type Item struct {
	Kind     Kind
	Position uint64 // address of the item in the log
	Bytes    int    // with padding: the item is [Position, Position+Bytes)

	// Producer, Sequence and Acked: of a batch (Producer 0: without a producer) and
	// of a refusal. Producer alone: of the producer kinds.
	Producer ProducerID
	Sequence uint64
	Acked    uint64

	Count int // records of a batch, 1..MaxBatchRecords

	Code   Code   // of a refusal
	Entry  int    // of a refusal
	Actual uint64 // of a refusal

	Stream    ID     // of the stream kinds
	Timestamp int64  // of a stream create: ns since the Unix epoch
	First     uint64 // of a stream trim: the first offset that remains
	Name      []byte // of a stream create, a named producer create
	Token     []byte // of a stream token; empty: removed
	Window    uint32 // of a session producer open, in slots

	records []byte // all records of a batch
	rest    []byte // those that NextRecord has yet to return
	lone    bool   // it is one lone record
	high    uint16 // bits 32 to 47 of its offset
}

// Record is one record of a batch. Slices point into the frame's body.
type Record struct {
	Checksum  uint64 // as stored; see Verify
	Stream    ID
	Offset    uint64
	Timestamp int64  // ns since the Unix epoch
	Headers   []byte // an encoded headers block, or empty
	Payload   []byte

	covered []byte // what Checksum is taken of; empty: a lone record, which has it not in a row
}

// Verify reports whether the record's checksum matches: xxhash64 of stream id u64, offset
// u64, timestamp i64, headers bytes u32, payload bytes u32, headers and payload.
func (r *Record) Verify() bool {
	if len(r.covered) > 0 {
		return xxhash.Sum64(r.covered) == r.Checksum
	}
	var d xxhash.Digest
	return RecordSum(&d, r.Stream, r.Offset, r.Timestamp, r.Headers, r.Payload) == r.Checksum
}

// RecordSum is the checksum of a record in whatever form it is stored. d is scratch.
func RecordSum(d *xxhash.Digest, id ID, offset uint64, timestampNS int64, headers, payload []byte) uint64 {
	var head [recordHeadBytes]byte
	putRecordHead(head[:], id, offset, timestampNS, len(headers), len(payload))
	d.Reset()
	_, _ = d.Write(head[:])
	_, _ = d.Write(headers)
	_, _ = d.Write(payload)
	return d.Sum64()
}

// Rewind makes NextRecord start with the first record again.
func (it *Item) Rewind() { it.rest = it.records }

// NextRecord decodes the next record of a batch into r and returns false after
// the last one. Lengths were checked when the item was decoded, checksums are the
// caller's (see [Record.Verify]).
func (it *Item) NextRecord(r *Record) bool {
	b := it.rest
	if it.lone {
		return it.nextLone(r)
	}
	if len(b) < recordFixedBytes {
		return false
	}
	n := recordFixedBytes + int(binary.LittleEndian.Uint32(b[32:])) + int(binary.LittleEndian.Uint32(b[36:]))
	headersEnd := recordFixedBytes + int(binary.LittleEndian.Uint32(b[32:]))
	r.Checksum = binary.LittleEndian.Uint64(b)
	r.Stream = ID(binary.LittleEndian.Uint64(b[8:]))
	r.Offset = binary.LittleEndian.Uint64(b[16:])
	r.Timestamp = int64(binary.LittleEndian.Uint64(b[24:]))
	r.Headers = b[recordFixedBytes:headersEnd:headersEnd]
	r.Payload = b[headersEnd:n:n]
	r.covered = b[8:n]
	it.rest = b[align8(n):]
	return true
}

// nextLone is NextRecord of a lone batch.
func (it *Item) nextLone(r *Record) bool {
	b := it.rest
	if len(b) < loneFixedBytes {
		return false
	}
	r.Checksum = binary.LittleEndian.Uint64(b)
	r.Stream = ID(binary.LittleEndian.Uint32(b[8:]))
	r.Offset = uint64(it.high)<<32 | uint64(binary.LittleEndian.Uint32(b[12:]))
	r.Timestamp = int64(binary.LittleEndian.Uint64(b[16:]))
	r.Headers, r.Payload, r.covered = nil, b[loneFixedBytes:], nil
	it.rest = nil
	return true
}

// ItemReader decodes the items of one frame, in order, without allocating. Its
// zero value is ready for Reset.
type ItemReader struct {
	item Item
	body []byte
	base uint64 // address of body[0]
	at   int
	err  error
}

// Reset starts on body, the used bytes of a data frame that lies at framePosition.
func (r *ItemReader) Reset(body []byte, framePosition uint64) {
	*r = ItemReader{body: body, base: framePosition + ringwal.FrameHeaderBytes}
}

// Next returns the next item, or nil at the end of the body or at the first item
// that is not well formed; Err tells which. The item is valid until the next call.
// Any bytes are safe: nothing is believed before it was checked.
func (r *ItemReader) Next() *Item {
	if r.err != nil || r.at == len(r.body) {
		return nil
	}
	var before producerPart
	if r.item.Kind == KindBatch {
		before = producerPart{r.item.Producer, r.item.Sequence, r.item.Acked}
	}
	r.item = Item{Position: r.base + uint64(r.at)}
	if problem := r.item.decode(r.body[r.at:], &before); problem != "" {
		r.err = fmt.Errorf("%w: item at position %d (byte %d of %d of its frame's body): %s",
			ErrDamaged, r.item.Position, r.at, len(r.body), problem)
		return nil
	}
	r.at += r.item.Bytes
	return &r.item
}

// Err returns why Next stopped before the end of the body, nil if it did not. It
// wraps [ErrDamaged].
func (r *ItemReader) Err() error { return r.err }

// Items calls visit with every item of body, the used bytes of a data frame that
// lies at framePosition, in order. The item is valid only during the call. It
// returns visit's first error, or one that wraps [ErrDamaged] at the first item that
// is not well formed. It allocates once; a caller that decodes many frames keeps an
// [ItemReader].
func Items(body []byte, framePosition uint64, visit func(*Item) error) error {
	var r ItemReader
	r.Reset(body, framePosition)
	for it := r.Next(); it != nil; it = r.Next() {
		if err := visit(it); err != nil {
			return err
		}
	}
	return r.err
}

// producerPart is that of a batch; its id is 0 where there is none.
type producerPart struct {
	id              ProducerID
	sequence, acked uint64
}

// decode reads the item at the start of b and returns what is wrong with it, "" if
// nothing. before is the producer part of the batch right before it in its frame.
func (it *Item) decode(b []byte, before *producerPart) string {
	if len(b) < itemHeaderBytes {
		return "shorter than an item header"
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if n < itemHeaderBytes || n > uint64(len(b)) || align8(int(n)) > len(b) {
		return "length out of range"
	}
	it.Kind = Kind(b[4])
	flags, count := b[5], binary.LittleEndian.Uint16(b[6:])
	it.Bytes = align8(int(n))
	for _, c := range b[n:it.Bytes] {
		if c != 0 {
			return "padding is not zero"
		}
	}
	part := b[itemHeaderBytes:n:n]
	if it.Kind == KindBatch {
		return it.decodeBatch(part, flags, int(count), before)
	}
	if flags != 0 || count != 0 {
		return "flags or count on an item that has none"
	}
	switch it.Kind {
	case KindRefusal:
		return it.decodeRefusal(part)
	case KindStreamCreate, KindStreamSeal, KindStreamTrim, KindStreamDelete, KindStreamToken:
		return it.decodeStream(part)
	case KindSessionOpen, KindNamedCreate, KindProducerRemove, KindProducerExpired:
		return it.decodeProducer(part)
	}
	return "unknown kind"
}

func (it *Item) decodeBatch(part []byte, flags uint8, count int, before *producerPart) string {
	if flags > maxFlags {
		return "unknown flags on a batch"
	}
	if it.lone = flags&flagLone != 0; it.lone {
		it.high, count = uint16(count), 1
	}
	if count == 0 || count > MaxBatchRecords {
		return "record count out of range"
	}
	it.Count = count
	switch flags &^ flagLone {
	case flagProducer | flagContinued:
		return "unknown flags on a batch"
	case flagContinued:
		it.Producer, it.Sequence, it.Acked = before.id, before.sequence+1, before.acked
		if it.Producer == 0 || it.Sequence == 0 {
			return "it continues no batch of a producer"
		}
	case flagProducer:
		if len(part) < producerBytes {
			return "ends inside its producer part"
		}
		it.decodeSequence(part)
		if it.Producer == 0 || it.Sequence == 0 || it.Acked > it.Sequence {
			return "producer part out of range"
		}
		part = part[producerBytes:]
	}
	it.records, it.rest = part, part
	if it.lone {
		if len(part) < loneFixedBytes {
			return "ends inside a record"
		}
		return ""
	}
	return recordsProblem(part, count)
}

// recordsProblem says what is wrong with the lengths of count records that are to fill
// part, "" if nothing.
func recordsProblem(part []byte, count int) string {
	for range count {
		if len(part) < recordFixedBytes {
			return "ends inside a record"
		}
		n := recordFixedBytes + uint64(binary.LittleEndian.Uint32(part[32:])) +
			uint64(binary.LittleEndian.Uint32(part[36:]))
		if n > uint64(len(part)) || align8(int(n)) > len(part) {
			return "ends inside a record"
		}
		for _, c := range part[n:align8(int(n))] {
			if c != 0 {
				return "padding of a record is not zero"
			}
		}
		part = part[align8(int(n)):]
	}
	if len(part) != 0 {
		return "bytes follow the last record"
	}
	return ""
}

func (it *Item) decodeSequence(part []byte) {
	it.Producer = ProducerID(binary.LittleEndian.Uint64(part))
	it.Sequence = binary.LittleEndian.Uint64(part[8:])
	it.Acked = binary.LittleEndian.Uint64(part[16:])
}

func (it *Item) decodeRefusal(part []byte) string {
	if len(part) != refusalBytes {
		return "wrong length for its kind"
	}
	it.decodeSequence(part)
	it.Actual = binary.LittleEndian.Uint64(part[24:])
	it.Code = Code(binary.LittleEndian.Uint16(part[32:]))
	it.Entry = int(binary.LittleEndian.Uint16(part[34:]))
	switch {
	case !it.Producer.IsSession() || it.Sequence == 0 || it.Acked > it.Sequence:
		return "producer part out of range"
	case it.Code.Err() == nil || it.Entry >= MaxBatchRecords:
		return "code or entry out of range"
	case binary.LittleEndian.Uint32(part[36:]) != 0:
		return "reserved bytes are not zero"
	}
	return ""
}

func (it *Item) decodeStream(part []byte) string {
	if len(part) < idBytes {
		return "wrong length for its kind"
	}
	it.Stream = ID(binary.LittleEndian.Uint64(part))
	if it.Stream == 0 {
		return "stream id 0"
	}
	rest := part[idBytes:]
	switch it.Kind {
	case KindStreamCreate:
		if len(rest) < createFixedBytes-idBytes {
			return "wrong length for its kind"
		}
		it.Timestamp = int64(binary.LittleEndian.Uint64(rest))
		it.Name = rest[8:]
		return nameBytesProblem(it.Name)
	case KindStreamTrim:
		if len(rest) != trimBytes-idBytes {
			return "wrong length for its kind"
		}
		it.First = binary.LittleEndian.Uint64(rest)
	case KindStreamToken:
		if len(rest) > MaxTokenBytes {
			return "token longer than the limit"
		}
		it.Token = rest
	default:
		if len(rest) != 0 {
			return "wrong length for its kind"
		}
	}
	return ""
}

func (it *Item) decodeProducer(part []byte) string {
	if len(part) < idBytes {
		return "wrong length for its kind"
	}
	it.Producer = ProducerID(binary.LittleEndian.Uint64(part))
	session := it.Kind == KindSessionOpen || it.Kind == KindProducerExpired
	if it.Producer == 0 || it.Producer.IsSession() != session {
		return "producer id out of range"
	}
	rest := part[idBytes:]
	switch it.Kind {
	case KindSessionOpen:
		if len(rest) != openBytes-idBytes {
			return "wrong length for its kind"
		}
		it.Window = binary.LittleEndian.Uint32(rest)
		if it.Window == 0 || it.Window > MaxWindow || binary.LittleEndian.Uint32(rest[4:]) != 0 {
			return "window out of range"
		}
	case KindNamedCreate:
		it.Name = rest
		return nameBytesProblem(it.Name)
	default:
		if len(rest) != 0 {
			return "wrong length for its kind"
		}
	}
	return ""
}

// nameBytesProblem checks only the length: which characters a name may have is a
// rule for requests, and a later version may allow more.
func nameBytesProblem(name []byte) string {
	if len(name) == 0 || len(name) > MaxNameBytes {
		return "name length out of range"
	}
	return ""
}
