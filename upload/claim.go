package upload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/upload/store"
)

// Why a log is not the one that a manifest is about, or not any more.
var (
	// ErrOtherLog says that the manifest of this node is about another log.
	ErrOtherLog = errors.New("the store holds another log of this node")
	// ErrOlderSnapshot says that the store holds more than the log on the device: that
	// one was rolled back.
	ErrOlderSnapshot = errors.New("the log is older than what the store holds of it")
	// ErrFenced says that an owner of an equal or higher epoch changed the manifest.
	ErrFenced = errors.New("fenced: another owner has the manifest")
	// ErrRetired says that another log has taken this one's place.
	ErrRetired = errors.New("another log has taken this one's place")
)

// Check reports whether a log with that UUID, whose last frame ends at end, may be
// served with this manifest. Errors: ErrRetired, ErrOtherLog, ErrOlderSnapshot.
func (m *Manifest) Check(log [16]byte, end uint64) error {
	for i := range m.Retired {
		if r := &m.Retired[i]; r.Log == log {
			return fmt.Errorf("%w: log %s of node %q was given up when log %s was restored from the store, which held it up to position %d: "+
				"`walsidecar salvage` reads what is left of it", ErrRetired, uuid.UUID(log), m.Node, uuid.UUID(m.Log), r.Uploaded)
		}
	}
	if m.Log != log {
		return fmt.Errorf("%w: this is log %s, and the manifest of node %q is about log %s, up to position %d: attach that log's device, "+
			"or use another node name, or another store; if that device is gone, `walsidecar restore` makes a new log that goes on where it ended",
			ErrOtherLog, uuid.UUID(log), m.Node, uuid.UUID(m.Log), m.Uploaded)
	}
	if m.Uploaded > end {
		return fmt.Errorf("%w: the store holds log %s up to position %d (of %s), and this device only up to %d: it is an older snapshot of the volume. "+
			"Attach the newest one; if it is gone, `walsidecar restore` makes a new log from the store",
			ErrOlderSnapshot, uuid.UUID(log), m.Uploaded, time.Unix(0, m.UploadedAtNS).UTC().Format(time.RFC3339), end)
	}
	return nil
}

// CheckOwners reports whether the log with that superblock, the newest one of its device,
// has had the manifest's owner: a claim is made once the superblocks of its epoch are in
// force. Without it this is an older snapshot of the volume, or a copy that went on by itself,
// however far it got: what it holds at a position need not be what the store holds there.
// Error: ErrOlderSnapshot.
func (m *Manifest) CheckOwners(sb *ringwal.Superblock) error {
	if sb.DescendsFrom(m.Epoch, m.Incarnation, m.Uploaded) {
		return nil
	}
	return fmt.Errorf("%w: the store holds log %s up to position %d, of epoch %d and incarnation %x, and this device, of epoch %d, went another way before that: "+
		"it is an older snapshot or a copy of the volume. Attach the one that was uploaded; if it is gone, `walsidecar restore` makes a new log from the store",
		ErrOlderSnapshot, uuid.UUID(m.Log), m.Uploaded, m.Epoch, m.Incarnation, sb.Epoch)
}

// Claimant is the owner of a log who claims its manifest.
type Claimant struct {
	Log         [16]byte // UUID
	Node        string
	Epoch       uint64 // 1 + the highest of superblocks, frames and the manifest
	Incarnation [16]byte
	// Trim is where the log on the device begins, End where its last frame ends.
	Trim, End uint64
}

// Claimed is a manifest that its owner may replace.
type Claimed struct {
	Manifest *Manifest
	Version  store.Version
	// Attempts is the highest attempt that was made to put a manifest under this
	// incarnation, answered or not.
	Attempts uint64
}

// claimRetry is the wait between two tries of a claim, doubled up to claimRetryMax,
// with jitter.
const (
	claimRetry    = 100 * time.Millisecond
	claimRetryMax = 5 * time.Second
)

