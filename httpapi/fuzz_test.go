package httpapi

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// FuzzBatch: whatever is accepted as a batch is one that the log can decode, with the same
// records in it.
func FuzzBatch(f *testing.F) {
	f.Fuzz(func(t *testing.T, body []byte) {
		var q batchRequest
		if decodeJSON(body, &q) != nil {
			return
		}
		entries, err := q.encode()
		if err != nil {
			return
		}
		m := wire.Append{Entries: entries}
		if checkMessage(&m) != nil {
			return
		}
		b := m.AppendTo(nil, 1)
		h, message, _, ok, err := wire.Message(b)
		if err != nil || !ok || len(b) != m.Bytes() {
			t.Fatalf("%d bytes, %d announced: %v", len(b), m.Bytes(), err)
		}
		var got wire.Append
		if err := got.Decode(h, message); err != nil {
			t.Fatal(err)
		}
		for i := range entries {
			a, b := &entries[i], &got.Entries[i]
			if !bytes.Equal(a.Payload, b.Payload) || !bytes.Equal(a.Headers, b.Headers) || !bytes.Equal(a.Token, b.Token) ||
				a.HasExpect != b.HasExpect || a.Expect != b.Expect || wire.CheckHeaders(b.Headers) != nil {
				t.Fatalf("entry %d: %+v became %+v", i, a, b)
			}
		}
	})
}

// FuzzRequest: whatever a connection brings, it gets answers of HTTP or its end, and the
// door serves on.
func FuzzRequest(f *testing.F) {
	r := newRigOver(f, newScripted(func(s *session.Session, h wire.Header, body []byte) {
		var m wire.Append
		switch {
		case openAs(s, h):
		case h.Type == wire.TypeAppend && m.Decode(h, body) == nil:
			s.AckAppend(h.Request, 7, 0, uint32(len(m.Entries)), 4096)
		default:
			s.AnswerError(h.Request, &wire.Error{Code: wire.CodeNotFound, Message: "nothing"})
		}
	}), session.NewBudget(testBudget))
	f.Fuzz(func(t *testing.T, request []byte) {
		nc, err := net.Dial("unix", r.options.Path)
		if err != nil {
			t.Fatal(err)
		}
		c := nc.(*net.UnixConn)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = c.Write(request) // the door may have hung up already
		_ = c.CloseWrite()
		answer, err := io.ReadAll(c)
		if os.IsTimeout(err) || len(answer) > 0 && !bytes.HasPrefix(answer, []byte("HTTP/1.1 ")) {
			t.Fatalf("%v, %.200q", err, answer)
		}
	})
}

var seedFlag = flag.Uint64("seed", 0, "of random tests; 0: WALSIDECAR_SEED, else a new one")

// seeded is a random source whose seed is told and can be given.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if text := os.Getenv("WALSIDECAR_SEED"); seed == 0 && text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: go test -run %s -seed %d", seed, t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Clients that send valid and broken requests and hang up at random instants, some of them
// with half an answer read, harm nobody: one that behaves has each of its records once, in
// order, and at the end nothing is left.
func TestP9_HostileClientsHarmNobody(t *testing.T) {
	rng := seeded(t)
	r := newRig(t)
	r.append("s", strings.Repeat("x", 300<<10), "y")
	requests := []string{
		"GET /v1/streams/s/records?follow=true HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/replay HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n",
		"POST /v1/streams/h/records HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
		"POST /v1/streams/h/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: 6\r\n\r\na\nb\nc\n",
		"POST /v1/streams/h/records HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n" + `{"entries":[{"stream":"h","payload":""}]}`[:40],
		"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"PUT /v1/streams/h HTTP/1.1\r\nHost: x\r\n\r\n",
	}
	var hostile sync.WaitGroup
	for range 4 {
		own := rand.New(rand.NewPCG(rng.Uint64(), 1))
		hostile.Go(func() {
			for range 100 {
				c := r.dial()
				var send []byte
				for range 1 + own.IntN(3) {
					send = append(send, requests[own.IntN(len(requests))]...)
				}
				if own.IntN(2) == 0 {
					send[own.IntN(len(send))] = byte(own.Uint32())
				}
				_, _ = c.Write(send[:1+own.IntN(len(send))])
				_ = c.SetReadDeadline(time.Now().Add(time.Duration(own.IntN(5000)) * time.Microsecond))
				_, _ = io.CopyN(io.Discard, c, int64(own.IntN(200_000)))
				_ = c.Close()
			}
		})
	}
	const n = 200
	for i := range n {
		r.do("POST", "/v1/streams/mine/records", fmt.Sprint(i)).ok()
	}
	hostile.Wait()
	all := objects[line](t, r.do("GET", "/v1/streams/mine/records", "").ok().body)
	if len(all) != n {
		t.Fatalf("%d records", len(all))
	}
	for i := range all {
		if *all[i].Payload != fmt.Sprint(i) {
			t.Fatalf("record %d is %s", i, *all[i].Payload)
		}
	}
}
