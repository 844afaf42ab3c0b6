package stream

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
)

// producing is a session producer's end in a test.
type producing struct {
	w  *world
	id ProducerID
}

func (p producing) send(sequence, acked uint64, list ...Entry) (Result, error) {
	p.w.t.Helper()
	return p.w.append(&Batch{Producer: p.id, Sequence: sequence, Acked: acked, Entries: list})
}

func TestSessionProducerAnswersAResendWithTheSameResult(t *testing.T) {
	w := newWorld(t, smallRing)
	a, b := w.stream("a"), w.stream("b")
	p := producing{w, w.session(16)}
	first, err := p.send(1, 0, Entry{Stream: a}, Entry{Stream: b}, Entry{Stream: a})
	w.must(err)
	second, err := p.send(2, 0, Entry{Stream: b})
	w.must(err)
	w.must(second.want(false, 2, Placed{b, 1, 1}))
	check := func(when string) {
		t.Helper()
		state, head := w.state(), w.log.Head()
		again, err := p.send(1, 0, Entry{Stream: a}, Entry{Stream: b}, Entry{Stream: a})
		w.must(err)
		if err := again.want(true, 2, Placed{a, 0, 2}, Placed{b, 0, 1}); err != nil || again.Position != first.Position {
			t.Errorf("%s: sequence 1 again: %v, position %d, want %d", when, err, again.Position, first.Position)
		}
		again, err = p.send(2, 1, Entry{Stream: b})
		w.must(err)
		if err := again.want(true, 2, Placed{b, 1, 1}); err != nil || again.Position != second.Position {
			t.Errorf("%s: sequence 2 again: %v, position %d, want %d", when, err, again.Position, second.Position)
		}
		if !bytes.Equal(w.state(), state) || w.log.Head() != head {
			t.Errorf("%s: a resend changed the state or the log", when)
		}
	}
	check("before anything is durable")
	w.sync()
	check("durable")
	w.crash() // applies the batches
	check("recovered from the batches")
	w.crash() // decodes the checkpoint that the start wrote
	check("recovered from a checkpoint")
	third, err := p.send(3, 3, Entry{Stream: a})
	w.must(err)
	w.must(third.want(false, 3, Placed{a, 2, 1}))
}

// want compares what a Result says beside its position.
func (r *Result) want(duplicate bool, last uint64, placed ...Placed) error {
	if r.Duplicate != duplicate || r.LastSequence != last || !slices.Equal(r.Placed, placed) {
		return errors.New("another result")
	}
	return nil
}

func TestSessionProducerSequencesAreDense(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	p := producing{w, w.session(4)}
	for _, sequence := range []uint64{2, 3, 1 << 63} {
		_, err := p.send(sequence, 0, Entry{Stream: a})
		if r := refusalOf(t, err, ErrOutOfSequence); r.Actual != 0 || r.Logged {
			t.Errorf("sequence %d: %+v, want actual 0, not logged", sequence, r)
		}
	}
	_, err := p.send(1, 0, Entry{Stream: a})
	w.must(err)
	_, err = p.send(3, 0, Entry{Stream: a})
	if r := refusalOf(t, err, ErrOutOfSequence); r.Actual != 1 {
		t.Errorf("actual %d, want 1", r.Actual)
	}
}

func TestSessionProducerForgetsWhatWasAcked(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	p := producing{w, w.session(4)}
	for sequence := range uint64(4) {
		_, err := p.send(sequence+1, 0, Entry{Stream: a})
		w.must(err)
	}
	_, err := p.send(5, 1, Entry{Stream: a}) // acked 1: nothing below it
	if r := refusalOf(t, err, ErrWindowExceeded); r.Actual != 4 || r.Limit != 4 || r.Logged {
		t.Errorf("%+v, want 4 of 4 slots, not logged", r)
	}
	_, err = p.send(5, 3, Entry{Stream: a})
	w.must(err)
	_, err = p.send(2, 0, Entry{Stream: a})
	if r := refusalOf(t, err, ErrSequenceExpired); r.Actual != 3 {
		t.Errorf("the oldest sequence is %d, want 3", r.Actual)
	}
	again, err := p.send(3, 0, Entry{Stream: a}) // a lower acked brings nothing back
	w.must(err)
	w.must(again.want(true, 5, Placed{a, 2, 1}))
	_, err = p.send(6, 6, Entry{Stream: a}) // everything but itself
	w.must(err)
	_, err = p.send(5, 0, Entry{Stream: a})
	refusalOf(t, err, ErrSequenceExpired)
}

