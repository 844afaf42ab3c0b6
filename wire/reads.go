package wire

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// FlagFollow in the header of a [Read] or [Replay]: go on at the end of the log.
const FlagFollow uint16 = 1

// FromKind says what a read starts from.
type FromKind uint32

// Where a read starts. Below the first offset, it starts with a [Gap].
const (
	FromOffset FromKind = 0 // the record with offset Value
	FromTime   FromKind = 1 // the first record whose timestamp is not before Value, in ns since the Unix epoch
	FromLast   FromKind = 2 // the last Value records
)

// Read asks for the records of one stream. It is answered by [Records], [Gap],
// [CaughtUp] and [Heartbeat] until [End] or [Error], all with the id of the
// request, as far as its credit goes.
type Read struct {
	Follow     bool
	Stream     uint64
	From       FromKind
	Value      uint64
	MaxRecords uint64 // ends after so many; 0: no limit
	Credit     uint64 // bytes of Records messages that may come; see [Credit]
}

// AppendTo encodes m as request.
func (m *Read) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeRead, bit(m.Follow, FlagFollow), request)
	dst = put64(dst, m.Stream)
	dst = put64(dst, m.Value)
	dst = put64(dst, m.MaxRecords)
	dst = put64(dst, m.Credit)
	dst = put32(dst, uint32(m.From))
	dst = put32(dst, 0)
	return finish(dst, start)
}

// Decode decodes a Read.
func (m *Read) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Follow = h.Flags&FlagFollow != 0
	m.Stream, m.Value, m.MaxRecords, m.Credit = s.u64(), s.u64(), s.u64(), s.u64()
	m.From = FromKind(s.u32())
	s.zero(4)
	if !s.done() || h.Flags&^FlagFollow != 0 {
		return malformed("read")
	}
	if m.From > FromLast {
		return malformed("read: unknown kind of start")
	}
	return nil
}

// Replay asks for the records of the whole log in commit order, from the first
// batch at or after Position. It is answered like [Read], with [ReplayBatches]
// in the place of [Records].
type Replay struct {
	Follow     bool
	Position   uint64
	MaxRecords uint64 // ends with the batch that reaches so many; 0: no limit
	Credit     uint64 // bytes of ReplayBatches messages that may come; see [Credit]
}

// AppendTo encodes m as request.
func (m *Replay) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeReplay, bit(m.Follow, FlagFollow), request)
	dst = put64(dst, m.Position)
	dst = put64(dst, m.MaxRecords)
	dst = put64(dst, m.Credit)
	return finish(dst, start)
}

// Decode decodes a Replay.
func (m *Replay) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Follow = h.Flags&FlagFollow != 0
	m.Position, m.MaxRecords, m.Credit = s.u64(), s.u64(), s.u64()
	if !s.done() || h.Flags&^FlagFollow != 0 {
		return malformed("replay")
	}
	return nil
}

// Credit grants a read or replay more bytes. The header's request id is that of
// the read; the sidecar ignores one that has ended. While the credit of a read
// is above zero the sidecar may send one more message, cut at the credit where
// the sizes of records allow it; the message's length is taken off, so that one
// large record may overdraw the credit.
type Credit struct{ Bytes uint64 }

// AppendTo encodes m for the read request.
func (m *Credit) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypeCredit, request, m.Bytes)
}

// Decode decodes a Credit.
func (m *Credit) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.Bytes) }

// Cancel ends a read or replay early. The header's request id is that of the
// read. It is answered by the read's [End], unless that is on its way.
type Cancel struct{}

// AppendTo encodes m for the read request.
func (m *Cancel) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeCancel, 0, request)
	return finish(dst, start)
}

// Decode decodes a Cancel.
func (m *Cancel) Decode(h Header, body []byte) error { return decodeEmpty(h, body) }

// Flags of a [Record].
const (
	recordBatchEnd uint16 = 1
)

// RecordHeadBytes is the fixed part of an encoded [Record].
const RecordHeadBytes = 48

// Record is one record of the log as it is read.
type Record struct {
	Stream      uint64
	Offset      uint64
	Position    uint64 // of its batch in the log
	TimestampNS int64  // since the Unix epoch
	Checksum    uint64 // as stored, see [RecordChecksum]
	BatchEnd    bool   // the last record of its batch
	Headers     []byte // headers block; empty: none
	Payload     []byte
}

// RecordChecksum is the checksum that the log keeps of a record: xxhash64, seed
// 0, of stream id, offset, timestamp (u64 each), headers bytes, payload bytes
// (u32 each), headers block and payload. A client that compares it with
// Record.Checksum has checked the record end to end.
func RecordChecksum(r *Record) uint64 {
	var head [32]byte
	binary.LittleEndian.PutUint64(head[0:], r.Stream)
	binary.LittleEndian.PutUint64(head[8:], r.Offset)
	binary.LittleEndian.PutUint64(head[16:], uint64(r.TimestampNS))
	binary.LittleEndian.PutUint32(head[24:], uint32(len(r.Headers)))
	binary.LittleEndian.PutUint32(head[28:], uint32(len(r.Payload)))
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(head[:])
	_, _ = d.Write(r.Headers)
	_, _ = d.Write(r.Payload)
	return d.Sum64()
}

