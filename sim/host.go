package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
)

// host is one incarnation of the process.
type host struct {
	w    *World
	name string
	view *simdev.View
	port *port // of its start

	superblocks int // copies that were written

	log       *ringwal.Log
	committer *stream.Committer
	directory *stream.Directory // durable streams, as a reader keeps them
	index     *stream.Index
	buffers   *buffers
	tail      *readcache.Tail // with a real reader alone
	reader    *reader.Reader
	archive   *upload.Archive  // nil: no store
	peer      *peer            // nil: a world of one machine
	uploads   *uploads         // nil: no store, or not claimed yet
	seen      *upload.Manifest // when it started; nil: none

	published uint64    // directory and index know the log up to here
	flights   []*flight // frames on their way, in log order
	super     *superFlight
	waiting   *request  // has to wait for the log
	answers   []*answer // in the order of decision
	closing   bool
}

// flight is a frame that is being written.
type flight struct {
	frame  *ringwal.Frame
	record *frameRecord
	write  *simdev.Write
	ended  bool // by the disk, with err; the host has not heard of it yet
	err    error
}

// superFlight is a superblock copy that is being written.
type superFlight struct {
	write *simdev.Write
	slot  int
	late  bool // begun by a former owner
	bytes []byte
}

// answer waits until it may leave.
type answer struct {
	q     *request
	at    uint64 // Committer.DecidedAt
	needs int64  // entries that have to be durable, by the model
	got   outcome
}

// buffers lends frame buffers from the heap, or from the hot tail.
type buffers struct {
	w    *World
	tail *readcache.Tail
	free [][]byte
}

// Acquire lends aligned bytes that hold garbage, or nil where the history starves.
func (b *buffers) Acquire(position uint64, n int) []byte {
	if b.w.profile.starved > 0 && !b.w.quiet && b.w.chance(b.w.profile.starved) {
		return nil
	}
	if b.tail != nil {
		return b.tail.Acquire(position, n)
	}
	for i, m := range b.free {
		if len(m) >= n {
			b.free[i] = b.free[len(b.free)-1]
			b.free = b.free[:len(b.free)-1]
			return m[:n]
		}
	}
	block := int(b.w.profile.geometry.BlockBytes)
	size := max(n, int(b.w.profile.geometry.MaxFrameBytes))
	m := make([]byte, size+block)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) & (block - 1)
	m = m[skip:][:size:size]
	for i := range m {
		m[i] = 0xEE
	}
	return m[:n]
}

// Shrink is ringwal.FrameBuffers'.
func (b *buffers) Shrink(position uint64, used int) {
	if b.tail != nil {
		b.tail.Shrink(position, used)
	}
}

// release takes back the memory of a durable frame.
func (b *buffers) release(m []byte) {
	if b.tail == nil {
		b.free = append(b.free, m[:cap(m)])
	}
}

// recovered is the state that a recovery rebuilt.
type recovered struct {
	sbs      *ringwal.Superblocks
	recovery *ringwal.Recovery
	table    *stream.Table
	index    *stream.Index
	marks    *reader.Marks
	frames   []ringwal.FrameHeader
	manifest *upload.Manifest // as it was before the start; nil: none
	outcome  fence.Outcome    // of a start in a fleet
	jumps    bool
}

// errOtherNode is a log that a node refuses by its name.
var errOtherNode = errors.New("not the log of this node")

// maxTailChanges is how often a start recovers again, as a node does.
const maxTailChanges = 3

// start brings a host up by the start routine of package node.
func (w *World) start() {
	if w.fleet != nil {
		w.fleet.start()
		return
	}
	w.hosts++
	w.stats.Starts++
	h := &host{w: w, name: fmt.Sprintf("host%d", w.hosts)}
	h.view = w.disk.Open(h.name)
	h.port = &port{w: w, view: h.view}
	w.landOlder()
	jump := w.mayLand()
	hits := w.faultHits()
	state, err := h.recover()
	if err == nil {
		w.oracle.judge(h, state)
		w.landBelow(state.recovery.End)
		err = h.begin(state, jump)
	}
	switch {
	case err == nil:
		w.tracef("%s is up: epoch %d, trim %d, durable %d, head %d", h.name, h.log.Superblock().Epoch, h.log.Trim(), h.log.Durable(), h.log.Head())
		w.host = h
		w.oracle.tail = tail{} // its superblock is in force
	case h.port.dead:
		w.buried(h)
	default:
		w.tracef("%s did not start: %v", h.name, err)
		w.startFailed(h, err, hits)
	}
}

