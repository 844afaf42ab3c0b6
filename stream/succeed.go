package stream

import (
	"cmp"
	"slices"
)

// generation is the distance that Succeed keeps from the ids of a lost log: that one may
// have issued more of them than is known of it, each with an item of at least 24 bytes.
// No log holds so many.
const generation = 1 << 32

// Succession is a stream that goes on under a new id.
type Succession struct {
	Before, After ID
	Next          uint64 // the offset that its next record gets
}

// Succeed makes the state that of a log which takes the place of a lost one: every stream
// goes on under a new id, with its name, records, seal and token, and producers are what
// they were. Ids that the lost log may have issued beyond this state are not issued
// again. The streams are returned ascending by id, by the old one and by the new one.
func (t *Table) Succeed() []Succession {
	s := &t.streams
	streams := slices.Clone(s.byName)
	slices.SortFunc(streams, func(a, b *streamState) int { return cmp.Compare(a.id, b.id) })
	id := (s.nextID/generation + 1) * generation
	all := make([]Succession, 0, len(streams))
	s.byID = idTable[streamState]{}
	for _, x := range streams {
		all = append(all, Succession{Before: x.id, After: id, Next: x.next})
		x.id = id
		s.byID.put(id, x)
		id++
	}
	s.nextID = id
	t.producers.nextID = (t.producers.nextID/generation + 1) * generation
	return all
}
