package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// record is a line of read --json and of replay.
type record struct {
	Stream    string              `json:"stream"`
	StreamID  uint64              `json:"stream_id"`
	Offset    uint64              `json:"offset"`
	Position  uint64              `json:"position"`
	Timestamp time.Time           `json:"timestamp"`
	Headers   []map[string]string `json:"headers"`
	Payload   *string             `json:"payload"`
	Base64    *string             `json:"payload_base64"`
	BatchEnd  bool                `json:"batch_end"`
	Gap       string              `json:"gap"`
	From      uint64              `json:"from"`
	To        uint64              `json:"to"`
}

func TestFirstFiveMinutes(t *testing.T) {
	h := newHost(t)
	p := h.serve()
	if got := h.must("append", "greetings", "hello, log"); got != "0\n" {
		t.Fatalf("append printed %q", got)
	}
	if got := h.must("append", "greetings", "again"); got != "1\n" {
		t.Fatalf("append printed %q", got)
	}
	if got := h.pipe("1\n2\n3\n", "append", "numbers").ok(t); got != "0\n1\n2\n" {
		t.Fatalf("append printed %q", got)
	}
	if got := h.must("read", "greetings"); got != "hello, log\nagain\n" {
		t.Fatalf("read printed %q", got)
	}
	if code := p.signal(sigterm); code != 0 {
		t.Fatalf("SIGTERM: exit %d\n%s", code, p.stderr)
	}
	h.serve()
	if got := h.must("read", "numbers", "--last", "2"); got != "2\n3\n" {
		t.Fatalf("after a restart read printed %q", got)
	}
	if got := h.must("append", "greetings", "third"); got != "2\n" {
		t.Fatalf("after a restart append printed %q", got)
	}
}

func TestAppendTakesLinesAsTheyAre(t *testing.T) {
	h := newHost(t)
	h.serve()
	for _, c := range []struct {
		stream, stdin string
		args          []string
		offsets, read string
	}{
		{"no-newline-at-the-end", "a\nb", nil, "0\n1\n", "a\nb\n"},
		{"empty-lines", "\n\nx\n", nil, "0\n1\n2\n", "\n\nx\n"},
		{"nothing", "", nil, "", ""},
		{"carriage-returns", "a\r\nb\r\n", nil, "0\n1\n", "a\r\nb\r\n"},
		{"raw", "a\nb\n", []string{"--raw"}, "0\n", "a\nb\n\n"},
		{"raw-nothing", "", []string{"--raw"}, "0\n", "\n"},
		{"bytes", "\xff\x00\xfe\n", nil, "0\n", "\xff\x00\xfe\n"},
		{"long-line", strings.Repeat("x", 700<<10) + "\n", nil, "0\n", strings.Repeat("x", 700<<10) + "\n"},
	} {
		t.Run(c.stream, func(t *testing.T) {
			if got := h.pipe(c.stdin, append([]string{"append", c.stream}, c.args...)...).ok(t); got != c.offsets {
				t.Errorf("append printed %q, want %q", got, c.offsets)
			}
			if c.offsets == "" {
				return
			}
			if got := h.must("read", c.stream); got != c.read {
				t.Errorf("read printed %.60q, want %.60q", got, c.read)
			}
		})
	}
}

