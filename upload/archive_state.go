package upload

import (
	"context"
	"errors"
	"fmt"

	"github.com/walsidecar/walsidecar/stream"
)

// stateAhead is how many journals are read at once for the state, of up to
// replayWholeBytes each but mostly of a few KiB.
const stateAhead = 4

// Recovered is the state of the log as the store has it.
type Recovered struct {
	// Table is the state at Position: streams and producers.
	Table    *stream.Table
	Position uint64 // the manifest's uploaded position
	// Joins are the streams that go on where those of a lost log ended.
	Joins []Join
}

// State returns the state at the uploaded position: the state object, and the journals
// behind it. checkpointMaxBytes is as for stream.NewTable. Errors: ErrNotArchived (the
// log was not uploaded from its beginning, and there is no state object yet),
// ErrDamagedObject, ErrMissingObject, those of the store.
func (a *Archive) State(ctx context.Context, checkpointMaxBytes uint64) (*Recovered, error) {
	var r *Recovered
	err := a.retry(ctx, func(v *view) error {
		s, err := a.state(ctx, v)
		if err != nil {
			return err
		}
		r = &Recovered{Position: v.m.Uploaded, Joins: s.Joins, Table: stream.NewTable(checkpointMaxBytes)}
		if s.Checkpoint != nil {
			if r.Table, err = stream.DecodeCheckpoint(s.Checkpoint, checkpointMaxBytes); err != nil {
				return inObject(v.m.State.ID.Key(a.node, KindState), fmt.Errorf("%w: %w", ErrDamagedObject, err))
			}
		}
		return withoutState(v, a.journals(ctx, v, s.Position, func(*Group) bool { return true }, nil, r.Table))
	})
	return r, err
}

// Streams returns the streams at the uploaded position, and the joins. It is State
// without producers, and reads only the journals that hold control items. Errors: as
// State.
func (a *Archive) Streams(ctx context.Context) (*stream.Directory, []Join, error) {
	var d *stream.Directory
	var joins []Join
	err := a.retry(ctx, func(v *view) error {
		s, err := a.state(ctx, v)
		if err != nil {
			return err
		}
		table := stream.NewTable(MaxStateBytes)
		if s.Checkpoint != nil {
			if table, err = stream.DecodeCheckpoint(s.Checkpoint, MaxStateBytes); err != nil {
				return inObject(v.m.State.ID.Key(a.node, KindState), fmt.Errorf("%w: %w", ErrDamagedObject, err))
			}
		}
		d, joins = stream.NewDirectory(table), s.Joins
		needs := func(g *Group) bool { return g.From < s.Position || g.Control || !g.ranged() }
		return withoutState(v, a.journals(ctx, v, s.Position, needs, func(g *Group) error { return applyRanges(d, g) }, d))
	})
	return d, joins, err
}

// withoutState is err of applying journals to a state. Where there is no state object,
// they may well not begin with an empty log.
func withoutState(v *view, err error) error {
	if v.m.State == nil && errors.Is(err, stream.ErrDamaged) {
		return fmt.Errorf("%w: the state at position %d, where the store begins: %w", ErrNotArchived, v.m.Origin, err)
	}
	return err
}

// applier is a stream.Table or a stream.Directory.
type applier interface {
	Apply(*stream.Item) error
	ApplyExtents(*stream.Item, []stream.Extent) error
}

// ranged reports whether the manifest tells what the group holds of every stream.
func (g *Group) ranged() bool {
	for i := range g.Objects {
		if g.Objects[i].Ranges == nil && g.Objects[i].Streams > 0 {
			return false
		}
	}
	return !g.Pruned
}

// applyRanges appends to the streams what a group holds of them.
func applyRanges(d *stream.Directory, g *Group) error {
	for i := range g.Objects {
		for _, r := range g.Objects[i].Ranges {
			for left := r.Count; left > 0; {
				n := min(left, 1<<31)
				x := []stream.Extent{{Stream: r.Stream, First: r.End() - left, Count: uint32(n), Timestamp: r.LastNS}}
				if err := d.ApplyExtents(&stream.Item{Kind: stream.KindBatch, Position: g.From}, x); err != nil {
					return fmt.Errorf("%w: the group of positions [%d, %d): %w", ErrManifest, g.From, g.To, err)
				}
				left -= n
			}
		}
	}
	return nil
}

