package stream

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
)

// run drives one world and its model through random operations.
type run struct {
	*world
	rng    *rand.Rand
	model  *model
	saved  []savedState
	acked  map[[2]uint64]uint64 // P4: (stream, offset) → payload, of durable records
	unsure []unsureRecord
	serial uint64
}

type savedState struct {
	decided uint64
	model   *model
	state   []byte
}

type unsureRecord struct {
	position uint64
	at       [2]uint64
	serial   uint64
}

var histories = flag.Int("histories", 40, "random histories of TestP4_TableFollowsTheModel")

// TestP4_TableFollowsTheModel runs random operations with crashes between them. Every
// answer must be the model's; after every crash the state must be the one at the
// durable position, whether it comes from items, a checkpoint or both; no offset that
// was durable is given to another record.
func TestP4_TableFollowsTheModel(t *testing.T) {
	rng := random(t)
	n := *histories
	if testing.Short() {
		n = min(n, 5)
	}
	for range n {
		r := &run{world: newWorld(t, 2<<20), rng: rng, acked: map[[2]uint64]uint64{}}
		r.maxState = 2 * (5*sessionBound(6) + 10)
		r.maxState += 30 * streamBound(2)
		r.crash()
		r.model = newModel(r.maxState / 2)
		r.save()
		for range 400 {
			r.step()
			if t.Failed() {
				return
			}
		}
	}
}

func (r *run) step() {
	switch r.rng.IntN(20) {
	case 0:
		r.create()
	case 1:
		r.open()
	case 2:
		r.control()
	case 3:
		r.trimStream()
	case 4:
		r.attach()
	case 5:
		if r.rng.IntN(3) == 0 {
			r.crashAndCompare()
		}
	case 6:
		r.trim()
		r.settle()
		if !r.directory.sameAs(r.c.Table()) {
			r.t.Error("everything is durable and the directory shows other streams than the table")
		}
	case 7, 8:
		r.log.CloseFrame(0)
		r.write(r.rng.IntN(3))
		r.settle()
	case 9:
		if err := r.c.Checkpoint(); err != nil && !errors.Is(err, ringwal.ErrWait) && !errors.Is(err, ringwal.ErrFull) {
			r.t.Fatal(err)
		}
	default:
		r.appendBatch()
	}
}

// passed reports whether an operation was carried out, and not put off by the log.
func (r *run) passed(err error) bool {
	if errors.Is(err, ringwal.ErrFull) {
		r.trim()
		r.settle()
		return false
	}
	return true
}

func (r *run) save() {
	r.saved = append(r.saved, savedState{r.c.DecidedAt(), r.model.clone(), r.state()})
}

// settle forgets saved states that durable has overtaken and checks what became
// durable against P4.
func (r *run) settle() {
	durable := r.log.Durable()
	n := 0
	for n+1 < len(r.saved) && r.saved[n+1].decided <= durable {
		n++
	}
	r.saved = r.saved[n:]
	kept := r.unsure[:0]
	for _, u := range r.unsure {
		if u.position >= durable {
			kept = append(kept, u)
			continue
		}
		if serial, given := r.acked[u.at]; given {
			r.t.Errorf("stream %d offset %d was record %d and is record %d now", u.at[0], u.at[1], serial, u.serial)
		}
		r.acked[u.at] = u.serial
	}
	r.unsure = kept
}

func (r *run) crashAndCompare() {
	r.t.Helper()
	r.settle()
	r.unsure = r.unsure[:0]
	want := r.saved[0]
	r.crash()
	for id, p := range want.model.sessions {
		p.live = 0
		want.model.sessions[id] = p
	}
	r.model, r.saved = want.model, nil
	r.save()
	if !bytes.Equal(r.saved[0].state, want.state) {
		r.t.Errorf("recovered\n     %x\nwant %x", r.saved[0].state, want.state)
	}
	r.compare()
}

