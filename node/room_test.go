package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
	"github.com/walsidecar/walsidecar/wire"
)

// roomGeometry is that of a log so small that it is full soon.
var roomGeometry = ringwal.Geometry{BlockBytes: 4096, MaxFrameBytes: 64 << 10, CapacityBytes: 2 << 20, WindowBytes: 256 << 10, CheckpointMaxBytes: 64 << 10}

const roomPayload = 16 << 10

// memory is a file's log in memory, so that a test can have many of the same. It belongs to
// one process after the other; the process dies at a write that the test names.
type memory struct {
	device.Device // the file: its identity and its lock
	mu            sync.Mutex
	b             []byte
	before        func(what string) error // each write; nil: none
	after         func(what string) error
	told          *toldLog
}

func (m *memory) Close() error { return nil }
func (m *memory) Flush() error { return nil }

func (m *memory) ReadAt(p []byte, offset int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(p, m.b[offset:]), nil
}

func (m *memory) WriteSync(p []byte, offset int64) error {
	what := "a frame"
	if offset < ringwal.RingStart {
		what = "a superblock"
		m.told.written.Add(1)
	}
	if m.before != nil {
		if err := m.before(what); err != nil {
			return fmt.Errorf("%w: %w", device.ErrWrite, err)
		}
	}
	m.mu.Lock()
	copy(m.b[offset:], p)
	m.mu.Unlock()
	if m.after != nil {
		if err := m.after(what); err != nil {
			return fmt.Errorf("%w: %w", device.ErrWrite, err)
		}
	}
	return nil
}

// roomRig is a log in memory with a store in memory.
type roomRig struct {
	*storeRig
	mem    *memory
	stream uint64
	acked  int
	denied atomic.Bool
	told   *toldLog
}

// newFullLog is a log that appends have filled, with a checkpoint half-way if half, and then
// starts that jumped and died: so many. The store has nothing of it.
func newFullLog(t *testing.T, half bool, starts int) *roomRig {
	t.Helper()
	r := newRoomRig(t)
	r.cfg.Objects = nil
	r.up()
	d := r.dial()
	r.stream = d.create("s").ID
	if half {
		for range 40 {
			r.appendOne(d)
		}
		r.die()
		r.up()
		d = r.dial()
	}
	for r.appendOne(d) == nil {
	}
	r.die()
	r.cfg.Objects = r.store
	for range starts {
		r.deadStart()
	}
	return r
}

