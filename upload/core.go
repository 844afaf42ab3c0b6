package upload

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/upload/store"
)

// Sizes and times of uploads.
const (
	// DefaultLinger is how long records wait for company before they are put.
	DefaultLinger = time.Second
	// ObjectBytes is the raw size at which an object does not wait any longer. With a
	// backlog objects grow, up to MaxUploadBytes or a quarter of the uploader's memory.
	ObjectBytes    = 8 << 20
	MaxUploadBytes = 32 << 20
	// PutsAtOnce bounds the objects on their way.
	PutsAtOnce = 3
	// readStepBytes is how much may become durable before the uploader takes it out of
	// the hot tail, so that it need not be read from the device later.
	readStepBytes = 1 << 20
	// stateEveryBytes of log lie between two state objects, at least: a cold start
	// replays the journals of no more than that, and of a checkpoint's distance.
	stateEveryBytes = 32 << 20
	// maxInlineRanges is the most streams of an object whose ranges are in the manifest.
	maxInlineRanges = 256
	// retryFrom and retryTo bound the wait before something is tried again.
	retryFrom = 100 * time.Millisecond
	retryTo   = 20 * time.Second
)

// Settings are what a Core knows of its log and of what it may use.
type Settings struct {
	Node        string
	Log         [16]byte // UUID
	Epoch       uint64
	Incarnation [16]byte
	// Claimed is the manifest that this incarnation claimed. Its uploaded position is
	// where the upload goes on.
	Claimed *Claimed
	// Linger is how long records wait for company, and the least time between two
	// commits of the manifest; 0: DefaultLinger.
	Linger time.Duration
	// Grace is how long a doomed object stays, for those who read by an older manifest;
	// 0: DefaultGrace.
	Grace time.Duration
	// MemoryBytes bounds what is held of objects: those being built, twice their raw
	// size, and those on their way; beside it one longest frame and one checkpoint.
	// Compaction takes three quarters as much again. 0: DefaultMemoryBytes.
	MemoryBytes int
	// Seed is of the jitter between retries.
	Seed uint64
	// Committed is called with every manifest that is in force now, in order, before
	// anything else happens: trims may follow it. The manifest is never changed again.
	Committed func(*Manifest)
}

// DefaultMemoryBytes is an eighth of the sidecar's default budget.
const DefaultMemoryBytes = 64 << 20

// Instant is a time, given from outside: a Core has no clock.
type Instant struct {
	NS     int64 // monotonic, runs while the machine is paused
	WallNS int64 // ns since the Unix epoch; only informs
}

// Core decides what is uploaded, committed and deleted. It is a state machine: no clock,
// no goroutine, no I/O inside, and the same inputs give the same outputs. Frames go in
// with Frame, Step tells the actions to be carried out, Done takes their results, in any
// order. One goroutine at a time.
//
// What makes it safe, whatever fails in between:
//
//   - An object's key is never used for other bytes.
//   - The manifest in m only ever grows by what is in the store, and every attempt to
//     commit says all that attempts before it said. So it does not matter which of several
//     attempts with lost answers came through.
//   - Nothing is called uploaded, and nothing deleted, because of an attempt whose
//     outcome is not known.
type Core struct {
	s   Settings
	rng *rand.Rand

	m        *Manifest // what the next attempt says
	changes  uint64    // counts what it says more than the manifest that was claimed
	said     uint64    // of those, what the manifest in force says
	version  store.Version
	attempts uint64
	attempt  *attempt // on its way or to be settled
	took     taken    // by m
	uploaded uint64   // in force
	commitNS int64    // when the last attempt began
	began    bool

	durable, dataEnd uint64
	flushTo          uint64 // upload and commit everything below without linger

	builder   *Builder
	readTo    uint64 // position of the next frame
	parts     checkpointParts
	state     *State // complete checkpoint that is not in a group yet
	stateAt   uint64 // position of the newest one that is
	needState bool   // the next complete checkpoint has to become a state object
	hold      bool   // nothing may be committed before that is in the store
	sinceNS   int64  // when the oldest data that is not in a group became durable; valid with waiting
	waiting   bool

	groups []*pendingGroup // sealed, not in m yet, in order
	held   int             // bytes of bodies in groups

	stateEvery uint64 // stateEveryBytes
	putDue     int64  // nothing is put before, after an error
	putTries   int
	retries    retries
	readDue    int64 // frames, after an error
	fenced     error
	upkeep     upkeep
	counters   coreCounters
}

