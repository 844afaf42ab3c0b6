package node

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Identity is what the superblocks at a path say, read without writing or claiming
// anything.
type Identity struct {
	LogUUID  [16]byte
	Sequence uint64 // grows with every superblock that an owner writes, as a sign of life too
	Owner    fence.Owner
	// Started says that the log was served before: its first checkpoint is durable.
	Started bool
}

// Identify reads the identity of the log at path; safe on a live device. node, unless "",
// is whose it has to be. The error is what a start would say.
func Identify(path, node string) (*Identity, error) {
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	n := &Node{cfg: Config{Path: path, Node: node}, dev: dev}
	sbs, err := n.identify()
	if err != nil {
		return nil, fmt.Errorf("log %w", atPath(path, err))
	}
	sb := sbs.Newest
	return &Identity{LogUUID: sb.UUID, Sequence: sb.Sequence, Owner: ownerOf(sb), Started: sb.Epoch > 0 && sb.Durable > sb.Origin}, nil
}

// Forecast is what Open would do and find.
type Forecast struct {
	Path    string        `json:"device"`
	LogUUID string        `json:"log_uuid"`
	Node    string        `json:"node"`
	Epoch   uint64        `json:"epoch"` // of the last owner
	Clean   bool          `json:"clean"`
	Fence   fence.Mode    `json:"fence"`
	Steps   []ForeseeStep `json:"fence_steps"`
	Frames  uint64        `json:"frames"`
	Records uint64        `json:"records"` // in the log

	UploadedPosition uint64 `json:"uploaded_position"` // 0: the store has no manifest of the node
	UploadRecords    uint64 `json:"upload_records"`    // that are not in the store
	UploadBytes      uint64 `json:"upload_bytes"`      // of the log, for them

	// Room is what the start does, before its first frame, for a log that is full; nil: there
	// is room.
	Room *ForeseeRoom `json:"room,omitempty"`

	Streams []StreamEnd `json:"streams"`
}

// ForeseeRoom tells how a start finds room in a full log.
type ForeseeRoom struct {
	UsedBytes     uint64 `json:"used_bytes"` // jump included
	CapacityBytes uint64 `json:"capacity_bytes"`
	// Trims says that it is enough to upload, commit and trim. Else, or should the store not
	// take it in time, the start waits, and begins where the log ends.
	Trims   bool    `json:"trims"`
	Seconds float64 `json:"seconds"` // the longest that it waits
	Setting string  `json:"setting"` // that says how long
}

// ForeseeStep is a step that the start would take to acquire the fence.
type ForeseeStep struct {
	Action  fence.Action `json:"action"`
	Key     fence.Key    `json:"key,omitempty"`
	Abort   bool         `json:"abort,omitempty"`
	Seconds float64      `json:"seconds,omitempty"` // that it would wait
	Setting string       `json:"setting,omitempty"` // that says how long
	Jump    bool         `json:"jump,omitempty"`
	Why     string       `json:"why,omitempty"`
}

// Foresee finds out what Open would do with c, and refuses what it would refuse, as far as
// reading tells: it looks for signs of life, reads the log and the manifest, and writes
// nothing. It claims the device for a moment, to see that no process of this host has it.
func Foresee(ctx context.Context, c Config) (*Forecast, error) {
	f, err := foresee(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("log %w", atPath(c.Path, err))
	}
	return f, nil
}

func foresee(ctx context.Context, c Config) (*Forecast, error) {
	dev, err := device.Open(c.Path, device.OpenOptions{Exclusive: true, BusyFor: busyFor})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	return foreseeOn(ctx, c, dev)
}

// foreseeOn is Foresee on a device that was opened exclusively.
func foreseeOn(ctx context.Context, c Config, dev device.Device) (*Forecast, error) {
	n := &Node{cfg: c, dev: dev, log: c.Log}
	sbs, err := n.identify()
	if err != nil {
		return nil, err
	}
	sb := sbs.Newest
	f := &Forecast{Path: c.Path, LogUUID: uuid.UUID(sb.UUID).String(), Node: sb.Node, Epoch: sb.Epoch, Clean: sb.Clean}
	if err := n.foreseeFence(ctx, f); err != nil {
		return nil, err
	}
	if err := n.readManifest(ctx, sb); err != nil {
		return nil, err
	}
	state, err := rebuildWith(dev, sbs, n.notUploaded())
	if err != nil {
		return nil, err
	}
	f.Frames, f.Records, f.Streams = state.recovery.Frames, state.recovery.Records, streamEnds(state.table)
	defer func() {
		n.stopUploads()
		if n.tail != nil {
			_ = n.tail.Close()
		}
	}()
	if err := n.startEpoch(sbs, state); err != nil {
		return nil, err
	}
	n.foreseeUpload(f, sb)
	if err := n.foreseeRoom(f); err != nil {
		return nil, err
	}
	return f, nil
}

