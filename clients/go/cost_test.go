package walsidecar

import (
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/walsidecar/walsidecar/wire"
)

// startEcho starts a sidecar that acknowledges every append at once and allocates
// nothing for it, so that what is measured is the client.
func startEcho(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "echo.sock")
	listener, err := net.Listen("unix", path)
	must(err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go echo(conn)
		}
	}()
	return path
}

func echo(conn net.Conn) {
	defer conn.Close()
	in, out := make([]byte, 1<<20), make([]byte, 0, 1<<20)
	held, offset := 0, uint64(0)
	var ack wire.AppendAck
	for {
		n, err := conn.Read(in[held:])
		if err != nil {
			return
		}
		held += n
		b := in[:held]
		out, ack.Extents = out[:0], ack.Extents[:0]
		for {
			h, body, rest, ok, err := wire.Message(b)
			must(err)
			if !ok {
				break
			}
			b = rest
			if h.Type == wire.TypeAppend {
				stream := binary.LittleEndian.Uint64(body[32:])
				if n := len(ack.Extents); n == 0 || !ack.Extents[n-1].Extend(h.Request, stream, offset, 1, offset*64) {
					ack.Extents = append(ack.Extents, wire.AckExtent{Request: h.Request, Stream: stream, Offset: offset, Position: offset * 64, Requests: 1, Records: 1})
				}
				offset++
				continue
			}
			out = echoCommand(out, h)
		}
		held = copy(in, b)
		if len(ack.Extents) > 0 {
			out = ack.AppendTo(out, 0)
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func echoCommand(out []byte, h wire.Header) []byte {
	switch h.Type {
	case wire.TypeHello:
		w := wire.Welcome{
			Version: 1, MaxMessageBytes: wire.MaxMessageBytes, MaxBatchRecords: wire.MaxBatchRecords,
			MaxBatchBytes: wire.MaxFrameBytes, MaxRequests: 8192, MaxRequestBytes: 4 << 20,
		}
		return w.AppendTo(out, 0)
	case wire.TypeStreamOpen:
		info := wire.StreamInfo{Stream: wire.Stream{ID: 1, Name: "s"}}
		return info.AppendTo(out, h.Request)
	case wire.TypeProducerOpen:
		info := wire.ProducerInfo{ID: 7, Window: 8192}
		return info.AppendTo(out, h.Request)
	case wire.TypePing:
		return (&wire.Pong{}).AppendTo(out, h.Request)
	}
	return out
}

func TestSubmittingAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes sync.Pool forget")
	}
	c := dial(t, startEcho(t))
	ctx := context.Background()
	data := make([]byte, 128)
	token, key := []byte("owner"), []byte("v")
	tickets := make([]Ticket, 0, 256)
	pipelined := func() {
		tickets = tickets[:0]
		for range 256 {
			ticket, err := c.Submit(ctx, "s", data)
			if err != nil {
				t.Fatal(err)
			}
			tickets = append(tickets, ticket)
		}
		for _, ticket := range tickets {
			if _, err := ticket.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	optioned := func() {
		if _, err := c.Append(ctx, "s", data, WithToken(token), ExpectOffset(3), WithHeader("k", key)); err != nil {
			t.Fatal(err)
		}
	}
	for name, one := range map[string]func(){"256 pipelined": pipelined, "with options": optioned} {
		for range 20 {
			one() // warms up
		}
		// Less than one in 256: what the runtime allocates for itself now and then is not ours.
		if n := testing.AllocsPerRun(50, one); n >= 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	c := dial(b, startEcho(b))
	data := make([]byte, 128)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Append(context.Background(), "s", data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPing(b *testing.B) {
	c := dial(b, startEcho(b))
	for b.Loop() {
		if err := c.Ping(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// One op is one append; 1,024 are in flight.
func BenchmarkSubmit(b *testing.B) {
	c := dial(b, startEcho(b), WithInFlight(4096, 16<<20))
	data := make([]byte, 128)
	var ring [1024]Ticket
	ctx := context.Background()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		slot := &ring[n%len(ring)]
		if n >= len(ring) {
			if _, err := slot.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
		var err error
		if *slot, err = c.Submit(ctx, "s", data); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

// One op is one append; 256 goroutines append in a closed loop each.
func BenchmarkAppend256Goroutines(b *testing.B) {
	c := dial(b, startEcho(b), WithInFlight(4096, 16<<20))
	b.ReportAllocs()
	b.ResetTimer()
	var group sync.WaitGroup
	for g := range 256 {
		group.Go(func() {
			data := make([]byte, 128)
			for range (b.N + 255 - g) / 256 {
				if _, err := c.Append(context.Background(), "s", data); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
}
