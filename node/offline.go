package node

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
)

// verifyTries is how often a log that looks damaged is read again when its owner is
// alive and has written a superblock meanwhile: trimmed frames are overwritten.
const verifyTries = 5

// Inspection is what lies at a path, read-only; safe on a live device.
type Inspection struct {
	Path        string              `json:"path"`
	Kind        string              `json:"kind"`
	SizeBytes   int64               `json:"size_bytes"`
	Signature   string              `json:"signature,omitempty"` // what else lies there
	GrownBytes  int64               `json:"grown_bytes,omitempty"`
	Superblocks []InspectSuperblock `json:"superblocks"`
	Newest      int                 `json:"newest_slot"` // −1: none is readable
	Problem     string              `json:"problem,omitempty"`
}

// InspectSuperblock is one slot.
type InspectSuperblock struct {
	Slot            int               `json:"slot"`
	State           string            `json:"state"`
	Problem         string            `json:"problem,omitempty"`
	LogUUID         string            `json:"log_uuid,omitempty"`
	Node            string            `json:"node,omitempty"`
	Sequence        uint64            `json:"sequence"`
	Epoch           uint64            `json:"epoch"`
	Clean           bool              `json:"clean"`
	BlockBytes      uint32            `json:"block_bytes"`
	CapacityBytes   uint64            `json:"capacity_bytes"`
	MaxFrameBytes   uint32            `json:"max_frame_bytes"`
	WindowBytes     uint64            `json:"window_bytes"`
	StallSeconds    float64           `json:"stall_s"`
	OriginPosition  uint64            `json:"origin_position"`
	TrimPosition    uint64            `json:"trim_position"`
	DurablePosition uint64            `json:"durable_position"`
	Boundaries      []InspectBoundary `json:"boundaries,omitempty"`
}

// InspectBoundary is one epoch's beginning.
type InspectBoundary struct {
	Epoch           uint64 `json:"epoch"`
	FollowsPosition uint64 `json:"follows_position"`
	StartPosition   uint64 `json:"start_position"`
	Merged          bool   `json:"merged,omitempty"` // stands for all epochs up to this one since the boundary before it
}

var slotStates = map[ringwal.SlotState]string{
	ringwal.SlotBlank: "blank", ringwal.SlotValid: "valid", ringwal.SlotDamaged: "damaged",
	ringwal.SlotUnreadable: "unreadable", ringwal.SlotForeign: "foreign",
}

// Inspect reads what lies at path. The error is about reading; what is wrong with the
// log is in Problem.
func Inspect(path string) (*Inspection, error) {
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	report := &Inspection{Path: path, SizeBytes: dev.SizeBytes(), Newest: -1}
	if info, err := device.Describe(path); err == nil {
		report.Kind = string(info.Kind)
	}
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil {
		report.Problem = err.Error()
	}
	if sbs == nil || sbs.Newest == nil {
		report.Signature, _ = device.SignatureOn(dev)
	}
	if sbs == nil {
		return report, nil
	}
	report.GrownBytes = sbs.GrownBytes
	if sbs.Newest != nil {
		report.Newest = sbs.NewestSlot
	}
	for i := range sbs.Slots {
		report.Superblocks = append(report.Superblocks, inspectSlot(i, &sbs.Slots[i]))
	}
	return report, nil
}

func inspectSlot(i int, slot *ringwal.Slot) InspectSuperblock {
	r := InspectSuperblock{Slot: i, State: slotStates[slot.State]}
	if slot.Err != nil {
		r.Problem = slot.Err.Error()
	}
	sb := slot.Superblock
	if sb == nil {
		return r
	}
	r.LogUUID, r.Node, r.Sequence, r.Epoch, r.Clean = uuid.UUID(sb.UUID).String(), sb.Node, sb.Sequence, sb.Epoch, sb.Clean
	r.BlockBytes, r.CapacityBytes, r.MaxFrameBytes, r.WindowBytes = sb.Geometry.BlockBytes, sb.Geometry.CapacityBytes, sb.Geometry.MaxFrameBytes, sb.Geometry.WindowBytes
	r.StallSeconds, r.OriginPosition, r.TrimPosition, r.DurablePosition = sb.StallAfter.Seconds(), sb.Origin, sb.Trim, sb.Durable
	for _, b := range sb.Boundaries {
		r.Boundaries = append(r.Boundaries, InspectBoundary{Epoch: b.Epoch, FollowsPosition: b.FollowEnd, StartPosition: b.Start, Merged: b.IncarnationHash == 0})
	}
	return r
}

