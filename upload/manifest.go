package upload

import (
	"github.com/walsidecar/walsidecar/stream"
)

// Manifest says what exists of a node's log in the store, and who may change it. It is
// only ever replaced as a whole, by a conditional put, and never deleted.
type Manifest struct {
	Log         [16]byte // UUID of the log
	Node        string   // 1..ringwal.MaxNodeBytes bytes
	Epoch       uint64   // of the owner
	Incarnation [16]byte // of the owner
	// Attempt counts the owner's attempts to put a manifest, answered or not: with
	// Incarnation it is a version that was never used before.
	Attempt uint64

	// Origin is where the oldest group begins: what lies below was never uploaded, or
	// is not kept any more.
	Origin uint64
	// Uploaded is the uploaded position: everything in [Origin, Uploaded) is in the
	// store. The groups fill it without a gap.
	Uploaded uint64
	// UploadedAtNS is when Uploaded last moved, by the owner's clock, ns since the Unix
	// epoch. It informs only.
	UploadedAtNS int64
	// NextSequence is above the sequence of every object that was put, or tried to be,
	// under a manifest before this one.
	NextSequence uint64

	// Retired are the logs that this one took the place of, oldest first. None of them
	// may ever claim the manifest again.
	Retired []Retired
	// State is the newest checkpoint that is kept, at or below Uploaded; nil: none yet.
	State *StateRef
	// Index holds the groups of [Origin, Index.To); nil: all groups are in Groups.
	Index *IndexRef
	// Groups are the groups of objects of [Index.To, Uploaded), or of [Origin, Uploaded)
	// without an index, in order.
	Groups []Group
	// Doomed are objects that nothing names any more, to be deleted once they have been
	// here for the grace time.
	Doomed []Doomed
}

// Retired is a log that was lost and restored from the store.
type Retired struct {
	Log      [16]byte
	Epoch    uint64 // its last one
	Uploaded uint64 // where its part of the positions ends: what it held beyond is lost
	AtNS     int64  // when its uploaded position had last moved, ns since the Unix epoch
	Origin   uint64 // where the log that took its place begins
}

// StateRef names a state object.
type StateRef struct {
	ID       ObjectID
	Position uint64 // the state is that before the item at this position
	Bytes    uint64 // of the object
	Contents Section
}

// IndexRef names an index object.
type IndexRef struct {
	ID       ObjectID
	To       uint64 // it holds the groups of [Manifest.Origin, To)
	Bytes    uint64 // of the object
	Contents Section
}

// Group is a range of the log, and the data objects that hold it.
type Group struct {
	From, To uint64 // positions
	Level    uint8  // how often it was compacted
	// Control: there are control items in its journal.
	Control bool
	// Pruned: compaction has left out records that were trimmed or deleted. Without it
	// a record of the journal that no object holds is damage.
	Pruned bool
	// Objects: the first one holds the journal, and each stream is in one at most.
	Objects []ObjectRef
}

// ObjectRef names a data object.
type ObjectRef struct {
	ID      ObjectID
	Bytes   uint64  // of the object
	Index   Section // where in it the index lies
	Streams uint32
	Records uint64
	// FirstNS and LastNS are the lowest and the highest timestamp, 0 without records.
	FirstNS, LastNS int64
	// Ranges are what it holds of each stream, ascending by id; nil: the object's index
	// tells (more streams than a manifest has room for).
	Ranges []Range
}

// Range is the records [First, First+Count) of one stream.
type Range struct {
	Stream          stream.ID
	First, Count    uint64
	FirstNS, LastNS int64 // timestamps of the first and of the last record
}

// End is the offset behind the range.
func (r *Range) End() uint64 { return r.First + r.Count }

// Doomed is an object that is to be deleted.
type Doomed struct {
	Kind    Kind
	ID      ObjectID
	SinceNS int64 // when it was doomed, by the owner's clock, ns since the Unix epoch
}

// setRanges takes the ranges of an object from its blocks of records.
func (o *ObjectRef) setRanges(blocks []BlockInfo) {
	o.Ranges = []Range{}
	for i := range blocks {
		b := &blocks[i]
		if n := len(o.Ranges); n > 0 && o.Ranges[n-1].Stream == b.Stream {
			o.Ranges[n-1].Count += uint64(b.Count)
			o.Ranges[n-1].LastNS = b.LastNS
			continue
		}
		o.Ranges = append(o.Ranges, Range{Stream: b.Stream, First: b.First, Count: uint64(b.Count), FirstNS: b.FirstNS, LastNS: b.LastNS})
	}
	o.Streams = uint32(len(o.Ranges))
	o.FirstNS, o.LastNS = 0, 0
	for i := range o.Ranges {
		r := &o.Ranges[i]
		if i == 0 || r.FirstNS < o.FirstNS {
			o.FirstNS = r.FirstNS
		}
		o.LastNS = max(o.LastNS, r.LastNS)
	}
}

// Find returns what the object holds of a stream; found is false where it holds
// nothing, and also where Ranges is nil.
func (o *ObjectRef) Find(id stream.ID) (r Range, found bool) {
	from, to := 0, len(o.Ranges)
	for from < to {
		mid := (from + to) / 2
		if o.Ranges[mid].Stream < id {
			from = mid + 1
		} else {
			to = mid
		}
	}
	if from < len(o.Ranges) && o.Ranges[from].Stream == id {
		return o.Ranges[from], true
	}
	return Range{}, false
}
