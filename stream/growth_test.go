package stream

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/tools/growth"
)

// plainDisk is a device in memory that does nothing but copy: what the core takes is not to
// drown in what a simulated one takes.
type plainDisk []byte

func (d plainDisk) Path() string     { return "memory" }
func (d plainDisk) SizeBytes() int64 { return int64(len(d)) }
func (d plainDisk) BlockBytes() int  { return testBlock }
func (d plainDisk) Flush() error     { return nil }
func (d plainDisk) Close() error     { return nil }

func (d plainDisk) ReadAt(p []byte, offset int64) (int, error) { return copy(p, d[offset:]), nil }

func (d plainDisk) WriteSync(p []byte, offset int64) error {
	copy(d[offset:], p)
	return nil
}

// sameBuffer lends the same memory again and again: each frame is written before the next.
type sameBuffer []byte

func (b sameBuffer) Acquire(_ uint64, n int) []byte { return b[:n] }
func (b sameBuffer) Shrink(uint64, int)             {}

// core is what a sidecar does for appends, but for sessions and goroutines: decide, encode,
// write, show to readers, checkpoint and trim as with a store that takes all at once.
type core struct {
	t         *testing.T
	disk      device.Device
	log       *ringwal.Log
	c         *Committer
	directory *Directory
	index     *Index
	items     ItemReader
	nowNS     int64
}

func newCore(t *testing.T, logBytes int64) *core {
	k := &core{t: t, disk: make(plainDisk, logBytes), nowNS: 1000}
	_, err := ringwal.Format(k.disk, ringwal.FormatOptions{UUID: [16]byte{1}, Node: "test"})
	k.must(err)
	sbs, err := ringwal.ReadSuperblocks(k.disk)
	k.must(err)
	r, err := ringwal.Recover(k.disk, sbs, ringwal.Visitor{})
	k.must(err)
	k.log, err = ringwal.Start(sbs, r, ringwal.Epoch{Number: 1, Incarnation: [16]byte{1}, StallAfter: time.Hour}, sameBuffer((&heapBuffers{}).Acquire(0, ringwal.DefaultMaxFrameBytes)))
	k.must(err)
	table := NewTable(sbs.Newest.CheckpointMaxBytes)
	k.c, k.directory, k.index = NewCommitter(table, k.log), NewDirectory(table), NewIndex(MaxIndexEntries)
	k.index.Keep(k.directory)
	k.superblocks()
	k.must(k.c.StartCheckpoint())
	k.sync()
	k.log.RecordDurable()
	k.superblocks()
	return k
}

// must has no Helper: that costs more than an append.
func (k *core) must(err error) {
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *core) superblocks() {
	for {
		offset, b, ok := k.log.NextSuperblock(0)
		if !ok {
			k.must(k.log.Err())
			return
		}
		k.log.SuperblockDone(k.disk.WriteSync(b, offset), 0)
	}
}

// sync writes what waits, shows it to readers, and trims as if all of it was in the store.
func (k *core) sync() {
	k.log.CloseFrame(0)
	for f := k.log.Next(0); f != nil; f = k.log.Next(0) {
		k.log.Complete(f, k.disk.WriteSync(f.Buf, f.Offset), 0)
		for f := k.log.PopDurable(); f != nil; f = k.log.PopDurable() {
			if f.Kind == ringwal.FrameData {
				k.items.Reset(f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes], f.Position)
				for it := k.items.Next(); it != nil; it = k.items.Next() {
					k.must(k.directory.Apply(it))
					k.index.Apply(it, f.Position)
				}
			}
			k.log.Release(f)
		}
	}
	did, err := k.c.MaybeCheckpoint(k.log.Durable())
	k.must(err)
	if !did {
		return
	}
	k.sync()
	mark, _ := k.log.NewestCheckpoint()
	k.must(k.log.SetTrim(mark.Start, mark.PrevSum))
	k.superblocks()
	k.index.TrimLog(mark.Start)
}

func (k *core) stream(name string) ID {
	for {
		info, _, err := k.c.CreateStream(k.nowNS, name)
		if !errors.Is(err, ringwal.ErrWait) {
			k.must(err)
			return info.ID
		}
		k.sync()
	}
}

const (
	growthLogBytes    = 256 << 20
	growthRecordBytes = 256
	growthFrameItems  = 200   // records of a frame
	growthPrime       = 7_919 // streams come in no order
)

// appends makes so many to the streams.
func (k *core) appends(streams []ID, appends int) {
	b := Batch{Entries: []Entry{{Payload: make([]byte, growthRecordBytes)}}}
	var r Result
	for n := range appends {
		b.Entries[0].Stream = streams[n*growthPrime%len(streams)]
		k.nowNS++
		k.must(k.c.Append(k.nowNS, &b, &r))
		if n%growthFrameItems == growthFrameItems-1 {
			k.sync()
		}
	}
}

// An append takes as many instructions in 20,000 streams as in one.
func TestInstructionsPerAppend(t *testing.T) {
	growth.InstructionsPerAppend(t, "streams", []int{100, 1000, 20_000}, func(streams, appends int) {
		k := newCore(t, growthLogBytes)
		ids := make([]ID, streams)
		for i := range ids {
			ids[i] = k.stream(fmt.Sprintf("stream-%d", i))
		}
		k.sync()
		k.appends(ids, appends)
	})
}
