package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
)

// readAheadBytes and readAheadBuffers are the memory of a recovery.
const (
	readAheadBytes   = 1 << 20
	readAheadBuffers = 6
	// recoverTries is how often a tail that changes between two reads is recovered
	// again before the device is called broken.
	recoverTries = 3
)

// Open brings the log at c.Path to life by the one start routine: open exclusively,
// flush, check the identity, wait for late writes where a former owner may have
// some, recover, flush and read the tail again, write a superblock with a new epoch,
// write a checkpoint. A file that does not exist is made; a device never is. Nothing
// is written before recovery has succeeded. When Open returns, the log takes
// appends.
func Open(ctx context.Context, c Config) (*Node, error) {
	if err := makeMissingFile(ctx, c); err != nil {
		return nil, err
	}
	dev, err := device.Open(c.Path, device.OpenOptions{Exclusive: true, BusyFor: busyFor})
	if err != nil {
		return nil, err
	}
	n, err := openOn(ctx, c, device.Shape(dev, c.Profile))
	if err != nil {
		_ = dev.Close()
		return nil, fmt.Errorf("log %w", atPath(c.Path, err))
	}
	return n, nil
}

// openOn is Open on a device that was opened exclusively.
func openOn(ctx context.Context, c Config, dev device.Device) (*Node, error) {
	n := &Node{
		cfg: c, dev: dev, log: c.Log,
		failed: make(chan error, 1), stopped: make(chan struct{}), superEnd: make(chan struct{}), super: make(chan superblockJob, 1),
	}
	sleeper, err := newSleeper()
	if err != nil {
		return nil, fmt.Errorf("no descriptors for the commit loop: %w", err)
	}
	n.sleeper, n.inbox.turn = sleeper, newTurn(sleeper.handOver)
	if err := n.bringUp(ctx); err != nil {
		defer sleeper.close()
		n.stopUploads()
		if n.tail != nil {
			_ = n.tail.Close()
		}
		return nil, errors.Join(err, n.releaseFence())
	}
	return n, nil
}

// makeMissingFile formats a file log that does not exist yet.
func makeMissingFile(ctx context.Context, c Config) error {
	_, err := os.Stat(c.Path)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := mayMake(ctx, c); err != nil {
		return err
	}
	made, err := Format(FormatOptions{Path: c.Path, Node: c.Node, SizeBytes: c.SizeBytes, StallAfter: c.StallAfter})
	if err != nil {
		return err
	}
	c.Log.Info("made a new log", "path", made.Path, "node", made.Node, "log_uuid", made.LogUUID, "capacity_bytes", made.CapacityBytes)
	return nil
}

// belongsToKernel reports whether a path that does not exist would be a device: no
// file is made there.
func belongsToKernel(path string) bool {
	path = filepath.Clean(path)
	return strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
}

func (n *Node) bringUp(ctx context.Context) error {
	began := time.Now()
	n.start.lapFrom = began
	info, err := device.Describe(n.cfg.Path)
	if err != nil {
		return err // whether late writes must be waited for depends on it
	}
	n.info = info
	if err := n.dev.Flush(); err != nil {
		return err
	}
	sbs, err := n.identify()
	if err != nil {
		return err
	}
	if n.boot, err = bootID(); err != nil {
		return err
	}
	n.lap("identify")
	if err := n.acquireFence(ctx, sbs.Newest); err != nil {
		return err
	}
	n.start.heldNS = device.NowNS() - int64(n.start.waited)
	n.lap("fence")
	if sbs, err = n.identify(); err != nil { // a late superblock may have landed meanwhile
		return err
	}
	if err := n.sameOwner(sbs.Newest); err != nil {
		return err
	}
	n.start.wasClean, n.start.grownBytes = sbs.Newest.Clean, sbs.GrownBytes
	if err := n.readManifest(ctx, sbs.Newest); err != nil {
		return err
	}
	n.lap("manifest")
	sbs, state, err := n.recover(sbs)
	if err != nil {
		return err
	}
	n.lap("recover")
	n.start.recoverySeconds = time.Since(began).Seconds()
	n.start.recoveredBytes = state.recovery.End - sbs.Newest.Trim
	if err := n.startEpoch(sbs, state); err != nil {
		return err
	}
	if err := n.firstWrites(ctx, state); err != nil {
		return err
	}
	if err := n.watchFence(); err != nil {
		return err
	}
	n.log.Info("log is open", "path", n.cfg.Path, "node", n.welcome.Node, "log_uuid", uuid.UUID(n.welcome.Log).String(),
		"epoch", n.start.epoch, "trim_position", n.wal.Trim(), "durable_position", n.wal.Durable(),
		"frames", n.start.recovery.Frames, "records", n.start.recovery.Records,
		"recovery_seconds", n.start.recoverySeconds, "clean", n.start.wasClean)
	if n.start.grownBytes > 0 {
		n.log.Warn("the device grew since it was formatted; the log keeps its size", "grown_bytes", n.start.grownBytes)
	}
	n.run()
	return nil
}