func newRoomRig(t *testing.T) *roomRig {
	t.Helper()
	r := &roomRig{storeRig: &storeRig{store: &simstore.Store{Now: time.Now}}, told: &toldLog{}}
	r.rig = &rig{t: t, path: filepath.Join(t.TempDir(), "wal")}
	r.cfg = Config{Path: r.path, SizeBytes: testFileBytes, Node: testNode, Store: "sim", Objects: r.store, Linger: 20 * time.Millisecond, StallAfter: 10 * time.Second,
		MemoryBytes: 128 << 20, Log: slog.New(r.told)}
	if err := os.WriteFile(r.path, make([]byte, ringwal.RingStart+roomGeometry.CapacityBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	dev, err := device.Open(r.path, device.OpenOptions{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	r.mem = &memory{Device: dev, b: make([]byte, dev.SizeBytes()), told: r.told}
	if _, err := ringwal.Format(r.mem, ringwal.FormatOptions{UUID: [16]byte{5}, Node: testNode, Geometry: &roomGeometry}); err != nil {
		t.Fatal(err)
	}
	return r
}

// start is one start of the node; it may fail.
func (r *roomRig) start(ctx context.Context) error {
	n, err := openOn(ctx, r.cfg, r.mem)
	if err != nil {
		return err
	}
	r.node = n
	r.host = session.NewHost(session.Options{Log: func(string) session.Backend { return n }, Budget: session.NewBudget(64 << 20), Logger: slog.New(slog.DiscardHandler)})
	return nil
}

func (r *roomRig) up() {
	r.t.Helper()
	if err := r.start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// die ends the process as a crash would.
func (r *roomRig) die() {
	r.t.Helper()
	r.host.Close()
	if err := r.node.Abandon(); err != nil {
		r.t.Fatal(err)
	}
}

// roomRecord is the payload of a record, which tells it from all others.
func roomRecord(offset int) []byte {
	b := bytes.Repeat([]byte{byte(offset)}, roomPayload)
	binary.LittleEndian.PutUint64(b, uint64(offset))
	return b
}

// appendOne appends the next record, or returns why it was refused.
func (r *roomRig) appendOne(d *door) *wire.Error {
	r.t.Helper()
	offset, refused := d.appendOrRefused(r.stream, roomRecord(r.acked))
	if refused == nil {
		if offset != uint64(r.acked) {
			r.t.Fatalf("offset %d, want %d", offset, r.acked)
		}
		r.acked++
	}
	return refused
}

// readable fails the test unless every acked record can be read, once and in order.
func (r *roomRig) readable() {
	r.t.Helper()
	records, gaps := r.dial().readAll(r.stream, 0)
	if len(records) != r.acked || len(gaps) != 0 {
		r.t.Fatalf("%d records and gaps %v, %d were acked", len(records), gaps, r.acked)
	}
	for i := range records {
		if !bytes.Equal(records[i].Payload, roomRecord(i)) {
			r.t.Fatalf("record %d is another one", i)
		}
	}
}

// deadStart is a start on another host that jumps, and dies behind its first superblock.
func (r *roomRig) deadStart() {
	r.t.Helper()
	log, err := r.foreign(true)
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		offset, b, ok := log.NextSuperblock(1)
		if !ok {
			return
		}
		log.SuperblockDone(r.mem.WriteSync(b, offset), 1)
	}
}

// foreign prepares a start on another host.
func (r *roomRig) foreign(makesRoom bool) (*ringwal.Log, error) {
	sbs := r.superblocks()
	recovery, err := ringwal.Recover(r.mem, sbs, ringwal.Visitor{})
	if err != nil {
		r.t.Fatal(err)
	}
	e := ringwal.Epoch{Number: sbs.MaxEpoch + 1, BootID: [16]byte{0xee}, StallAfter: time.Millisecond, Jump: true, MakesRoom: makesRoom}
	binary.LittleEndian.PutUint64(e.Incarnation[:], e.Number)
	return ringwal.Start(sbs, recovery, e, nil)
}

func (r *roomRig) superblocks() *ringwal.Superblocks {
	r.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(r.mem)
	if err != nil {
		r.t.Fatal(err)
	}
	return sbs
}

// trimFollows fails the test where the log has let go of what no manifest names.
func (r *roomRig) trimFollows() {
	r.t.Helper()
	sb, uploaded := r.superblocks().Newest, uint64(0)
	if body, found := r.store.Peek(upload.ManifestKey(testNode)); found {
		m, err := upload.DecodeManifest(body)
		if err != nil {
			r.t.Fatal(err)
		}
		uploaded = m.Uploaded
	}
	if sb.Trim > ringwal.NewFrameChecker(sb).Next(uploaded) {
		r.t.Fatalf("the log begins at %d, and the manifest names what lies below %d", sb.Trim, uploaded)
	}
}

// toldLog keeps the messages that were logged.
type toldLog struct {
	mu       sync.Mutex
	messages []string

	written     atomic.Int64 // superblock copies
	superblocks int64        // of them, when the newest message came but for that of an open log
}

func (l *toldLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *toldLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *toldLog) WithGroup(string) slog.Handler            { return l }

func (l *toldLog) Handle(_ context.Context, m slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.messages = append(l.messages, m.Message); m.Message != "log is open" {
		l.superblocks = l.written.Load()
	}
	return nil
}

func (l *toldLog) copies() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.superblocks
}

func (l *toldLog) told(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.messages, func(m string) bool { return strings.Contains(m, part) })
}

// A full log whose starts jumped and died until there was no room for another uploads,
// commits and trims before it starts, says so, and goes on: one that has to jump itself, and
// one that begins where the last of them did.
func TestP12_AFullLogMakesRoomForItsStart(t *testing.T) {
	for name, change := range map[string]func(*roomRig){
		"without a jump": func(r *roomRig) { r.deadStart(); r.deadStart() },
		"with a jump": func(r *roomRig) {
			r.cfg.Fencing.Forced = true // it does not look for signs of life
			r.cfg.seams.fence = func() *fence.Fence { return fence.Without(fence.ModeAttach, fence.Capabilities{}) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFullLog(t, true, 1)
			change(r)
			startMakesRoom(t, r)
			if jumped := r.node.hold.outcome.Jump; jumped != (name == "with a jump") {
				t.Errorf("it jumped: %t", jumped)
			}
			r.goesOn()
		})
	}
}

func startMakesRoom(t *testing.T, r *roomRig) {
	t.Helper()
	if _, err := r.foreign(false); !errors.Is(err, ringwal.ErrFull) {
		t.Fatalf("there is room: %v", err)
	}
	r.up()
	if !r.told.told("the log is full") || !r.told.told("there is room for the start") {
		t.Errorf("it told %q", r.told.messages)
	}
	if sb := r.superblocks().Newest; sb.Trim == 0 || r.manifest().Uploaded < sb.Trim {
		t.Errorf("trimmed to %d, uploaded %d", sb.Trim, r.manifest().Uploaded)
	}
	if laps := r.node.Laps(); !slices.ContainsFunc(laps, func(l Lap) bool { return l.Step == "room" && l.Seconds > 0 }) {
		t.Errorf("its steps were %+v", laps)
	}
}

// A log that holds nothing but what its starts have written and jumped over is emptied too,
// without a request for each of them.
func TestP12_ALogOfStartsAloneIsTrimmed(t *testing.T) {
	r := newRoomRig(t)
	r.up()
	d := r.dial()
	r.stream = d.create("s").ID
	r.appendOne(d)
	eventually(t, "it is uploaded", func() bool { return r.node.Status().Uploads.LagBytes == 0 })
	r.die()
	r.up() // writes a checkpoint
	r.die()
	for range 6 {
		r.deadStart()
	}
	before := r.store.Requests(simstore.Put)
	r.up()
	r.goesOn()
	if n := r.store.Requests(simstore.Put) - before; n > 4 { // of the checkpoint, and of the record that follows; with their states
		t.Errorf("%d objects", n)
	}
}

// A start that makes room does not free the window that one before it jumped over: it trims to
// the last frame in front of it, although the newest checkpoint lies behind.
func TestAStartThatMakesRoomKeepsTheOldWindow(t *testing.T) {
	r := newFullLog(t, false, 1)
	boundaries := r.superblocks().Newest.Boundaries
	window := boundaries[len(boundaries)-1].FollowEnd
	r.cfg.Objects = nil
	r.up() // writes its checkpoint behind the window
	r.die()
	r.cfg.Objects = r.store
	r.deadStart()
	r.deadStart()
	r.up()
	if !r.told.told("there is room for the start") {
		t.Errorf("it told %q", r.told.messages)
	}
	if sb := r.superblocks().Newest; sb.Trim == 0 || sb.Trim >= window {
		t.Errorf("trimmed to %d, the old window begins at %d", sb.Trim, window)
	}
	r.goesOn()
}

// goesOn sees that the log takes appends once the windows that were jumped over are given up.
func (r *roomRig) goesOn() {
	r.t.Helper()
	r.trimFollows()
	r.readable()
	r.inLoop(func() { r.node.loop.heldUntilNS = min(r.node.loop.heldUntilNS, 1) })
	d := r.dial()
	eventually(r.t, "it takes appends", func() bool { return r.appendOne(d) == nil })
	eventually(r.t, "everything is uploaded", func() bool { return r.node.Status().Uploads.LagBytes == 0 })
	r.trimFollows()
	r.readable()
	r.close()
}

// Where a trim frees too little, or there is no store, the start waits until nothing can land
// any more, and begins where the log ends.
func TestP12_AFullLogStartsInPlaceOnceNothingCanLand(t *testing.T) {
	for name, change := range map[string]func(*roomRig){
		"no checkpoint that would let it trim": func(*roomRig) {},
		"without its store":                    func(r *roomRig) { r.cfg.Objects = nil },
		"the store takes no objects":           func(r *roomRig) { r.denied.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newFullLog(t, false, 3)
			end := r.superblocks().Newest.Boundaries
			r.store.Inject = func(c simstore.Call) simstore.Fault {
				if c.Op == simstore.Put && r.denied.Load() {
					return simstore.Denied
				}
				return simstore.None
			}
			change(r)
			r.cfg.Fencing.LateWrites = 300 * time.Millisecond
			if r.cfg.Objects == nil { // long enough for signs of life
				r.cfg.Fencing.LateWrites = beatEvery + 300*time.Millisecond
			}
			from := time.Now()
			r.told.written.Store(0)
			r.up()
			if took := time.Since(from); took < r.cfg.Fencing.LateWrites {
				t.Errorf("it started after %s", took)
			}
			if n := r.told.copies(); r.cfg.Objects == nil && n < 6 { // of the epoch, of life, and of where it begins
				t.Errorf("%d superblock copies were written until it began", n)
			}
			if !r.told.told("without a jump") {
				t.Errorf("it told %q", r.told.messages)
			}
			var own ringwal.Boundary
			r.inLoop(func() { b := r.node.wal.Superblock().Boundaries; own = b[len(b)-1] })
			if last := end[len(end)-1]; own.Start != last.FollowEnd || own.FollowEnd != last.FollowEnd {
				t.Errorf("it begins at %d, behind %d", own.Start, own.FollowEnd)
			}
			r.readable()
			r.trimFollows()
			if r.denied.Store(false); r.cfg.Objects == nil {
				r.die()
				r.cfg.Objects = r.store
				r.up()
			}
			r.goesOn()
		})
	}
}

// errDiesThere is what a process sees of a write at which it died.
var errDiesThere = errors.New("the process died")

// dyingAt has the process die at its nth write to device or store, before or behind it.
// ended is called then. The name of that write is what.
func (r *roomRig) dyingAt(n int, behind bool, ended func()) (what *string) {
	var mu sync.Mutex
	at, name := 0, ""
	step := func(write string, isBehind bool) bool { // reports whether the process is dead
		mu.Lock()
		defer mu.Unlock()
		if name == "" && !isBehind {
			if at++; at == n {
				name = write
				if behind {
					name += "!"
				} else {
					ended()
				}
			}
		}
		if isBehind && name == write+"!" {
			name = write
			ended()
			return true
		}
		return name != "" && !strings.HasSuffix(name, "!")
	}
	died := func(behind bool) func(string) error {
		return func(write string) error {
			if step(write, behind) {
				return errDiesThere
			}
			return nil
		}
	}
	r.mem.before, r.mem.after = died(false), died(true)
	r.store.Inject = func(c simstore.Call) simstore.Fault {
		write := c.Op.String() + " of the store"
		switch {
		case !c.Op.Changes():
			return simstore.None
		case step(write, false):
			return simstore.Unavailable
		case step(write, true):
			return simstore.Unanswered
		}
		return simstore.None
	}
	return &name
}

// A start that makes room dies before or behind each of its writes. The next one finds every
// record, and comes up.
func TestP2_AStartThatMakesRoomMayDieAnywhere(t *testing.T) {
	full := newFullLog(t, true, 3)
	image := full.mem.b
	for _, behind := range []bool{false, true} {
		steps := []string{}
		for n := 1; ; n++ {
			full.mem.b, full.store = bytes.Clone(image), &simstore.Store{Now: time.Now}
			full.cfg.Objects = full.store
			ctx, cancel := context.WithCancel(context.Background())
			step := full.dyingAt(n, behind, cancel)
			err := full.start(ctx)
			cancel()
			if err == nil {
				full.die()
			}
			full.mem.before, full.mem.after, full.store.Inject = nil, nil, nil
			if err == nil { // behind its first checkpoint everything is as ever
				break
			}
			steps = append(steps, *step)
			full.trimFollows()
			full.up()
			full.trimFollows()
			full.readable()
			full.die()
		}
		if !slices.Contains(steps, "replace of the store") || !slices.Contains(steps, "put of the store") || len(steps) < 10 {
			t.Errorf("it died at %q", steps)
		}
	}
}

// Whatever the store refuses while a start makes room, for a while: it goes on by itself.
func TestP12_TheStoreMayFailWhileAStartMakesRoom(t *testing.T) {
	full := newFullLog(t, true, 3)
	image := full.mem.b
	for _, fault := range []simstore.Fault{simstore.Unavailable, simstore.Unanswered} {
		for n := 1; ; n++ {
			full.mem.b, full.store = bytes.Clone(image), &simstore.Store{Now: time.Now}
			full.cfg.Objects = full.store
			changes, failed := 0, 0
			full.store.Inject = func(c simstore.Call) simstore.Fault {
				if c.Op.Changes() {
					if changes++; changes >= n && failed < 2 {
						failed++
						return fault
					}
				}
				return simstore.None
			}
			full.up()
			full.trimFollows()
			full.readable()
			full.die()
			if failed == 0 {
				break
			}
		}
	}
}
