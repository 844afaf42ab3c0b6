package stream

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
)

// written is a batch as it lies in the log.
type written struct {
	part     producerPart
	flags    uint8
	position uint64
}

// producerRig is a log with two session producers and a named one.
type producerRig struct {
	*world
	a          ID
	one, two   ProducerID
	named      ProducerID
	want       []written
	positionOf map[producerPart]uint64 // of batches, acked left out
}

func newProducerRig(t *testing.T) *producerRig {
	w := newWorld(t, smallRing)
	r := &producerRig{world: w, a: w.stream("a"), one: w.session(400), two: w.session(400), positionOf: map[producerPart]uint64{}}
	named, _, err := w.c.OpenNamedProducer("named")
	w.must(err)
	r.named = named.ID
	return r
}

// put appends a batch of one record that is to be written with these flags, and is lone.
func (r *producerRig) put(id ProducerID, sequence, acked uint64, flags uint8) {
	r.t.Helper()
	r.putEntries(id, sequence, acked, flags|flagLone, entries(r.a, 1))
}

func (r *producerRig) putEntries(id ProducerID, sequence, acked uint64, flags uint8, entries []Entry) {
	r.t.Helper()
	result, err := r.append(&Batch{Producer: id, Sequence: sequence, Acked: acked, Entries: entries})
	r.must(err)
	r.want = append(r.want, written{producerPart{id, sequence, acked}, flags, result.Position})
	r.positionOf[producerPart{id: id, sequence: sequence}] = result.Position
}

// refuse appends what is refused.
func (r *producerRig) refuse(want error, b *Batch) {
	r.t.Helper()
	_, err := r.append(b)
	refusalOf(r.t, err, want)
}

// batches reads all batches that are on the disk.
func (r *producerRig) batches() (all []written) {
	r.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(r.disk)
	r.must(err)
	_, err = ringwal.Recover(r.disk, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		if f.Kind != ringwal.FrameData {
			return nil
		}
		return Items(f.Body, f.Position, func(it *Item) error {
			if it.Kind == KindBatch {
				flags := f.Body[it.Position-f.Position-ringwal.FrameHeaderBytes+5]
				all = append(all, written{producerPart{it.Producer, it.Sequence, it.Acked}, flags, it.Position})
			}
			return nil
		})
	}})
	r.must(err)
	return all
}

// check compares what is on the disk with what was appended, recovers, and sends every
// batch once more: each is answered with the place where it lies.
func (r *producerRig) check() {
	r.t.Helper()
	r.sync()
	if got := r.batches(); !slices.Equal(got, r.want) {
		r.t.Fatalf("batches\n got %v\nwant %v", got, r.want)
	}
	before, head := r.state(), r.log.Durable()
	r.crash()
	if !bytes.Equal(r.state(), before) {
		r.t.Fatal("another state was recovered")
	}
	for part, position := range r.positionOf {
		if !part.id.IsSession() {
			continue
		}
		result, err := r.append(&Batch{Producer: part.id, Sequence: part.sequence, Entries: entries(r.a, 1)})
		if errors.Is(err, ErrSequenceExpired) {
			continue
		}
		if err != nil || !result.Duplicate || result.Position != position {
			r.t.Fatalf("sequence %d once more: %+v, %v, want a duplicate of that at %d", part.sequence, result, err, position)
		}
	}
	if r.log.Durable() < head {
		r.t.Fatalf("recovered up to %d of %d", r.log.Durable(), head)
	}
}