func TestReadFromEverywhere(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.pipe("a\nb\nc\nd\ne\n", "append", "s").ok(t)
	all := decode[record](t, h.must("read", "s", "--json"))
	if len(all) != 5 {
		t.Fatalf("%d records", len(all))
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--offset", "0"}, "a\nb\nc\nd\ne\n"},
		{[]string{"--offset", "3"}, "d\ne\n"},
		{[]string{"--offset", "3", "--max", "1"}, "d\n"},
		{[]string{"--offset", "5"}, ""},
		{[]string{"--last", "1"}, "e\n"},
		{[]string{"--last", "0"}, ""},
		{[]string{"--last", "99"}, "a\nb\nc\nd\ne\n"},
		{[]string{"--max", "2"}, "a\nb\n"},
		{[]string{"--since", all[0].Timestamp.Format(time.RFC3339Nano)}, "a\nb\nc\nd\ne\n"},
		{[]string{"--since", "1h"}, "a\nb\nc\nd\ne\n"},
		{[]string{"--since", time.Now().Add(time.Hour).Format(time.RFC3339)}, ""},
	} {
		if got := h.must(append([]string{"read", "s"}, c.args...)...); got != c.want {
			t.Errorf("read %s printed %q, want %q", strings.Join(c.args, " "), got, c.want)
		}
	}
	h.run("read", "s", "--offset", "1", "--last", "1").fails(t, 2)
	h.run("read", "s", "--since", "yesterday").fails(t, 2, "RFC 3339")
	h.run("read", "s", "--offset", "-1").fails(t, 2)
	h.run("read", "missing").fails(t, 1, "missing")
}

func TestReadJSONHasWhatTheDesignSays(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must("append", "s", "texté", "--header", "k=v", "--header", "k=w=x")
	h.pipe("\xff\xfe", "append", "s", "--raw").ok(t)
	out := h.must("read", "s", "--json")
	got := decode[record](t, out)
	if len(got) != 2 {
		t.Fatal(out)
	}
	if r := got[0]; r.Stream != "s" || r.Offset != 0 || r.Payload == nil || *r.Payload != "texté" || r.Base64 != nil ||
		len(r.Headers) != 2 || r.Headers[0]["key"] != "k" || r.Headers[0]["value"] != "v" || r.Headers[1]["value"] != "w=x" ||
		time.Since(r.Timestamp).Abs() > time.Minute {
		t.Errorf("record 0: %s", out)
	}
	if r := got[1]; r.Offset != 1 || r.Payload != nil || r.Base64 == nil || *r.Base64 != "//4=" || r.Position <= got[0].Position {
		t.Errorf("record 1: %s", out)
	}
	appended := decode[record](t, h.must("append", "s", "x", "--json"))
	if len(appended) != 1 || appended[0].Stream != "s" || appended[0].Offset != 2 || appended[0].Position <= got[1].Position {
		t.Errorf("append --json: %+v", appended)
	}
}

func TestReplayIsTheWholeLogInCommitOrder(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must("append", "a", "1")
	h.must("append", "b", "2")
	h.must("append", "a", "3")
	all := decode[record](t, h.must("replay"))
	var got []string
	for _, r := range all {
		got = append(got, fmt.Sprintf("%s/%d=%s %v", r.Stream, r.Offset, *r.Payload, r.BatchEnd))
	}
	if want := "a/0=1 true, b/0=2 true, a/1=3 true"; strings.Join(got, ", ") != want {
		t.Fatalf("got %v, want %s", got, want)
	}
	from := decode[record](t, h.must("replay", "--position", fmt.Sprint(all[1].Position)))
	if len(from) != 2 || from[0].Stream != "b" {
		t.Fatalf("from a position: %+v", from)
	}
}

func TestFollowGoesOnAcrossARestart(t *testing.T) {
	h := newHost(t)
	p := h.serve()
	h.must("append", "s", "before")
	out := &lockedBuffer{}
	follow := h.start(out, "read", "s", "--follow")
	await(t, "the first record", func() bool { return out.String() == "before\n" })
	h.must("append", "s", "during")
	await(t, "the second record", func() bool { return out.String() == "before\nduring\n" })
	p.kill()
	h.serve()
	h.must("append", "s", "after")
	await(t, "the third record", func() bool { return out.String() == "before\nduring\nafter\n" })
	follow.kill()
}

