package sim

import (
	"context"
	"errors"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

// uploads are a host's: the core, and the requests that it waits for.
type uploads struct {
	core    *upload.Core
	actions []*upload.Action // asked for, not carried out
	results []carriedOut     // carried out, the core has not heard
	dataEnd uint64           // end of the newest durable data frame
}

type carriedOut struct {
	action *upload.Action
	result upload.Result
}

func (w *World) instant() upload.Instant { return upload.Instant{NS: w.now, WallNS: w.wall} }

// errStoreDown is a start that gave up because the store did not answer.
var errStoreDown = errors.New("the store does not answer")

// readManifest reads the manifest before anything is written; nil where there is none.
func (h *host) readManifest() (*upload.Manifest, error) {
	if h.w.bucket == nil {
		return nil, nil
	}
	m, _, err := upload.ReadManifest(context.Background(), storePort{h}, simNode)
	switch {
	case errors.Is(err, upload.ErrNoManifest):
		return nil, nil
	case err != nil:
		return nil, h.storeError(err)
	}
	h.seen = m
	return m, nil
}

// storeError tells an outage, which a start does not survive, from a refusal.
func (h *host) storeError(err error) error {
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, store.ErrChanged) {
		return errors.Join(errStoreDown, err)
	}
	return err
}

// openArchive makes the read side, before the claim: nothing is read from it until then.
func (h *host) openArchive(state *recovered) {
	w := h.w
	if w.bucket == nil {
		return
	}
	m := state.manifest
	if m == nil {
		m = &upload.Manifest{Log: state.sbs.Newest.UUID, Node: simNode}
	}
	h.archive = upload.NewArchive(w.bucket.honest(), m, nil)
}

// claim makes the host the owner of the manifest, before anything is acked.
func (h *host) claim(state *recovered) error {
	w := h.w
	if w.bucket == nil {
		return nil
	}
	sb := h.log.Superblock()
	claimant := upload.Claimant{Log: sb.UUID, Node: sb.Node, Epoch: sb.Epoch, Incarnation: sb.Incarnation, Trim: h.log.Trim(), End: state.recovery.End}
	var claimed *upload.Claimed
	var err error
	for attempts, tries := uint64(0), 0; claimed == nil; tries++ {
		if claimed, err = claimant.Try(context.Background(), storePort{h}, &attempts); err == nil {
			break
		}
		if err = h.storeError(err); !errors.Is(err, errStoreDown) || h.port.dead || tries == 20 {
			return err
		}
		w.pass(w.rng.Int64N(1e9))
	}
	w.tracef("%s claimed the manifest: epoch %d, uploaded %d", h.name, sb.Epoch, claimed.Manifest.Uploaded)
	w.bucket.archive.claimed(claimed.Manifest)
	h.archive.Apply(claimed.Manifest)
	u := &uploads{dataEnd: claimed.Manifest.Uploaded}
	for i := range state.frames {
		if f := &state.frames[i]; f.Kind == ringwal.FrameData {
			u.dataEnd = max(u.dataEnd, f.End())
		}
	}
	u.core = upload.NewCore(upload.Settings{
		Node: sb.Node, Log: sb.UUID, Epoch: sb.Epoch, Incarnation: sb.Incarnation, Claimed: claimed,
		Linger: w.profile.linger, Grace: w.profile.grace, Seed: w.rng.Uint64(), Committed: h.archive.Apply,
	})
	h.uploads = u
	return nil
}

// upload is one step of the uploader.
func (h *host) upload() {
	w, u := h.w, h.uploads
	if u == nil || h.log.Err() != nil {
		return
	}
	switch w.pick(3, 3, 3) {
	case 0:
		h.feed(h.published, ringwal.NewFrameChecker(h.log.Superblock()))
		u.actions = append(u.actions, u.core.Step(w.instant())...)
	case 1:
		if n := len(u.actions); n > 0 {
			h.carryOut(w.rng.IntN(n))
		}
	case 2:
		if n := len(u.results); n > 0 {
			h.hears(w.rng.IntN(n))
		}
	}
}