// Claim makes the claimant the owner of its node's manifest, by conditional writes,
// and makes the first manifest where there is none. From then on no owner of a lower
// epoch can change it. It tries again while the store does not answer, until ctx ends:
// the error then wraps both what the store said and that of ctx. Whether an attempt
// whose answer was lost was carried out is told by reading: each has a version that was
// never used before.
//
// What lies between the uploaded position and Trim was given up without being uploaded
// (a log that ran without its store): it becomes a group without objects.
//
// Errors: those of Check, ErrFenced (its epoch is not above the manifest's: draw a
// higher one), ErrManifest, ErrNewerVersion.
func Claim(ctx context.Context, s store.Store, c Claimant) (*Claimed, error) {
	ctx = store.WithClass(ctx, store.Upload)
	wait, attempts, settled := claimRetry, uint64(0), true
	for {
		m, err := c.Try(ctx, s, &attempts)
		lost := errors.Is(err, store.ErrUnknownOutcome)
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, store.ErrChanged), lost && settled:
			settled = !lost // somebody else was quicker, or the answer was lost: look again at once
			continue
		case !tryAgain(err):
			return nil, err
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
			wait = min(2*wait, claimRetryMax)
		case <-ctx.Done():
			return nil, fmt.Errorf("claim %s: %w: %w", ManifestKey(c.Node), ctx.Err(), err)
		}
	}
}

// tryAgain reports whether the error of a request to the store passes by itself, or
// once somebody has changed something at the store.
func tryAgain(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrUnknownOutcome)
}

// Try is one step of Claim, without a clock: it reads the manifest, and puts the claim
// unless it is there already. attempts counts the puts of this incarnation. Errors: as
// Claim, and those of the store; after store.ErrChanged and store.ErrUnknownOutcome Try
// tells by reading what is so.
func (c *Claimant) Try(ctx context.Context, s store.Store, attempts *uint64) (*Claimed, error) {
	before, version, err := ReadManifest(ctx, s, c.Node)
	if errors.Is(err, ErrNoManifest) {
		before, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if before != nil && before.Incarnation == c.Incarnation && before.Log == c.Log {
		// An attempt of this claim whose answer was lost. Any of them claims; one that is
		// still on its way changes nothing, since this version is not the one it expects.
		return &Claimed{Manifest: before, Version: version, Attempts: max(*attempts, before.Attempt)}, nil
	}
	m, err := c.successor(before)
	if err != nil {
		return nil, err
	}
	*attempts++
	m.Attempt = *attempts
	body, err := m.Encode()
	if err != nil {
		return nil, err
	}
	if version, err = s.PutIfMatch(ctx, ManifestKey(c.Node), body, version); err != nil {
		return nil, err
	}
	return &Claimed{Manifest: m, Version: version, Attempts: *attempts}, nil
}

// successor is the manifest that claims before, nil where there is none.
func (c *Claimant) successor(before *Manifest) (*Manifest, error) {
	if before == nil {
		return &Manifest{Log: c.Log, Node: c.Node, Epoch: c.Epoch, Incarnation: c.Incarnation, Origin: c.Trim, Uploaded: c.Trim, NextSequence: 1}, nil
	}
	m := *before
	if err := before.Check(c.Log, c.End); err != nil {
		return nil, err
	}
	if before.Epoch >= c.Epoch {
		return nil, fmt.Errorf("%w: the manifest of node %q is held by incarnation %x with epoch %d, and this one has epoch %d: "+
			"another sidecar serves this log, or took it over", ErrFenced, c.Node, before.Incarnation, before.Epoch, c.Epoch)
	}
	m.Epoch, m.Incarnation = c.Epoch, c.Incarnation
	if c.Trim > m.Uploaded {
		if m.Origin == m.Uploaded {
			m.Origin = c.Trim
		} else {
			m.Groups = append(m.Groups[:len(m.Groups):len(m.Groups)], Group{From: m.Uploaded, To: c.Trim, Pruned: true})
		}
		m.Uploaded = c.Trim
	}
	return &m, nil
}
