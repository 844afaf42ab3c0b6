package upload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/stream"
)

// randomManifest is one that may be.
func randomManifest(random *rand.Rand) *Manifest {
	m := &Manifest{Node: "node-7"[:1+random.IntN(6)], Epoch: random.Uint64(), Attempt: random.Uint64(), UploadedAtNS: random.Int64(), NextSequence: 1 << 40}
	incarnations := make([][16]byte, 1+random.IntN(3))
	for i := range incarnations {
		incarnations[i] = [16]byte{byte(i + 1), byte(random.Uint32())}
	}
	m.Log[0], m.Incarnation = byte(random.Uint32()), incarnations[0]
	id := func() ObjectID {
		return ObjectID{Sequence: random.Uint64N(m.NextSequence), Incarnation: incarnations[random.IntN(len(incarnations))]}
	}
	m.Origin = random.Uint64N(1 << 50)
	m.Uploaded = m.Origin
	if random.IntN(2) == 0 {
		m.Retired = []Retired{{Log: [16]byte{15: 1}, Epoch: 3, Uploaded: 5, Origin: 1 << 20, AtNS: -1}}
	}
	if random.IntN(2) == 0 {
		m.Uploaded += random.Uint64N(1 << 40)
		bytes := headerBytes + footerBytes + random.Uint64N(1000)
		m.Index = &IndexRef{ID: id(), To: m.Uploaded, Bytes: bytes, Contents: randomSection(random, bytes)}
	}
	for range random.IntN(10) {
		g := Group{From: m.Uploaded, To: m.Uploaded + 1 + random.Uint64N(1<<30), Level: uint8(random.IntN(4)), Control: random.IntN(2) == 0, Pruned: random.IntN(2) == 0}
		m.Uploaded = g.To
		for range random.IntN(4) {
			g.Objects = append(g.Objects, randomRef(random, id()))
		}
		m.Groups = append(m.Groups, g)
	}
	if random.IntN(2) == 0 {
		bytes := headerBytes + footerBytes + random.Uint64N(1000)
		m.State = &StateRef{ID: id(), Position: m.Origin + random.Uint64N(m.Uploaded-m.Origin+1), Bytes: bytes, Contents: randomSection(random, bytes)}
	}
	for range random.IntN(5) {
		m.Doomed = append(m.Doomed, Doomed{Kind: Kind(1 + random.IntN(3)), ID: id(), SinceNS: random.Int64()})
	}
	return m
}

func randomSection(random *rand.Rand, object uint64) Section {
	room := object - headerBytes - footerBytes
	stored := random.Uint64N(room + 1)
	return Section{Place: object - footerBytes - stored, StoredBytes: uint32(stored), RawBytes: uint32(stored + random.Uint64N(100)), Sum: random.Uint64()}
}

func randomRef(random *rand.Rand, id ObjectID) ObjectRef {
	o := ObjectRef{ID: id, Bytes: headerBytes + footerBytes + random.Uint64N(10000)}
	o.Index = randomSection(random, o.Bytes)
	ranges := []Range{}
	for next := stream.ID(0); random.IntN(5) > 0; {
		next += stream.ID(1 + random.Uint64N(1000))
		r := Range{Stream: next, First: random.Uint64N(1 << 40), Count: 1 + random.Uint64N(1<<20), FirstNS: random.Int64N(1 << 60)}
		r.LastNS = r.FirstNS + random.Int64N(1<<40)
		if len(ranges) == 0 || r.FirstNS < o.FirstNS {
			o.FirstNS = r.FirstNS
		}
		o.LastNS = max(o.LastNS, r.LastNS)
		o.Records += r.Count
		ranges = append(ranges, r)
	}
	o.Streams = uint32(len(ranges))
	if random.IntN(3) > 0 {
		o.Ranges = ranges
	}
	return o
}

func TestAManifestIsReadAsItWasWritten(t *testing.T) {
	random := testRandom(t)
	for range 2000 {
		m := randomManifest(random)
		b, err := m.Encode()
		must(t, err)
		got, err := DecodeManifest(b)
		must(t, err)
		if !reflect.DeepEqual(got, m) {
			t.Fatalf("read as %+v, written as %+v", got, m)
		}
	}
}

func TestAnIndexObjectIsReadAsItWasWritten(t *testing.T) {
	random := testRandom(t)
	for range 500 {
		m := randomManifest(random)
		from := m.Origin
		if m.Index != nil {
			from = m.Index.To
		}
		id := ObjectID{Sequence: random.Uint64(), Incarnation: testIncarnation}
		o, ref, err := BuildIndex(m.Log, 7, id, from, m.Uploaded, m.Groups)
		must(t, err)
		h, groups, err := DecodeIndex(o.Body)
		must(t, err)
		want := Header{Kind: KindIndex, Log: m.Log, Epoch: 7, ID: id, From: from, To: m.Uploaded}
		if *h != want || !reflect.DeepEqual(groups, m.Groups) {
			t.Fatalf("read as %+v %+v, written as %+v %+v", h, groups, want, m.Groups)
		}
		if ref.To != m.Uploaded || ref.Bytes != uint64(len(o.Body)) || ref.ID != id {
			t.Fatalf("named as %+v", ref)
		}
	}
}