// compare holds the table to the model in everything that requests can see.
func (r *run) compare() {
	r.t.Helper()
	table := r.c.Table()
	if table.Streams() != len(r.model.streams) {
		r.t.Errorf("%d streams, the model has %d", table.Streams(), len(r.model.streams))
	}
	for id, want := range r.model.streams {
		s, err := r.c.Stat(id)
		got := modelStream{s.Name, s.First, s.Next, s.Created, s.Last, s.Sealed, string(s.Token)}
		if err != nil || got != want {
			r.t.Errorf("stream %d: %+v, %v, the model has %+v", id, got, err, want)
		}
	}
	for name, want := range r.model.named {
		if p, err := r.c.Producer(name); err != nil || (modelNamed{p.ID, p.Last}) != want {
			r.t.Errorf("producer %q: %+v, %v, the model has %+v", name, p, err, want)
		}
	}
	named, sessions := table.Producers()
	if named != len(r.model.named) || sessions != len(r.model.sessions) {
		r.t.Errorf("%d named and %d session producers, the model has %d and %d", named, sessions, len(r.model.named), len(r.model.sessions))
	}
	for id, want := range r.model.sessions {
		if p, err := r.c.ProducerByID(id); err != nil || p.Last != want.last || int(p.Window) != want.window {
			r.t.Errorf("session producer %x: %+v, %v, the model has %+v", id, p, err, want)
		}
	}
	if n := uint64(len(r.state())); n > table.EncodedBound() || table.EncodedBound() > r.maxState {
		r.t.Errorf("%d bytes of state, bound %d, limit %d", n, table.EncodedBound(), r.maxState)
	}
	again, err := DecodeCheckpoint(r.state(), r.maxState)
	if err != nil || again.bound != table.bound || again.sessionBound != table.sessionBound ||
		again.streams.filled != table.streams.filled || !table.EqualCheckpoint(again.EncodeCheckpoint(nil)) {
		r.t.Errorf("a checkpoint does not give the state back: %v", err)
	}
}

// changed is called after an operation that may have changed the state.
func (r *run) changed() {
	r.t.Helper()
	r.compare()
	r.save()
}

func (r *run) anyStream() ID { return ID(r.rng.Uint64N(uint64(r.model.nextID) + 1)) }

func (r *run) anyToken() []byte {
	return [][]byte{nil, nil, []byte("x"), []byte("y")}[r.rng.IntN(4)]
}

func (r *run) anyEntry() Entry {
	r.serial++
	e := Entry{Stream: r.anyStream(), Payload: fmt.Append(make([]byte, r.rng.IntN(600)), r.serial)}
	s := r.model.streams[e.Stream]
	if e.Token = []byte(s.token); r.rng.IntN(8) == 0 {
		e.Token = r.anyToken()
	}
	if e.HasExpect = r.rng.IntN(3) == 0; e.HasExpect {
		e.Expect = s.next
		if r.rng.IntN(3) == 0 {
			e.Expect += r.rng.Uint64N(3)
		}
	}
	return e
}

func (r *run) anyProducer() (ProducerID, modelSession) {
	ids := slices.Sorted(maps.Keys(r.model.sessions))
	names := slices.Sorted(maps.Keys(r.model.named))
	switch {
	case r.rng.IntN(20) == 0:
		return sessionProducerBit | ProducerID(r.rng.Uint64N(50)), modelSession{}
	case r.rng.IntN(3) == 0 && len(names) > 0:
		return r.model.named[names[r.rng.IntN(len(names))]].id, modelSession{}
	case r.rng.IntN(3) > 0 && len(ids) > 0:
		id := ids[r.rng.IntN(len(ids))]
		return id, r.model.sessions[id]
	}
	return 0, modelSession{}
}

func (r *run) appendBatch() {
	b := &Batch{}
	for range 1 + r.rng.IntN(4) {
		b.Entries = append(b.Entries, r.anyEntry())
	}
	var p modelSession
	if b.Producer, p = r.anyProducer(); b.Producer.IsSession() {
		b.Sequence = p.last + 1
		if r.rng.IntN(4) == 0 {
			b.Sequence = 1 + r.rng.Uint64N(p.last+3)
		}
		b.Acked = r.rng.Uint64N(b.Sequence + 1)
	} else if b.Producer != 0 {
		b.Sequence = 1 + r.rng.Uint64N(uint64(r.model.clock)*3+10)
	}
	r.nowNS += int64(r.rng.IntN(5)) - 1
	result, err := r.append(b)
	if !r.passed(err) {
		return
	}
	want := r.model.append(r.nowNS, b)
	got := modelAnswer{placed: result.Placed, duplicate: result.Duplicate, last: result.LastSequence}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		got = modelAnswer{err: refusal.Err, entry: refusal.Entry, actual: refusal.Actual, logged: refusal.Logged,
			duplicate: refusal.Duplicate, last: want.last}
	} else if err != nil {
		r.t.Fatal(err)
	}
	if !slices.Equal(got.placed, want.placed) || !errors.Is(got.err, want.err) || got.entry != want.entry || got.actual != want.actual ||
		got.logged != want.logged || got.duplicate != want.duplicate || got.last != want.last {
		r.t.Errorf("batch %+v\n got %+v\nwant %+v", b, got, want)
	}
	if err == nil && !result.Duplicate {
		next := map[ID]uint64{}
		for _, placed := range result.Placed {
			next[placed.Stream] = placed.First
		}
		for _, e := range b.Entries {
			r.unsure = append(r.unsure, unsureRecord{result.Position, [2]uint64{uint64(e.Stream), next[e.Stream]}, r.serial})
			next[e.Stream]++
		}
	}
	r.changed()
}

