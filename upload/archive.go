package upload

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
)

// Cache keeps blocks and indexes of objects in memory, uncompressed and checked. It
// returns what it has under key, or what load gives; of callers who ask for one key at
// once only one should load. Nobody changes the bytes. A nil Cache keeps nothing.
type Cache func(ctx context.Context, key CacheKey, load func(context.Context) ([]byte, error)) ([]byte, error)

// CacheKey names a part of a data object. What it names never changes.
type CacheKey struct {
	Object ObjectID
	Place  uint64
}

// Archive reads a log from its store. Any number of goroutines may use it.
//
// In a sidecar the uploader hands it each manifest that it committed (Apply). Else it
// reads the manifest once, and again when an object that the manifest names is gone:
// compaction may have taken its place meanwhile.
type Archive struct {
	store store.Store
	node  string
	cache Cache
	fed   bool // Apply gives the manifests
	// replayWholeBytes and replayOpenBytes, but for tests.
	wholeBytes, openBytes uint64

	mu       sync.Mutex
	manifest *Manifest
	version  store.Version
	indexed  []Group  // what the index object indexID holds
	indexID  ObjectID // zero: none
	loading  chan struct{}
}

// OpenArchive reads the node's manifest. Errors: ErrNoManifest, ErrManifest,
// ErrNewerVersion, those of the store.
func OpenArchive(ctx context.Context, s store.Store, node string, cache Cache) (*Archive, error) {
	a := newArchive(s, node, cache)
	if err := a.reload(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// NewArchive is an archive that Apply gives its manifests; m is the first one.
func NewArchive(s store.Store, m *Manifest, cache Cache) *Archive {
	a := newArchive(s, m.Node, cache)
	a.fed, a.manifest = true, m
	return a
}

func newArchive(s store.Store, node string, cache Cache) *Archive {
	return &Archive{store: s, node: node, cache: cache, loading: make(chan struct{}, 1), wholeBytes: replayWholeBytes, openBytes: replayOpenBytes}
}

// Apply makes m the manifest of all reads that begin from now on. It is not to be
// changed any more. It does not wait for anything.
func (a *Archive) Apply(m *Manifest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.manifest = m
}

// Manifest is the newest manifest. It is not to be changed.
func (a *Archive) Manifest() *Manifest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.manifest
}

// Version is the store's version of the manifest that was read; empty where Apply
// gives them.
func (a *Archive) Version() store.Version {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// ReadManifest reads the manifest of a node, with its version for a conditional put.
// Errors: ErrNoManifest, ErrManifest, ErrNewerVersion, those of the store.
func ReadManifest(ctx context.Context, s store.Store, node string) (*Manifest, store.Version, error) {
	key := ManifestKey(node)
	body, version, err := s.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, "", fmt.Errorf("%w: node %q, key %s", ErrNoManifest, node, key)
	}
	if err != nil {
		return nil, "", err
	}
	m, err := DecodeManifest(body)
	if err == nil && m.Node != node {
		err = problem(ErrManifest, "node", mNode, "it is the manifest of node %q", m.Node)
	}
	if err != nil {
		return nil, version, fmt.Errorf("%s: %w", key, err)
	}
	return m, version, nil
}

func (a *Archive) reload(ctx context.Context) error {
	m, version, err := ReadManifest(ctx, a.store, a.node)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.manifest, a.version = m, version
	return nil
}

// view is a manifest and all its groups, in order. It never changes.
type view struct {
	m       *Manifest
	indexed []Group // at or above the manifest's origin
}

func (v *view) groups() int { return len(v.indexed) + len(v.m.Groups) }

func (v *view) group(i int) *Group {
	if i < len(v.indexed) {
		return &v.indexed[i]
	}
	return &v.m.Groups[i-len(v.indexed)]
}

// at is the first group that ends behind position.
func (v *view) at(position uint64) int {
	from, to := 0, v.groups()
	for from < to {
		mid := (from + to) / 2
		if v.group(mid).To <= position {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from
}

// look returns the newest view, with the index object read where it was not yet.
func (a *Archive) look(ctx context.Context) (*view, error) {
	select {
	case a.loading <- struct{}{}: // one reads the index for all
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-a.loading }()
	for retried := false; ; retried = true {
		v, err := a.lookOnce(ctx)
		if !errors.Is(err, ErrMissingObject) || retried {
			return v, err
		}
		if err := a.refresh(ctx); err != nil {
			return nil, err
		}
	}
}

func (a *Archive) lookOnce(ctx context.Context) (*view, error) {
	a.mu.Lock()
	m, indexed, id := a.manifest, a.indexed, a.indexID
	a.mu.Unlock()
	if m.Index == nil {
		return &view{m: m}, nil
	}
	if id != m.Index.ID {
		var err error
		if indexed, err = a.readIndex(ctx, m); err != nil {
			return nil, err
		}
		a.mu.Lock()
		a.indexed, a.indexID = indexed, m.Index.ID
		a.mu.Unlock()
	}
	v := &view{m: m, indexed: indexed}
	for len(v.indexed) > 0 && v.indexed[0].To <= m.Origin {
		v.indexed = v.indexed[1:]
	}
	if from := m.Index.To; m.Origin < from && (len(v.indexed) == 0 || v.indexed[0].From != m.Origin) {
		return nil, problem(ErrManifest, "index object "+m.Index.ID.String(), 0, "no group begins at the origin, position %d", m.Origin)
	}
	return v, nil
}

// refresh makes the newest manifest that of the archive.
func (a *Archive) refresh(ctx context.Context) error {
	if a.fed {
		return nil // Apply did already
	}
	return a.reload(ctx)
}

func (a *Archive) readIndex(ctx context.Context, m *Manifest) ([]Group, error) {
	ref := m.Index
	key := ref.ID.Key(a.node, KindIndex)
	body, err := a.fetch(ctx, key, 0, ref.Bytes)
	if err != nil {
		return nil, err
	}
	h, groups, err := DecodeIndex(body)
	if err != nil {
		return nil, inObject(key, err)
	}
	if h.ID != ref.ID || h.To != ref.To {
		return nil, inObject(key, problem(ErrDamagedObject, "header", 0, "it is object %s, up to position %d", h.ID, h.To))
	}
	return groups, nil
}

// fetch reads n bytes of an object.
func (a *Archive) fetch(ctx context.Context, key string, from, n uint64) ([]byte, error) {
	dst := make([]byte, n)
	return dst, a.fetchInto(ctx, key, from, dst)
}

func (a *Archive) fetchInto(ctx context.Context, key string, from uint64, dst []byte) error {
	err := a.store.GetRange(ctx, key, int64(from), dst)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("object %s: %w: %w", key, ErrMissingObject, err)
	case errors.Is(err, store.ErrShort):
		return inObject(key, fmt.Errorf("%w: %w", ErrDamagedObject, err))
	}
	return err
}

// cached loads a part of a data object through the cache.
func (a *Archive) cached(ctx context.Context, id ObjectID, place uint64, load func(context.Context) ([]byte, error)) ([]byte, error) {
	if a.cache == nil {
		return load(ctx)
	}
	return a.cache(ctx, CacheKey{Object: id, Place: place}, load)
}

// index reads the index of an object of a group.
func (a *Archive) index(ctx context.Context, g *Group, ref *ObjectRef) (*ObjectIndex, error) {
	raw, err := a.cached(ctx, ref.ID, ref.Index.Place, func(ctx context.Context) ([]byte, error) {
		key := ref.ID.Key(a.node, KindData)
		stored, err := a.fetch(ctx, key, ref.Index.Place, uint64(ref.Index.StoredBytes))
		if err != nil {
			return nil, err
		}
		raw, err := ref.Index.raw("index", stored, nil)
		if err != nil {
			return nil, inObject(key, err)
		}
		if _, err := decodeObjectIndex(&Header{From: g.From, To: g.To}, ref.Index, raw); err != nil {
			return nil, inObject(key, err)
		}
		return raw, nil
	})
	if err != nil {
		return nil, err
	}
	return checkedIndex(raw), nil
}

// block reads one block of an object.
func (a *Archive) block(ctx context.Context, id ObjectID, info *BlockInfo) ([]byte, error) {
	return a.cached(ctx, id, info.Place, func(ctx context.Context) ([]byte, error) {
		key := id.Key(a.node, KindData)
		stored, err := a.fetch(ctx, key, info.Place, uint64(info.StoredBytes))
		if err != nil {
			return nil, err
		}
		raw, err := info.raw("block", stored, nil)
		if err != nil {
			return nil, inObject(key, err)
		}
		return raw, nil
	})
}

// find returns what an object holds of a stream, from the manifest or from the
// object's index.
func (a *Archive) find(ctx context.Context, g *Group, ref *ObjectRef, id stream.ID) (Range, bool, error) {
	if ref.Ranges != nil || ref.Streams == 0 {
		r, found := ref.Find(id)
		return r, found, nil
	}
	x, err := a.index(ctx, g, ref)
	if err != nil {
		return Range{}, false, err
	}
	r, found := x.Range(id)
	return r, found, nil
}

// findInGroup returns what a group holds of a stream, and in which object.
func (a *Archive) findInGroup(ctx context.Context, g *Group, id stream.ID) (Range, *ObjectRef, error) {
	for i := range g.Objects {
		ref := &g.Objects[i]
		r, found, err := a.find(ctx, g, ref, id)
		if err != nil || found {
			return r, ref, err
		}
	}
	return Range{}, nil, nil
}

// seek returns the first group whose range of the stream satisfies beyond, which must
// be so for all later ones too; groups() where there is none. Groups without the stream
// are passed over.
func (a *Archive) seek(ctx context.Context, v *view, id stream.ID, beyond func(*Range) bool) (int, error) {
	lo, hi, end := 0, v.groups(), v.groups()
	answer := end
	for lo < hi {
		mid := (lo + hi) / 2
		at := mid
		for ; at >= lo; at-- {
			r, ref, err := a.findInGroup(ctx, v.group(at), id)
			if err != nil {
				return 0, err
			}
			if ref != nil {
				if beyond(&r) {
					answer, hi = at, at
				} else {
					lo = mid + 1
				}
				break
			}
		}
		if at < lo && lo <= mid {
			lo = mid + 1 // none of them has it
		}
	}
	return answer, nil
}

// Range returns which records of a stream are in the store: [First, First+Count), but
// for what compaction left out between. found is false where there are none.
func (a *Archive) Range(ctx context.Context, id stream.ID) (all Range, found bool, err error) {
	v, err := a.look(ctx)
	if err != nil {
		return all, false, err
	}
	first, err := a.seek(ctx, v, id, func(*Range) bool { return true })
	if err != nil || first == v.groups() {
		return all, false, err
	}
	for i := v.groups() - 1; i >= first; i-- {
		last, ref, err := a.findInGroup(ctx, v.group(i), id)
		if err != nil {
			return all, false, err
		}
		if ref == nil {
			continue
		}
		all, _, err = a.findInGroup(ctx, v.group(first), id)
		all.Count, all.LastNS = last.End()-all.First, last.LastNS
		return all, true, err
	}
	return all, false, nil
}

// FindTime returns the offset of the stream's first record in the store whose timestamp
// is at least ns; found is false where there is none.
func (a *Archive) FindTime(ctx context.Context, id stream.ID, ns int64) (offset uint64, found bool, err error) {
	v, err := a.look(ctx)
	if err != nil {
		return 0, false, err
	}
	i, err := a.seek(ctx, v, id, func(r *Range) bool { return r.LastNS >= ns })
	if err != nil || i == v.groups() {
		return 0, false, err
	}
	g := v.group(i)
	r, ref, err := a.findInGroup(ctx, g, id)
	if err != nil || r.FirstNS >= ns {
		return r.First, err == nil, err
	}
	x, err := a.index(ctx, g, ref)
	if err != nil {
		return 0, false, err
	}
	info, found := x.seekTime(id, ns)
	if !found {
		return 0, false, inObject(ref.ID.Key(a.node, KindData), problem(ErrDamagedObject, "index", 0, "stream %d is not there as the manifest says", id))
	}
	raw, err := a.block(ctx, ref.ID, &info)
	if err != nil {
		return 0, false, err
	}
	var b Block
	if err := b.decode(&info, raw); err != nil {
		return 0, false, inObject(ref.ID.Key(a.node, KindData), err)
	}
	return b.First + uint64(b.seekTime(ns)), true, nil
}