func TestStreams(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must("stream", "create", "orders")
	h.must("stream", "create", "orders") // again is well
	h.must("append", "orders/eu", "x")
	h.must("append", "payments", "x")
	type info struct {
		Name   string `json:"name"`
		ID     uint64 `json:"id"`
		First  uint64 `json:"first_offset"`
		Next   uint64 `json:"next_offset"`
		Sealed bool   `json:"sealed"`
	}
	names := func(args ...string) string {
		var all []string
		for _, s := range decode[info](t, h.must(append([]string{"streams", "--json"}, args...)...)) {
			all = append(all, fmt.Sprintf("%s:%d-%d", s.Name, s.First, s.Next))
		}
		return strings.Join(all, " ")
	}
	if got := names(); got != "orders:0-0 orders/eu:0-1 payments:0-1" {
		t.Fatalf("streams: %s", got)
	}
	if got := names("--prefix", "orders"); got != "orders:0-0 orders/eu:0-1" {
		t.Fatalf("streams --prefix: %s", got)
	}
	h.must("stream", "seal", "payments")
	h.run("append", "payments", "y").fails(t, 1, "sealed")
	if got := h.must("read", "payments"); got != "x\n" {
		t.Fatalf("a sealed stream reads %q", got)
	}
	h.must("stream", "delete", "payments")
	h.run("read", "payments").fails(t, 1)
	h.run("stream", "delete", "payments").fails(t, 1, "payments")
	if got := h.must("append", "payments", "new life"); got != "0\n" {
		t.Fatalf("a name deleted and created again is a new stream, got offset %s", got)
	}
}

func TestTrim(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.pipe("a\nb\nc\nd\n", "append", "s").ok(t)
	if got := h.must("trim", "s", "--before", "2"); got != "2\n" {
		t.Fatalf("trim printed %q", got)
	}
	if got := h.must("trim", "s", "--before", "1"); got != "2\n" {
		t.Fatalf("trim never lowers, printed %q", got)
	}
	if got := h.must("trim", "s", "--before", "99"); got != "4\n" {
		t.Fatalf("trim goes to the end at most, printed %q", got)
	}
	h.must("append", "s", "e")
	if got := h.must("read", "s"); got != "e\n" {
		t.Fatalf("read printed %q", got)
	}
	r := h.run("read", "s", "--offset", "0")
	if r.ok(t); r.stdout != "e\n" || !strings.Contains(r.stderr, "trimmed") {
		t.Fatalf("a gap is said, not passed over in silence: %q %q", r.stdout, r.stderr)
	}
	gap := decode[record](t, h.must("read", "s", "--offset", "1", "--json"))
	if len(gap) != 2 || gap[0].Gap != "trimmed" || gap[0].From != 1 || gap[0].To != 4 || *gap[1].Payload != "e" {
		t.Fatalf("gap: %+v", gap)
	}
	h.run("trim", "s").fails(t, 2, "before")
	h.run("trim", "missing", "--before", "1").fails(t, 1, "missing")
}

func TestConditions(t *testing.T) {
	h := newHost(t)
	h.serve()
	if got := h.must("append", "s", "a", "--expect", "0"); got != "0\n" {
		t.Fatal(got)
	}
	h.run("append", "s", "b", "--expect", "0").fails(t, 18, "actual 1")
	if f := h.run("append", "s", "b", "--expect", "5", "--json").failure(t); f.Code != "precondition_failed" || f.Message == "" || f.Hint == "" {
		t.Fatalf("%+v", f)
	}
	h.must("stream", "token", "s", "--new", "mine")
	h.run("append", "s", "b").fails(t, 18)
	h.run("append", "s", "b", "--token", "theirs").fails(t, 18)
	if got := h.must("append", "s", "b", "--token", "mine"); got != "1\n" {
		t.Fatal(got)
	}
	h.run("stream", "token", "s", "--old", "wrong", "--new", "x").fails(t, 18)
	h.must("stream", "token", "s", "--old", "mine")
	if got := h.must("append", "s", "c"); got != "2\n" {
		t.Fatal(got)
	}
}

