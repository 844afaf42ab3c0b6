package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/wire"
)

func TestAppendAndReadBytesAsTheyAre(t *testing.T) {
	r := newRig(t)
	for i, payload := range []string{"hello", "", binary, strings.Repeat("x", 900_000), "a\nb\u2028"} {
		var got appendedObject
		a := r.do("POST", "/v1/streams/orders%2Feu/records", payload, "Walsidecar-Header-Source: Shop 1", "Walsidecar-Header-source: 2").ok()
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Stream != "orders/eu" || *got.Offset != uint64(i) {
			t.Fatalf("%s %v", a.body, err)
		}
		all := objects[line](t, r.do("GET", fmt.Sprintf("/v1/streams/orders%%2Feu/records?offset=%d", i), "").ok().body)
		if len(all) != 1 || all[0].Offset != uint64(i) || all[0].Position != *got.Position || !all[0].BatchEnd || all[0].Stream != "orders/eu" {
			t.Fatalf("%+v", all)
		}
		read := string(all[0].PayloadBase64)
		if all[0].Payload != nil {
			read = *all[0].Payload
		}
		if read != payload {
			t.Fatalf("record %d reads as %.40q", i, read)
		}
		// Names of HTTP headers know no case.
		if h := all[0].Headers; len(h) != 2 || h[0].Key != "source" || *h[0].Value != "Shop 1" || *h[1].Value != "2" {
			t.Fatalf("headers %+v", h)
		}
	}
}

func TestABodyInChunksIsOneRecord(t *testing.T) {
	r := newRig(t)
	body := strings.Repeat("0123456789", 10_000)
	var request strings.Builder
	request.WriteString("POST /v1/streams/s/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
	for rest := body; rest != ""; {
		part := rest[:min(len(rest), 7_001)]
		rest = rest[len(part):]
		fmt.Fprintf(&request, "%x\r\n%s\r\n", len(part), part)
	}
	request.WriteString("0\r\n\r\n")
	if answer := r.raw(request.String()); !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Fatal(answer)
	}
	if all := objects[line](t, r.do("GET", "/v1/streams/s/records", "").ok().body); len(all) != 1 || *all[0].Payload != body {
		t.Fatalf("%d records", len(all))
	}
}

func TestConditions(t *testing.T) {
	r := newRig(t)
	const path = "/v1/streams/s/records"
	r.do("POST", path, "0", "Walsidecar-Expect-Offset: 0").ok()
	if e := r.do("POST", path, "again", "Walsidecar-Expect-Offset: 0").refused(wire.CodePreconditionFailed); *e.Actual != 1 || e.Stream != "s" || *e.Entry != 0 {
		t.Fatalf("%+v", e)
	}
	r.do("PUT", "/v1/streams/s/token", `{"old":"","new":"mine"}`).ok()
	r.do("PUT", "/v1/streams/s/token", `{"old":"","new":"theirs"}`).refused(wire.CodeTokenMismatch)
	r.do("POST", path, "no token").refused(wire.CodeTokenMismatch)
	r.do("POST", path, "1", "Walsidecar-Token: mine").ok()
	r.do("POST", "/v1/streams/missing/records?create=false", "x").refused(wire.CodeNotFound)
	r.do("POST", "/v1/streams/s/seal", "").ok()
	r.do("POST", path, "x", "Walsidecar-Token: mine").refused(wire.CodeSealed)
	r.do("POST", path, strings.Repeat("x", wire.MaxFrameBytes)).refused(wire.CodeTooLarge) // with its head it fits no frame
}

func TestLinesAreAppendsOfTheirOwn(t *testing.T) {
	r := newRig(t)
	var body strings.Builder
	const n = 1000
	for i := range n {
		fmt.Fprintf(&body, `{"n":%d}`+"\n", i)
	}
	answer := r.do("POST", "/v1/streams/s/records", body.String()+"\nlast", "Content-Type: application/x-ndjson", "Walsidecar-Header-K: v").ok()
	got := objects[appendedObject](t, answer.body)
	if len(got) != n+2 || answer.header.Get("Content-Type") != ndjsonType {
		t.Fatalf("%d answers", len(got))
	}
	all := objects[line](t, r.do("GET", "/v1/streams/s/records", "").ok().body)
	for i, want := range append(strings.Split(strings.TrimSuffix(body.String(), "\n"), "\n"), "", "last") {
		if *got[i].Offset != uint64(i) || *all[i].Payload != want || all[i].Position != *got[i].Position || *all[i].Headers[0].Value != "v" {
			t.Fatalf("line %d: %+v, answered %+v", i, all[i], got[i])
		}
	}
	if len(objects[appendedObject](t, r.do("POST", "/v1/streams/s/records", "", "Content-Type: application/x-ndjson").ok().body)) != 0 {
		t.Fatal("an empty body has no lines")
	}
}

