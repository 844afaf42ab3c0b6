package wire

import (
	"encoding/binary"
	"iter"
	"unicode/utf8"
)

// A headers block is what a record carries beside its payload: a u16 count,
// then per header a u16 key length, a u32 value length, the key and the value.
// It is not aligned. No bytes at all mean no headers. Keys are 1 to 255 bytes of
// UTF-8, may repeat, and keep their order; values are any bytes.

// AppendHeader appends one header to block, a headers block that may be empty,
// and returns it. The caller keeps to the limits; the sidecar refuses what is
// beyond them, see [CheckHeaders].
func AppendHeader(block []byte, key string, value []byte) []byte {
	if len(block) == 0 {
		block = append(block, 0, 0)
	}
	binary.LittleEndian.PutUint16(block, binary.LittleEndian.Uint16(block)+1)
	key = cut16(key)
	block = put16(block, uint16(len(key)))
	block = put32(block, uint32(len(value)))
	block = append(block, key...)
	return append(block, value...)
}

// CheckHeaders returns ErrMalformed unless block is a headers block within the limits.
func CheckHeaders(block []byte) error {
	if len(block) == 0 {
		return nil
	}
	if len(block) > MaxHeadersBytes {
		return malformed("headers: more than 16 KiB")
	}
	s := scanner{b: block}
	count := s.u16()
	if s.bad || count == 0 || count > MaxHeaders {
		return malformed("headers: a block has 1 to 64 headers")
	}
	for range count {
		key, value := s.u16(), s.u32()
		if value > MaxHeadersBytes {
			return malformed("headers: value beyond the block")
		}
		if key == 0 || key > MaxHeaderKeyBytes || !utf8.Valid(s.take(int(key))) {
			return malformed("headers: a key is 1 to 255 bytes of UTF-8")
		}
		s.take(int(value))
	}
	if s.bad || s.at != len(block) {
		return malformed("headers: block does not match its lengths")
	}
	return nil
}

// Headers iterates over a headers block that CheckHeaders accepts; of another it
// yields the headers before the first bad one. The slices point into block.
func Headers(block []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		if len(block) == 0 {
			return
		}
		s := scanner{b: block}
		for range s.u16() {
			keyLen, valueLen := s.u16(), s.u32()
			key := s.take(int(keyLen))
			value := s.take(int(min(valueLen, MaxHeadersBytes+1)))
			if s.bad || !yield(key, value) {
				return
			}
		}
	}
}
