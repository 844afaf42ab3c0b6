package upload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/walsidecar/walsidecar/upload/store"
)

const (
	// compactGroups of one level become one of the next: so a record is written again
	// once per level, and the number of groups grows with the logarithm of their sizes.
	compactGroups = 16
	// compactFewest groups are merged where more would be too large.
	compactFewest = 4
	// compactMost groups are merged at once.
	compactMost = 256
	// compactObjects bounds the objects of a merged group: beside the bundle, one for each
	// stream of at least largeStreamBytes.
	compactObjects = 8
	// dropMost groups are looked at for a drop at once.
	dropMost = 1024
)

// errNotWorthIt says that a job would change nothing that is worth its requests.
var errNotWorthIt = errors.New("not worth it")

// compactBytes bounds the raw and the stored size of what is merged at once.
func (c *Core) compactBytes() int { return c.s.MemoryBytes / 4 }

// compactJob merges adjacent groups of one level, or writes a group again of whose
// records most are not kept any more.
func (u *upkeep) compactJob(c *Core) *job {
	groups := c.m.Groups
	for i := 0; i < len(groups); {
		n := u.run(c, groups[i:])
		if n >= compactFewest || n == 1 && u.mostlyGone(&groups[i]) {
			return u.mergeJob(c, groups[i:i+n])
		}
		i += max(n, 1)
	}
	return nil
}

// run is how many groups from the first one on may be merged, 0 where that one may not
// be touched.
func (u *upkeep) run(c *Core, groups []Group) int {
	n, bytes := 0, uint64(0)
	full := false
	for ; n < len(groups) && n < compactMost; n++ {
		g := &groups[n]
		if !u.mayMerge(g) || g.Level != groups[0].Level {
			break
		}
		if bytes += g.bytes(); bytes > uint64(c.compactBytes()) {
			full = true
			break
		}
	}
	if n >= compactGroups || full && n >= compactFewest {
		return n
	}
	return min(n, 1)
}

func (u *upkeep) mayMerge(g *Group) bool {
	// What was left out of one group must be left out of those before it too, or their
	// records would not be dense: that is so as of any newer state.
	return len(g.Objects) > 0 && !u.skip[g.From] && (!g.Pruned || u.alive != nil && u.alive.position >= g.To)
}

// mostlyGone reports whether at least half of the group's records are not kept.
func (u *upkeep) mostlyGone(g *Group) bool {
	if u.alive == nil || u.alive.position < g.To || u.skip[g.From] || len(g.Objects) == 0 {
		return false
	}
	all, gone := uint64(0), uint64(0)
	for i := range g.Objects {
		all += g.Objects[i].Records
		for j := range g.Objects[i].Ranges {
			r := &g.Objects[i].Ranges[j]
			switch first, found := u.alive.first(r.Stream); {
			case !found || first >= r.End():
				gone += r.Count
			case first > r.First:
				gone += first - r.First
			}
		}
	}
	return gone > 0 && gone >= all-gone
}

func (u *upkeep) mergeJob(c *Core, groups []Group) *job {
	in := mergeInput{node: c.s.Node, log: c.s.Log, epoch: c.s.Epoch, groups: slices.Clone(groups), rawBytes: c.compactBytes(), largeBytes: u.largeBytes}
	if u.alive != nil && u.alive.position >= groups[len(groups)-1].To {
		in.alive = u.alive
	}
	for range compactObjects {
		in.ids = append(in.ids, c.nextID())
	}
	from := groups[0].From
	j := &job{what: "compact objects"}
	j.failed = func(err error) {
		failed := in.groups
		if errors.Is(err, errNotWorthIt) {
			failed = failed[:in.taken]
		}
		for i := range failed {
			u.skip[failed[i].From] = true
		}
	}
	j.work = func(ctx context.Context, s store.Store) (any, error) { return mergeGroups(ctx, s, &in) }
	j.take = func(now Instant, value any) error {
		out := value.(*merged)
		for _, o := range out.objects {
			j.puts = append(j.puts, &put{kind: KindData, id: o.ID, body: o.Body, class: store.CleanUp})
		}
		j.apply = func(now Instant) {
			at := c.groupAt(from)
			for i := range out.taken {
				for k := range in.groups[i].Objects {
					c.doom(now, KindData, in.groups[i].Objects[k].ID)
				}
			}
			c.m.Groups = slices.Concat(c.m.Groups[:at], []Group{out.group}, c.m.Groups[at+out.taken:])
			c.counters.compactions++
			c.counters.compactedGroups += uint64(out.taken)
		}
		return nil
	}
	return j
}

// groupAt is the index of the group in the manifest that begins at from. Jobs are one at
// a time and uploads only add behind them, so it is there.
func (c *Core) groupAt(from uint64) int {
	return slices.IndexFunc(c.m.Groups, func(g Group) bool { return g.From == from })
}

// indexJob moves the older groups of the manifest to a new index object.
func (u *upkeep) indexJob(c *Core) *job {
	n := len(c.m.Groups) * 3 / 4
	moved := slices.Clone(c.m.Groups[:n])
	old, origin, node, id := c.m.Index, c.m.Origin, c.s.Node, c.nextID()
	to := moved[n-1].To
	j := &job{what: "write the index"}
	j.work = func(ctx context.Context, s store.Store) (any, error) {
		before, err := readIndexed(ctx, s, node, old, origin)
		if err != nil {
			return nil, err
		}
		o, ref, err := BuildIndex(c.s.Log, c.s.Epoch, id, origin, to, append(before, moved...))
		return &builtIndex{o, ref}, err
	}
	j.take = func(now Instant, value any) error {
		built := value.(*builtIndex)
		j.puts = append(j.puts, &put{kind: KindIndex, id: id, body: built.object.Body, class: store.CleanUp})
		j.apply = func(now Instant) {
			if old != nil {
				c.doom(now, KindIndex, old.ID)
			}
			c.m.Index, c.m.Groups = built.ref, slices.Clone(c.m.Groups[n:])
		}
		return nil
	}
	return j
}

