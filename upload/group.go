package upload

import (
	"context"
	"sync"

	"github.com/walsidecar/walsidecar/stream"
)

// bytes is the size of the group's objects.
func (g *Group) bytes() (n uint64) {
	for i := range g.Objects {
		n += g.Objects[i].Bytes
	}
	return n
}

// openGroup is a group that is read in commit order.
type openGroup struct {
	g       *Group
	objects []*openObject
	streams map[stream.ID]*openStream
	bytes   int // of open blocks
}

type openObject struct {
	ref   *ObjectRef
	key   string
	index *ObjectIndex
	body  []byte // all blocks, from behind the header on; nil: read in rows
}

// openStream is a stream of an open group, or its journal (0).
type openStream struct {
	id       stream.ID
	object   *openObject
	key      string
	from, to int // blocks

	row      []byte // stored bytes of blocks [rowFrom, rowTo)
	rowFrom  int
	rowTo    int
	block    Block
	blockRaw []byte // nil: none is open
	info     BlockInfo
}

// openGroup reads the indexes of a group's objects, and their blocks where they are not
// too many bytes.
func (a *Archive) openGroup(ctx context.Context, g *Group) (*openGroup, error) {
	open := &openGroup{g: g, streams: map[stream.ID]*openStream{}, objects: make([]*openObject, len(g.Objects))}
	whole := g.bytes() <= a.wholeBytes
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	slots := make(chan struct{}, scanAhead)
	for i := range g.Objects {
		wg.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; wg.Done() }()
			var err error
			if open.objects[i], err = a.openObject(ctx, g, &g.Objects[i], whole); err != nil {
				once.Do(func() { failed = err })
				cancel()
			}
		}()
	}
	wg.Wait()
	return open, failed
}

func (a *Archive) openObject(ctx context.Context, g *Group, ref *ObjectRef, whole bool) (*openObject, error) {
	o := &openObject{ref: ref, key: ref.ID.Key(a.node, KindData)}
	var err error
	if !whole {
		o.index, err = a.index(ctx, g, ref)
		return o, err
	}
	body, err := a.fetch(ctx, o.key, 0, ref.Bytes)
	if err != nil {
		return nil, err
	}
	h, section, err := openEnvelope(body)
	if err != nil {
		return nil, inObject(o.key, err)
	}
	if h.Kind != KindData || h.ID != ref.ID || section != ref.Index || h.From != g.From || h.To != g.To {
		return nil, inObject(o.key, problem(ErrDamagedObject, "header", 0, "it is %s object %s of positions [%d, %d), not what the manifest says", h.Kind, h.ID, h.From, h.To))
	}
	raw, err := section.raw("index", body[section.Place:section.End()], nil)
	if err == nil {
		o.index, err = decodeObjectIndex(&h, section, raw)
	}
	if err != nil {
		return nil, inObject(o.key, err)
	}
	o.body = body
	return o, nil
}

// stream returns what the group holds of a stream, nil where it holds nothing. The
// journal is in the first object.
func (g *openGroup) stream(id stream.ID) *openStream {
	if s, known := g.streams[id]; known {
		return s
	}
	var s *openStream
	for i, o := range g.objects {
		from, to := o.index.Find(id)
		if from < to && (id != 0 || i == 0) {
			s = &openStream{id: id, object: o, key: o.key, from: from, to: to}
			break
		}
	}
	g.streams[id] = s
	return s
}

// openBlock reads block i of a stream.
func (a *Archive) openBlock(ctx context.Context, s *openStream, i int) (*BlockInfo, []byte, error) {
	info := s.object.index.Block(i)
	info.Stream = s.id
	stored, err := a.stored(ctx, s, i, &info)
	if err != nil {
		return nil, nil, err
	}
	raw, err := info.raw("block", stored, nil)
	if err != nil {
		return nil, nil, inObject(s.key, err)
	}
	s.info = info
	return &s.info, raw, nil
}

// stored returns the bytes of a block as they lie in the object.
func (a *Archive) stored(ctx context.Context, s *openStream, i int, info *BlockInfo) ([]byte, error) {
	if body := s.object.body; body != nil {
		return body[info.Place:info.End():info.End()], nil
	}
	if i < s.rowFrom || i >= s.rowTo {
		n := uint64(info.StoredBytes)
		s.rowFrom, s.rowTo = i, i+1
		for ; s.rowTo < s.to; s.rowTo++ {
			next := s.object.index.Block(s.rowTo)
			if n+uint64(next.StoredBytes) > replayRowBytes {
				break
			}
			n += uint64(next.StoredBytes)
		}
		var err error
		if s.row, err = a.fetch(ctx, s.key, info.Place, n); err != nil {
			s.rowTo = s.rowFrom
			return nil, err
		}
	}
	at := info.Place - s.object.index.Block(s.rowFrom).Place
	return s.row[at:][:info.StoredBytes:info.StoredBytes], nil
}

// openRecord reads one record of an open group; found is false where it has none such.
func (a *Archive) openRecord(ctx context.Context, g *openGroup, id stream.ID, offset uint64, r *Record) (found bool, err error) {
	s := g.stream(id)
	if s == nil {
		return false, nil
	}
	if s.blockRaw == nil || offset < s.block.First || offset >= s.block.First+uint64(s.block.Count) {
		i := s.object.index.seek(s.from, s.to, offset)
		if i == s.to || s.object.index.Block(i).First > offset {
			return false, nil
		}
		info, raw, err := a.openBlock(ctx, s, i)
		if err != nil {
			return false, err
		}
		if err := s.block.decode(info, raw); err != nil {
			return false, inObject(s.key, err)
		}
		g.bytes += len(raw) - len(s.blockRaw)
		s.blockRaw = raw
		g.shrink(s, a.openBytes)
	}
	if err := s.block.Record(int(offset-s.block.First), r); err != nil {
		return false, inObject(s.key, err)
	}
	return true, nil
}

// shrink forgets open blocks, but for that of keep, where they are more than most bytes.
// The records that refer to them keep their memory.
func (g *openGroup) shrink(keep *openStream, most uint64) {
	if uint64(g.bytes) <= most {
		return
	}
	for _, s := range g.streams {
		if s != nil && s != keep && s.blockRaw != nil {
			g.bytes -= len(s.blockRaw)
			s.blockRaw, s.block = nil, Block{}
		}
	}
}

// inOrder calls use with what load gives for 0 to n−1, in order; load runs ahead, for up
// to depth of them.
func inOrder[T any](ctx context.Context, n, depth int, load func(context.Context, int) (T, error), use func(int, T) error) error {
	type result struct {
		v   T
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	results := make([]chan result, n)
	begin := func(i int) {
		results[i] = make(chan result, 1)
		wg.Add(1)
		go func() {
			defer wg.Done()
			v, err := load(ctx, i)
			results[i] <- result{v, err}
		}()
	}
	for i := range min(depth, n) {
		begin(i)
	}
	for i := range n {
		r := <-results[i]
		results[i] = nil
		if r.err != nil {
			return r.err
		}
		if i+depth < n {
			begin(i + depth)
		}
		if err := use(i, r.v); err != nil {
			return err
		}
	}
	return nil
}
