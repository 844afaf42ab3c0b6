// Package wire holds the messages that clients and the sidecar exchange over
// every door (Unix socket, shared memory, HTTP), and the one table of errors.
//
// A message is a 16-byte [Header] and a body, little-endian, padded with zeros
// to a multiple of 8 bytes, so that every 64-bit field of a message that starts
// at a multiple of 8 is naturally aligned. docs/protocol.md has every layout.
//
// Each message type has two methods:
//
//	AppendTo(dst []byte, request uint64) []byte   // encodes; allocates only when dst is too small
//	Decode(h Header, body []byte) error           // decodes; byte slices point into body
//
// Decode reuses the slices of the struct that it is called on, so a struct that
// is used again decodes without allocating. What it returns is valid as long as
// the bytes of body are. Every error of Decode is an [ErrMalformed]. Encoding
// never fails: a string or block that is longer than its length field can say
// is cut at what the field can say, which is above every limit, so that the
// other side refuses it.
//
// Package wire imports nothing of this module.
package wire

import (
	"encoding/binary"
	"errors"
)

// Magic is the first field of [Hello]: the bytes "WALSDCRP" in this order.
const Magic uint64 = 0x50524344534C4157

// The versions of the protocol that this package speaks. A connection uses the
// highest version that both sides speak; with none in common the sidecar says
// [CodeUnsupported] in a [Goodbye].
const (
	VersionMin uint16 = 1
	VersionMax uint16 = 1
)

// Features are the feature bits that this package knows. A connection uses the
// bits that both sides named; bits that one side does not know are ignored.
const Features uint64 = FeatureShm

// Limits of the protocol. Those that a sidecar may set lower are told in [Welcome].
const (
	// HeaderBytes is the size of the header of every message.
	HeaderBytes = 16

	// Align is the unit of every message's length.
	Align = 8

	// MaxFrameBytes is the largest frame of the log: what a batch must fit.
	MaxFrameBytes = 1 << 20

	// MessageSlackBytes is how much larger than the frame a message may be. A
	// record takes up to 48 bytes more in an [Append] (condition and token) than
	// in the log: 4,096 of them are 192 KiB; the rest covers the fixed parts.
	MessageSlackBytes = 256 << 10

	// MaxMessageBytes is the largest message, header included, in both directions.
	MaxMessageBytes = MaxFrameBytes + MessageSlackBytes

	// MaxHelloBytes is the largest [Hello]: nothing else is read of a client
	// that has not introduced itself.
	MaxHelloBytes = 1024

	// MaxBatchRecords is the largest number of records of one batch.
	MaxBatchRecords = 4096

	// MaxStreamNameBytes is the longest name of a stream, in bytes of UTF-8.
	MaxStreamNameBytes = 255

	// MaxProducerNameBytes is the longest name of a named producer.
	MaxProducerNameBytes = 255

	// MaxTokenBytes is the longest token of a stream.
	MaxTokenBytes = 64

	// MaxNodeNameBytes is the longest name of a node (the superblock has 63 bytes).
	MaxNodeNameBytes = 63

	// MaxLogSelectorBytes is the longest log selector: a node name or a UUID.
	MaxLogSelectorBytes = 63

	// MaxClientNameBytes is the longest name that a client or server gives itself.
	MaxClientNameBytes = 255

	// MaxHeaders is the largest number of headers of one record.
	MaxHeaders = 64

	// MaxHeaderKeyBytes is the longest key of a header.
	MaxHeaderKeyBytes = 255

	// MaxHeadersBytes is the largest encoded headers block of one record.
	MaxHeadersBytes = 16 << 10

	// MaxPageBytes is the largest [StreamPage] message.
	MaxPageBytes = 64 << 10

	// MaxErrorTextBytes is the longest message and the longest hint of an
	// [Error] or [Goodbye]; longer ones are cut when they are encoded.
	MaxErrorTextBytes = 512

	// DefaultProducerWindow is the window of a session producer that asked for 0.
	DefaultProducerWindow = 1024

	// MaxProducerWindow is the largest window of a session producer.
	MaxProducerWindow = 8192
)

