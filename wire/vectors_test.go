package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var update = flag.Bool("update", false, "write testdata and the tables of docs/protocol.md anew")

// message is what every message can do.
type message interface {
	AppendTo(dst []byte, request uint64) []byte
	Decode(h Header, body []byte) error
}

// empty returns an empty message of the type, nil for an unknown one.
func empty(t Type) message {
	switch t {
	case TypeHello:
		return new(Hello)
	case TypePing:
		return new(Ping)
	case TypeStatus:
		return new(Status)
	case TypeShmOpen:
		return new(ShmOpen)
	case TypePad:
		return new(Pad)
	case TypeAppend:
		return new(Append)
	case TypeStreamOpen:
		return new(StreamOpen)
	case TypeStreamSeal:
		return new(StreamSeal)
	case TypeStreamDelete:
		return new(StreamDelete)
	case TypeStreamToken:
		return new(StreamToken)
	case TypeStreamTrim:
		return new(StreamTrim)
	case TypeStreamStat:
		return new(StreamStat)
	case TypeStreamList:
		return new(StreamList)
	case TypeProducerOpen:
		return new(ProducerOpen)
	case TypeProducerGet:
		return new(ProducerGet)
	case TypeProducerRemove:
		return new(ProducerRemove)
	case TypeRead:
		return new(Read)
	case TypeReplay:
		return new(Replay)
	case TypeCredit:
		return new(Credit)
	case TypeCancel:
		return new(Cancel)
	}
	return emptyOfSidecar(t)
}

func emptyOfSidecar(t Type) message {
	switch t {
	case TypeWelcome:
		return new(Welcome)
	case TypeGoodbye:
		return new(Goodbye)
	case TypePong:
		return new(Pong)
	case TypeStatusJSON:
		return new(StatusJSON)
	case TypeError:
		return new(Error)
	case TypeShmInfo:
		return new(ShmInfo)
	case TypeAppendAck:
		return new(AppendAck)
	case TypeAppendResult:
		return new(AppendResult)
	case TypeStreamInfo:
		return new(StreamInfo)
	case TypeStreamPage:
		return new(StreamPage)
	case TypeTrimmed:
		return new(Trimmed)
	case TypeProducerInfo:
		return new(ProducerInfo)
	case TypeRecords:
		return new(Records)
	case TypeReplayBatches:
		return new(ReplayBatches)
	case TypeGap:
		return new(Gap)
	case TypeCaughtUp:
		return new(CaughtUp)
	case TypeHeartbeat:
		return new(Heartbeat)
	case TypeEnd:
		return new(End)
	}
	return nil
}

const large = 1<<63 + 5 // a value that a signed or a floating number cannot hold

// twoHeaders is a headers block.
func twoHeaders() []byte {
	return AppendHeader(AppendHeader(nil, "type", []byte("order")), "é", nil)
}

// sampleRecord is a record whose checksum is right.
func sampleRecord(stream, offset uint64, payload string, headers []byte, end bool) Record {
	r := Record{Stream: stream, Offset: offset, Position: 4096 + 128, TimestampNS: 1_800_000_000_123_456_789, BatchEnd: end, Headers: headers, Payload: []byte(payload)}
	r.Checksum = RecordChecksum(&r)
	return r
}

