package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// newHTTPHost is newHost with the HTTP door.
func newHTTPHost(t *testing.T, settings ...string) *host {
	t.Helper()
	h := newHost(t, settings...)
	h.set("HTTP=" + h.path("h"))
	return h
}

// web is a client of a host's HTTP door.
func (h *host) web() *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.path("h"))
	}}
	h.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// call sends a request and returns its status and body; headers are "Name: value".
func call(c *http.Client, method, path, body string, headers ...string) (int, string, error) {
	q, err := http.NewRequest(method, "http://wal"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Add(name, value)
	}
	a, err := c.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	return a.StatusCode, string(text), err
}

// mustCall is call for what has to succeed.
func mustCall(t *testing.T, c *http.Client, method, path, body string, headers ...string) string {
	t.Helper()
	status, text, err := call(c, method, path, body, headers...)
	if err != nil || status/100 != 2 {
		t.Fatalf("%s %s: %d %v %s", method, path, status, err, text)
	}
	return text
}

// changing are the parts of answers that differ from run to run.
var changing = regexp.MustCompile(`("(?:position|next|durable)":|id: )\d+|"timestamp":"[^"]*"`)

// The commands of the README's section run as they are, and print what it says.
func TestREADMEOverHTTP(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(readme), "## Over HTTP\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !ok || strings.Count(section, "    $ curl") < 3 {
		t.Fatal("the README has no such section")
	}
	h := newHTTPHost(t)
	h.set("HTTP=walsidecar-data/http.sock")
	h.serve()
	blocks := strings.Split(section, "\n    $ ")[1:]
	for _, block := range blocks {
		command, rest, _ := strings.Cut(block, "\n")
		var want strings.Builder
		for text := range strings.Lines(rest) {
			if !strings.HasPrefix(text, "    ") && text != "\n" {
				break
			}
			want.WriteString(strings.TrimPrefix(text, "    "))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Dir = h.dir
		got, err := cmd.CombinedOutput()
		cancel()
		same := func(text string) string { return changing.ReplaceAllString(strings.TrimSpace(text), "$1…") }
		if err != nil || same(string(got)) != same(want.String()) {
			t.Errorf("%s\n%v\ngot  %s\nwant %s", command, err, got, want.String())
		}
	}
}

// Both doors show the same log, and the same objects byte for byte.
func TestBothDoorsShowTheSame(t *testing.T) {
	h := newHTTPHost(t)
	h.serve()
	web := h.web()
	mustCall(t, web, "POST", "/v1/streams/a/records", "over HTTP", "Walsidecar-Header-From: web")
	h.must("append", "a", "over the socket", "--header", "k=<&>")
	mustCall(t, web, "POST", "/v1/streams/b/records", "\xff\x00\u2028")
	h.must("append", "b", "quote \" backslash \\ tab \t")
	mustCall(t, web, "POST", "/v1/streams/a/trim", `{"before":1}`)
	for _, c := range []struct {
		path string
		args []string
	}{
		{"/v1/streams/a/records", []string{"read", "a"}},
		{"/v1/streams/b/records?last=1", []string{"read", "b", "--last", "1"}},
		{"/v1/streams/a/records?offset=0", []string{"read", "a", "--offset", "0"}},
		{"/v1/replay", []string{"replay"}},
		{"/v1/producers/p", []string{"producer", "p"}},
	} {
		if c.args[0] == "producer" {
			mustCall(t, web, "POST", "/v1/streams/b/records", "x", "Walsidecar-Producer: p", "Walsidecar-Sequence: 9")
		}
		got, want := mustCall(t, web, "GET", c.path, ""), h.must(append(c.args, "--json")...)
		if got != want {
			t.Errorf("%s\nover HTTP       %s\nover the socket %s", c.path, got, want)
		}
	}
	var page struct{ Streams []json.RawMessage }
	if err := json.Unmarshal([]byte(mustCall(t, web, "GET", "/v1/streams", "")), &page); err != nil {
		t.Fatal(err)
	}
	for i, want := range lines(h.must("streams", "--json")) {
		if string(page.Streams[i]) != want {
			t.Errorf("stream %d\nover HTTP       %s\nover the socket %s", i, page.Streams[i], want)
		}
	}
}

