package wire

// FlagCreate in the header of a [StreamOpen]: make the stream if there is none.
const FlagCreate uint16 = 1

// StreamOpen asks for the stream of a name, made if need be. Answered by
// [StreamInfo], or [CodeNotFound].
type StreamOpen struct {
	Create bool
	Name   string
}

// AppendTo encodes m as request.
func (m *StreamOpen) AppendTo(dst []byte, request uint64) []byte {
	return appendName(dst, TypeStreamOpen, bit(m.Create, FlagCreate), request, m.Name)
}

// Decode decodes a StreamOpen. It does not judge the name.
func (m *StreamOpen) Decode(h Header, body []byte) error {
	m.Create = h.Flags&FlagCreate != 0
	return decodeName(h, FlagCreate, body, &m.Name)
}

// StreamSeal ends a stream: appends are refused from here on. Answered by [StreamInfo].
type StreamSeal struct{ Stream uint64 }

// AppendTo encodes m as request.
func (m *StreamSeal) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypeStreamSeal, request, m.Stream)
}

// Decode decodes a StreamSeal.
func (m *StreamSeal) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.Stream) }

// StreamDelete deletes a stream; its id is never used again. Answered by [StreamInfo].
type StreamDelete struct{ Stream uint64 }

// AppendTo encodes m as request.
func (m *StreamDelete) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypeStreamDelete, request, m.Stream)
}

// Decode decodes a StreamDelete.
func (m *StreamDelete) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.Stream) }

// StreamStat asks how a stream is. Answered by [StreamInfo].
type StreamStat struct{ Stream uint64 }

// AppendTo encodes m as request.
func (m *StreamStat) AppendTo(dst []byte, request uint64) []byte {
	return appendOne(dst, TypeStreamStat, request, m.Stream)
}

// Decode decodes a StreamStat.
func (m *StreamStat) Decode(h Header, body []byte) error { return decodeOne(h, body, &m.Stream) }

// StreamToken sets the token of a stream to New if it is Old. Empty means none.
// Answered by [StreamInfo], or [CodeTokenMismatch].
type StreamToken struct {
	Stream   uint64
	Old, New []byte
}

// AppendTo encodes m as request.
func (m *StreamToken) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeStreamToken, 0, request)
	before, after := cut16(m.Old), cut16(m.New)
	dst = put64(dst, m.Stream)
	dst = put16(dst, uint16(len(before)))
	dst = put16(dst, uint16(len(after)))
	dst = put32(dst, 0)
	dst = append(dst, before...)
	dst = append(dst, after...)
	return finish(dst, start)
}

// Decode decodes a StreamToken.
func (m *StreamToken) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Stream = s.u64()
	before, after := s.u16(), s.u16()
	s.zero(4)
	m.Old, m.New = s.take(int(before)), s.take(int(after))
	if !s.done() || h.Flags != 0 {
		return malformed("stream_token")
	}
	if before > MaxTokenBytes || after > MaxTokenBytes {
		return malformed("stream_token: token is longer than 64 bytes")
	}
	return nil
}

// StreamTrim gives up the records of a stream below Before. Answered by [Trimmed].
type StreamTrim struct{ Stream, Before uint64 }

// AppendTo encodes m as request.
func (m *StreamTrim) AppendTo(dst []byte, request uint64) []byte {
	return appendTwo(dst, TypeStreamTrim, request, m.Stream, m.Before)
}

// Decode decodes a StreamTrim.
func (m *StreamTrim) Decode(h Header, body []byte) error {
	return decodeTwo(h, body, &m.Stream, &m.Before)
}

// Trimmed answers [StreamTrim].
type Trimmed struct {
	Stream      uint64
	FirstOffset uint64 // the effective first offset of the stream
}

// AppendTo encodes m as the answer to request.
func (m *Trimmed) AppendTo(dst []byte, request uint64) []byte {
	return appendTwo(dst, TypeTrimmed, request, m.Stream, m.FirstOffset)
}

// Decode decodes a Trimmed.
func (m *Trimmed) Decode(h Header, body []byte) error {
	return decodeTwo(h, body, &m.Stream, &m.FirstOffset)
}

// StreamList asks for the streams whose names begin with Prefix, by name in
// byte order. Answered by [StreamPage].
type StreamList struct {
	Prefix string
	After  string // only names above; "" for the first page, then Next of the page before
	Limit  uint32 // streams of a page at most; 0: as many as fit MaxPageBytes
}

// AppendTo encodes m as request.
func (m *StreamList) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeStreamList, 0, request)
	prefix, after := cut16(m.Prefix), cut16(m.After)
	dst = put32(dst, m.Limit)
	dst = put16(dst, uint16(len(prefix)))
	dst = put16(dst, uint16(len(after)))
	dst = append(dst, prefix...)
	dst = append(dst, after...)
	return finish(dst, start)
}

// Decode decodes a StreamList.
func (m *StreamList) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Limit = s.u32()
	prefix, after := s.u16(), s.u16()
	m.Prefix, m.After = string(s.take(int(prefix))), string(s.take(int(after)))
	if !s.done() || h.Flags != 0 {
		return malformed("stream_list")
	}
	if prefix > MaxStreamNameBytes || after > MaxStreamNameBytes {
		return malformed("stream_list: longer than a stream name")
	}
	return nil
}

