package stream

import (
	"cmp"
	"slices"
	"strings"
)

// producer is a session producer or a named one. Everything but live is in a
// checkpoint.
type producer struct {
	id       ProducerID
	name     string // of a named producer
	last     uint64 // last sequence used; 0: none
	position uint64 // address of the item that used it, or that opened a session producer

	// Of a session producer only.
	window  uint32
	base    uint64 // results of [base, last] are kept; from 1
	results resultRing
	live    int // sessions that use it now; such a producer does not expire
}

func (p *producer) info() ProducerInfo {
	return ProducerInfo{ID: p.id, Name: p.name, Window: p.window, Last: p.last, Position: p.position}
}

// resultSlot is what is kept of one stream of a batch, or of one refused batch.
type resultSlot struct {
	sequence uint64
	position uint64
	stream   ID     // of a batch
	first    uint64 // of a batch; of a refusal: the actual value
	count    uint16 // records of a batch, ≤ MaxBatchRecords; of a refusal: the entry
	code     Code   // 0: a batch
	more     uint16 // slots of the same sequence that follow
}

// resultRing is a queue of slots in ascending order of sequence. It grows by
// doubling up to the producer's window, so that an idle producer costs little.
type resultRing struct {
	slots []resultSlot // its length is a power of two, or 0
	head  int          // index of the oldest
	used  int
}

func (r *resultRing) at(i int) *resultSlot { return &r.slots[(r.head+i)&(len(r.slots)-1)] }

func (r *resultRing) push(s resultSlot) {
	if r.used == len(r.slots) {
		grown := make([]resultSlot, max(8, 2*len(r.slots)))
		for i := range r.used {
			grown[i] = *r.at(i)
		}
		r.slots, r.head = grown, 0
	}
	r.used++
	*r.at(r.used - 1) = s
}

