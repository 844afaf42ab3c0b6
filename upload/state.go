package upload

import (
	"sort"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// checkpointParts puts a checkpoint together from its frames.
type checkpointParts struct {
	active bool
	start  uint64
	next   uint32
	bytes  []byte
}

// add takes the next frame of the log, and returns the state when that completes it.
func (p *checkpointParts) add(f *ringwal.FrameView) *State {
	switch {
	case f.Kind == ringwal.FramePad:
		return nil
	case f.Kind != ringwal.FrameCheckpoint:
		p.active = false
		return nil
	case f.Part == 0:
		p.active, p.start, p.next, p.bytes = true, f.Position, 0, nil
	case !p.active || f.CheckpointStart != p.start || f.Part != p.next:
		p.active = false
		return nil
	}
	p.bytes = append(p.bytes, f.Body...)
	if p.next++; p.next < f.Parts {
		return nil
	}
	s := &State{Position: p.start, Checkpoint: p.bytes}
	p.active, p.bytes = false, nil
	return s
}

// alive is which records are kept, as of a checkpoint. It never changes.
type alive struct {
	position uint64
	ids      []stream.ID // ascending
	firsts   []uint64
}

// first returns the first offset of a stream that is kept; false: nothing is. It may
// only be asked about records below the position.
func (a *alive) first(id stream.ID) (uint64, bool) {
	i := sort.Search(len(a.ids), func(i int) bool { return a.ids[i] >= id })
	if i == len(a.ids) || a.ids[i] != id {
		return 0, false
	}
	return a.firsts[i], true
}

// keeps reports whether any record of the range is kept.
func (a *alive) keeps(r *Range) bool {
	first, found := a.first(r.Stream)
	return found && r.End() > first
}

// Len, Less and Swap sort by id.
func (a *alive) Len() int           { return len(a.ids) }
func (a *alive) Less(i, j int) bool { return a.ids[i] < a.ids[j] }
func (a *alive) Swap(i, j int) {
	a.ids[i], a.ids[j] = a.ids[j], a.ids[i]
	a.firsts[i], a.firsts[j] = a.firsts[j], a.firsts[i]
}

// newAlive decodes a checkpoint. Of the streams of lost logs that joins lead to, what the
// stream that goes on still has is kept. It returns the joins that are left, too.
func newAlive(s *State, joins []Join) (*alive, []Join, error) {
	table, err := stream.DecodeCheckpoint(s.Checkpoint, MaxStateBytes)
	if err != nil {
		return nil, nil, err
	}
	a := &alive{position: s.Position}
	var page []stream.StreamInfo
	for cursor, more := "", true; more; {
		page, more = table.List("", cursor, stream.MaxListed, page[:0])
		for i := range page {
			a.ids, a.firsts = append(a.ids, page[i].ID), append(a.firsts, page[i].First)
		}
		if more {
			cursor = page[len(page)-1].Name
		}
	}
	sort.Sort(a)
	// From the newest join on: the stream before may itself go on where another ended.
	kept := map[stream.ID]uint64{}
	left := make([]Join, len(joins))
	n := len(joins)
	for i := len(joins) - 1; i >= 0; i-- {
		j := joins[i]
		first, found := a.first(j.Stream)
		if !found {
			first, found = kept[j.Stream]
		}
		if found && first < j.At {
			kept[j.Before] = first
			n--
			left[n] = j
		}
	}
	for id, first := range kept {
		a.ids, a.firsts = append(a.ids, id), append(a.firsts, first)
	}
	sort.Sort(a)
	return a, left[n:], nil
}