// A batch continues the one before it only where that lies right before it, in the same
// frame, and says all but the sequence. Whatever comes between, each keeps its own
// producer, sequence and acked.
func TestABatchContinuesTheOneRightBefore(t *testing.T) {
	const none, whole, goesOn = 0, flagProducer, flagContinued
	for name, run := range map[string]func(r *producerRig){
		"a row": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.put(r.one, 2, 0, goesOn)
			r.putEntries(r.one, 3, 0, goesOn, entries(r.a, 3))
			r.putEntries(r.one, 4, 0, goesOn, []Entry{{Stream: r.a, Headers: []byte{1, 0, 1, 0, 1, 0, 0, 0, 'k', 'v'}}})
			r.put(r.one, 5, 0, goesOn)
		},
		"acked more": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.put(r.one, 2, 1, whole)
			r.put(r.one, 3, 1, goesOn)
			r.put(r.one, 4, 0, whole)
		},
		"producers in turn": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.put(r.named, 2, 0, whole)
			r.put(r.two, 1, 0, whole)
			r.put(r.one, 2, 0, whole)
			r.put(r.two, 2, 0, whole)
			r.put(r.two, 3, 0, goesOn)
		},
		"a named one": func(r *producerRig) {
			r.put(r.named, 7, 0, whole)
			r.put(r.named, 8, 0, goesOn)
			r.put(r.named, 10, 0, whole)
			r.put(r.named, 11, 1, whole)
			r.put(r.named, 12, 1, goesOn)
		},
		"without a producer between": func(r *producerRig) {
			r.put(0, 0, 0, none)
			r.put(0, 0, 0, none)
			r.put(r.one, 1, 0, whole)
			r.put(0, 0, 0, none)
			r.put(r.one, 2, 0, whole)
			r.put(r.one, 3, 0, goesOn)
		},
		"another item between": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.stream("between")
			r.put(r.one, 2, 0, whole)
			r.put(r.one, 3, 0, goesOn)
		},
		"a refusal in the log between": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.refuse(ErrOffsetMismatch, &Batch{Producer: r.one, Sequence: 2, Entries: []Entry{{Stream: r.a, HasExpect: true, Expect: 99}}})
			r.put(r.one, 3, 0, whole)
			r.put(r.one, 4, 0, goesOn)
		},
		"what left nothing between": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.refuse(ErrOffsetMismatch, &Batch{Entries: []Entry{{Stream: r.a, HasExpect: true, Expect: 99}}})
			r.refuse(ErrOutOfSequence, &Batch{Producer: r.one, Sequence: 3, Entries: entries(r.a, 1)})
			r.refuse(ErrTooLarge, &Batch{Producer: r.two, Sequence: 1, Entries: []Entry{{Stream: r.a, Payload: make([]byte, 1<<20)}}})
			_, err := r.append(&Batch{Producer: r.one, Sequence: 1, Entries: entries(r.a, 1)}) // a duplicate
			r.must(err)
			r.put(r.one, 2, 0, goesOn)
		},
		"a new frame": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.log.CloseFrame(0)
			r.put(r.one, 2, 0, whole)
			r.put(r.one, 3, 0, goesOn)
			r.sync()
			r.put(r.one, 4, 0, whole)
		},
		"a new epoch": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.sync()
			r.crash()
			r.put(r.one, 2, 0, whole)
			r.put(r.one, 3, 0, goesOn)
		},
		"what had to wait, and did not come again": func(r *producerRig) {
			large := []Entry{{Stream: r.a, Payload: make([]byte, 60_000)}}
			for sequence := range uint64(3) {
				r.putEntries(r.one, 1+sequence, 0, whole|flagLone, large)
			}
			r.putEntries(r.one, 4, 0, whole|flagLone, []Entry{{Stream: r.a, Payload: make([]byte, 30_000)}})
			waits := Batch{Producer: r.named, Sequence: 7, Entries: large}
			if err := r.c.Append(r.nowNS, &waits, &Result{}); !errors.Is(err, ringwal.ErrWait) {
				r.t.Fatal(err)
			}
			r.put(r.named, 8, 0, whole)
			r.put(r.named, 9, 0, goesOn)
		},
		"the log asks to wait": func(r *producerRig) {
			r.put(r.one, 1, 0, whole)
			r.must(r.c.StartCheckpoint())
			if err := r.c.Append(r.nowNS, &Batch{Producer: r.one, Sequence: 2, Entries: entries(r.a, 1)}, &Result{}); !errors.Is(err, ringwal.ErrWait) {
				r.t.Fatal(err)
			}
			r.put(r.one, 2, 0, whole)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProducerRig(t)
			run(r)
			r.check()
		})
	}
}

