package uds

import (
	"testing"

	"golang.org/x/sys/unix"

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

// cpuPerOp reports the processor time of both sides, which share this process.
func cpuPerOp(b *testing.B) (done func()) {
	used := func() int64 {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

// 1,024 in flight, 32 requests per write, or one. One op is one append.
func BenchmarkPipelined(b *testing.B) {
	b.Run("32PerWrite", func(b *testing.B) { pipelined(b, 32) })
	b.Run("1PerWrite", func(b *testing.B) { pipelined(b, 1) })
}

func pipelined(b *testing.B, perWrite int) {
	s := start(b, testBudget, session.Times{}, nil)
	c := connect(b, s.Path())
	id := c.stream("bench")
	m := wire.Append{Entries: []wire.Entry{{Stream: id, Payload: make([]byte, 128)}}}
	const inFlight = 1024
	room := make(chan struct{}, inFlight/perWrite)
	b.ReportAllocs()
	b.ResetTimer()
	defer cpuPerOp(b)()
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

// The same through shared memory.
func BenchmarkRingPipelined(b *testing.B) {
	s := start(b, testBudget, session.Times{}, nil)
	c := connectRing(b, s.Path(), 0)
	defer c.Detach()
	m := wire.Append{Entries: []wire.Entry{{Stream: c.stream("bench"), Payload: make([]byte, 128)}}}
	size := m.Bytes()
	const inFlight = 1024
	var extents []wire.AckExtent
	b.ReportAllocs()
	b.ResetTimer()
	defer cpuPerOp(b)()
	acked, published := 0, 0
	for acked < b.N {
		for ; published < b.N && published-acked < inFlight && c.Fits(size); published++ {
			dst, _ := c.Reserve(size)
			m.AppendTo(dst[:0], c.nextID)
			c.nextID++
			c.Publish()
			if c.Kick(c.Position()) {
				c.RingBell()
			}
		}
		c.Wait()
		extents, _ = c.Take(extents[:0])
		for i := range extents {
			acked += int(extents[i].Requests)
		}
		c.Free(c.Released()) // nothing is sent again here
	}
}
