package upload

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/upload/store"
)

// Options are what an Uploader needs.
type Options struct {
	Settings
	Store store.Store
	// Frames reads the durable frame at position, or, where an epoch jumped, the first one
	// behind it, and tells the position of the next one. The frame is used until the next
	// call; what came from the device was checked whole. It is called by one goroutine at a time, for positions below what Advance
	// said. With an error it is asked again later.
	Frames func(position uint64) (f ringwal.FrameView, next uint64, err error)
	// Fenced is called once, when another owner has the manifest: ErrFenced, ErrRetired.
	Fenced func(error)
	// Retention, unless zero, trims streams in the log by age and size; Trim does it.
	Retention Retention
	Trim      func(ctx context.Context, trims []Trim)
	Logger    *slog.Logger
}

// Uploader moves durable frames to the store, commits the manifest, and looks after
// what is there. A store that fails, for however long, is never fatal: it tries again.
type Uploader struct {
	o       Options
	core    *Core // of the pump alone
	now     func() Instant
	archive *Archive

	durable, dataEnd atomic.Uint64
	ringAt           atomic.Uint64 // Advance rings when data reaches it
	uploaded         atomic.Uint64
	flush            atomic.Bool
	bell             chan struct{}

	ctx     context.Context // of all requests
	cancel  context.CancelFunc
	quit    chan struct{}
	once    sync.Once
	started bool
	done    chan struct{} // closed when the pump has ended
	results chan outcome

	mu    sync.Mutex
	state Health
	stats Stats
	since int64 // NS of the oldest data that is not uploaded, 0: none
}

type outcome struct {
	action *Action
	result Result
}

// Health is how the uploader is doing.
type Health struct {
	// Fenced: it has stopped for ever; nil while it has not.
	Fenced error
	// Retrying is the newest thing that fails and is tried again, nil while all is well;
	// Since is since when nothing of its kind has worked.
	Retrying error
	Since    time.Time
	// Upkeep says that it is compaction or a delete of what nothing names any more: uploads
	// go on.
	Upkeep bool
	// Problem is what compaction found wrong with an object; `walsidecar verify` tells more.
	Problem error
}

// Stats are numbers of an uploader. Counters begin with 0 at its start.
type Stats struct {
	DurablePosition, UploadedPosition uint64
	// LagBytes are durable and not uploaded; control frames behind the newest data are not
	// counted. LagAge is for how long the oldest of them has been durable.
	LagBytes uint64
	LagAge   time.Duration
	// UploadedRecords and UploadedRawBytes were committed, in Objects objects of
	// StoredBytes.
	UploadedRecords, UploadedRawBytes, Objects, StoredBytes uint64
	Commits, CommitAttempts, Retries                        uint64
	Compactions, CompactedGroups                            uint64
	DoomedObjects, DeletedObjects                           uint64
	// Groups are those that the manifest itself names, ManifestBytes is its size.
	Groups, ManifestBytes int
	// HeldBytes is what objects take right now that are being built or put.
	HeldBytes int
}

// cutOffAfter is how long Close waits for requests that it has cut off.
const cutOffAfter = 2 * time.Second

// NewUploader prepares an uploader that goes on at the claimed manifest's uploaded
// position.
func NewUploader(o Options) *Uploader {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	u := &Uploader{o: o, now: instant, bell: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		results: make(chan outcome, PutsAtOnce+8)}
	u.archive = NewArchive(o.Store, o.Claimed.Manifest, nil)
	committed := o.Settings.Committed
	o.Settings.Committed = func(m *Manifest) {
		u.uploaded.Store(m.Uploaded)
		u.archive.Apply(m)
		if committed != nil {
			committed(m)
		}
	}
	u.core = NewCore(o.Settings)
	u.uploaded.Store(u.core.Uploaded())
	u.ctx, u.cancel = context.WithCancel(context.Background())
	return u
}

// Start lets it run. Once, and not with Close at a time.
func (u *Uploader) Start() {
	u.started = true
	go u.pump()
}

// Advance says how far the log is durable, and up to where to upload, as Core.Advance does.
// It never blocks and does not allocate. One goroutine.
func (u *Uploader) Advance(durable, dataEnd uint64) {
	u.durable.Store(durable)
	u.dataEnd.Store(dataEnd)
	if dataEnd >= u.ringAt.Load() {
		u.ring()
	}
}

func (u *Uploader) ring() {
	select {
	case u.bell <- struct{}{}:
	default:
	}
}

// Uploaded is the uploaded position. Any goroutine.
func (u *Uploader) Uploaded() uint64 { return u.uploaded.Load() }

// Flush asks for all that is durable now to be uploaded and committed without linger. It
// does not wait; see Uploaded and Settings.Committed. Any goroutine.
func (u *Uploader) Flush() {
	u.flush.Store(true)
	u.ring()
}

// State tells how it is doing. Any goroutine.
func (u *Uploader) State() Health {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state
}

// Stats returns its numbers. Any goroutine.
func (u *Uploader) Stats() Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.stats
	s.DurablePosition, s.UploadedPosition = u.durable.Load(), u.uploaded.Load()
	if end := u.dataEnd.Load(); end > s.UploadedPosition {
		s.LagBytes = end - s.UploadedPosition
		if u.since != 0 {
			s.LagAge = time.Duration(u.now().NS - u.since)
		}
	}
	return s
}