// What does not fit behind the one before, not even continued, begins a frame of its own:
// with its producer part.
func TestABatchThatFitsOnlyContinued(t *testing.T) {
	for _, tooLong := range []int{0, 1, producerBytes, producerBytes + 1} {
		r := newProducerRig(t)
		r.sync()
		room := r.log.Geometry().MaxItemBytes()
		first := room / 2 &^ 7
		payload := func(item int) []Entry { return []Entry{{Stream: r.a, Payload: make([]byte, item)}} }
		r.putEntries(r.one, 1, 0, flagProducer|flagLone, payload(first-itemHeaderBytes-producerBytes-loneFixedBytes))
		second, third := uint8(flagContinued), uint8(flagProducer)
		if tooLong > 0 {
			second, third = third, second
		}
		r.putEntries(r.one, 2, 0, second|flagLone, payload(room-first-itemHeaderBytes-loneFixedBytes+tooLong))
		r.put(r.one, 3, 0, third)
		if sameFrame := r.want[1].position == r.want[0].position+uint64(first); sameFrame != (tooLong == 0) {
			t.Errorf("%d bytes too long, and in the same frame: %v", tooLong, sameFrame)
		}
		r.check()
	}
}

// A record is a lone one wherever it has room there, and the same everywhere else.
func TestALoneRecord(t *testing.T) {
	headers := []byte{1, 0, 1, 0, 1, 0, 0, 0, 'k', 'v'}
	for _, c := range []struct {
		id      ID
		next    uint64
		headers []byte
		flags   uint8
	}{
		{1, 0, nil, flagLone},
		{1, 1, headers, 0},
		{1, 1<<32 - 1, nil, flagLone},
		{1, 1 << 32, nil, flagLone},
		{1, 1<<48 - 1, nil, flagLone},
		{1, 1 << 48, nil, 0},
		{1<<32 - 1, 1<<48 - 1, nil, flagLone},
		{1 << 32, 5, nil, 0},
		{1<<32 + 1, 0, nil, 0},
	} {
		w := newWorld(t, smallRing)
		w.c.table.streams.insert(&streamState{id: c.id, name: "far", first: c.next, next: c.next})
		result, err := w.append(&Batch{Entries: []Entry{{Stream: c.id, Payload: []byte("payload"), Headers: c.headers}}})
		w.must(err)
		w.log.CloseFrame(0)
		f := w.log.Next(0)
		if flags := f.Buf[ringwal.FrameHeaderBytes+5]; flags != c.flags {
			t.Errorf("%+v: flags %d", c, flags)
		}
		it := decodeOne(t, f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes], f.Position)
		var r Record
		if !it.NextRecord(&r) || r.Stream != c.id || r.Offset != c.next || r.Timestamp != w.nowNS || !bytes.Equal(r.Headers, c.headers) ||
			string(r.Payload) != "payload" || !r.Verify() || it.Position != result.Position {
			t.Errorf("%+v: the record is %+v", c, r)
		}
	}
}

// Producers, refusals, other items and ends of frames in any order.
func TestP2_EachBatchKeepsItsProducer(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := newProducerRig(t)
		last, acked := map[ProducerID]uint64{}, map[ProducerID]uint64{}
		ids := []ProducerID{0, r.one, r.two, r.named}
		id, continued := r.one, 0
		for range 300 {
			switch rng.IntN(20) {
			case 0, 1, 2:
				id = ids[rng.IntN(len(ids))]
			case 3:
				r.log.CloseFrame(0)
			case 4:
				r.sync()
			case 5:
				_, err := r.c.SetToken(r.a, nil, nil)
				r.must(err)
			case 6:
				acked[id] = last[id]
			case 7:
				if id.IsSession() {
					last[id]++
				}
				refused := Batch{Producer: id, Sequence: last[id], Acked: acked[id], Entries: []Entry{{Stream: r.a, HasExpect: true, Expect: 1 << 40}}}
				if id != r.named {
					r.refuse(ErrOffsetMismatch, &refused)
				}
			}
			b := Batch{Producer: id, Entries: entries(r.a, 1+rng.IntN(3))}
			if id != 0 {
				last[id]++
				b.Sequence, b.Acked = last[id], acked[id]
			}
			r.putEntries(b.Producer, b.Sequence, b.Acked, 0, b.Entries)
		}
		r.sync()
		for i, b := range r.batches() {
			r.want[i].flags = b.flags // which ones continue is not what this test is about
			if b.flags&flagContinued != 0 {
				continued++
			}
		}
		if r.check(); continued < 50 {
			t.Errorf("seed %d: only %d continued batches", seed, continued)
		}
	}
}