// A refused line is answered in its place; without a producer the others are tried.
func TestARefusedLineIsAnsweredInItsPlace(t *testing.T) {
	r := newRig(t)
	large := strings.Repeat("x", wire.MaxFrameBytes-20)
	got := objects[errorObject](t, r.do("POST", "/v1/streams/s/records", "a\n"+large+"\nb", "Content-Type: application/x-ndjson").ok().body)
	if len(got) != 3 || *got[0].Offset != 0 || got[1].Code != "too_large" || got[1].Line != 2 || *got[2].Offset != 1 {
		t.Fatalf("%+v", got)
	}
	// The expected offset grows from line to line.
	got = objects[errorObject](t, r.do("POST", "/v1/streams/s/records", "c\nd", "Content-Type: application/x-ndjson", "Walsidecar-Expect-Offset: 1").ok().body)
	if len(got) != 2 || got[0].Code != "precondition_failed" || *got[0].Actual != 2 || got[1].Offset == nil || *got[1].Offset != 2 {
		t.Fatalf("%+v", got)
	}
}

func TestBatchIsAllOrNone(t *testing.T) {
	r := newRig(t)
	r.do("POST", "/v1/batch", `{"entries":[{"stream":"a","payload":"1"},{"stream":"b","payload_base64":"/w==","headers":[{"key":"K","value":"v"},{"key":"K","value_base64":"/w=="}]},{"stream":"a","payload":"2","expect_offset":1}]}`).ok()
	e := r.do("POST", "/v1/batch", `{"entries":[{"stream":"a","payload":"3"},{"stream":"b","payload":"4","expect_offset":5}]}`).refused(wire.CodePreconditionFailed)
	if *e.Entry != 1 || *e.Actual != 1 || e.Stream != "b" {
		t.Fatalf("%+v", e)
	}
	all := objects[line](t, r.do("GET", "/v1/replay", "").ok().body)
	if len(all) != 3 || all[0].BatchEnd || all[1].BatchEnd || !all[2].BatchEnd || all[0].Position != all[2].Position {
		t.Fatalf("%+v", all)
	}
	if h := all[1].Headers; string(all[1].PayloadBase64) != "\xff" || len(h) != 2 || h[0].Key != "K" || string(h[1].ValueBase64) != "\xff" {
		t.Fatalf("%+v", all[1])
	}
}

func TestBadRequestsSayWhy(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("k", 256)
	for _, c := range []struct{ method, path, body, header, says string }{
		{"POST", "/v1/batch", `{"entries":[]}`, "", "1 to 4096 entries"},
		{"POST", "/v1/batch", `{"entrys":[]}`, "", "entrys"},
		{"POST", "/v1/batch", `{"entries":[{"payload":"x"}]}`, "", "without a stream"},
		{"POST", "/v1/batch", `{"entries":[{"stream":"s","payload":"x","payload_base64":"eA=="}]}`, "", "payload and payload_base64"},
		{"POST", "/v1/batch", `{"entries":[{"stream":"s","payload":"x","headers":[{"key":"` + long + `"}]}]}`, "", "1 to 255 bytes"},
		{"POST", "/v1/batch", `{"entries":[{"stream":"s"}],"producer":"p"}`, "", "belong together"},
		{"POST", "/v1/batch", `{"entries":[{"stream":"s"}]} x`, "", "after its JSON object"},
		{"POST", "/v1/batch", `[`, "", "JSON object"},
		{"POST", "/v1/streams/s/records", "x", "Walsidecar-Expected-Offset: 7", "unknown header"},
		{"POST", "/v1/streams/s/records", "x", "Walsidecar-Expect-Offset: -7", "whole number"},
		{"POST", "/v1/streams/s/records", "x", "Walsidecar-Producer: p", "belong together"},
		{"POST", "/v1/streams/s/records", "x", "Walsidecar-Token: " + long, "64 bytes"},
		{"POST", "/v1/streams/s/records?craete=false", "x", "", "unknown query parameter"},
		{"POST", "/v1/streams/s/records?create=no", "x", "", "true or false"},
		{"GET", "/v1/streams/s/records?offset=1&last=2", "", "", "only one"},
		{"GET", "/v1/streams/s/records?since=yesterday", "", "", "RFC 3339"},
		{"GET", "/v1/streams/s/records?max=0", "", "", "at least 1"},
		{"GET", "/v1/replay", "", "Last-Event-ID: 1.x", "whole number"},
		{"GET", "/v1/status", "", "Walsidecar-Token: x", "unknown header"},
		{"PUT", "/v1/streams/%2Fx", "", "", ""},
		{"PUT", "/v1/streams/" + long, "", "", ""},
		{"POST", "/v1/streams/s/trim", "{}", "", "before"},
		{"PUT", "/v1/streams/s/token", `{"new":"` + long + `"}`, "", "64 bytes"},
	} {
		var headers []string
		if c.header != "" {
			headers = []string{c.header}
		}
		if e := r.do(c.method, c.path, c.body, headers...).refused(wire.CodeBadRequest); !strings.Contains(e.Message, c.says) {
			t.Errorf("%s %.40s: %q is not said in %q", c.method, c.path, c.says, e.Message)
		}
	}
	if body := r.do("GET", "/v1/streams", "").ok().body; body != `{"streams":[]}`+"\n" {
		t.Fatalf("refused requests have made streams: %s", body)
	}
}

