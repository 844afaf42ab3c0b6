// Package reader is the one read path of a log: the hot tail in memory, else the
// device, else the object store, through a cache of cold blocks. It shows durable records
// only, as a durable prefix of each stream, and never asks the store for what the device
// or the tail has.
//
// Reader keeps its own durable view (directory of streams, sparse index), fed by
// the commit loop with every frame that became durable, in order. A cursor owns
// its memory; nothing here ever makes the commit loop wait for a reader longer
// than one map look-up.
//
// # The border
//
// What a log with a store has trimmed is in its archive: the manifest was committed and
// handed over before. So everything below the trim position can be read there, and
// whatever can be read there and not below is the same record. A read decides anew
// before every step where its next record lies, and whatever it has read meanwhile, it
// has read; how the border moves under it does not matter. The tail reaches below the
// trim position where uploads are quick, and the index with it.
package reader

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
)

var (
	// ErrClosed ends every cursor of a log that was closed.
	ErrClosed = errors.New("the log was closed")
	// ErrUnreadable says that bytes below the durable position are not the frame
	// that was written there. It is also a ringwal.ErrDamaged.
	ErrUnreadable = errors.New("a durable frame reads differently than it was written")
)

// HeartbeatEvery is the longest that a following cursor stays silent.
const HeartbeatEvery = 5 * time.Second

// EventKind says what a cursor found next.
type EventKind uint8

// The kinds of Event.
const (
	Records   EventKind = iota + 1 // Event.Records, at least one
	Gap                            // Event.Gap: offsets or positions that will never come
	CaughtUp                       // a following cursor reached the durable end
	Heartbeat                      // nothing new for HeartbeatEvery; Event.Durable moved at most
	End                            // the cursor is done; every later Next is End
)

// GapKind says why records are missing.
type GapKind uint8

// The kinds of gap.
const (
	Trimmed  GapKind = iota + 1 // removed by trim or retention; reading goes on at To
	Deleted                     // the stream was deleted; nothing follows
	Sealed                      // the stream was sealed; nothing follows
	DataLost                    // gone with a lost log; how many records is not known where To is From
)

// Missing is a range [From, To) that a reader will never see: offsets of a stream
// for a stream cursor, positions for a replay.
type Missing struct {
	Kind     GapKind
	From, To uint64
}

// Record is one durable record. Headers and Payload are valid until the cursor's
// next call.
type Record struct {
	Stream      stream.ID
	Offset      uint64
	Position    uint64 // of the batch that holds it
	TimestampNS int64
	Headers     []byte
	Payload     []byte
	Checksum    uint64 // of the record as it stands in the log
	BatchEnd    bool   // the last record of its batch
}

// Event is what Next returns. Records and what they point to are valid until the
// next call.
type Event struct {
	Kind    EventKind
	Records []Record
	Gap     Missing
	Durable uint64 // durable position when the event was made
}

// Reader serves the durable records of one log. Publish, SetTrim and Fail belong
// to the commit loop; everything else may be called from any goroutine.
type Reader struct {
	dev   device.Device
	tail  *readcache.Tail
	check *ringwal.FrameChecker
	geo   ringwal.Geometry

	archive *upload.Archive           // nil: no store
	joins   map[stream.ID]upload.Join // by the stream that goes on
	scans   turns                     // of cursors, in the store
	replays turns

	mu      sync.RWMutex
	dir     *stream.Directory
	index   *stream.Index
	marks   *Marks
	durable uint64
	trim    uint64
	origin  uint64
	failed  error
	version uint64        // grows with every change
	changed chan struct{} // closed at the next change that somebody waits for

	waiters atomic.Int32
	items   stream.ItemReader // of Publish
}

// Config is what a Reader starts from: a recovered log.
type Config struct {
	Device     device.Device
	Tail       *readcache.Tail
	Superblock *ringwal.Superblock // of the epoch that was started
	Directory  *stream.Directory   // streams as of Durable
	Index      *stream.Index       // records of [trim, Durable)
	Marks      *Marks              // frames of [trim, Durable)
	Durable    uint64
	// Archive is what is in the store: everything below the trim position, at any
	// time. Whoever trims the log hands the archive the manifest that allows it first
	// (upload.Archive.Apply), then trims, then calls SetTrim. nil: there is no store, and
	// what is trimmed is gone.
	Archive *upload.Archive
	// ColdBytes bounds what all reads of the store hold together, beside the buffers that
	// each read is counted for anyway and the cache (readcache.Cold); at least MinColdBytes.
	ColdBytes int64
	// Joins are the streams that go on where those of a lost log ended.
	Joins []upload.Join
}

// New returns the reader of a log that was recovered up to c.Durable.
func New(c Config) *Reader {
	r := &Reader{
		archive: c.Archive, joins: map[stream.ID]upload.Join{}, scans: turns{free: coldScans(c.ColdBytes), lasts: turnLasts},
		replays: turns{free: maxColdReplays, lasts: turnLasts},
		dev:     c.Device, tail: c.Tail, check: ringwal.NewFrameChecker(c.Superblock), geo: c.Superblock.Geometry,
		dir: c.Directory, index: c.Index, marks: c.Marks, durable: c.Durable, trim: c.Superblock.Trim, origin: c.Superblock.Origin,
		changed: make(chan struct{}),
	}
	for _, j := range c.Joins {
		r.joins[j.Stream] = j
	}
	return r
}

// Publish takes a frame that became durable; frames come in log order. body is
// the frame's used bytes and is not kept. An error says that the frame contradicts
// what was published before, a bug: the log must stop.
func (r *Reader) Publish(h *ringwal.FrameHeader, body []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Kind == ringwal.FrameData {
		if err := r.apply(h.Position, body); err != nil {
			return err
		}
	}
	r.marks.Add(h.Position)
	r.durable = h.End()
	r.wake()
	return nil
}

func (r *Reader) apply(position uint64, body []byte) error {
	r.items.Reset(body, position)
	for it := r.items.Next(); it != nil; it = r.items.Next() {
		if err := r.dir.Apply(it); err != nil {
			return err
		}
		r.index.Apply(it, position)
	}
	return r.items.Err()
}

// SetTrim says that the log now begins at trim. With a store, the archive must have been
// given a manifest that holds everything below before.
func (r *Reader) SetTrim(trim uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trim = trim
	kept := r.kept(trim)
	r.index.TrimLog(kept)
	r.marks.trim(kept)
	r.wake()
}

// Fail ends every cursor with err.
func (r *Reader) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	r.wake()
}

// wake lets the waiters look again. The caller holds mu.
func (r *Reader) wake() {
	r.version++
	if r.waiters.Load() > 0 {
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// Lookup returns the durable state of a stream. The error is
// stream.ErrStreamDeleted or stream.ErrStreamNotFound.
func (r *Reader) Lookup(id stream.ID) (stream.StreamInfo, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.dir.Lookup(id)
}

// Durable returns the durable position that reads show.
func (r *Reader) Durable() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.durable
}

// Trim returns the trim position.
func (r *Reader) Trim() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.trim
}

// PlanTrim returns how far the log may be trimmed, and what holds it there;
// checkpointStart is the start of the newest complete durable checkpoint.
func (r *Reader) PlanTrim(checkpointStart uint64) stream.TrimPlan {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return stream.PlanTrim(r.dir, r.index, checkpointStart, r.durable)
}

// FrameAt returns the header of the durable frame at position, from memory or the
// device.
func (r *Reader) FrameAt(position uint64) (ringwal.FrameHeader, error) {
	w := walker{r: r}
	defer w.close()
	view, err := w.frame(position, r.Durable())
	return view.FrameHeader, err
}
