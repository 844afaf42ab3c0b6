package stream

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// A checkpoint is the whole Table in one canonical encoding: equal states have
// equal bytes. All integers are little-endian; nothing is padded.
//
//	magic u32 "WSC1", version u32
//	next stream id u64, next named producer id u64
//	streams u32, named producers u32, session producers u32, zero u32
//	per stream, ascending by name:
//	  id u64, first u64, next u64, created i64, last i64, flags u8 (1 sealed),
//	  token length u8, name length u8, zero u8, name, token
//	per named producer, ascending by name:
//	  id u64, last u64, position u64, name length u8, name
//	per session producer, ascending by id:
//	  id u64, last u64, base u64, position u64, window u32, slots u32
//	  per slot: position u64, stream u64, first u64, count u16, code u16, more u16, zero u16
//
// The slots' sequences follow from base: a slot whose predecessor has more = 0 starts
// the next sequence.
const (
	checkpointMagic   = 0x31435357 // "WSC1"
	checkpointVersion = 1
	flagSealed        = 1

	checkpointHeaderBytes = 40
	streamFixedBytes      = 44
	namedCheckpointBytes  = 25
	sessionFixedBytes     = 40
	slotBytes             = 32
)

func streamBound(name int) uint64       { return uint64(streamFixedBytes + name + MaxTokenBytes) }
func namedBound(name int) uint64        { return uint64(namedCheckpointBytes + name) }
func sessionBound(window uint32) uint64 { return sessionFixedBytes + slotBytes*uint64(window) }

// EncodeCheckpoint appends the state to dst.
func (t *Table) EncodeCheckpoint(dst []byte) []byte {
	dst = t.appendHeader(dst)
	for _, s := range t.streams.byName {
		dst = s.append(dst)
	}
	for _, p := range t.producers.named {
		dst = p.append(dst)
	}
	for _, p := range t.producers.sessions {
		dst = p.append(dst)
	}
	return dst
}

// EqualCheckpoint reports whether state is exactly what EncodeCheckpoint gives, in
// fixed memory. A checkpoint that recovery meets after the first complete one must
// be.
func (t *Table) EqualCheckpoint(state []byte) bool {
	scratch := t.appendHeader(make([]byte, 0, 4096))
	equal := func() bool {
		if !bytes.HasPrefix(state, scratch) {
			return false
		}
		state = state[len(scratch):]
		scratch = scratch[:0]
		return true
	}
	if !equal() {
		return false
	}
	for _, s := range t.streams.byName {
		if scratch = s.append(scratch); !equal() {
			return false
		}
	}
	for _, p := range t.producers.named {
		if scratch = p.append(scratch); !equal() {
			return false
		}
	}
	for _, p := range t.producers.sessions {
		if scratch = p.append(scratch); !equal() {
			return false
		}
	}
	return len(state) == 0
}

func (t *Table) appendHeader(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, checkpointMagic)
	dst = le.AppendUint32(dst, checkpointVersion)
	dst = le.AppendUint64(dst, uint64(t.streams.nextID))
	dst = le.AppendUint64(dst, uint64(t.producers.nextID))
	dst = le.AppendUint32(dst, uint32(len(t.streams.byName)))
	dst = le.AppendUint32(dst, uint32(len(t.producers.named)))
	dst = le.AppendUint32(dst, uint32(len(t.producers.sessions)))
	return le.AppendUint32(dst, 0)
}

func (s *streamState) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(s.id))
	dst = le.AppendUint64(dst, s.first)
	dst = le.AppendUint64(dst, s.next)
	dst = le.AppendUint64(dst, uint64(s.created))
	dst = le.AppendUint64(dst, uint64(s.last))
	flags := byte(0)
	if s.sealed {
		flags = flagSealed
	}
	dst = append(dst, flags, byte(len(s.token)), byte(len(s.name)), 0)
	dst = append(dst, s.name...)
	return append(dst, s.token...)
}

func (p *producer) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(p.id))
	dst = le.AppendUint64(dst, p.last)
	if !p.id.IsSession() {
		dst = le.AppendUint64(dst, p.position)
		dst = append(dst, byte(len(p.name)))
		return append(dst, p.name...)
	}
	dst = le.AppendUint64(dst, p.base)
	dst = le.AppendUint64(dst, p.position)
	dst = le.AppendUint32(dst, p.window)
	dst = le.AppendUint32(dst, uint32(p.results.used))
	for i := range p.results.used {
		s := p.results.at(i)
		dst = le.AppendUint64(dst, s.position)
		dst = le.AppendUint64(dst, uint64(s.stream))
		dst = le.AppendUint64(dst, s.first)
		dst = le.AppendUint16(dst, s.count)
		dst = le.AppendUint16(dst, uint16(s.code))
		dst = le.AppendUint16(dst, s.more)
		dst = le.AppendUint16(dst, 0)
	}
	return dst
}

// DecodeCheckpoint returns the table that state encodes. checkpointMaxBytes is as
// for [NewTable]. Any bytes are safe; the error wraps [ErrDamaged].
func DecodeCheckpoint(state []byte, checkpointMaxBytes uint64) (*Table, error) {
	t := NewTable(checkpointMaxBytes)
	d := checkpointDecoder{rest: state, table: t}
	if problem := d.decode(); problem != "" {
		return nil, fmt.Errorf("%w: checkpoint of %d bytes, at byte %d: %s",
			ErrDamaged, len(state), len(state)-len(d.rest), problem)
	}
	return t, nil
}

// checkpointDecoder consumes rest; each step returns what is wrong, "" if nothing.
type checkpointDecoder struct {
	rest  []byte
	table *Table
	short bool // something was read beyond the end, as zeros
}