// foreseeRoom tells how the start finds room, by what makeRoom goes by.
func (n *Node) foreseeRoom(f *Forecast) error {
	if n.wal.RoomToBegin() == nil {
		return nil
	}
	left := max(n.lateWrites()-n.start.waited, 0)
	f.Room = &ForeseeRoom{UsedBytes: n.wal.Used(), CapacityBytes: n.wal.Geometry().CapacityBytes, Seconds: left.Seconds(), Setting: lateWritesSetting}
	trim := n.wal.Trim()
	if u := n.uploads; u != nil {
		uploaded := trim
		if u.manifest != nil {
			uploaded = max(trim, u.manifest.Uploaded)
		}
		u.dataEnd = max(u.dataEnd, uploaded)
		if n.uploadControl(); left > 0 { // else only what is there by now counts
			uploaded = u.dataEnd
		}
		trim = n.trimsTo(uploaded)
		f.Room.Trims = n.wal.RoomOnceTrimmed(trim) == nil
	}
	if f.Room.Trims {
		return nil
	}
	if err := n.wal.RoomInPlace(trim); err != nil {
		return nothingToLetGo(err)
	}
	return nil
}

// foreseeUpload tells what is missing in the store.
func (n *Node) foreseeUpload(f *Forecast, sb *ringwal.Superblock) {
	u := n.uploads
	if u == nil {
		return
	}
	from := sb.Trim
	if u.manifest != nil {
		from, f.UploadedPosition = max(from, u.manifest.Uploaded), u.manifest.Uploaded
	}
	f.UploadRecords = u.records
	if u.dataEnd > from {
		f.UploadBytes = u.dataEnd - from
	}
}

// foreseeFence tells how the fence would be acquired. Where that depends on signs of life
// it looks for them.
func (n *Node) foreseeFence(ctx context.Context, f *Forecast) error {
	var err error
	if n.hold.fence, err = n.openFence(); err != nil {
		return err
	}
	defer n.hold.fence.Close()
	owner, err := n.owner(ctx)
	if err != nil {
		return err
	}
	if n.boot, err = bootID(); err != nil {
		return err
	}
	boot, o := n.boot, n.cfg.Fencing
	s := fence.Situation{Mode: n.hold.fence.Mode(), Boot: boot, Exclusive: true, Abort: n.aborts(), Take: fence.TakeQuiet, LateWrites: n.lateWrites(), Owner: owner}
	if o.Forced {
		s.Take = fence.TakeForced
	}
	f.Fence = s.Mode
	if s.Mode == fence.ModePR {
		s.Me = fence.KeyOf(owner.Node, [16]byte{}) // any: the start draws its own
	}
	if s.Status, err = n.hold.fence.Read(); err != nil {
		return err
	}
	// Only replacing the key tells whether this attachment holds; that nobody else runs
	// under this kernel makes it likely.
	here := owner.Boot == boot && s.Status.Holder == owner.Key
	for _, step := range fence.Foresee(s, here) {
		if step.Action == fence.ActRefuse {
			return step.Err
		}
		if step.Action == fence.ActWatch {
			if err := n.lookForLife(ctx); err != nil {
				return err
			}
		}
		foreseen := ForeseeStep{Action: step.Action, Key: step.Key, Abort: step.Abort, Seconds: step.For.Seconds(), Jump: step.Jump, Why: step.Why}
		switch step.Action {
		case fence.ActWait:
			foreseen.Setting = waitSetting(step)
			n.start.waited += step.For
		case fence.ActDone:
			n.hold.outcome.Jump = step.Jump
		}
		f.Steps = append(f.Steps, foreseen)
	}
	return nil
}

// lookForLife returns fence.ErrHeld at the first sign of life of the log's owner, or of
// whoever is starting.
func (n *Node) lookForLife(ctx context.Context) error {
	type life struct {
		holder     fence.Key
		generation uint32
		progress   uint64
	}
	look := func() (l life, err error) {
		st, err := n.hold.fence.Read()
		if err != nil {
			return l, err
		}
		l.holder, l.generation = st.Holder, st.Generation
		l.progress, err = n.progress(ctx)
		return l, err
	}
	before, err := look()
	if err != nil {
		return err
	}
	for range fence.QuietBeats {
		select {
		case <-time.After(fence.HeartbeatEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
		now, err := look()
		if err != nil {
			return err
		}
		if now != before {
			return fmt.Errorf("%w: key %s, and it is alive: it made progress within %s", fence.ErrHeld, now.holder, fence.QuietBeats*fence.HeartbeatEvery)
		}
	}
	return nil
}

// HasManifest reads the manifest of the identity's node and reports whether there is one.
// It waits for a store that does not answer as a start does. Errors: those of
// upload.Manifest.Check.
func HasManifest(ctx context.Context, c Config, id *Identity) (bool, error) {
	n := &Node{cfg: c, log: c.Log}
	err := n.readManifest(ctx, &ringwal.Superblock{UUID: id.LogUUID, Node: id.Owner.Node})
	return n.uploads != nil && n.uploads.manifest != nil, err
}