// Header begins every message.
type Header struct {
	Length  uint32 // of the message in bytes, header and padding included; a multiple of Align
	Type    Type   // what the body is
	Flags   uint16 // by type
	Request uint64 // the request that this message is or answers; 0 where there is none
}

// ErrMalformed is matched by every error of a decoder.
var ErrMalformed = errors.New("malformed message")

// malformed is a decoder's error; a constant one costs no allocation.
type malformed string

func (m malformed) Error() string        { return "malformed message: " + string(m) }
func (m malformed) Is(target error) bool { return target == ErrMalformed }

// DecodeHeader decodes the header at the start of b, which must hold HeaderBytes,
// and checks the length against the limits of the protocol. It does not require
// the type to be known.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < HeaderBytes {
		return Header{}, malformed("header cut short")
	}
	h := Header{
		Length:  binary.LittleEndian.Uint32(b),
		Type:    Type(binary.LittleEndian.Uint16(b[4:])),
		Flags:   binary.LittleEndian.Uint16(b[6:]),
		Request: binary.LittleEndian.Uint64(b[8:]),
	}
	if h.Length < HeaderBytes || h.Length > MaxMessageBytes || h.Length%Align != 0 {
		return h, malformed("length is not a multiple of 8 between 16 and the largest message")
	}
	return h, nil
}

// Message splits the first message off b: its header, its body and what follows.
// It returns ErrMalformed for a bad header, and ok = false while b does not hold
// the whole message.
func Message(b []byte) (h Header, body, rest []byte, ok bool, err error) {
	if len(b) < HeaderBytes {
		return Header{}, nil, b, false, nil
	}
	if h, err = DecodeHeader(b); err != nil {
		return h, nil, b, false, err
	}
	if uint64(len(b)) < uint64(h.Length) {
		return h, nil, b, false, nil
	}
	return h, b[HeaderBytes:h.Length], b[h.Length:], true, nil
}

// begin appends a header whose length finish fills in.
func begin(dst []byte, t Type, flags uint16, request uint64) ([]byte, int) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(t))
	dst = binary.LittleEndian.AppendUint16(dst, flags)
	return binary.LittleEndian.AppendUint64(dst, request), start
}

// finish pads the message that starts at start and writes its length.
func finish(dst []byte, start int) []byte {
	dst = pad(dst, start)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

// pad appends zeros until dst[start:] is a multiple of Align long.
func pad(dst []byte, start int) []byte {
	var zeros [Align]byte
	return append(dst, zeros[:padding(len(dst)-start)]...)
}

// padding is how many bytes are missing from n to a multiple of Align.
func padding(n int) int { return -n & (Align - 1) }

// Shorthands for the encoders; the language's own are append functions too.
func put16(dst []byte, v uint16) []byte { return binary.LittleEndian.AppendUint16(dst, v) }
func put32(dst []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(dst, v) }
func put64(dst []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(dst, v) }

// cut16 returns b, cut to what a 16-bit length can say.
func cut16[T ~string | ~[]byte](b T) T { return b[:min(len(b), 1<<16-1)] }

// scanner reads a body from front to back. Once it went beyond the end it
// returns zeros and ok stays false.
type scanner struct {
	b   []byte
	at  int
	bad bool
}

func (s *scanner) take(n int) []byte {
	if s.bad || n > len(s.b)-s.at {
		s.bad = true
		return nil
	}
	b := s.b[s.at : s.at+n : s.at+n]
	s.at += n
	return b
}

func (s *scanner) u16() uint16 {
	if b := s.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (s *scanner) u32() uint32 {
	if b := s.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (s *scanner) u64() uint64 {
	if b := s.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// zero skips n reserved bytes, which must be zero.
func (s *scanner) zero(n int) {
	for _, c := range s.take(n) {
		s.bad = s.bad || c != 0
	}
}

// align skips padding up to the next multiple of Align.
func (s *scanner) align() { s.zero(padding(s.at)) }

// done reports whether the body was read to its end, but for padding.
func (s *scanner) done() bool {
	s.align()
	return !s.bad && s.at == len(s.b)
}
