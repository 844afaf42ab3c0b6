package upload

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/stream"
)

// seal makes the checksum that covers b[:at] hold.
func seal(b []byte, at int) { binary.LittleEndian.PutUint64(b[at:], xxhash.Sum64(b[:at])) }

// FuzzManifest decodes any bytes as a manifest. What is accepted is exactly what is
// written for it. With sums, checksums and length hold, whatever the rest says.
func FuzzManifest(f *testing.F) {
	_, m := small(f)
	b, err := m.Encode()
	must(f, err)
	f.Add(b, false)
	f.Add(b, true)
	random := rand.New(rand.NewPCG(1, 1)) // the same seeds in each run
	for range 8 {
		b, err := randomManifest(random).Encode()
		must(f, err)
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sums bool) {
		if sums && len(b) >= mBody+sumBytes {
			b = bytes.Clone(b)
			copy(b, manifestMagic)
			binary.LittleEndian.PutUint16(b[mMajor:], majorVersion)
			binary.LittleEndian.PutUint16(b[mMinor:], minorVersion)
			binary.LittleEndian.PutUint32(b[mLength:], uint32(len(b)-sumBytes))
			clear(b[mCompat:mLog])
			seal(b, len(b)-sumBytes)
		}
		m, err := DecodeManifest(b)
		if err != nil {
			return
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatalf("accepted, and not written: %v", err)
		}
		if binary.LittleEndian.Uint64(b[mCompat:]) == 0 && binary.LittleEndian.Uint16(b[mMinor:]) == minorVersion && !bytes.Equal(again, b) {
			t.Fatalf("written as\n%x\nread from\n%x", again, b)
		}
	})
}

// FuzzObject decodes any bytes as an object of any kind, and reads all that it holds.
// With sums, header and footer hold, and the index is that of sections.
func FuzzObject(f *testing.F) {
	o, m := small(f)
	f.Add(o.Body, false)
	f.Add(o.Body, true)
	state, _, err := BuildState(testLog, 1, o.ID, &State{Checkpoint: stream.NewTable(1 << 20).EncodeCheckpoint(nil), Joins: []Join{{Stream: 2, Before: 1, At: 3}}})
	must(f, err)
	f.Add(state.Body, true)
	index, _, err := BuildIndex(testLog, 1, o.ID, 0, m.Uploaded, m.Groups)
	must(f, err)
	f.Add(index.Body, true)
	f.Fuzz(func(t *testing.T, b []byte, sums bool) {
		if sums && len(b) >= headerBytes+footerBytes {
			b = bytes.Clone(b)
			sealObject(b)
		}
		if o, err := DecodeObject(b); err == nil {
			readObject(t, o)
		}
		_, _, _ = DecodeState(b)
		if h, groups, err := DecodeIndex(b); err == nil {
			o, _, err := BuildIndex(h.Log, h.Epoch, h.ID, h.From, h.To, groups)
			if err != nil {
				t.Fatalf("accepted, and not written: %v", err)
			}
			if _, again, err := DecodeIndex(o.Body); err != nil || !reflect.DeepEqual(again, groups) {
				t.Fatalf("read again as %+v, %v; was %+v", again, err, groups)
			}
		}
	})
}

// sealObject makes the checksums of header, section and footer hold.
func sealObject(b []byte) {
	copy(b, headerMagic)
	binary.LittleEndian.PutUint16(b[hMajor:], majorVersion)
	clear(b[hIncompat:hLog])
	seal(b, hSum)
	f := b[len(b)-footerBytes:]
	copy(f[fMagic:], footerMagic)
	binary.LittleEndian.PutUint64(f[fLength:], uint64(len(b)))
	copy(f[fHeaderSum:fZero], b[hSum:headerBytes])
	if place := binary.LittleEndian.Uint64(f); place <= uint64(len(b)-footerBytes) {
		binary.LittleEndian.PutUint64(f[fSum:], xxhash.Sum64(b[place:len(b)-footerBytes]))
	}
	seal(f, fFooterSum)
}

