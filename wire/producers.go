package wire

// ProducerOpen asks for a producer: the named one of Name, made if need be, or a
// new session producer where Name is empty. Answered by [ProducerInfo].
type ProducerOpen struct {
	Name   string
	Window uint32 // session producer: slots for batches not yet acked; 0: DefaultProducerWindow
}

// AppendTo encodes m as request.
func (m *ProducerOpen) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeProducerOpen, 0, request)
	name := cut16(m.Name)
	dst = put32(dst, m.Window)
	dst = put16(dst, uint16(len(name)))
	dst = put16(dst, 0)
	dst = append(dst, name...)
	return finish(dst, start)
}

// Decode decodes a ProducerOpen.
func (m *ProducerOpen) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Window = s.u32()
	name := s.u16()
	s.zero(2)
	m.Name = string(s.take(int(name)))
	if !s.done() || h.Flags != 0 {
		return malformed("producer_open")
	}
	if name > MaxProducerNameBytes || m.Window > MaxProducerWindow {
		return malformed("producer_open: name longer than 255 bytes or window above 8,192")
	}
	return nil
}

// ProducerGet asks how far a producer got: the named one of Name, or that of ID
// where Name is empty. Answered by [ProducerInfo], or [CodeNotFound] for a name
// and [CodeProducerExpired] for an id that is unknown.
type ProducerGet struct {
	ID   uint64
	Name string
}

// AppendTo encodes m as request.
func (m *ProducerGet) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeProducerGet, 0, request)
	name := cut16(m.Name)
	dst = put64(dst, m.ID)
	dst = put16(dst, uint16(len(name)))
	dst = put16(dst, 0)
	dst = put32(dst, 0)
	dst = append(dst, name...)
	return finish(dst, start)
}

// Decode decodes a ProducerGet.
func (m *ProducerGet) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.ID = s.u64()
	name := s.u16()
	s.zero(6)
	m.Name = string(s.take(int(name)))
	if !s.done() || h.Flags != 0 {
		return malformed("producer_get")
	}
	if name > MaxProducerNameBytes {
		return malformed("producer_get: name is longer than 255 bytes")
	}
	return nil
}

// ProducerRemove removes a named producer. Answered by [ProducerInfo].
type ProducerRemove struct{ Name string }

// AppendTo encodes m as request.
func (m *ProducerRemove) AppendTo(dst []byte, request uint64) []byte {
	return appendName(dst, TypeProducerRemove, 0, request, m.Name)
}

// Decode decodes a ProducerRemove.
func (m *ProducerRemove) Decode(h Header, body []byte) error {
	return decodeName(h, 0, body, &m.Name)
}

// Flags in the header of a [ProducerInfo].
const (
	FlagProducerCreated uint16 = 1
	FlagProducerRemoved uint16 = 2
)

// ProducerInfo answers the commands on a producer.
type ProducerInfo struct {
	Created      bool // by the request that this answers
	Removed      bool // by the request that this answers
	ID           uint64
	LastSequence uint64 // of the last batch that is in the log, or logged as refused; 0 where there is none
	Window       uint32 // session producer; 0 for a named one
	Name         string // "" for a session producer
}

// AppendTo encodes m as the answer to request.
func (m *ProducerInfo) AppendTo(dst []byte, request uint64) []byte {
	flags := bit(m.Created, FlagProducerCreated) | bit(m.Removed, FlagProducerRemoved)
	dst, start := begin(dst, TypeProducerInfo, flags, request)
	name := cut16(m.Name)
	dst = put64(dst, m.ID)
	dst = put64(dst, m.LastSequence)
	dst = put32(dst, m.Window)
	dst = put16(dst, uint16(len(name)))
	dst = put16(dst, 0)
	dst = append(dst, name...)
	return finish(dst, start)
}

// Decode decodes a ProducerInfo.
func (m *ProducerInfo) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Created, m.Removed = h.Flags&FlagProducerCreated != 0, h.Flags&FlagProducerRemoved != 0
	m.ID, m.LastSequence, m.Window = s.u64(), s.u64(), s.u32()
	name := s.u16()
	s.zero(2)
	m.Name = string(s.take(int(name)))
	if !s.done() || h.Flags&^(FlagProducerCreated|FlagProducerRemoved) != 0 {
		return malformed("producer_info")
	}
	return nil
}
