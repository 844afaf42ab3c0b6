package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

const (
	// storePatience is how long a start waits for a store that does not answer: a
	// sidecar that is started again and again shows up in every monitoring, one that
	// waits for ever may not.
	storePatience = time.Minute

	// outagePatience is how long uploads may fail before a full log refuses appends
	// instead of letting them wait.
	outagePatience = 5 * time.Second

	// closePatience is how long a shutdown waits for requests to the store.
	closePatience = 2 * time.Second

	// MinMemoryBytes is the least budget of a process whose log has a store: a window of
	// the log, an object that is built, a scan and a replay of the past fit beside sessions.
	MinMemoryBytes = 256 << 20

	// uploadShare and coldShare are the parts of the memory budget that uploads
	// (compaction takes three quarters as much again) and the cache of cold blocks take.
	uploadShare = 8
	coldShare   = 16
	// coldReadShare thirty-seconds of it are for what reads of the store hold.
	coldReadShare = 5
)

// uploads is the log's way to the object store and back; nil without a store.
type uploads struct {
	manifest *upload.Manifest // as the start read it; nil: none
	joins    []upload.Join    // of a log that was restored
	archive  *upload.Archive
	cold     *readcache.Cold
	uploader *upload.Uploader
	frames   atomic.Pointer[reader.Frames] // that the uploader reads
	before   *reader.Frames                // of a start that makes room; nil: it did not have to

	// Of the start, then of the commit loop.
	uploaded uint64 // in the manifest in force
	dataEnd  uint64 // end of the newest durable data frame, or of a checkpoint that has to be let go
	records  uint64 // durable and above the uploaded position of the start

	missing Missing // at the start
}

func (c *Config) storePatience() time.Duration { return cmp.Or(c.StorePatience, storePatience) }

// readManifest reads the manifest of the log's node, before anything is written: its
// epoch counts for the next one, and a log that it is not about is refused.
func (n *Node) readManifest(ctx context.Context, sb *ringwal.Superblock) error {
	if n.cfg.Objects == nil {
		return nil
	}
	n.uploads = &uploads{}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.storePatience())
	defer cancel()
	for told := false; ; told = true {
		m, _, err := upload.ReadManifest(ctx, n.cfg.Objects, sb.Node)
		switch {
		case errors.Is(err, upload.ErrNoManifest):
			return nil
		case err == nil:
			n.uploads.manifest = m
			if err := m.Check(sb.UUID, math.MaxUint64); err != nil {
				return err
			}
			n.uploads.joins, err = upload.NewArchive(n.cfg.Objects, m, nil).Joins(ctx)
		}
		if err == nil || !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		if !told {
			n.log.Warn("the object store does not answer; the log is not opened without it", "error", err, "patience_seconds", n.cfg.storePatience().Seconds())
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

// checkManifest refuses, before anything is written, a log that is not the one that was
// uploaded. End is where its last frame ends.
func (n *Node) checkManifest(sb *ringwal.Superblock, end uint64) error {
	u := n.uploads
	if u == nil {
		return nil
	}
	from := sb.Origin
	if m := u.manifest; m != nil {
		if err := cmp.Or(m.Check(sb.UUID, end), m.CheckOwners(sb)); err != nil {
			return err
		}
		from = m.Uploaded
	}
	// Where an epoch jumped there, the log is trimmed to where it goes on.
	if from = ringwal.NewFrameChecker(sb).Next(from); sb.Trim > from && !n.cfg.StoreStartsHere {
		return fmt.Errorf("%w: positions %d to %d have left the log, and the store %s does not have them: is it the one that the log was served with, and mounted? "+
			"If the log had none until now, or if what that one held is to be given up, `walsidecar serve --store-starts-here`", ErrOtherStore, from, sb.Trim, n.cfg.Store)
	}
	return nil
}

// notUploaded counts what recovery finds beyond the uploaded position.
func (n *Node) notUploaded() func(*stream.Item, *ringwal.FrameView) error {
	u := n.uploads
	if u == nil {
		return nil
	}
	from := uint64(0)
	if u.manifest != nil {
		from = u.manifest.Uploaded
	}
	u.dataEnd, u.records = 0, 0
	return func(it *stream.Item, f *ringwal.FrameView) error {
		u.dataEnd = f.End()
		if it.Kind == stream.KindBatch && f.Position >= from {
			u.records += uint64(it.Count)
		}
		return nil
	}
}

// claim makes this start the owner of the manifest: from then on no earlier owner
// changes it. Nothing is acked before.
func (n *Node) claim(ctx context.Context, end uint64) error {
	u := n.uploads
	if u == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.storePatience())
	defer cancel()
	sb := n.wal.Superblock()
	claimed, err := upload.Claim(ctx, n.cfg.Objects, upload.Claimant{
		Log: sb.UUID, Node: sb.Node, Epoch: sb.Epoch, Incarnation: sb.Incarnation, Trim: n.wal.Trim(), End: end,
	})
	if err != nil {
		return err
	}
	m := claimed.Manifest
	u.uploaded, u.dataEnd = m.Uploaded, max(u.dataEnd, m.Uploaded)
	u.missing = Missing{Records: u.records, Bytes: u.dataEnd - u.uploaded}
	u.archive.Apply(m)
	u.uploader = upload.NewUploader(upload.Options{
		Settings: upload.Settings{
			Node: sb.Node, Log: sb.UUID, Epoch: sb.Epoch, Incarnation: sb.Incarnation, Claimed: claimed,
			Linger: n.cfg.Linger, MemoryBytes: int(n.cfg.MemoryBytes / uploadShare), Committed: n.committed,
		},
		Store:     n.cfg.Objects,
		Frames:    func(position uint64) (ringwal.FrameView, uint64, error) { return u.frames.Load().At(position) },
		Fenced:    n.fenced,
		Retention: n.cfg.Retention, Trim: n.retain,
		Logger: n.log,
	})
	return nil
}

// openArchive makes the read side, before the claim: nothing is read from it until then.
func (n *Node) openArchive(sb *ringwal.Superblock) error {
	u := n.uploads
	if u == nil {
		return nil
	}
	var err error
	if u.cold, err = readcache.NewCold(n.cfg.MemoryBytes / coldShare); err != nil {
		return err
	}
	m := u.manifest
	if m == nil {
		m = &upload.Manifest{Log: sb.UUID, Node: sb.Node}
	}
	u.archive = upload.NewArchive(n.cfg.Objects, m, u.cold.Load)
	return nil
}

// joins lead from the streams of a restored log to those of the lost one.
func (n *Node) joins() []upload.Join {
	if n.uploads == nil {
		return nil
	}
	return n.uploads.joins
}

// archive is what a reader reads below the trim position; nil without a store.
func (n *Node) archive() *upload.Archive {
	if n.uploads == nil {
		return nil
	}
	return n.uploads.archive
}

// mayMake refuses to make a new log where the store holds one of its node, or, for a log
// that is to get a name of its own, any: its device may only not be there just now.
func mayMake(ctx context.Context, c Config) error {
	if c.Objects == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.storePatience())
	defer cancel()
	if c.Node != "" {
		m, _, err := upload.ReadManifest(ctx, c.Objects, c.Node)
		switch {
		case errors.Is(err, upload.ErrNoManifest):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%w: %s does not exist, and the store %s holds log %s of node %q: attach its device; if that is gone, `walsidecar restore` makes a new log that goes on where the store ends",
			ErrNoLog, c.Path, c.Store, uuid.UUID(m.Log), c.Node)
	}
	some, err := c.Objects.List(ctx, "", "", listedToMake)
	if err != nil {
		return err
	}
	for _, o := range some {
		if node, ok := upload.NodeOfManifest(o.Key); ok {
			return fmt.Errorf("%w: %s does not exist, and the store %s holds a log of node %q: attach its device, or restore it (`walsidecar restore`), or say with WALSIDECAR_NODE how the new log's node is to be called",
				ErrNoLog, c.Path, c.Store, node)
		}
	}
	return nil
}