// samples has at least one message of every type.
func samples() []struct {
	name    string
	request uint64
	m       message
} {
	type sample = struct {
		name    string
		request uint64
		m       message
	}
	uuid := [16]byte{0x01, 0x93, 0x5b, 0x2a, 0x7c, 0x00, 0x70, 0x00, 0x80, 0x00, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	return []sample{
		{"hello", 0, &Hello{VersionMin: 1, VersionMax: 1, Client: "payments/1.4"}},
		{"hello_with_log", 0, &Hello{VersionMin: 1, VersionMax: 3, Features: large, Log: "node-7", Client: ""}},
		{"ping", 7, &Ping{}},
		{"status", 8, &Status{}},
		{"shm_open", 1, &ShmOpen{RingBytes: 4 << 20}},
		{"pad", 0, &Pad{}},
		{"append_one", 1, &Append{Entries: []Entry{{Stream: 1, Payload: []byte("hello")}}}},
		{"append_empty_payload", 2, &Append{Entries: []Entry{{Stream: 1}}}},
		{"append_headers", 3, &Append{Entries: []Entry{{Stream: 2, Headers: twoHeaders(), Payload: []byte("12345678")}}}},
		{"append_session_producer", 4, &Append{HasProducer: true, Producer: large, Sequence: 12, Acked: 9, Entries: []Entry{{Stream: 3, Payload: []byte("x")}}}},
		{"append_batch_with_conditions", 5, &Append{HasProducer: true, Producer: 4, Sequence: 1 << 40, Entries: []Entry{
			{Stream: 3, HasExpect: true, Expect: 0, Token: []byte("owner-2"), Payload: []byte("first")},
			{Stream: 9, HasExpect: true, Expect: large, Headers: twoHeaders(), Payload: []byte("second")},
			{Stream: 3, Payload: []byte("third")}}}},
		{"stream_open", 6, &StreamOpen{Name: "orders"}},
		{"stream_open_create", 7, &StreamOpen{Create: true, Name: "größe"}},
		{"stream_seal", 8, &StreamSeal{Stream: large}},
		{"stream_delete", 9, &StreamDelete{Stream: 2}},
		{"stream_token", 10, &StreamToken{Stream: 2, Old: []byte("owner-1"), New: []byte("owner-2")}},
		{"stream_token_first", 11, &StreamToken{Stream: 2, Old: []byte{}, New: []byte{0, 255}}},
		{"stream_trim", 12, &StreamTrim{Stream: 2, Before: 1000}},
		{"stream_stat", 13, &StreamStat{Stream: 2}},
		{"stream_list", 14, &StreamList{Prefix: "a", After: "ab", Limit: 10}},
		{"producer_open_session", 15, &ProducerOpen{Window: 2048}},
		{"producer_open_named", 16, &ProducerOpen{Name: "postgres-slot-1"}},
		{"producer_get_name", 17, &ProducerGet{Name: "postgres-slot-1"}},
		{"producer_get_id", 18, &ProducerGet{ID: large}},
		{"producer_remove", 19, &ProducerRemove{Name: "postgres-slot-1"}},
		{"read", 20, &Read{Stream: 2, From: FromOffset, Value: 17, Credit: 1 << 20}},
		{"read_follow_last", 21, &Read{Follow: true, Stream: 2, From: FromLast, Value: 10, MaxRecords: 100, Credit: large}},
		{"replay", 22, &Replay{Follow: true, Position: 4096, MaxRecords: 5, Credit: 65536}},
		{"credit", 21, &Credit{Bytes: 65536}},
		{"cancel", 21, &Cancel{}},
		{"welcome", 0, &Welcome{ReadOnly: true, Version: 1, Features: 0, Session: 42, Log: uuid, Epoch: 3, Durable: 1 << 33, Trim: 1 << 32,
			MaxMessageBytes: MaxMessageBytes, MaxBatchRecords: MaxBatchRecords, MaxBatchBytes: 1048448, MaxRequests: 8192, MaxRequestBytes: 4 << 20,
			MaxReads: 64, HeartbeatMS: 5000, IdleMS: 300000, SlowMS: 10000, Node: "node-7", Server: "walsidecar 0.1"}},
		{"welcome_not_durable", 0, &Welcome{NotDurable: true, Version: 1, Node: "null"}},
		{"goodbye", 0, &Goodbye{Code: CodeFenced, Message: "another host owns the log"}},
		{"pong", 7, &Pong{Durable: large}},
		{"status_json", 8, &StatusJSON{JSON: []byte(`{"epoch":3}`)}},
		{"error_plain", 9, &Error{Code: CodeNotFound, Message: "no stream \"a\"", Hint: ""}},
		{"error_precondition", 10, &Error{Code: CodePreconditionFailed, Known: FlagEntry | FlagActual | FlagStream | FlagPosition, Logged: true, Entry: 2,
			Actual: 18, Stream: 3, Position: 8192, Message: "the stream's next offset is not the expected one", Hint: "read on"}},
		{"error_log_full", 11, &Error{Code: CodeLogFull, Known: FlagStream | FlagOffset, Stream: 3, Offset: 5, Name: "orders", Message: "the log is full"}},
		{"shm_info", 1, &ShmInfo{Layout: 1, MaxMessageBytes: 1 << 20, MaxRequests: 8192, RingBytes: 4 << 20, CompletionBytes: 528384}},
		{"append_ack", 0, &AppendAck{Extents: []AckExtent{{Request: 1, Stream: 1, Offset: 10, Position: 4224, Requests: 100, Records: 2, Step: 160},
			{Request: 101, Stream: 2, Offset: large, Position: large, Requests: 1, Records: 1}}}},
		{"append_result", 5, &AppendResult{Position: 4224, Placed: []Placed{{Stream: 3, Offset: 0, Count: 2}, {Stream: 9, Offset: large, Count: 1}}}},
		{"append_result_duplicate", 6, &AppendResult{Duplicate: true, LastSequence: 1 << 40, Placed: []Placed{}}},
		{"stream_info", 6, &StreamInfo{Stream{ID: 2, FirstOffset: 3, NextOffset: 9, CreatedNS: 1_800_000_000_000_000_000, LastNS: 1_800_000_000_123_456_789, Sealed: true, HasToken: true, Name: "orders"}}},
		{"stream_info_created", 7, &StreamInfo{Stream{ID: 3, CreatedNS: 1, Created: true, Name: "größe"}}},
		{"stream_page", 14, &StreamPage{Next: "ac", Streams: []Stream{{ID: 4, Name: "abc"}, {ID: 5, NextOffset: 1, LastNS: -1, Name: "ac"}}}},
		{"stream_page_last", 15, &StreamPage{Streams: []Stream{}}},
		{"trimmed", 12, &Trimmed{Stream: 2, FirstOffset: 9}},
		{"producer_info_session", 15, &ProducerInfo{Created: true, ID: large, Window: 2048}},
		{"producer_info_named", 16, &ProducerInfo{ID: 4, LastSequence: 1 << 40, Name: "postgres-slot-1"}},
		{"records", 20, &Records{Records: []Record{sampleRecord(2, 17, "hello", nil, false), sampleRecord(2, 18, "", twoHeaders(), true)}}},
		{"replay_batches", 22, &ReplayBatches{Names: []StreamName{{2, "orders"}, {9, ""}}, Records: []Record{sampleRecord(2, 17, "hello", twoHeaders(), false), sampleRecord(9, 0, "12345678", nil, true)}}},
		{"replay_batches_no_names", 22, &ReplayBatches{Names: []StreamName{}, Records: []Record{sampleRecord(2, 19, "again", nil, true)}}},
		{"gap", 20, &Gap{Kind: GapTrimmed, Stream: 2, From: 0, To: 17}},
		{"gap_deleted", 20, &Gap{Kind: GapDeleted, Stream: 2, From: 19, To: 1<<64 - 1}},
		{"caught_up", 20, &CaughtUp{Durable: 8192, Next: 19}},
		{"heartbeat", 20, &Heartbeat{Durable: 12288}},
		{"end", 20, &End{Durable: 12288, Next: 19}},
	}
}

// vector is one line of testdata/vectors.json.
type vector struct {
	Name    string         `json:"name"`
	Type    string         `json:"type"`
	Request string         `json:"request"`
	Fields  map[string]any `json:"fields"`
	Hex     string         `json:"hex"`
}

// snake turns MaxReads into max_reads.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(name[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// plain turns a field into what any JSON reader gets right: 64-bit numbers as
// decimal strings, bytes as hex.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Array:
		b := v.Interface().([16]byte)
		return hex.EncodeToString(b[:])
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return hex.EncodeToString(v.Bytes())
		}
		all := make([]any, v.Len())
		for i := range all {
			all[i] = plain(v.Index(i))
		}
		return all
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Anonymous {
				fields = plain(v.Field(i)).(map[string]any)
			} else {
				fields[snake(f.Name)] = plain(v.Field(i))
			}
		}
		return fields
	}
	return v.Interface()
}