// Flags of a [Stream], in its encoding and in the header of a [StreamInfo].
const (
	FlagSealed  uint16 = 1
	FlagToken   uint16 = 2
	FlagDeleted uint16 = 4
	FlagCreated uint16 = 8

	streamFlags = FlagSealed | FlagToken | FlagDeleted | FlagCreated
)

// streamFixedBytes is the fixed part of an encoded [Stream].
const streamFixedBytes = 48

// Stream is what a client may know of a stream.
type Stream struct {
	ID          uint64
	FirstOffset uint64 // of the oldest record that can be read
	NextOffset  uint64 // of the next record to be appended
	CreatedNS   int64  // since the Unix epoch
	LastNS      int64  // timestamp of the newest record; 0 where there was none
	Sealed      bool
	HasToken    bool
	Deleted     bool
	Created     bool // by the request that this answers
	Name        string
}

// Bytes is what the stream takes in a [StreamPage].
func (m *Stream) Bytes() int {
	n := streamFixedBytes + len(m.Name)
	return n + padding(n)
}

func (m *Stream) appendTo(dst []byte, start int) []byte {
	name := cut16(m.Name)
	dst = put64(dst, m.ID)
	dst = put64(dst, m.FirstOffset)
	dst = put64(dst, m.NextOffset)
	dst = put64(dst, uint64(m.CreatedNS))
	dst = put64(dst, uint64(m.LastNS))
	dst = put16(dst, bit(m.Sealed, FlagSealed)|bit(m.HasToken, FlagToken)|bit(m.Deleted, FlagDeleted)|bit(m.Created, FlagCreated))
	dst = put16(dst, uint16(len(name)))
	dst = put32(dst, 0)
	dst = append(dst, name...)
	return pad(dst, start)
}

func (m *Stream) decode(s *scanner) bool {
	m.ID, m.FirstOffset, m.NextOffset = s.u64(), s.u64(), s.u64()
	m.CreatedNS, m.LastNS = int64(s.u64()), int64(s.u64())
	flags, name := s.u16(), s.u16()
	s.zero(4)
	m.Sealed, m.HasToken = flags&FlagSealed != 0, flags&FlagToken != 0
	m.Deleted, m.Created = flags&FlagDeleted != 0, flags&FlagCreated != 0
	m.Name = string(s.take(int(name)))
	s.align()
	return !s.bad && flags&^streamFlags == 0
}

// StreamInfo answers the commands on one stream, with its state after them.
type StreamInfo struct{ Stream }

// AppendTo encodes m as the answer to request.
func (m *StreamInfo) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeStreamInfo, 0, request)
	return finish(m.appendTo(dst, start), start)
}

// Decode decodes a StreamInfo.
func (m *StreamInfo) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	if !m.decode(&s) || !s.done() || h.Flags != 0 {
		return malformed("stream_info")
	}
	return nil
}

// StreamPage answers [StreamList].
type StreamPage struct {
	Next    string // After of the next page; "": this was the last
	Streams []Stream
}

// AppendTo encodes m as the answer to request.
func (m *StreamPage) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeStreamPage, 0, request)
	next := cut16(m.Next)
	dst = put32(dst, uint32(len(m.Streams)))
	dst = put16(dst, uint16(len(next)))
	dst = put16(dst, 0)
	for i := range m.Streams {
		dst = m.Streams[i].appendTo(dst, start)
	}
	dst = append(dst, next...)
	return finish(dst, start)
}

// Decode decodes a StreamPage.
func (m *StreamPage) Decode(h Header, body []byte) error {
	m.Streams = m.Streams[:0]
	s := scanner{b: body}
	count, next := s.u32(), s.u16()
	s.zero(2)
	if s.bad || h.Flags != 0 {
		return malformed("stream_page: fixed part")
	}
	for range count {
		m.Streams = append(m.Streams, Stream{})
		if !m.Streams[len(m.Streams)-1].decode(&s) {
			return malformed("stream_page: bad stream")
		}
	}
	m.Next = string(s.take(int(next)))
	if !s.done() {
		return malformed("stream_page: length does not match")
	}
	return nil
}

// appendName encodes a message whose body is a name.
func appendName(dst []byte, t Type, flags uint16, request uint64, name string) []byte {
	dst, start := begin(dst, t, flags, request)
	name = cut16(name)
	dst = put16(dst, uint16(len(name)))
	dst = put16(dst, 0)
	dst = put32(dst, 0)
	dst = append(dst, name...)
	return finish(dst, start)
}

// decodeName decodes a message whose body is a name.
func decodeName(h Header, flags uint16, body []byte, name *string) error {
	s := scanner{b: body}
	n := s.u16()
	s.zero(6)
	*name = string(s.take(int(n)))
	if !s.done() || h.Flags&^flags != 0 {
		return malformed("not a body of one name")
	}
	if n > MaxStreamNameBytes {
		return malformed("name is longer than 255 bytes")
	}
	return nil
}

// appendTwo encodes a message whose body is two u64.
func appendTwo(dst []byte, t Type, request, a, b uint64) []byte {
	dst, start := begin(dst, t, 0, request)
	return finish(put64(put64(dst, a), b), start)
}

// decodeTwo decodes a message whose body is two u64.
func decodeTwo(h Header, body []byte, a, b *uint64) error {
	s := scanner{b: body}
	*a, *b = s.u64(), s.u64()
	if !s.done() || h.Flags != 0 {
		return malformed("not a body of two u64")
	}
	return nil
}
