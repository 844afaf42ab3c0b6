package wire

// Hello is the first message of a client. Request id 0.
type Hello struct {
	VersionMin, VersionMax uint16 // what the client speaks
	Features               uint64 // feature bits that the client knows
	Log                    string // which log: a log UUID or a node name; "" is the sidecar's own
	Client                 string // who asks, for logs and metrics: "payments/1.4"
}

// AppendTo encodes m.
func (m *Hello) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeHello, 0, request)
	log, client := cut16(m.Log), cut16(m.Client)
	dst = put64(dst, Magic)
	dst = put64(dst, m.Features)
	dst = put16(dst, m.VersionMin)
	dst = put16(dst, m.VersionMax)
	dst = put16(dst, uint16(len(log)))
	dst = put16(dst, uint16(len(client)))
	dst = append(dst, log...)
	dst = append(dst, client...)
	return finish(dst, start)
}

// Decode decodes a Hello. Flags are ignored, and so is what follows the known
// fields, so that a sidecar can name a version that a newer client speaks.
func (m *Hello) Decode(_ Header, body []byte) error {
	s := scanner{b: body}
	magic := s.u64()
	m.Features = s.u64()
	m.VersionMin, m.VersionMax = s.u16(), s.u16()
	log, client := s.u16(), s.u16()
	m.Log, m.Client = string(s.take(int(log))), string(s.take(int(client)))
	switch {
	case s.bad || magic != Magic:
		return malformed("hello: not a client of walsidecar")
	case m.VersionMin > m.VersionMax:
		return malformed("hello: lowest version above the highest")
	case log > MaxLogSelectorBytes || client > MaxClientNameBytes:
		return malformed("hello: name too long")
	}
	return nil
}

// Flags in the header of a [Welcome].
const (
	FlagNotDurable uint16 = 1 // a null log: answers promise nothing
	FlagReadOnly   uint16 = 2 // the log takes no appends and no commands that change it
)

// Welcome answers [Hello]: what the client talks to, and the limits of its session.
type Welcome struct {
	NotDurable bool
	ReadOnly   bool
	Version    uint16   // of this connection
	Features   uint64   // of this connection: known to both sides
	Session    uint64   // id of the session, for logs
	Log        [16]byte // log UUID
	Epoch      uint64
	Durable    uint64 // durable position when this was written
	Trim       uint64 // trim position when this was written

	MaxMessageBytes uint32 // largest message that the sidecar reads
	MaxBatchRecords uint32 // records of one batch
	MaxBatchBytes   uint32 // what a batch may take in a frame, see docs/protocol.md
	MaxRequests     uint32 // requests in flight; beyond, the sidecar stops reading
	MaxRequestBytes uint64 // bytes of requests in flight; beyond, the sidecar stops reading
	MaxReads        uint32 // reads and replays open at once
	HeartbeatMS     uint32 // a follow hears at least this often
	IdleMS          uint32 // a client that sends nothing for so long is dropped: ping
	SlowMS          uint32 // a client that takes nothing for so long is dropped

	Node   string // name of the log's node
	Server string // name and version of the sidecar
}

// AppendTo encodes m.
func (m *Welcome) AppendTo(dst []byte, request uint64) []byte {
	flags := bit(m.NotDurable, FlagNotDurable) | bit(m.ReadOnly, FlagReadOnly)
	dst, start := begin(dst, TypeWelcome, flags, request)
	node, server := cut16(m.Node), cut16(m.Server)
	dst = put16(dst, m.Version)
	dst = put16(dst, uint16(len(node)))
	dst = put16(dst, uint16(len(server)))
	dst = put16(dst, 0)
	dst = put64(dst, m.Features)
	dst = put64(dst, m.Session)
	dst = append(dst, m.Log[:]...)
	dst = put64(dst, m.Epoch)
	dst = put64(dst, m.Durable)
	dst = put64(dst, m.Trim)
	dst = put64(dst, m.MaxRequestBytes)
	dst = put32(dst, m.MaxMessageBytes)
	dst = put32(dst, m.MaxBatchRecords)
	dst = put32(dst, m.MaxBatchBytes)
	dst = put32(dst, m.MaxRequests)
	dst = put32(dst, m.MaxReads)
	dst = put32(dst, m.HeartbeatMS)
	dst = put32(dst, m.IdleMS)
	dst = put32(dst, m.SlowMS)
	dst = append(dst, node...)
	dst = append(dst, server...)
	return finish(dst, start)
}

