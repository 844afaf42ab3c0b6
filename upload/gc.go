package upload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

// DefaultOrphanGrace is how old an orphan is before GC deletes it. Of what sidecars put,
// GC is sure without it; a restore puts its state object before it has the manifest.
const DefaultOrphanGrace = 24 * time.Hour

// listPage is how many keys one request lists, as many as S3 gives.
const listPage = 1000

// GCOptions say what GC does.
type GCOptions struct {
	// Delete: orphans are deleted. Without it they are only told of.
	Delete bool
	// Grace is how old they must be; 0: DefaultOrphanGrace. It goes by the store's clock
	// alone: how much older an orphan is than the newest object that the node has there.
	// It has to be longer than a restore takes.
	Grace time.Duration
}

// Orphan is an object that no manifest names, nor ever will.
type Orphan struct {
	Key      string
	Bytes    int64
	Modified time.Time // by the store's clock
	Deleted  bool
}

// GCReport is what GC found.
type GCReport struct {
	Objects     int // of the node, its manifest not counted
	Orphans     int // old enough
	OrphanBytes int64
	Young       int // would be orphans, but are not old enough
	Doomed      int // are deleted by the sidecar, when their grace time is over
	Current     int // of the incarnation that has the manifest, and not named: may be on their way
	Foreign     int // keys below the node's prefix that are not of this format; left alone
	Deleted     int
}

// GC looks for the orphans of a node: objects that were put and never committed, because
// their sidecar died or was fenced; and for what a probe of the store left that was killed,
// whichever node's it was. It calls each with every orphan. The sidecar may be running.
//
// It never deletes what a manifest names, or may name later. Why:
//
//   - An object can become named only by a commit of the incarnation in its key: nobody
//     adopts objects of others.
//   - The manifest is read again after the listing. If another incarnation has it then, the
//     one in the key can never commit again: its claim is over, and every attempt of its
//     that is still on its way expects a version that is gone for ever.
//   - So what that manifest does not name, and is of another incarnation than its own, is
//     not named by any later manifest either. Objects of its own incarnation are left
//     alone, whatever their sequence: they may be on their way into the next commit.
//   - A restore alone puts an object, its state, before it has the manifest. The grace time
//     covers that.
//   - A probe takes seconds, and nothing reads what it leaves. The grace time covers one that
//     is under way.
//   - An object whose put is still on its way is not in the listing; the next GC finds it.
//
// Listings that are late only make it find less: what they show and is gone is deleted once
// more, which changes nothing, since keys are never used again.
//
// Errors: ErrNoManifest (then nothing is deleted: everything would look like an orphan),
// ErrManifest, ErrMissingObject, ErrDamagedObject, ErrNewerVersion, those of the store.
func GC(ctx context.Context, s store.Store, node string, o GCOptions, each func(Orphan)) (*GCReport, error) {
	if o.Grace == 0 {
		o.Grace = DefaultOrphanGrace
	}
	ctx = store.WithClass(ctx, store.CleanUp)
	before, err := readNamed(ctx, s, node)
	if err != nil {
		return nil, err
	}
	report := &GCReport{}
	candidates, newest, err := listCandidates(ctx, s, node, before, report)
	if err != nil {
		return nil, err
	}
	probes, newest, err := listProbes(ctx, s, newest)
	if err != nil {
		return nil, err
	}
	after, err := readNamed(ctx, s, node)
	if err != nil {
		return nil, err
	}
	report.Doomed = len(after.m.Doomed)
	c := &collector{s: s, o: o, newest: newest, report: report, each: each}
	for _, x := range candidates {
		switch after.judge(x.id) {
		case named:
		case current:
			report.Current++
		default:
			err = c.take(ctx, x.info)
		}
		if err != nil {
			return report, err
		}
	}
	for _, info := range probes {
		if err := c.take(ctx, info); err != nil {
			return report, err
		}
	}
	return report, c.flush(ctx)
}

