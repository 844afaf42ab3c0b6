package stream

import (
	"math"
	"sort"
)

// Index is a sparse map from the offsets and times of every stream to the frames
// that hold them. It is bounded: at its limit of entries it forgets every second one
// or so, and takes fewer from then on. One owner; not safe for concurrent use.
type Index struct {
	streams idTable[indexedStream]
	limit   int
	entries int
	step    uint64 // bytes of log between two entries of a stream
}

type indexedStream struct {
	id      ID
	entries []indexEntry // ascending by offset and by position
	next    uint64       // behind the last record seen
	moved   bool         // entries[0] was moved up by TrimLog: its record lies lower
}

// indexEntry says that no record of the stream from offset on lies below the frame
// at position.
type indexEntry struct {
	offset    uint64
	position  uint64
	timestamp int64 // of the record at offset, or lower
}

// firstIndexStepBytes is the step that an Index takes up when it first meets its
// limit; until then every frame that holds records of a stream gets an entry.
const firstIndexStepBytes = 64 << 10

// NewIndex returns an empty index of at most limit entries ([MaxIndexEntries]), but
// always one per stream that holds records.
func NewIndex(limit int) *Index {
	return &Index{limit: limit}
}

// Entries returns the number of entries, and the bytes of log between two of a
// stream.
func (x *Index) Entries() (entries int, stepBytes uint64) { return x.entries, x.step }

// Apply takes in an item of the frame at framePosition, in log order. Items that
// neither hold nor remove records change nothing.
func (x *Index) Apply(it *Item, framePosition uint64) {
	switch it.Kind {
	case KindBatch:
		x.batch(it, framePosition)
	case KindStreamTrim:
		x.drop(x.streams.get(it.Stream), it.First)
	case KindStreamDelete:
		if s := x.streams.get(it.Stream); s != nil {
			x.entries -= len(s.entries)
			x.streams.remove(it.Stream)
		}
	}
}

func (x *Index) batch(it *Item, framePosition uint64) {
	var r Record
	var s *indexedStream
	for it.Rewind(); it.NextRecord(&r); {
		if s == nil || s.id != r.Stream {
			if s = x.streams.get(r.Stream); s == nil {
				s = &indexedStream{id: r.Stream}
				x.streams.put(r.Stream, s)
			}
		}
		s.next = r.Offset + 1
		if n := len(s.entries); n > 0 {
			// An entry that was moved is not one of the frame that it was moved to.
			moved := s.moved && n == 1
			last := s.entries[n-1].position
			if framePosition < last || framePosition == last && !moved || framePosition-last < x.step {
				continue
			}
		}
		s.entries = append(s.entries, indexEntry{offset: r.Offset, position: framePosition, timestamp: r.Timestamp})
		if x.entries++; x.entries > x.limit {
			x.coarsen()
		}
	}
}

// coarsen doubles the step until a quarter of the limit is free.
func (x *Index) coarsen() {
	for x.entries > x.limit-x.limit/4 && x.entries > x.streams.count && x.step < 1<<62 {
		x.step = max(2*x.step, firstIndexStepBytes)
		for _, s := range x.streams.all {
			if len(s.entries) == 0 {
				continue
			}
			kept := s.entries[:1]
			for _, e := range s.entries[1:] {
				if e.position-kept[len(kept)-1].position >= x.step {
					kept = append(kept, e)
				}
			}
			x.entries -= len(s.entries) - len(kept)
			s.entries = kept
		}
	}
}

// drop forgets what lies below offset first of a stream.
func (x *Index) drop(s *indexedStream, first uint64) {
	if s == nil {
		return
	}
	n := s.search(first) - 1
	if first >= s.next {
		n = len(s.entries)
	}
	if n > 0 {
		s.entries = s.entries[n:]
		s.moved = false
		x.entries -= n
	}
}

