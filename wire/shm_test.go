package wire

import (
	"bytes"
	"testing"
)

// What is checked of a message that its sender can still change is a copy.
func TestDetachCopiesWhatIsChecked(t *testing.T) {
	m := Append{Entries: []Entry{
		{Stream: 1, Token: []byte("owner"), Headers: twoHeaders(), Payload: []byte("payload")},
		{Stream: 2, Payload: []byte("plain")},
		{Stream: 3, Headers: twoHeaders()},
	}}
	b := m.AppendTo(nil, 1)
	h, body, _, _, _ := Message(b)
	var got Append
	if err := got.Decode(h, body); err != nil {
		t.Fatal(err)
	}
	scratch := got.Detach(nil)
	for i := range body {
		body[i] = 0xff
	}
	for i, e := range got.Entries {
		want := m.Entries[i]
		if e.Stream != want.Stream || !bytes.Equal(e.Token, want.Token) || !bytes.Equal(e.Headers, want.Headers) {
			t.Errorf("entry %d changed: %+v", i, e)
		}
		if len(e.Payload) > 0 && e.Payload[0] != 0xff {
			t.Errorf("the payload of entry %d was copied", i)
		}
	}
	if n := testing.AllocsPerRun(100, func() { got.Detach(scratch) }); n > 0 {
		t.Errorf("%v allocations with a scratch that is large enough", n)
	}
}
