package stream

import (
	"encoding/binary"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// ValidateHeaders checks an encoded headers block, little-endian and without any
// padding:
//
//	count u16                            1..MaxHeaders
//	per header: key length u16           1..MaxHeaderKeyBytes
//	            value length u32
//	            key bytes                UTF-8
//	            value bytes              any
//
// A record without headers has an empty block, not one with count 0. The block is
// at most MaxHeadersBytes long and nothing follows its last header. Keys may
// repeat; order is kept. The error wraps [ErrBadHeaders].
func ValidateHeaders(block []byte) error {
	if problem := headersProblem(block); problem != "" {
		return fmt.Errorf("%w of %d bytes: %s", ErrBadHeaders, len(block), problem)
	}
	return nil
}

// headersProblem says what is wrong with a block, "" if nothing.
func headersProblem(block []byte) string {
	if len(block) == 0 {
		return ""
	}
	if len(block) > MaxHeadersBytes {
		return "longer than the limit"
	}
	if len(block) < 2 {
		return "shorter than its count"
	}
	count := int(binary.LittleEndian.Uint16(block))
	if count == 0 {
		return "counts no header"
	}
	if count > MaxHeaders {
		return "more headers than the limit"
	}
	rest := block[2:]
	for range count {
		if len(rest) < 6 {
			return "ends inside a header"
		}
		key, value := int(binary.LittleEndian.Uint16(rest)), uint64(binary.LittleEndian.Uint32(rest[2:]))
		rest = rest[6:]
		if key == 0 || key > MaxHeaderKeyBytes {
			return "a key is empty or longer than the limit"
		}
		if uint64(key)+value > uint64(len(rest)) {
			return "ends inside a header"
		}
		if !utf8.Valid(rest[:key]) {
			return "a key is not UTF-8"
		}
		rest = rest[uint64(key)+value:]
	}
	if len(rest) != 0 {
		return "bytes follow the last header"
	}
	return ""
}

// ValidateName checks the name of a stream or of a named producer: 1 to
// [MaxNameBytes] bytes of UTF-8, every rune printable or a plain space (no control,
// format or private-use character), no space at either end, no slash at the start.
// The error wraps [ErrBadName].
func ValidateName(name string) error {
	if problem := nameProblem(name); problem != "" {
		return fmt.Errorf("%w %q: %s", ErrBadName, name, problem)
	}
	return nil
}

func nameProblem(name string) string {
	switch {
	case name == "":
		return "it is empty"
	case len(name) > MaxNameBytes:
		return "it is longer than 255 bytes"
	case !utf8.ValidString(name):
		return "it is not UTF-8"
	case name[0] == '/':
		return "it starts with a slash"
	case name[0] == ' ' || name[len(name)-1] == ' ':
		return "it starts or ends with a space"
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return "it holds a character that is not printable"
		}
	}
	return ""
}
