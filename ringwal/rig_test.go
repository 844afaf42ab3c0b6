package ringwal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes WALSIDECAR_SEED or the time")

// testSeed is the seed of a random test; it is printed when the test fails.
func testSeed(t testing.TB) uint64 {
	seed := *seedFlag
	if s := os.Getenv("WALSIDECAR_SEED"); seed == 0 && s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("WALSIDECAR_SEED: %v", err)
		}
		seed = v
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with: go test ./ringwal -run '^%s$' -seed %d", t.Name(), seed)
		}
	})
	return seed
}

// disk is a device in memory that does what the test says.
type disk struct {
	b       []byte
	block   int
	badFrom int64 // reads that touch [badFrom, badTo) fail
	badTo   int64
	failed  func(offset int64) error // of a write, nil: none
	journal *[]journaled             // every write, where it is kept
}

type journaled struct {
	offset int64
	b      []byte
}

func newDisk(size int64, block int) *disk { return &disk{b: make([]byte, size), block: block} }

func (d *disk) clone() *disk {
	c := *d
	c.b = bytes.Clone(d.b)
	return &c
}

func (d *disk) Path() string     { return "/dev/test" }
func (d *disk) SizeBytes() int64 { return int64(len(d.b)) }
func (d *disk) BlockBytes() int  { return d.block }
func (d *disk) Flush() error     { return nil }
func (d *disk) Close() error     { return nil }

func (d *disk) check(op device.Op, n int, offset int64) error {
	if n%d.block != 0 || offset%int64(d.block) != 0 {
		return &device.Error{Op: op, Path: d.Path(), Offset: offset, Length: n, Err: device.ErrNotAligned}
	}
	if offset < 0 || offset+int64(n) > int64(len(d.b)) {
		return &device.Error{Op: op, Path: d.Path(), Offset: offset, Length: n, Err: device.ErrOutOfRange}
	}
	return nil
}

func (d *disk) ReadAt(p []byte, offset int64) (int, error) {
	if err := d.check(device.OpRead, len(p), offset); err != nil {
		return 0, err
	}
	if offset < d.badTo && offset+int64(len(p)) > d.badFrom {
		return 0, &device.Error{Op: device.OpRead, Path: d.Path(), Offset: offset, Length: len(p), Err: device.ErrIO}
	}
	return copy(p, d.b[offset:]), nil
}

func (d *disk) WriteSync(p []byte, offset int64) error {
	if err := d.check(device.OpWrite, len(p), offset); err != nil {
		return err
	}
	if d.failed != nil {
		if err := d.failed(offset); err != nil {
			return err
		}
	}
	copy(d.b[offset:], p)
	if d.journal != nil {
		*d.journal = append(*d.journal, journaled{offset, bytes.Clone(p)})
	}
	return nil
}

// heap lends frame buffers; limit is the most that are not given back, 0: no limit.
type heap struct {
	block int
	empty bool
}

func (h *heap) Acquire(_ uint64, n int) []byte {
	if h.empty {
		return nil
	}
	b := alignedBytes(n, h.block)
	for i := range b {
		b[i] = 0xEE // what a recycled buffer holds is not the log's business
	}
	return b
}

func (h *heap) Shrink(uint64, int) {}

// tiny is a log of one MiB: reserves of 64 KiB + 128 KiB + 20 KiB + 64 KiB.
var tiny = Geometry{BlockBytes: 4096, MaxFrameBytes: 16 << 10, CapacityBytes: 1 << 20, WindowBytes: 64 << 10, CheckpointMaxBytes: 48 << 10}

var testUUID = [16]byte{0xa1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

// rig is a log on a disk, driven like an owner drives it.
type rig struct {
	t   testing.TB
	d   *disk
	log *Log
	buf *heap
	now int64
	sbs *Superblocks
	rec *Recovery

	epoch   uint64
	durable []*Frame // popped, in order
}

// newRig formats a log of geometry g at origin.
func newRig(t testing.TB, g Geometry, origin uint64) *rig {
	t.Helper()
	d := newDisk(RingStart+int64(g.CapacityBytes), int(g.BlockBytes))
	if _, err := Format(d, FormatOptions{UUID: testUUID, Node: "test", Origin: origin, Geometry: &g}); err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, d: d}
}

// on is a rig for what lies on d.
func (r *rig) on(d *disk) *rig { return &rig{t: r.t, d: d, epoch: r.epoch} }

func (r *rig) recover(v Visitor) (*Recovery, error) {
	sbs, err := ReadSuperblocks(r.d)
	if err != nil {
		return nil, err
	}
	r.sbs = sbs
	r.rec, err = Recover(r.d, sbs, v)
	return r.rec, err
}

func incarnation(epoch uint64) (i [16]byte) {
	binary.LittleEndian.PutUint64(i[:], epoch*0x9e3779b97f4a7c15)
	i[15] = 0x77
	return i
}

