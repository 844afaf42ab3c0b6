package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

func (r *rig) append(stream string, payloads ...string) {
	r.t.Helper()
	for _, p := range payloads {
		r.do("POST", "/v1/streams/"+stream+"/records", p).ok()
	}
}

func TestFollowBringsWhatComes(t *testing.T) {
	r := newRig(t)
	r.append("s", "0", "1")
	f := r.follow("/v1/streams/s/records?follow=true&offset=1")
	first := f.until("caught_up")
	if len(first) != 2 || *first[0].Payload != "1" || first[0].id != "2" || first[1].id != "2" || !first[1].CaughtUp || first[1].Next != 2 {
		t.Fatalf("%+v", first)
	}
	for i := 2; i < 50; i++ {
		r.append("s", fmt.Sprint(i))
		got := f.until("caught_up")
		if len(got) != 2 || *got[0].Payload != fmt.Sprint(i) || got[0].id != fmt.Sprint(i+1) {
			t.Fatalf("%+v", got)
		}
	}
	r.do("POST", "/v1/streams/s/seal", "").ok()
	end := f.until("end")
	if end[len(end)-2].Gap != "sealed" || end[len(end)-2].From != 50 || !end[len(end)-1].End || end[len(end)-1].Next != 50 {
		t.Fatalf("%+v", end)
	}
	if _, ok := f.next(); ok {
		t.Fatal("an event after the end")
	}
}

func TestAFollowGoesOnBehindTheLastEvent(t *testing.T) {
	r := newRig(t)
	r.append("s", "0", "1", "2", "3")
	f := r.follow("/v1/streams/s/records?follow=true&last=4")
	f.next()
	e, _ := f.next()
	f.body.Close()
	again := r.follow("/v1/streams/s/records?follow=true&last=4", "Last-Event-ID: "+e.id).until("caught_up")
	if len(again) != 3 || *again[0].Payload != "2" || *again[1].Payload != "3" {
		t.Fatalf("%+v", again)
	}
}

// A replay that was cut at any event goes on with the next record, within a batch too.
func TestAReplayGoesOnBehindTheLastEvent(t *testing.T) {
	r := newRig(t)
	r.append("a", "0")
	r.do("POST", "/v1/batch", `{"entries":[{"stream":"a","payload":"1"},{"stream":"b","payload":"2"},{"stream":"a","payload":"3"}]}`).ok()
	r.append("b", "4", "5")
	payloads := func(all []event) string {
		var text strings.Builder
		for _, e := range all {
			if e.kind == "record" {
				text.WriteString(*e.Payload)
			}
		}
		return text.String()
	}
	all := r.follow("/v1/replay").until("end")
	if payloads(all) != "012345" {
		t.Fatalf("%+v", all)
	}
	for i, e := range all[:6] {
		if got := payloads(r.follow("/v1/replay", "Last-Event-ID: "+e.id).until("end")); got != "012345"[i+1:] {
			t.Errorf("after %q (%d): %q", e.id, i, got)
		}
		if got := payloads(r.follow("/v1/replay?position=0&follow=true", "Last-Event-ID: "+e.id).until("caught_up")); got != "012345"[i+1:] {
			t.Errorf("after %q (%d), following: %q", e.id, i, got)
		}
	}
}

func TestGapsAreTyped(t *testing.T) {
	r := newRig(t)
	r.append("s", "0", "1", "2")
	r.do("POST", "/v1/streams/s/trim", `{"before":2}`).ok().is(`{"stream":"s","first_offset":2}`)
	if got := objects[line](t, r.do("GET", "/v1/streams/s/records", "").ok().body); len(got) != 1 || *got[0].Payload != "2" {
		t.Fatalf("by default a read begins with the first record that is left: %+v", got)
	}
	got := objects[line](t, r.do("GET", "/v1/streams/s/records?offset=0", "").ok().body)
	if len(got) != 2 || got[0].Gap != "trimmed" || got[0].From != 0 || got[0].To != 2 || got[0].Stream != "s" || *got[1].Payload != "2" {
		t.Fatalf("%+v", got)
	}
	f := r.follow("/v1/streams/s/records?follow=true&last=1")
	f.until("caught_up")
	r.do("DELETE", "/v1/streams/s", "").ok()
	if end := f.until("end"); end[len(end)-2].Gap != "deleted" {
		t.Fatalf("%+v", end)
	}
}