type builtIndex struct {
	object *Object
	ref    *IndexRef
}

// readIndexed reads the groups of an index object, from origin on; none without one.
func readIndexed(ctx context.Context, s store.Store, node string, ref *IndexRef, origin uint64) ([]Group, error) {
	if ref == nil || ref.To <= origin {
		return nil, nil
	}
	key := ref.ID.Key(node, KindIndex)
	body, err := getNamed(ctx, s, key)
	if err != nil {
		return nil, err
	}
	_, groups, err := DecodeIndex(body)
	if err != nil {
		return nil, inObject(key, err)
	}
	for len(groups) > 0 && groups[0].To <= origin {
		groups = groups[1:]
	}
	if len(groups) == 0 || groups[0].From != origin || groups[len(groups)-1].To != ref.To {
		return nil, inObject(key, problem(ErrDamagedObject, "contents", 0, "its groups are not those of [%d, %d)", origin, ref.To))
	}
	return groups, nil
}

// getNamed reads an object that the manifest names.
func getNamed(ctx context.Context, s store.Store, key string) ([]byte, error) {
	body, _, err := s.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("object %s: %w: %w", key, ErrMissingObject, err)
	}
	return body, err
}

// dropJob lets the oldest groups go of whose records none is kept.
func (u *upkeep) dropJob(c *Core) *job {
	a, groups := u.alive, slices.Clone(c.m.Groups)
	index, origin, node := c.m.Index, c.m.Origin, c.s.Node
	j := &job{what: "look for groups to drop"}
	j.work = func(ctx context.Context, s store.Store) (any, error) {
		indexed, err := readIndexed(ctx, s, node, index, origin)
		if err != nil {
			return nil, err
		}
		found := &dropped{}
		for i := range min(len(indexed)+len(groups), dropMost) {
			g := &Group{}
			if i < len(indexed) {
				*g = indexed[i]
			} else {
				*g = groups[i-len(indexed)]
			}
			if found.kept, err = keptOf(ctx, s, node, g, a); err != nil {
				return nil, err
			}
			if found.kept != nil {
				break
			}
			found.gone = append(found.gone, *g)
		}
		return found, nil
	}
	j.take = func(now Instant, value any) error {
		found := value.(*dropped)
		if u.oldest = found.kept; len(found.gone) == 0 {
			u.job = nil
			return nil
		}
		j.apply = func(now Instant) { c.drop(now, found.gone) }
		return nil
	}
	return j
}

// dropped are the groups that may go, and why the one behind them may not: a range of
// its that is kept, nil if that is not known.
type dropped struct {
	gone []Group
	kept *Range
}

// drop lets the oldest groups go.
func (c *Core) drop(now Instant, gone []Group) {
	for i := range gone {
		for k := range gone[i].Objects {
			c.doom(now, KindData, gone[i].Objects[k].ID)
		}
	}
	c.m.Origin = gone[len(gone)-1].To
	if x := c.m.Index; x != nil && x.To <= c.m.Origin {
		c.doom(now, KindIndex, x.ID)
		c.m.Index = nil
	}
	n := 0
	for n < len(c.m.Groups) && c.m.Groups[n].To <= c.m.Origin {
		n++
	}
	c.m.Groups = slices.Clone(c.m.Groups[n:])
}

// keptOf returns a range of the group that is kept, an empty one where it cannot be told
// yet; nil if none is.
func keptOf(ctx context.Context, s store.Store, node string, g *Group, a *alive) (*Range, error) {
	if g.To > a.position {
		return &Range{}, nil
	}
	for i := range g.Objects {
		o := &g.Objects[i]
		ranges := o.Ranges
		if ranges == nil && o.Streams > 0 {
			var err error
			if ranges, err = readRanges(ctx, s, node, g, o); err != nil {
				return nil, err
			}
		}
		for k := range ranges {
			if a.keeps(&ranges[k]) {
				kept := ranges[k]
				return &kept, nil
			}
		}
	}
	return nil, nil
}

// readRanges reads the ranges of an object that the manifest has no room for.
func readRanges(ctx context.Context, s store.Store, node string, g *Group, o *ObjectRef) ([]Range, error) {
	key := o.ID.Key(node, KindData)
	stored := make([]byte, o.Index.StoredBytes)
	err := s.GetRange(ctx, key, int64(o.Index.Place), stored)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("object %s: %w: %w", key, ErrMissingObject, err)
	}
	if err != nil {
		return nil, err
	}
	raw, err := o.Index.raw("index", stored, nil)
	if err != nil {
		return nil, inObject(key, err)
	}
	x, err := decodeObjectIndex(&Header{From: g.From, To: g.To}, o.Index, raw)
	if err != nil {
		return nil, inObject(key, err)
	}
	ranges := make([]Range, x.Streams())
	for i := range ranges {
		ranges[i] = x.Stream(i)
	}
	return ranges, nil
}
