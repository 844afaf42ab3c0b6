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
	binary.LittleEndian.PutUint64(dst[8:], uint64(e.Stream))
	binary.LittleEndian.PutUint64(dst[16:], offset)
	binary.LittleEndian.PutUint64(dst[24:], uint64(timestamp))
	binary.LittleEndian.PutUint32(dst[32:], uint32(len(e.Headers)))
	binary.LittleEndian.PutUint32(dst[36:], uint32(len(e.Payload)))
	copy(dst[recordFixedBytes:], e.Headers)
	copy(dst[headersEnd:], e.Payload)
	clear(dst[n:])
	binary.LittleEndian.PutUint64(dst, xxhash.Sum64(dst[8:n]))
	return padded
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
