package sim

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// simNode is the node whose log a world is about.
const simNode = "sim"

// bucket is the object store of a world, with what may still come to it.
type bucket struct {
	w           *World
	sim         simstore.Store
	archive     *archiveOracle
	outageUntil int64 // nothing is answered before, by the world's clock

	calm   bool             // requests are carried out as they come: those of work, which uses goroutines, and of reads
	broken bool             // with calm: none is
	strays []*upload.Action // of hosts that are gone: they may be carried out at any time
}

func newBucket(w *World) *bucket {
	b := &bucket{w: w}
	b.archive = &archiveOracle{w: w, b: b, next: map[place]uint64{}, checked: map[upload.ObjectID]bool{}}
	b.sim.Inject = b.inject
	b.sim.Watch = b.archive.changed
	b.sim.Now = func() time.Time { return time.Unix(0, w.wall) }
	return b
}

// inject decides what becomes of a request.
func (b *bucket) inject(c simstore.Call) simstore.Fault {
	w := b.w
	fault := simstore.None
	switch {
	case b.calm && b.broken:
		return simstore.Unavailable
	case b.calm || w.quiet:
		return simstore.None
	case w.now < b.outageUntil:
		// A store that is down answers nothing; what had been sent may have come through.
		fault = simstore.Unavailable
		if w.chance(0.1) {
			fault = simstore.Unanswered
		}
	case w.chance(w.profile.storeFault):
		fault = []simstore.Fault{simstore.Unavailable, simstore.Denied, simstore.Lost, simstore.Lost, simstore.Unanswered, simstore.Unanswered,
			simstore.Late, simstore.Late}[w.rng.IntN(8)]
	}
	if fault != simstore.None {
		w.stats.StoreFaults++
		w.tracef("the store: %s of %s: fault %d", c.Op, c.Key, fault)
	}
	return fault
}

// late lets requests come through that were sent a while ago.
func (b *bucket) late() {
	w := b.w
	if n := b.sim.OnTheirWay(); n > 0 && w.chance(0.05) {
		b.sim.Land(w.rng.IntN(n))
	}
	if n := len(b.strays); n > 0 && w.chance(0.05) {
		i := w.rng.IntN(n)
		a := b.strays[i]
		b.strays = append(b.strays[:i:i], b.strays[i+1:]...)
		w.tracef("a stray %s of %s comes through", a.Kind, a.Key)
		b.carryOut(a)
	}
}

// mishap is what a store does now and then.
func (b *bucket) mishap() {
	w := b.w
	if w.chance(w.profile.outage) {
		b.outageUntil = w.now + w.rng.Int64N(int64(20*time.Second))
		w.tracef("the store is down for %s", time.Duration(b.outageUntil-w.now))
	}
}

// carryOut does an action.
func (b *bucket) carryOut(a *upload.Action) upload.Result {
	if a.Kind != upload.ActWork {
		return a.Do(context.Background(), &b.sim)
	}
	b.calm, b.broken = true, !b.w.quiet && (b.w.now < b.outageUntil || b.w.chance(b.w.profile.storeFault))
	defer func() { b.calm, b.broken = false, false }()
	return a.Do(context.Background(), &b.sim)
}

// storePort is a host's way to the store while it starts: before every request it may
// crash.
type storePort struct{ h *host }

var _ store.Store = storePort{}

func (p storePort) before() error {
	h := p.h
	if err := h.port.before(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	h.w.bucket.late()
	return nil
}

// PutIfAbsent is of store.Store.
func (p storePort) PutIfAbsent(ctx context.Context, key string, body []byte) (store.Version, error) {
	if err := p.before(); err != nil {
		return "", err
	}
	return p.h.w.bucket.sim.PutIfAbsent(ctx, key, body)
}

// PutIfMatch is of store.Store.
func (p storePort) PutIfMatch(ctx context.Context, key string, body []byte, old store.Version) (v store.Version, err error) {
	if err = p.before(); err != nil {
		return "", err
	}
	v, err = p.h.w.bucket.sim.PutIfMatch(ctx, key, body, old)
	if dead := p.before(); dead != nil {
		return "", dead
	}
	return v, err
}

// Get is of store.Store.
func (p storePort) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := p.before(); err != nil {
		return nil, "", err
	}
	return p.h.w.bucket.sim.Get(ctx, key)
}

// GetRange is of store.Store.
func (p storePort) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	if err := p.before(); err != nil {
		return err
	}
	return p.h.w.bucket.sim.GetRange(ctx, key, from, dst)
}

// Head is of store.Store.
func (p storePort) Head(ctx context.Context, key string) (store.Info, error) {
	if err := p.before(); err != nil {
		return store.Info{}, err
	}
	return p.h.w.bucket.sim.Head(ctx, key)
}

// List is of store.Store.
func (p storePort) List(ctx context.Context, prefix, after string, limit int) ([]store.Info, error) {
	if err := p.before(); err != nil {
		return nil, err
	}
	return p.h.w.bucket.sim.List(ctx, prefix, after, limit)
}

// Delete is of store.Store.
func (p storePort) Delete(ctx context.Context, keys []string) error {
	if err := p.before(); err != nil {
		return err
	}
	return p.h.w.bucket.sim.Delete(ctx, keys)
}

func (b *bucket) honest() store.Store { return honestStore{sim: &b.sim} }

// honestStore answers every read at once: reads use goroutines, and may leave some behind.
type honestStore struct {
	store.Store
	sim *simstore.Store
}

// Get is of store.Store.
func (s honestStore) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	body, found := s.sim.Peek(key)
	if !found {
		return nil, "", store.ErrNotFound
	}
	return bytes.Clone(body), "", ctx.Err()
}

// GetRange is of store.Store.
func (s honestStore) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	body, found := s.sim.Peek(key)
	switch {
	case !found:
		return store.ErrNotFound
	case from+int64(len(dst)) > int64(len(body)):
		return store.ErrShort
	}
	copy(dst, body[from:])
	return ctx.Err()
}

// Head is of store.Store.
func (s honestStore) Head(ctx context.Context, key string) (store.Info, error) {
	body, found := s.sim.Peek(key)
	if !found {
		return store.Info{}, store.ErrNotFound
	}
	return store.Info{Key: key, SizeBytes: int64(len(body))}, ctx.Err()
}