// collector tells of orphans, and deletes them if it is to.
type collector struct {
	s      store.Store
	o      GCOptions
	newest time.Time // by the store's clock
	report *GCReport
	each   func(Orphan)
	batch  []Orphan
}

// take takes an orphan, if it is old enough.
func (c *collector) take(ctx context.Context, info store.Info) error {
	if c.newest.Sub(info.Modified) < c.o.Grace {
		c.report.Young++
		return nil
	}
	c.report.Orphans++
	c.report.OrphanBytes += info.SizeBytes
	if c.batch = append(c.batch, Orphan{Key: info.Key, Bytes: info.SizeBytes, Modified: info.Modified}); len(c.batch) < deleteAtOnce {
		return nil
	}
	return c.flush(ctx)
}

func (c *collector) flush(ctx context.Context) error {
	if c.o.Delete && len(c.batch) > 0 {
		keys := make([]string, len(c.batch))
		for i := range c.batch {
			keys[i] = c.batch[i].Key
			c.batch[i].Deleted = true
		}
		if err := c.s.Delete(ctx, keys); err != nil {
			return fmt.Errorf("delete orphans: %w", err)
		}
		c.report.Deleted += len(c.batch)
	}
	for i := range c.batch {
		c.each(c.batch[i])
	}
	c.batch = c.batch[:0]
	return nil
}

// listProbes lists what probes of the store have left, of any node: the probe of a start that
// was killed. newest is when the newest object of all was put.
func listProbes(ctx context.Context, s store.Store, newest time.Time) (left []store.Info, _ time.Time, err error) {
	for after := ""; ; {
		page, err := s.List(ctx, store.ProbePrefix, after, listPage)
		if err != nil {
			return nil, newest, err
		}
		for _, info := range page {
			if after = info.Key; store.IsProbe(info.Key) {
				left = append(left, info)
			}
			if info.Modified.After(newest) {
				newest = info.Modified
			}
		}
		if len(page) < listPage {
			return left, newest, nil
		}
	}
}

type candidate struct {
	id   ObjectID
	info store.Info
}

// listCandidates lists the node's objects, and returns those that names does not
// account for, and when the newest object of all was put.
func listCandidates(ctx context.Context, s store.Store, node string, names *namedObjects, report *GCReport) (all []candidate, newest time.Time, err error) {
	for after := ""; ; {
		page, err := s.List(ctx, Prefix(node), after, listPage)
		if err != nil {
			return nil, newest, err
		}
		for _, info := range page {
			after = info.Key
			if info.Modified.After(newest) {
				newest = info.Modified
			}
			if info.Key == ManifestKey(node) {
				continue
			}
			report.Objects++
			_, id, ok := ParseKey(node, info.Key)
			switch {
			case !ok:
				report.Foreign++
			case names.judge(id) == current:
				report.Current++
			case names.judge(id) == orphan:
				all = append(all, candidate{id, info})
			}
		}
		if len(page) < listPage {
			return all, newest, nil
		}
	}
}

// namedObjects are those that one manifest names, with its doomed ones.
type namedObjects struct {
	m   *Manifest
	all map[ObjectID]bool
}

func readNamed(ctx context.Context, s store.Store, node string) (*namedObjects, error) {
	var m *Manifest
	var indexed []Group
	var err error
	for range maxReplans { // the index object may have been replaced meanwhile
		if m, _, err = ReadManifest(ctx, s, node); err != nil {
			return nil, err
		}
		if indexed, err = readIndexed(ctx, s, node, m.Index, m.Origin); !errors.Is(err, ErrMissingObject) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	n := &namedObjects{m: m, all: map[ObjectID]bool{}}
	m.ids()(func(id *ObjectID) { n.all[*id] = true })
	groupIDs(indexed, func(id *ObjectID) { n.all[*id] = true })
	return n, nil
}

type judgement uint8

const (
	named judgement = iota
	current
	orphan
)

func (n *namedObjects) judge(id ObjectID) judgement {
	switch {
	case n.all[id]:
		return named
	case id.Incarnation == n.m.Incarnation:
		return current
	}
	return orphan
}
