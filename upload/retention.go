package upload

import (
	"context"
	"time"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
)

// retentionEvery is how often retention looks at the store, if anything is to be kept
// for a limited time only.
const retentionEvery = 10 * time.Minute

// Retention says how much of each stream is kept. It goes by what is committed in the
// store, never beyond the uploaded position, and by whole ranges of objects: a little
// more than it says is kept.
type Retention struct {
	// Age: records older than that go; 0: they stay.
	Age time.Duration
	// Bytes per stream, as stored: older records than those go; 0: they stay.
	Bytes uint64
}

func (r *Retention) enabled() bool { return r.Age > 0 || r.Bytes > 0 }

// Trim says which records of a stream retention does not keep: those below Before.
type Trim struct {
	Stream stream.ID
	Before uint64
}

// Plan returns the trims that retention asks for, at most one per stream, as of the
// archive's manifest. NowNS is the current time, ns since the Unix epoch. The log
// carries them out, like any trim: compaction then leaves the records out. Errors:
// ErrMissingObject, ErrDamagedObject, those of the store.
func (r Retention) Plan(ctx context.Context, a *Archive, nowNS int64) ([]Trim, error) {
	ctx = store.WithClass(ctx, store.CleanUp)
	joins, err := a.Joins(ctx)
	if err != nil {
		return nil, err
	}
	newest := newestIDs(joins)
	v, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	cutoff := nowNS - int64(r.Age)
	before, kept := map[stream.ID]uint64{}, map[stream.ID]uint64{}
	var order []stream.ID
	for i := v.groups() - 1; i >= 0; i-- { // the newest first
		g := v.group(i)
		for k := range g.Objects {
			o := &g.Objects[k]
			if r.Bytes == 0 && o.FirstNS >= cutoff {
				continue // nothing in it is too old
			}
			ranges := o.Ranges
			if ranges == nil && o.Streams > 0 {
				if ranges, err = a.ranges(ctx, g, o); err != nil {
					return nil, err
				}
			}
			for n := range ranges {
				x := &ranges[n]
				id := x.Stream
				if now, found := newest[id]; found {
					id = now // it is trimmed as what goes on where it ended
				}
				if before[id] != 0 {
					continue // a newer range goes already
				}
				if r.Age > 0 && x.LastNS < cutoff || r.Bytes > 0 && kept[id] >= r.Bytes {
					before[id] = x.End()
					order = append(order, id)
					continue
				}
				kept[id] += o.Bytes / o.Records * x.Count
			}
		}
	}
	trims := make([]Trim, 0, len(order))
	for _, id := range order {
		trims = append(trims, Trim{Stream: id, Before: before[id]})
	}
	return trims, nil
}

// ranges reads the ranges of an object that the manifest has no room for.
func (a *Archive) ranges(ctx context.Context, g *Group, o *ObjectRef) ([]Range, error) {
	x, err := a.index(ctx, g, o)
	if err != nil {
		return nil, err
	}
	ranges := make([]Range, x.Streams())
	for i := range ranges {
		ranges[i] = x.Stream(i)
	}
	return ranges, nil
}

// retain lets retention have a look. The age of records goes by the earlier of two
// clocks, this host's and the store's, so that one that is ahead trims nothing.
func (u *Uploader) retain(done chan struct{}) {
	defer close(done)
	nowNS := time.Now().UnixNano()
	if u.o.Retention.Age > 0 {
		info, err := u.o.Store.Head(store.WithClass(u.ctx, store.CleanUp), ManifestKey(u.o.Node))
		if err != nil {
			u.o.Logger.Warn("retention does not know the store's time", "error", err)
			return
		}
		nowNS = min(nowNS, info.Modified.UnixNano())
	}
	trims, err := u.o.Retention.Plan(u.ctx, u.archive, nowNS)
	if err != nil {
		u.o.Logger.Warn("retention", "error", err)
		return
	}
	if len(trims) > 0 {
		u.o.Trim(u.ctx, trims)
	}
}
