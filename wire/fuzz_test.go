package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// FuzzMessage decodes arbitrary bytes as any message. What is accepted encodes to
// the same bytes again: there is one encoding of everything.
func FuzzMessage(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.m.AppendTo(nil, s.request))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, rest, ok, err := Message(b)
		if err != nil || !ok {
			return
		}
		if len(body)+len(rest)+HeaderBytes != len(b) {
			t.Fatalf("%d bytes became %d and %d", len(b), len(body), len(rest))
		}
		m := empty(h.Type)
		if m == nil || m.Decode(h, body) != nil {
			return
		}
		again := m.AppendTo(nil, h.Request)
		if h.Type == TypeHello || h.Type == TypeGoodbye || h.Type == TypeError {
			return // ignores what it does not know, or cuts its texts
		}
		if !bytes.Equal(again, b[:h.Length]) {
			t.Fatalf("%s: accepted\n%x\nencodes as\n%x", h.Type, b[:h.Length], again)
		}
	})
}

// FuzzHeadersBlock reads arbitrary bytes as a headers block. What CheckHeaders
// accepts is what AppendHeader makes of its headers.
func FuzzHeadersBlock(f *testing.F) {
	f.Add(twoHeaders())
	f.Add([]byte{1, 0, 1, 0, 255, 255, 255, 255, 'k'})
	f.Add([]byte{64, 0})
	f.Fuzz(func(t *testing.T, block []byte) {
		var again []byte
		n := 0
		for k, v := range Headers(block) {
			if n++; n <= MaxHeaders && len(k) < 1<<16 {
				again = AppendHeader(again, string(k), v)
			}
		}
		if CheckHeaders(block) != nil || len(block) == 0 {
			return
		}
		if n != int(binary.LittleEndian.Uint16(block)) || !bytes.Equal(again, block) {
			t.Fatalf("%d headers of %x make %x", n, block, again)
		}
	})
}
