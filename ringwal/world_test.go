package ringwal_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
	"github.com/walsidecar/walsidecar/stream"
)

const blockBytes = 4096

// world is a real log with streams in it, on a simulated disk.
type world struct {
	t     testing.TB
	disk  *simdev.Disk
	view  *simdev.View
	log   *ringwal.Log
	c     *stream.Committer
	epoch uint64
	nowNS int64
}

// memory lends frame buffers from the heap.
type memory struct{}

func (memory) Acquire(_ uint64, n int) []byte {
	b := make([]byte, n+blockBytes)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (blockBytes - 1)
	return b[skip : skip+n]
}

func (memory) Shrink(uint64, int) {}

func newWorld(t testing.TB, sizeBytes int64, o ringwal.FormatOptions) *world {
	t.Helper()
	w := &world{t: t, disk: simdev.New(simdev.Config{SizeBytes: sizeBytes, WriteThrough: true}), nowNS: 1795910400_000000000}
	w.view = w.disk.Open("host")
	o.UUID = [16]byte{0x0e, 0x6f, 0x1d, 0x5a, 0x8c, 0x21, 0x4b, 0x07, 0x93, 0x3e, 0x52, 0x7f, 0x6a, 0xb0, 0xc4, 0xd8}
	o.Node = "orders-1"
	_, err := ringwal.Format(w.view, o)
	w.must(err)
	w.start(false)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start recovers what is on the disk and goes on with it in a new epoch.
func (w *world) start(jump bool) {
	w.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(w.view)
	w.must(err)
	maxState := sbs.Newest.CheckpointMaxBytes
	var table *stream.Table
	r, err := ringwal.Recover(w.view, sbs, ringwal.Visitor{
		Frame: func(f *ringwal.FrameView) error {
			if f.Kind != ringwal.FrameData || table == nil {
				return nil
			}
			return stream.Items(f.Body, f.Position, func(it *stream.Item) error { return table.Apply(it) })
		},
		Checkpoint: func(_ uint64, state []byte) (err error) {
			if table == nil {
				table, err = stream.DecodeCheckpoint(state, maxState)
			}
			return err
		},
	})
	w.must(err)
	if table == nil {
		table = stream.NewTable(maxState)
	}
	w.epoch++
	e := ringwal.Epoch{Number: w.epoch, Jump: jump, FenceKey: 0x51f0 + w.epoch}
	binary.LittleEndian.PutUint64(e.Incarnation[:], 0x1c1c1c1c00000000+w.epoch)
	binary.LittleEndian.PutUint64(e.BootID[:], 0xb007b007b007b007)
	w.log, err = ringwal.Start(sbs, r, e, memory{})
	w.must(err)
	w.c = stream.NewCommitter(table, w.log)
	w.drive()
	w.must(w.c.Checkpoint())
	w.drive()
}

// drive writes everything that waits.
func (w *world) drive() {
	w.t.Helper()
	for {
		w.log.CloseFrame(0)
		offset, b, superblock := w.log.NextSuperblock(0)
		if superblock {
			w.log.SuperblockDone(w.view.WriteSync(b, offset), 0)
		}
		f := w.log.Next(0)
		if f != nil {
			w.log.Complete(f, w.view.WriteSync(f.Buf, f.Offset), 0)
			for f := w.log.PopDurable(); f != nil; f = w.log.PopDurable() {
				w.log.Release(f)
			}
		}
		w.must(w.log.Err())
		if f == nil && !superblock {
			return
		}
	}
}

// create makes a stream and returns its id.
func (w *world) create(name string) stream.ID {
	w.t.Helper()
	s, _, err := w.c.CreateStream(w.nowNS, name)
	w.must(err)
	return s.ID
}

func entry(id stream.ID, payload string, headers ...string) stream.Entry {
	e := stream.Entry{Stream: id, Payload: []byte(payload)}
	if len(headers) > 0 {
		e.Headers = binary.LittleEndian.AppendUint16(nil, uint16(len(headers)/2))
		for i := 0; i < len(headers); i += 2 {
			e.Headers = binary.LittleEndian.AppendUint16(e.Headers, uint16(len(headers[i])))
			e.Headers = binary.LittleEndian.AppendUint32(e.Headers, uint32(len(headers[i+1])))
			e.Headers = append(append(e.Headers, headers[i]...), headers[i+1]...)
		}
	}
	return e
}

func (w *world) append(b stream.Batch) error {
	var r stream.Result
	w.nowNS += 1_000_000
	return w.c.Append(w.nowNS, &b, &r)
}

// smallLog is the log that docs/format.md shows: one start, one stream, a batch, and two of a
// producer.
func smallLog(t testing.TB) *world {
	w := newWorld(t, ringwal.MinLogBytes, ringwal.FormatOptions{})
	orders := w.create("orders")
	w.must(w.append(stream.Batch{Entries: []stream.Entry{
		entry(orders, "first order"),
		entry(orders, "second order", "trace", "7f"),
	}}))
	session, err := w.c.OpenSessionProducer(16, 0x123456)
	w.must(err)
	for sequence, payload := range []string{"third", "fourth order"} {
		w.must(w.append(stream.Batch{Producer: session.ID, Sequence: uint64(1 + sequence), Entries: []stream.Entry{entry(orders, payload)}}))
	}
	w.drive()
	w.log.Seal(0)
	w.drive()
	return w
}

// richLog has every kind of item and frame, several epochs, a jump, a trim and a wrap.
func richLog(t testing.TB) *world {
	g := ringwal.Geometry{BlockBytes: blockBytes, MaxFrameBytes: 32 << 10, CapacityBytes: 576 << 10, WindowBytes: 64 << 10, CheckpointMaxBytes: 36 << 10}
	w := newWorld(t, ringwal.RingStart+576<<10, ringwal.FormatOptions{Geometry: &g, Origin: 1<<63/(576<<10)*(576<<10) - 400<<10})
	a := w.create("a")
	w.fill(a, 40)
	w.must(w.c.Checkpoint())
	w.drive()
	w.trim()
	b := w.create("b/ü")
	session, err := w.c.OpenSessionProducer(16, 0x123456)
	w.must(err)
	named, _, err := w.c.OpenNamedProducer("upstream")
	w.must(err)
	w.must(w.append(stream.Batch{Producer: session.ID, Sequence: 1, Entries: []stream.Entry{entry(a, "one"), entry(b, "two", "k", "v", "bin", "\xff\xfe")}}))
	refused := entry(a, "x")
	refused.Expect, refused.HasExpect = 7, true
	if err := w.append(stream.Batch{Producer: session.ID, Sequence: 2, Entries: []stream.Entry{refused}}); err == nil {
		t.Fatal("not refused")
	}
	w.must(w.append(stream.Batch{Producer: named.ID, Sequence: 1 << 40, Entries: []stream.Entry{entry(b, "\x00\x01\xff")}}))
	for n := range uint64(6) { // some of them continue the one before
		of := stream.Batch{Producer: session.ID, Sequence: 3 + n, Acked: n / 3, Entries: []stream.Entry{entry(a, "again")}}
		w.must(w.append(of))
		if n == 4 {
			w.must(w.append(stream.Batch{Producer: named.ID, Sequence: 1<<40 + 1, Entries: []stream.Entry{entry(a, "x"), entry(b, "y")}}))
			w.must(w.append(stream.Batch{Producer: named.ID, Sequence: 1<<40 + 2, Entries: []stream.Entry{entry(a, "x")}}))
		}
	}
	_, err = w.c.SetToken(a, nil, []byte("secret"))
	w.must(err)
	_, err = w.c.SetToken(a, []byte("secret"), nil)
	w.must(err)
	w.drive()
	w.start(false)
	for lap := w.log.Head() / g.CapacityBytes; w.log.Head()/g.CapacityBytes == lap; w.drive() { // over the ring's end
		w.must(w.append(stream.Batch{Entries: []stream.Entry{entry(a, strings.Repeat("x", 12000))}}))
	}
	w.start(true)
	_, err = w.c.Trim(a, 20)
	w.must(err)
	w.fill(b, 5)
	w.must(w.c.RemoveProducer("upstream"))
	_, err = w.c.Seal(b)
	w.must(err)
	w.must(w.c.Delete(b))
	w.drive()
	w.log.Seal(0)
	w.drive()
	return w
}

func (w *world) fill(id stream.ID, frames int) {
	w.t.Helper()
	for i := range frames {
		w.must(w.append(stream.Batch{Entries: []stream.Entry{entry(id, fmt.Sprintf("%0*d", 1+(i*3001)%9000, i))}}))
		w.drive()
	}
}

func (w *world) trim() {
	w.t.Helper()
	m, _ := w.log.NewestCheckpoint()
	w.must(w.log.SetTrim(m.Start, m.PrevSum))
	w.drive()
}
