package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/walsidecar/walsidecar/wire"
)

// The objects of this file have the shapes that the command line prints with --json.

// encode returns an object as one line.
func encode(object any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(object) // strings, numbers and times always encode
	return b.Bytes()
}

// errorObject is an error. Fields that are not known are left out.
type errorObject struct {
	Line           int     `json:"line,omitempty"` // of the request's body, from 1
	Code           string  `json:"code"`
	Message        string  `json:"message"`
	Hint           string  `json:"hint"`
	Retriable      bool    `json:"retriable"`       // the same request can succeed later
	OutcomeUnknown bool    `json:"outcome_unknown"` // the request may have taken effect
	Stream         string  `json:"stream,omitempty"`
	Entry          *uint32 `json:"entry,omitempty"` // of the batch, from 0
	Actual         *uint64 `json:"actual,omitempty"`
	Offset         *uint64 `json:"offset,omitempty"`
	Position       *uint64 `json:"position,omitempty"`
}

func newErrorObject(e *wire.Error) *errorObject {
	info := e.Code.Info()
	o := &errorObject{Code: info.Name, Message: e.Error(), Hint: e.Hint, Retriable: info.Retriable, OutcomeUnknown: info.OutcomeUnknown, Stream: e.Name}
	if o.Hint == "" {
		o.Hint = info.Hint
	}
	if e.Known&wire.FlagEntry != 0 {
		o.Entry = &e.Entry
	}
	if e.Known&wire.FlagActual != 0 {
		o.Actual = &e.Actual
	}
	if e.Known&wire.FlagOffset != 0 {
		o.Offset = &e.Offset
	}
	if e.Known&wire.FlagPosition != 0 {
		o.Position = &e.Position
	}
	return o
}

// streamObject is a stream.
type streamObject struct {
	Name        string     `json:"name"`
	ID          uint64     `json:"id"`
	FirstOffset uint64     `json:"first_offset"`
	NextOffset  uint64     `json:"next_offset"`
	Created     time.Time  `json:"created"`
	Last        *time.Time `json:"last,omitempty"` // of the newest record
	Sealed      bool       `json:"sealed"`
	HasToken    bool       `json:"has_token"`
}

func newStreamObject(s *wire.Stream) streamObject {
	o := streamObject{Name: s.Name, ID: s.ID, FirstOffset: s.FirstOffset, NextOffset: s.NextOffset,
		Created: time.Unix(0, s.CreatedNS).UTC(), Sealed: s.Sealed, HasToken: s.HasToken}
	if s.LastNS != 0 {
		last := time.Unix(0, s.LastNS).UTC()
		o.Last = &last
	}
	return o
}

// appendedObject is the place of one record. A duplicate of a named producer has none.
type appendedObject struct {
	Stream       string  `json:"stream"`
	Offset       *uint64 `json:"offset,omitempty"`
	Position     *uint64 `json:"position,omitempty"`
	Duplicate    bool    `json:"duplicate,omitempty"`
	LastSequence uint64  `json:"last_sequence,omitempty"`
}

// appendRecord appends a record as an object, without a newline. What it appends has at
// most recordBytes.
func appendRecord(dst []byte, stream string, r *wire.Record) []byte {
	dst = append(dst, `{"stream":`...)
	dst = appendString(dst, stream)
	dst = append(dst, `,"stream_id":`...)
	dst = strconv.AppendUint(dst, r.Stream, 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendUint(dst, r.Offset, 10)
	dst = append(dst, `,"position":`...)
	dst = strconv.AppendUint(dst, r.Position, 10)
	dst = append(dst, `,"timestamp":"`...)
	dst = time.Unix(0, r.TimestampNS).UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","headers":[`...)
	first := true
	for key, value := range wire.Headers(r.Headers) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, `{"key":`...)
		dst = appendString(dst, key)
		dst = appendBytes(dst, "value", value)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	dst = appendBytes(dst, "payload", r.Payload)
	dst = append(dst, `,"batch_end":`...)
	dst = strconv.AppendBool(dst, r.BatchEnd)
	return append(dst, '}')
}

// recordFixedBytes is the most that a record takes as an object, but for what comes from
// the client: names of fields, numbers, a time.
const recordFixedBytes = 320

// recordBytes bounds what appendRecord appends.
func recordBytes(stream string, r *wire.Record) int {
	n := recordFixedBytes + stringBytes(stream)
	for key, value := range wire.Headers(r.Headers) {
		n += 40 + stringBytes(key) + bytesBytes(value)
	}
	return n + bytesBytes(r.Payload)
}

// appendBytes appends a further field: as text where b is UTF-8, else under name_base64.
func appendBytes(dst []byte, name string, b []byte) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	if utf8.Valid(b) {
		dst = append(dst, `":`...)
		return appendString(dst, b)
	}
	dst = append(dst, `_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// bytesBytes is what the value of appendBytes takes.
func bytesBytes(b []byte) int {
	if utf8.Valid(b) {
		return stringBytes(b)
	}
	return base64.StdEncoding.EncodedLen(len(b)) + 2
}

const hex = "0123456789abcdef"

// appendString appends s as a JSON string, exactly as encoding/json does without HTML in
// mind, but without a copy of s.
func appendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			dst = appendEscaped(dst, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(append(dst, s[start:i]...), `\ufffd`...)
			start = i + size
		case r == '\u2028' || r == '\u2029':
			dst = append(append(dst, s[start:i]...), `\u202`...)
			dst = append(dst, hex[r&0xf])
			start = i + size
		}
		i += size
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendEscaped appends an ASCII character that cannot stand for itself.
func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
}

// stringBytes bounds what appendString appends of valid UTF-8.
func stringBytes[T ~string | ~[]byte](s T) int {
	n := len(s) + 2
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c == '"', c == '\\':
			n += 5
		case c == 0xe2: // U+2028 and U+2029 begin with it
			n += 3
		}
	}
	return n
}