// Close stops it: nothing new is begun, requests on their way may end until ctx does,
// then they are cut off. It does not flush. What was put and not committed is left to
// `walsidecar gc`. False: it did not end, since a read of a frame does not return.
func (u *Uploader) Close(ctx context.Context) (ended bool) {
	defer u.cancel()
	if !u.started {
		return true
	}
	u.once.Do(func() { close(u.quit) })
	select {
	case <-u.done:
		return true
	case <-ctx.Done():
	}
	u.cancel()
	select {
	case <-u.done:
		return true
	case <-time.After(cutOffAfter):
		return false
	}
}

func instant() Instant { return Instant{NS: device.NowNS(), WallNS: time.Now().UnixNano()} }

// pump is the one goroutine that the core belongs to.
func (u *Uploader) pump() {
	defer close(u.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	running, lookAt := 0, time.Now().Add(retentionEvery)
	var retaining chan struct{}
	fenced := false
	for {
		select {
		case <-u.quit:
			for ; running > 0; running-- {
				u.take(<-u.results)
			}
			if retaining != nil {
				u.cancel()
				<-retaining
			}
			return
		default:
		}
		now := u.now()
		u.core.Advance(u.durable.Load(), u.dataEnd.Load())
		if u.flush.Swap(false) {
			u.core.Flush()
		}
		for _, a := range u.core.Step(now) {
			running++
			go func() { u.results <- outcome{a, a.Do(u.ctx, u.o.Store)} }()
		}
		position, wants := u.core.WantsFrame(now)
		if wants {
			f, next, err := u.o.Frames(position)
			u.core.Frame(u.now(), &f, next, err)
		}
		if err := u.core.Fenced(); err != nil && !fenced {
			fenced = true
			u.o.Logger.Error("fenced by the manifest in the store", "error", err)
			if u.o.Fenced != nil {
				u.o.Fenced(err)
			}
		}
		u.show(now)
		select {
		case out := <-u.results:
			running--
			u.take(out)
			continue
		default:
		}
		if wants {
			continue
		}
		if u.o.Retention.enabled() && retaining == nil && time.Now().After(lookAt) && !fenced {
			retaining = make(chan struct{})
			lookAt = time.Now().Add(retentionEvery)
			go u.retain(retaining)
		}
		u.sleep(timer, now, &running, retaining)
		if retaining != nil {
			select {
			case <-retaining:
				retaining = nil
			default:
			}
		}
	}
}

// take gives the core a result.
func (u *Uploader) take(out outcome) {
	u.core.Done(u.now(), out.action, out.result)
}

// sleep waits for something to happen.
func (u *Uploader) sleep(timer *time.Timer, now Instant, running *int, retaining chan struct{}) {
	u.ringAt.Store(u.core.ringAt())
	if u.dataEnd.Load() >= u.ringAt.Load() { // came between the look and the store
		u.ringAt.Store(math.MaxUint64)
		return
	}
	wait := time.Hour
	if at := u.core.WakeAt(now); at != 0 {
		wait = time.Duration(max(at-u.now().NS, 0))
	}
	timer.Reset(wait)
	select {
	case <-u.bell:
	case <-timer.C:
	case <-u.quit:
	case out := <-u.results:
		*running--
		u.take(out)
	case <-retaining:
	}
	timer.Stop()
	u.ringAt.Store(math.MaxUint64)
}

// ringAt is the end of data at which the core has something to do.
func (c *Core) ringAt() uint64 {
	switch {
	case c.fenced != nil:
		return math.MaxUint64
	case !c.waiting:
		return c.dataEnd + 1
	case c.readTo+readStepBytes > c.durable:
		return c.readTo + readStepBytes
	}
	return math.MaxUint64 // it waits for something else
}

// show publishes state and numbers.
func (u *Uploader) show(now Instant) {
	c := u.core
	n := &c.counters
	stats := Stats{
		UploadedRecords: n.records, UploadedRawBytes: n.rawBytes, Objects: n.objects, StoredBytes: n.storedBytes,
		Commits: n.commits, CommitAttempts: n.attempts, Retries: c.retries.count,
		Compactions: n.compactions, CompactedGroups: n.compactedGroups, DoomedObjects: n.doomed, DeletedObjects: n.deleted,
		Groups: len(c.m.Groups), ManifestBytes: c.upkeep.manifestBytes, HeldBytes: c.held + c.builder.RawBytes(),
	}
	since := int64(0)
	switch {
	case c.attempt != nil && c.attempt.m.Uploaded > c.uploaded:
		since = c.attempt.sinceNS
	case len(c.groups) > 0:
		since = c.groups[0].sinceNS
	case c.waiting:
		since = c.sinceNS
	}
	state := Health{Fenced: c.fenced, Problem: c.upkeep.problem}
	t := &c.retries.uploads
	if t.err == nil {
		t, state.Upkeep = &c.retries.upkeep, c.retries.upkeep.err != nil
	}
	if state.Retrying = t.err; t.err != nil {
		state.Since = time.Now().Add(-time.Duration(now.NS - t.sinceNS))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.state, u.stats, u.since = state, stats, since
}
