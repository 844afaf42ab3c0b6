package reader_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes WALSIDECAR_SEED or the time")

// newRandom is the random source of a test, whose seed is printed when it fails.
func newRandom(t testing.TB) *rand.Rand {
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
			t.Logf("replay with: go test ./reader -run '^%s$' -seed %d", t.Name(), seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

const (
	testNode  = "test"
	testBlock = 4096
	// testOrigin is where the log of a world begins.
	testOrigin = 1 << 30
)

var (
	background      = context.Background()
	testLog         = [16]byte{0xa1, 2, 3}
	testIncarnation = [16]byte{0xb1, 2, 3, 4}
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// countingDevice counts reads.
type countingDevice struct {
	device.Device
	reads atomic.Int64
}

func (d *countingDevice) ReadAt(p []byte, offset int64) (int, error) {
	d.reads.Add(1)
	return d.Device.ReadAt(p, offset)
}

// faultyStore counts reads, and does with each what before says.
type faultyStore struct {
	store.Store
	reads  atomic.Int64
	bytes  atomic.Int64
	before atomic.Pointer[func(ctx context.Context, key string) error]
	// bandwidth is how many bytes a second one answer has; 0: as many as there are.
	bandwidth int64
}

func (s *faultyStore) read(ctx context.Context, key string) error {
	s.reads.Add(1)
	if before := s.before.Load(); before != nil {
		return (*before)(ctx, key)
	}
	return nil
}

func (s *faultyStore) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := s.read(ctx, key); err != nil {
		return nil, "", err
	}
	return s.Store.Get(ctx, key)
}

func (s *faultyStore) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	if err := s.read(ctx, key); err != nil {
		return err
	}
	s.bytes.Add(int64(len(dst)))
	if s.bandwidth > 0 {
		time.Sleep(time.Duration(int64(len(dst)) * int64(time.Second) / s.bandwidth))
	}
	return s.Store.GetRange(ctx, key, from, dst)
}

// record is what was appended.
type record struct {
	reader.Record
	batch int
}

// world is a log on a simulated disk with its tail, its reader, and its store. What is
// trimmed is wiped from the disk.
type world struct {
	t        testing.TB
	disk     *countingDevice
	tail     *readcache.Tail
	log      *ringwal.Log
	c        *stream.Committer
	nowNS    int64
	r        *reader.Reader
	store    *faultyStore
	folder   string
	cold     *readcache.Cold
	archive  *upload.Archive
	manifest *upload.Manifest
	builder  *upload.Builder

	mu      sync.Mutex
	frames  []uint64 // starts, of durable ones
	ends    []uint64
	records map[stream.ID][]record
	all     []record // in commit order
	batches int
	trim    uint64
}

// options of a world.
type options struct {
	indexEntries int   // of the reader's index; 0: many
	coldBytes    int64 // of the cold cache; 0: none
	joins        []upload.Join
	table        *stream.Table // that the log begins with; nil: an empty one
	earlier      *world        // the world whose log was lost
	origin       uint64
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	const capacity = 256 << 20
	if o.origin == 0 {
		o.origin = testOrigin
	}
	w := &world{t: t, nowNS: 1_700_000_000_000_000_000, records: map[stream.ID][]record{}}
	w.disk = &countingDevice{Device: simdev.New(simdev.Config{SizeBytes: ringwal.RingStart + capacity, WriteThrough: true}).Open("host")}
	_, err := ringwal.Format(w.disk, ringwal.FormatOptions{UUID: testLog, Node: testNode, Origin: o.origin, Geometry: &ringwal.Geometry{
		BlockBytes: testBlock, MaxFrameBytes: 1 << 20, CapacityBytes: capacity, WindowBytes: 1 << 20, CheckpointMaxBytes: 1 << 20}})
	must(t, err)
	sbs, err := ringwal.ReadSuperblocks(w.disk)
	must(t, err)
	recovered, err := ringwal.Recover(w.disk, sbs, ringwal.Visitor{})
	must(t, err)
	w.tail, err = readcache.NewTail(readcache.MinTailBytes, recovered.End)
	must(t, err)
	t.Cleanup(func() { _ = w.tail.Close() })
	w.log, err = ringwal.Start(sbs, recovered, ringwal.Epoch{Number: 1, Incarnation: testIncarnation, StallAfter: time.Hour}, w.tail)
	must(t, err)
	table := o.table
	if table == nil {
		table = stream.NewTable(1 << 20)
	}
	if o.earlier != nil {
		w.nowNS = o.earlier.nowNS
	}
	w.c = stream.NewCommitter(table, w.log)
	w.newStore(o)
	if o.indexEntries == 0 {
		o.indexEntries = stream.MaxIndexEntries
	}
	w.superblocks()
	w.r = reader.New(reader.Config{Device: w.disk, Tail: w.tail, Superblock: w.log.Superblock(), Directory: stream.NewDirectory(table),
		Index: stream.NewIndex(o.indexEntries), Marks: &reader.Marks{}, Durable: w.log.Durable(), Archive: w.archive, ColdBytes: 1 << 30, Joins: o.joins})
	must(t, w.c.Checkpoint())
	w.sync()
	w.log.RecordDurable()
	w.superblocks()
	w.trim = w.r.Trim()
	return w
}

func (w *world) newStore(o options) {
	t := w.t
	w.manifest = &upload.Manifest{Log: testLog, Node: testNode, Epoch: 1, Incarnation: testIncarnation, Attempt: 1,
		Origin: w.log.Trim(), Uploaded: w.log.Trim(), NextSequence: 1}
	if before := o.earlier; before != nil {
		w.store, w.folder = before.store, before.folder
		m := *before.manifest
		m.Retired = append(m.Retired, upload.Retired{Log: testLog, Epoch: 1, Uploaded: m.Uploaded, Origin: w.log.Trim()})
		m.Groups = append(append([]upload.Group{}, m.Groups...), upload.Group{From: m.Uploaded, To: w.log.Trim()})
		m.Uploaded = w.log.Trim()
		w.manifest = &m
	} else {
		w.folder = filepath.Join(t.TempDir(), "objects")
		s, err := store.Open(background, w.folder, store.Options{CreateDirectory: true})
		must(t, err)
		w.store = &faultyStore{Store: s}
	}
	var cache upload.Cache
	if o.coldBytes > 0 {
		var err error
		w.cold, err = readcache.NewCold(o.coldBytes)
		must(t, err)
		t.Cleanup(w.cold.Close)
		cache = w.cold.Load
	}
	w.archive = upload.NewArchive(w.store, w.manifest, cache)
	w.builder = upload.NewBuilder(w.manifest.Uploaded)
}

func (w *world) superblocks() {
	for {
		offset, b, ok := w.log.NextSuperblock(0)
		if !ok {
			must(w.t, w.log.Err())
			return
		}
		w.log.SuperblockDone(w.disk.WriteSync(b, offset), 0)
	}
}

// sync makes everything durable, and shows it to the reader.
func (w *world) sync() {
	w.t.Helper()
	w.log.CloseFrame(0)
	w.pump()
}

func (w *world) pump() {
	w.t.Helper()
	for f := w.log.Next(0); f != nil; f = w.log.Next(0) {
		w.log.Complete(f, w.disk.WriteSync(f.Buf, f.Offset), 0)
	}
	for f := w.log.PopDurable(); f != nil; f = w.log.PopDurable() {
		var body []byte
		if f.Kind != ringwal.FramePad {
			body = f.Buf[ringwal.FrameHeaderBytes:][:f.BodyBytes]
		}
		must(w.t, w.builder.AddFrame(&ringwal.FrameView{FrameHeader: f.FrameHeader, Body: body}))
		w.tail.Publish(f.End())
		must(w.t, w.r.Publish(&f.FrameHeader, body))
		w.mu.Lock()
		w.frames, w.ends = append(w.frames, f.Position), append(w.ends, f.End())
		w.mu.Unlock()
		w.log.Release(f)
	}
	must(w.t, w.log.Err())
	w.superblocks()
}

func (w *world) retry(do func() error) {
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

func (w *world) stream(name string) stream.ID {
	w.t.Helper()
	var id stream.ID
	w.retry(func() error {
		info, _, err := w.c.CreateStream(w.nowNS, name)
		id = info.ID
		return err
	})
	return id
}

// append appends one batch with a record of so many bytes to each of the streams.
func (w *world) append(bytes int, streams ...stream.ID) {
	w.t.Helper()
	w.nowNS += 1000
	b := &stream.Batch{}
	at := map[stream.ID]uint64{}
	for _, id := range streams {
		offset := uint64(len(w.records[id])) + at[id]
		at[id]++
		b.Entries = append(b.Entries, stream.Entry{Stream: id, Payload: payloadOf(id, offset, bytes)})
	}
	var r stream.Result
	w.retry(func() error { return w.c.Append(w.nowNS, b, &r) })
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range b.Entries {
		one := record{batch: w.batches, Record: reader.Record{Stream: e.Stream, Offset: uint64(len(w.records[e.Stream])),
			Position: r.Position, TimestampNS: w.nowNS, Payload: e.Payload, BatchEnd: i == len(b.Entries)-1}}
		w.records[e.Stream] = append(w.records[e.Stream], one)
		w.all = append(w.all, one)
	}
	w.batches++
}

// payloadOf is what a record holds: told by its number alone, hardly compressible.
func payloadOf(id stream.ID, offset uint64, bytes int) []byte {
	b := make([]byte, 16, 16+bytes+8)
	binary.LittleEndian.PutUint64(b, uint64(id))
	binary.LittleEndian.PutUint64(b[8:], offset)
	for x := uint64(id)<<32 ^ offset; len(b) < 16+bytes; {
		x = x*6364136223846793005 + 1442695040888963407
		b = binary.LittleEndian.AppendUint64(b, x^x>>29)
	}
	return b
}

// upload puts everything durable that is not in the store yet into one group, and
// commits the manifest.
func (w *world) upload() {
	w.t.Helper()
	m := *w.manifest
	if w.builder.To() == m.Uploaded {
		return
	}
	o, err := w.builder.Build(testLog, 1, upload.ObjectID{Sequence: m.NextSequence, Incarnation: testIncarnation}, nil)
	must(w.t, err)
	_, err = w.store.PutIfAbsent(background, o.Key(testNode), o.Body)
	must(w.t, err)
	m.NextSequence++
	m.Attempt++
	m.Groups = append(append([]upload.Group{}, m.Groups...), upload.Group{From: o.From, To: o.To, Control: o.Control, Objects: []upload.ObjectRef{o.Ref}})
	m.Uploaded = o.To
	w.manifest = &m
	w.builder.Reset(o.To)
	w.archive.Apply(&m)
}

// setTrim trims the log to position, a frame's start at or below the uploaded position:
// the device forgets what lies below.
func (w *world) setTrim(position uint64) {
	w.t.Helper()
	if position <= w.trim {
		return
	}
	if position > w.manifest.Uploaded {
		w.t.Fatalf("trim to %d, uploaded is %d", position, w.manifest.Uploaded)
	}
	// In this order: a reader that still reads the device finds it wiped, and looks again.
	w.r.SetTrim(position)
	arena, err := device.NewArena(int(position - w.trim))
	must(w.t, err)
	must(w.t, w.disk.WriteSync(arena.Bytes()[:position-w.trim], w.log.Geometry().DeviceOffset(w.trim)))
	must(w.t, arena.Free())
	w.trim = position
}

// trimStream is what an application does.
func (w *world) trimStream(id stream.ID, before uint64) {
	w.t.Helper()
	w.retry(func() error { _, err := w.c.Trim(id, before); return err })
}

// fill appends batches of about bytesPer each until the log has grown by bytes, a frame
// every few of them, and uploads every groupBytes.
func (w *world) fill(random *rand.Rand, bytes, bytesPer, groupBytes int, streams ...stream.ID) {
	w.t.Helper()
	for from := w.log.Head(); w.log.Head() < from+uint64(bytes); {
		var to []stream.ID
		for range 1 + random.IntN(3) {
			to = append(to, streams[random.IntN(len(streams))])
		}
		w.append(random.IntN(bytesPer), to...)
		if random.IntN(8) == 0 {
			w.sync()
		}
		if groupBytes > 0 && w.log.Durable()-w.manifest.Uploaded > uint64(groupBytes) {
			w.upload()
		}
	}
	w.sync()
}

func (w *world) open(q reader.Query) *reader.Cursor {
	w.t.Helper()
	c, err := w.r.Open(q)
	must(w.t, err)
	w.t.Cleanup(c.Close)
	return c
}

// same compares what was read with what was appended.
func same(got *reader.Record, want *record) error {
	sum := upload.Record{Stream: got.Stream, Offset: got.Offset, TimestampNS: got.TimestampNS, Headers: got.Headers, Payload: got.Payload, Checksum: got.Checksum}
	if got.Stream != want.Stream || got.Offset != want.Offset || got.Position != want.Position || got.TimestampNS != want.TimestampNS ||
		!bytes.Equal(got.Payload, want.Payload) || got.BatchEnd != want.BatchEnd || !sum.Verify() {
		return fmt.Errorf("read stream %d, offset %d, position %d, time %d, %d bytes, batch end %t; appended stream %d, offset %d, position %d, time %d, %d bytes, batch end %t",
			got.Stream, got.Offset, got.Position, got.TimestampNS, len(got.Payload), got.BatchEnd,
			want.Stream, want.Offset, want.Position, want.TimestampNS, len(want.Payload), want.BatchEnd)
	}
	return nil
}

// readAll reads to the end and returns the number of records, which must be those of
// want, and the gaps.
func (w *world) readAll(q reader.Query, maxBytes int, want []record) (gaps []reader.Missing) {
	w.t.Helper()
	c, err := w.r.Open(q)
	must(w.t, err)
	defer c.Close()
	n, gaps := drain(w.t, c, maxBytes, want)
	if n != len(want) {
		w.t.Fatalf("query %+v: %d records, want %d; trim is %d", q, n, len(want), w.trim)
	}
	return gaps
}

type source interface {
	Next(context.Context, int) (reader.Event, error)
}

// drain reads to the end, and compares.
func drain(t testing.TB, c source, maxBytes int, want []record) (n int, gaps []reader.Missing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	for {
		e, err := c.Next(ctx, maxBytes)
		if err != nil {
			t.Fatalf("after %d of %d records: %v", n, len(want), err)
		}
		switch e.Kind {
		case reader.Records:
			for i := range e.Records {
				if n == len(want) {
					t.Fatalf("after all %d records came stream %d, offset %d", n, e.Records[i].Stream, e.Records[i].Offset)
				}
				must(t, same(&e.Records[i], &want[n]))
				n++
			}
		case reader.Gap:
			gaps = append(gaps, e.Gap)
		case reader.End:
			return n, gaps
		default:
			t.Fatalf("event %+v", e)
		}
	}
}

// replayFrom replays from position to the end, and compares with all that was appended
// there.
func (w *world) replayFrom(position uint64, maxBytes int) {
	w.t.Helper()
	p, err := w.r.OpenReplay(reader.ReplayQuery{Position: position})
	must(w.t, err)
	defer p.Close()
	want := w.from(position)
	n, gaps := drain(w.t, p, maxBytes, want)
	if n != len(want) || len(gaps) != 0 {
		w.t.Fatalf("replay from %d: %d records, want %d, gaps %+v; trim is %d", position, n, len(want), gaps, w.trim)
	}
}

// from returns what was appended from position on.
func (w *world) from(position uint64) []record {
	all := w.all
	for len(all) > 0 && all[0].Position < position {
		all = all[1:]
	}
	return all
}

// byTime is the first record of a stream that is not older than ns.
func byTime(records []record, ns int64) int {
	for i := range records {
		if records[i].TimestampNS >= ns {
			return i
		}
	}
	return len(records)
}

// restoredTable is the state of a log in which one stream goes on at offset next, of
// which none is trimmed.
func restoredTable(t testing.TB, id stream.ID, name string, next uint64) *stream.Table {
	t.Helper()
	le := binary.LittleEndian
	b := stream.NewTable(1 << 20).EncodeCheckpoint(nil)
	le.PutUint64(b[8:], uint64(id)+1)
	le.PutUint32(b[24:], 1)
	for _, v := range []uint64{uint64(id), 0, next, 1, 1} {
		b = le.AppendUint64(b, v)
	}
	b = append(append(b, 0, 0, byte(len(name)), 0), name...)
	table, err := stream.DecodeCheckpoint(b, 1<<20)
	must(t, err)
	return table
}