// Decode decodes a Welcome.
func (m *Welcome) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.NotDurable, m.ReadOnly = h.Flags&FlagNotDurable != 0, h.Flags&FlagReadOnly != 0
	m.Version = s.u16()
	node, server := s.u16(), s.u16()
	s.zero(2)
	m.Features, m.Session = s.u64(), s.u64()
	copy(m.Log[:], s.take(16))
	m.Epoch, m.Durable, m.Trim, m.MaxRequestBytes = s.u64(), s.u64(), s.u64(), s.u64()
	m.MaxMessageBytes, m.MaxBatchRecords, m.MaxBatchBytes = s.u32(), s.u32(), s.u32()
	m.MaxRequests, m.MaxReads = s.u32(), s.u32()
	m.HeartbeatMS, m.IdleMS, m.SlowMS = s.u32(), s.u32(), s.u32()
	m.Node, m.Server = string(s.take(int(node))), string(s.take(int(server)))
	if !s.done() || h.Flags&^(FlagNotDurable|FlagReadOnly) != 0 {
		return malformed("welcome")
	}
	return nil
}

// bit returns mask if on.
func bit(on bool, mask uint16) uint16 {
	if on {
		return mask
	}
	return 0
}

// Goodbye is the last message of the sidecar on a connection: why it ends.
// Request id 0. What was not answered before has an unknown outcome.
type Goodbye struct {
	Code    Code
	Message string
}

// AppendTo encodes m.
func (m *Goodbye) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeGoodbye, 0, request)
	text := cutText(m.Message)
	dst = put16(dst, uint16(m.Code))
	dst = put16(dst, uint16(len(text)))
	dst = put32(dst, 0)
	dst = append(dst, text...)
	return finish(dst, start)
}

// Decode decodes a Goodbye.
func (m *Goodbye) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Code = Code(s.u16())
	text := s.u16()
	s.zero(4)
	m.Message = string(s.take(int(text)))
	if !s.done() || h.Flags != 0 {
		return malformed("goodbye")
	}
	return nil
}

// Ping asks for a [Pong]: a sign of life in both directions.
type Ping struct{}

// AppendTo encodes m as request.
func (m *Ping) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypePing, 0, request)
	return finish(dst, start)
}

// Decode decodes a Ping.
func (m *Ping) Decode(h Header, body []byte) error { return decodeEmpty(h, body) }

// Pong answers [Ping].
type Pong struct {
	Durable uint64 // durable position
}

// AppendTo encodes m as the answer to request.
func (m *Pong) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypePong, request, m.Durable)
}

// Decode decodes a Pong.
func (m *Pong) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.Durable) }

// Status asks for [StatusJSON].
type Status struct{}

// AppendTo encodes m as request.
func (m *Status) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeStatus, 0, request)
	return finish(dst, start)
}

// Decode decodes a Status.
func (m *Status) Decode(h Header, body []byte) error { return decodeEmpty(h, body) }

// StatusJSON answers [Status] with the JSON document of `walsidecar status --json`.
type StatusJSON struct {
	JSON []byte
}

// AppendTo encodes m as the answer to request.
func (m *StatusJSON) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeStatusJSON, 0, request)
	dst = put32(dst, uint32(len(m.JSON)))
	dst = put32(dst, 0)
	dst = append(dst, m.JSON...)
	return finish(dst, start)
}

// Decode decodes a StatusJSON.
func (m *StatusJSON) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	n := s.u32()
	s.zero(4)
	m.JSON = s.take(int(min(n, MaxMessageBytes)))
	if !s.done() || h.Flags != 0 {
		return malformed("status_json")
	}
	return nil
}

// decodeEmpty checks a message without a body.
func decodeEmpty(h Header, body []byte) error {
	if len(body) != 0 || h.Flags != 0 {
		return malformed("a body or flags where there must be none")
	}
	return nil
}

// appendOne encodes a message whose body is one u64.
func appendOne(dst []byte, t Type, request, value uint64) []byte {
	dst, start := begin(dst, t, 0, request)
	return finish(put64(dst, value), start)
}

// decodeOne decodes a message whose body is one u64.
func decodeOne(h Header, body []byte, value *uint64) error {
	s := scanner{b: body}
	*value = s.u64()
	if !s.done() || h.Flags != 0 {
		return malformed("not a body of one u64")
	}
	return nil
}