// begin recovers and prepares the next epoch, without writing anything.
func (r *rig) begin(jump bool) error {
	if _, err := r.recover(Visitor{}); err != nil {
		return err
	}
	if err := VerifyTail(r.d, r.sbs, r.rec); err != nil {
		return err
	}
	r.epoch = r.sbs.MaxEpoch + 1
	r.buf = &heap{block: r.d.block}
	var err error
	r.log, err = Start(r.sbs, r.rec, Epoch{Number: r.epoch, Incarnation: incarnation(r.epoch), Jump: jump, CheckpointStateBytes: 16}, r.buf)
	return err
}

// start brings the log up, with a checkpoint of 16 bytes where it needs one.
func (r *rig) start(jump bool) *rig {
	r.t.Helper()
	if err := r.begin(jump); err != nil {
		r.t.Fatalf("start: %v", err)
	}
	r.superblocks()
	if !r.rec.CheckpointIsLast {
		r.checkpoint([]byte(fmt.Sprintf("state %010d", r.epoch)))
	}
	return r
}

// superblocks writes what superblocks the log wants written.
func (r *rig) superblocks() {
	for r.superblock() {
	}
}

// superblock writes the next copy that the log wants written, and reports whether there was
// one.
func (r *rig) superblock() bool {
	offset, b, ok := r.log.NextSuperblock(r.now)
	if ok {
		r.log.SuperblockDone(r.d.WriteSync(b, offset), r.now)
	}
	return ok
}

func (r *rig) checkpoint(state []byte) {
	r.t.Helper()
	if err := r.log.Checkpoint(state); err != nil {
		r.t.Fatalf("checkpoint: %v", err)
	}
	r.drain()
}

// drain writes and completes everything, in order, and superblocks in between.
func (r *rig) drain() {
	r.t.Helper()
	for {
		r.log.CloseFrame(r.now)
		f := r.log.Next(r.now)
		if f == nil {
			break
		}
		r.log.Complete(f, r.d.WriteSync(f.Buf, f.Offset), r.now)
		r.pop()
	}
	r.superblocks()
	if err := r.log.Err(); err != nil {
		r.t.Fatalf("the log stopped: %v", err)
	}
}

func (r *rig) pop() {
	for f := r.log.PopDurable(); f != nil; f = r.log.PopDurable() {
		r.durable = append(r.durable, f)
	}
}

// put puts one item of that many bytes, all of one value, into the open frame.
func (r *rig) put(value byte, n int) (position uint64) {
	r.t.Helper()
	position, err := r.tryPut(value, n)
	if err != nil {
		r.t.Fatalf("reserve %d bytes: %v", n, err)
	}
	return position
}

func (r *rig) tryPut(value byte, n int) (position uint64, err error) {
	dst, position, err := r.log.Reserve(ClassAppend, n, 1)
	if err != nil {
		return 0, err
	}
	for i := range dst {
		dst[i] = value
	}
	return position, nil
}

// write puts an item in a frame of its own and makes it durable.
func (r *rig) write(value byte, n int) (position uint64) {
	r.t.Helper()
	position = r.put(value, n)
	r.drain()
	return position
}

// issue puts an item in a frame of its own and hands the frame out, not written yet.
func (r *rig) issue(value byte, n int) *Frame {
	r.t.Helper()
	r.put(value, n)
	r.log.CloseFrame(r.now)
	f := r.log.Next(r.now)
	if f == nil {
		r.t.Fatal("no frame to issue")
	}
	return f
}

// land writes a frame without telling the log.
func (r *rig) land(f *Frame) {
	r.t.Helper()
	if err := r.d.WriteSync(f.Buf, f.Offset); err != nil {
		r.t.Fatal(err)
	}
}

// items are the first bytes of the bodies of the log's data frames, in order.
func (r *rig) items() (string, error) {
	var out []byte
	_, err := r.recover(Visitor{Frame: func(f *FrameView) error {
		if f.Kind == FrameData {
			out = append(out, f.Body[0])
		}
		return nil
	}})
	return string(out), err
}

// holds fails the test unless recovery returns exactly those items.
func (r *rig) holds(want string) {
	r.t.Helper()
	got, err := r.items()
	if err != nil {
		r.t.Fatalf("recovery: %v", err)
	}
	if got != want {
		r.t.Fatalf("recovery returned %q, want %q", got, want)
	}
}

// damaged fails the test unless recovery reports damage from there on.
func (r *rig) damaged(from, to uint64) {
	r.t.Helper()
	got, err := r.items()
	var damage *DamageError
	if !errors.As(err, &damage) {
		r.t.Fatalf("recovery returned %q, %v; want damage", got, err)
	}
	if damage.From != from || damage.To != to {
		r.t.Fatalf("damage at [%d, %d), want [%d, %d): %v", damage.From, damage.To, from, to, err)
	}
}

// wipe zeroes the block at position p.
func (r *rig) wipe(p uint64) {
	at := r.offset(p)
	clear(r.d.b[at : at+int64(r.d.block)])
}

func (r *rig) offset(p uint64) int64 {
	if r.sbs == nil || r.sbs.Newest == nil {
		r.t.Fatal("no superblock was read")
	}
	return r.sbs.Newest.DeviceOffset(p)
}