// search returns the number of entries at or below offset.
func (s *indexedStream) search(offset uint64) int {
	return sort.Search(len(s.entries), func(i int) bool { return s.entries[i].offset > offset })
}

// Find returns the position of a frame at or below the one that holds the record;
// every record of the stream between the two has a lower offset. found is false, and
// the position 0, when the index has seen no record at or below offset.
func (x *Index) Find(id ID, offset uint64) (framePosition uint64, found bool) {
	s := x.streams.get(id)
	if s == nil {
		return 0, false
	}
	n := s.search(offset)
	if n == 0 {
		return 0, false
	}
	return s.entries[n-1].position, true
}

// FindTime returns the position of a frame at or below the first record of the
// stream whose timestamp is at least timestamp, if there is one. found is false when
// the index holds no record of the stream.
func (x *Index) FindTime(id ID, timestamp int64) (framePosition uint64, found bool) {
	s := x.streams.get(id)
	if s == nil || len(s.entries) == 0 {
		return 0, false
	}
	n := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].timestamp >= timestamp })
	return s.entries[max(n-1, 0)].position, true
}

// Where says where a record lies, as far as an index knows.
type Where uint8

// The answers of Locate.
const (
	Gone   Where = iota // below what TrimLog was told
	Unsure              // one or the other
	Held                // above it
)

// Located is what Locate and LocateTime found.
type Located struct {
	Where Where
	// Position is as for Find, where the record is Held.
	Position uint64
	// Offset is at or below that of the record, where it is Held by time.
	Offset uint64
	// HeldFrom is an offset from which on records are Held; MaxUint64: none that the
	// index knows.
	HeldFrom uint64
}

// Locate tells where the record lies, of a stream that has it, in a log whose trimmed
// part is kept elsewhere.
func (x *Index) Locate(id ID, offset uint64) Located {
	s := x.streams.get(id)
	if s == nil {
		return Located{HeldFrom: math.MaxUint64}
	}
	return s.located(s.search(offset), x.step)
}

// LocateTime is Locate for the first record of the stream whose timestamp is at least
// timestamp, if there is one.
func (x *Index) LocateTime(id ID, timestamp int64) Located {
	s := x.streams.get(id)
	if s == nil {
		return Located{HeldFrom: math.MaxUint64}
	}
	return s.located(sort.Search(len(s.entries), func(i int) bool { return s.entries[i].timestamp >= timestamp }), x.step)
}

// located tells about records at or behind entry n−1, and before entry n.
func (s *indexedStream) located(n int, step uint64) Located {
	l := Located{HeldFrom: math.MaxUint64}
	first := 0
	if s.moved {
		first = 1
	}
	if first < len(s.entries) {
		l.HeldFrom = s.entries[first].offset
	}
	switch {
	case n > first:
		l.Where, l.Position, l.Offset = Held, s.entries[n-1].position, s.entries[n-1].offset
	case n == 1 && step > 0:
		l.Where = Unsure // with a step, an entry stands for records of later frames too
	}
	return l
}

// TrimLog forgets what lies below position, the start of a frame: the log was
// trimmed to it.
func (x *Index) TrimLog(position uint64) {
	for _, s := range x.streams.all {
		n := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].position > position })
		if n == 0 {
			continue
		}
		// Records between this entry and the next may remain: it moves up instead.
		s.moved = s.entries[n-1].position < position || s.moved && n == 1
		s.entries = s.entries[n-1:]
		s.entries[0].position = position
		x.entries -= n - 1
	}
}

// Keep drops what d does not show: streams that are gone, and records below their
// first. Recovery indexes frames whose trims lie before the log's own start.
func (x *Index) Keep(d *Directory) {
	var gone []ID
	for id, s := range x.streams.all {
		if kept := d.streams.byID.get(id); kept != nil {
			x.drop(s, kept.first)
			continue
		}
		x.entries -= len(s.entries)
		gone = append(gone, id)
	}
	for _, id := range gone {
		x.streams.remove(id)
	}
}