func vectors() []vector {
	var all []vector
	for _, s := range samples() {
		b := s.m.AppendTo(nil, s.request)
		h, err := DecodeHeader(b)
		if err != nil {
			panic(s.name + ": " + err.Error())
		}
		all = append(all, vector{s.name, h.Type.String(), strconv.FormatUint(s.request, 10), plain(reflect.ValueOf(s.m).Elem()).(map[string]any), hex.EncodeToString(b)})
	}
	return all
}

// lines encodes a list with one element per line.
func lines[T any](all []T) []byte {
	var b bytes.Buffer
	for i, one := range all {
		line, err := json.Marshal(one)
		if err != nil {
			panic(err)
		}
		b.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0])
		b.Write(line)
	}
	b.WriteString("\n]\n")
	return b.Bytes()
}

// golden compares a file of testdata with what it should be, or writes it.
func golden(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the code says; if the protocol was meant to change: go test ./wire -update", path)
	}
}

// The golden vectors are what this package encodes, of every type of message.
func TestGoldenVectors(t *testing.T) {
	golden(t, "testdata/vectors.json", lines(vectors()))
	seen := map[Type]bool{}
	for _, s := range samples() {
		h, _ := DecodeHeader(s.m.AppendTo(nil, 0))
		seen[h.Type] = true
	}
	for i := range typeNames {
		if typ := Type(i); typ.known() && !seen[typ] {
			t.Errorf("no vector of type %s", typ)
		}
	}
}

