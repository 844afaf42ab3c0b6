package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

// RestoreOptions say where to make a log that takes the place of a lost one.
type RestoreOptions struct {
	Path       string
	SizeBytes  int64         // of a new file (0: DefaultFileBytes), or how much of a device to use (0: all)
	StallAfter time.Duration // L; 0: the default
	Store      store.Store
	Node       string // whose log was lost
}

// Restored describes a log that has taken the place of a lost one.
type Restored struct {
	Path          string `json:"path"`
	LogUUID       string `json:"log_uuid"`
	Node          string `json:"node"`
	CapacityBytes uint64 `json:"capacity_bytes"`
	// Already: an earlier restore made it, and nothing was written.
	Already bool `json:"already"`

	LostLogUUID string `json:"lost_log_uuid"`
	// What the lost log took at or above LostFromPosition, from about LostSince on, did not
	// reach the store.
	LostFromPosition uint64    `json:"lost_from_position"`
	LostSince        time.Time `json:"lost_since,omitzero"` // unknown where nothing was ever uploaded
	OriginPosition   uint64    `json:"origin_position"`     // where the new log begins

	Streams          int `json:"streams"`
	NamedProducers   int `json:"named_producers"`
	SessionProducers int `json:"session_producers"`
}

// Restore makes a log at o.Path, a blank device or a file that does not exist, which goes
// on where the store's copy of a lost log ends. The caller vouches that the lost log's
// device is gone: what only that had is given up.
//
// The order, and what a crash behind each step leaves for the next Restore:
//
//  1. Manifest and state are read; the path is looked at, and refused if it holds
//     something. (nothing)
//  2. The log is written to the device: superblocks, then its first epoch, and a checkpoint
//     with the restored state; it is closed in order, read back, and, in a file, gets its
//     name. (A log that the manifest does not know, that no sidecar starts, and that has
//     never held a record: it is recognised, and made anew.)
//  3. The state object with the joins is put. (An object that the manifest does not name:
//     `gc` finds it.)
//  4. The manifest is claimed for the new log by one conditional write of the version that
//     was read in step 1; it retires the lost log. (All is done: it is recognised, and
//     reported again.)
//
// So until the last step the lost log is what it was, and from then on the new one is
// complete. Errors: ErrNotOurs, device.ErrInUse, those of upload.PrepareRestore and
// upload.Restoration.Claim.
func Restore(ctx context.Context, o RestoreOptions) (*Restored, error) {
	r, err := upload.PrepareRestore(ctx, o.Store, o.Node)
	if err != nil {
		return nil, fmt.Errorf("restore node %q: %w", o.Node, err)
	}
	f := FormatOptions{Path: o.Path, Node: o.Node, SizeBytes: o.SizeBytes, StallAfter: o.StallAfter, origin: r.Origin}
	there, err := lookAtTarget(o.Path, r.Manifest)
	if err != nil {
		return nil, fmt.Errorf("restore %w; nothing was written", atPath(o.Path, err))
	}
	if there != nil && there.UUID == r.Manifest.Log {
		return restoredAlready(ctx, &o, there, r.Manifest)
	}
	if there != nil { // of a restore that did not come to its end
		f.Force, f.ExpectUUID = true, there.UUID
	}
	if err := stateFits(&o, r); err != nil {
		return nil, fmt.Errorf("restore %w; nothing was written", atPath(o.Path, err))
	}
	by := upload.Successor{Epoch: r.Manifest.Epoch + 1}
	_, _ = rand.Read(by.Incarnation[:]) // never fails
	f.begin = func(dev device.Device, sb *ringwal.Superblock) error {
		by.Log = sb.UUID
		return beginRestored(dev, r.State.EncodeCheckpoint(nil), by)
	}
	made, err := Format(f)
	if err != nil {
		return nil, err
	}
	m, err := r.Claim(ctx, o.Store, by, time.Now().UnixNano())
	if err != nil {
		return nil, fmt.Errorf("restore node %q: %w", o.Node, err)
	}
	done := describeRestored(m)
	done.Path, done.CapacityBytes = made.Path, made.CapacityBytes
	done.Streams = r.State.Streams()
	done.NamedProducers, done.SessionProducers = r.State.Producers()
	return done, nil
}

// describeRestored tells what a manifest knows of the log that was restored last.
func describeRestored(m *upload.Manifest) *Restored {
	lost := m.Retired[len(m.Retired)-1]
	done := &Restored{LogUUID: uuid.UUID(m.Log).String(), Node: m.Node, LostLogUUID: uuid.UUID(lost.Log).String(),
		LostFromPosition: lost.Uploaded, OriginPosition: lost.Origin}
	if lost.AtNS != 0 {
		done.LostSince = time.Unix(0, lost.AtNS).UTC()
	}
	return done
}

// restoredAlready describes the log that an earlier restore made.
func restoredAlready(ctx context.Context, o *RestoreOptions, sb *ringwal.Superblock, m *upload.Manifest) (*Restored, error) {
	state, err := upload.NewArchive(o.Store, m, nil).State(ctx, upload.MaxStateBytes)
	if err != nil {
		return nil, fmt.Errorf("restore node %q: %w", o.Node, err)
	}
	done := describeRestored(m)
	done.Path, done.CapacityBytes, done.Already = o.Path, sb.CapacityBytes, true
	done.Streams = state.Table.Streams()
	done.NamedProducers, done.SessionProducers = state.Table.Producers()
	return done, nil
}