// retry calls do with the newest view, and again with a newer one where an object was
// deleted meanwhile.
func (a *Archive) retry(ctx context.Context, do func(*view) error) error {
	for n := 0; ; n++ {
		v, err := a.look(ctx)
		if err != nil {
			return err
		}
		if err = do(v); !errors.Is(err, ErrMissingObject) || n == maxReplans {
			return err
		}
		if err := a.refresh(ctx); err != nil {
			return err
		}
	}
}

// state reads the state object of a view; without one it is the empty state at the
// origin, where that is the beginning of the log.
func (a *Archive) state(ctx context.Context, v *view) (*State, error) {
	ref := v.m.State
	if ref == nil {
		return &State{Position: v.m.Origin}, nil
	}
	key := ref.ID.Key(a.node, KindState)
	body, err := a.fetch(ctx, key, 0, ref.Bytes)
	if err != nil {
		return nil, err
	}
	h, s, err := DecodeState(body)
	if err != nil {
		return nil, inObject(key, err)
	}
	if h.ID != ref.ID || s.Position != ref.Position {
		return nil, inObject(key, problem(ErrDamagedObject, "header", 0, "it is object %s, of position %d", h.ID, s.Position))
	}
	return s, nil
}

// journals applies to t what the journals hold from position on. Of a group that does
// not need it the journal is not read: then skip takes the group.
func (a *Archive) journals(ctx context.Context, v *view, position uint64, needs func(*Group) bool, skip func(*Group) error, t applier) error {
	first := v.at(position)
	load := func(ctx context.Context, i int) (*journal, error) {
		g := v.group(first + i)
		if !needs(g) || len(g.Objects) == 0 {
			return nil, nil
		}
		return a.journal(ctx, g)
	}
	return inOrder(ctx, v.groups()-first, stateAhead, load, func(i int, j *journal) error {
		g := v.group(first + i)
		if len(g.Objects) == 0 {
			return nil
		}
		if j == nil {
			return skip(g)
		}
		return j.visit(func(e *Entry) error {
			if e.Position < position {
				return nil
			}
			return apply(t, e)
		})
	})
}

// apply changes a state by an entry.
func apply(t applier, e *Entry) error {
	if e.Item == nil {
		batch := e.Batch()
		return t.ApplyExtents(&batch, e.Extents)
	}
	it, err := e.Control()
	if err != nil {
		return err
	}
	return t.Apply(&it)
}

// journal is a whole journal as it is stored.
type journal struct {
	key    string
	to     uint64
	blocks []BlockInfo
	stored []byte
}

// journal reads that of a group.
func (a *Archive) journal(ctx context.Context, g *Group) (*journal, error) {
	ref := &g.Objects[0]
	x, err := a.index(ctx, g, ref)
	if err != nil {
		return nil, err
	}
	j := &journal{key: ref.ID.Key(a.node, KindData), to: g.To}
	from, to := x.Find(0)
	for ; from < to; from++ {
		j.blocks = append(j.blocks, x.Block(from))
	}
	if len(j.blocks) > 0 {
		place := j.blocks[0].Place
		j.stored, err = a.fetch(ctx, j.key, place, j.blocks[len(j.blocks)-1].End()-place)
	}
	return j, err
}

func (j *journal) visit(visit func(*Entry) error) error {
	var r journalReader
	for i := range j.blocks {
		info := &j.blocks[i]
		raw, err := info.raw("journal block", j.stored[info.Place-j.blocks[0].Place:][:info.StoredBytes], nil)
		if err == nil {
			err = r.visit(info, raw, j.to, visit)
		}
		if errors.Is(err, stream.ErrDamaged) {
			err = fmt.Errorf("%w: %w", ErrDamagedObject, err)
		}
		if err != nil {
			return inObject(j.key, err)
		}
	}
	return nil
}
