package stream

import "math/bits"

// idTable is a hash table from ids to what they stand for. Every record is looked up in
// three of them, and an append is to take as long in many streams as in one: a lookup here
// takes a dozen instructions, in a map of the language fifty, once it holds more than a few.
// Ids come from a counter of the log's own: nobody can choose them to collide. The zero
// value is empty and ready; id 0 is never in one. One owner.
type idTable[V any] struct {
	slots []idSlot[V] // a power of two of them, at most three quarters in use
	shift int         // of a hash, for its place in slots
	count int
}

type idSlot[V any] struct {
	id    ID // 0: free
	value *V
}

// minIDSlots is the length of the first array.
const minIDSlots = 16

// place is where id is to be looked for first: the upper bits of a product by 2⁶⁴ ÷ φ, which
// spreads consecutive numbers evenly.
func (t *idTable[V]) place(id ID) int { return int(uint64(id) * 0x9e3779b97f4a7c15 >> t.shift) }

// get returns what id stands for, nil when it is not in the table.
func (t *idTable[V]) get(id ID) *V {
	if len(t.slots) == 0 {
		return nil
	}
	for i := t.place(id); ; i = (i + 1) & (len(t.slots) - 1) {
		if s := &t.slots[i]; s.id == id || s.id == 0 {
			return s.value
		}
	}
}

// put adds or replaces what id stands for; value is not nil.
func (t *idTable[V]) put(id ID, value *V) {
	if t.count >= len(t.slots)/4*3 {
		t.resize(max(minIDSlots, 2*len(t.slots)))
	}
	i := t.place(id)
	for t.slots[i].id != id && t.slots[i].id != 0 {
		i = (i + 1) & (len(t.slots) - 1)
	}
	if t.slots[i].id == 0 {
		t.count++
	}
	t.slots[i] = idSlot[V]{id, value}
}

// remove takes id out, if it is there. What probed past it moves up, so that no mark of it
// stays.
func (t *idTable[V]) remove(id ID) {
	if t.get(id) == nil {
		return
	}
	mask := len(t.slots) - 1
	hole := t.place(id)
	for t.slots[hole].id != id {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; t.slots[i].id != 0; i = (i + 1) & mask {
		// It may fill the hole unless its own place lies behind the hole.
		if home := t.place(t.slots[i].id); (i-home)&mask >= (i-hole)&mask {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = idSlot[V]{}
	t.count--
	if len(t.slots) > minIDSlots && t.count < len(t.slots)/8 {
		t.resize(len(t.slots) / 2)
	}
}

func (t *idTable[V]) resize(slots int) {
	old := t.slots
	t.slots, t.shift, t.count = make([]idSlot[V], slots), 64-bits.TrailingZeros(uint(slots)), 0
	for i := range old {
		if old[i].id != 0 {
			t.put(old[i].id, old[i].value)
		}
	}
}

// all yields what is in the table, in no order that means anything; it is not to be changed
// meanwhile.
func (t *idTable[V]) all(yield func(ID, *V) bool) {
	for i := range t.slots {
		if t.slots[i].id != 0 && !yield(t.slots[i].id, t.slots[i].value) {
			return
		}
	}
}
