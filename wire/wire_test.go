package wire

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A batch that fits a frame fits a message, whatever its conditions.
func TestSlackCoversTheLargestBatch(t *testing.T) {
	const recordInLog, itemInLog, frameHeader = 40, 8 + 24, 128
	perRecord := (&Entry{HasExpect: true, Token: make([]byte, MaxTokenBytes)}).Bytes() - recordInLog
	fixed := HeaderBytes + 8 + 24 - itemInLog - frameHeader
	if need := MaxBatchRecords*perRecord + fixed; need > MessageSlackBytes {
		t.Fatalf("slack %d, need %d", MessageSlackBytes, need)
	}
}

// A page of the protocol holds at least one stream of the longest name.
func TestPageHoldsAStream(t *testing.T) {
	one := Stream{Name: strings.Repeat("n", MaxStreamNameBytes)}
	m := StreamPage{Next: one.Name, Streams: []Stream{one}}
	if n := len(m.AppendTo(nil, 1)); n > MaxPageBytes {
		t.Fatalf("%d bytes", n)
	}
}

func TestHeadersBlock(t *testing.T) {
	block := AppendHeader(nil, "content-type", []byte("text/plain"))
	block = AppendHeader(block, "k", nil)
	block = AppendHeader(block, "k", []byte{0, 1})
	if err := CheckHeaders(block); err != nil {
		t.Fatal(err)
	}
	var got []string
	for k, v := range Headers(block) {
		got = append(got, fmt.Sprintf("%s=%q", k, v))
	}
	if want := `[content-type="text/plain" k="" k="\x00\x01"]`; fmt.Sprint(got) != want {
		t.Fatalf("got %v, want %v", got, want)
	}
	if CheckHeaders(nil) != nil {
		t.Fatal("no headers are headers too")
	}
}

func TestBadHeadersBlocks(t *testing.T) {
	many := []byte{}
	for range MaxHeaders + 1 {
		many = AppendHeader(many, "k", nil)
	}
	good := AppendHeader(nil, "key", []byte("value"))
	for name, block := range map[string][]byte{
		"65 headers":         many,
		"more than 16 KiB":   AppendHeader(nil, "k", make([]byte, MaxHeadersBytes)),
		"one byte":           {1},
		"count of zero":      {0, 0},
		"count too large":    append([]byte{2, 0}, good[2:]...),
		"count too small":    append([]byte{1, 0}, append(bytes.Clone(good[2:]), good[2:]...)...),
		"cut value":          good[:len(good)-1],
		"empty key":          AppendHeader(nil, "", []byte("v")),
		"key of 256 bytes":   AppendHeader(nil, strings.Repeat("k", 256), nil),
		"key is not UTF-8":   AppendHeader(nil, "\xff", nil),
		"value of 4 GiB − 1": {1, 0, 1, 0, 255, 255, 255, 255, 'k'},
	} {
		if err := CheckHeaders(block); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		for range Headers(block) { // must end, and stay inside
		}
	}
}