// readObject reads all of an object: no record comes out whose checksum does not hold.
func readObject(t *testing.T, o *DataObject) {
	t.Helper()
	_ = o.Journal(func(e *Entry) error {
		if e.Position >= o.To || e.Position < o.From || (e.Item == nil) != (len(e.Extents) > 0) {
			t.Fatalf("entry %+v of an object of [%d, %d)", e, o.From, o.To)
		}
		if e.Item != nil {
			if it, err := e.Control(); err != nil || it.Position != e.Position {
				t.Fatalf("item %+v, %v", it, err)
			}
		}
		return nil
	})
	for i := range o.Index.Streams() {
		r := o.Index.Stream(i)
		next := r.First
		err := o.Records(r.Stream, 0, func(rec *Record) error {
			if rec.Stream != r.Stream || rec.Offset != next || !rec.Verify() {
				t.Fatalf("record %+v, want offset %d of %+v", rec, next, r)
			}
			next++
			return nil
		})
		if err == nil && next != r.End() {
			t.Fatalf("records up to %d, want %d", next, r.End())
		}
	}
	ref := o.Ref()
	if ref.Streams != uint32(o.Index.Streams()) {
		t.Fatalf("%d streams, the index has %d", ref.Streams, o.Index.Streams())
	}
}

// FuzzBlock decodes any bytes as the block that an index announces.
func FuzzBlock(f *testing.F) {
	o, _ := small(f)
	d, err := DecodeObject(o.Body)
	must(f, err)
	info := d.Index.Block(1)
	f.Add(o.Body[info.Place:info.End()], uint64(1), uint64(0), uint32(2))
	f.Fuzz(func(t *testing.T, raw []byte, id, first uint64, count uint32) {
		if first+uint64(count) < first {
			return // the index is checked before
		}
		var b Block
		info := BlockInfo{Stream: stream.ID(id), First: first, Count: count, LastNS: math.MaxInt64}
		if b.decode(&info, raw) != nil {
			return
		}
		again := make([]byte, blockHeaderBytes, len(raw))
		putBlockHeader(again, b.Stream, b.First, uint32(b.Count))
		again = append(again, raw[blockHeaderBytes:blockHeaderBytes+blockRecordBytes*b.Count]...)
		var r Record
		for i := range b.Count {
			if err := b.Record(i, &r); err == nil && !r.Verify() {
				t.Fatal("a record whose checksum does not hold")
			}
			again = append(append(again, r.Headers...), r.Payload...)
		}
		if !bytes.Equal(again, raw) {
			t.Fatalf("read as\n%x\nfrom\n%x", again, raw)
		}
	})
}

// FuzzJournal decodes any bytes as a block of a journal. What is accepted is exactly
// what is written for it.
func FuzzJournal(f *testing.F) {
	o, _ := small(f)
	d, err := DecodeObject(o.Body)
	must(f, err)
	info := d.Index.Block(0)
	f.Add(o.Body[info.Place:info.End()][blockHeaderBytes:], uint64(4224), uint32(2))
	var w journalWriter
	w.add(&Entry{Position: 4096, Producer: 7, Sequence: 3, Acked: 2, Extents: []stream.Extent{{Stream: 1, First: 2, Count: 3, Timestamp: 4}, {Stream: 9, First: 1 << 40, Count: 4000, Timestamp: 1}}})
	raw, first, count := w.finish()
	f.Add(raw[blockHeaderBytes:], first, count)
	f.Fuzz(func(t *testing.T, body []byte, first uint64, count uint32) {
		raw := append(make([]byte, blockHeaderBytes), body...)
		putBlockHeader(raw, 0, first, count)
		const to = 1 << 50
		if first >= to || count == 0 {
			return // the index is checked before
		}
		var r journalReader
		var w journalWriter
		r.reset(&BlockInfo{First: first, Count: count}, raw, to)
		for e := r.next(); e != nil; e = r.next() {
			if e.Position >= to {
				t.Fatalf("position %d", e.Position)
			}
			w.add(e)
		}
		if r.err != nil {
			return
		}
		if again, _, _ := w.finish(); !bytes.Equal(again, raw) {
			t.Fatalf("written as\n%x\nread from\n%x", again, raw)
		}
	})
}