// pendingGroup is a group whose objects are on their way to the store.
type pendingGroup struct {
	group   Group
	state   *StateRef
	alive   *alive
	puts    []*put
	sinceNS int64
	raw     int
}

func (g *pendingGroup) done() bool {
	for _, p := range g.puts {
		if !p.done {
			return false
		}
	}
	return true
}

// NewCore returns the core of an owner that claimed its manifest.
func NewCore(s Settings) *Core {
	if s.Linger == 0 {
		s.Linger = DefaultLinger
	}
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if s.MemoryBytes == 0 {
		s.MemoryBytes = DefaultMemoryBytes
	}
	if s.Committed == nil {
		s.Committed = func(*Manifest) {}
	}
	m := *s.Claimed.Manifest
	c := &Core{s: s, rng: rand.New(rand.NewPCG(s.Seed, 1)), m: &m, version: s.Claimed.Version, attempts: s.Claimed.Attempts,
		uploaded: m.Uploaded, durable: m.Uploaded, dataEnd: m.Uploaded, readTo: m.Uploaded, builder: NewBuilder(m.Uploaded), stateEvery: stateEveryBytes}
	c.needState = m.State == nil
	for i := range m.Groups {
		if g := &m.Groups[i]; len(g.Objects) == 0 && (m.State == nil || m.State.Position < g.To) {
			c.needState = true // what a log does without its store is not known to the journals
		}
	}
	c.hold = c.needState
	if m.State != nil {
		c.stateAt = m.State.Position
	}
	c.upkeep.init(c)
	return c
}

// Uploaded is the uploaded position: all below is in the store and in the manifest in
// force.
func (c *Core) Uploaded() uint64 { return c.uploaded }

// Fenced is why the core has stopped for ever, nil while it has not: ErrFenced, ErrRetired.
func (c *Core) Fenced() error { return c.fenced }

// Advance says how far the log is durable, and up to where there is reason for an upload:
// the end of the newest durable data frame, or, where a full log has to be let go of frames
// without data too, of any durable frame.
func (c *Core) Advance(durable, dataEnd uint64) {
	c.durable, c.dataEnd = max(c.durable, durable), max(c.dataEnd, dataEnd)
}

// Flush asks for everything that is durable now to be uploaded without linger.
func (c *Core) Flush() { c.flushTo = max(c.flushTo, c.dataEnd) }

func (c *Core) flushing() bool { return c.flushTo > c.uploaded }

// WantsFrame tells the position of the frame that is to be given to Frame now.
func (c *Core) WantsFrame(now Instant) (position uint64, wants bool) {
	switch {
	case c.fenced != nil || c.readTo >= c.durable || now.NS < c.readDue || !c.haveData() || c.upkeep.waitsForState():
		return 0, false
	case c.builder.RawBytes() == 0 && c.held > 0 && c.held+2*c.target() > c.s.MemoryBytes:
		return 0, false
	case c.durable-c.readTo >= readStepBytes || c.due(now):
		return c.readTo, true
	}
	return 0, false
}

// haveData reports whether there is something to upload that is in no group.
func (c *Core) haveData() bool { return c.dataEnd > c.builder.from }

// due reports whether the data that is in no group has waited long enough.
func (c *Core) due(now Instant) bool {
	return c.flushTo > c.builder.from || c.waiting && now.NS >= c.sinceNS+int64(c.s.Linger)
}

// target is the raw size at which the object is ended. A backlog makes it grow, so that
// the requests per second do not.
func (c *Core) target() int {
	backlog := int(min(c.durable-min(c.builder.from, c.durable), 1<<30))
	most := max(min(MaxUploadBytes, c.s.MemoryBytes/4), 1)
	return min(max(backlog/PutsAtOnce, ObjectBytes), most)
}