// search returns the index of the first slot whose sequence is at least sequence.
func (r *resultRing) search(sequence uint64) int {
	low, high := 0, r.used
	for low < high {
		middle := int(uint(low+high) / 2)
		if r.at(middle).sequence < sequence {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// drop removes the n oldest slots.
func (r *resultRing) drop(n int) {
	if n > 0 {
		r.head = (r.head + n) & (len(r.slots) - 1)
		r.used -= n
	}
}

// slotsAfter returns how many slots are in use once everything below acked is
// forgotten.
func (p *producer) slotsAfter(acked uint64) int {
	if acked <= p.base {
		return p.results.used
	}
	return p.results.used - p.results.search(acked)
}

// forget drops the results below acked.
func (p *producer) forget(acked uint64) {
	if acked > p.base {
		p.results.drop(p.results.search(acked))
		p.base = acked
	}
}

// commitBatch records that a batch over touched used sequence. The streams still
// hold both what they were and what was staged. The caller has checked sequence
// and window.
func (p *producer) commitBatch(sequence, acked, position uint64, touched []*streamState) {
	p.last, p.position = sequence, position
	if !p.id.IsSession() {
		return
	}
	p.forget(acked)
	for i, s := range touched {
		p.results.push(resultSlot{sequence: sequence, position: position, stream: s.id,
			first: s.next, count: uint16(s.stagedNext - s.next), more: uint16(len(touched) - 1 - i)})
	}
}

// commitRefusal records that a logged refusal used its sequence.
func (p *producer) commitRefusal(it *Item) {
	p.last, p.position = it.Sequence, it.Position
	p.forget(it.Acked)
	p.results.push(resultSlot{sequence: it.Sequence, position: it.Position, first: it.Actual,
		count: uint16(it.Entry), code: it.Code})
}

// again answers with the kept result of sequence, which lies in [base, last].
func (p *producer) again(sequence uint64, r *Result) error {
	i := p.results.search(sequence)
	s := p.results.at(i)
	if s.code != 0 {
		return &Refusal{Err: s.code.Err(), Entry: int(s.count), Actual: s.first, Logged: true,
			Duplicate: true, Position: s.position}
	}
	r.Position, r.Duplicate, r.LastSequence = s.position, true, p.last
	for n := int(s.more); n >= 0; n-- {
		r.Placed = append(r.Placed, Placed{Stream: s.stream, First: s.first, Count: uint32(s.count)})
		i++
		if n > 0 {
			s = p.results.at(i)
		}
	}
	return nil
}

// producerSet is the producer half of the state.
type producerSet struct {
	byID     map[ProducerID]*producer
	named    []*producer // ascending by name
	sessions []*producer // ascending by id
	nextID   ProducerID  // of named producers: every id below it was issued
}

func newProducerSet() producerSet {
	return producerSet{byID: make(map[ProducerID]*producer), nextID: 1}
}

func (t *producerSet) searchName(name string) (int, bool) {
	return slices.BinarySearchFunc(t.named, name, func(p *producer, name string) int {
		return strings.Compare(p.name, name)
	})
}

func (t *producerSet) findName(name string) *producer {
	if i, found := t.searchName(name); found {
		return t.named[i]
	}
	return nil
}

func (t *producerSet) searchSession(id ProducerID) (int, bool) {
	return slices.BinarySearchFunc(t.sessions, id, func(p *producer, id ProducerID) int {
		return cmp.Compare(p.id, id)
	})
}

func (t *producerSet) insert(p *producer) {
	t.byID[p.id] = p
	if p.id.IsSession() {
		i, _ := t.searchSession(p.id)
		t.sessions = slices.Insert(t.sessions, i, p)
		return
	}
	i, _ := t.searchName(p.name)
	t.named = slices.Insert(t.named, i, p)
}

func (t *producerSet) remove(p *producer) {
	delete(t.byID, p.id)
	if p.id.IsSession() {
		i, _ := t.searchSession(p.id)
		t.sessions = slices.Delete(t.sessions, i, i+1)
		return
	}
	i, _ := t.searchName(p.name)
	t.named = slices.Delete(t.named, i, i+1)
}

// idle returns the session producer that no session uses and that was used longest
// ago, nil when there is none.
func (t *producerSet) idle() *producer {
	var oldest *producer
	for _, p := range t.sessions {
		if p.live == 0 && (oldest == nil || p.position < oldest.position) {
			oldest = p
		}
	}
	return oldest
}

// checkSequence returns what in the producer part of a batch or of a refusal
// contradicts the state, "" if nothing; slots is what it takes of the window.
func (t *producerSet) checkSequence(it *Item, slots int) string {
	p := t.byID[it.Producer]
	switch {
	case p == nil:
		return "its producer does not exist"
	case !p.id.IsSession() && it.Sequence <= p.last:
		return "a named producer's sequence is not above its last one"
	case p.id.IsSession() && it.Sequence != p.last+1:
		return "a session producer's sequence does not follow its last one"
	case p.id.IsSession() && p.slotsAfter(it.Acked)+slots > int(p.window):
		return "a session producer has more unanswered results than its window"
	}
	return ""
}

// checkItem returns what in an item of a producer kind contradicts the state, "" if
// nothing.
func (t *producerSet) checkItem(it *Item) string {
	p := t.byID[it.Producer]
	switch it.Kind {
	case KindSessionOpen:
		switch {
		case p != nil:
			return "a producer is opened under an id that is in use"
		case len(t.sessions) >= MaxSessionProducers:
			return "more session producers than the limit"
		}
	case KindNamedCreate:
		switch {
		case it.Producer != t.nextID:
			return "a created producer's id is not the next one"
		case t.findName(string(it.Name)) != nil:
			return "a producer is created under a name that is in use"
		case len(t.named) >= MaxNamedProducers:
			return "more named producers than the limit"
		}
	default:
		if p == nil {
			return "its producer does not exist"
		}
	}
	return ""
}

// mutate carries out an item of a producer kind that passed checkItem.
func (t *producerSet) mutate(it *Item) {
	switch it.Kind {
	case KindSessionOpen:
		t.insert(&producer{id: it.Producer, window: it.Window, base: 1, position: it.Position})
	case KindNamedCreate:
		t.insert(&producer{id: it.Producer, name: string(it.Name), position: it.Position})
		t.nextID = it.Producer + 1
	default:
		t.remove(t.byID[it.Producer])
	}
}
