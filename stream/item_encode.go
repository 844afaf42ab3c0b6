package stream

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Encoders write an item into the open frame. Each is given exactly the padded
// size of its item and fills every byte of it: frame buffers are recycled.

func recordBytes(e *Entry) int {
	return align8(recordFixedBytes + len(e.Headers) + len(e.Payload))
}

func putItemHeader(dst []byte, length int, kind Kind, flags uint8, count int) {
	binary.LittleEndian.PutUint32(dst, uint32(length))
	dst[4], dst[5] = byte(kind), flags
	binary.LittleEndian.PutUint16(dst[6:], uint16(count))
	clear(dst[length:])
}

// putBatchStart writes what precedes the records of a batch of len(dst) bytes and
// returns where they start.
func putBatchStart(dst []byte, b *Batch, flags uint8) int {
	putItemHeader(dst, len(dst), KindBatch, flags, len(b.Entries))
	if flags&flagProducer == 0 {
		return itemHeaderBytes
	}
	putSequence(dst[itemHeaderBytes:], b.Producer, b.Sequence, b.Acked)
	return itemHeaderBytes + producerBytes
}

func putSequence(dst []byte, id ProducerID, sequence, acked uint64) {
	binary.LittleEndian.PutUint64(dst, uint64(id))
	binary.LittleEndian.PutUint64(dst[8:], sequence)
	binary.LittleEndian.PutUint64(dst[16:], acked)
}

// putRecord writes one record at the start of dst and returns its padded size. The
// payload is read once; the checksum is taken of the copy.
func putRecord(dst []byte, e *Entry, offset uint64, timestamp int64) int {
	headersEnd := recordFixedBytes + len(e.Headers)
	n := headersEnd + len(e.Payload)
	padded := align8(n)
	dst = dst[:padded:padded]
	putRecordHead(dst[8:], e.Stream, offset, timestamp, len(e.Headers), len(e.Payload))
	copy(dst[recordFixedBytes:], e.Headers)
	copy(dst[headersEnd:], e.Payload)
	clear(dst[n:])
	binary.LittleEndian.PutUint64(dst, xxhash.Sum64(dst[8:n]))
	return padded
}

// putRecordHead writes what a record's checksum covers before its headers and payload.
func putRecordHead(dst []byte, id ID, offset uint64, timestamp int64, headers, payload int) {
	binary.LittleEndian.PutUint64(dst, uint64(id))
	binary.LittleEndian.PutUint64(dst[8:], offset)
	binary.LittleEndian.PutUint64(dst[16:], uint64(timestamp))
	binary.LittleEndian.PutUint32(dst[24:], uint32(headers))
	binary.LittleEndian.PutUint32(dst[28:], uint32(payload))
}

// putLone writes a batch of one lone record into dst, which has its padded size. The
// payload is read once; the checksum is taken of the copy.
func putLone(dst []byte, b *Batch, flags uint8, offset uint64, timestamp int64) {
	e := &b.Entries[0]
	at := itemHeaderBytes
	if flags&flagProducer != 0 {
		at += producerBytes
	}
	payload := at + loneFixedBytes
	n := payload + len(e.Payload)
	// What the checksum covers beside the payload stands before it for as long as it is
	// taken; there is room, because the item header precedes the record.
	putRecordHead(dst[payload-recordHeadBytes:], e.Stream, offset, timestamp, 0, len(e.Payload))
	copy(dst[payload:], e.Payload)
	sum := xxhash.Sum64(dst[payload-recordHeadBytes : n])
	record := dst[at:payload]
	binary.LittleEndian.PutUint64(record, sum)
	binary.LittleEndian.PutUint32(record[8:], uint32(e.Stream))
	binary.LittleEndian.PutUint32(record[12:], uint32(offset))
	binary.LittleEndian.PutUint64(record[16:], uint64(timestamp))
	putItemHeader(dst, n, KindBatch, flags, int(offset>>32))
	if flags&flagProducer != 0 {
		putSequence(dst[itemHeaderBytes:], b.Producer, b.Sequence, b.Acked)
	}
}

// controlBytes returns the length of an item other than a batch, without padding.
func (it *Item) controlBytes() int {
	switch it.Kind {
	case KindRefusal:
		return itemHeaderBytes + refusalBytes
	case KindStreamCreate:
		return itemHeaderBytes + createFixedBytes + len(it.Name)
	case KindStreamTrim:
		return itemHeaderBytes + trimBytes
	case KindStreamToken:
		return itemHeaderBytes + tokenFixedBytes + len(it.Token)
	case KindSessionOpen:
		return itemHeaderBytes + openBytes
	case KindNamedCreate:
		return itemHeaderBytes + namedFixedBytes + len(it.Name)
	}
	return itemHeaderBytes + idBytes
}

// putControl writes an item other than a batch into dst, which has its padded size.
func (it *Item) putControl(dst []byte) {
	putItemHeader(dst, it.controlBytes(), it.Kind, 0, 0)
	part := dst[itemHeaderBytes:]
	switch it.Kind {
	case KindRefusal:
		putSequence(part, it.Producer, it.Sequence, it.Acked)
		binary.LittleEndian.PutUint64(part[24:], it.Actual)
		binary.LittleEndian.PutUint16(part[32:], uint16(it.Code))
		binary.LittleEndian.PutUint16(part[34:], uint16(it.Entry))
		binary.LittleEndian.PutUint32(part[36:], 0)
		return
	case KindSessionOpen, KindNamedCreate, KindProducerRemove, KindProducerExpired:
		binary.LittleEndian.PutUint64(part, uint64(it.Producer))
	default:
		binary.LittleEndian.PutUint64(part, uint64(it.Stream))
	}
	part = part[idBytes:]
	switch it.Kind {
	case KindStreamCreate:
		binary.LittleEndian.PutUint64(part, uint64(it.Timestamp))
		copy(part[8:], it.Name)
	case KindStreamTrim:
		binary.LittleEndian.PutUint64(part, it.First)
	case KindStreamToken:
		copy(part, it.Token)
	case KindSessionOpen:
		binary.LittleEndian.PutUint32(part, it.Window)
		binary.LittleEndian.PutUint32(part[4:], 0)
	case KindNamedCreate:
		copy(part, it.Name)
	}
}