// A source that sends again after a lost answer appends nothing twice, and finds out
// where to go on.
func TestExactlyOnceUnderANamedProducer(t *testing.T) {
	r := newRig(t)
	const path = "/v1/streams/s/records"
	under := func(sequence int) []string {
		return []string{"Walsidecar-Producer: source", fmt.Sprintf("Walsidecar-Sequence: %d", sequence)}
	}
	r.do("GET", "/v1/producers/source", "").refused(wire.CodeNotFound)
	r.do("POST", path, "lsn 10", under(10)...).ok()
	r.do("POST", path, "lsn 10", under(10)...).ok().is(`{"stream":"s","duplicate":true,"last_sequence":10}`)
	r.do("POST", path, "lsn 7", under(7)...).ok().is(`{"stream":"s","duplicate":true,"last_sequence":10}`)
	r.do("GET", "/v1/producers/source", "").ok().is(`{"name":"source","last_sequence":10}`)

	// A refused sequence is free for another attempt.
	r.do("POST", path, "lsn 20", append(under(20), "Walsidecar-Expect-Offset: 9")...).refused(wire.CodePreconditionFailed)
	r.do("POST", path, "lsn 20", under(20)...).ok()

	// Of lines, those that are in the log already are duplicates; a batch is one sequence.
	lines := objects[appendedObject](t, r.do("POST", path, "lsn 19\nlsn 20\nlsn 21", append(under(19), "Content-Type: application/x-ndjson")...).ok().body)
	if len(lines) != 3 || !lines[0].Duplicate || !lines[1].Duplicate || lines[2].Duplicate || *lines[2].Offset != 2 {
		t.Fatalf("%+v", lines)
	}
	const batch = `{"producer":"source","sequence":30,"entries":[{"stream":"s","payload":"lsn 30"},{"stream":"t","payload":"lsn 30"}]}`
	r.do("POST", "/v1/batch", batch).ok()
	r.do("POST", "/v1/batch", batch).ok().is(`{"duplicate":true,"last_sequence":30,"placed":[]}`)

	var got []string
	for _, one := range objects[line](t, r.do("GET", path, "").ok().body) {
		got = append(got, *one.Payload)
	}
	if strings.Join(got, ",") != "lsn 10,lsn 20,lsn 21,lsn 30" {
		t.Fatal(got)
	}
	r.do("DELETE", "/v1/producers/source", "").ok()
	r.do("POST", path, "anew", under(1)...).ok() // the connection remembers an id that is gone
}

// Under a producer a refused line ends the request: with a later sequence in the log it
// would be a duplicate for ever.
func TestUnderAProducerTheFirstRefusedLineIsTheLast(t *testing.T) {
	r := newRig(t)
	large := strings.Repeat("x", wire.MaxFrameBytes-20)
	got := objects[errorObject](t, r.do("POST", "/v1/streams/s/records", "a\n"+large+"\nb", "Content-Type: application/x-ndjson",
		"Walsidecar-Producer: p", "Walsidecar-Sequence: 5").ok().body)
	if len(got) != 2 || got[1].Code != "too_large" || got[1].Line != 2 {
		t.Fatalf("%+v", got)
	}
	r.do("GET", "/v1/producers/p", "").ok().is(`{"name":"p","last_sequence":5}`)
}

// A connection remembers ids of streams: a name that was deleted and made anew by another
// client is the new stream, at the first attempt.
func TestAppendGoesToTheStreamThatHasTheNameNow(t *testing.T) {
	r, other := newRig(t), &rig{}
	*other = *r
	for round := range 3 {
		for i := range 2 {
			r.do("POST", "/v1/streams/s/records", "x").ok()
			a := r.do("GET", "/v1/streams/s", "").ok()
			var s streamObject
			if err := json.Unmarshal([]byte(a.body), &s); err != nil || s.NextOffset != uint64(i+1) || s.ID != uint64(round+1) {
				t.Fatalf("round %d: %s", round, a.body)
			}
		}
		if answer := r.raw("DELETE /v1/streams/s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(answer, "HTTP/1.1 204") {
			t.Fatal(answer)
		}
	}
}
