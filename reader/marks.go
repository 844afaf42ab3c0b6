package reader

import "sort"

// maxMarks bounds the memory of Marks: 512 KiB.
const maxMarks = 64 << 10

// Marks is a sparse list of frame positions: from the nearest one below a position,
// a replay walks on by the frames' own lengths. The distance doubles whenever the
// list is full, so its size does not depend on the log's. The zero value
// is empty. One owner; a Reader guards its own.
type Marks struct {
	at       []uint64 // ascending
	distance uint64   // at least so many bytes lie between two marks
}

// Add notes a frame; frames come in log order.
func (m *Marks) Add(position uint64) {
	if n := len(m.at); n > 0 && position-m.at[n-1] < m.distance {
		return
	}
	if len(m.at) == maxMarks {
		m.thin()
	}
	m.at = append(m.at, position)
}

// thin drops every other mark.
func (m *Marks) thin() {
	kept := m.at[:0]
	for i := 0; i < len(m.at); i += 2 {
		kept = append(kept, m.at[i])
	}
	m.at = kept
	m.distance = max(2*m.distance, 64<<10)
}

// below returns the newest mark at or below position, false when there is none.
func (m *Marks) below(position uint64) (uint64, bool) {
	i := sort.Search(len(m.at), func(i int) bool { return m.at[i] > position })
	if i == 0 {
		return 0, false
	}
	return m.at[i-1], true
}

// above returns the oldest mark at or above position, false when there is none.
func (m *Marks) above(position uint64) (uint64, bool) {
	i := sort.Search(len(m.at), func(i int) bool { return m.at[i] >= position })
	if i == len(m.at) {
		return 0, false
	}
	return m.at[i], true
}

// trim drops the marks below position.
func (m *Marks) trim(position uint64) {
	i := sort.Search(len(m.at), func(i int) bool { return m.at[i] >= position })
	m.at = append(m.at[:0], m.at[i:]...)
}