// listedToMake is how many keys of a store are looked at for a log: a node's manifest
// comes before its objects.
const listedToMake = 100

// committed takes a manifest that is in force: what was uploaded is readable in the
// store before the log lets it go. It is called by the uploader.
func (n *Node) committed(m *upload.Manifest) {
	n.uploads.archive.Apply(m)
	n.inbox.addCall(func() {
		n.uploads.uploaded = m.Uploaded
		n.loop.trimWanted = true
	})
}

// retain carries out the trims that retention asks for. One that the log cannot take
// now comes again at the next look.
func (n *Node) retain(ctx context.Context, trims []upload.Trim) {
	for len(trims) > 0 && ctx.Err() == nil {
		some := trims[:min(len(trims), retainAtOnce)]
		trims = trims[len(some):]
		done := make(chan struct{})
		n.inbox.addCall(func() {
			defer close(done)
			for _, t := range some {
				if _, err := n.committer.Trim(t.Stream, t.Before); err != nil && !errors.Is(err, stream.ErrStreamNotFound) && !errors.Is(err, stream.ErrStreamDeleted) {
					return
				}
			}
		})
		select {
		case <-done:
		case <-n.stopped:
			return
		case <-ctx.Done():
		}
	}
}

// retainAtOnce is how many streams retention trims in one go of the commit loop.
const retainAtOnce = 256

// advance tells the uploader what is durable. It is called by the commit loop.
func (n *Node) advance() {
	if u := n.uploads; u != nil {
		u.uploader.Advance(n.wal.Durable(), u.dataEnd)
	}
}