// Bytes is what the record takes in a message.
func (r *Record) Bytes() int {
	n := RecordHeadBytes + len(r.Headers) + len(r.Payload)
	return n + padding(n)
}

func (r *Record) appendTo(dst []byte, start int) []byte {
	headers := cut16(r.Headers)
	dst = put64(dst, r.Stream)
	dst = put64(dst, r.Offset)
	dst = put64(dst, r.Position)
	dst = put64(dst, uint64(r.TimestampNS))
	dst = put64(dst, r.Checksum)
	dst = put32(dst, uint32(len(r.Payload)))
	dst = put16(dst, uint16(len(headers)))
	dst = put16(dst, bit(r.BatchEnd, recordBatchEnd))
	dst = append(dst, headers...)
	dst = append(dst, r.Payload...)
	return pad(dst, start)
}

func (r *Record) decode(s *scanner) error {
	r.Stream, r.Offset, r.Position = s.u64(), s.u64(), s.u64()
	r.TimestampNS, r.Checksum = int64(s.u64()), s.u64()
	payload, headers, flags := s.u32(), s.u16(), s.u16()
	r.BatchEnd = flags&recordBatchEnd != 0
	r.Headers, r.Payload = s.take(int(headers)), s.take(int(min(payload, MaxMessageBytes)))
	s.align()
	if s.bad || flags&^recordBatchEnd != 0 {
		return malformed("record beyond the message, or unknown flag")
	}
	return nil
}

// decodeRecords decodes count records and the end of the message.
func decodeRecords(s *scanner, count uint32, into []Record) ([]Record, error) {
	for range count {
		into = append(into, Record{})
		if err := into[len(into)-1].decode(s); err != nil {
			return into, err
		}
	}
	if !s.done() {
		return into, malformed("length does not match the records")
	}
	return into, nil
}

// RecordsFixedBytes is the length of a [Records] message without its records.
const RecordsFixedBytes = HeaderBytes + 8

// Records brings records of one stream in order.
type Records struct {
	Records []Record
}

// AppendTo encodes m as an answer to the read request.
func (m *Records) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeRecords, 0, request)
	dst = put32(dst, uint32(len(m.Records)))
	dst = put32(dst, 0)
	for i := range m.Records {
		dst = m.Records[i].appendTo(dst, start)
	}
	return finish(dst, start)
}

// Decode decodes a Records.
func (m *Records) Decode(h Header, body []byte) (err error) {
	s := scanner{b: body}
	count := s.u32()
	s.zero(4)
	m.Records = m.Records[:0]
	if s.bad || h.Flags != 0 {
		return malformed("records: fixed part")
	}
	m.Records, err = decodeRecords(&s, count, m.Records)
	return err
}

// streamNameFixedBytes is the fixed part of an encoded [StreamName].
const streamNameFixedBytes = 16

// StreamName tells the name of a stream id.
type StreamName struct {
	Stream uint64
	Name   string
}

// Bytes is what the name takes in a message.
func (n *StreamName) Bytes() int {
	size := streamNameFixedBytes + len(n.Name)
	return size + padding(size)
}

// ReplayBatches brings records of the log in commit order, with the ends of
// their batches marked. A batch may span messages. Names has the streams that
// this replay has not named before.
type ReplayBatches struct {
	Names   []StreamName
	Records []Record
}

// AppendTo encodes m as an answer to the replay request.
func (m *ReplayBatches) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeReplayBatches, 0, request)
	dst = put32(dst, uint32(len(m.Records)))
	dst = put32(dst, uint32(len(m.Names)))
	for i := range m.Names {
		name := cut16(m.Names[i].Name)
		dst = put64(dst, m.Names[i].Stream)
		dst = put16(dst, uint16(len(name)))
		dst = put16(dst, 0)
		dst = put32(dst, 0)
		dst = append(dst, name...)
		dst = pad(dst, start)
	}
	for i := range m.Records {
		dst = m.Records[i].appendTo(dst, start)
	}
	return finish(dst, start)
}

// Decode decodes a ReplayBatches.
func (m *ReplayBatches) Decode(h Header, body []byte) (err error) {
	s := scanner{b: body}
	count, names := s.u32(), s.u32()
	m.Names, m.Records = m.Names[:0], m.Records[:0]
	if s.bad || h.Flags != 0 {
		return malformed("replay_batches: fixed part")
	}
	for range names {
		stream, n := s.u64(), s.u16()
		s.zero(6)
		name := s.take(int(n))
		s.align()
		if s.bad {
			return malformed("replay_batches: bad name")
		}
		m.Names = append(m.Names, StreamName{Stream: stream, Name: string(name)})
	}
	m.Records, err = decodeRecords(&s, count, m.Records)
	return err
}