// Every sample decodes to what was encoded, also into a struct that held another
// message before, and with other messages around it.
func TestRoundTrip(t *testing.T) {
	reused := map[Type]message{}
	for _, s := range samples() {
		stream := (&Ping{}).AppendTo(nil, 1)
		stream = s.m.AppendTo(stream, s.request)
		stream = (&Ping{}).AppendTo(stream, 2)
		_, _, rest, _, _ := Message(stream)
		h, body, rest, ok, err := Message(rest)
		if err != nil || !ok || len(rest) != HeaderBytes || h.Request != s.request || int(h.Length)%Align != 0 {
			t.Fatalf("%s: %+v, %v, %d bytes left", s.name, h, err, len(rest))
		}
		got := empty(h.Type)
		for range 2 {
			if err := got.Decode(h, body); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			if again := got.AppendTo(nil, h.Request); !bytes.Equal(again[HeaderBytes:], body) {
				t.Errorf("%s: decoded %+v, encodes differently", s.name, got)
			}
			if w, g := plain(reflect.ValueOf(s.m).Elem()), plain(reflect.ValueOf(got).Elem()); !reflect.DeepEqual(w, g) {
				t.Errorf("%s: got %v, want %v", s.name, g, w)
			}
			if reused[h.Type] == nil {
				reused[h.Type] = got
			}
			got = reused[h.Type]
		}
	}
}

// A message that was cut anywhere, or that says it is longer or shorter than it
// is, is refused, and never read beyond its end.
func TestCutMessagesAreRefused(t *testing.T) {
	for _, s := range samples() {
		whole := s.m.AppendTo(nil, s.request)
		h, body, _, _, _ := Message(whole)
		for n := range len(body) {
			if h.Type == TypeHello && len(body)-n < Align {
				continue // what follows the known fields of a Hello is ignored
			}
			cut := body[:n:n]
			if err := empty(h.Type).Decode(h, cut); err == nil {
				t.Errorf("%s: accepted with %d of %d bytes", s.name, n, len(body))
			}
		}
		if h.Type == TypeHello {
			continue
		}
		if err := empty(h.Type).Decode(h, append(bytes.Clone(body), make([]byte, 8)...)); err == nil {
			t.Errorf("%s: accepted with 8 bytes more", s.name)
		}
		if h.Flags = 1 << 15; empty(h.Type).Decode(h, body) == nil {
			t.Errorf("%s: accepted with an unknown flag", s.name)
		}
	}
}

