package upload

import (
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// Encoders and decoders are pooled: one of each per goroutine that is at work right
// now, and the collector frees what is idle. An encoder takes about 1 MiB (a window of
// BlockBytes and its tables), a decoder less than 1 MiB beside what it decodes into.
var (
	encoders = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(BlockBytes), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	}}
	decoders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(MaxGroupsBytes))
		if err != nil {
			panic(err) // the options are constants
		}
		return d
	}}
)

// Section is where a part of an object lies, and how it is stored: as it is where
// StoredBytes equals RawBytes, else as one zstd frame.
type Section struct {
	Place       uint64 // in the object, bytes
	StoredBytes uint32
	RawBytes    uint32
	Sum         uint64 // xxhash64 of the stored bytes
}

// End is the place behind the section.
func (s Section) End() uint64 { return s.Place + uint64(s.StoredBytes) }

// appendSection stores raw at the end of body, compressed where that makes it
// smaller. Place is that in body.
func appendSection(body, raw []byte) ([]byte, Section) {
	s := Section{Place: uint64(len(body)), RawBytes: uint32(len(raw))}
	if len(raw) >= compressFrom {
		e := encoders.Get().(*zstd.Encoder)
		body = e.EncodeAll(raw, body)
		encoders.Put(e)
	}
	if n := len(body) - int(s.Place); n == 0 || n >= len(raw) {
		body = append(body[:s.Place], raw...)
	}
	stored := body[s.Place:]
	s.StoredBytes, s.Sum = uint32(len(stored)), xxhash.Sum64(stored)
	return body, s
}

// raw checks the stored bytes of the section and returns what they hold: stored itself
// where it is not compressed, else dst or new memory, of RawBytes, which the caller
// has bounded. Part names it in errors.
func (s Section) raw(part string, stored, dst []byte) ([]byte, error) {
	if len(stored) != int(s.StoredBytes) {
		return nil, problem(ErrDamagedObject, part, int(s.Place), "%d bytes, want %d", len(stored), s.StoredBytes)
	}
	if xxhash.Sum64(stored) != s.Sum {
		return nil, problem(ErrDamagedObject, part, int(s.Place), "the checksum of its %d bytes does not hold", len(stored))
	}
	if s.StoredBytes == s.RawBytes {
		return stored, nil
	}
	if cap(dst) < int(s.RawBytes) {
		dst = make([]byte, 0, s.RawBytes)
	}
	d := decoders.Get().(*zstd.Decoder)
	out, err := d.DecodeAll(stored, dst[:0:s.RawBytes])
	decoders.Put(d)
	if err != nil {
		return nil, problem(ErrDamagedObject, part, int(s.Place), "%v", err)
	}
	if len(out) != int(s.RawBytes) {
		return nil, problem(ErrDamagedObject, part, int(s.Place), "%d bytes uncompressed, want %d", len(out), s.RawBytes)
	}
	return out, nil
}
