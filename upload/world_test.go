package upload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
	"github.com/walsidecar/walsidecar/stream"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes WALSIDECAR_SEED or the time")

// testRandom is the random source of a test, whose seed is printed when it fails.
func testRandom(t testing.TB) *rand.Rand {
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
			t.Logf("replay with: go test ./upload -run '^%s$' -seed %d", t.Name(), seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

const testBlock = 4096

var (
	testLog         = [16]byte{0xa1, 2, 3}
	testIncarnation = [16]byte{0xb1, 2, 3, 4}
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testFrame is a durable frame.
type testFrame struct {
	ringwal.FrameView
}

// testWorld is a log on a simulated disk, with all that became durable in it.
type testWorld struct {
	t      testing.TB
	disk   *simdev.View
	log    *ringwal.Log
	c      *stream.Committer
	nowNS  int64
	frames []testFrame
}

type heapBuffers struct{}

func (heapBuffers) Acquire(_ uint64, n int) []byte {
	b := make([]byte, n+testBlock)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (testBlock - 1)
	return b[skip:][:n]
}

func (heapBuffers) Shrink(uint64, int) {}

// newTestWorld formats a log with a ring of capacityBytes that begins at origin, and
// starts it.
func newTestWorld(t testing.TB, capacityBytes, origin uint64) *testWorld {
	t.Helper()
	w := &testWorld{t: t, nowNS: 1_700_000_000_000_000_000,
		disk: simdev.New(simdev.Config{SizeBytes: ringwal.RingStart + int64(capacityBytes), WriteThrough: true}).Open("host")}
	_, err := ringwal.Format(w.disk, ringwal.FormatOptions{UUID: testLog, Node: "test", Origin: origin, Geometry: &ringwal.Geometry{
		BlockBytes: testBlock, MaxFrameBytes: 1 << 20, CapacityBytes: capacityBytes, WindowBytes: 4 << 20, CheckpointMaxBytes: 1 << 20}})
	must(t, err)
	sbs, err := ringwal.ReadSuperblocks(w.disk)
	must(t, err)
	r, err := ringwal.Recover(w.disk, sbs, ringwal.Visitor{})
	must(t, err)
	w.log, err = ringwal.Start(sbs, r, ringwal.Epoch{Number: 1, Incarnation: testIncarnation, StallAfter: time.Hour}, heapBuffers{})
	must(t, err)
	w.c = stream.NewCommitter(stream.NewTable(1<<20), w.log)
	w.superblocks()
	must(t, w.c.Checkpoint())
	w.sync()
	w.log.RecordDurable()
	w.superblocks()
	return w
}

func (w *testWorld) superblocks() {
	for {
		offset, b, ok := w.log.NextSuperblock(0)
		if !ok {
			must(w.t, w.log.Err())
			return
		}
		w.log.SuperblockDone(w.disk.WriteSync(b, offset), 0)
	}
}

// sync makes everything durable, the open frame included.
func (w *testWorld) sync() {
	w.t.Helper()
	for {
		w.log.CloseFrame(0)
		f := w.log.Next(0)
		if f == nil {
			break
		}
		w.log.Complete(f, w.disk.WriteSync(f.Buf, f.Offset), 0)
	}
	for f := w.log.PopDurable(); f != nil; f = w.log.PopDurable() {
		body := []byte{}
		if f.Kind == ringwal.FrameData {
			body = bytes.Clone(f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes])
		}
		w.frames = append(w.frames, testFrame{FrameView: ringwal.FrameView{FrameHeader: f.FrameHeader, Body: body}})
		w.log.Release(f)
	}
	must(w.t, w.log.Err())
	w.superblocks()
}

func (w *testWorld) retry(do func() error) {
	w.t.Helper()
	for range 100 {
		err := do()
		if !errors.Is(err, ringwal.ErrWait) {
			must(w.t, err)
			return
		}
		w.sync()
	}
	w.t.Fatal("the log asks to wait for ever")
}

func (w *testWorld) stream(name string) stream.ID {
	w.t.Helper()
	var id stream.ID
	w.retry(func() error {
		info, _, err := w.c.CreateStream(w.nowNS, name)
		id = info.ID
		return err
	})
	return id
}

func (w *testWorld) append(b *stream.Batch) {
	w.t.Helper()
	var r stream.Result
	w.retry(func() error { return w.c.Append(w.nowNS, b, &r) })
}

var testHeaders = []byte{1, 0, 1, 0, 1, 0, 0, 0, 'k', 'v'}

// workload does n random things to the log: batches over several streams, with and
// without producers, all control items.
func (w *testWorld) workload(random *rand.Rand, n, maxPayload int) {
	w.t.Helper()
	ids := []stream.ID{w.stream("first"), w.stream("second"), w.stream("third")}
	var named, session stream.ProducerInfo
	w.retry(func() (err error) { named, _, err = w.c.OpenNamedProducer("upstream"); return err })
	w.retry(func() (err error) { session, err = w.c.OpenSessionProducer(64, random.Uint64()); return err })
	namedSequence, sessionSequence := uint64(0), uint64(0)
	for i := range n {
		w.nowNS += int64(random.IntN(1_000_000))
		b := &stream.Batch{}
		for range 1 + random.IntN(5) {
			e := stream.Entry{Stream: ids[random.IntN(len(ids))], Payload: randomPayload(random, random.IntN(maxPayload+1))}
			if random.IntN(3) == 0 {
				e.Headers = testHeaders
			}
			b.Entries = append(b.Entries, e)
		}
		switch random.IntN(40) {
		case 0:
			ids = append(ids, w.stream(fmt.Sprintf("stream %d", i)))
		case 1:
			id := ids[random.IntN(len(ids))]
			w.retry(func() error {
				info, err := w.c.Stat(id)
				if err == nil {
					_, err = w.c.Trim(id, info.First+random.Uint64N(info.Next-info.First+1))
				}
				return err
			})
		case 2:
			if len(ids) > 2 {
				at := 1 + random.IntN(len(ids)-1) // the first one stays
				id := ids[at]
				ids = append(ids[:at], ids[at+1:]...)
				w.retry(func() error { return w.c.Delete(id) })
			}
			continue
		case 3:
			w.sync()
		case 4, 5, 6:
			namedSequence += 1 + random.Uint64N(10)
			b.Producer, b.Sequence = named.ID, namedSequence
		case 7, 8, 9:
			sessionSequence++
			b.Producer, b.Sequence, b.Acked = session.ID, sessionSequence, sessionSequence
		}
		w.append(b)
	}
	w.sync()
}

func randomPayload(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	if random.IntN(2) == 0 { // text, more or less
		for i := range b {
			b[i] = "abcdefgh    "[random.IntN(12)]
		}
		return b
	}
	for i := 0; i < n; i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], random.Uint64())
		copy(b[i:], word[:])
	}
	return b
}

