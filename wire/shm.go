package wire

// FeatureShm is the feature bit of the shared-memory door: the client may ask for
// it with [ShmOpen].
const FeatureShm uint64 = 1

// ShmOpen asks for shared memory to append through. It is the first request of a
// connection, or is refused. It is answered by [ShmInfo] or [Error].
type ShmOpen struct {
	RingBytes uint64 // wanted, rounded up to what the sidecar has; 0: its default
}

// AppendTo encodes m as request.
func (m *ShmOpen) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypeShmOpen, request, m.RingBytes)
}

// Decode decodes a ShmOpen.
func (m *ShmOpen) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.RingBytes) }

// ShmInfo answers [ShmOpen]. Three descriptors come with its bytes (SCM_RIGHTS): the
// submission area, the completion area, and the eventfd that wakes the sidecar.
type ShmInfo struct {
	Layout          uint16 // version of the layout of the areas
	MaxMessageBytes uint32 // largest message of the ring
	MaxRequests     uint32 // messages of the ring that may be unanswered
	RingBytes       uint64 // of the ring in the submission area, a power of two
	CompletionBytes uint64 // of the completion area
}

// AppendTo encodes m as the answer to request.
func (m *ShmInfo) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeShmInfo, 0, request)
	dst = put16(dst, m.Layout)
	dst = put16(dst, 0)
	dst = put32(dst, m.MaxMessageBytes)
	dst = put32(dst, m.MaxRequests)
	dst = put32(dst, 0)
	dst = put64(dst, m.RingBytes)
	dst = put64(dst, m.CompletionBytes)
	return finish(dst, start)
}

// Decode decodes a ShmInfo.
func (m *ShmInfo) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Layout = s.u16()
	s.zero(2)
	m.MaxMessageBytes, m.MaxRequests = s.u32(), s.u32()
	s.zero(4)
	m.RingBytes, m.CompletionBytes = s.u64(), s.u64()
	if !s.done() || h.Flags != 0 {
		return malformed("shm_info")
	}
	return nil
}

// Pad fills the end of a ring in shared memory where a message does not fit; it never
// travels over a socket. Only the first 8 bytes of it are written: length, type and
// flags; the length reaches to the end of the ring.
type Pad struct{}

// AppendTo encodes the shortest Pad that has a whole header.
func (m *Pad) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypePad, 0, request)
	return finish(dst, start)
}

// Decode decodes a Pad.
func (m *Pad) Decode(h Header, body []byte) error { return decodeEmpty(h, body) }

// Detach copies the tokens and headers blocks of m into scratch, which it returns
// grown: a message that lies in memory which its sender can change is checked on
// the copies. The payloads stay where they are, to be read once.
func (m *Append) Detach(scratch []byte) []byte {
	need := 0
	for i := range m.Entries {
		need += len(m.Entries[i].Token) + len(m.Entries[i].Headers)
	}
	if need == 0 {
		return scratch
	}
	if cap(scratch) < need {
		scratch = make([]byte, need)
	}
	free := scratch[:need]
	for i := range m.Entries {
		e := &m.Entries[i]
		n := copy(free, e.Token)
		e.Token, free = free[:n:n], free[n:]
		n = copy(free, e.Headers)
		e.Headers, free = free[:n:n], free[n:]
	}
	return scratch
}