// Frame takes the frame that WantsFrame asked for, or the first one behind it, and the
// position where the next one will be. The frame's memory may be used again after the
// call. With an error the frame could not be read: it is asked for again later.
func (c *Core) Frame(now Instant, f *ringwal.FrameView, next uint64, err error) {
	if err == nil && (f.Position < c.readTo || next < f.End()) {
		err = fmt.Errorf("%w: a frame at position %d, the next at %d, asked for %d", ErrNotSorted, f.Position, next, c.readTo)
	}
	if err == nil {
		err = c.builder.AddFrame(f)
	}
	if err != nil {
		// The builder is void after an error. All frames of this group are read again.
		c.retries.failed(now, whatRead, err)
		c.readDue = c.retries.wait(now, c.rng, &c.retries.reads)
		c.readTo = c.builder.from
		c.builder.Reset(c.readTo)
		c.parts.active = false
		return
	}
	c.retries.reads = 0
	c.retries.worked(whatRead)
	// A group ends with its last frame, not where an epoch that jumped goes on: the epoch may
	// end before it has written anything there, and the next one goes on elsewhere.
	c.readTo = next
	if s := c.parts.add(f); s != nil {
		c.state = s
	}
	if c.builder.RawBytes() >= c.target() {
		c.seal(now)
	}
}

// seal ends the group that was begun, if any frame is in it. Its object may hold nothing: then
// it says that there was nothing.
func (c *Core) seal(now Instant) {
	if c.builder.To() == c.builder.from {
		return
	}
	raw := c.builder.RawBytes()
	o, err := c.builder.Build(c.s.Log, c.s.Epoch, c.nextID(), nil)
	if err != nil {
		// An object at the format's limit: a target is far below it, so its frames are
		// damaged in a way that only their sum shows.
		c.retries.failed(now, whatBuild, err)
		c.readDue = c.retries.wait(now, c.rng, &c.retries.reads)
		c.readTo = c.builder.from
		c.builder.Reset(c.readTo)
		return
	}
	if len(o.Ref.Ranges) > maxInlineRanges {
		o.Ref.Ranges = nil
	}
	g := &pendingGroup{group: Group{From: o.From, To: o.To, Control: o.Control, Objects: []ObjectRef{o.Ref}}, sinceNS: c.sinceNS, raw: raw}
	g.puts = append(g.puts, &put{kind: KindData, id: o.ID, body: o.Body})
	c.sealState(now, g)
	for _, p := range g.puts {
		c.held += len(p.body)
	}
	c.groups = append(c.groups, g)
	c.builder.Reset(o.To)
	c.retries.worked(whatBuild)
	c.waiting = false
	c.noticeData(now)
}

// sealState adds the newest complete checkpoint to the group, if it is worth an object.
func (c *Core) sealState(now Instant, g *pendingGroup) {
	if c.state == nil || (!c.needState && c.state.Position < c.stateAt+c.stateEvery) {
		return
	}
	alive, err := c.upkeep.joinState(c.state)
	var o *Object
	var ref *StateRef
	if err == nil {
		o, ref, err = BuildState(c.s.Log, c.s.Epoch, c.nextID(), c.state)
	}
	c.state = nil
	if err != nil {
		c.retries.failed(now, "build a state object", err)
		return
	}
	g.state, g.alive = ref, alive
	g.puts = append(g.puts, &put{kind: KindState, id: o.ID, body: o.Body})
	c.stateAt, c.needState = ref.Position, false
}

// nextID is an id that was never used.
func (c *Core) nextID() ObjectID {
	id := ObjectID{Sequence: c.m.NextSequence, Incarnation: c.s.Incarnation}
	c.m.NextSequence++
	return id
}

// noticeData starts the linger when there is data that waits for nothing yet.
func (c *Core) noticeData(now Instant) {
	if !c.waiting && c.haveData() {
		c.waiting, c.sinceNS = true, now.NS
	}
}

