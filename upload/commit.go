package upload

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/upload/store"
)

// attempt is one try to replace the manifest.
type attempt struct {
	m       *Manifest // never changed
	changes uint64    // of Core.changes, that it says
	running bool      // an action of it is on its way
	settle  bool      // its outcome is not known: read before anything else
	dueNS   int64     // not before, if it is to be settled
	tries   int
	sinceNS int64 // when the oldest data that it uploads became durable
	took    taken
}

// commit begins, repeats or settles an attempt, if one is due.
func (c *Core) commit(now Instant) *Action {
	a := c.attempt
	switch {
	case a != nil && a.running:
		return nil
	case a != nil && a.settle:
		if now.NS < a.dueNS {
			return nil
		}
		a.running = true
		return &Action{Kind: ActReadManifest, Key: ManifestKey(c.s.Node), Class: store.Upload}
	}
	ready := c.ready()
	if ready == 0 && c.changes == c.said || now.NS < c.commitDue() {
		return nil
	}
	next := &attempt{running: true}
	if a != nil {
		next.tries, next.sinceNS = a.tries, a.sinceNS
	}
	if next.sinceNS == 0 && ready > 0 {
		next.sinceNS = c.groups[0].sinceNS
	}
	c.take(now, ready)
	c.attempts++
	m := *c.m
	m.Attempt = c.attempts
	next.m, next.changes, next.took = &m, c.changes, c.took
	c.attempt, c.commitNS = next, now.NS
	body, err := m.Encode()
	if err != nil {
		// Not for the store to hear of. What is too large becomes small by an index object.
		next.running = false
		c.commitFailed(now, err)
		return nil
	}
	c.upkeep.manifestBytes = len(body)
	c.counters.attempts++
	return &Action{Kind: ActCommit, Key: ManifestKey(c.s.Node), Class: store.Upload, body: body, version: c.version}
}

// commitDue is when the next attempt may begin, 0: at once.
func (c *Core) commitDue() int64 {
	if a := c.attempt; a != nil {
		return a.dueNS
	}
	if c.commitNS == 0 || c.flushing() {
		return 0
	}
	return c.commitNS + int64(c.s.Linger)
}

// ready is how many of the sealed groups, from the first one on, are in the store.
func (c *Core) ready() int {
	n, state := 0, !c.hold
	for n < len(c.groups) && c.groups[n].done() {
		state = state || c.groups[n].state != nil
		n++
	}
	if !state {
		return 0
	}
	return n
}

// take moves the first n sealed groups into the manifest. All their objects are in the
// store.
func (c *Core) take(now Instant, n int) {
	for _, g := range c.groups[:n] {
		c.m.Groups = append(c.m.Groups, g.group)
		c.m.Uploaded = g.group.To
		c.m.UploadedAtNS = now.WallNS
		c.took.rawBytes += uint64(g.raw)
		c.took.records += g.group.Objects[0].Records
		if g.state != nil {
			if old := c.m.State; old != nil {
				c.doom(now, KindState, old.ID)
			}
			c.m.State = g.state
			c.upkeep.alive, c.upkeep.unread = g.alive, false
			c.hold = false
		}
		c.changes++
	}
	c.groups = c.groups[n:]
	if len(c.groups) == 0 {
		c.groups = nil
	}
}

// doom says that nothing names the object any more. The manifest in force may still do.
func (c *Core) doom(now Instant, k Kind, id ObjectID) {
	c.m.Doomed = append(c.m.Doomed, Doomed{Kind: k, ID: id, SinceNS: now.WallNS})
	c.counters.doomed++
	c.changes++
}

// commitDone takes the answer to an attempt.
func (c *Core) commitDone(now Instant, r *Result) {
	c.attempt.running = false
	switch {
	case r.err == nil:
		c.inForce(now, c.attempt, r.version)
	case errors.Is(r.err, store.ErrChanged), errors.Is(r.err, store.ErrUnknownOutcome):
		c.attempt.settle = true
	default:
		c.commitFailed(now, r.err)
	}
}

func (c *Core) commitFailed(now Instant, err error) {
	c.retries.failed(now, whatCommit, err)
	c.attempt.dueNS = c.retries.wait(now, c.rng, &c.attempt.tries)
}

// inForce: the attempt was carried out.
func (c *Core) inForce(now Instant, a *attempt, version store.Version) {
	c.retries.worked(whatCommit)
	c.counters.commits++
	c.counters.taken = a.took
	c.version, c.uploaded, c.said = version, a.m.Uploaded, a.changes
	c.attempt = nil
	c.upkeep.inForce(c, now, a.m)
	c.s.Committed(a.m)
}

// settle takes what was read after an attempt without a clear answer.
func (c *Core) settle(now Instant, r *Result) {
	a := c.attempt
	a.running = false
	err := r.err
	var m *Manifest
	if err == nil {
		m, err = DecodeManifest(r.body)
	}
	if err != nil {
		// Unreadable is unknown: nothing is trimmed, and nothing overwritten. A manifest
		// that is gone is not made again: what it named may be gone too.
		if errors.Is(err, store.ErrNotFound) {
			err = fmt.Errorf("%w: somebody deleted %s while the log was running: %w", ErrNoManifest, ManifestKey(c.s.Node), err)
		}
		c.commitFailed(now, err)
		return
	}
	switch {
	case m.Incarnation == c.s.Incarnation && m.Attempt == a.m.Attempt:
		c.inForce(now, a, r.version)
	case m.Incarnation == c.s.Incarnation && m.Attempt < a.m.Attempt, m.Incarnation != c.s.Incarnation && m.Epoch < c.s.Epoch && m.Log == c.s.Log:
		// An earlier one of ours, or one of an owner before us (somebody put back an old
		// copy): ours says all that it says, and more. A late attempt of ours that is still
		// on its way expects another version than this one.
		c.version = r.version
		a.settle = false
		c.commitFailed(now, fmt.Errorf("attempt %d was not carried out", a.m.Attempt))
	default:
		c.stop(m)
	}
}

// stop ends the core for ever: m is the manifest of somebody else.
func (c *Core) stop(m *Manifest) {
	for i := range m.Retired {
		if m.Retired[i].Log == c.s.Log {
			c.fenced = m.Check(c.s.Log, c.uploaded)
			return
		}
	}
	c.fenced = fmt.Errorf("%w: the manifest of node %q is of log %s, incarnation %x, epoch %d now; this is log %s, incarnation %x, epoch %d",
		ErrFenced, c.s.Node, uuid.UUID(m.Log), m.Incarnation, m.Epoch, uuid.UUID(c.s.Log), c.s.Incarnation, c.s.Epoch)
}
