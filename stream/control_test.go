package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
)

func TestCreateIsIdempotentByName(t *testing.T) {
	w := newWorld(t, smallRing)
	first, created, err := w.c.CreateStream(5, "orders")
	w.must(err)
	if !created || first.ID != 1 || first.Created != 5 || first.Next != 0 || first.Name != "orders" {
		t.Errorf("created %v: %+v", created, first)
	}
	again, created, err := w.c.CreateStream(6, "orders")
	w.must(err)
	if created || again.ID != first.ID || again.Created != 5 {
		t.Errorf("again: created %v, %+v", created, again)
	}
	_, _, err = w.c.CreateStream(6, "/orders")
	refusalOf(t, err, ErrBadName)
	_, _, err = w.c.OpenNamedProducer("")
	refusalOf(t, err, ErrBadName)
}

func TestSeal(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	_, err := w.append(&Batch{Entries: entries(a, 2)})
	w.must(err)
	for range 2 { // sealing again changes nothing
		info, err := w.c.Seal(a)
		w.must(err)
		if !info.Sealed || info.Next != 2 {
			t.Errorf("%+v", info)
		}
	}
	head := w.log.Head()
	if _, err := w.c.Seal(a); err != nil || w.log.Head() != head {
		t.Errorf("sealing again wrote something, or %v", err)
	}
	_, err = w.append(&Batch{Entries: entries(a, 1)})
	refusalOf(t, err, ErrSealed)
	_, err = w.c.Seal(77)
	refusalOf(t, err, ErrStreamNotFound)
}

func TestTokenIsSetByCompareAndSet(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	one, two := []byte("one"), []byte("two")
	_, err := w.c.SetToken(a, two, one)
	if r := refusalOf(t, err, ErrTokenMismatch); r.Actual != 0 {
		t.Errorf("actual %d, want 0 for no token", r.Actual)
	}
	info, err := w.c.SetToken(a, nil, one)
	w.must(err)
	if string(info.Token) != "one" {
		t.Errorf("token %q", info.Token)
	}
	_, err = w.c.SetToken(a, nil, two)
	if r := refusalOf(t, err, ErrTokenMismatch); r.Actual != xxhash.Sum64String("one") {
		t.Errorf("actual %x, want the xxhash64 of the token", r.Actual)
	}
	one[0] = 'X' // the committer keeps a copy
	_, err = w.append(&Batch{Entries: []Entry{{Stream: a, Token: []byte("one")}}})
	w.must(err)
	_, err = w.c.SetToken(a, []byte("one"), two)
	w.must(err)
	_, err = w.append(&Batch{Entries: []Entry{{Stream: a, Token: []byte("one")}}})
	refusalOf(t, err, ErrTokenMismatch)
	_, err = w.c.SetToken(a, two, make([]byte, MaxTokenBytes+1))
	if r := refusalOf(t, err, ErrBadRequest); r.Limit != MaxTokenBytes {
		t.Errorf("%+v", r)
	}
	_, err = w.c.SetToken(a, two, make([]byte, MaxTokenBytes))
	w.must(err)
	_, err = w.c.SetToken(a, make([]byte, MaxTokenBytes), nil)
	w.must(err)
	_, err = w.append(&Batch{Entries: entries(a, 1)})
	w.must(err)
	if string(info.Token) != "one" {
		t.Errorf("a token handed out before has become %q", info.Token)
	}
}

func TestTrimReturnsTheEffectivePointAndNeverLowersIt(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	_, err := w.append(&Batch{Entries: entries(a, 10)})
	w.must(err)
	for _, c := range []struct{ before, want uint64 }{{0, 0}, {4, 4}, {2, 4}, {4, 4}, {11, 10}, {1<<64 - 1, 10}, {0, 10}} {
		first, err := w.c.Trim(a, c.before)
		w.must(err)
		info, err := w.c.Stat(a)
		w.must(err)
		if first != c.want || info.First != c.want || info.Next != 10 {
			t.Errorf("Trim(%d) = %d, stream [%d, %d), want %d", c.before, first, info.First, info.Next, c.want)
		}
	}
	_, err = w.append(&Batch{Entries: []Entry{{Stream: a, HasExpect: true, Expect: 10}}})
	w.must(err)
	_, err = w.c.Trim(2, 1)
	refusalOf(t, err, ErrStreamNotFound)
}

