package upload

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Header is what an object says about itself.
type Header struct {
	Kind  Kind
	Log   [16]byte // UUID of the log
	Epoch uint64
	ID    ObjectID
	// From and To are the positions [From, To) of the log that it is about. Of a state
	// object both are the position of the checkpoint.
	From, To uint64
}

// Every object begins with a header, ends with a footer, and has one section that the
// footer leads to: the index of a data object, the contents of the others.
const (
	headerMagic = "WALSOBJ1"
	footerMagic = "WALSOBJE"

	majorVersion = 1
	minorVersion = 0

	headerBytes = 128
	footerBytes = 64

	hMajor       = 8
	hMinor       = 10
	hKind        = 12
	hCompat      = 16
	hIncompat    = 24
	hLog         = 32
	hEpoch       = 48
	hIncarnation = 56
	hSequence    = 72
	hFrom        = 80
	hTo          = 88
	hSum         = 120

	fPlace     = 0
	fStored    = 8
	fRaw       = 12
	fSum       = 16
	fLength    = 24
	fHeaderSum = 32
	fZero      = 40
	fFooterSum = 48
	fMagic     = 56
)

// appendHeader appends the object's header to an empty body.
func appendHeader(body []byte, h *Header) []byte {
	le := binary.LittleEndian
	body = append(body, make([]byte, headerBytes)...)
	copy(body, headerMagic)
	le.PutUint16(body[hMajor:], majorVersion)
	le.PutUint16(body[hMinor:], minorVersion)
	body[hKind] = byte(h.Kind)
	copy(body[hLog:], h.Log[:])
	le.PutUint64(body[hEpoch:], h.Epoch)
	copy(body[hIncarnation:], h.ID.Incarnation[:])
	le.PutUint64(body[hSequence:], h.ID.Sequence)
	le.PutUint64(body[hFrom:], h.From)
	le.PutUint64(body[hTo:], h.To)
	le.PutUint64(body[hSum:], xxhash.Sum64(body[:hSum]))
	return body
}

// appendFooter ends the object, whose last section is the one that the footer leads to.
func appendFooter(body []byte, s Section) []byte {
	le := binary.LittleEndian
	at := len(body)
	body = append(body, make([]byte, footerBytes)...)
	f := body[at:]
	le.PutUint64(f[fPlace:], s.Place)
	le.PutUint32(f[fStored:], s.StoredBytes)
	le.PutUint32(f[fRaw:], s.RawBytes)
	le.PutUint64(f[fSum:], s.Sum)
	le.PutUint64(f[fLength:], uint64(len(body)))
	copy(f[fHeaderSum:], body[hSum:headerBytes])
	le.PutUint64(f[fFooterSum:], xxhash.Sum64(f[:fFooterSum]))
	copy(f[fMagic:], footerMagic)
	return body
}

// decodeHeader reads the header of an object.
func decodeHeader(b []byte) (h Header, err error) {
	le := binary.LittleEndian
	const part = "header"
	switch {
	case len(b) < headerBytes:
		return h, problem(ErrDamagedObject, part, 0, "%d bytes, want %d", len(b), headerBytes)
	case string(b[:8]) != headerMagic:
		return h, problem(ErrDamagedObject, part, 0, "not an object of this program")
	case xxhash.Sum64(b[:hSum]) != le.Uint64(b[hSum:]):
		return h, problem(ErrDamagedObject, part, hSum, "the checksum does not hold")
	case le.Uint16(b[hMajor:]) != majorVersion:
		return h, problem(ErrNewerVersion, part, hMajor, "major version %d, this program knows %d", le.Uint16(b[hMajor:]), majorVersion)
	case le.Uint64(b[hIncompat:]) != 0:
		return h, problem(ErrNewerVersion, part, hIncompat, "incompatible features %#x", le.Uint64(b[hIncompat:]))
	}
	h = Header{Kind: Kind(b[hKind]), Epoch: le.Uint64(b[hEpoch:]), From: le.Uint64(b[hFrom:]), To: le.Uint64(b[hTo:])}
	copy(h.Log[:], b[hLog:])
	copy(h.ID.Incarnation[:], b[hIncarnation:])
	h.ID.Sequence = le.Uint64(b[hSequence:])
	if h.Kind < KindData || h.Kind > KindIndex || h.From > h.To {
		return h, problem(ErrDamagedObject, part, hKind, "kind %d, positions [%d, %d)", h.Kind, h.From, h.To)
	}
	return h, nil
}

// sectionLimit is the most that an object's section holds.
func (k Kind) sectionLimit() uint32 {
	switch k {
	case KindState:
		return MaxStateBytes
	case KindIndex:
		return MaxGroupsBytes
	}
	return MaxIndexBytes
}

// decodeFooter reads the footer of an object of total bytes whose header is given,
// from its last bytes.
func decodeFooter(header, last []byte, kind Kind, total uint64) (s Section, err error) {
	le := binary.LittleEndian
	const part = "footer"
	if len(last) < footerBytes || total < headerBytes+footerBytes || total > MaxObjectBytes {
		return s, problem(ErrDamagedObject, part, int(total), "an object of %d bytes", total)
	}
	f, at := last[len(last)-footerBytes:], int(total)-footerBytes
	switch {
	case string(f[fMagic:]) != footerMagic:
		return s, problem(ErrDamagedObject, part, at, "the object does not end with a footer")
	case xxhash.Sum64(f[:fFooterSum]) != le.Uint64(f[fFooterSum:]):
		return s, problem(ErrDamagedObject, part, at, "the checksum does not hold")
	case le.Uint64(f[fLength:]) != total:
		return s, problem(ErrDamagedObject, part, at, "an object of %d bytes, it says %d", total, le.Uint64(f[fLength:]))
	case string(f[fHeaderSum:fZero]) != string(header[hSum:headerBytes]):
		return s, problem(ErrDamagedObject, part, at, "it belongs to another header")
	}
	s = Section{Place: le.Uint64(f[fPlace:]), StoredBytes: le.Uint32(f[fStored:]), RawBytes: le.Uint32(f[fRaw:]), Sum: le.Uint64(f[fSum:])}
	if s.Place < headerBytes || s.Place > total || s.End() != uint64(at) || s.StoredBytes > s.RawBytes || s.RawBytes > kind.sectionLimit() {
		return s, problem(ErrDamagedObject, part, at, "a section of %d bytes (raw %d) at %d", s.StoredBytes, s.RawBytes, s.Place)
	}
	return s, nil
}

// openEnvelope checks header and footer of a whole object.
func openEnvelope(body []byte) (Header, Section, error) {
	h, err := decodeHeader(body)
	if err != nil {
		return h, Section{}, err
	}
	s, err := decodeFooter(body, body, h.Kind, uint64(len(body)))
	return h, s, err
}