// identify reads the superblocks and checks that this is the log we were asked for.
func (n *Node) identify() (*ringwal.Superblocks, error) {
	sbs, err := ringwal.ReadSuperblocks(n.dev)
	if errors.Is(err, ringwal.ErrNotALog) {
		if what, serr := device.Signature(n.cfg.Path); serr == nil && what != "" {
			return nil, fmt.Errorf("%w: it holds %s; nothing was written", ErrNotOurs, what)
		}
		return nil, fmt.Errorf("%w: %w: make one with `walsidecar format %s`", ErrNoLog, err, n.cfg.Path)
	}
	if err != nil {
		return nil, err
	}
	if sbs.UnknownROCompat != 0 {
		return nil, fmt.Errorf("%w: written by a newer version (features %#x): it can be inspected and salvaged, not served",
			ringwal.ErrFormat, sbs.UnknownROCompat)
	}
	if n.cfg.Node != "" && n.cfg.Node != sbs.Newest.Node {
		return nil, fmt.Errorf("%w: it is the log of node %q, and WALSIDECAR_NODE is %q; nothing was written",
			ErrNotOurs, sbs.Newest.Node, n.cfg.Node)
	}
	return sbs, nil
}

// recovered is the state that recovery rebuilt.
type recovered struct {
	recovery *ringwal.Recovery
	table    *stream.Table
	index    *stream.Index
	marks    *reader.Marks
}

