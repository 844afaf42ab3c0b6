package node

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// Status is one log as `walsidecar status --json` and /status show it.
type Status struct {
	LogUUID string `json:"log_uuid"`
	Node    string `json:"node"`
	Path    string `json:"path"`
	State   string `json:"state"` // open, degraded, draining, closed, failed
	Failure string `json:"failure,omitempty"`

	Epoch           uint64 `json:"epoch"`
	TrimPosition    uint64 `json:"trim_position"`
	DurablePosition uint64 `json:"durable_position"`
	HeadPosition    uint64 `json:"head_position"`

	CapacityBytes uint64 `json:"capacity_bytes"`
	UsedBytes     uint64 `json:"used_bytes"`
	RoomBytes     uint64 `json:"room_bytes"` // that appends may still take
	// SecondsToFull at the growth of the last seconds, rounded down; absent while the
	// log does not grow.
	SecondsToFull *uint64 `json:"time_to_full_s,omitempty"`

	Store     string `json:"store"`
	StoreNote string `json:"store_note,omitempty"`
	// Uploads is absent without a store.
	Uploads     *StatusUploads `json:"uploads,omitempty"`
	PinnedBy    string         `json:"pinned_by_stream,omitempty"` // holds the trim position
	PinnedFirst uint64         `json:"pinned_first_offset,omitempty"`

	Streams          int    `json:"streams"`
	NamedProducers   int    `json:"named_producers"`
	SessionProducers int    `json:"session_producers"`
	FramesInFlight   int    `json:"frames_in_flight"`
	Appends          uint64 `json:"appends"`
	PayloadBytes     uint64 `json:"payload_bytes"`
	DeviceWrites     uint64 `json:"device_writes"`
	DeviceBytes      uint64 `json:"device_bytes"`

	Device StatusDevice `json:"device"`
	Fence  StatusFence  `json:"fence"`
	Start  StatusStart  `json:"start"`
}

// StatusDevice tells what the log lies on.
type StatusDevice struct {
	Kind       string `json:"kind"`
	Model      string `json:"model,omitempty"`
	Serial     string `json:"serial,omitempty"`
	SizeBytes  int64  `json:"size_bytes"`
	GrownBytes int64  `json:"grown_bytes,omitempty"`
	BlockBytes int    `json:"block_bytes"`
	WriteCache string `json:"write_cache,omitempty"`
	Profile    string `json:"profile,omitempty"` // shaped like that volume type
	Engine     string `json:"engine"`            // how it is written: aio, threads
}

// StatusStart tells what the start routine found.
type StatusStart struct {
	Clean           bool    `json:"clean"`
	RecoverySeconds float64 `json:"recovery_s"`
	WaitedSeconds   float64 `json:"waited_s,omitempty"`
	Frames          uint64  `json:"frames"`
	Records         uint64  `json:"records"`
	ReadBytes       uint64  `json:"read_bytes"`
	GhostFrames     int     `json:"ghost_frames"`
}

// statusPatience is how long Status waits for the commit loop before it shows what it
// knew last.
const statusPatience = time.Second

// statusPlanStreams is the most streams that a status looks at to name the one that
// pins the log; above, it shows what the last trim found.
const statusPlanStreams = 2000

// Status returns the log's state. It never waits longer than a second.
func (n *Node) Status() *Status {
	answer := make(chan *Status, 1)
	n.inbox.addCall(func() { answer <- n.status() })
	select {
	case s := <-answer:
		n.snapshot.Store(s)
		return s
	case <-n.stopped: // the state has no owner any more
		n.ended.Lock()
		defer n.ended.Unlock()
		return n.status()
	case <-time.After(statusPatience):
	}
	if s := n.snapshot.Load(); s != nil {
		return s
	}
	return &Status{Node: n.welcome.Node, Path: n.cfg.Path, State: "unknown"}
}