func TestNamedProducer(t *testing.T) {
	h := newHost(t)
	p := h.serve()
	h.run("producer", "src").fails(t, 1, "src")
	h.must("append", "s", "a", "--producer", "src", "--sequence", "100")
	h.must("append", "s", "b", "--producer", "src", "--sequence", "250")
	if got := h.must("producer", "src"); got != "250\n" {
		t.Fatalf("producer printed %q", got)
	}
	p.kill()
	h.serve()
	if got := h.must("producer", "src"); got != "250\n" {
		t.Fatalf("after kill -9 producer printed %q", got)
	}
	h.must("append", "s", "b again", "--producer", "src", "--sequence", "250")
	if got := h.must("read", "s"); got != "a\nb\n" {
		t.Fatalf("a duplicate was appended: %q", got)
	}
	h.must("producer", "src", "--remove")
	h.run("producer", "src").fails(t, 1)
}

func TestStatusVersionConfig(t *testing.T) {
	h := newHost(t)
	h.serve()
	status := decode[map[string]any](t, h.must("status", "--json"))
	if len(status) != 1 || status[0]["store"] != "none" {
		t.Fatalf("status: %v", status)
	}
	if out := h.must("status"); !strings.Contains(out, "none") {
		t.Fatalf("status: %s", out)
	}
	type setting struct{ Name, Value, Source string }
	for _, s := range decode[setting](t, h.must("config", "--json", "--stall", "7s")) {
		if s.Name == "WALSIDECAR_STALL" && (s.Value != "7s" || s.Source != "flag") ||
			s.Name == "WALSIDECAR_STORE" && (s.Value != "none" || s.Source != "environment") ||
			s.Name == "WALSIDECAR_FENCE" && (s.Value != "auto" || s.Source != "default") {
			t.Errorf("%+v", s)
		}
	}
	h.must("config", "--check")
	if v := decode[map[string]any](t, h.must("version", "--json")); len(v) != 1 || v[0]["go"] == "" {
		t.Fatalf("version: %v", v)
	}
	if out := h.must("completion", "bash"); !strings.Contains(out, "walsidecar") {
		t.Fatal("no completion script")
	}
}

func TestWhatIsTypedWrongIsUsage(t *testing.T) {
	h := newHost(t)
	for _, args := range [][]string{
		{"sreve"}, {"append"}, {"append", "s", "a", "b"}, {"read"}, {"read", "s", "--lats", "1"},
		{"format"}, {"inspect"}, {"verify"}, {"salvage"}, {"trim", "s", "--before", "x"}, {"stream"}, {"stream", "burn", "s"},
		{"wait-ready", "--timeout", "5"}, {"serve", "extra"}, {"append", "s", "a", "--header", "novalue"},
		{"append", "s", "--expect", "0", "--raw", "text"}, {"append", "s", "x", "--sequence", "1"},
	} {
		r := h.run(args...)
		if r.code != 2 || r.stdout != "" || r.stderr == "" {
			t.Errorf("walsidecar %s: exit %d, want 2\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
		}
		if f := h.run(append(args, "--json")...).failure(t); f.Code == "" || f.Message == "" {
			t.Errorf("walsidecar %s --json: %+v", strings.Join(args, " "), f)
		}
	}
}

func TestNoSidecar(t *testing.T) {
	h := newHost(t)
	for _, args := range [][]string{{"append", "s", "x"}, {"read", "s"}, {"replay"}, {"streams"}, {"status"}, {"trim", "s", "--before", "1"}} {
		h.run(args...).fails(t, 1, h.path("s"))
	}
	from := time.Now()
	h.run("wait-ready", "--timeout", "300ms").fails(t, 17)
	if took := time.Since(from); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("wait-ready took %s", took)
	}
}

// await polls until done.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("%s did not come", what)
}

// exists reports whether there is something at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
