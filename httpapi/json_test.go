package httpapi

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/walsidecar/walsidecar/wire"
)

// FuzzRecord holds a record as an object against encoding/json, and its length against
// what was taken from the budget for it.
func FuzzRecord(f *testing.F) {
	f.Fuzz(func(t *testing.T, stream string, offset uint64, ns int64, key string, value, payload []byte, last bool) {
		if !utf8.ValidString(stream) || !utf8.ValidString(key) || key == "" || len(key) > wire.MaxHeaderKeyBytes || len(value) > 1000 {
			t.Skip()
		}
		r := wire.Record{Stream: offset / 3, Offset: offset, Position: offset ^ 7, TimestampNS: ns, BatchEnd: last,
			Headers: wire.AppendHeader(nil, key, value), Payload: payload}
		got := appendRecord(nil, stream, &r)
		if n := recordBytes(stream, &r); len(got) > n {
			t.Errorf("%d bytes, %d were taken", len(got), n)
		}
		type text struct {
			Key   string  `json:"key"`
			Value *string `json:"value,omitempty"`
			Bytes []byte  `json:"value_base64,omitempty"`
		}
		want := struct {
			Stream    string  `json:"stream"`
			StreamID  uint64  `json:"stream_id"`
			Offset    uint64  `json:"offset"`
			Position  uint64  `json:"position"`
			Timestamp string  `json:"timestamp"`
			Headers   []text  `json:"headers"`
			Payload   *string `json:"payload,omitempty"`
			Bytes     []byte  `json:"payload_base64,omitempty"`
			BatchEnd  bool    `json:"batch_end"`
		}{Stream: stream, StreamID: r.Stream, Offset: offset, Position: r.Position, Timestamp: time.Unix(0, ns).UTC().Format(time.RFC3339Nano),
			Headers: []text{{Key: key}}, BatchEnd: last}
		split := func(b []byte, s **string, raw *[]byte) {
			if *raw = b; utf8.Valid(b) {
				*s, *raw = new(string(b)), nil
			}
		}
		split(payload, &want.Payload, &want.Bytes)
		split(value, &want.Headers[0].Value, &want.Headers[0].Bytes)
		if line := encode(want); !bytes.Equal(append(got, '\n'), line) {
			t.Errorf("got  %s\nwant %s", got, line)
		}
	})
}

func TestStringsAreThoseOfEncodingJSON(t *testing.T) {
	var all strings.Builder
	for c := range rune(0x3000) {
		all.WriteRune(c)
	}
	for _, s := range []string{"", all.String(), "a\xffb", "\xe2\x80", "日本語 🎉 </script>"} {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
		if got := string(appendString(nil, s)) + "\n"; got != want.String() {
			t.Errorf("%.40q", s)
		}
	}
}
