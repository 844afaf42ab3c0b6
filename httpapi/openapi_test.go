package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// The description has the door's paths, methods and parameters, and no others.
func TestTheDescriptionHasAllRoutesAndNoOther(t *testing.T) {
	d := loadDocument(t)
	if d.OpenAPI != "3.1.0" {
		t.Errorf("version %s", d.OpenAPI)
	}
	described := 0
	for _, methods := range d.Paths {
		for method := range methods {
			if method != "parameters" {
				described++
			}
		}
	}
	if described != len(routes) {
		t.Errorf("%d operations are described, there are %d", described, len(routes))
	}
	for _, r := range routes {
		o := d.operation(t, r.path, r.method)
		var query, headers []string
		for _, p := range o.Parameters {
			if p.Ref != "" {
				p = d.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
			}
			switch p.In {
			case "query":
				query = append(query, p.Name)
			case "header":
				if p.Name != headerLog && p.Name != headerLastID {
					headers = append(headers, strings.TrimSuffix(p.Name, "{key}"))
				}
			}
		}
		same := func(a, b []string) bool {
			a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
			return slices.Equal(a, b)
		}
		if !same(query, r.query) || !same(headers, r.headers) {
			t.Errorf("%s %s: described with %v, %v; it knows %v, %v", r.method, r.path, query, headers, r.query, r.headers)
		}
	}
}

// visit is a request with what the door has to answer.
type visit struct {
	method, path string // of the description
	name         string // for {name}
	query        string
	body         string
	headers      []string
	status       int
}

// visits reach every status of every operation that the description names, in an order
// in which each makes what later ones need.
func visits() []visit {
	nd := "Content-Type: application/x-ndjson"
	js := "Content-Type: application/json"
	const streams, stream, seal, token = "/v1/streams", "/v1/streams/{name}", "/v1/streams/{name}/seal", "/v1/streams/{name}/token"
	const trim, records, batch, replay = "/v1/streams/{name}/trim", "/v1/streams/{name}/records", "/v1/batch", "/v1/replay"
	const producer = "/v1/producers/{name}"
	long := strings.Repeat("x", 1<<20)
	sse := "Accept: text/event-stream"
	return []visit{
		{method: "GET", path: "/v1/openapi.json", status: 200},
		{method: "GET", path: "/v1/health", status: 200},
		{method: "GET", path: "/v1/health", headers: []string{"Walsidecar-Log: elsewhere"}, status: 404},
		{method: "GET", path: "/v1/status", status: 200},
		{method: "GET", path: streams, status: 200},
		{method: "PUT", path: stream, name: "s", status: 201},
		{method: "PUT", path: stream, name: "s", status: 200},
		{method: "PUT", path: stream, name: "%0a", status: 400},
		{method: "GET", path: stream, name: "s", status: 200},
		{method: "GET", path: stream, name: "none", status: 404},
		{method: "POST", path: records, name: "s", body: "hello", headers: []string{"Walsidecar-Header-K: v", "Content-Type: application/octet-stream"}, status: 200},
		{method: "POST", path: records, name: "s", body: binary, headers: []string{"Walsidecar-Producer: p", "Walsidecar-Sequence: 5"}, status: 200},
		{method: "POST", path: records, name: "s", body: binary, headers: []string{"Walsidecar-Producer: p", "Walsidecar-Sequence: 5"}, status: 200},
		{method: "POST", path: records, name: "s", body: "a\n" + long[:len(long)-20] + "\nb", headers: []string{nd}, status: 200},
		{method: "POST", path: records, name: "s", body: "x", query: "create=maybe", status: 400},
		{method: "POST", path: records, name: "none", body: "x", query: "create=false", status: 404},
		{method: "POST", path: records, name: "s", body: "x", headers: []string{"Walsidecar-Expect-Offset: 77"}, status: 412},
		{method: "POST", path: records, name: "s", body: long, status: 413},
		{method: "POST", path: batch, body: `{"entries":[{"stream":"s","payload":"1","expect_offset":4,"headers":[{"key":"k","value":"v"}]},{"stream":"t","payload_base64":"/w=="}]}`, headers: []string{js}, status: 200},
		{method: "POST", path: batch, body: `{"entries":[]}`, headers: []string{js}, status: 400},
		{method: "POST", path: batch, body: `{"entries":[{"stream":"none"}]}`, query: "create=false", status: 404},
		{method: "POST", path: batch, body: `{"entries":[{"stream":"s","expect_offset":77}]}`, status: 412},
		{method: "POST", path: batch, body: `{"entries":[{"stream":"s","payload":"` + long + `"}]}`, status: 413},
		{method: "GET", path: streams, query: "prefix=s&limit=1", status: 200},
		{method: "GET", path: streams, query: "limit=1", status: 200},
		{method: "GET", path: streams, query: "limit=x", status: 400},
		{method: "GET", path: records, name: "s", status: 200},
		{method: "GET", path: records, name: "s", query: "since=1h&max=2", headers: []string{sse}, status: 200},
		{method: "GET", path: records, name: "s", query: "last=x", status: 400},
		{method: "GET", path: records, name: "none", status: 404},
		{method: "GET", path: replay, query: "position=0&max=3", status: 200},
		{method: "GET", path: replay, headers: []string{sse, "Last-Event-ID: 0"}, status: 200},
		{method: "GET", path: replay, query: "position=x", status: 400},
		{method: "POST", path: trim, name: "s", body: `{"before":1}`, headers: []string{js}, status: 200},
		{method: "POST", path: trim, name: "s", body: `{}`, status: 400},
		{method: "POST", path: trim, name: "none", body: `{"before":1}`, status: 404},
		{method: "GET", path: records, name: "s", query: "offset=0", status: 200}, // with a gap
		{method: "PUT", path: token, name: "s", body: `{"new":"mine"}`, headers: []string{js}, status: 200},
		{method: "PUT", path: token, name: "s", body: `{"old":"theirs","new":""}`, status: 412},
		{method: "PUT", path: token, name: "s", body: `[]`, status: 400},
		{method: "PUT", path: token, name: "none", body: `{}`, status: 404},
		{method: "POST", path: seal, name: "s", status: 200},
		{method: "POST", path: seal, name: "none", status: 404},
		{method: "GET", path: records, name: "s", query: "follow=true", headers: []string{sse}, status: 200}, // ends, sealed
		{method: "POST", path: records, name: "s", body: "x", headers: []string{"Walsidecar-Token: mine"}, status: 409},
		{method: "POST", path: batch, body: `{"entries":[{"stream":"s","token":"mine"}]}`, status: 409},
		{method: "PUT", path: producer, name: "q", status: 201},
		{method: "PUT", path: producer, name: "q", status: 200},
		{method: "PUT", path: producer, name: "%0a", status: 400},
		{method: "GET", path: producer, name: "p", status: 200},
		{method: "GET", path: producer, name: "none", status: 404},
		{method: "DELETE", path: producer, name: "p", status: 204},
		{method: "DELETE", path: producer, name: "p", status: 404},
		{method: "DELETE", path: stream, name: "t", status: 204},
		{method: "DELETE", path: stream, name: "t", status: 404},
		{method: "POST", path: records, name: "full", body: long[:900_000], status: 507},
		{method: "POST", path: batch, body: `{"entries":[{"stream":"full","payload":"` + long[:900_000] + `"}]}`, status: 507},
	}
}