func TestABatchTakesASlotPerStream(t *testing.T) {
	w := newWorld(t, smallRing)
	ids := []ID{w.stream("a"), w.stream("b"), w.stream("c"), w.stream("d")}
	p := producing{w, w.session(3)}
	over := func(n int) (list []Entry) {
		for i := range 2 * n {
			list = append(list, Entry{Stream: ids[i%n]})
		}
		return list
	}
	_, err := p.send(1, 0, over(4)...)
	if r := refusalOf(t, err, ErrTooLarge); r.Actual != 4 || r.Limit != 3 || r.Logged {
		t.Errorf("%+v, want 4 slots of 3", r)
	}
	_, err = p.send(1, 0, over(2)...)
	w.must(err)
	_, err = p.send(2, 1, over(2)...)
	if r := refusalOf(t, err, ErrWindowExceeded); r.Actual != 2 {
		t.Errorf("%d slots in use, want 2", r.Actual)
	}
	_, err = p.send(2, 1, over(1)...)
	w.must(err)
	_, err = p.send(3, 2, over(2)...)
	w.must(err)
}

func TestARefusedBatchUsesUpItsSequenceAndIsRefusedAgain(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	p := producing{w, w.session(4)}
	_, err := p.send(1, 0, Entry{Stream: a})
	w.must(err)
	_, err = p.send(2, 0, Entry{Stream: a}, Entry{Stream: a, HasExpect: true, Expect: 7})
	refused := refusalOf(t, err, ErrOffsetMismatch)
	if !refused.Logged || refused.Duplicate || refused.Entry != 1 || refused.Actual != 2 || refused.Position == 0 ||
		w.c.DecidedAt() <= refused.Position {
		t.Errorf("%+v, decided at %d", refused, w.c.DecidedAt())
	}
	// What was missing comes true, but the sequence is bound to its answer.
	for range 6 {
		_, err = w.append(&Batch{Entries: entries(a, 1)})
		w.must(err)
	}
	w.sync()
	for _, when := range []string{"running", "recovered from the item", "recovered from a checkpoint"} {
		_, err = p.send(2, 0, Entry{Stream: a}, Entry{Stream: a, HasExpect: true, Expect: 7})
		r := refusalOf(t, err, ErrOffsetMismatch)
		if !r.Logged || !r.Duplicate || r.Entry != 1 || r.Actual != 2 || r.Position != refused.Position {
			t.Errorf("%s: again %+v, at first %+v", when, r, refused)
		}
		w.crash()
	}
	placed, err := p.send(3, 2, Entry{Stream: a, HasExpect: true, Expect: 7})
	w.must(err)
	w.must(placed.want(false, 3, Placed{a, 7, 1}))
}

func TestEveryPreconditionIsLoggedForASessionProducer(t *testing.T) {
	w, a, sealed, token, gone := preconditionWorld(t)
	p := producing{w, w.session(8)}
	for i, c := range []struct {
		entry Entry
		err   error
	}{
		{Entry{Stream: 99}, ErrStreamNotFound},
		{Entry{Stream: gone}, ErrStreamDeleted},
		{Entry{Stream: sealed}, ErrSealed},
		{Entry{Stream: a, HasExpect: true}, ErrOffsetMismatch},
		{Entry{Stream: token}, ErrTokenMismatch},
	} {
		_, err := p.send(uint64(i+1), 0, Entry{Stream: a}, c.entry)
		first := refusalOf(t, err, c.err)
		_, err = p.send(uint64(i+1), 0, Entry{Stream: a}, c.entry)
		again := refusalOf(t, err, c.err)
		if !first.Logged || !again.Duplicate || again.Entry != 1 || again.Actual != first.Actual {
			t.Errorf("%v: %+v, again %+v", c.err, first, again)
		}
	}
	info, err := w.c.ProducerByID(p.id)
	w.must(err)
	if info.Last != 5 {
		t.Errorf("last sequence %d, want 5", info.Last)
	}
}

