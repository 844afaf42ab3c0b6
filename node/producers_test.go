package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// inLoop runs f in the commit loop, which owns the state.
func (r *rig) inLoop(f func()) {
	r.t.Helper()
	done := make(chan struct{})
	r.node.inbox.addCall(func() { f(); close(done) })
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		r.t.Fatal("the commit loop did not come round within 10 s")
	}
}

// inUse counts what the loop remembers about who uses which producer.
func (r *rig) inUse() (sessions, producers, named int) {
	r.t.Helper()
	r.inLoop(func() {}) // a round, so that what came before is decided
	r.inLoop(func() {
		l := &r.node.loop
		sessions, named = len(l.uses), len(l.named)
		for _, u := range l.uses {
			producers += len(u.producers)
		}
	})
	return sessions, producers, named
}

// leave ends the connection as a client that dies does, and waits until the node was
// told.
func (d *door) leave() {
	d.t.Helper()
	d.s.Gone()
	for range d.messages { // closed when the door has finished with the session
	}
}

func (d *door) producer(question interface {
	AppendTo(dst []byte, request uint64) []byte
}) wire.ProducerInfo {
	d.t.Helper()
	d.send(question)
	var info wire.ProducerInfo
	d.decode(d.next(), &info)
	return info
}

// A client that asks for the same producers for ever makes the node remember each once.
func TestP9_AttachingAgainTakesNothingMore(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	id := d.producer(&wire.ProducerOpen{}).ID
	for range 500 {
		d.producer(&wire.ProducerGet{ID: id})
		d.openNamed("source")
	}
	if sessions, producers, named := r.inUse(); sessions != 1 || producers != 2 || named != 1 {
		t.Fatalf("%d producers of %d sessions are remembered, %d named ones", producers, sessions, named)
	}
	d.leave()
	if sessions, _, named := r.inUse(); sessions != 0 || named != 0 {
		t.Fatalf("%d sessions are remembered after the only one has gone, %d named producers", sessions, named)
	}
	r.close()
}

// Names that come and go, and producers that never were, leave nothing behind.
func TestP9_ProducersThatAreNoMoreAreNotRemembered(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	s := d.create("s")
	for i := range uint64(200) {
		d.openNamed("source")
		d.producer(&wire.ProducerRemove{Name: "source"})
		d.send(named(s.ID, 1_000_000+i, 1, 10))
		if e := d.refusal(); e.Code != wire.CodeNotFound {
			t.Fatalf("an unknown producer: %v", e.Code)
		}
	}
	if _, producers, named := r.inUse(); producers != 0 || named != 0 {
		t.Fatalf("%d producers are remembered, %d named ones", producers, named)
	}
	r.close()
}

// One session cannot take all session producers.
func TestP9_SessionProducersOfOneSessionAreLimited(t *testing.T) {
	r := newRig(t)
	d, other := r.dial(), r.dial()
	var last uint64
	for range MaxProducersOfSession {
		last = d.producer(&wire.ProducerOpen{Window: 8}).ID
	}
	theirs := other.producer(&wire.ProducerOpen{Window: 8}).ID
	for name, question := range map[string]interface {
		AppendTo(dst []byte, request uint64) []byte
	}{"open": &wire.ProducerOpen{Window: 8}, "get": &wire.ProducerGet{ID: theirs}} {
		d.send(question)
		if e := d.refusal(); e.Code != wire.CodeTooManyProducers || e.Actual != 16 || !strings.Contains(e.Message, "limit 16") {
			t.Fatalf("%s one more: %v: %s (actual %d)", name, e.Code, e.Message, e.Actual)
		}
	}
	if info := d.producer(&wire.ProducerGet{ID: last}); info.ID != last {
		t.Fatalf("its own producer: %+v", info)
	}
	d.openNamed("source") // not a session producer
	r.close()
	page, err := os.ReadFile("../docs/protocol.md")
	if row := fmt.Sprintf("| session producers that a session uses | %d |", MaxProducersOfSession); err != nil || !strings.Contains(string(page), row) {
		t.Errorf("docs/protocol.md has no row %q: %v", row, err)
	}
}

// What a client left behind is decided after it has gone; the producers that it opens
// there are let go all the same.
func TestP9_ProducersOfTheDeadAreLetGo(t *testing.T) {
	r := newRig(t)
	var floods []*door // each appends once, so that none has to wait for the log to send it
	for range 24 {
		floods = append(floods, r.dial())
	}
	s := floods[0].create("s")
	for range 3 {
		r.dev.set(func(int, int64) bool { return true }, nil)
		for _, flood := range floods { // more than a window
			flood.send(&wire.Append{Entries: []wire.Entry{{Stream: s.ID, Payload: make([]byte, 450<<10)}}})
		}
		for waits := false; !waits; { // the window is full
			r.inLoop(func() { waits = r.node.loop.chunk != nil })
		}
		dying := r.dial()
		for range 4 { // the room that session producers have in so small a log holds seven
			dying.send(&wire.ProducerOpen{Window: stream.MaxWindow})
		}
		dying.send(&wire.ProducerOpen{Name: "source"})
		dying.leave()
		if sessions, _, _ := r.inUse(); sessions != 0 {
			t.Fatalf("the requests of the dead were decided before the log had room")
		}
		r.dev.set(nil, nil)
		for _, flood := range floods {
			flood.decode(flood.next(), &wire.AppendAck{})
		}
		floods[0].send(&wire.StreamTrim{Stream: s.ID, Before: 1 << 40})
		floods[0].decode(floods[0].next(), &wire.Trimmed{})
		for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			sessions, _, named := r.inUse()
			opened := 0
			r.inLoop(func() { opened, _ = r.node.committer.Table().Producers() })
			if opened == 1 && sessions == 0 && named == 0 {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("%d sessions are remembered after all that used producers have gone, %d named producers", sessions, named)
			}
		}
	}
	// None of theirs is in use: they make room.
	for range MaxProducersOfSession {
		d := r.dial()
		d.producer(&wire.ProducerOpen{Window: stream.MaxWindow})
		d.leave()
	}
	r.close()
}

// A dead client's ProducerOpen does not take a named producer from who opened it since.
func TestP4_TheDeadTakeNoNamedProducer(t *testing.T) {
	r := newRig(t)
	old, fresh := r.dial(), r.dial()
	s := fresh.create("s")
	id := fresh.openNamed("source").ID
	r.inLoop(func() { r.node.loop.gone[old.s] = struct{}{} })
	old.openNamed("source")
	old.send(named(s.ID, id, 1, 10))
	if e := old.refusal(); e.Code != wire.CodeProducerExpired {
		t.Fatalf("what the dead left behind: %v", e.Code)
	}
	fresh.send(named(s.ID, id, 1, 20))
	fresh.acks()
	r.close()
}