// deviceItem is an item as the device has it.
type deviceItem struct {
	position uint64
	kind     stream.Kind
	raw      []byte // of a control item
	item     stream.Item
	records  []Record
}

// device replays the log from its disk.
func (w *testWorld) device() []deviceItem {
	w.t.Helper()
	sbs, err := ringwal.ReadSuperblocks(w.disk)
	must(w.t, err)
	var items []deviceItem
	_, err = ringwal.Recover(w.disk, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		if f.Kind != ringwal.FrameData {
			return nil
		}
		body := bytes.Clone(f.Body)
		return stream.Items(body, f.Position, func(it *stream.Item) error {
			d := deviceItem{position: it.Position, kind: it.Kind, item: *it}
			if it.Kind != stream.KindBatch {
				d.raw = body[it.Position-f.Position-ringwal.FrameHeaderBytes:][:it.Bytes]
			}
			var r stream.Record
			for n := 1; it.Kind == stream.KindBatch && it.NextRecord(&r); n++ {
				d.records = append(d.records, Record{Stream: r.Stream, Offset: r.Offset, Position: it.Position, TimestampNS: r.Timestamp,
					Headers: r.Headers, Payload: r.Payload, Checksum: r.Checksum, BatchEnd: n == it.Count})
			}
			items = append(items, d)
			return nil
		})
	}})
	must(w.t, err)
	return items
}

// archive puts the log's frames into a store, in groups of about groupBytes, as an
// uploader would, and returns store and manifest. Ranges of objects with more than
// inline streams are left to their indexes. The state object is that of the beginning.
func (w *testWorld) archive(groupBytes, inline int) (*memStore, *Manifest) {
	w.t.Helper()
	s := newMemStore()
	origin := w.frames[0].Position
	m := &Manifest{Log: testLog, Node: "test", Epoch: 1, Incarnation: testIncarnation, Attempt: 1, Origin: origin, Uploaded: origin, NextSequence: 1}
	b := NewBuilder(origin)
	flush := func() {
		if b.Empty() {
			return
		}
		o, err := b.Build(testLog, 1, w.id(m), nil)
		must(w.t, err)
		w.put(s, o)
		if len(o.Ref.Ranges) > inline {
			o.Ref.Ranges = nil
		}
		m.Groups = append(m.Groups, Group{From: o.From, To: o.To, Control: o.Control, Objects: []ObjectRef{o.Ref}})
		m.Uploaded = o.To
		b.Reset(o.To)
	}
	for i := range w.frames {
		must(w.t, b.AddFrame(&w.frames[i].FrameView))
		if b.RawBytes() >= groupBytes {
			flush()
		}
	}
	flush()
	w.commit(s, m)
	return s, m
}

// id draws the next sequence.
func (w *testWorld) id(m *Manifest) ObjectID {
	m.NextSequence++
	return ObjectID{Sequence: m.NextSequence - 1, Incarnation: testIncarnation}
}

func (w *testWorld) put(s *memStore, o *Object) {
	w.t.Helper()
	_, err := s.PutIfAbsent(context.Background(), o.Key("test"), o.Body)
	must(w.t, err)
}

func (w *testWorld) commit(s *memStore, m *Manifest) {
	w.t.Helper()
	m.Attempt++
	b, err := m.Encode()
	must(w.t, err)
	s.set(w.t, ManifestKey("test"), b)
}