func TestARefusalNeedsASlotToo(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	p := producing{w, w.session(1)}
	_, err := p.send(1, 0, Entry{Stream: a, HasExpect: true, Expect: 1})
	refusalOf(t, err, ErrOffsetMismatch)
	_, err = p.send(2, 0, Entry{Stream: a, HasExpect: true, Expect: 1})
	if r := refusalOf(t, err, ErrWindowExceeded); r.Logged {
		t.Error("logged")
	}
	_, err = p.send(2, 2, Entry{Stream: a, HasExpect: true, Expect: 1})
	refusalOf(t, err, ErrOffsetMismatch)
}

func TestResultRingIsAQueue(t *testing.T) {
	rng := random(t)
	var ring resultRing
	var want []uint64
	for sequence := range uint64(20_000) {
		if rng.IntN(3) == 0 {
			n := rng.IntN(len(want) + 1)
			if rng.IntN(4) > 0 {
				n = min(n, 2)
			}
			ring.drop(n)
			want = want[n:]
		}
		ring.push(resultSlot{sequence: sequence})
		want = append(want, sequence)
		if ring.used != len(want) || len(ring.slots) > 2*20_000 {
			t.Fatalf("%d slots in use of %d, want %d", ring.used, len(ring.slots), len(want))
		}
		i := rng.IntN(len(want))
		if ring.at(i).sequence != want[i] || ring.search(want[i]) != i || ring.search(want[0]) != 0 || ring.search(sequence+1) != len(want) {
			t.Fatalf("slot %d has sequence %d, want %d", i, ring.at(i).sequence, want[i])
		}
	}
}

func TestNamedProducer(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	n, created, err := w.c.OpenNamedProducer("source")
	w.must(err)
	if !created || n.ID.IsSession() || n.Last != 0 {
		t.Errorf("created %v: %+v", created, n)
	}
	p := producing{w, n.ID}
	r, err := p.send(1000, 0, Entry{Stream: a})
	w.must(err)
	w.must(r.want(false, 1000, Placed{a, 0, 1}))
	_, err = p.send(2000, 0, Entry{Stream: a, HasExpect: true, Expect: 5})
	if refusal := refusalOf(t, err, ErrOffsetMismatch); refusal.Logged {
		t.Error("a named producer's refusal is not logged and uses up nothing")
	}
	for _, sequence := range []uint64{1, 999, 1000} {
		r, err = p.send(sequence, 0, Entry{Stream: a})
		w.must(err)
		w.must(r.want(true, 1000))
	}
	r, err = p.send(2000, 0, Entry{Stream: a, HasExpect: true, Expect: 1})
	w.must(err)
	w.must(r.want(false, 2000, Placed{a, 1, 1}))
	w.sync()
	w.crash()
	w.crash()
	info, err := w.c.Producer("source")
	w.must(err)
	if info.ID != n.ID || info.Last != 2000 || info.Position != r.Position {
		t.Errorf("after two crashes %+v, want last 2000 at %d", info, r.Position)
	}
	if again, created, err := w.c.OpenNamedProducer("source"); err != nil || created || again.ID != n.ID {
		t.Errorf("opened again: %+v, %v, %v", again, created, err)
	}

	w.must(w.c.RemoveProducer("source"))
	refusalOf(t, w.c.RemoveProducer("source"), ErrProducerNotFound)
	_, err = w.c.Producer("source")
	refusalOf(t, err, ErrProducerNotFound)
	_, err = p.send(3000, 0, Entry{Stream: a})
	refusalOf(t, err, ErrProducerNotFound)
	anew, created, err := w.c.OpenNamedProducer("source")
	w.must(err)
	if !created || anew.ID == n.ID || anew.Last != 0 {
		t.Errorf("made anew: %+v", anew)
	}
}

