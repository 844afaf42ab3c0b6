package upload

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// smallFrames are the frames of a log with two batches.
func smallFrames(t *testing.T) []testFrame {
	t.Helper()
	w := newTestWorld(t, 16<<20, 0)
	id := w.stream("s")
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("first")}, {Stream: id, Payload: []byte("second")}}})
	w.sync()
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("third")}}})
	w.sync()
	return w.frames
}

func TestFramesThatAreNotWhatTheLogWroteAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		says   string
		change func(body []byte)
	}{
		{"a payload", "position", func(body []byte) { body[len(body)-8] ^= 1 }}, // of "second", whose padding is 2 bytes
		{"a checksum", "checksum", func(body []byte) { body[len(body)-48] ^= 1 }},
		{"a timestamp", "checksum", func(body []byte) { body[len(body)-24] ^= 1 }},
		{"a length", "item", func(body []byte) { body[0] ^= 1 }},
	} {
		frames := smallFrames(t)
		b := NewBuilder(frames[0].Position)
		var err error
		for i := range frames {
			if f := &frames[i].FrameView; err == nil {
				if f.Records == 2 {
					c.change(f.Body)
				}
				err = b.AddFrame(f)
			}
		}
		if !errors.Is(err, stream.ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s changed: %v", c.name, err)
		}
	}
}