func (r *run) create() {
	name := string(rune('a' + r.rng.IntN(12)))
	if r.rng.IntN(3) == 0 {
		var got ProducerInfo
		err := r.retry(func() (err error) { got, _, err = r.c.OpenNamedProducer(name); return err })
		if !r.passed(err) {
			return
		}
		r.must(err)
		if _, found := r.model.named[name]; !found {
			r.model.named[name] = modelNamed{id: r.model.nextName}
			r.model.nextName++
		}
		if got.ID != r.model.named[name].id {
			r.t.Errorf("producer %q is %d, the model has %d", name, got.ID, r.model.named[name].id)
		}
		r.changed()
		return
	}
	var created bool
	err := r.retry(func() (err error) { _, created, err = r.c.CreateStream(r.nowNS, name); return err })
	if !r.passed(err) {
		return
	}
	r.must(err)
	exists := false
	for _, s := range r.model.streams {
		exists = exists || s.name == name
	}
	if created == exists {
		r.t.Errorf("stream %q created %v, existed %v", name, created, exists)
	}
	if !exists {
		r.model.streams[r.model.nextID] = modelStream{name: name, created: r.nowNS}
		r.model.nextID++
	}
	r.changed()
}

func (r *run) open() {
	window, random := 1+r.rng.IntN(6), r.rng.Uint64N(1000)
	var got ProducerInfo
	err := r.retry(func() (err error) { got, err = r.c.OpenSessionProducer(uint32(window), random); return err })
	if !r.passed(err) {
		return
	}
	if opened := r.model.open(got.ID, window); opened != (err == nil) || err != nil && !errors.Is(err, ErrCheckpointFull) {
		r.t.Errorf("open: %v, the model says %v", err, opened)
	}
	r.changed()
}

func (r *run) attach() {
	ids := slices.Sorted(maps.Keys(r.model.sessions))
	if len(ids) == 0 {
		return
	}
	id := ids[r.rng.IntN(len(ids))]
	p := r.model.sessions[id]
	if r.rng.IntN(4) == 0 {
		_, err := r.c.Attach(id)
		r.must(err)
		p.live++
	} else {
		r.c.Detach(id)
		p.live = max(0, p.live-1)
	}
	r.model.sessions[id] = p
}

// control seals, deletes, or sets the token of any stream, or removes a producer.
func (r *run) control() {
	id := r.anyStream()
	s, want := r.model.streams[id], r.model.missing(id)
	var err error
	switch r.rng.IntN(8) {
	case 0:
		err = r.retry(func() error { _, err := r.c.Seal(id); return err })
		s.sealed = true
	case 1, 2:
		if err = r.retry(func() error { return r.c.Delete(id) }); err == nil {
			delete(r.model.streams, id)
			r.changed()
			return
		}
	case 3:
		name := string(rune('a' + r.rng.IntN(12)))
		if _, found := r.model.named[name]; !found {
			want = ErrProducerNotFound
		} else {
			want = nil
		}
		if err = r.retry(func() error { return r.c.RemoveProducer(name) }); err == nil {
			delete(r.model.named, name)
		}
		id = 0
	default:
		old, token := r.anyToken(), r.anyToken()
		if want == nil && s.token != string(old) {
			want = ErrTokenMismatch
		}
		err = r.retry(func() error { _, err := r.c.SetToken(id, old, token); return err })
		s.token = string(token)
	}
	if !r.passed(err) {
		return
	}
	if !errors.Is(err, want) {
		r.t.Errorf("stream %d: %v, the model says %v", id, err, want)
	}
	if err == nil && id != 0 {
		r.model.streams[id] = s
	}
	r.changed()
}

func (r *run) trimStream() {
	id := r.anyStream()
	s, want := r.model.streams[id], r.model.missing(id)
	before := r.rng.Uint64N(s.next + 3)
	var first uint64
	err := r.retry(func() (err error) { first, err = r.c.Trim(id, before); return err })
	if !r.passed(err) {
		return
	}
	if !errors.Is(err, want) {
		r.t.Errorf("trim of stream %d: %v, the model says %v", id, err, want)
	}
	if err == nil {
		if s.first = max(s.first, min(before, s.next)); first != s.first {
			r.t.Errorf("trim of stream %d to %d: %d, the model says %d", id, before, first, s.first)
		}
		r.model.streams[id] = s
	}
	r.changed()
}
