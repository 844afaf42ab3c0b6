package upload

import (
	"context"
	"slices"

	"github.com/walsidecar/walsidecar/stream"
)

// Part is a run of records [From, To) of a stream that are stored under one id.
type Part struct {
	Stream   stream.ID
	From, To uint64
}

// Parts tells under which ids the records [from, to) of a stream are stored, in order of
// their offsets: one part, but for a stream that goes on where that of a lost log ended.
// Between two parts data was lost, and the second may be empty. joins are those of the
// state that to was taken from.
func Parts(joins []Join, id stream.ID, from, to uint64) []Part {
	var parts []Part
	for {
		j := joinOf(joins, id)
		if j == nil || from >= j.At {
			parts = append(parts, Part{Stream: id, From: from, To: max(from, to)})
			break
		}
		if len(parts) == 0 && to >= j.At || to > j.At {
			parts = append(parts, Part{Stream: id, From: j.At, To: to})
		}
		id, to = j.Before, min(to, j.At)
	}
	slices.Reverse(parts)
	return parts
}

// joinOf returns the join that a stream begins with, nil where it has none.
func joinOf(joins []Join, id stream.ID) *Join {
	i, found := slices.BinarySearchFunc(joins, id, func(j Join, id stream.ID) int {
		switch {
		case j.Stream < id:
			return -1
		case j.Stream > id:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &joins[i]
}

// newestIDs tells for streams of lost logs under which id they go on now.
func newestIDs(joins []Join) map[stream.ID]stream.ID {
	newest := make(map[stream.ID]stream.ID, len(joins))
	for i := len(joins) - 1; i >= 0; i-- { // from the newest on
		id := joins[i].Stream
		if now, found := newest[id]; found {
			id = now
		}
		newest[joins[i].Before] = id
	}
	return newest
}

// Lost reports whether a lost log took all or some of the positions [from, to) with it.
func (m *Manifest) Lost(from, to uint64) bool {
	for i := range m.Retired {
		if r := &m.Retired[i]; from < r.Origin && r.Uploaded < to {
			return true
		}
	}
	return false
}

// FindTimeIn is FindTime for the records of parts.
func (a *Archive) FindTimeIn(ctx context.Context, parts []Part, ns int64) (offset uint64, found bool, err error) {
	for _, p := range parts {
		if p.From == p.To {
			continue
		}
		offset, found, err = a.FindTime(ctx, p.Stream, ns)
		if err != nil || found && offset < p.To {
			return max(offset, p.From), err == nil, err
		}
	}
	return 0, false, nil
}

// Joins returns the joins of the newest state: none, without a request, where the log
// never took the place of a lost one. Errors: ErrDamagedObject, ErrMissingObject, those
// of the store.
func (a *Archive) Joins(ctx context.Context) (joins []Join, err error) {
	if m := a.Manifest(); len(m.Retired) == 0 || m.State == nil {
		return nil, nil
	}
	err = a.retry(ctx, func(v *view) error {
		s, err := a.state(ctx, v)
		if err == nil {
			joins = s.Joins
		}
		return err
	})
	return joins, err
}

// succeed adds to joins those of a log that takes the place of a lost one.
func succeed(joins []Join, successions []stream.Succession) []Join {
	all := slices.Clone(joins)
	for _, s := range successions {
		all = append(all, Join{Stream: s.After, Before: s.Before, At: s.Next})
	}
	return all
}

// ReadParts calls visit with the records of parts, in order, each valid during the call,
// and missing where records are not there: lost between two parts ([at, at): how many is
// not known), else trimmed since parts was made. Errors: those of Scan.Next, ErrManifest
// where records should be there and are not, visit's and missing's.
func (a *Archive) ReadParts(ctx context.Context, parts []Part, visit func(*Record) error, missing func(lost bool, from, to uint64) error) error {
	m := a.Manifest()
	for i, p := range parts {
		if i > 0 {
			if err := missing(true, p.From, p.From); err != nil {
				return err
			}
		}
		next := p.From
		reach := func(offset uint64) error {
			from := next
			next = offset
			switch {
			case from == offset:
				return nil
			case a.Manifest() == m: // nothing was compacted meanwhile
				return problem(ErrManifest, "groups", 0, "no object holds the records [%d, %d) of stream %d", from, offset, p.Stream)
			}
			return missing(false, from, offset)
		}
		err := a.Records(ctx, p.Stream, p.From, p.To, func(r *Record) error {
			if err := reach(r.Offset); err != nil {
				return err
			}
			next++
			return visit(r)
		})
		if err == nil {
			err = reach(p.To)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