// status is Status, in the loop.
func (n *Node) status() *Status {
	g, plan := n.wal.Geometry(), n.loop.plan
	if n.committer.Table().Streams() <= statusPlanStreams {
		plan = n.trimPlan()
	}
	named, sessions := n.committer.Table().Producers()
	room := n.committer.AppendRoom()
	s := &Status{
		LogUUID: uuid.UUID(n.welcome.Log).String(), Node: n.welcome.Node, Path: n.cfg.Path, Epoch: n.start.epoch,
		TrimPosition: n.wal.Trim(), DurablePosition: n.wal.Durable(), HeadPosition: n.wal.Head(),
		CapacityBytes: g.CapacityBytes, UsedBytes: n.wal.Used(), RoomBytes: room,
		Store: n.cfg.Store, StoreNote: n.storeNote(), Uploads: n.uploadStatus(), PinnedBy: plan.PinnedName, PinnedFirst: plan.PinnedFirst,
		Streams: n.committer.Table().Streams(), NamedProducers: named, SessionProducers: sessions,
		FramesInFlight: n.wal.InFlight(), Appends: n.stats.Appends.Load(), PayloadBytes: n.stats.PayloadBytes.Load(),
		DeviceWrites: n.stats.DeviceWrites.Load(), DeviceBytes: n.stats.DeviceBytes.Load(),
		Device: StatusDevice{Kind: string(n.info.Kind), Model: n.info.Model, Serial: n.info.Serial, SizeBytes: n.dev.SizeBytes(),
			GrownBytes: n.start.grownBytes, BlockBytes: n.dev.BlockBytes(), WriteCache: n.info.WriteCache, Profile: n.cfg.Profile.Name, Engine: n.Engine()}, Fence: n.fenceStatus(),
		Start: StatusStart{Clean: n.start.wasClean, RecoverySeconds: n.start.recoverySeconds, WaitedSeconds: n.start.waited.Seconds(),
			Frames: n.start.recovery.Frames, Records: n.start.recovery.Records, ReadBytes: n.start.recovery.BytesRead,
			GhostFrames: n.start.recovery.GhostFrames},
	}
	n.stats.sample(device.NowNS(), n.wal.Head())
	if rate := n.stats.bytesPerSec; rate > 1 {
		seconds := uint64(float64(room) / rate)
		s.SecondsToFull = &seconds
	}
	s.State = n.state()
	if err := n.wal.Err(); err != nil && s.State == "failed" {
		s.Failure = err.Error()
	}
	return s
}

func (n *Node) state() string {
	err := n.wal.Err()
	switch {
	case n.loop.closing != nil && n.loop.closing.told:
		return "closed"
	case err != nil:
		return "failed"
	case n.draining.Load(), n.ending.Load():
		return "draining"
	case n.loop.stall != ringwal.StallNone:
		return "degraded"
	}
	return "open"
}

// storeNote says what the named store means to this version.
func (n *Node) storeNote() string {
	switch {
	case n.cfg.Store == StoreNone:
		return "no store: the application trims; a full log refuses appends"
	case n.uploads == nil:
		return "running without the store: all data stays in the log, and a full log refuses appends"
	}
	return ""
}

// StatusJSON is the document of Status, for clients.
func (n *Node) StatusJSON() []byte {
	b, err := json.Marshal(n.Status())
	if err != nil {
		return []byte(`{}`) // a struct of plain fields always encodes
	}
	return b
}

// AnnounceDrain makes the status say that the sidecar shuts down, while sessions are
// still served: until Drain.
func (n *Node) AnnounceDrain() { n.ending.Store(true) }

// Welcome tells what the log is.
func (n *Node) Welcome() wire.Welcome {
	w := n.welcome
	w.Durable = n.reader.Durable()
	w.Trim = n.reader.Trim()
	return w
}

func (n *Node) fillWelcome(sb *ringwal.Superblock) {
	n.welcome = wire.Welcome{Log: sb.UUID, Epoch: sb.Epoch, Node: sb.Node, Server: n.cfg.Server,
		MaxBatchRecords: stream.MaxBatchRecords, MaxBatchBytes: uint32(sb.Geometry.MaxItemBytes())}
}

// Engine is how frames are written: device.EngineAIO or device.EngineThreads.
func (n *Node) Engine() string { return n.writers.Engine() }

// Ready says that s has requests for the commit loop.
func (n *Node) Ready(s *session.Session) {
	if !n.inbox.putSession(s) {
		n.tellEnd(s)
		return
	}
	n.inbox.turn.ring()
}

// Serve is Ready, and may run the commit loop on the caller's goroutine.
func (n *Node) Serve(s *session.Session) {
	if !n.inbox.putSession(s) {
		n.tellEnd(s)
		return
	}
	n.serve()
}

// Opened admits a session unless the log takes none any more.
func (n *Node) Opened(*session.Session) error {
	if n.draining.Load() {
		return ErrDraining
	}
	if e := n.refusing.Load(); e != nil {
		return e
	}
	select {
	case <-n.stopped: // without having been drained
		return ErrDraining
	default:
		return nil
	}
}

// Closed lets go of the producers that s used, once what it left behind is decided.
func (n *Node) Closed(s *session.Session) {
	n.inbox.addCall(func() { n.loop.gone[s] = struct{}{} })
	n.Ready(s) // for the look whether it left anything
}