func TestFramesAndRecordsOutOfOrderAreRefused(t *testing.T) {
	frames := smallFrames(t)
	var data []*ringwal.FrameView
	for i := range frames {
		if frames[i].Records > 0 {
			data = append(data, &frames[i].FrameView)
		}
	}
	b := NewBuilder(data[0].Position)
	must(t, b.AddFrame(data[0]))
	if err := b.AddFrame(data[0]); !errors.Is(err, ErrNotSorted) {
		t.Errorf("a frame twice: %v", err)
	}
	b.Reset(data[1].Position + 1)
	if err := b.AddFrame(data[1]); !errors.Is(err, ErrNotSorted) {
		t.Errorf("a frame before the beginning: %v", err)
	}
	record := func(offset uint64, ns int64) *Record {
		r := &Record{Stream: 1, Offset: offset, TimestampNS: ns}
		r.Checksum = recordSum(&b.digest, r)
		return r
	}
	for name, second := range map[string]*Record{"a gap": record(2, 5), "an offset twice": record(0, 5), "a timestamp that falls": record(1, 4)} {
		b.Reset(0)
		must(t, b.AddRecord(record(0, 5)))
		if err := b.AddRecord(second); !errors.Is(err, ErrNotSorted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.Reset(0)
	damaged := record(0, 5)
	damaged.Payload = []byte("x")
	if err := b.AddRecord(damaged); !errors.Is(err, ErrDamagedObject) {
		t.Errorf("a record whose checksum does not hold: %v", err)
	}
	for name, position := range map[string]uint64{"twice": 4096, "not aligned": 4100} {
		b.Reset(0)
		must(t, b.AddEntry(&Entry{Position: 4096, Extents: []stream.Extent{{Stream: 1, Count: 1}}}))
		if err := b.AddEntry(&Entry{Position: position, Extents: []stream.Extent{{Stream: 1, First: 1, Count: 1}}}); !errors.Is(err, ErrNotSorted) {
			t.Errorf("an entry %s: %v", name, err)
		}
	}
}

// TestBlocksHoldAsMuchAsTheyMay: 256 KiB raw, or one larger record.
func TestBlocksHoldAsMuchAsTheyMay(t *testing.T) {
	b := NewBuilder(0)
	at := uint64(0)
	for _, size := range []int{100, 1 << 20, 100, BlockBytes - blockHeaderBytes - blockRecordBytes, 16<<20 - 4096, BlockBytes / 2, BlockBytes / 2, 0, 0} {
		r := &Record{Stream: 1, Offset: at, Payload: make([]byte, size), Position: 4096 + 8*at, BatchEnd: true}
		r.Checksum = recordSum(&b.digest, r)
		must(t, b.AddRecord(r))
		must(t, b.AddEntry(&Entry{Position: r.Position, Extents: []stream.Extent{{Stream: 1, First: at, Count: 1}}}))
		at++
	}
	o, err := b.Build(testLog, 1, ObjectID{}, nil)
	must(t, err)
	d, err := DecodeObject(o.Body)
	must(t, err)
	var counts []uint32
	for i := 1; i < d.Index.Blocks(); i++ {
		counts = append(counts, d.Index.Block(i).Count)
	}
	want := []uint32{1, 1, 1, 1, 1, 1, 3}
	if len(counts) != len(want) || counts[6] != 3 {
		t.Errorf("blocks of %v records, want %v", counts, want)
	}
	n := uint64(0)
	must(t, d.Records(1, 0, func(r *Record) error { n++; return nil }))
	must(t, d.Records(1, 7, func(r *Record) error {
		if r.Offset < 7 {
			t.Errorf("record %d, asked from 7 on", r.Offset)
		}
		return nil
	}))
	if n != at {
		t.Errorf("%d records, want %d", n, at)
	}
}

// TestABuilderIsUsedAgain gives the same object from the same frames, and leaves nothing
// of what was added before.
func TestABuilderIsUsedAgain(t *testing.T) {
	random := testRandom(t)
	w := newTestWorld(t, 64<<20, 0)
	w.workload(random, 300, 2000)
	var first []byte
	b := NewBuilder(7)
	for range 3 {
		b.Reset(w.frames[0].Position)
		for i := range w.frames {
			must(t, b.AddFrame(&w.frames[i].FrameView))
		}
		o, err := b.Build(testLog, 1, ObjectID{Sequence: 5}, nil)
		must(t, err)
		if first == nil {
			first = o.Body
		}
		if !bytes.Equal(o.Body, first) {
			t.Fatal("another object")
		}
		d, err := DecodeObject(o.Body)
		must(t, err)
		if o.Ref.Records != uint64(b.Records()) || int(o.Ref.Streams) != b.Streams() || d.Index.Streams() != b.Streams() {
			t.Errorf("%d records of %d streams, want %d of %d", o.Ref.Records, o.Ref.Streams, b.Records(), b.Streams())
		}
	}
}

// TestVerifyFindsRecordsThatNoBatchHas and batches that hold records of another.
func TestVerifyFindsRecordsThatNoBatchHas(t *testing.T) {
	record := func(offset, position uint64, end bool) *Record {
		r := &Record{Stream: 1, Offset: offset, Position: position, BatchEnd: end}
		var b Builder
		r.Checksum = recordSum(&b.digest, r)
		return r
	}
	create := smallFrames(t)[1].Body[:32]
	for _, c := range []struct {
		name    string
		records []*Record
		batches []Entry
		found   bool
	}{
		{"as it must be", []*Record{record(0, 8192, true), record(1, 8240, true)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 1}}}, {Position: 8240, Extents: []stream.Extent{{Stream: 1, First: 1, Count: 1}}}}, false},
		{"a record without a batch", []*Record{record(0, 8192, true), record(1, 8240, true)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 1}}}}, true},
		{"a batch without its records", []*Record{record(0, 8192, true)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 1}}}, {Position: 8240, Extents: []stream.Extent{{Stream: 1, First: 1, Count: 1}}}}, true},
		{"a batch with records of another", []*Record{record(0, 8192, true), record(1, 8240, true)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 2}}}}, true},
		{"a batch that ends too early", []*Record{record(0, 8192, true), record(1, 8192, true)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 2}}}}, true},
		{"batches that overlap", []*Record{record(0, 8192, true), record(1, 8200, true)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 1}}}, {Position: 8200, Extents: []stream.Extent{{Stream: 1, First: 1, Count: 1}}}}, true},
		{"a batch that does not end", []*Record{record(0, 8192, false), record(1, 8192, false)},
			[]Entry{{Position: 8192, Extents: []stream.Extent{{Stream: 1, Count: 2}}}}, true},
	} {
		b := NewBuilder(0)
		must(t, b.AddEntry(&Entry{Position: 4224, Item: create}))
		for _, r := range c.records {
			must(t, b.AddRecord(r))
		}
		for i := range c.batches {
			must(t, b.AddEntry(&c.batches[i]))
		}
		b.Extend(12288)
		o, err := b.Build(testLog, 1, ObjectID{Sequence: 1}, nil)
		must(t, err)
		w, s := &testWorld{t: t}, newMemStore()
		w.put(s, o)
		w.commit(s, &Manifest{Log: testLog, Node: "test", Uploaded: 12288, NextSequence: 2, Groups: []Group{{To: 12288, Control: true, Objects: []ObjectRef{o.Ref}}}})
		found := 0
		_, err = Verify(background, s, "test", func(f Finding) {
			found++
			if !c.found {
				t.Errorf("%s: %s: %v", c.name, f.Key, f.Err)
			}
		})
		must(t, err)
		if c.found && found == 0 {
			t.Errorf("%s: verify finds nothing", c.name)
		}
		if _, err := readAll(t, s); c.name == "a batch that ends too early" && !errors.Is(err, ErrDamagedObject) {
			t.Errorf("%s: the replay says %v", c.name, err)
		}
	}
}
