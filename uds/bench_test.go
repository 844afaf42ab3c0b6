package uds

import (
	"testing"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/wire"
)

// One request at a time through the door alone.
func BenchmarkRoundTrip(b *testing.B) {
	s := start(b, testBudget, session.Times{}, nil)
	c := connect(b, s.Path())
	id := c.stream("bench")
	m := wire.Append{Entries: []wire.Entry{{Stream: id, Payload: make([]byte, 128)}}}
	var ack wire.AppendAck
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = m.AppendTo(out[:0], c.request())
		c.send(out)
		c.expect(wire.TypeAppendAck, &ack)
	}
}

// 32 requests per write, 1,024 in flight. One op is one append.
func BenchmarkPipelined(b *testing.B) {
	s := start(b, testBudget, session.Times{}, nil)
	c := connect(b, s.Path())
	id := c.stream("bench")
	m := wire.Append{Entries: []wire.Entry{{Stream: id, Payload: make([]byte, 128)}}}
	const perWrite, inFlight = 32, 1024
	room := make(chan struct{}, inFlight/perWrite)
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		var out []byte
		for range (b.N + perWrite - 1) / perWrite {
			room <- struct{}{}
			out = out[:0]
			for range perWrite {
				out = m.AppendTo(out, c.request())
			}
			c.send(out)
		}
	}()
	var ack wire.AppendAck
	acked := 0
	for total := (b.N + perWrite - 1) / perWrite * perWrite; acked < total; {
		c.expect(wire.TypeAppendAck, &ack)
		before := acked / perWrite
		for i := range ack.Extents {
			acked += int(ack.Extents[i].Requests)
		}
		for range acked/perWrite - before {
			<-room
		}
	}
}
