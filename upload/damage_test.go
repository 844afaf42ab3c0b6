package upload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/stream"
)

// smallStore is a store with an index object, a state object and a few data objects of
// a log, small enough to flip each of its bits.
func smallStore(t testing.TB) (*testWorld, *memStore, *Manifest) {
	t.Helper()
	w := newTestWorld(t, 16<<20, 0)
	start := w.c.Table().EncodeCheckpoint(nil)
	id := w.stream("orders")
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: []byte("first")}, {Stream: id, Payload: []byte("second"), Headers: testHeaders}}})
	w.sync()
	w.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: bytes.Repeat([]byte("third "), 50)}}})
	w.sync()
	s, m := w.archive(1, 256)
	if len(m.Groups) != 2 {
		t.Fatalf("%d groups, want 2", len(m.Groups))
	}
	o, ref, err := BuildState(testLog, 1, w.id(m), &State{Position: m.Origin, Checkpoint: start})
	must(t, err)
	w.put(s, o)
	m.State = ref
	o, index, err := BuildIndex(testLog, 1, w.id(m), m.Origin, m.Groups[0].To, m.Groups[:1])
	must(t, err)
	w.put(s, o)
	m.Index, m.Groups = index, m.Groups[1:]
	w.commit(s, m)
	return w, s, m
}

// readAll reads all there is, in every way. It returns the records, of those streams
// that could be read, and the first error.
func readAll(t *testing.T, s *memStore) (records []Record, first error) {
	failed := func(err error) {
		if first == nil && !errors.Is(err, io.EOF) {
			first = err
		}
	}
	a, err := OpenArchive(background, s, "test", nil)
	if err != nil {
		return nil, err
	}
	_, err = a.State(background, 1<<20)
	failed(err)
	_, _, err = a.Streams(background)
	failed(err)
	r := a.Replay(0)
	defer r.Close()
	for {
		e, err := r.Next(background)
		if err != nil {
			failed(err)
			break
		}
		for i := range e.Records {
			records = append(records, cloneRecord(&e.Records[i]))
		}
	}
	failed(a.Records(background, 1, 0, math.MaxUint64, func(r *Record) error {
		records = append(records, cloneRecord(r))
		return nil
	}))
	return records, first
}

func cloneRecord(r *Record) Record {
	c := *r
	c.Headers, c.Payload = bytes.Clone(r.Headers), bytes.Clone(r.Payload)
	return c
}

// TestEveryFlippedBitIsFoundAndNamed flips each bit of a store: verify finds it in the
// right object, and no read returns anything that was not appended.
func TestEveryFlippedBitIsFoundAndNamed(t *testing.T) {
	w, s, _ := smallStore(t)
	want := map[uint64]Record{}
	for _, r := range flatten(w.device()) {
		want[r.Offset] = r
	}
	records, err := readAll(t, s)
	must(t, err)
	if len(records) != 6 {
		t.Fatalf("%d records read, want each of 3 twice", len(records))
	}
	for _, key := range s.Keys() {
		body := s.body(t, key)
		for i := range body {
			for bit := range 8 {
				body[i] ^= 1 << bit
				found := false
				_, err := Verify(background, s, "test", func(f Finding) {
					if f.Key != key {
						t.Fatalf("%s, byte %d, bit %d: verify names %s: %v", key, i, bit, f.Key, f.Err)
					}
					found = true
				})
				must(t, err)
				if !found {
					t.Fatalf("%s, byte %d, bit %d: verify finds nothing", key, i, bit)
				}
				if bit == i%8 { // one bit of each byte: the others take too long
					checkFlip(t, s, key, i, want)
				}
				body[i] ^= 1 << bit
			}
		}
	}
}

func checkFlip(t *testing.T, s *memStore, key string, i int, want map[uint64]Record) {
	t.Helper()
	records, err := readAll(t, s)
	for j := range records {
		if r := want[records[j].Offset]; !sameRecord(&records[j], &r) {
			t.Fatalf("%s, byte %d: record %+v, want %+v", key, i, records[j], r)
		}
	}
	if err == nil {
		return // a part that no read needs
	}
	if !errors.Is(err, ErrDamagedObject) && !errors.Is(err, ErrManifest) && !errors.Is(err, ErrNewerVersion) {
		t.Errorf("%s, byte %d: %v", key, i, err)
	}
	if !strings.Contains(err.Error(), key) {
		t.Errorf("%s, byte %d: the error does not name it: %v", key, i, err)
	}
}