func TestAManifestThatMayNotBeIsNotWritten(t *testing.T) {
	good := func() *Manifest {
		_, m := small(t)
		return m
	}
	for name, change := range map[string]func(*Manifest){
		"no node":                func(m *Manifest) { m.Node = "" },
		"a long node":            func(m *Manifest) { m.Node = strings.Repeat("n", 64) },
		"a gap at its end":       func(m *Manifest) { m.Uploaded++ },
		"a group beyond its end": func(m *Manifest) { m.Uploaded-- },
		"an origin beyond it":    func(m *Manifest) { m.Origin = m.Uploaded + 1 },
		"an empty group":         func(m *Manifest) { m.Groups = append(m.Groups, Group{From: m.Uploaded, To: m.Uploaded}) },
		"a sequence that comes":  func(m *Manifest) { m.NextSequence = 1 },
		"a state beyond it": func(m *Manifest) {
			m.State = &StateRef{Position: m.Uploaded + 1, Bytes: 192, Contents: Section{Place: 128}}
		},
		"an index beyond it":        func(m *Manifest) { m.Index = &IndexRef{To: m.Uploaded + 1, Bytes: 192, Contents: Section{Place: 128}} },
		"itself retired":            func(m *Manifest) { m.Retired = []Retired{{Log: m.Log}} },
		"too few records":           func(m *Manifest) { m.Groups[0].Objects[0].Records = 1 },
		"a range of nothing":        func(m *Manifest) { m.Groups[0].Objects[0].Ranges[0].Count = 0 },
		"a range of no stream":      func(m *Manifest) { m.Groups[0].Objects[0].Ranges[0].Stream = 0 },
		"a range before its object": func(m *Manifest) { m.Groups[0].Objects[0].Ranges[0].FirstNS-- },
		"a range behind its object": func(m *Manifest) { m.Groups[0].Objects[0].Ranges[0].LastNS++ },
		"an index not at the end":   func(m *Manifest) { m.Groups[0].Objects[0].Index.Place-- },
		"an endless index":          func(m *Manifest) { m.Groups[0].Objects[0].Index.RawBytes = 1 << 31 },
		"an endless object":         func(m *Manifest) { m.Groups[0].Objects[0].Bytes = MaxObjectBytes + 1 },
		"an unknown kind doomed":    func(m *Manifest) { m.Doomed = []Doomed{{Kind: 4}} },
	} {
		m := good()
		change(m)
		if b, err := m.Encode(); !errors.Is(err, ErrManifest) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

func TestVersionsThatAreNotKnownAreRefused(t *testing.T) {
	le := binary.LittleEndian
	o, m := small(t)
	manifest, err := m.Encode()
	must(t, err)
	for _, at := range []int{mMajor, mIncompat, mIncompat + 7} {
		b := bytes.Clone(manifest)
		b[at] ^= 0x40
		le.PutUint64(b[len(b)-sumBytes:], xxhash.Sum64(b[:len(b)-sumBytes]))
		if _, err := DecodeManifest(b); !errors.Is(err, ErrNewerVersion) {
			t.Errorf("manifest, byte %d: %v", at, err)
		}
	}
	for _, at := range []int{hMajor, hIncompat, hIncompat + 7} {
		b := bytes.Clone(o.Body)
		b[at] ^= 0x40
		le.PutUint64(b[hSum:], xxhash.Sum64(b[:hSum]))
		if _, err := DecodeObject(b); !errors.Is(err, ErrNewerVersion) {
			t.Errorf("object, byte %d: %v", at, err)
		}
	}
	// What is compatible, or informs only, is taken.
	for _, at := range []int{mMinor, mCompat} {
		b := bytes.Clone(manifest)
		b[at] ^= 0x40
		le.PutUint64(b[len(b)-sumBytes:], xxhash.Sum64(b[:len(b)-sumBytes]))
		if _, err := DecodeManifest(b); err != nil {
			t.Errorf("manifest, byte %d: %v", at, err)
		}
	}
}

// TestAManifestOfThousandsOfGroupsStaysSmall: what a group takes, and what a range takes.
func TestAManifestOfThousandsOfGroupsStaysSmall(t *testing.T) {
	m := &Manifest{Node: "test", NextSequence: 1 << 20, Origin: 1 << 40, Uploaded: 1 << 40}
	for i := range uint64(1000) {
		g := Group{From: m.Uploaded, To: m.Uploaded + 8<<20, Objects: []ObjectRef{{ID: ObjectID{Sequence: i, Incarnation: testIncarnation},
			Bytes: 6 << 20, Index: Section{Place: 6<<20 - footerBytes - 2000, StoredBytes: 2000, RawBytes: 9000, Sum: i * 0x9e3779b97f4a7c15}, FirstNS: 1_700_000_000_000_000_000, LastNS: 1_700_000_001_000_000_000}}}
		o := &g.Objects[0]
		for s := range stream.ID(10) {
			o.Ranges = append(o.Ranges, Range{Stream: s + 1, First: i * 1000, Count: 1000, FirstNS: o.FirstNS + int64(s)*1000, LastNS: o.LastNS})
			o.Records += 1000
			o.Streams++
		}
		m.Uploaded = g.To
		m.Groups = append(m.Groups, g)
	}
	b, err := m.Encode()
	must(t, err)
	if len(b) > 1000*(60+10*20) {
		t.Errorf("%d bytes for 1000 groups of 10 streams", len(b))
	}
	t.Logf("%d bytes per group of 10 streams", len(b)/1000)
}
