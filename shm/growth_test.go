package shm

import (
	"encoding/binary"
	"testing"

	"github.com/walsidecar/walsidecar/tools/growth"
	"github.com/walsidecar/walsidecar/wire"
)

// ringAppends has that many appends of 128 bytes go through both ends of a ring, each in
// flight with the others of its round: reserved, published, taken, answered, reaped, freed.
// Their payloads are not written, and nobody sleeps.
func ringAppends(t *testing.T, inFlight, appends int) {
	const messageBytes = wire.HeaderBytes + 128
	p := newPair(t, MinRingBytes)
	extents := make([]wire.AckExtent, 0, 1)
	for done := 0; done < appends; done += inFlight {
		first := p.nextID
		for range inFlight {
			dst, _ := p.Reserve(messageBytes)
			binary.LittleEndian.PutUint32(dst, messageBytes)
			binary.LittleEndian.PutUint32(dst[4:], uint32(wire.TypeAppend))
			binary.LittleEndian.PutUint64(dst[8:], p.nextID)
			p.nextID++
			p.Publish()
			p.down.Kick(p.Position())
		}
		if some, err := p.c.Load(); err != nil || !some {
			t.Fatal("nothing was published", err)
		}
		taken := 0
		for _, _, ok, err := p.c.Next(); ok; _, _, ok, err = p.c.Next() {
			if err != nil {
				t.Fatal(err)
			}
			taken++
		}
		p.c.Answer(p.nextID - 1)
		p.up.Publish(append(extents, wire.AckExtent{Request: first, Stream: 1, Offset: first, Requests: uint32(taken), Records: 1, Step: messageBytes}), p.c.Released(), first)
		got, err := p.down.Take(extents)
		if err != nil || len(got) != 1 || int(got[0].Requests) != inFlight {
			t.Fatal("the acks that came are", got, err)
		}
		p.Free(p.down.Released())
	}
}

// What the ring itself takes for an append does not depend on how many are in flight: but for
// less, as many are answered at once.
func TestInstructionsPerAppend(t *testing.T) {
	growth.InstructionsPerAppend(t, "appends in flight", []int{16, 128}, func(inFlight, appends int) { ringAppends(t, inFlight, appends) })
}

// The loop that is counted does what it says.
func TestAppendsThroughTheRing(t *testing.T) { ringAppends(t, 16, 4096) }
