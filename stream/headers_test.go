package stream

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/wire"
)

func TestHeadersBlock(t *testing.T) {
	full := func(count, value int) []byte { // count headers of key "k", the last with value bytes
		block := binary.LittleEndian.AppendUint16(nil, uint16(count))
		for i := range count {
			n := 0
			if i == count-1 {
				n = value
			}
			block = append(block, 1, 0)
			block = binary.LittleEndian.AppendUint32(block, uint32(n))
			block = append(append(block, 'k'), make([]byte, n)...)
		}
		return block
	}
	key := func(s string) []byte {
		block := append([]byte{1, 0}, byte(len(s)), byte(len(s)>>8), 0, 0, 0, 0)
		return append(block, s...)
	}
	for _, c := range []struct {
		name  string
		block []byte
		says  string // "": valid
	}{
		{"no block", nil, ""},
		{"one header", full(1, 3), ""},
		{"MaxHeaders", full(MaxHeaders, 0), ""},
		{"MaxHeaders and one", full(MaxHeaders+1, 0), "more headers"},
		{"MaxHeadersBytes", full(1, MaxHeadersBytes-9), ""},
		{"MaxHeadersBytes and one", full(1, MaxHeadersBytes-8), "longer than the limit"},
		{"one byte", []byte{1}, "shorter than its count"},
		{"count 0", []byte{0, 0}, "counts no header"},
		{"count 0 and bytes", []byte{0, 0, 1}, "counts no header"},
		{"key of 255 bytes", key(strings.Repeat("k", 255)), ""},
		{"key of 256 bytes", key(strings.Repeat("k", 256)), "a key is"},
		{"empty key", key(""), "a key is"},
		{"key not UTF-8", key("\xff"), "not UTF-8"},
		{"cut inside the fixed part", full(2, 0)[:12], "ends inside"},
		{"cut inside a value", full(1, 3)[:11], "ends inside"},
		{"value of 4 GiB", append([]byte{1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff}, 'k'), "ends inside"},
		{"a byte more", append(full(1, 3), 0), "bytes follow"},
	} {
		err := ValidateHeaders(c.block)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		} else if !errors.Is(err, ErrBadHeaders) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if (wire.CheckHeaders(c.block) == nil) != (c.says == "") {
			t.Errorf("%s: wire says %v", c.name, wire.CheckHeaders(c.block))
		}
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "orders/eu-1", "Größe 1", "日本", "..", strings.Repeat("x", 255)} {
		if err := ValidateName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"":                       "empty",
		strings.Repeat("x", 256): "longer than 255",
		"/a":                     "slash",
		" a":                     "space",
		"a ":                     "space",
		"a\x00":                  "not printable",
		"a\nb":                   "not printable",
		"a\u200bb":               "not printable", // a format character
		"\xff":                   "not UTF-8",
	} {
		if err := ValidateName(name); !errors.Is(err, ErrBadName) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", name, err, says)
		}
	}
}

// FuzzHeaders holds the two rooms that know the layout to one answer.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte{1, 0, 1, 0, 1, 0, 0, 0, 'k', 'v'})
	f.Add([]byte{2, 0, 1, 0, 0, 0, 0, 0, 'k', 2, 0, 1, 0, 0, 0, 0xc3, 0xbc, 'v'})
	f.Fuzz(func(t *testing.T, block []byte) {
		if ours, theirs := ValidateHeaders(block), wire.CheckHeaders(block); (ours == nil) != (theirs == nil) {
			t.Fatalf("stream says %v, wire says %v", ours, theirs)
		}
	})
}