// recover rebuilds the state from the log, read-only; it flushes and reads the
// unproven tail once more, since what was only in a cache may be gone.
func (n *Node) recover(sbs *ringwal.Superblocks) (*ringwal.Superblocks, *recovered, error) {
	for range recoverTries {
		state, err := rebuildWith(n.dev, sbs, n.notUploaded())
		if err != nil {
			return nil, nil, err
		}
		if err := n.dev.Flush(); err != nil {
			return nil, nil, err
		}
		err = ringwal.VerifyTail(n.dev, sbs, state.recovery)
		if err == nil {
			n.start.recovery = *state.recovery
			return sbs, state, nil
		}
		if !errors.Is(err, ringwal.ErrTailChanged) {
			return nil, nil, err
		}
		n.log.Warn("the end of the log read differently after the flush; recovering again", "error", err)
		if sbs, err = n.identify(); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("%w %d times in a row: the device returns different bytes for the same place", ringwal.ErrTailChanged, recoverTries)
}

// rebuild reads a whole log and returns its state. It writes nothing.
func rebuild(d device.Device, sbs *ringwal.Superblocks) (*recovered, error) {
	return rebuildWith(d, sbs, nil)
}

// rebuildWith is rebuild that calls also, unless nil, with every item.
func rebuildWith(d device.Device, sbs *ringwal.Superblocks, also func(*stream.Item, *ringwal.FrameView) error) (*recovered, error) {
	ahead, err := device.NewReadAhead(d, readAheadBytes, readAheadBuffers)
	if err != nil {
		return nil, err
	}
	defer ahead.Close()
	checkpointMax := sbs.Newest.Geometry.CheckpointMaxBytes
	state := &recovered{index: stream.NewIndex(stream.MaxIndexEntries), marks: &reader.Marks{}}
	var items stream.ItemReader
	visitor := ringwal.Visitor{
		Frame: func(f *ringwal.FrameView) error {
			state.marks.Add(f.Position)
			if f.Kind != ringwal.FrameData {
				return nil
			}
			items.Reset(f.Body, f.Position)
			for it := items.Next(); it != nil; it = items.Next() {
				if state.table != nil {
					if err := state.table.Apply(it); err != nil {
						return damage(f, err)
					}
				}
				state.index.Apply(it, f.Position)
				if also != nil {
					if err := also(it, f); err != nil {
						return err
					}
				}
			}
			if err := items.Err(); err != nil {
				return damage(f, err)
			}
			return nil
		},
		Checkpoint: func(start uint64, b []byte) error {
			if state.table == nil {
				table, err := stream.DecodeCheckpoint(b, checkpointMax)
				if err != nil {
					return fmt.Errorf("checkpoint at position %d: %w: %w", start, ringwal.ErrDamaged, err)
				}
				state.table = table
			} else if !state.table.EqualCheckpoint(b) {
				return &ringwal.DamageError{From: start, To: start, Reason: "a checkpoint differs from the state that the frames before it give"}
			}
			return nil
		},
	}
	state.recovery, err = ringwal.Recover(ahead, sbs, visitor)
	if err != nil {
		return nil, err
	}
	// Waits for reads on their way: a device stays claimed after its Close for as long
	// as one is.
	ahead.Forget()
	if state.table == nil { // a new log
		state.table = stream.NewTable(checkpointMax)
	}
	state.index.Keep(stream.NewDirectory(state.table))
	return state, nil
}

func damage(f *ringwal.FrameView, err error) error {
	return fmt.Errorf("%w: %w", &ringwal.DamageError{From: f.Position, To: f.End(), Reason: "its contents contradict the log before it"}, err)
}

// startEpoch draws the new epoch and builds the running log; it writes nothing.
func (n *Node) startEpoch(sbs *ringwal.Superblocks, state *recovered) error {
	epoch := sbs.MaxEpoch
	if err := n.checkManifest(sbs.Newest, state.recovery.End); err != nil {
		return err
	}
	if u := n.uploads; u != nil && u.manifest != nil {
		epoch = max(epoch, u.manifest.Epoch)
	}
	e := ringwal.Epoch{Number: 1 + epoch, BootID: n.boot, Jump: n.hold.outcome.Jump, StallAfter: n.cfg.StallAfter,
		Incarnation: n.hold.incarnation, FenceKey: uint64(n.hold.key),
		CheckpointStateBytes: len(state.table.EncodeCheckpoint(nil)), MakesRoom: true}
	tail, err := readcache.NewTail(n.tailBytes(sbs.Newest.Geometry), state.recovery.End)
	if err != nil {
		return err
	}
	n.tail = tail
	if n.wal, err = ringwal.Start(sbs, state.recovery, e, tail); err != nil {
		return err
	}
	n.start.epoch = e.Number
	n.committer = stream.NewCommitter(state.table, n.wal)
	n.pacer = ringwal.Pacer{QuantumBytes: QuantumBytes, MaxInFlight: WritersInFlight, IOPS: n.cfg.IOPS, BytesPerSecond: n.cfg.Bandwidth}
	if n.cfg.IOPS > 0 {
		n.wal.LimitFrames(ringwal.PacerOpBytes)
	}
	if err := n.openArchive(n.wal.Superblock()); err != nil {
		return err
	}
	n.openReader(state)
	n.holdOldWindow()
	n.fillWelcome(n.wal.Superblock())
	return nil
}

// openReader makes the read path of the epoch, which begins where the superblock says.
func (n *Node) openReader(state *recovered) {
	n.reader = reader.New(reader.Config{
		Device: n.dev, Tail: n.tail, Superblock: n.wal.Superblock(), Directory: stream.NewDirectory(state.table),
		Index: state.index, Marks: state.marks, Durable: n.wal.Durable(), Archive: n.archive(), ColdBytes: n.cfg.MemoryBytes * coldReadShare / 32, Joins: n.joins(),
	})
}

// tailBytes is the hot tail's size: a share of the budget, but always a window, the
// open frame and as much again to read from.
func (n *Node) tailBytes(g ringwal.Geometry) int {
	least := 2 * (int(g.WindowBytes) + 2*int(g.MaxFrameBytes))
	return max(int(n.cfg.MemoryBytes/tailShare), least)
}

// firstWrites makes the epoch durable: its superblock, its claim of the manifest, where the log
// is full room for its first frame, then its first checkpoint, then, for a new log, the superblock that says so. Only then may
// doors open.
func (n *Node) firstWrites(ctx context.Context, state *recovered) error {
	if err := fence.Check(n.hold.fence, n.hold.key); err != nil { // recovery may have taken long
		return err
	}
	if n.uploads != nil && n.cfg.Proved != nil {
		if err := n.cfg.Proved(); err != nil {
			return err
		}
	}
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	n.lap("superblock")
	if err := n.claim(ctx, state.recovery.End); err != nil {
		return err
	}
	n.lap("claim")
	if err := n.makeRoom(ctx, state); err != nil {
		return err
	}
	if !state.recovery.CheckpointIsLast {
		if err := n.committer.StartCheckpoint(); err != nil {
			return fmt.Errorf("first checkpoint: %w", err)
		}
		if err := n.writeFrames(); err != nil {
			return err
		}
	}
	n.wal.RecordDurable()
	if err := n.writeSuperblocks(); err != nil {
		return err
	}
	n.lap("checkpoint")
	return nil
}

// writeFrames writes every queued frame, one after the other.
func (n *Node) writeFrames() error {
	for {
		f := n.wal.Next(device.NowNS())
		if f == nil {
			return n.wal.Err()
		}
		err := n.dev.WriteSync(f.Buf, f.Offset)
		n.tail.Publish(n.wal.Complete(f, err, device.NowNS()))
		for done := n.wal.PopDurable(); done != nil; done = n.wal.PopDurable() {
			if err := n.reader.Publish(&done.FrameHeader, frameBody(done)); err != nil {
				return err
			}
			n.wal.Release(done)
		}
	}
}

// writeSuperblocks writes until what was asked for is in force, and reads every
// copy back: a start relies on a device that it has not written to before.
func (n *Node) writeSuperblocks() error {
	arena, err := device.NewArena(ringwal.SlotBytes)
	if err != nil {
		return err
	}
	defer func() { _ = arena.Free() }()
	for {
		offset, b, ok := n.wal.NextSuperblock(device.NowNS())
		if !ok {
			return n.wal.Err()
		}
		back := arena.Bytes()[:len(b)]
		n.hold.wrote = true
		err := n.dev.WriteSync(b, offset)
		if err == nil {
			_, err = n.dev.ReadAt(back, offset)
		}
		if err == nil && !bytes.Equal(b, back) {
			err = fmt.Errorf("superblock at byte %d: %w: the device returns other bytes than were written", offset, device.ErrWrite)
		}
		n.wal.SuperblockDone(err, device.NowNS())
	}
}

// bootID is the kernel's id of this boot.
func bootID() ([16]byte, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return [16]byte{}, fmt.Errorf("the kernel's boot id: %w", err)
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return [16]byte{}, fmt.Errorf("the kernel's boot id: %w", err)
	}
	return id, nil
}

// atPath says which log the error is about, unless it says so already.
func atPath(path string, err error) error {
	if strings.HasPrefix(err.Error(), path+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}