// buried takes a crashed host out of the world, but for writes that may still land.
func (w *World) buried(h *host) {
	if w.bucket != nil {
		w.bucket.goneWith(h)
	}
	if len(h.view.InFlight()) > 0 || h.port.writes > 0 && w.mayLand() {
		w.former = append(w.former, h)
		return
	}
	h.close()
}

// startFailed judges a start that failed by itself.
func (w *World) startFailed(h *host, err error, hits int) {
	if errors.Is(err, errStoreDown) { // it has waited long enough, and exits
		w.crash(h.view)
		w.buried(h)
		return
	}
	if w.bucket != nil && w.bucket.archive.mayRefuse(h, err) {
		_ = h.view.Close()
		h.close()
		w.over = true
		return
	}
	if w.faultHits() > hits && (errors.Is(err, device.ErrRead) || errors.Is(err, device.ErrWrite) || errors.Is(err, device.ErrFlush) ||
		errors.Is(err, ringwal.ErrStalled)) {
		// It says what the device said. The next try finds it healed.
		w.disk.HealAll()
		w.crash(h.view)
		w.buried(h)
		return
	}
	if errors.Is(err, ringwal.ErrTailChanged) && w.profile.kind == Late { // the writes that changed it have landed now
		w.crash(h.view)
		w.buried(h)
		return
	}
	w.oracle.judgeRefusal(h, err)
	_ = h.view.Close()
	h.close()
}

// recover reads the superblocks and the log, flushes, and reads the end again. A node
// flushes before it reads anything, too; it must not matter.
func (h *host) recover() (*recovered, error) {
	if h.w.chance(0.5) {
		if err := h.port.Flush(); err != nil {
			return nil, err
		}
	}
	manifest, err := h.readManifest()
	if err != nil {
		return nil, err
	}
	for range maxTailChanges {
		sbs, err := ringwal.ReadSuperblocks(h.port)
		if err != nil {
			return nil, err
		}
		if sbs.Newest.Node != "sim" {
			return nil, errOtherNode
		}
		if !h.superseded() {
			h.w.oracle.expect(sbs)
		}
		state, err := h.rebuild(sbs)
		if err != nil {
			return nil, err
		}
		if err := h.port.Flush(); err != nil {
			return nil, err
		}
		err = ringwal.VerifyTail(h.port, sbs, state.recovery)
		if err == nil {
			state.manifest = manifest
			return state, nil
		}
		if !errors.Is(err, ringwal.ErrTailChanged) {
			return nil, err
		}
		h.w.tracef("%s: %v", h.name, err)
	}
	return nil, ringwal.ErrTailChanged
}

// rebuild makes the state from the log, and lets the oracle look at every frame.
func (h *host) rebuild(sbs *ringwal.Superblocks) (*recovered, error) {
	most := sbs.Newest.CheckpointMaxBytes
	state := &recovered{sbs: sbs, index: stream.NewIndex(64), marks: &reader.Marks{}}
	if !h.superseded() {
		h.w.oracle.reset(sbs.Newest)
	}
	var items stream.ItemReader
	visitor := ringwal.Visitor{
		Frame: func(f *ringwal.FrameView) error {
			if !h.superseded() {
				h.w.oracle.recovers(state, f)
			}
			state.marks.Add(f.Position)
			if f.Kind != ringwal.FrameData {
				return nil
			}
			items.Reset(f.Body, f.Position)
			for it := items.Next(); it != nil; it = items.Next() {
				if state.table != nil {
					if err := state.table.Apply(it); err != nil {
						return fmt.Errorf("%w: %w", ringwal.ErrDamaged, err)
					}
				}
				state.index.Apply(it, f.Position)
			}
			return items.Err()
		},
		Checkpoint: func(start uint64, b []byte) error {
			if state.table == nil {
				var err error
				if state.table, err = stream.DecodeCheckpoint(b, most); err != nil {
					return fmt.Errorf("%w: %w", ringwal.ErrDamaged, err)
				}
			} else if !state.table.EqualCheckpoint(b) {
				return &ringwal.DamageError{From: start, To: start, Reason: "a checkpoint differs from the state"}
			}
			return nil
		},
	}
	var err error
	if state.recovery, err = ringwal.Recover(h.port, sbs, visitor); err != nil {
		return nil, err
	}
	if state.table == nil {
		state.table = stream.NewTable(most)
	}
	state.index.Keep(stream.NewDirectory(state.table))
	return state, nil
}