// Every status that the description names is what the door answers to some request, and
// every body, of requests too, is as described.
func TestTheDoorAnswersAsDescribed(t *testing.T) {
	r, d := newRig(t), loadDocument(t)
	reached := map[string]bool{}
	for _, v := range visits() {
		label := fmt.Sprintf("%s %s %d", v.method, v.path, v.status)
		o := d.operation(t, v.path, v.method)
		path := strings.Replace(v.path, "{name}", v.name, 1)
		if v.query != "" {
			path += "?" + v.query
		}
		if v.status < 300 && v.body != "" && strings.HasPrefix(v.body, "{") {
			if err := d.validate(o.RequestBody.Content[jsonType].Schema, v.body); err != nil {
				t.Errorf("%s: the request: %v", label, err)
			}
		}
		a := r.do(v.method, path, v.body, v.headers...)
		for i := 0; v.status == 507 && a.status == 200 && i < 100; i++ {
			a = r.do(v.method, path, v.body, v.headers...)
		}
		if a.status != v.status {
			t.Errorf("%s: status %d: %s", label, a.status, a.body)
			continue
		}
		response, ok := o.Responses[fmt.Sprint(v.status)]
		if !ok {
			t.Errorf("%s is not described", label)
			continue
		}
		reached[label] = true
		kind := a.header.Get("Content-Type")
		content, ok := response.Content[kind]
		if !ok && (len(response.Content) > 0 || a.body != "") {
			t.Errorf("%s: %q is not described", label, kind)
			continue
		}
		for _, text := range values(kind, a.body) {
			if err := d.validate(content.Schema, text); err != nil {
				t.Errorf("%s: %v in %s", label, err, text)
			}
		}
	}
	for _, route := range routes {
		o := d.operation(t, route.path, route.method)
		for status := range o.Responses {
			if label := fmt.Sprintf("%s %s %s", route.method, route.path, status); status != "default" && !reached[label] {
				t.Errorf("%s is described, and nothing reaches it", label)
			}
		}
	}
}

// values are the JSON values of a body.
func values(kind, body string) (all []string) {
	switch kind {
	case jsonType:
		return []string{body}
	case ndjsonType:
		return strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	case sseType:
		for text := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(text, "data: "); ok {
				all = append(all, data)
			}
		}
	}
	return all
}

// Marks of a follow are as described too, a heartbeat among them.
func TestMarksOfAFollowAreAsDescribed(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a heartbeat")
	}
	r, d := newRig(t), loadDocument(t)
	r.append("s", "0")
	for _, accept := range []string{sseType, ndjsonType} {
		q, err := http.NewRequest("GET", "http://walsidecar/v1/streams/s/records?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Accept", accept)
		a, err := r.client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for until := time.Now().Add(20 * time.Second); !strings.Contains(text.String(), `{"heartbeat":`) || !strings.HasSuffix(text.String(), "}\n") && accept == ndjsonType; {
			b := make([]byte, 4096)
			n, err := a.Body.Read(b)
			text.Write(b[:n])
			if err != nil && err != io.EOF || time.Now().After(until) {
				t.Fatalf("%v after %s", err, text.String())
			}
		}
		_ = a.Body.Close()
		all := values(accept, text.String())
		if len(all) < 3 {
			t.Errorf("%s: %q", accept, all)
		}
		for _, one := range all {
			if err := d.validate(d.Components.Schemas["Event"], one); err != nil {
				t.Errorf("%v in %s", err, one)
			}
		}
	}
}
