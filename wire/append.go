package wire

// FlagProducer in the header of an [Append]: the producer part is present.
const FlagProducer uint16 = 1

// Flags of an entry.
const (
	entryExpect uint8 = 1 // the expected next offset follows the entry's head
)

// entryHeadBytes is the fixed part of an entry.
const entryHeadBytes = 16

// Append is one batch: records that are committed all or none.
// It is answered by [AppendAck], [AppendResult] or [Error].
type Append struct {
	HasProducer bool   // the next three fields are given
	Producer    uint64 // id of a session or named producer
	Sequence    uint64 // of this batch
	Acked       uint64 // session producer: every sequence below it was answered; 0 and 1 say nothing
	Entries     []Entry
}

// Entry is one record to append, with its conditions.
type Entry struct {
	Stream    uint64 // stream id
	HasExpect bool   // Expect is given
	Expect    uint64 // the offset that this record must get
	Token     []byte // the stream's token, 1 to MaxTokenBytes; empty: none
	Headers   []byte // headers block, see [AppendHeader]; empty: none
	Payload   []byte
}

// Bytes is what the entry takes in a message.
func (e *Entry) Bytes() int {
	n := entryHeadBytes + len(e.Token) + len(e.Headers) + len(e.Payload)
	if e.HasExpect {
		n += 8
	}
	return n + padding(n)
}

// Bytes is the length of the message.
func (m *Append) Bytes() int {
	n := HeaderBytes + 8
	if m.HasProducer {
		n += 24
	}
	for i := range m.Entries {
		n += m.Entries[i].Bytes()
	}
	return n
}

// AppendTo encodes m as request.
func (m *Append) AppendTo(dst []byte, request uint64) []byte {
	var flags uint16
	if m.HasProducer {
		flags |= FlagProducer
	}
	dst, start := begin(dst, TypeAppend, flags, request)
	if m.HasProducer {
		dst = put64(dst, m.Producer)
		dst = put64(dst, m.Sequence)
		dst = put64(dst, m.Acked)
	}
	dst = put32(dst, uint32(len(m.Entries)))
	dst = put32(dst, 0)
	for i := range m.Entries {
		dst = m.Entries[i].appendTo(dst, start)
	}
	return finish(dst, start)
}

func (e *Entry) appendTo(dst []byte, start int) []byte {
	var flags uint8
	if e.HasExpect {
		flags |= entryExpect
	}
	token, headers := e.Token[:min(len(e.Token), 1<<8-1)], cut16(e.Headers)
	dst = put64(dst, e.Stream)
	dst = put32(dst, uint32(len(e.Payload)))
	dst = put16(dst, uint16(len(headers)))
	dst = append(dst, uint8(len(token)), flags)
	if e.HasExpect {
		dst = put64(dst, e.Expect)
	}
	dst = append(dst, token...)
	dst = append(dst, headers...)
	dst = append(dst, e.Payload...)
	return pad(dst, start)
}

// Decode decodes a batch. What its headers blocks hold is for the log to judge.
func (m *Append) Decode(h Header, body []byte) error {
	*m = Append{Entries: m.Entries[:0]}
	if h.Flags&^FlagProducer != 0 {
		return malformed("append: unknown flag")
	}
	s := scanner{b: body}
	if h.Flags&FlagProducer != 0 {
		m.HasProducer = true
		m.Producer, m.Sequence, m.Acked = s.u64(), s.u64(), s.u64()
	}
	count := s.u32()
	s.zero(4)
	if s.bad {
		return malformed("append: fixed part")
	}
	if count == 0 || count > MaxBatchRecords {
		return malformed("append: a batch has 1 to 4,096 records")
	}
	for range count {
		m.Entries = append(m.Entries, Entry{})
		if err := m.Entries[len(m.Entries)-1].decode(&s); err != nil {
			return err
		}
	}
	if !s.done() {
		return malformed("append: length does not match its entries")
	}
	return nil
}

func (e *Entry) decode(s *scanner) error {
	e.Stream = s.u64()
	payload, headers := s.u32(), s.u16()
	rest := s.take(2)
	if rest == nil {
		return malformed("append: entry cut short")
	}
	token, flags := rest[0], rest[1]
	if flags&^entryExpect != 0 {
		return malformed("append: unknown flag of an entry")
	}
	if token > MaxTokenBytes {
		return malformed("append: token is longer than 64 bytes")
	}
	if flags&entryExpect != 0 {
		e.HasExpect, e.Expect = true, s.u64()
	}
	if payload > MaxMessageBytes {
		return malformed("append: payload beyond the message")
	}
	e.Token, e.Headers, e.Payload = s.take(int(token)), s.take(int(headers)), s.take(int(payload))
	s.align()
	if s.bad {
		return malformed("append: entry beyond the message, or padding that is not zero")
	}
	return nil
}