func TestDeletedStreamsAndTheirNames(t *testing.T) {
	w := newWorld(t, smallRing)
	a := w.stream("a")
	_, err := w.append(&Batch{Entries: entries(a, 3)})
	w.must(err)
	w.must(w.c.Delete(a))
	for name, err := range map[string]error{
		"delete": w.c.Delete(a),
		"stat":   func() error { _, err := w.c.Stat(a); return err }(),
		"seal":   func() error { _, err := w.c.Seal(a); return err }(),
		"trim":   func() error { _, err := w.c.Trim(a, 1); return err }(),
		"token":  func() error { _, err := w.c.SetToken(a, nil, nil); return err }(),
		"append": func() error { _, err := w.append(&Batch{Entries: entries(a, 1)}); return err }(),
	} {
		if !errors.Is(err, ErrStreamDeleted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = w.c.StatName("a")
	refusalOf(t, err, ErrStreamNotFound)
	anew := w.stream("a")
	if info, err := w.c.StatName("a"); err != nil || anew == a || info.ID != anew || info.Next != 0 {
		t.Errorf("made anew: %+v, %v", info, err)
	}
}

// TestP4_IDsOutliveDeletionAndCrashes: an id that was durable once is never issued
// again, and neither is an offset, even where the newest of them are gone.
func TestP4_IDsOutliveDeletionAndCrashes(t *testing.T) {
	w := newWorld(t, smallRing)
	a, b := w.stream("a"), w.stream("b")
	_, err := w.append(&Batch{Entries: entries(a, 3)})
	w.must(err)
	w.must(w.c.Delete(b))
	_, err = w.c.Trim(a, 3)
	w.must(err)
	w.sync()
	for round := range 3 { // from items, then from checkpoints alone
		w.crash()
		c := w.stream(fmt.Sprintf("c%d", round))
		if c <= b {
			t.Errorf("round %d: id %d was used before", round, c)
		}
		b = c
		w.must(w.c.Delete(c))
		r, err := w.append(&Batch{Entries: entries(a, 1)})
		w.must(err)
		if want := uint64(3 + round); r.Placed[0].First != want {
			t.Errorf("round %d: offset %d, want %d", round, r.Placed[0].First, want)
		}
		_, err = w.c.Trim(a, 1<<62)
		w.must(err)
		w.sync()
		w.must(w.c.Checkpoint())
		w.sync()
	}
}

func TestStateNeverOutgrowsItsCheckpoint(t *testing.T) {
	w := newWorld(t, smallRing)
	w.maxState = 4096
	w.crash()
	name := strings.Repeat("n", 100)
	streams := 0
	for ; ; streams++ {
		if _, _, err := w.c.CreateStream(1, fmt.Sprint(name, streams)); err != nil {
			r := refusalOf(t, err, ErrCheckpointFull)
			if r.Limit != 4096 || r.Actual <= 4096 {
				t.Errorf("%+v", r)
			}
			break
		}
	}
	if want := (4096 - checkpointHeaderBytes) / int(streamBound(len(name)+2)); streams < want || streams > want+1 {
		t.Errorf("%d streams, want about %d", streams, want)
	}
	_, _, err := w.c.OpenNamedProducer(name)
	refusalOf(t, err, ErrCheckpointFull)
	_, err = w.c.OpenSessionProducer(64, 1)
	refusalOf(t, err, ErrCheckpointFull)
	for id := ID(1); id <= ID(streams); id++ { // what exists may still grow to its limits
		_, err := w.c.SetToken(id, nil, make([]byte, MaxTokenBytes))
		w.must(err)
	}
	if n := len(w.state()); n > 4096 {
		t.Errorf("%d bytes of state", n)
	}
	w.must(w.c.Delete(1))
	w.stream("short")
}

func TestLimitsOfNumbers(t *testing.T) {
	w := newWorld(t, 0)
	w.maxState = 1 << 40
	w.crash()
	create := func(i int) error { _, _, err := w.c.CreateStream(1, fmt.Sprint("s", i)); return err }
	for i := range MaxStreams {
		w.must(w.retry(func() error { return create(i) }))
	}
	if r := refusalOf(t, create(MaxStreams), ErrTooManyStreams); r.Actual != MaxStreams || r.Limit != MaxStreams {
		t.Errorf("%+v", r)
	}
	for i := range MaxNamedProducers {
		w.must(w.retry(func() error { _, _, err := w.c.OpenNamedProducer(fmt.Sprint("p", i)); return err }))
	}
	_, _, err := w.c.OpenNamedProducer("one more")
	if r := refusalOf(t, err, ErrTooManyProducers); r.Actual != MaxNamedProducers || r.Limit != MaxNamedProducers {
		t.Errorf("%+v", r)
	}
	for i := range MaxSessionProducers {
		w.must(w.retry(func() error { _, err := w.c.OpenSessionProducer(1, uint64(i)); return err }))
	}
	_, err = w.c.OpenSessionProducer(1, MaxSessionProducers)
	if r := refusalOf(t, err, ErrTooManyProducers); r.Actual != MaxSessionProducers || r.Limit != MaxSessionProducers {
		t.Errorf("%+v", r)
	}
	w.c.Detach(sessionProducerBit | 17)
	_, err = w.c.OpenSessionProducer(1, MaxSessionProducers)
	w.must(err)
	if _, err := w.c.ProducerByID(sessionProducerBit | 17); !errors.Is(err, ErrProducerExpired) {
		t.Errorf("the idle one: %v", err)
	}
	streams, more := w.c.List("", "", MaxStreams, nil)
	if len(streams) != MaxListed || !more {
		t.Errorf("%d streams in one list, more %v", len(streams), more)
	}
	state := w.state()
	if again, err := DecodeCheckpoint(state, 1<<40); err != nil || !again.EqualCheckpoint(state) {
		t.Errorf("a checkpoint of everything: %v", err)
	}
	w.log.Fail(ringwal.ErrClosed)
	if err := create(0); err != nil { // exists: nothing to write
		t.Error(err)
	}
	if err := w.c.Delete(1); !errors.Is(err, ringwal.ErrClosed) {
		t.Errorf("in a stopped log: %v", err)
	}
}
