package upload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

const (
	// DefaultGrace is how long a doomed object stays after the manifest that dooms it
	// was in force: longer than any read that planned by an older manifest takes.
	DefaultGrace = time.Hour
	// deleteAtOnce is how many objects one request deletes, as many as S3 allows.
	deleteAtOnce = 1000
	// lookEvery is the least time between two looks for something to compact.
	lookEvery = 10 * time.Second
	// dropEvery is the least time between two looks whether the oldest groups can go.
	dropEvery = time.Minute
	// inlineBytes is the size of a manifest from which on groups go to an index object.
	inlineBytes = 256 << 10
	// indexFewest groups are worth an index object.
	indexFewest = 64
	// upkeepBacklog: with more bytes than that to upload, only uploads are done.
	upkeepBacklog = 64 << 20
)

// upkeep is what a Core does beside uploads: it compacts, keeps the manifest small, and
// deletes what was doomed. One job at a time, and none while uploads are behind.
type upkeep struct {
	// joins are those of the state in the store, nil until they were read.
	joins   []Join
	alive   *alive // as of the state in m, nil until known
	unread  bool   // the state that was there at the start is still to be read
	loading task

	// Limits: lookEvery, dropEvery, inlineBytes, indexFewest, largeStreamBytes.
	lookEvery, dropEvery     int64 // ns
	inlineBytes, indexFewest int
	largeBytes               int

	manifestBytes int
	seenNS        map[ObjectID]int64 // since when an object is doomed in force, monotonic
	deleting      task
	deletes       []ObjectID

	job     *job
	jobs    task
	lookNS  int64
	dropNS  int64
	dropped *alive          // what the last look for groups to drop went by
	oldest  *Range          // of the oldest group, why it cannot go; nil: not known
	skip    map[uint64]bool // groups, by From, that are not compacted
	problem error           // the last thing found to be wrong with an object
}

// task is one thing that is tried until it works.
type task struct {
	running bool
	dueNS   int64
	tries   int
}

// start reports whether it may begin now, and notes that it did.
func (t *task) start(now Instant) bool {
	if t.running || now.NS < t.dueNS {
		return false
	}
	t.running = true
	return true
}

func (u *upkeep) init(c *Core) {
	u.lookEvery, u.dropEvery, u.inlineBytes, u.indexFewest, u.largeBytes = int64(lookEvery), int64(dropEvery), inlineBytes, indexFewest, largeStreamBytes
	u.seenNS, u.skip = map[ObjectID]int64{}, map[uint64]bool{}
	u.unread = c.m.State != nil
	if !u.unread || len(c.m.Retired) == 0 {
		u.joins = []Join{} // a log that took no other's place has none
	}
}

// begin starts the clocks of what was doomed before: only this process's own is
// believed.
func (u *upkeep) begin(c *Core, now Instant) { u.inForce(c, now, c.m) }

// inForce: the manifest is in force, and so is what it dooms.
func (u *upkeep) inForce(c *Core, now Instant, m *Manifest) {
	for i := range m.Doomed {
		if id := m.Doomed[i].ID; u.seenNS[id] == 0 {
			u.seenNS[id] = now.NS
		}
	}
	if len(u.seenNS) > 2*len(c.m.Doomed)+deleteAtOnce { // those that were deleted while m was on its way
		kept := make(map[ObjectID]int64, len(c.m.Doomed))
		for i := range c.m.Doomed {
			if since := u.seenNS[c.m.Doomed[i].ID]; since != 0 {
				kept[c.m.Doomed[i].ID] = since
			}
		}
		u.seenNS = kept
	}
}

// waitsForState reports whether frames have to wait until the joins of the state in the
// store are known: the next state has to carry them on.
func (u *upkeep) waitsForState() bool { return u.joins == nil }

// joinState completes a state with the joins, and decodes it.
func (u *upkeep) joinState(s *State) (*alive, error) {
	a, joins, err := newAlive(s, u.joins)
	if err != nil {
		return nil, err
	}
	s.Joins = joins
	return a, nil
}

func (u *upkeep) step(c *Core, now Instant) (actions []*Action) {
	if u.unread && u.loading.start(now) {
		actions = append(actions, &Action{Kind: ActGet, Key: c.m.State.ID.Key(c.s.Node, KindState), Class: store.Upload})
	}
	if a := u.delete(c, now); a != nil {
		actions = append(actions, a)
	}
	if a := u.stepJob(c, now); a != nil {
		actions = append(actions, a)
	}
	return actions
}

func (u *upkeep) wake(c *Core, soonest func(int64)) {
	if !u.loading.running && u.unread {
		soonest(u.loading.dueNS)
	}
	if ns := u.deleteDue(c); ns != 0 {
		soonest(ns)
	}
	if u.job != nil {
		soonest(u.jobs.dueNS)
		for _, p := range u.job.puts {
			if !p.done && !p.running {
				soonest(p.dueNS)
			}
		}
	}
}

// done takes the result of an action of the upkeep.
func (u *upkeep) done(c *Core, now Instant, a *Action, r *Result) {
	switch {
	case a.Kind == ActGet:
		u.stateRead(c, now, a.Key, r)
	case a.Kind == ActDelete:
		u.deleteDone(c, now, r)
	case u.job != nil:
		u.jobDone(c, now, a, r)
	}
}

