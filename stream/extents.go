package stream

import "fmt"

// Extent is a run of records of one stream in a batch, without the records: what the
// state needs to know of them.
type Extent struct {
	Stream    ID
	First     uint64 // offset of the first one
	Count     uint32
	Timestamp int64 // of the last one, the highest; ns since the Unix epoch
}

// ApplyExtents is Apply for a batch whose records are not at hand: batch has its
// position and its producer part, extents are its records in the order of its entries.
func (t *Table) ApplyExtents(batch *Item, extents []Extent) error {
	problem := t.streams.stageExtents(extents)
	if problem == "" && batch.Producer != 0 {
		problem = t.producers.checkSequence(batch, len(t.streams.touched))
	}
	if problem != "" {
		return damagedBatch(batch, problem)
	}
	t.mutate(batch)
	return nil
}

// ApplyExtents is Apply for a batch whose records are not at hand, as
// [Table.ApplyExtents].
func (d *Directory) ApplyExtents(batch *Item, extents []Extent) error {
	if problem := d.streams.stageExtents(extents); problem != "" {
		return damagedBatch(batch, problem)
	}
	d.streams.commit()
	return nil
}

func damagedBatch(batch *Item, problem string) error {
	return fmt.Errorf("%w: %v item at position %d: %s", ErrDamaged, KindBatch, batch.Position, problem)
}

// stageExtents is stageItem for a batch without its records.
func (t *streamSet) stageExtents(extents []Extent) string {
	t.begin()
	for i := range extents {
		e := &extents[i]
		s := t.byID.get(e.Stream)
		if s == nil {
			return "records of a stream that does not exist"
		}
		t.touch(s)
		switch {
		case s.sealed:
			return "records of a sealed stream"
		case e.Count == 0 || e.First != s.stagedNext || e.First+uint64(e.Count) < e.First:
			return "an offset is not the next one of its stream"
		case e.Timestamp < s.stagedLast:
			return "a timestamp is below the one before it in its stream"
		}
		s.stagedNext += uint64(e.Count)
		s.stagedLast = e.Timestamp
	}
	return ""
}