// What is too long for its length field still arrives as too long.
func TestOverlongFieldsAreRefused(t *testing.T) {
	long := strings.Repeat("x", 1<<17)
	for name, m := range map[string]message{
		"stream name":   &StreamOpen{Name: long},
		"producer name": &ProducerOpen{Name: long},
		"log selector":  &Hello{VersionMin: 1, VersionMax: 1, Log: long},
		"token":         &StreamToken{Old: []byte(long)},
		"entry token":   &Append{Entries: []Entry{{Token: []byte(long)}}},
		"window":        &ProducerOpen{Window: MaxProducerWindow + 1},
		"prefix":        &StreamList{Prefix: long},
	} {
		h, body, _, _, err := Message(m.AppendTo(nil, 1))
		if err != nil {
			continue
		}
		if err := empty(h.Type).Decode(h, body); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Counts that the body cannot hold must not make a decoder allocate.
func TestCountsBeyondTheBodyAllocateNothing(t *testing.T) {
	for _, typ := range []Type{TypeAppend, TypeAppendAck, TypeAppendResult, TypeStreamPage, TypeRecords, TypeReplayBatches} {
		for _, body := range [][]byte{
			{255, 255, 255, 255, 0, 0, 0, 0}, {0, 16, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 255, 255, 255, 255},
			append(make([]byte, 16), 255, 255, 255, 255, 0, 0, 0, 0),
		} {
			m := empty(typ)
			h := Header{Length: uint32(HeaderBytes + len(body)), Type: typ}
			if n := testing.AllocsPerRun(10, func() { _ = m.Decode(h, body) }); n > 0 {
				t.Errorf("%s: %v allocations", typ, n)
			}
		}
	}
}

func TestHotMessagesDoNotAllocate(t *testing.T) {
	m := Append{HasProducer: true, Producer: 1, Sequence: 1, Entries: []Entry{{Stream: 1, Headers: twoHeaders(), Payload: make([]byte, 100)}, {Stream: 2}}}
	ack := AppendAck{Extents: []AckExtent{{Request: 1, Requests: 1, Records: 1}, {Request: 2, Requests: 1, Records: 1}}}
	records := Records{Records: []Record{sampleRecord(1, 2, "payload", twoHeaders(), true)}}
	var m2 Append
	var ack2 AppendAck
	var records2 Records
	buf := make([]byte, 0, 4096)
	decode := func(m message) {
		h, body, _, _, _ := Message(buf)
		if err := m.Decode(h, body); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		buf = m.AppendTo(buf[:0], 1)
		decode(&m2)
		buf = ack.AppendTo(buf[:0], 0)
		decode(&ack2)
		buf = records.AppendTo(buf[:0], 1)
		decode(&records2)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if m.Bytes() != len(m.AppendTo(nil, 1)) {
		t.Errorf("Append.Bytes says %d, is %d", m.Bytes(), len(m.AppendTo(nil, 1)))
	}
	if n := RecordsFixedBytes + records.Records[0].Bytes(); n != len(records.AppendTo(nil, 1)) {
		t.Errorf("Record.Bytes says %d", n)
	}
}

func TestExtentsCollapse(t *testing.T) {
	e := AckExtent{Request: 5, Stream: 1, Offset: 100, Position: 4224, Requests: 1, Records: 2}
	for i := uint64(1); i < 50; i++ {
		if !e.Extend(5+i, 1, 100+2*i, 2, 4224+160*i) {
			t.Fatalf("append %d does not continue %+v", i, e)
		}
	}
	for i := uint32(0); i < 50; i++ {
		if o, p := e.At(i); o != 100+2*uint64(i) || p != 4224+160*uint64(i) {
			t.Fatalf("At(%d) = %d, %d", i, o, p)
		}
	}
	for name, ok := range map[string]bool{
		"request left out":   e.Extend(56, 1, 200, 2, 4224+160*50),
		"another stream":     e.Extend(55, 2, 200, 2, 4224+160*50),
		"offset left out":    e.Extend(55, 1, 201, 2, 4224+160*50),
		"another batch size": e.Extend(55, 1, 200, 1, 4224+160*50),
		"another step":       e.Extend(55, 1, 200, 2, 4224+160*51),
	} {
		if ok || e.Requests != 50 {
			t.Errorf("%s was taken for the next append", name)
		}
	}
	far := AckExtent{Request: 1, Stream: 1, Position: 0, Requests: 1, Records: 1}
	if far.Extend(2, 1, 1, 1, 1<<32) {
		t.Error("a step above 32 bits")
	}
}

// The table of errors: numbers and names are unique, every code has a line, every
// exit code of the commands appears.
func TestErrorTable(t *testing.T) {
	codes, names, exits := map[Code]bool{}, map[string]bool{}, map[int]bool{}
	last := -1
	for _, e := range Errors() {
		if codes[e.Code] || names[e.Name] || e.Name == "" || strings.ToLower(e.Name) != e.Name || strings.ContainsAny(e.Name, " -") {
			t.Errorf("code %d, name %q: not unique or not snake_case", e.Code, e.Name)
		}
		if int(e.Code) <= last {
			t.Errorf("%s: numbers must ascend", e.Name)
		}
		if (e.Hint == "") != (e.Code == CodeOK) {
			t.Errorf("%s: every error says what to do", e.Name)
		}
		if e.HTTPStatus < 200 || e.HTTPStatus > 599 {
			t.Errorf("%s: HTTP status %d", e.Name, e.HTTPStatus)
		}
		last = int(e.Code)
		codes[e.Code], names[e.Name], exits[e.ExitCode] = true, true, true
		if e.Code.Info() != e || e.Code.String() != e.Name {
			t.Errorf("%s: Info or String differ", e.Name)
		}
	}
	// The exit codes of docs/design.md.
	for _, exit := range []int{0, 1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18} {
		if !exits[exit] {
			t.Errorf("no error has exit code %d", exit)
		}
	}
	if i := Code(999).Info(); i.Name != "code_999" || i.ExitCode != ExitFailed || i.Hint == "" {
		t.Errorf("an unknown code is %+v", i)
	}
}

// errorLine is one line of testdata/errors.json.
type errorLine struct {
	Code           Code   `json:"code"`
	Name           string `json:"name"`
	ExitCode       int    `json:"exit_code"`
	HTTPStatus     int    `json:"http_status"`
	Retriable      bool   `json:"retriable"`
	OutcomeUnknown bool   `json:"outcome_unknown"`
	Hint           string `json:"hint"`
}

func TestGoldenErrors(t *testing.T) {
	var all []errorLine
	for _, e := range Errors() {
		all = append(all, errorLine(e))
	}
	golden(t, "testdata/errors.json", lines(all))
}

// The table of errors in docs/protocol.md is this one.
func TestErrorsInTheDocs(t *testing.T) {
	const path, begin, end = "../docs/protocol.md", "<!-- errors: made by go test ./wire -update -->\n", "<!-- end of errors -->\n"
	var want strings.Builder
	want.WriteString("| code | name | exit | HTTP | retriable | outcome unknown | what to do |\n| ---: | --- | ---: | ---: | --- | --- | --- |\n")
	yes := map[bool]string{true: "yes", false: ""}
	for _, e := range Errors() {
		fmt.Fprintf(&want, "| %d | `%s` | %d | %d | %s | %s | %s |\n", e.Code, e.Name, e.ExitCode, e.HTTPStatus, yes[e.Retriable], yes[e.OutcomeUnknown], e.Hint)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks for the table of errors", path)
	}
	golden(t, path, []byte(before+begin+want.String()+end+after))
}

// Every message type stands in docs/protocol.md with its number.
func TestTypesInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range typeNames {
		if typ := Type(i); typ.known() {
			name := strings.TrimPrefix(fmt.Sprintf("%T", empty(typ)), "*wire.")
			if row := fmt.Sprintf("| %d | %s |", i, name); !strings.Contains(string(page), row) {
				t.Errorf("docs/protocol.md has no row %q", row)
			}
		}
	}
}

func TestRecordChecksumIsThatOfTheLog(t *testing.T) {
	r := Record{Stream: 1, Offset: 2, TimestampNS: 3, Headers: []byte{}, Payload: []byte("payload")}
	// xxhash64, seed 0, of 01 0⁷ 02 0⁷ 03 0⁷ 00000000 07000000 "payload", by another
	// implementation, in Python.
	const want uint64 = 0x6fdf218439d99e7d
	if got := RecordChecksum(&r); got != want {
		t.Errorf("checksum %#x, want %#x", got, want)
	}
}

func TestErrorTextIsCutBetweenCharacters(t *testing.T) {
	e := Error{Code: CodeInternal, Message: "x" + strings.Repeat("é", MaxErrorTextBytes)}
	h, body, _, _, _ := Message(e.AppendTo(nil, 1))
	var got Error
	if err := got.Decode(h, body); err != nil {
		t.Fatal(err)
	}
	if want := "x" + strings.Repeat("é", (MaxErrorTextBytes-1)/2); got.Message != want {
		t.Errorf("%d bytes, want %d", len(got.Message), len(want))
	}
}

// The limits in docs/protocol.md are those of the code.
func TestLimitsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		fmt.Sprintf("| message | %s bytes |", thousands(MaxMessageBytes)),
		fmt.Sprintf("| Hello | %s bytes |", thousands(MaxHelloBytes)),
		fmt.Sprintf("| records of a batch | %s |", thousands(MaxBatchRecords)),
		fmt.Sprintf("| headers of a record | %d |", MaxHeaders),
		fmt.Sprintf("| headers block of a record | %s bytes |", thousands(MaxHeadersBytes)),
		fmt.Sprintf("| key of a header | %d bytes |", MaxHeaderKeyBytes),
		fmt.Sprintf("| name of a stream | %d bytes |", MaxStreamNameBytes),
		fmt.Sprintf("| name of a named producer | %d bytes |", MaxProducerNameBytes),
		fmt.Sprintf("| token of a stream | %d bytes |", MaxTokenBytes),
		fmt.Sprintf("| log selector | %d bytes |", MaxLogSelectorBytes),
		fmt.Sprintf("| client name | %d bytes |", MaxClientNameBytes),
		fmt.Sprintf("| page of streams | %s bytes |", thousands(MaxPageBytes)),
		fmt.Sprintf("| message and hint of an error | %d bytes |", MaxErrorTextBytes),
		fmt.Sprintf("| window of a session producer | %s slots |", thousands(MaxProducerWindow)),
		fmt.Sprintf("| window of a session producer by default | %s slots |", thousands(DefaultProducerWindow)),
	} {
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/protocol.md has no row %q", row)
		}
	}
}

// thousands writes n with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