func (u *upkeep) stateRead(c *Core, now Instant, key string, r *Result) {
	u.loading.running = false
	if !u.unread {
		return // there is a newer one
	}
	err := r.err
	var s *State
	if err == nil {
		_, s, err = DecodeState(r.body)
	}
	var a *alive
	if err == nil {
		a, _, err = newAlive(s, s.Joins)
	}
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("%w: %w", ErrMissingObject, err)
	}
	if err != nil {
		if !tryAgain(err) {
			u.problem = inObject(key, err)
		}
		// What compaction may leave out is known from the next state on. But without the
		// joins no next state can be written.
		if u.unread = tryAgain(err) || u.joins == nil; u.unread {
			c.retries.failed(now, whatState, err)
			u.loading.dueNS = c.retries.wait(now, c.rng, &u.loading.tries)
		}
		return
	}
	c.retries.worked(whatState)
	u.unread = false
	u.joins = append([]Join{}, s.Joins...)
	u.alive = a
}

// deleteDue is when the oldest doomed object may be deleted, 0: there is none.
func (u *upkeep) deleteDue(c *Core) int64 {
	if u.deleting.running {
		return 0
	}
	for i := range c.m.Doomed {
		if since := u.seenNS[c.m.Doomed[i].ID]; since != 0 {
			return max(since+int64(c.s.Grace), u.deleting.dueNS)
		}
	}
	return 0
}

// delete removes doomed objects for good: those that a manifest in force has doomed for
// the grace time. They are never named again, so it does not matter when this arrives.
func (u *upkeep) delete(c *Core, now Instant) *Action {
	due := u.deleteDue(c)
	if due == 0 || now.NS < due {
		return nil
	}
	a := &Action{Kind: ActDelete, Class: store.CleanUp}
	u.deletes = u.deletes[:0]
	for i := range c.m.Doomed {
		d := &c.m.Doomed[i]
		if since := u.seenNS[d.ID]; since != 0 && now.NS >= since+int64(c.s.Grace) && len(a.keys) < deleteAtOnce {
			a.keys = append(a.keys, d.ID.Key(c.s.Node, d.Kind))
			u.deletes = append(u.deletes, d.ID)
		}
	}
	u.deleting.running = true
	return a
}

func (u *upkeep) deleteDone(c *Core, now Instant, r *Result) {
	u.deleting.running = false
	if r.err != nil {
		c.retries.failed(now, "delete doomed objects", r.err)
		u.deleting.dueNS = c.retries.wait(now, c.rng, &u.deleting.tries)
		return
	}
	c.retries.worked("delete doomed objects")
	u.deleting.tries = 0
	gone := make(map[ObjectID]bool, len(u.deletes))
	for _, id := range u.deletes {
		gone[id] = true
		delete(u.seenNS, id)
	}
	// The next manifest says so; this alone is not worth a request.
	left := make([]Doomed, 0, len(c.m.Doomed)-len(gone))
	for _, d := range c.m.Doomed {
		if !gone[d.ID] {
			left = append(left, d)
		}
	}
	c.m.Doomed = left
	c.counters.deleted += uint64(len(gone))
}

// job is a change of the manifest that needs objects first.
type job struct {
	what  string
	work  func(context.Context, store.Store) (any, error)
	puts  []*put
	apply func(now Instant)
	// take prepares puts and apply from what work returned.
	take func(now Instant, value any) error
	// failed, unless nil, remembers what is not to be tried again.
	failed func(error)
}

func (u *upkeep) stepJob(c *Core, now Instant) *Action {
	if c.durable-min(c.uploaded, c.durable) > upkeepBacklog || c.retries.uploadsFail() {
		return nil
	}
	if u.job == nil {
		if u.job = u.plan(c, now); u.job == nil {
			return nil
		}
		u.jobs.dueNS = 0
	}
	j := u.job
	if j.apply == nil {
		if !u.jobs.start(now) {
			return nil
		}
		return &Action{Kind: ActWork, Class: store.CleanUp, work: j.work}
	}
	for _, p := range j.puts {
		if p.running {
			return nil // one at a time
		}
	}
	for _, p := range j.puts {
		if !p.done {
			if now.NS < p.dueNS {
				return nil
			}
			return p.action(c.s.Node)
		}
	}
	j.apply(now)
	c.changes++
	u.job = nil
	return nil
}

// plan looks for the next job.
func (u *upkeep) plan(c *Core, now Instant) *job {
	if now.NS < u.lookNS || now.NS < u.jobs.dueNS || u.unread {
		return nil
	}
	if u.alive != nil && u.alive != u.dropped && now.NS >= u.dropNS && len(c.m.Groups) > 0 {
		u.dropped, u.dropNS = u.alive, now.NS+u.dropEvery
		if u.oldest == nil || !u.alive.keeps(u.oldest) {
			return u.dropJob(c)
		}
	}
	if j := u.compactJob(c); j != nil {
		return j
	}
	if u.manifestBytes > u.inlineBytes && len(c.m.Groups) >= u.indexFewest {
		return u.indexJob(c)
	}
	u.lookNS = now.NS + u.lookEvery
	return nil
}

func (u *upkeep) jobDone(c *Core, now Instant, a *Action, r *Result) {
	j := u.job
	if a.put != nil {
		if err := a.put.result(a, r); err != nil {
			c.retries.failed(now, j.what, err)
			a.put.dueNS = c.retries.wait(now, c.rng, &a.put.tries)
			return
		}
		c.retries.worked(j.what)
		return
	}
	u.jobs.running = false
	err := r.err
	if err == nil {
		err = j.take(now, r.value)
	}
	switch {
	case err == nil:
		u.jobs.tries = 0
		return
	case tryAgain(err):
		u.jobs.dueNS = c.retries.wait(now, c.rng, &u.jobs.tries)
	default:
		// Something is wrong with an object, and trying again will not help.
		if j.failed != nil {
			j.failed(err)
		}
		u.lookNS = now.NS + u.lookEvery
		if !errors.Is(err, errNotWorthIt) {
			u.problem = err
		}
	}
	u.job = nil
}