func TestTheLeastRecentlyUsedIdleSessionProducerExpires(t *testing.T) {
	w := newWorld(t, smallRing)
	w.maxState = 2 * (4*sessionBound(8) + 100) // room for 4 windows of 8 in the half that is theirs
	w.crash()
	a := w.stream("a")
	var ids []ProducerID
	for range 4 {
		ids = append(ids, w.session(8))
	}
	_, err := w.c.OpenSessionProducer(8, 1)
	if r := refusalOf(t, err, ErrCheckpointFull); r.Limit != w.maxState/2 {
		t.Errorf("%+v, want limit %d", r, w.maxState/2)
	}
	_, err = w.append(&Batch{Producer: ids[0], Sequence: 1, Entries: entries(a, 1)}) // used after all others
	w.must(err)
	for _, id := range ids {
		w.c.Detach(id)
	}
	_, err = w.c.Attach(ids[1])
	w.must(err)
	exists := func(id ProducerID) bool { _, err := w.c.ProducerByID(id); return err == nil }

	fifth := w.session(8) // expires the third: the first was used later, the second is attached
	if !exists(ids[0]) || !exists(ids[1]) || exists(ids[2]) || !exists(ids[3]) {
		t.Error("not the least recently used idle producer has expired")
	}
	_, err = w.append(&Batch{Producer: ids[2], Sequence: 1, Entries: entries(a, 1)})
	refusalOf(t, err, ErrProducerExpired)
	_, err = w.c.Attach(ids[2])
	refusalOf(t, err, ErrProducerExpired)
	w.sync()
	w.crash() // nobody is attached now
	if !exists(ids[0]) || !exists(ids[1]) || exists(ids[2]) || !exists(ids[3]) || !exists(fifth) {
		t.Error("other producers after a crash")
	}
	big, err := w.c.OpenSessionProducer(24, 7) // takes the place of three
	w.must(err)
	if exists(ids[1]) || exists(ids[3]) || !exists(ids[0]) && !exists(fifth) || !exists(big.ID) {
		t.Error("not the oldest have expired")
	}
	if w.c.Table().EncodedBound() > w.maxState {
		t.Errorf("bound %d beyond %d", w.c.Table().EncodedBound(), w.maxState)
	}
}

func TestOpeningDoesNotExpireInVain(t *testing.T) {
	w := newWorld(t, smallRing)
	w.maxState = 2 * (2*sessionBound(8) + 100)
	w.crash()
	idle, live := w.session(8), w.session(8)
	w.c.Detach(idle)
	_, err := w.c.OpenSessionProducer(16, 1) // even without the idle one there is no room
	refusalOf(t, err, ErrCheckpointFull)
	if _, err := w.c.ProducerByID(idle); err != nil {
		t.Errorf("the idle producer has expired for nothing: %v", err)
	}
	w.c.Detach(live)
	_, err = w.c.OpenSessionProducer(16, 1)
	w.must(err)
}

func TestSessionProducerWindows(t *testing.T) {
	w := newWorld(t, 0)
	for _, c := range []struct{ asked, got uint32 }{{0, DefaultWindow}, {1, 1}, {MaxWindow, MaxWindow}} {
		p, err := w.c.OpenSessionProducer(c.asked, 5)
		w.must(err)
		if p.Window != c.got || !p.ID.IsSession() {
			t.Errorf("asked for %d: %+v, want a window of %d", c.asked, p, c.got)
		}
	}
	_, err := w.c.OpenSessionProducer(MaxWindow+1, 5)
	if r := refusalOf(t, err, ErrBadRequest); r.Actual != MaxWindow+1 || r.Limit != MaxWindow {
		t.Errorf("%+v", r)
	}
}

func TestTwoSessionProducersNeverShareAnID(t *testing.T) {
	w := newWorld(t, smallRing)
	seen := map[ProducerID]bool{}
	for range 5 { // the random source is stuck
		p, err := w.c.OpenSessionProducer(1, 1<<64-1)
		w.must(err)
		if seen[p.ID] || !p.ID.IsSession() {
			t.Errorf("id %x again, or not a session's", p.ID)
		}
		seen[p.ID] = true
	}
}