// feed gives the core the frames that it asks for, up to where the log is durable.
func (h *host) feed(durable uint64, check *ringwal.FrameChecker) {
	w, u := h.w, h.uploads
	u.core.Advance(durable, u.dataEnd)
	for range 64 {
		position, wants := u.core.WantsFrame(w.instant())
		if !wants {
			return
		}
		f, err := h.frame(check.Next(position))
		next := uint64(0)
		if err == nil {
			next = check.Next(f.End())
		} else if w.profile.kind != Failing && !h.superseded() {
			w.fail("P5", "the uploader cannot read the frame at %d: %v", position, err)
		}
		u.core.Frame(w.instant(), &f, next, err)
	}
}

func (h *host) carryOut(i int) {
	u := h.uploads
	a := u.actions[i]
	u.actions = append(u.actions[:i:i], u.actions[i+1:]...)
	u.results = append(u.results, carriedOut{a, h.w.bucket.carryOut(a)})
}

func (h *host) hears(i int) {
	w, u := h.w, h.uploads
	r := u.results[i]
	u.results = append(u.results[:i:i], u.results[i+1:]...)
	before := u.core.Uploaded()
	u.core.Done(w.instant(), r.action, r.result)
	if after := u.core.Uploaded(); after != before {
		w.tracef("%s: uploaded %d", h.name, after)
		if in := w.bucket.archive.uploaded(); after > in {
			w.fail("P5", "the uploader calls %d uploaded, and no manifest says more than %d", after, in)
		}
	}
	h.fencedByStore()
}

// fencedByStore stops the log when another owner has the manifest.
func (h *host) fencedByStore() {
	w := h.w
	err := h.uploads.core.Fenced()
	if err == nil {
		return
	}
	w.tracef("%s is fenced by the store: %v", h.name, err)
	if w.host == h {
		w.fail("P12", "the owner is fenced by the store, and there is no other: %v", err)
	}
	h.log.Fail(err)
}

// goneWith leaves the requests of a host that has gone to chance.
func (b *bucket) goneWith(h *host) {
	if h.uploads == nil {
		return
	}
	for _, a := range h.uploads.actions {
		if a.Kind != upload.ActWork && b.w.chance(0.5) {
			b.strays = append(b.strays, a)
		}
	}
	h.uploads.actions, h.uploads.results = nil, nil
}

// elapse lets the time go by until the uploader has something to do, if no write is
// on its way that would stall.
func (h *host) elapse() {
	w, u := h.w, h.uploads
	if u == nil || len(h.flights) > 0 || h.super != nil || !w.chance(0.4) {
		return
	}
	if at := u.core.WakeAt(w.instant()); at > w.now {
		w.pass(min(at-w.now, int64(20*time.Second)))
		return
	}
	if w.chance(0.2) {
		w.pass(w.rng.Int64N(int64(20 * time.Second)))
	}
}

// uploadAll drives the uploader until everything that is durable is in the store, and
// nothing is left to do now. With a store that does its work it has to get there (P12).
func (h *host) uploadAll() {
	w, u := h.w, h.uploads
	for range 10 * healRounds {
		if h.log.Err() != nil {
			return
		}
		h.feed(h.published, ringwal.NewFrameChecker(h.log.Superblock()))
		u.core.Flush()
		u.actions = append(u.actions, u.core.Step(w.instant())...)
		idle := len(u.actions)+len(u.results) == 0
		for len(u.actions) > 0 {
			h.carryOut(0)
		}
		for len(u.results) > 0 && h.log.Err() == nil {
			h.hears(0)
		}
		if _, wants := u.core.WantsFrame(w.instant()); wants || !idle {
			continue
		}
		if u.core.Uploaded() >= u.dataEnd {
			return
		}
		at := u.core.WakeAt(w.instant())
		if at <= w.now {
			w.fail("P12", "the uploader has stopped at %d of %d, with a store that does its work", u.core.Uploaded(), u.dataEnd)
		}
		w.pass(at - w.now)
	}
	w.fail("P12", "the uploader does not get on: %d of %d", u.core.Uploaded(), u.dataEnd)
}
