package stream

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// world is a log on a disk that loses whatever was not written, with a Committer on
// it and the directory and index that a reader would keep.
type world struct {
	t         testing.TB
	disk      *simdev.View
	maxState  uint64 // 0: the log's CheckpointMaxBytes
	epoch     uint64
	log       *ringwal.Log
	c         *Committer
	directory *Directory
	index     *Index
	items     ItemReader
	nowNS     int64 // the clock that the committer is told
}

const testBlock = 4096

// newWorld formats a log whose ring has capacityBytes (0: the smallest legal log)
// and starts it.
func newWorld(t testing.TB, capacityBytes uint64) *world {
	t.Helper()
	o := ringwal.FormatOptions{UUID: [16]byte{1}, Node: "test"}
	size := int64(ringwal.MinLogBytes)
	if capacityBytes > 0 {
		size = ringwal.RingStart + int64(capacityBytes)
		o.Geometry = &ringwal.Geometry{BlockBytes: testBlock, MaxFrameBytes: 64 << 10, CapacityBytes: capacityBytes,
			WindowBytes: 256 << 10, CheckpointMaxBytes: 64 << 10}
	}
	w := &world{t: t, disk: simdev.New(simdev.Config{SizeBytes: size, WriteThrough: true}).Open("host"), nowNS: 1000}
	_, err := ringwal.Format(w.disk, o)
	w.must(err)
	w.start()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// heapBuffers lends frame buffers from the heap.
type heapBuffers struct{ free [][]byte }

func (h *heapBuffers) Acquire(_ uint64, n int) []byte {
	for i, b := range h.free {
		if len(b) >= n {
			h.free[i] = h.free[len(h.free)-1]
			h.free = h.free[:len(h.free)-1]
			return b[:n]
		}
	}
	b := make([]byte, n+testBlock)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (testBlock - 1)
	return b[skip:][:n]
}

func (h *heapBuffers) Shrink(uint64, int) {}

// start recovers the log as it is on the disk and goes on with it in a new epoch.
func (w *world) start() {
	w.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(w.disk)
	w.must(err)
	maxState := w.maxState
	if maxState == 0 {
		maxState = sbs.Newest.CheckpointMaxBytes
	}
	var table *Table
	w.index = NewIndex(MaxIndexEntries)
	r, err := ringwal.Recover(w.disk, sbs, ringwal.Visitor{
		Frame: func(f *ringwal.FrameView) error {
			if f.Kind != ringwal.FrameData {
				return nil
			}
			return Items(f.Body, f.Position, func(it *Item) error {
				w.index.Apply(it, f.Position)
				if table == nil {
					return nil
				}
				return table.Apply(it)
			})
		},
		Checkpoint: func(_ uint64, state []byte) (err error) {
			if table == nil {
				table, err = DecodeCheckpoint(state, maxState)
				return err
			}
			if !table.EqualCheckpoint(state) {
				w.t.Error("a checkpoint in the log differs from the running state")
			}
			return nil
		},
	})
	w.must(err)
	w.must(ringwal.VerifyTail(w.disk, sbs, r))
	if table == nil {
		table = NewTable(maxState)
	}
	w.epoch++
	w.log, err = ringwal.Start(sbs, r, ringwal.Epoch{Number: w.epoch, Incarnation: [16]byte{byte(w.epoch), byte(w.epoch >> 8)},
		StallAfter: time.Hour}, &heapBuffers{})
	w.must(err)
	w.c = NewCommitter(table, w.log)
	w.directory = NewDirectory(table)
	w.index.Keep(w.directory)
	w.superblocks()
	if !r.CheckpointIsLast {
		w.must(w.c.StartCheckpoint())
		w.sync()
	}
	w.log.RecordDurable()
	w.superblocks()
}

func (w *world) superblocks() {
	w.t.Helper()
	for {
		offset, b, ok := w.log.NextSuperblock(0)
		if !ok {
			w.must(w.log.Err())
			return
		}
		w.log.SuperblockDone(w.disk.WriteSync(b, offset), 0)
	}
}

// write makes up to frames closed frames durable, the open one not being one of
// them, and returns how many there were.
func (w *world) write(frames int) (written int) {
	w.t.Helper()
	for ; written < frames; written++ {
		f := w.log.Next(0)
		if f == nil {
			break
		}
		w.log.Complete(f, w.disk.WriteSync(f.Buf, f.Offset), 0)
	}
	for f := w.log.PopDurable(); f != nil; f = w.log.PopDurable() {
		if f.Kind == ringwal.FrameData {
			w.items.Reset(f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes], f.Position)
			for it := w.items.Next(); it != nil; it = w.items.Next() {
				w.must(w.directory.Apply(it))
				w.index.Apply(it, f.Position)
			}
			w.must(w.items.Err())
		}
		w.log.Release(f)
	}
	w.must(w.log.Err())
	return written
}

// sync makes everything durable.
func (w *world) sync() {
	w.t.Helper()
	for {
		w.log.CloseFrame(0)
		if w.write(1<<30) == 0 && w.log.InFlight() == 0 && !w.log.CheckpointUnderWay() {
			return
		}
	}
}

// trim moves the log's trim position as far as it may go, with a checkpoint where
// one is due, and returns the plan.
func (w *world) trim() TrimPlan {
	w.t.Helper()
	w.sync()
	mark, _ := w.log.NewestCheckpoint()
	plan := PlanTrim(w.directory, w.index, mark.Start, w.log.Durable())
	if did, err := w.c.MaybeCheckpoint(plan.Records); err != nil {
		w.t.Fatal(err)
	} else if did {
		w.sync()
		mark, _ = w.log.NewestCheckpoint()
		plan = PlanTrim(w.directory, w.index, mark.Start, w.log.Durable())
	}
	if plan.Target > w.log.Trim() {
		w.must(w.log.SetTrim(plan.Target, w.prevSum(plan.Target)))
		w.superblocks()
		w.index.TrimLog(plan.Target)
	}
	return plan
}

// prevSum reads what the frame at position says about the one before it.
func (w *world) prevSum(position uint64) uint64 {
	w.t.Helper()
	b := (&heapBuffers{}).Acquire(0, testBlock)
	_, err := w.disk.ReadAt(b, w.log.Geometry().DeviceOffset(position))
	w.must(err)
	h, ok := ringwal.DecodeFrameHeader(b)
	if !ok {
		w.t.Fatalf("no frame at position %d", position)
	}
	return h.PrevSum
}

// crash forgets what is not on the disk and starts again.
func (w *world) crash() { w.t.Helper(); w.start() }

// append appends one batch and retries while the log has to be driven on.
func (w *world) append(b *Batch) (Result, error) {
	w.t.Helper()
	var r Result
	err := w.retry(func() error { return w.c.Append(w.nowNS, b, &r) })
	return r, err
}

func (w *world) retry(operation func() error) error {
	w.t.Helper()
	for range 100 {
		err := operation()
		if !errors.Is(err, ringwal.ErrWait) {
			return err
		}
		w.sync()
	}
	w.t.Fatal("the log asks to wait for ever")
	return nil
}

func (w *world) stream(name string) ID {
	w.t.Helper()
	info, _, err := w.c.CreateStream(w.nowNS, name)
	w.must(err)
	return info.ID
}

func (w *world) session(window uint32) ProducerID {
	w.t.Helper()
	p, err := w.c.OpenSessionProducer(window, w.c.DecidedAt())
	w.must(err)
	return p.ID
}

func (w *world) state() []byte { return w.c.Table().EncodeCheckpoint(nil) }