// TestP12_FullUsesUpNothing: a producer that is refused for a full log goes on with
// the same sequence once there is room, and later sequences wait for it.
func TestP12_FullUsesUpNothing(t *testing.T) {
	w := newWorld(t, 2<<20)
	a := w.stream("a")
	p := producing{w, w.session(1000)}
	record := Entry{Stream: a, Payload: make([]byte, 10_000)}
	sequence := uint64(0)
	var err error
	for err == nil {
		sequence++
		_, err = p.send(sequence, sequence, record)
	}
	if !errors.Is(err, ringwal.ErrFull) {
		t.Fatal(err)
	}
	state := w.state()
	_, err = p.send(sequence+1, sequence, record)
	if r := refusalOf(t, err, ErrOutOfSequence); r.Actual != sequence-1 {
		t.Errorf("the sequence after the refused one: last is %d, want %d", r.Actual, sequence-1)
	}
	_, err = p.send(sequence, sequence, Entry{Stream: a, Payload: record.Payload, HasExpect: true, Expect: 1})
	if !errors.Is(err, ringwal.ErrFull) && !errors.Is(err, ErrOffsetMismatch) {
		t.Errorf("a refusal in a full log: %v", err)
	}
	if errors.Is(err, ringwal.ErrFull) && !bytes.Equal(w.state(), state) {
		t.Error("the refused batches changed the state")
	}
	_, err = w.c.Trim(a, 1<<62)
	w.must(err)
	w.trim()
	info, err := w.c.ProducerByID(p.id)
	w.must(err)
	placed, err := p.send(info.Last+1, info.Last, record)
	w.must(err)
	if placed.Duplicate || placed.LastSequence != info.Last+1 {
		t.Errorf("%+v, want sequence %d", placed, info.Last+1)
	}
}

// A full log refuses a session producer before any other has expired for it.
func TestAFullLogExpiresNothing(t *testing.T) {
	for name := range 8 { // so that the frame fills up in different steps
		w := newWorld(t, smallRing)
		w.maxState = 2 * (4*sessionBound(1) + 100)
		w.crash()
		w.stream(strings.Repeat("x", 1+8*name))
		for range 4 {
			w.c.Detach(w.session(1))
		}
		for n := uint64(1); ; n++ {
			window := uint32(1)
			if n%5 == 0 { // four have to expire for this one
				window = 4
			}
			var opened ProducerInfo
			state := w.state()
			err := w.retry(func() (err error) { opened, err = w.c.OpenSessionProducer(window, n); return err })
			if errors.Is(err, ringwal.ErrFull) {
				if !bytes.Equal(w.state(), state) {
					t.Errorf("with a name of %d bytes: refused, and the state has changed", 1+8*name)
				}
				break
			}
			w.must(err)
			w.c.Detach(opened.ID)
		}
	}
}

// What has expired when the log must be driven on first stays so: the same call goes on
// with the next, and opens once there is room.
func TestOpeningGoesOnAfterAWait(t *testing.T) {
	w := newWorld(t, smallRing)
	w.maxState = 2 * (4*sessionBound(8) + 100)
	w.crash()
	a := w.stream("a")
	var ids []ProducerID
	for range 4 {
		ids = append(ids, w.session(8))
		w.c.Detach(ids[len(ids)-1])
	}
	// Up to the window, with place for two expiries in the open frame.
	fill := func(size int) error {
		var r Result
		return w.c.Append(1, &Batch{Entries: []Entry{{Stream: a, Payload: make([]byte, size)}}}, &r)
	}
	for _, size := range []int{32 << 10, 4 << 10, 64, 16} {
		for fill(size) == nil {
		}
	}
	_, err := w.c.OpenSessionProducer(4*8, 99)
	if !errors.Is(err, ringwal.ErrWait) {
		t.Fatalf("opened beyond the window: %v", err)
	}
	if _, sessions := w.c.Table().Producers(); sessions == 0 || sessions == 4 {
		t.Fatalf("%d session producers are left: that tests nothing", sessions)
	}
	var opened ProducerInfo
	w.must(w.retry(func() (err error) { opened, err = w.c.OpenSessionProducer(4*8, 99); return err }))
	if _, sessions := w.c.Table().Producers(); sessions != 1 || opened.Window != 32 {
		t.Errorf("%d session producers, opened %+v", sessions, opened)
	}
	w.sync()
	w.crash()
	if _, sessions := w.c.Table().Producers(); sessions != 1 {
		t.Errorf("%d session producers after a crash", sessions)
	}
}
