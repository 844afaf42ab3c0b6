package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// seed is printed, and comes from WALSIDECAR_SEED to replay a run.
func seed(t testing.TB) *rand.Rand {
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("WALSIDECAR_SEED"); s != "" {
		n, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("WALSIDECAR_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 0))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair is both ends of a door on the heap.
type pair struct {
	t          testing.TB
	submission Memory
	completion Memory
	*Producer
	c      *Consumer
	up     *Completer
	down   *Reaper
	nextID uint64
}

func newPair(t testing.TB, ringBytes int) *pair {
	s, c := NewHeap(ringBytes)
	p, err := NewProducer(s)
	must(t, err)
	r, err := NewReaper(s, c)
	must(t, err)
	return &pair{t: t, submission: s, completion: c, Producer: p, c: NewConsumer(s), up: NewCompleter(s, c), down: r, nextID: FirstRequest}
}

// put publishes a message of n bytes that is filled with its number.
func (p *pair) put(n int) (end uint64) {
	dst, _ := p.Reserve(n)
	fill(dst, p.nextID)
	p.nextID++
	p.Publish()
	return p.Position()
}

func fill(dst []byte, id uint64) {
	binary.LittleEndian.PutUint32(dst, uint32(len(dst)))
	binary.LittleEndian.PutUint16(dst[4:], uint16(wire.TypeAppend))
	binary.LittleEndian.PutUint16(dst[6:], 0)
	binary.LittleEndian.PutUint64(dst[8:], id)
	for i := wire.HeaderBytes; i < len(dst); i++ {
		dst[i] = byte(id)
	}
}

func (p *pair) take() (wire.Header, []byte) {
	p.t.Helper()
	_, err := p.c.Load()
	must(p.t, err)
	h, body, ok, err := p.c.Next()
	must(p.t, err)
	if !ok {
		p.t.Fatal("no message")
	}
	return h, body
}

func TestMessagesPassInOrderAndWrapWithAPad(t *testing.T) {
	p := newPair(t, MinRingBytes)
	const large = MinRingBytes / 4
	for range 3 {
		p.put(large - 8)
	}
	p.put(large)
	for range 4 {
		p.take()
	}
	if p.Fits(64) {
		t.Error("24 bytes are left, and a message of 64 fits")
	}
	p.c.Answer(FirstRequest + 1)
	if want := uint64(2 * (large - 8)); p.c.Released() != want {
		t.Errorf("released %d, want %d", p.c.Released(), want)
	}
	p.Free(p.c.Released())
	end := p.put(large) // 24 bytes of pad before it
	if want := uint64(MinRingBytes + large); end != want {
		t.Errorf("the message ends at %d, want %d", end, want)
	}
	h, body := p.take()
	if h.Request != FirstRequest+4 || int(h.Length) != large || body[0] != byte(h.Request) {
		t.Errorf("%+v", h)
	}
	if ok, err := p.c.Load(); ok || err != nil {
		t.Errorf("%v, %v after the last message", ok, err)
	}
}

// A pad can be as short as 8 bytes, which is less than a message's header.
func TestShortestPad(t *testing.T) {
	p := newPair(t, MinRingBytes)
	for left := MinRingBytes - 8; left > 0; {
		n := min(left, MinRingBytes/4)
		p.put(n)
		p.take()
		left -= n
	}
	p.c.Answer(p.nextID - 1)
	p.Free(p.c.Released())
	p.put(16)
	if h, _ := p.take(); h.Length != 16 {
		t.Errorf("%+v", h)
	}
}

func TestUnreadGivesTheMessageAgain(t *testing.T) {
	p := newPair(t, MinRingBytes)
	p.put(64)
	p.put(128)
	p.take()
	for range 3 {
		h, _ := p.take()
		if h.Length != 128 {
			t.Fatalf("%+v", h)
		}
		p.c.Unread()
	}
	if n := p.c.Unanswered(); n != 1 {
		t.Errorf("%d unanswered, want 1", n)
	}
}

// A ring against a model: whatever the sizes and the pace, what was published comes
// once, in order, byte for byte, and nothing is overwritten before it is released.
func TestRandomWalkAgainstModel(t *testing.T) {
	r := seed(t)
	p := newPair(t, MinRingBytes)
	var sent, open []int // lengths: published, taken and not answered
	var ends []uint64
	answered := FirstRequest
	for range 200_000 {
		switch r.IntN(3) {
		case 0:
			n := 16 + 8*r.IntN(r.IntN(p.MaxMessageBytes()/8-1)+1)
			if p.Fits(n) && p.nextID-answered < MaxRequests {
				ends = append(ends, p.put(n))
				sent = append(sent, n)
			}
		case 1:
			if ok, err := p.c.Load(); err != nil || ok != (len(sent) > 0) {
				t.Fatalf("%v, %v with %d published", ok, err, len(sent))
			}
			h, body, ok, err := p.c.Next()
			if err != nil || ok != (len(sent) > 0) {
				t.Fatalf("%v, %v", ok, err)
			}
			if ok {
				if int(h.Length) != sent[0] || bytes.Count(body, []byte{byte(h.Request)}) != len(body) {
					t.Fatalf("message %d of %d bytes came wrong: %+v", h.Request, sent[0], h)
				}
				open, sent = append(open, sent[0]), sent[1:]
			}
		case 2:
			if n := r.IntN(len(open) + 1); n > 0 {
				answered += uint64(n)
				p.c.Answer(answered - 1)
				if p.c.Released() != ends[n-1] {
					t.Fatalf("released %d, want %d", p.c.Released(), ends[n-1])
				}
				p.Free(p.c.Released())
				open, ends = open[n:], ends[n:]
			}
		}
	}
}

func TestViolationsAreFoundAndNothingElse(t *testing.T) {
	header := func(length uint32, typ wire.Type, flags uint16, id uint64) func(p *pair) {
		return func(p *pair) {
			b := p.Ring()
			binary.LittleEndian.PutUint32(b, length)
			binary.LittleEndian.PutUint16(b[4:], uint16(typ))
			binary.LittleEndian.PutUint16(b[6:], flags)
			binary.LittleEndian.PutUint64(b[8:], id)
			p.submission.u64(offTail).Store(1024)
		}
	}
	for _, c := range []struct {
		name string
		do   func(p *pair)
		ok   bool
	}{
		{"a message", header(64, wire.TypeAppend, 0, FirstRequest), true},
		{"length 0", header(0, wire.TypeAppend, 0, FirstRequest), false},
		{"length 8", header(8, wire.TypeAppend, 0, FirstRequest), false},
		{"length 65", header(65, wire.TypeAppend, 0, FirstRequest), false},
		{"beyond the tail", header(1032, wire.TypeAppend, 0, FirstRequest), false},
		{"huge", header(1<<32-8, wire.TypeAppend, 0, FirstRequest), false},
		{"a hello", header(64, wire.TypeHello, 0, FirstRequest), false},
		{"a read", header(64, wire.TypeRead, 0, FirstRequest), false},
		{"a socket's id", header(64, wire.TypeAppend, 0, 1), false},
		{"an id left out", header(64, wire.TypeAppend, 0, FirstRequest+1), false},
		{"a pad in the middle", header(64, wire.TypePad, 0, 0), false},
		{"a pad beyond the tail", header(MinRingBytes, wire.TypePad, 0, 0), false},
		{"the tail back", func(p *pair) {
			p.put(64)
			p.take()
			p.submission.u64(offTail).Store(56)
		}, false},
		{"the tail odd", func(p *pair) { p.submission.u64(offTail).Store(63) }, false},
		{"the tail too far", func(p *pair) { p.submission.u64(offTail).Store(MinRingBytes + 8) }, false},
		{"the tail at the end of numbers", func(p *pair) { p.submission.u64(offTail).Store(1<<64 - 8) }, false},
	} {
		p := newPair(t, MinRingBytes)
		c.do(p)
		_, err := p.c.Load()
		if err == nil {
			_, _, _, err = p.c.Next()
		}
		if c.ok != (err == nil) || (err != nil && !errors.Is(err, ErrViolation)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestMoreRequestsThanAllowedIsAViolation(t *testing.T) {
	p := newPair(t, 256<<10)
	for range MaxRequests {
		p.put(16)
		p.take()
	}
	p.put(16)
	if _, err := p.c.Load(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := p.c.Next(); !errors.Is(err, ErrViolation) {
		t.Errorf("%v, want a violation", err)
	}
	p.c.Answer(FirstRequest)
	p.take()
}

func TestAcksPassAndWakeOncePerSleep(t *testing.T) {
	p := newPair(t, MinRingBytes)
	one := []wire.AckExtent{{Request: FirstRequest, Stream: 1<<64 - 1, Offset: 7, Position: 4096, Requests: 3, Records: 2, Step: 160}}
	if p.up.Publish(one, 64, 4096) {
		t.Error("a client that is awake is woken")
	}
	if p.down.Released() != 64 || p.down.Durable() != 4096 {
		t.Errorf("released %d, durable %d", p.down.Released(), p.down.Durable())
	}
	p.down.Want()
	if !p.down.Any() {
		t.Error("acks that came before the wish to be woken are not seen after it")
	}
	if !p.up.Publish(one, 128, 4096) || p.up.Publish(one, 192, 4096) {
		t.Error("want one wake-up per wish")
	}
	got, err := p.down.Take(nil)
	if err != nil || len(got) != 3 || got[0] != one[0] || got[2] != one[0] || p.down.Any() {
		t.Errorf("%+v, %v", got, err)
	}
	word := p.down.Word()
	p.down.Want()
	p.down.Want()
	if !p.up.Publish(one, 256, 4096) || p.completion.u32(offWake).Load() == word {
		t.Error("a new wish after one that was fulfilled is not")
	}
	p.down.Want()
	p.down.Unwant()
	if p.up.Publish(one, 320, 4096) {
		t.Error("a client that took its wish back is woken")
	}
	p.up.End(wire.CodeDraining)
	if p.down.State() != wire.CodeDraining {
		t.Errorf("state %v", p.down.State())
	}
}

func TestTheSidecarIsKickedOncePerSleep(t *testing.T) {
	p := newPair(t, MinRingBytes)
	if p.down.Kick(108) {
		t.Error("a sidecar that is awake is kicked")
	}
	p.up.Arm(100)
	p.up.Arm(100)
	if !p.down.Kick(108) || p.down.Kick(108) {
		t.Error("want one kick per sleep")
	}
	if !p.up.Disarm() || p.up.Disarm() {
		t.Error("want one of two to end the sleep")
	}
	p.up.Arm(100)
	if p.down.Kick(100) {
		t.Error("kicked for what can wait")
	}
	p.up.Arm(92)
	if !p.down.Kick(100) {
		t.Error("the second sleep is not kicked")
	}
}

// Both ends in goroutines of their own, on the heap: for the race detector.
func TestTwoGoroutinesOnTheHeap(t *testing.T) {
	r := seed(t)
	p := newPair(t, MinRingBytes)
	const messages = 20_000
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			var extents []wire.AckExtent
			for seen := 0; seen < messages; {
				if _, err := p.c.Load(); err != nil {
					return err
				}
				h, body, ok, err := p.c.Next()
				if err != nil {
					return err
				}
				if !ok {
					runtime.Gosched()
					continue
				}
				if bytes.Count(body, []byte{byte(h.Request)}) != len(body) {
					return errors.New("the body changed")
				}
				seen++
				p.c.Answer(h.Request)
				extents = append(extents[:0], wire.AckExtent{Request: h.Request, Requests: 1, Records: 1})
				p.up.Publish(extents, p.c.Released(), h.Request)
			}
			return nil
		}()
	}()
	var extents []wire.AckExtent
	ends := make([]uint64, 0, messages)
	for acked := 0; acked < messages; {
		n := 16 + 8*r.IntN(200)
		if len(ends) < messages && p.Fits(n) && len(ends)-acked < MaxRequests {
			ends = append(ends, p.put(n))
		}
		var err error
		if extents, err = p.down.Take(extents[:0]); err != nil {
			t.Fatal(err)
		}
		for _, e := range extents {
			if e.Request != FirstRequest+uint64(acked) {
				t.Fatalf("ack of %d, want %d", e.Request, FirstRequest+uint64(acked))
			}
			acked++
			p.Free(ends[acked-1])
		}
		runtime.Gosched()
	}
	must(t, <-done)
}

// A ring whose bytes are anything: Load and Next return, within the ring, and what
// they return adds up.
func FuzzConsumer(f *testing.F) {
	p := newPair(f, MinRingBytes)
	p.put(64)
	p.put(16)
	f.Add(append([]byte(nil), p.Ring()[:80]...), uint64(80), uint64(0))
	f.Add([]byte{8, 0, 1, 0, 5}, uint64(1<<16), uint64(0))
	f.Fuzz(func(t *testing.T, ring []byte, tail, later uint64) {
		s, _ := NewHeap(MinRingBytes)
		c := NewConsumer(s)
		copy(s[headBytes:], ring)
		for _, tail := range []uint64{tail, later} {
			s.u64(offTail).Store(tail)
			if _, err := c.Load(); err != nil {
				return
			}
			for {
				before := c.Taken()
				h, body, ok, err := c.Next()
				if err != nil || !ok {
					break
				}
				if c.Taken() <= before || c.Taken() > tail || len(body) != int(h.Length)-wire.HeaderBytes {
					t.Fatalf("%+v: taken %d → %d of %d", h, before, c.Taken(), tail)
				}
				c.Answer(h.Request)
			}
		}
	})
}
