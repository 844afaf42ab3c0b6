package upload

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
)

// largeStreamBytes is the raw size from which on a stream gets an object of its own in
// a merged group.
const largeStreamBytes = 4 << 20

// mergeInput is what groups are merged from.
type mergeInput struct {
	node   string
	log    [16]byte
	epoch  uint64
	groups []Group
	alive  *alive // nil: everything is kept
	ids    []ObjectID
	// rawBytes is when no further group is taken, and about what an output may have.
	rawBytes   int
	largeBytes int // largeStreamBytes
	taken      int // groups that were read
}

// merged is the group that takes the place of the first of the input's.
type merged struct {
	taken   int
	group   Group
	objects []*Object
}

// mergeGroups reads the objects of adjacent groups and builds those of the group that
// takes their place: a bundle with the journal and the small streams, and one object
// for each large stream. Records that are not kept are left out. It holds the objects as
// they are stored, one of the new ones uncompressed, and all of the new ones compressed.
// Every record's checksum is verified on the way.
//
// Errors: errNotWorthIt, ErrMissingObject, ErrDamagedObject, those of the store.
func mergeGroups(ctx context.Context, s store.Store, in *mergeInput) (*merged, error) {
	out := &merged{}
	var inputs [][]*DataObject // per group
	raw := 0
	sizes := map[stream.ID]int{}
	for i := range in.groups {
		objects, n, err := in.read(ctx, s, &in.groups[i])
		if err != nil {
			return nil, err
		}
		if i > 0 && raw+n > in.rawBytes {
			break
		}
		raw += n
		in.taken++
		inputs = append(inputs, objects)
		for _, o := range objects {
			addSizes(sizes, o)
		}
	}
	out.taken = in.taken
	if len(in.groups) > 1 && out.taken < compactFewest {
		return nil, fmt.Errorf("%w: only %d groups fit together", errNotWorthIt, out.taken)
	}
	first, last := &in.groups[0], &in.groups[out.taken-1]
	out.group = Group{From: first.From, To: last.To, Level: first.Level}
	if out.taken > 1 {
		out.group.Level++
	}
	large := in.largest(sizes)
	b := NewBuilder(first.From)
	for i := range len(large) + 1 {
		b.Reset(first.From)
		wanted := func(id stream.ID) bool { return !slices.Contains(large, id) }
		if i > 0 {
			wanted = func(id stream.ID) bool { return id == large[i-1] }
		}
		if err := in.fill(b, out, inputs, i == 0, wanted); err != nil {
			return nil, err
		}
		if i > 0 && b.Records() == 0 {
			continue
		}
		b.Extend(last.To)
		o, err := b.Build(in.log, in.epoch, in.ids[i], nil)
		if err != nil {
			return nil, err
		}
		if len(o.Ref.Ranges) > maxInlineRanges {
			o.Ref.Ranges = nil
		}
		out.objects = append(out.objects, o)
		out.group.Objects = append(out.group.Objects, o.Ref)
		out.group.Control = out.group.Control || o.Control
	}
	return out, nil
}

// read fetches the objects of a group, and tells their raw size.
func (in *mergeInput) read(ctx context.Context, s store.Store, g *Group) (objects []*DataObject, raw int, err error) {
	for i := range g.Objects {
		ref := &g.Objects[i]
		key := ref.ID.Key(in.node, KindData)
		body, err := getNamed(ctx, s, key)
		if err != nil {
			return nil, 0, err
		}
		o, err := DecodeObject(body)
		if err != nil {
			return nil, 0, inObject(key, err)
		}
		if o.ID != ref.ID || o.From != g.From || o.To != g.To || uint64(len(body)) != ref.Bytes || o.Section != ref.Index {
			return nil, 0, inObject(key, problem(ErrDamagedObject, "header", 0, "it is not the object that the manifest names"))
		}
		for k := range o.Index.Blocks() {
			raw += int(o.Index.Block(k).RawBytes)
		}
		objects = append(objects, o)
	}
	return objects, raw, nil
}

// addSizes adds up the raw bytes of an object's streams.
func addSizes(sizes map[stream.ID]int, o *DataObject) {
	for i := range o.Index.Streams() {
		id := o.Index.Stream(i).Stream
		from, to := o.Index.Find(id)
		for ; from < to; from++ {
			sizes[id] += int(o.Index.Block(from).RawBytes)
		}
	}
}

// largest returns the streams that get an object of their own, ascending, one less than
// there are ids. A stream that is alone stays with the journal.
func (in *mergeInput) largest(sizes map[stream.ID]int) (large []stream.ID) {
	if len(sizes) < 2 {
		return nil
	}
	for id, size := range sizes {
		if size >= in.largeBytes {
			large = append(large, id)
		}
	}
	slices.SortFunc(large, func(a, b stream.ID) int {
		if sizes[a] != sizes[b] {
			return sizes[b] - sizes[a]
		}
		return cmp.Compare(a, b)
	})
	large = large[:min(len(large), len(in.ids)-1)]
	slices.Sort(large)
	return large
}

// fill adds the wanted streams of the inputs to the builder, and with journal all
// entries.
func (in *mergeInput) fill(b *Builder, out *merged, inputs [][]*DataObject, journal bool, wanted func(stream.ID) bool) error {
	for i, objects := range inputs {
		out.group.Pruned = out.group.Pruned || in.groups[i].Pruned
		for k, o := range objects {
			if journal && k == 0 {
				if err := o.Journal(b.AddEntry); err != nil {
					return err
				}
			}
			for n := range o.Index.Streams() {
				r := o.Index.Stream(n)
				if !wanted(r.Stream) {
					continue
				}
				first := r.First
				if in.alive != nil {
					kept, found := in.alive.first(r.Stream)
					if kept = max(kept, first); !found || kept > first {
						out.group.Pruned = true
					}
					if !found || kept >= r.End() {
						continue
					}
					first = kept
				}
				if err := o.Records(r.Stream, first, b.AddRecord); err != nil {
					return inObject(o.ID.Key(in.node, KindData), err)
				}
			}
		}
	}
	return nil
}