// begin writes the first superblock, the first checkpoint and the superblock that
// records it.
func (h *host) begin(state *recovered, jump bool) error {
	w := h.w
	epoch := state.sbs.MaxEpoch
	if m := state.manifest; m != nil {
		if err := cmp.Or(m.Check(state.sbs.Newest.UUID, state.recovery.End), m.CheckOwners(state.sbs.Newest)); err != nil {
			return err
		}
		epoch = max(epoch, m.Epoch)
	}
	state.jumps = jump
	e := ringwal.Epoch{Number: 1 + epoch, Jump: jump, MakesRoom: true}
	binary.LittleEndian.PutUint64(e.Incarnation[:], w.rng.Uint64())
	binary.LittleEndian.PutUint64(e.Incarnation[8:], w.rng.Uint64())
	if p := h.peer; p != nil {
		e.Incarnation, e.BootID, e.FenceKey = p.incarnation, p.machine.boot, uint64(p.key)
	}
	if w.chance(0.5) {
		e.CheckpointStateBytes = len(state.table.EncodeCheckpoint(nil))
	}
	h.buffers = &buffers{w: w}
	if w.profile.reader {
		var err error
		if h.tail, err = readcache.NewTail(readcache.MinTailBytes, state.recovery.End); err != nil {
			return err
		}
		h.buffers.tail = h.tail
	}
	var err error
	if h.log, err = ringwal.Start(state.sbs, state.recovery, e, h.buffers); err != nil {
		return err
	}
	h.committer = stream.NewCommitter(state.table, h.log)
	h.directory, h.index, h.published = stream.NewDirectory(state.table), state.index, h.log.Durable()
	h.openArchive(state)
	h.openReader(state)
	if h.superseded() {
		return fence.ErrLostRace // it reads on, and cannot write
	}
	if h.peer != nil {
		h.hold(state)
	}
	w.oracle.begins(h)
	if err := h.writeSuperblocks(); err != nil {
		return err
	}
	if err := h.claim(state); err != nil {
		return err
	}
	if err := h.makeRoom(state); err != nil {
		return err
	}
	if !state.recovery.CheckpointIsLast {
		if err := h.committer.StartCheckpoint(); err != nil {
			return fmt.Errorf("first checkpoint: %w", err)
		}
		if err := h.writeFrames(); err != nil {
			return err
		}
	}
	h.log.RecordDurable()
	return h.writeSuperblocks()
}

// openReader makes the read path of the epoch, in histories that read as a node does.
func (h *host) openReader(state *recovered) {
	if h.w.profile.reader {
		h.reader = reader.New(reader.Config{Device: h.view, Tail: h.tail, Superblock: h.log.Superblock(), Directory: h.directory,
			Index: h.index, Marks: state.marks, Durable: h.log.Durable(), Archive: h.archive})
	}
}

// writeFrames writes every queued frame, one after the other.
func (h *host) writeFrames() error {
	for {
		f := h.log.Next(h.w.now)
		if f == nil {
			if h.log.CheckpointUnderWay() && h.log.Err() == nil {
				continue // no buffer was free
			}
			return h.log.Err()
		}
		h.w.landOver(f.Offset, len(f.Buf))
		fl := &flight{frame: f}
		if h.superseded() {
			fl.record = formerFrame(f)
		} else {
			fl.record = h.w.oracle.issued(h, f)
		}
		h.flights = append(h.flights, fl)
		err := h.port.writeFlight(fl)
		if h.port.dead {
			return err
		}
		h.flights = h.flights[:0]
		if err == nil && !fl.record.late && !h.recoveredFrom() {
			h.w.oracle.finished(fl.record)
		}
		h.log.Complete(f, err, h.w.now)
		h.publish()
	}
}

// writeSuperblocks writes until what was asked for is in force, and reads every copy
// back.
func (h *host) writeSuperblocks() error {
	var back []byte
	for {
		offset, b, ok := h.log.NextSuperblock(h.w.now)
		if !ok {
			return h.log.Err()
		}
		if !h.superseded() {
			h.w.oracle.beginsSuperblock(offset)
		}
		err := h.port.WriteSync(b, offset)
		if err == nil {
			h.superblocks++
			if !h.recoveredFrom() {
				h.w.oracle.wroteSuperblock(offset, b)
			}
			back = append(back[:0], b...)
			_, err = h.port.ReadAt(back, offset)
		}
		if err == nil && !bytes.Equal(back, b) {
			err = fmt.Errorf("%w: the superblock reads back differently", device.ErrWrite)
		}
		h.log.SuperblockDone(err, h.w.now)
	}
}

// close gives back the memory that is not Go's.
func (h *host) close() {
	if h.tail != nil {
		_ = h.tail.Close()
		h.tail = nil
	}
}