// InspectFrame is one frame, for `inspect --frames`.
type InspectFrame struct {
	Position        uint64 `json:"position"`
	Kind            string `json:"kind"`
	Epoch           uint64 `json:"epoch"`
	LengthBytes     uint32 `json:"length_bytes"`
	BodyBytes       uint32 `json:"body_bytes"`
	Records         uint32 `json:"records"`
	Items           uint32 `json:"items"`
	DurablePosition uint64 `json:"durable_position"`
	Sum             string `json:"sum"`
	PrevSum         string `json:"prev_sum"`
}

// InspectFrames calls visit with every frame of the log from its trim position on.
func InspectFrames(path string, visit func(InspectFrame) error) error {
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer dev.Close()
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil {
		return atPath(path, err)
	}
	_, err = ringwal.Recover(dev, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		return visit(InspectFrame{Position: f.Position, Kind: f.Kind.String(), Epoch: f.Epoch, LengthBytes: f.LengthBytes, BodyBytes: f.BodyBytes,
			Records: f.Records, Items: f.Items, DurablePosition: f.Durable, Sum: fmt.Sprintf("%016x", f.Sum), PrevSum: fmt.Sprintf("%016x", f.PrevSum)})
	}})
	if err != nil {
		return atPath(path, err)
	}
	return nil
}

// Verification is what Verify found in a log that is sound.
type Verification struct {
	Path            string `json:"path"`
	LogUUID         string `json:"log_uuid"`
	Node            string `json:"node"`
	TrimPosition    uint64 `json:"trim_position"`
	EndPosition     uint64 `json:"end_position"`
	ProvenPosition  uint64 `json:"proven_position"` // known to have been durable
	Frames          uint64 `json:"frames"`
	Records         uint64 `json:"records"`
	Streams         int    `json:"streams"`
	ReadBytes       uint64 `json:"read_bytes"`
	GhostFrames     int    `json:"ghost_frames"` // beyond the end, never acked
	CheckpointStart uint64 `json:"checkpoint_position"`
}

// Verify reads a whole log as a start would, and the checksum of every record
// besides. It writes nothing and is safe on a live device. The error is what a start
// would say.
func Verify(path string) (*Verification, error) {
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	for try := 1; ; try++ {
		sbs, err := ringwal.ReadSuperblocks(dev)
		if err != nil {
			return nil, atPath(path, err)
		}
		report, err := verify(path, dev, sbs)
		if err == nil || !errors.Is(err, ringwal.ErrDamaged) || try == verifyTries {
			return report, err
		}
		// A living owner trims and writes on while we read.
		again, aerr := ringwal.ReadSuperblocks(dev)
		if aerr == nil && again.Newest.Sequence == sbs.Newest.Sequence {
			return nil, err
		}
	}
}

func verify(path string, dev device.Device, sbs *ringwal.Superblocks) (*Verification, error) {
	state, err := rebuildWith(dev, sbs, func(it *stream.Item, f *ringwal.FrameView) error {
		var rec stream.Record
		for it.Rewind(); it.NextRecord(&rec); {
			if !rec.Verify() {
				return &ringwal.DamageError{From: f.Position, To: f.End(), Reason: fmt.Sprintf(
					"stream %d offset %d: the record's own checksum does not hold", rec.Stream, rec.Offset)}
			}
		}
		it.Rewind()
		return nil
	})
	if err != nil {
		return nil, atPath(path, err)
	}
	sb, r := sbs.Newest, state.recovery
	return &Verification{Path: path, LogUUID: uuid.UUID(sb.UUID).String(), Node: sb.Node, TrimPosition: sb.Trim, EndPosition: r.End,
		ProvenPosition: r.Proven, Frames: r.Frames, Records: r.Records, Streams: state.table.Streams(), ReadBytes: r.BytesRead,
		GhostFrames: r.GhostFrames, CheckpointStart: r.Checkpoint.Start}, nil
}