// TestDamageWithChecksumsThatHold changes what objects say and makes their checksums
// hold again, as a mistake in a writer would.
func TestDamageWithChecksumsThatHold(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		name   string
		change func(header, block, index, footer []byte)
	}{
		{"another log", func(h, _, _, _ []byte) { h[hLog]++ }},
		{"another sequence", func(h, _, _, _ []byte) { h[hSequence]++ }},
		{"other positions", func(h, _, _, _ []byte) { le.PutUint64(h[hTo:], le.Uint64(h[hTo:])+8) }},
		{"a state object", func(h, _, _, _ []byte) { h[hKind] = byte(KindState) }},
		{"another stream in the block", func(_, b, _, _ []byte) { b[0]++ }},
		{"other offsets in the block", func(_, b, _, _ []byte) { b[8]++ }},
		{"one record fewer in the block", func(_, b, _, _ []byte) { b[16]-- }},
		{"another payload", func(_, b, _, _ []byte) { b[len(b)-1]++ }},
		{"another checksum of a record", func(_, b, _, _ []byte) { b[blockHeaderBytes]++ }},
		{"another timestamp of a record", func(_, b, _, _ []byte) { b[blockHeaderBytes+8]-- }},
		{"another position of a record", func(_, b, _, _ []byte) { b[blockHeaderBytes+16] += 8 }},
		{"the batch ends elsewhere", func(_, b, _, _ []byte) { b[blockHeaderBytes+27] ^= 0x80 }},
		{"a longer payload", func(_, b, _, _ []byte) { b[blockHeaderBytes+28]++ }},
		{"an endless payload", func(_, b, _, _ []byte) { le.PutUint32(b[blockHeaderBytes+28:], math.MaxUint32) }},
		{"a stream more in the index", func(_, _, x, _ []byte) { x[0]++ }},
		{"other blocks of a stream", func(_, _, x, _ []byte) { x[indexHeaderBytes+8]++ }},
		{"another place of a block", func(_, _, x, _ []byte) { x[indexHeaderBytes+2*indexStreamBytes+indexBlockBytes+32]++ }},
		{"other records of a block", func(_, _, x, _ []byte) { x[indexHeaderBytes+2*indexStreamBytes+indexBlockBytes]++ }},
		{"an endless block", func(_, _, x, _ []byte) {
			le.PutUint32(x[indexHeaderBytes+2*indexStreamBytes+indexBlockBytes+12:], math.MaxUint32)
		}},
		{"an endless index", func(_, _, _, f []byte) { le.PutUint32(f[fRaw:], math.MaxUint32) }},
		{"another place of the index", func(_, _, _, f []byte) { f[fPlace]++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, s, m := smallStore(t)
			ref := m.Groups[0].Objects[0]
			key := ref.ID.Key("test", KindData)
			body := s.body(t, key)
			o, err := DecodeObject(body)
			must(t, err)
			infoOf := o.Index.Block(1)
			// Rebuilt without compression, so that each part can be changed in place.
			raw, err := infoOf.raw("block", body[infoOf.Place:infoOf.End()], nil)
			must(t, err)
			block := bytes.Clone(raw)
			index := bytes.Clone(o.Index.raw)
			header := bytes.Clone(body[:headerBytes])
			e := index[indexHeaderBytes+2*indexStreamBytes+indexBlockBytes:]
			le.PutUint32(e[40:], uint32(len(block)))
			rebuild := func() []byte {
				le.PutUint64(header[hSum:], xxhash.Sum64(header[:hSum]))
				le.PutUint64(e[48:], xxhash.Sum64(block))
				out := append(bytes.Clone(header), body[headerBytes:infoOf.Place]...)
				out = append(out, block...)
				place := len(out)
				out = append(out, index...)
				return appendFooter(out, Section{Place: uint64(place), StoredBytes: uint32(len(index)), RawBytes: uint32(len(index)), Sum: xxhash.Sum64(index)})
			}
			named := func(b []byte) {
				s.set(t, key, b)
				ref := &m.Groups[0].Objects[0]
				ref.Bytes = uint64(len(b))
				f := b[len(b)-footerBytes:]
				ref.Index = Section{Place: le.Uint64(f), StoredBytes: le.Uint32(f[fStored:]), RawBytes: le.Uint32(f[fRaw:]), Sum: le.Uint64(f[fSum:])}
			}
			named(rebuild())
			m.Attempt++
			encoded, err := m.Encode()
			must(t, err)
			s.set(t, ManifestKey("test"), encoded)
			if sum, err := Verify(background, s, "test", func(f Finding) { t.Fatalf("unchanged: %s: %v", f.Key, f.Err) }); err != nil || sum.Records != 3 {
				t.Fatalf("unchanged: %+v, %v", sum, err)
			}
			c.change(header, block, index, make([]byte, footerBytes))
			b := rebuild()
			f := b[len(b)-footerBytes:]
			c.change(make([]byte, headerBytes), make([]byte, len(block)), make([]byte, len(index)), f)
			le.PutUint64(f[fFooterSum:], xxhash.Sum64(f[:fFooterSum]))
			named(b)
			if encoded, err := m.Encode(); err == nil {
				s.set(t, ManifestKey("test"), encoded)
			}
			found := 0
			_, err = Verify(background, s, "test", func(f Finding) { found++ })
			must(t, err)
			if found == 0 {
				t.Error("verify finds nothing")
			}
			records, _ := readAll(t, s)
			for i := range records {
				if !records[i].Verify() {
					t.Errorf("a record was returned whose checksum does not hold: %+v", records[i])
				}
			}
		})
	}
}

func TestMissingObjectsAreNamed(t *testing.T) {
	_, s, _ := smallStore(t)
	for _, key := range s.Keys() {
		body := s.body(t, key)
		must(t, s.Delete(background, []string{key}))
		if key == ManifestKey("test") {
			if _, err := OpenArchive(background, s, "test", nil); !errors.Is(err, ErrNoManifest) || !strings.Contains(err.Error(), key) {
				t.Errorf("without a manifest: %v", err)
			}
			if _, err := Verify(background, s, "test", nil); !errors.Is(err, ErrNoManifest) {
				t.Errorf("verify without a manifest: %v", err)
			}
		} else {
			if _, err := readAll(t, s); !errors.Is(err, ErrMissingObject) || !strings.Contains(err.Error(), key) {
				t.Errorf("without %s: %v", key, err)
			}
			var found []Finding
			_, err := Verify(background, s, "test", func(f Finding) { found = append(found, f) })
			must(t, err)
			if len(found) != 1 || found[0].Key != key || !errors.Is(found[0].Err, ErrMissingObject) {
				t.Errorf("without %s verify finds %v", key, found)
			}
		}
		s.set(t, key, body)
	}
}
