package stream

import (
	"slices"
	"strings"
)

// streamState is one stream. Everything but the staged fields is in a checkpoint.
type streamState struct {
	id      ID
	name    string
	first   uint64
	next    uint64
	created int64
	last    int64 // timestamp of the newest record ever; 0 before the first
	sealed  bool
	token   []byte // never written to after it was set: infos share it

	// What the batch being checked would make of the stream, valid only when stamp
	// is the set's.
	stamp      uint64
	stagedNext uint64
	stagedLast int64
	encodeNext uint64 // the offset of its next record to encode
}

func (s *streamState) info() StreamInfo {
	return StreamInfo{ID: s.id, Name: s.name, First: s.first, Next: s.next, Created: s.created,
		Last: s.last, Sealed: s.sealed, Token: s.token}
}

// streamSet is the stream half of the state, shared by [Table] and [Directory].
type streamSet struct {
	byID   idTable[streamState]
	byName []*streamState // ascending by name, which also is the order of a checkpoint
	nextID ID             // every id below it was issued
	filled int            // streams that hold records

	stamp   uint64         // of the batch being checked
	touched []*streamState // its distinct streams in order of first appearance
}

func newStreamSet() streamSet {
	return streamSet{nextID: 1}
}

// find returns the stream, or [ErrStreamDeleted] or [ErrStreamNotFound].
func (t *streamSet) find(id ID) (*streamState, error) {
	if s := t.byID.get(id); s != nil {
		return s, nil
	}
	if id == 0 || id >= t.nextID {
		return nil, ErrStreamNotFound
	}
	return nil, ErrStreamDeleted
}

func (t *streamSet) searchName(name string) (int, bool) {
	return slices.BinarySearchFunc(t.byName, name, func(s *streamState, name string) int {
		return strings.Compare(s.name, name)
	})
}

func (t *streamSet) findName(name string) *streamState {
	if i, found := t.searchName(name); found {
		return t.byName[i]
	}
	return nil
}

func (t *streamSet) insert(s *streamState) {
	i, _ := t.searchName(s.name)
	t.byName = slices.Insert(t.byName, i, s)
	t.byID.put(s.id, s)
}

func (t *streamSet) remove(s *streamState) {
	i, _ := t.searchName(s.name)
	t.byName = slices.Delete(t.byName, i, i+1)
	t.byID.remove(s.id)
}

// list appends to dst up to limit streams in order of their names: those that
// start with prefix and sort after cursor. more tells whether others follow; the
// name of the last one is the cursor to go on with.
func (t *streamSet) list(prefix, cursor string, limit int, dst []StreamInfo) (_ []StreamInfo, more bool) {
	start := prefix
	if cursor > start {
		start = cursor
	}
	i, found := t.searchName(start)
	if found && start == cursor {
		i++
	}
	for ; i < len(t.byName) && strings.HasPrefix(t.byName[i].name, prefix); i++ {
		if limit == 0 {
			return dst, true
		}
		dst = append(dst, t.byName[i].info())
		limit--
	}
	return dst, false
}

// begin starts the staging of a batch; what was staged before is forgotten.
func (t *streamSet) begin() {
	t.stamp++
	t.touched = t.touched[:0]
}

// touch makes s one of the batch's streams.
func (t *streamSet) touch(s *streamState) {
	if s.stamp != t.stamp {
		s.stamp, s.stagedNext, s.stagedLast = t.stamp, s.next, s.last
		t.touched = append(t.touched, s)
	}
}

// commit makes what was staged the state.
func (t *streamSet) commit() {
	for _, s := range t.touched {
		if s.first == s.next {
			t.filled++
		}
		s.next, s.last = s.stagedNext, s.stagedLast
	}
}

// stageItem stages the records of a batch read from the log and returns what
// contradicts the state, "" if nothing.
func (t *streamSet) stageItem(it *Item) string {
	t.begin()
	var r Record
	var s *streamState
	for it.Rewind(); it.NextRecord(&r); {
		if s == nil || s.id != r.Stream {
			if s = t.byID.get(r.Stream); s == nil {
				return "a record of a stream that does not exist"
			}
		}
		t.touch(s)
		switch {
		case s.sealed:
			return "a record of a sealed stream"
		case r.Offset != s.stagedNext:
			return "a record's offset is not the next one of its stream"
		case r.Timestamp < s.stagedLast:
			return "a record's timestamp is below the one before it in its stream"
		}
		s.stagedNext++
		s.stagedLast = r.Timestamp
	}
	return ""
}

// checkItem returns what in an item of a stream kind contradicts the state, "" if
// nothing.
func (t *streamSet) checkItem(it *Item) string {
	if it.Kind == KindStreamCreate {
		switch {
		case it.Stream != t.nextID:
			return "a created stream's id is not the next one"
		case t.findName(string(it.Name)) != nil:
			return "a stream is created under a name that is in use"
		case t.byID.count >= MaxStreams:
			return "more streams than the limit"
		}
		return ""
	}
	s := t.byID.get(it.Stream)
	switch {
	case s == nil:
		return "its stream does not exist"
	case it.Kind == KindStreamTrim && (it.First <= s.first || it.First > s.next):
		return "a trim outside of its stream"
	case it.Kind == KindStreamSeal && s.sealed:
		return "its stream is sealed already"
	}
	return ""
}

// mutate carries out an item of a stream kind that passed checkItem.
func (t *streamSet) mutate(it *Item) {
	if it.Kind == KindStreamCreate {
		t.insert(&streamState{id: it.Stream, name: string(it.Name), created: it.Timestamp})
		t.nextID = it.Stream + 1
		return
	}
	s := t.byID.get(it.Stream)
	switch it.Kind {
	case KindStreamSeal:
		s.sealed = true
	case KindStreamTrim:
		if it.First == s.next {
			t.filled--
		}
		s.first = it.First
	case KindStreamToken:
		s.token = slices.Clone(it.Token)
	case KindStreamDelete:
		if s.first < s.next {
			t.filled--
		}
		t.remove(s)
	}
}