func TestReadsByTimeLimitAndLines(t *testing.T) {
	r := newRig(t)
	r.append("s", "0", "1")
	time.Sleep(5 * time.Millisecond)
	since := time.Now().UTC().Format(time.RFC3339Nano)
	r.append("s", "2", "3")
	for query, want := range map[string]string{
		"since=" + since: "23", "since=1h": "0123", "since=0s": "", "last=3&max=2": "12", "max=1": "0", "offset=3": "3", "offset=4": "", "last=0": "",
	} {
		var text strings.Builder
		for _, one := range objects[line](t, r.do("GET", "/v1/streams/s/records?"+query, "").ok().body) {
			text.WriteString(*one.Payload)
		}
		if text.String() != want {
			t.Errorf("%s: %q, want %q", query, text.String(), want)
		}
	}
	c := r.dial()
	_, _ = io.WriteString(c, "GET /v1/streams/s/records?follow=true HTTP/1.0\r\n\r\n")
	answer := make([]byte, 4096)
	if n, err := c.Read(answer); err != nil || !strings.Contains(string(answer[:n]), "takes HTTP/1.1") {
		t.Errorf("%q %v", answer[:n], err)
	}
}

// Far more than a connection may hold at once comes whole and in order, and the same
// connection serves on.
func TestALongReadComesWhole(t *testing.T) {
	r := newRig(t)
	var body strings.Builder
	const n = 4000
	for i := range n {
		fmt.Fprintf(&body, "%d %s\n", i, strings.Repeat("\x01y", 400))
	}
	r.do("POST", "/v1/streams/s/records", body.String(), "Content-Type: application/x-ndjson").ok()
	for range 2 {
		all := objects[line](t, r.do("GET", "/v1/streams/s/records", "").ok().body)
		if len(all) != n {
			t.Fatalf("%d records", len(all))
		}
		for i := range all {
			if *all[i].Payload != fmt.Sprintf("%d %s", i, strings.Repeat("\x01y", 400)) {
				t.Fatalf("record %d: %.20s", i, *all[i].Payload)
			}
		}
	}
	if opened := r.host.Stats().Opened; opened != 1 {
		t.Errorf("%d sessions were opened for one connection", opened)
	}
}

// A follower that hangs up frees everything at once, not at the next heartbeat.
func TestP9_AFollowerThatHangsUpFreesEverything(t *testing.T) {
	r := newRig(t)
	r.append("s", "0")
	r.client.CloseIdleConnections()
	r.awaitBudget(0)
	var all []*follow
	for range 20 {
		f := r.follow("/v1/streams/s/records?follow=true")
		f.until("caught_up")
		all = append(all, f)
	}
	if n := r.host.Stats().Sessions; n != 20 {
		t.Fatalf("%d sessions", n)
	}
	start := time.Now()
	for _, f := range all {
		f.body.Close()
	}
	r.await(func() bool { return r.host.Stats().Sessions == 0 }, func() string { return "sessions are left" })
	if took := time.Since(start); took > 3*time.Second { // a heartbeat comes every 5 s
		t.Errorf("it took %v", took)
	}
	r.awaitBudget(0)
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, left := range []string{"httpapi.(*conn).watch", "httpapi.(*events)", "session.(*Session).serveRead"} {
		if bytes.Contains(stacks, []byte(left)) {
			t.Errorf("%s is left", left)
		}
	}
}

// What fails in the middle of a read is its last line.
func TestAFollowHearsOfTheEndOfTheSidecar(t *testing.T) {
	r := newRig(t)
	r.append("s", "0")
	f := r.follow("/v1/streams/s/records?follow=true")
	f.until("caught_up")
	r.host.Goodbye(wire.CodeDraining, "the sidecar is shutting down")
	if got := f.until("failure"); got[0].Code != "draining" {
		t.Fatalf("%+v", got)
	}
	if _, ok := f.next(); ok {
		t.Fatal("an event after the failure")
	}
	r.do("GET", "/v1/health", "").refused(wire.CodeDraining)
}