// trimPlan is how far the log may be trimmed: to where everything is in the store; with
// the store none, to where the application has trimmed; without the store, not at all.
func (n *Node) trimPlan() stream.TrimPlan {
	mark, _ := n.wal.NewestCheckpoint()
	switch u := n.uploads; {
	case u != nil:
		from := min(n.reader.FrameBehind(u.uploaded), n.wal.Durable())
		return stream.TrimPlan{Records: from, Target: min(from, mark.Start)}
	case n.cfg.Store != StoreNone:
		return stream.TrimPlan{Records: n.wal.Trim(), Target: n.wal.Trim()}
	}
	return n.reader.PlanTrim(mark.Start)
}

// uploadsFree reports whether an upload is about to free room, so that requests that
// find the log full may wait for it.
func (n *Node) uploadsFree() bool {
	u := n.uploads
	if u == nil || u.dataEnd <= u.uploaded {
		return false
	}
	state := u.uploader.State()
	return state.Fenced == nil && (state.Retrying == nil || state.Upkeep || time.Since(state.Since) < outagePatience)
}

// explainStore says why a full log with a store does not get any emptier.
func (n *Node) explainStore() string {
	if n.uploads == nil {
		return fmt.Sprintf("the sidecar runs without its store (--without-store), so nothing leaves the log: start it with the store %s, or use a larger log", n.cfg.Store)
	}
	if state := n.uploads.uploader.State(); state.Retrying != nil && !state.Upkeep {
		return fmt.Sprintf("nothing leaves the log since %s, and it goes on by itself once the store %s works again: %v",
			state.Since.UTC().Format(time.RFC3339), n.cfg.Store, state.Retrying)
	}
	return fmt.Sprintf("uploads to the store %s are slower than appends: try again, append less, or use a larger log (WALSIDECAR_WAL_SIZE)", n.cfg.Store)
}

// startUploads lets them run, once the commit loop does.
func (n *Node) startUploads() {
	u := n.uploads
	if u == nil {
		return
	}
	u.frames.Store(n.reader.Frames())
	n.advance()
	if u.before == nil { // else it runs already
		u.uploader.Start()
	}
}

// stopUploads ends them: nobody reads the device for them any more.
func (n *Node) stopUploads() {
	u := n.uploads
	if u == nil {
		return
	}
	if u.uploader != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		defer cancel()
		u.uploader.Close(ctx)
	}
	for _, f := range []*reader.Frames{u.frames.Load(), u.before} {
		if f != nil {
			f.Close()
		}
	}
	if u.cold != nil {
		u.cold.Close()
	}
}

// StatusUploads tells how far the store has what the log has.
type StatusUploads struct {
	State            string `json:"state"` // UploadsOK, UploadsRetrying, UploadsFenced
	Problem          string `json:"problem,omitempty"`
	UploadedPosition uint64 `json:"uploaded_position"`
	// What is durable and not in the store: bytes of the log, records, and for how long
	// the oldest of it has been durable.
	LagBytes   uint64  `json:"lag_bytes"`
	LagRecords uint64  `json:"lag_records"`
	LagSeconds float64 `json:"lag_s"`

	UploadedRecords uint64 `json:"uploaded_records"`
	Objects         uint64 `json:"objects"`
	StoredBytes     uint64 `json:"stored_bytes"`
	Commits         uint64 `json:"commits"`
	Retries         uint64 `json:"retries"`
	Compactions     uint64 `json:"compactions"`
	DeletedObjects  uint64 `json:"deleted_objects"`
	HeldBytes       int    `json:"held_bytes"`
	ManifestBytes   int    `json:"manifest_bytes"`

	ColdHits   uint64 `json:"cold_hits"`
	ColdMisses uint64 `json:"cold_misses"`
	ColdBytes  int64  `json:"cold_bytes"`
}

// The states of uploads.
const (
	UploadsOK       = "ok"
	UploadsRetrying = "retrying"
	UploadsFenced   = "fenced"
)

// uploadStatus is StatusUploads, in the loop; nil without a store.
func (n *Node) uploadStatus() *StatusUploads {
	u := n.uploads
	if u == nil {
		return nil
	}
	state, x, c := u.uploader.State(), u.uploader.Stats(), u.cold.Stats()
	s := &StatusUploads{State: UploadsOK, UploadedPosition: u.uploaded, LagBytes: x.LagBytes, LagSeconds: x.LagAge.Seconds(),
		LagRecords: u.records - min(u.records, x.UploadedRecords), UploadedRecords: x.UploadedRecords, Objects: x.Objects, StoredBytes: x.StoredBytes,
		Commits: x.Commits, Retries: x.Retries, Compactions: x.Compactions, DeletedObjects: x.DeletedObjects, HeldBytes: x.HeldBytes,
		ManifestBytes: x.ManifestBytes, ColdHits: c.Hits, ColdMisses: c.Misses, ColdBytes: c.HeldBytes}
	switch {
	case state.Fenced != nil:
		s.State, s.Problem = UploadsFenced, state.Fenced.Error()
	case state.Upkeep:
		s.Problem = state.Retrying.Error()
	case state.Retrying != nil:
		s.State, s.Problem = UploadsRetrying, state.Retrying.Error()
	case state.Problem != nil:
		s.Problem = state.Problem.Error()
	}
	return s
}