func (d *checkpointDecoder) bytes(n int) []byte {
	if n > len(d.rest) {
		d.short = true
		d.rest = nil
		return make([]byte, n)
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *checkpointDecoder) u8() byte    { return d.bytes(1)[0] }
func (d *checkpointDecoder) u16() uint16 { return binary.LittleEndian.Uint16(d.bytes(2)) }
func (d *checkpointDecoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *checkpointDecoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

func (d *checkpointDecoder) decode() string {
	t := d.table
	if d.u32() != checkpointMagic {
		return "not a checkpoint"
	}
	if d.u32() != checkpointVersion {
		return "unknown version"
	}
	t.streams.nextID, t.producers.nextID = ID(d.u64()), ProducerID(d.u64())
	streams, named, sessions := d.u32(), d.u32(), d.u32()
	switch {
	case d.u32() != 0:
		return "reserved bytes are not zero"
	case d.short:
		return "ends inside its header"
	case t.streams.nextID == 0 || t.producers.nextID == 0 || t.producers.nextID.IsSession():
		return "a next id is out of range"
	case streams > MaxStreams || named > MaxNamedProducers || sessions > MaxSessionProducers:
		return "more streams or producers than the limit"
	}
	for range streams {
		if problem := d.stream(); problem != "" {
			return problem
		}
	}
	for range named {
		if problem := d.named(); problem != "" {
			return problem
		}
	}
	for range sessions {
		if problem := d.session(); problem != "" {
			return problem
		}
	}
	if len(d.rest) != 0 {
		return "bytes follow its end"
	}
	return ""
}

func (d *checkpointDecoder) stream() string {
	t := &d.table.streams
	s := &streamState{id: ID(d.u64()), first: d.u64(), next: d.u64(), created: int64(d.u64()), last: int64(d.u64())}
	flags, token, name, zero := d.u8(), int(d.u8()), int(d.u8()), d.u8()
	s.name = string(d.bytes(name))
	s.token = bytes.Clone(d.bytes(token))
	s.sealed = flags == flagSealed
	switch {
	case d.short:
		return "ends inside a stream"
	case s.id == 0 || s.id >= t.nextID || t.byID.get(s.id) != nil:
		return "a stream's id is out of range or in use"
	case name == 0 || len(t.byName) > 0 && t.byName[len(t.byName)-1].name >= s.name:
		return "a stream's name is empty or out of order"
	case s.first > s.next || s.last < 0 || flags > flagSealed || token > MaxTokenBytes || zero != 0:
		return "a stream's fields are out of range"
	}
	t.byName = append(t.byName, s)
	t.byID.put(s.id, s)
	if s.first < s.next {
		t.filled++
	}
	d.table.bound += streamBound(name)
	return ""
}

func (d *checkpointDecoder) named() string {
	t := &d.table.producers
	p := &producer{id: ProducerID(d.u64()), last: d.u64(), position: d.u64()}
	p.name = string(d.bytes(int(d.u8())))
	switch {
	case d.short:
		return "ends inside a named producer"
	case p.id == 0 || p.id >= t.nextID || t.byID[p.id] != nil:
		return "a named producer's id is out of range or in use"
	case p.name == "" || len(t.named) > 0 && t.named[len(t.named)-1].name >= p.name:
		return "a named producer's name is empty or out of order"
	}
	t.named = append(t.named, p)
	t.byID[p.id] = p
	d.table.bound += namedBound(len(p.name))
	return ""
}

func (d *checkpointDecoder) session() string {
	t := &d.table.producers
	p := &producer{id: ProducerID(d.u64()), last: d.u64(), base: d.u64(), position: d.u64(), window: d.u32()}
	slots := d.u32()
	switch {
	case d.short:
		return "ends inside a session producer"
	case !p.id.IsSession() || t.byID[p.id] != nil:
		return "a session producer's id is out of range or in use"
	case len(t.sessions) > 0 && t.sessions[len(t.sessions)-1].id >= p.id:
		return "a session producer's id is out of order"
	case p.window == 0 || p.window > MaxWindow || slots > p.window || p.base == 0:
		return "a session producer's fields are out of range"
	case uint64(slots)*slotBytes > uint64(len(d.rest)):
		return "ends inside a session producer's results"
	}
	if problem := d.results(p, int(slots)); problem != "" {
		return problem
	}
	t.sessions = append(t.sessions, p)
	t.byID[p.id] = p
	d.table.addSessionBound(p.window, 1)
	return ""
}

// results decodes the slots of p, which cover exactly [base, last].
func (d *checkpointDecoder) results(p *producer, slots int) string {
	sequence, more := p.base, uint16(0)
	for i := range slots {
		s := resultSlot{sequence: sequence, position: d.u64(), stream: ID(d.u64()), first: d.u64(),
			count: d.u16(), code: Code(d.u16()), more: d.u16()}
		inside := i > 0 && more > 0
		switch {
		case d.u16() != 0:
			return "reserved bytes of a result are not zero"
		case inside && (s.code != 0 || s.more != more-1):
			return "a result's slots do not belong together"
		case s.code == 0 && (s.stream == 0 || s.stream >= d.table.streams.nextID || s.count == 0 || s.count > MaxBatchRecords):
			return "a result's placement is out of range"
		case s.code != 0 && (s.code.Err() == nil || s.stream != 0 || s.count >= MaxBatchRecords || s.more != 0):
			return "a refused result is out of range"
		}
		p.results.push(s)
		if more = s.more; more == 0 {
			sequence++
		}
	}
	if more != 0 || sequence-1 != p.last {
		return "a session producer's results do not reach its last sequence"
	}
	return ""
}