// A source under a named producer that loses its sidecar again and again, and sends the
// same again, has every record in the log once.
func TestP2_KillNineUnderLoadOverHTTP(t *testing.T) {
	rng := seeded(t)
	h := newHTTPHost(t)
	const records = 1500
	kills := 0
	p := h.serve()
	acked := 0
	for sequence := 1; sequence <= records; {
		web := h.web()
		killAt := time.Now().Add(time.Duration(20+rng.IntN(200)) * time.Millisecond)
		timer := time.AfterFunc(time.Until(killAt), p.kill)
		for sequence <= records {
			n, err := appendSome(web, rng, sequence, records)
			if err != nil {
				break
			}
			sequence += n
			acked = sequence - 1
		}
		if timer.Stop() {
			break // all are acked
		}
		<-p.done
		kills++
		p = h.serve()
		var last struct {
			Last int `json:"last_sequence"`
		}
		status, text, err := call(h.web(), "GET", "/v1/producers/source", "")
		if err != nil || status != 200 && status != 404 {
			t.Fatal(status, err, text)
		}
		if status == 200 {
			if err := json.Unmarshal([]byte(text), &last); err != nil {
				t.Fatal(err)
			}
		}
		if last.Last < acked {
			t.Fatalf("%d were acked, the log knows of %d", acked, last.Last)
		}
		sequence = max(1, last.Last-rng.IntN(3)) // some again, though they are in the log
	}
	all := decode[record](t, h.must("read", "s", "--json"))
	if len(all) != records {
		t.Fatalf("%d records, want %d", len(all), records)
	}
	for i, r := range all {
		if *r.Payload != strconv.Itoa(i+1) {
			t.Fatalf("record %d is %s", i, *r.Payload)
		}
	}
	if kills == 0 {
		t.Error("the sidecar was never killed")
	}
}

// appendSome appends one record, or some as lines, under the named producer "source", and
// returns how many are in the log for certain.
func appendSome(web *http.Client, rng *rand.Rand, sequence, last int) (int, error) {
	count := min(1+rng.IntN(4), last-sequence+1)
	var body strings.Builder
	for i := range count {
		fmt.Fprintln(&body, sequence+i)
	}
	status, text, err := call(web, "POST", "/v1/streams/s/records", body.String(), "Content-Type: application/x-ndjson",
		"Walsidecar-Producer: source", "Walsidecar-Sequence: "+strconv.Itoa(sequence))
	if err != nil {
		return 0, err
	}
	answers := lines(text)
	if status != 200 || len(answers) != count || strings.Contains(text, `"code"`) {
		return 0, fmt.Errorf("status %d: %s", status, text)
	}
	return count, nil
}

func TestSIGTERMDoesNotWaitForIdleHTTPClients(t *testing.T) {
	h := newHTTPHost(t, "DRAIN=1m")
	p := h.serve()
	web := h.web()
	mustCall(t, web, "POST", "/v1/streams/s/records", "x") // its connection stays open
	start := time.Now()
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if exists(h.path("h")) || !isClean(t, h) {
		t.Error("the socket is left, or the log was not sealed")
	}
}

func TestAFollowOverHTTPEndsWithTheSidecar(t *testing.T) {
	h := newHTTPHost(t, "DRAIN=300ms")
	p := h.serve()
	web := h.web()
	mustCall(t, web, "POST", "/v1/streams/s/records", "x")
	a, err := web.Get("http://wal/v1/streams/s/records?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	in := bufio.NewScanner(a.Body)
	if !in.Scan() || !strings.Contains(in.Text(), `"payload":"x"`) {
		t.Fatalf("%q %v", in.Text(), in.Err())
	}
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
	last := ""
	for in.Scan() {
		last = in.Text()
	}
	if in.Err() != nil || !strings.Contains(last, `"code":"draining"`) {
		t.Fatalf("the last line is %s, %v", last, in.Err())
	}
}

func TestAChildFindsTheHTTPDoor(t *testing.T) {
	h := newHTTPHost(t)
	h.set("HTTP=h") // relative
	p := h.start(nil, "serve", "--", "sh", "-c", `cd / && test -S "$WALSIDECAR_HTTP" && exit 9`)
	if code := p.wait(); code != 9 {
		t.Fatalf("exit %d\n%s", code, p.stderr)
	}
}

func TestALiveHTTPSocketIsNotTaken(t *testing.T) {
	h, other := newHTTPHost(t), newHost(t)
	h.serve()
	other.set("HTTP=" + h.path("h"))
	other.run("serve").fails(t, 14, "WALSIDECAR_HTTP")
	mustCall(t, h.web(), "GET", "/v1/health", "")
}