func TestMessageWaitsForTheRest(t *testing.T) {
	b := (&StreamOpen{Name: "orders"}).AppendTo(nil, 1)
	for n := range b {
		if _, _, rest, ok, err := Message(b[:n]); ok || err != nil || len(rest) != n {
			t.Fatalf("%d of %d bytes: ok %v, err %v", n, len(b), ok, err)
		}
	}
}

func TestBadHeaders(t *testing.T) {
	for name, length := range map[string]uint32{"zero": 0, "shorter than a header": 8, "not a multiple of 8": 20, "too long": MaxMessageBytes + 8, "largest": 1<<32 - 8} {
		b := append(put32(nil, length), make([]byte, 12)...)
		if _, _, _, ok, err := Message(b); ok || err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// malformed messages, each with one fault. A receiver refuses every one; where
// the fault is in the header it ends the connection.
func malformedSamples() []vector {
	var all []vector
	add := func(name string, m message, change func(b []byte) []byte) {
		b := change(m.AppendTo(nil, 1))
		h, _ := DecodeHeader(b)
		all = append(all, vector{name, h.Type.String(), "1", nil, hex.EncodeToString(b)})
	}
	set := func(at int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = v; return b }
	}
	one := &Append{Entries: []Entry{{Stream: 1, Payload: []byte("hello")}}}
	add("length_below_header", &Ping{}, set(0, 8))
	add("length_not_aligned", &Ping{}, set(0, 17))
	add("length_above_limit", &Ping{}, set(3, 1))
	add("ping_with_body", &Ping{}, func(b []byte) []byte { b[0] = 24; return append(b, make([]byte, 8)...) })
	add("ping_with_flag", &Ping{}, set(6, 1))
	add("hello_wrong_magic", &Hello{VersionMin: 1, VersionMax: 1}, set(16, 'X'))
	add("hello_versions_swapped", &Hello{VersionMin: 2, VersionMax: 1}, func(b []byte) []byte { return b })
	add("append_no_entries", &Append{}, func(b []byte) []byte { return b })
	add("append_more_entries_than_bytes", one, set(16, 2))
	add("append_payload_beyond_message", one, set(32, 14))
	add("append_payload_too_short_for_message", one, func(b []byte) []byte { b[32] = 0; clear(b[40:]); return b })
	add("append_padding_not_zero", one, func(b []byte) []byte { b[len(b)-1] = 1; return b })
	add("append_reserved_not_zero", one, set(20, 1))
	add("append_unknown_flag", one, set(6, 2))
	add("append_unknown_entry_flag", one, set(39, 2))
	add("append_token_too_long", &Append{Entries: []Entry{{Stream: 1, Token: make([]byte, MaxTokenBytes+1)}}}, func(b []byte) []byte { return b })
	add("append_producer_part_cut", &Append{}, func(b []byte) []byte { b[6] = 1; return b })
	add("read_unknown_start", &Read{From: 3}, func(b []byte) []byte { return b })
	add("stream_open_name_beyond_message", &StreamOpen{Name: "abc"}, set(16, 20))
	add("producer_open_window_too_large", &ProducerOpen{Window: MaxProducerWindow + 1}, func(b []byte) []byte { return b })
	return all
}

// The malformed vectors are refused.
func TestMalformedVectors(t *testing.T) {
	golden(t, "testdata/malformed.json", lines(malformedSamples()))
	for _, v := range malformedSamples() {
		b, _ := hex.DecodeString(v.Hex)
		h, body, _, ok, err := Message(b)
		if err == nil && ok {
			err = empty(h.Type).Decode(h, body)
		}
		if err == nil {
			t.Errorf("%s: accepted", v.Name)
		}
	}
}