// lookAtTarget returns the superblock of a restore that was begun at path, or nil where
// there is nothing. What else is there is for Format to refuse, but for the node's own
// logs: those are told apart here.
func lookAtTarget(path string, m *upload.Manifest) (*ringwal.Superblock, error) {
	dev, err := device.Open(path, device.OpenOptions{Exclusive: true, BusyFor: busyFor})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	sbs, err := ringwal.ReadSuperblocks(dev)
	if sbs == nil || sbs.Newest == nil {
		return nil, nil // Format looks closer
	}
	sb := sbs.Newest
	id := uuid.UUID(sb.UUID)
	if sb.UUID == m.Log {
		if err == nil && len(m.Retired) > 0 && m.Uploaded == sb.Origin && sb.Incarnation == m.Incarnation {
			return sb, nil
		}
		return nil, fmt.Errorf("%w: it holds log %s itself: it is not lost; start it", ErrNotOurs, id)
	}
	for i := range m.Retired {
		if m.Retired[i].Log == sb.UUID {
			return nil, fmt.Errorf("%w: it holds log %s, which was given up when it was restored elsewhere: `walsidecar salvage` reads what is left of it",
				ErrNotOurs, id)
		}
	}
	for i := range sbs.Slots {
		if s := sbs.Slots[i].Superblock; s != nil && !unfinishedRestore(s, m) {
			return nil, nil // Format refuses it
		}
	}
	if err == nil {
		err = holdsNoRecord(dev, sbs)
	}
	if err != nil && !errors.Is(err, ringwal.ErrDamaged) { // a format that did not finish
		return nil, err
	}
	return sb, nil
}

// unfinishedRestore reports whether a log may be what a restore left behind that did not
// reach its claim: its first epoch at most, at positions that only a restore uses.
func unfinishedRestore(sb *ringwal.Superblock, m *upload.Manifest) bool {
	return sb.Node == m.Node && sb.Epoch <= m.Epoch+1 && sb.Origin >= upload.RestoreGapBytes && sb.Origin >= m.Uploaded && sb.Trim == sb.Origin
}

// holdsNoRecord refuses a log with items in it.
func holdsNoRecord(dev device.Device, sbs *ringwal.Superblocks) error {
	_, err := ringwal.Recover(dev, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		if f.Kind == ringwal.FrameData {
			return fmt.Errorf("%w: it holds log %s, which the manifest does not know, and which has records: `walsidecar salvage` reads them",
				ErrNotOurs, uuid.UUID(sbs.Newest.UUID))
		}
		return nil
	}})
	return err
}

// stateFits refuses a log whose checkpoints could not hold the state.
func stateFits(o *RestoreOptions, r *upload.Restoration) error {
	size, block := o.SizeBytes, device.MinBlockBytes
	dev, err := device.Open(o.Path, device.OpenOptions{ReadOnly: true})
	switch {
	case err == nil:
		block = dev.BlockBytes()
		if size == 0 {
			size = dev.SizeBytes()
		}
		_ = dev.Close() // was only asked for its size
	case errors.Is(err, os.ErrNotExist) && size == 0:
		size = DefaultFileBytes
	}
	g, err := ringwal.DefaultGeometry(size, block)
	if err != nil {
		return err
	}
	if need := r.State.EncodedBound(); need > g.CheckpointMaxBytes {
		return fmt.Errorf("%w: the streams and producers take up to %d bytes, and a log of that size has room for %d: it needs about %d bytes",
			ringwal.ErrTooSmall, need, g.CheckpointMaxBytes, 8*need+ringwal.RingStart)
	}
	return nil
}

// beginRestored writes the first epoch of a log that was just formatted, and a checkpoint
// with the state; it closes the log in order, and reads it back.
func beginRestored(dev device.Device, state []byte, by upload.Successor) error {
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil {
		return err
	}
	r, err := ringwal.Recover(dev, sbs, ringwal.Visitor{})
	if err != nil {
		return err
	}
	e := ringwal.Epoch{Number: by.Epoch, Incarnation: by.Incarnation, CheckpointStateBytes: len(state)}
	if e.BootID, err = bootID(); err != nil {
		return err
	}
	g := sbs.Newest.Geometry
	tail, err := readcache.NewTail(2*(int(g.WindowBytes)+2*int(g.MaxFrameBytes)), r.End)
	if err != nil {
		return err
	}
	defer tail.Close()
	n := &Node{dev: dev, tail: tail}
	if n.wal, err = ringwal.Start(sbs, r, e, tail); err != nil {
		return err
	}
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	if err := n.wal.Checkpoint(state); err != nil {
		return err
	}
	for f := n.wal.Next(device.NowNS()); f != nil; f = n.wal.Next(device.NowNS()) {
		err := dev.WriteSync(f.Buf, f.Offset)
		tail.Publish(n.wal.Complete(f, err, device.NowNS()))
		for done := n.wal.PopDurable(); done != nil; done = n.wal.PopDurable() {
			n.wal.Release(done)
		}
	}
	n.wal.RecordDurable()
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	if err := n.wal.MarkClean(); err != nil {
		return err
	}
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	return readBack(dev, state)
}

// readBack checks that the device returns the log that was written.
func readBack(dev device.Device, state []byte) error {
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil {
		return err
	}
	got, err := rebuild(dev, sbs)
	if err != nil {
		return err
	}
	if !got.table.EqualCheckpoint(state) {
		return fmt.Errorf("%w: the device returns another state than was written", ringwal.ErrDamaged)
	}
	return nil
}
