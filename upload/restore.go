package upload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store"
)

// RestoreGapBytes lie between the uploaded position of a lost log and the positions of the
// log that takes its place: the lost one may have used more of them than the store knows
// of, up to its capacity. No volume is larger than that.
const RestoreGapBytes = 1 << 46

// restoreAlignBytes is a multiple of every device's block.
const restoreAlignBytes = 64 << 10

// maxRestoreOrigin is the highest position that a log may begin at.
const maxRestoreOrigin = 1 << 63

// ErrNotGone says that the log whose place was to be taken is still in use.
var ErrNotGone = errors.New("the log that is to be restored is not gone")

// Restoration is a log that takes the place of a lost one: what the store has of that one,
// and the state that its successor begins with.
type Restoration struct {
	// Manifest is that of the lost log. It is not to be changed.
	Manifest *Manifest
	// State is what the new log begins with: the streams of the lost one at its uploaded
	// position under new ids, and its producers.
	State *stream.Table
	// Joins lead from the new streams to those in the store.
	Joins []Join
	// Origin is where the new log begins: a multiple of every device's block.
	Origin uint64

	version store.Version
}

// PrepareRestore reads what a successor of the node's log would begin with. It changes
// nothing. Errors: ErrNoManifest and those of Archive.State.
func PrepareRestore(ctx context.Context, s store.Store, node string) (*Restoration, error) {
	a, err := OpenArchive(ctx, s, node, nil)
	if err != nil {
		return nil, err
	}
	// Frozen: what is read has to belong to the version that the claim expects.
	m, version := a.Manifest(), a.Version()
	state, err := NewArchive(s, m, nil).State(ctx, MaxStateBytes)
	if err != nil {
		return nil, err
	}
	r := &Restoration{Manifest: m, State: state.Table, version: version}
	r.Joins = succeed(state.Joins, state.Table.Succeed())
	r.Origin = (m.Uploaded+restoreAlignBytes-1)/restoreAlignBytes*restoreAlignBytes + RestoreGapBytes
	if r.Origin > maxRestoreOrigin {
		return nil, fmt.Errorf("%w: no positions are left behind %d for a new log", ErrTooLarge, m.Uploaded)
	}
	return r, nil
}

// Successor is the log that takes the place.
type Successor struct {
	Log         [16]byte // its UUID, never used before
	Incarnation [16]byte // of its first epoch, never used before
	Epoch       uint64   // of that; above the lost log's
}

// Claim gives the manifest to the successor, whose log on its device begins with r.State
// at r.Origin and is complete: from then on the lost log is retired, and can never change
// or claim the manifest again. It is one conditional write of the version that
// PrepareRestore read, behind that of the state object: before it nothing has changed,
// after it everything has. Errors: ErrNotGone (somebody has changed the manifest since),
// those of the store.
func (r *Restoration) Claim(ctx context.Context, s store.Store, by Successor, nowNS int64) (*Manifest, error) {
	ctx = store.WithClass(ctx, store.Upload)
	m, err := r.successor(ctx, s, by, nowNS)
	if err != nil {
		return nil, err
	}
	for {
		m.Attempt++
		body, err := m.Encode()
		if err != nil {
			return nil, err
		}
		_, err = s.PutIfMatch(ctx, ManifestKey(m.Node), body, r.version)
		if err == nil {
			return m, nil
		}
		if !errors.Is(err, store.ErrChanged) && !errors.Is(err, store.ErrUnknownOutcome) {
			return nil, err
		}
		now, version, rerr := ReadManifest(ctx, s, m.Node)
		switch {
		case rerr != nil:
			return nil, errors.Join(err, rerr)
		case now.Incarnation == by.Incarnation:
			return now, nil // an attempt whose answer was lost
		case version != r.version:
			return nil, fmt.Errorf("%w: its manifest has changed since it was read, to epoch %d of log %s, up to position %d: a sidecar serves it, or another restore was quicker. Nothing was restored",
				ErrNotGone, now.Epoch, uuid.UUID(now.Log), now.Uploaded)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(claimRetry):
		}
	}
}

// successor puts the state object, and returns the manifest that names it.
func (r *Restoration) successor(ctx context.Context, s store.Store, by Successor, nowNS int64) (*Manifest, error) {
	m := *r.Manifest
	if by.Epoch <= m.Epoch {
		return nil, fmt.Errorf("%w: epoch %d is not above the manifest's, %d", ErrFenced, by.Epoch, m.Epoch)
	}
	id := ObjectID{Sequence: m.NextSequence, Incarnation: by.Incarnation}
	o, ref, err := BuildState(by.Log, by.Epoch, id, &State{Position: r.Origin, Checkpoint: r.State.EncodeCheckpoint(nil), Joins: r.Joins})
	if err != nil {
		return nil, err
	}
	if err := putObject(ctx, s, o.Key(m.Node), o.Body); err != nil {
		return nil, err
	}
	m.NextSequence++
	m.Retired = append(m.Retired[:len(m.Retired):len(m.Retired)],
		Retired{Log: m.Log, Epoch: m.Epoch, Uploaded: m.Uploaded, AtNS: m.UploadedAtNS, Origin: r.Origin})
	if m.State != nil {
		m.Doomed = append(m.Doomed[:len(m.Doomed):len(m.Doomed)], Doomed{Kind: KindState, ID: m.State.ID, SinceNS: nowNS})
	}
	m.Log, m.Epoch, m.Incarnation, m.Attempt, m.State = by.Log, by.Epoch, by.Incarnation, 0, ref
	if m.Origin == m.Uploaded && m.Index == nil {
		m.Origin = r.Origin
	} else {
		m.Groups = append(m.Groups[:len(m.Groups):len(m.Groups)], Group{From: m.Uploaded, To: r.Origin, Pruned: true})
	}
	m.Uploaded, m.UploadedAtNS = r.Origin, nowNS
	return &m, nil
}

// putObject puts an object under a key of its own until it is known to be there.
func putObject(ctx context.Context, s store.Store, key string, body []byte) error {
	for {
		_, err := s.PutIfAbsent(ctx, key, body)
		if err == nil || !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrUnknownOutcome) {
			return err
		}
		// Whatever lies under the key is ours: it has our incarnation in it.
		if _, herr := s.Head(ctx, key); !errors.Is(herr, store.ErrNotFound) {
			return herr
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(claimRetry):
		}
	}
}
