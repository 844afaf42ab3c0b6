package wire

import "strconv"

// GapKind says why records are missing.
type GapKind uint32

// The kinds of gaps.
const (
	GapTrimmed  GapKind = 1 // given up by trim
	GapDeleted  GapKind = 2 // the stream is deleted; the read ends
	GapSealed   GapKind = 3 // the stream is sealed: nothing comes at From or later; the read ends
	GapDataLost GapKind = 4 // the records cannot be read from the medium
)

// String returns the snake_case name of the kind, or its number.
func (k GapKind) String() string {
	switch k {
	case GapTrimmed:
		return "trimmed"
	case GapDeleted:
		return "deleted"
	case GapSealed:
		return "sealed"
	case GapDataLost:
		return "data_lost"
	}
	return "gap_" + strconv.FormatUint(uint64(k), 10)
}

// Gap says that the records [From, To) are missing from a read (offsets) or a
// replay (positions).
type Gap struct {
	Kind   GapKind
	Stream uint64 // 0 in a replay where it concerns all
	From   uint64
	To     uint64
}

// AppendTo encodes m as an answer to the read request.
func (m *Gap) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeGap, 0, request)
	dst = put64(dst, m.Stream)
	dst = put64(dst, m.From)
	dst = put64(dst, m.To)
	dst = put32(dst, uint32(m.Kind))
	dst = put32(dst, 0)
	return finish(dst, start)
}

// Decode decodes a Gap.
func (m *Gap) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Stream, m.From, m.To = s.u64(), s.u64(), s.u64()
	m.Kind = GapKind(s.u32())
	s.zero(4)
	if !s.done() || h.Flags != 0 {
		return malformed("gap")
	}
	return nil
}

// CaughtUp says that a follow has sent everything durable so far.
type CaughtUp struct {
	Durable uint64 // durable position
	Next    uint64 // offset (read) or position (replay) where it goes on
}

// AppendTo encodes m as an answer to the read request.
func (m *CaughtUp) AppendTo(dst []byte, request uint64) []byte {
	return appendTwo(dst, TypeCaughtUp, request, m.Durable, m.Next)
}

// Decode decodes a CaughtUp.
func (m *CaughtUp) Decode(h Header, body []byte) error {
	return decodeTwo(h, body, &m.Durable, &m.Next)
}

// Heartbeat is a sign of life of a follow that has nothing to send.
type Heartbeat struct {
	Durable uint64 // durable position
}

// AppendTo encodes m as an answer to the read request.
func (m *Heartbeat) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypeHeartbeat, request, m.Durable)
}

// Decode decodes a Heartbeat.
func (m *Heartbeat) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.Durable) }

// End is the last message of a read or replay that did not fail.
type End struct {
	Durable uint64 // durable position
	Next    uint64 // offset (read) or position (replay) to go on from
}

// AppendTo encodes m as the last answer to the read request.
func (m *End) AppendTo(dst []byte, request uint64) []byte {
	return appendTwo(dst, TypeEnd, request, m.Durable, m.Next)
}

// Decode decodes an End.
func (m *End) Decode(h Header, body []byte) error { return decodeTwo(h, body, &m.Durable, &m.Next) }