// Step tells the actions that are to be carried out now.
func (c *Core) Step(now Instant) []*Action {
	if c.fenced != nil {
		return nil
	}
	if !c.began {
		c.began = true
		c.upkeep.begin(c, now)
	}
	c.noticeData(now)
	if c.haveData() && c.due(now) && c.readTo >= c.durable {
		c.seal(now)
	}
	var actions []*Action
	running := 0
	for _, g := range c.groups {
		for _, p := range g.puts {
			if p.running {
				running++
			}
		}
	}
	for _, g := range c.groups {
		for _, p := range g.puts {
			if running < PutsAtOnce && !p.done && !p.running && now.NS >= c.putDue {
				actions = append(actions, p.action(c.s.Node))
				running++
			}
		}
	}
	actions = append(actions, c.upkeep.step(c, now)...)
	if a := c.commit(now); a != nil {
		actions = append(actions, a)
	}
	return actions
}

// Done takes the result of an action.
func (c *Core) Done(now Instant, a *Action, r Result) {
	if c.fenced != nil {
		return
	}
	switch {
	case a.Kind == ActCommit:
		c.commitDone(now, &r)
	case a.Kind == ActReadManifest:
		c.settle(now, &r)
	case a.put != nil && a.Class == store.Upload:
		c.putDone(now, a, &r)
	default:
		c.upkeep.done(c, now, a, &r)
	}
}

func (c *Core) putDone(now Instant, a *Action, r *Result) {
	p := a.put
	bytes := len(p.body)
	if err := p.result(a, r); err != nil {
		c.retries.failed(now, whatPut, err)
		if now.NS >= c.putDue { // the first to fail of those that were on their way
			c.putDue = c.retries.wait(now, c.rng, &c.putTries)
		}
		return
	}
	if p.done {
		c.putTries, c.putDue = 0, 0
		c.retries.worked(whatPut)
		c.held -= bytes
		c.counters.objects++
		c.counters.storedBytes += uint64(bytes)
	}
}

// WakeAt is when Step has to be called again if nothing else happens: monotonic ns, 0:
// not at all. What has happened already is not counted.
func (c *Core) WakeAt(now Instant) int64 {
	if c.fenced != nil {
		return 0
	}
	at := int64(0)
	soonest := func(ns int64) {
		if ns > now.NS && (at == 0 || ns < at) {
			at = ns
		}
	}
	if c.waiting {
		soonest(c.sinceNS + int64(c.s.Linger))
	}
	soonest(c.readDue)
	soonest(c.putDue)
	soonest(c.commitDue())
	c.upkeep.wake(c, soonest)
	return at
}

// retries is how things fail, and how long to wait after that.
type retries struct {
	uploads, upkeep trouble // upkeep's keeps no record from the store
	reads           int
	count           uint64
}

// trouble is the newest thing of its kind that fails.
type trouble struct {
	err     error // nil: all is well
	what    string
	sinceNS int64
}

func (r *retries) of(what string) *trouble {
	switch what {
	case whatRead, whatBuild, whatPut, whatCommit, whatState:
		return &r.uploads
	}
	return &r.upkeep
}

func (r *retries) failed(now Instant, what string, err error) {
	t := r.of(what)
	if t.err == nil {
		t.sinceNS = now.NS
	}
	t.what, t.err = what, fmt.Errorf("%s: %w", what, err)
	r.count++
}

func (r *retries) worked(what string) {
	if t := r.of(what); t.what == what {
		t.err = nil
	}
}

// uploadsFail reports whether the store takes no uploads.
func (r *retries) uploadsFail() bool {
	t := &r.uploads
	return t.err != nil && (t.what == whatPut || t.what == whatCommit)
}

// What is tried again, as errors and states call it.
const (
	whatRead   = "read the log"
	whatBuild  = "build an object"
	whatPut    = "put an object"
	whatCommit = "commit the manifest"
	whatState  = "read the newest state"
)

// wait is until when to wait after the tries before it, with jitter.
func (r *retries) wait(now Instant, rng *rand.Rand, tries *int) int64 {
	wait := min(retryFrom<<min(*tries, 16), retryTo)
	*tries++
	return now.NS + int64(wait/2) + rng.Int64N(int64(wait/2))
}

// coreCounters only grow.
type coreCounters struct {
	taken                        // by manifests in force
	objects, storedBytes         uint64
	commits, attempts            uint64
	compactions, compactedGroups uint64
	doomed, deleted              uint64
}

// taken is what an attempt says more than the manifest that was claimed.
type taken struct{ rawBytes, records uint64 }
