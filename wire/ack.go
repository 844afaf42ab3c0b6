package wire

// ackExtentBytes is the encoded size of an [AckExtent].
const ackExtentBytes = 48

// AckExtent says that consecutive appends are durable: request Request+i has
// its records at offset Offset+i×Records and position Position+i×Step, for
// 0 ≤ i < Requests. Each request put Records records into the one Stream.
type AckExtent struct {
	Request  uint64
	Stream   uint64 // stream id
	Offset   uint64 // of the first record of the first request
	Position uint64 // of the first request's batch in the log
	Requests uint32 // ≥ 1
	Records  uint32 // per request, ≥ 1
	Step     uint32 // between the positions of two requests; 0 with one request
}

// At returns the offset of the first record and the position of request
// Request+i.
func (e *AckExtent) At(i uint32) (offset, position uint64) {
	return e.Offset + uint64(i)*uint64(e.Records), e.Position + uint64(i)*uint64(e.Step)
}

// Extend adds an append to the extent if it continues it, and reports whether
// it did.
func (e *AckExtent) Extend(request, stream, offset uint64, records uint32, position uint64) bool {
	if stream != e.Stream || records != e.Records || request != e.Request+uint64(e.Requests) ||
		offset != e.Offset+uint64(e.Requests)*uint64(e.Records) {
		return false
	}
	if e.Requests == 1 {
		if position < e.Position || position-e.Position >= 1<<32 {
			return false
		}
		e.Step = uint32(position - e.Position)
	} else if position != e.Position+uint64(e.Requests)*uint64(e.Step) {
		return false
	}
	e.Requests++
	return true
}

// AppendAck says which appends are durable. Request id 0: the extents have them.
// Appends of one session are answered in the order of their requests.
type AppendAck struct {
	Extents []AckExtent
}

// AppendTo encodes m.
func (m *AppendAck) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeAppendAck, 0, request)
	dst = put32(dst, uint32(len(m.Extents)))
	dst = put32(dst, 0)
	for i := range m.Extents {
		e := &m.Extents[i]
		dst = put64(dst, e.Request)
		dst = put64(dst, e.Stream)
		dst = put64(dst, e.Offset)
		dst = put64(dst, e.Position)
		dst = put32(dst, e.Requests)
		dst = put32(dst, e.Records)
		dst = put32(dst, e.Step)
		dst = put32(dst, 0)
	}
	return finish(dst, start)
}

// Decode decodes an AppendAck.
func (m *AppendAck) Decode(h Header, body []byte) error {
	m.Extents = m.Extents[:0]
	s := scanner{b: body}
	count := s.u32()
	s.zero(4)
	if s.bad || int64(count)*ackExtentBytes != int64(len(body)-s.at) || h.Flags != 0 {
		return malformed("append_ack: length does not match its count")
	}
	for range count {
		e := AckExtent{Request: s.u64(), Stream: s.u64(), Offset: s.u64(), Position: s.u64(), Requests: s.u32(), Records: s.u32(), Step: s.u32()}
		s.zero(4)
		if s.bad || e.Requests == 0 || e.Records == 0 {
			return malformed("append_ack: bad extent")
		}
		m.Extents = append(m.Extents, e)
	}
	return nil
}

// FlagDuplicate in the header of an [AppendResult]: the batch was appended before.
const FlagDuplicate uint16 = 1

// placedBytes is the encoded size of a [Placed].
const placedBytes = 24

// Placed says where the records of a batch lie in one stream.
type Placed struct {
	Stream uint64
	Offset uint64 // of the first record
	Count  uint32 // records, contiguous
}

// AppendResult answers an [Append] that [AppendAck] cannot: a batch over several
// streams, or one that was appended before (a duplicate). A duplicate of a
// session producer comes with the places and position of the first time; one of
// a named producer has neither.
type AppendResult struct {
	Duplicate    bool
	Position     uint64 // of the batch in the log
	LastSequence uint64 // duplicate: the last sequence of the producer
	Placed       []Placed
}

// AppendTo encodes m as the answer to request.
func (m *AppendResult) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeAppendResult, bit(m.Duplicate, FlagDuplicate), request)
	dst = put64(dst, m.Position)
	dst = put64(dst, m.LastSequence)
	dst = put32(dst, uint32(len(m.Placed)))
	dst = put32(dst, 0)
	for i := range m.Placed {
		dst = put64(dst, m.Placed[i].Stream)
		dst = put64(dst, m.Placed[i].Offset)
		dst = put32(dst, m.Placed[i].Count)
		dst = put32(dst, 0)
	}
	return finish(dst, start)
}

// Decode decodes an AppendResult.
func (m *AppendResult) Decode(h Header, body []byte) error {
	*m = AppendResult{Placed: m.Placed[:0], Duplicate: h.Flags&FlagDuplicate != 0}
	s := scanner{b: body}
	m.Position, m.LastSequence = s.u64(), s.u64()
	count := s.u32()
	s.zero(4)
	if s.bad || int64(count)*placedBytes != int64(len(body)-s.at) || h.Flags&^FlagDuplicate != 0 {
		return malformed("append_result: length does not match its count")
	}
	for range count {
		m.Placed = append(m.Placed, Placed{Stream: s.u64(), Offset: s.u64(), Count: s.u32()})
		s.zero(4)
	}
	if s.bad {
		return malformed("append_result: reserved bytes are not zero")
	}
	return nil
}
