package node

import (
	"testing"

	"github.com/walsidecar/walsidecar/wire"
)

// openNamed opens a named producer and returns its id and last sequence.
func (d *door) openNamed(name string) wire.ProducerInfo {
	d.t.Helper()
	d.send(&wire.ProducerOpen{Name: name})
	var info wire.ProducerInfo
	d.decode(d.next(), &info)
	return info
}

func named(stream, producer, sequence uint64, size int) *wire.Append {
	return &wire.Append{HasProducer: true, Producer: producer, Sequence: sequence,
		Entries: []wire.Entry{{Stream: stream, Payload: make([]byte, size)}}}
}

func (d *door) refusal() *wire.Error {
	d.t.Helper()
	m, e := d.next(), new(wire.Error)
	if m.h.Type != wire.TypeError {
		d.t.Fatalf("%v instead of a refusal", m.h.Type)
	}
	if err := e.Decode(m.h, m.body); err != nil {
		d.t.Fatal(err)
	}
	return e
}

// Once a newer session has opened a named producer, what an older one left behind is
// refused: the last sequence that the newer one was told stays the last.
func TestP4_NamedProducerIsResumedExactly(t *testing.T) {
	r := newRig(t)
	old, fresh := r.dial(), r.dial()
	s := old.create("s")
	id := old.openNamed("source").ID
	old.send(named(s.ID, id, 5, 10))
	old.acks()
	if info := fresh.openNamed("source"); info.ID != id || info.LastSequence != 5 {
		t.Fatalf("opened again: %+v", info)
	}
	old.send(named(s.ID, id, 6, 10))
	if e := old.refusal(); e.Code != wire.CodeProducerExpired {
		t.Fatalf("the older session: %v", e.Code)
	}
	fresh.send(named(s.ID, id, 6, 20))
	fresh.acks()
	if records, _ := fresh.readAll(s.ID, 0); len(records) != 2 || len(records[1].Payload) != 20 {
		t.Fatalf("%d records", len(records))
	}
	r.close()
}

// What is in flight behind an append that found the log full does not overtake it.
func TestP12_NothingOvertakesARefusedSequence(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	s, other := d.create("s"), d.create("other")
	id := d.openNamed("source").ID
	appendUntilFull(t, d, other.ID, 200<<10)
	d.send(named(s.ID, id, 100, 200<<10))
	if e := d.refusal(); e.Code != wire.CodeLogFull {
		t.Fatalf("sequence 100: %v", e.Code)
	}
	d.send(named(s.ID, id, 101, 10)) // would fit
	if e := d.refusal(); e.Code != wire.CodeOutOfSequence || e.Actual != 100 {
		t.Fatalf("sequence 101: %v, actual %d", e.Code, e.Actual)
	}
	d.send(&wire.StreamTrim{Stream: other.ID, Before: 1 << 40})
	d.decode(d.next(), &wire.Trimmed{})
	for sequence := uint64(100); sequence < 102; sequence++ {
		d.send(named(s.ID, id, sequence, 10))
		d.acks()
	}
	if info := d.openNamed("source"); info.LastSequence != 101 {
		t.Fatalf("last sequence %d", info.LastSequence)
	}
	r.close()
}
