package upload

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/stream"
)

const (
	goldenObject   = "testdata/object"
	goldenManifest = "testdata/manifest"
	goldenNS       = 1_796_000_000_000_000_000
)

// small is the log that docs/format.md shows: a stream and one batch of two records.
func small(t testing.TB) (*Object, *Manifest) {
	t.Helper()
	b := NewBuilder(0)
	create, err := hex.DecodeString("1e000000" + "03" + "00" + "0000" + "0100000000000000" + "00006e60fe5aec18" + "6f7264657273" + "0000")
	must(t, err)
	must(t, b.AddEntry(&Entry{Position: 4224, Item: create}))
	headers, err := hex.DecodeString("0100" + "0500" + "02000000" + "7472616365" + "3766")
	must(t, err)
	ns := int64(0x18ec5afe607d4240)
	for i, r := range []Record{
		{Payload: []byte("first order"), Checksum: 0x7aaed52f16052e8b},
		{Payload: []byte("second order"), Headers: headers, Checksum: 0xdec33b061f3d1b0b, BatchEnd: true},
	} {
		r.Stream, r.Offset, r.TimestampNS, r.Position = 1, uint64(i), ns, 4256
		must(t, b.AddRecord(&r)) // the checksums are those that the device has
	}
	must(t, b.AddEntry(&Entry{Position: 4256, Extents: []stream.Extent{{Stream: 1, Count: 2, Timestamp: ns}}}))
	b.Extend(12288)
	log := [16]byte{0xa1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	incarnation := [16]byte{0xb1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	o, err := b.Build(log, 1, ObjectID{Sequence: 1, Incarnation: incarnation}, nil)
	must(t, err)
	m := &Manifest{Log: log, Node: "test", Epoch: 1, Incarnation: incarnation, Attempt: 2, Uploaded: 12288, UploadedAtNS: goldenNS, NextSequence: 2,
		Groups: []Group{{To: 12288, Control: o.Control, Objects: []ObjectRef{o.Ref}}}}
	return o, m
}

// TestGoldenFiles decodes an object and a manifest that are committed, and encodes them
// again. WALSIDECAR_GOLDEN=write writes them, and their dump into docs/format.md.
func TestGoldenFiles(t *testing.T) {
	built, want := small(t)
	if os.Getenv("WALSIDECAR_GOLDEN") == "write" {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(goldenObject, built.Body, 0o644))
		b, err := want.Encode()
		must(t, err)
		must(t, os.WriteFile(goldenManifest, b, 0o644))
	}
	body, err := os.ReadFile(goldenObject)
	must(t, err)
	o, err := DecodeObject(body)
	must(t, err)
	if o.Header != built.Header || fmt.Sprint(o.Ref().Ranges) != fmt.Sprint(built.Ref.Ranges) {
		t.Errorf("the object is %+v, want %+v", o.Header, built.Header)
	}
	again, err := DecodeObject(built.Body)
	must(t, err)
	if !bytes.Equal(o.Index.raw, again.Index.raw) || !bytes.Equal(o.body[:o.Section.Place], again.body[:again.Section.Place]) {
		t.Error("the object is encoded otherwise now")
	}
	var payloads []string
	must(t, o.Records(1, 0, func(r *Record) error { payloads = append(payloads, string(r.Payload)); return nil }))
	if fmt.Sprint(payloads) != "[first order second order]" {
		t.Errorf("records %q", payloads)
	}

	b, err := os.ReadFile(goldenManifest)
	must(t, err)
	m, err := DecodeManifest(b)
	must(t, err)
	if ref := o.Ref(); fmt.Sprint(m.Groups[0].Objects[0]) != fmt.Sprint(ref) {
		t.Errorf("the manifest names %+v, want %+v", m.Groups[0].Objects[0], ref)
	}
	encoded, err := m.Encode()
	must(t, err)
	if !bytes.Equal(encoded, b) {
		t.Error("the manifest is encoded otherwise now")
	}
}

func TestKeysOfTheFormat(t *testing.T) {
	id := ObjectID{Sequence: 0x1f, Incarnation: [16]byte{0xb1, 15: 0xff}}
	for node, want := range map[string]string{
		"test":   "39/test/o/000000000000001f-b10000000000000000000000000000ff",
		"a b/c.": "8c/a=20b=2Fc./o/000000000000001f-b10000000000000000000000000000ff",
		"..":     "6f/=2E./o/000000000000001f-b10000000000000000000000000000ff",
	} {
		key := id.Key(node, KindData)
		if key != want {
			t.Errorf("node %q: %s, want %s", node, key, want)
		}
		for _, k := range []Kind{KindData, KindState, KindIndex} {
			if kind, got, ok := ParseKey(node, id.Key(node, k)); !ok || kind != k || got != id {
				t.Errorf("node %q: %s is not parsed", node, id.Key(node, k))
			}
		}
		for _, other := range []string{ManifestKey(node), key + "0", strings.ToUpper(key), key[:len(key)-1], "x" + key, Prefix(node) + "p/" + id.String()} {
			if _, _, ok := ParseKey(node, other); ok {
				t.Errorf("node %q: %s is parsed", node, other)
			}
		}
	}
}

// TestFormatDocument compares the dump in docs/format.md with the golden files.
func TestFormatDocument(t *testing.T) {
	const path, begin, end = "../docs/format.md", "<!-- object dump begins -->\n", "<!-- object dump ends -->\n"
	b, err := os.ReadFile(path)
	must(t, err)
	before, rest, ok := strings.Cut(string(b), begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the dump", path)
	}
	is := "```text\n" + goldenDump(t) + "```\n"
	if os.Getenv("WALSIDECAR_GOLDEN") == "write" {
		must(t, os.WriteFile(path, []byte(before+begin+is+end+after), 0o644))
		return
	}
	if was != is {
		t.Fatalf("%s shows other bytes than %s and %s have", path, goldenObject, goldenManifest)
	}
}

// byteDump prints named fields of bytes.
type byteDump struct {
	out strings.Builder
	b   []byte
	at  int
}

func (d *byteDump) title(s string) { fmt.Fprintf(&d.out, "%s\n", s) }

func (d *byteDump) field(n int, name string) {
	b := d.b[d.at : d.at+n]
	for i := 0; i < n; i += 16 {
		line := fmt.Sprintf("%04x  %-47s  %s", d.at+i, fmt.Sprintf("% x", b[i:min(i+16, n)]), name)
		fmt.Fprintln(&d.out, strings.TrimRight(line, " "))
		name = ""
	}
	d.at += n
}

func (d *byteDump) u32(name string) {
	d.field(4, fmt.Sprintf("%s = %d", name, binary.LittleEndian.Uint32(d.b[d.at:])))
}

func (d *byteDump) u64(name string) {
	if v := binary.LittleEndian.Uint64(d.b[d.at:]); v < 1<<40 {
		name = fmt.Sprintf("%s = %d", name, v)
	}
	d.field(8, name)
}

func (d *byteDump) number(name string) {
	v, n := binary.Uvarint(d.b[d.at:])
	if v < 1<<40 {
		name = fmt.Sprintf("%s = %d", name, v)
	}
	d.field(n, name)
}

func goldenDump(t *testing.T) string {
	t.Helper()
	body, err := os.ReadFile(goldenObject)
	must(t, err)
	o, err := DecodeObject(body)
	must(t, err)
	d := &byteDump{b: body}
	d.title(o.ID.Key("test", KindData) + "\n")
	d.envelope(func() { d.blocks(int(o.Section.StoredBytes)) })
	x := &byteDump{b: o.Index.raw}
	x.title("\nits index, uncompressed\n")
	x.index()

	manifest, err := os.ReadFile(goldenManifest)
	must(t, err)
	m := &byteDump{b: manifest}
	m.title("\n" + ManifestKey("test") + "\n")
	m.manifest()
	for _, d := range []*byteDump{d, x, m} {
		if d.at != len(d.b) {
			t.Fatalf("%d of %d bytes are in the dump", d.at, len(d.b))
		}
	}
	return d.out.String() + x.out.String() + m.out.String()
}

func (d *byteDump) envelope(blocks func()) {
	d.field(8, `magic "WALSOBJ1"`)
	d.field(2, "major version = 1")
	d.field(2, "minor version = 0")
	d.field(1, "kind = 1, data")
	d.field(3, "zero")
	d.u64("compatible features")
	d.u64("incompatible features")
	d.field(16, "log UUID")
	d.u64("epoch")
	d.field(16, "incarnation")
	d.u64("sequence")
	d.u64("from")
	d.u64("to")
	d.field(24, "zero")
	d.field(8, "checksum")
	blocks()
	d.u64("footer: place of the index")
	d.u32("stored bytes")
	d.u32("raw bytes")
	d.field(8, "checksum of the stored bytes")
	d.u64("length of the object")
	d.field(8, "the header's checksum")
	d.field(8, "zero")
	d.field(8, "checksum")
	d.field(8, `magic "WALSOBJE"`)
}

func (d *byteDump) blocks(index int) {
	d.u64("block of the journal: stream 0")
	d.u64("position of the first entry")
	d.u32("entries")
	d.u32("zero")
	d.number("entry: position less that before, / 8")
	d.field(1, "kind = 0, control item")
	d.field(32, "the item: stream 1, \"orders\", is created")
	d.number("entry: position less that before, / 8")
	d.field(1, "kind = 1, batch")
	d.number("extents")
	d.number("stream id")
	d.number("first offset")
	d.number("records")
	d.field(9, "timestamp of the last one, signed number")
	d.u64("block of records: stream id")
	d.u64("offset of the first record")
	d.u32("records")
	d.u32("zero")
	for i := range 2 {
		d.field(8, fmt.Sprintf("record %d: checksum", i))
		d.field(8, "timestamp, ns")
		d.u64("position of its batch")
		if i == 0 {
			d.u32("headers bytes")
		} else {
			d.field(4, "headers bytes = 15, the last of its batch")
		}
		d.u32("payload bytes")
	}
	d.field(11, "payload of record 0")
	d.field(15, "headers of record 1")
	d.field(12, "payload of record 1")
	d.field(index, "index, compressed")
}

func (d *byteDump) index() {
	d.u32("streams, the journal included")
	d.u32("blocks")
	for range 2 {
		d.u64("stream id")
		d.u32("its first block")
		d.u32("its blocks")
	}
	for range 2 {
		d.u64("block: first")
		d.u32("count")
		d.u32("raw bytes")
		d.u64("first timestamp")
		d.u64("last timestamp")
		d.u64("place")
		d.u32("stored bytes")
		d.u32("zero")
		d.field(8, "checksum of the stored bytes")
	}
}

func (d *byteDump) manifest() {
	d.field(8, `magic "WALSMAN1"`)
	d.field(2, "major version = 1")
	d.field(2, "minor version = 0")
	d.u32("length")
	d.u64("compatible features")
	d.u64("incompatible features")
	d.field(16, "log UUID")
	d.u64("epoch")
	d.field(16, "incarnation")
	d.u64("attempt")
	d.u64("origin")
	d.u64("uploaded position")
	d.u64("uploaded at, ns")
	d.u64("next sequence")
	d.field(64, `node: length, "test", zeros`)
	d.number("incarnations")
	d.field(16, "incarnation 0")
	d.number("retired logs")
	d.field(1, "state present = 0")
	d.field(1, "index present = 0")
	d.number("groups")
	d.number("group: length")
	d.field(1, "level = 0")
	d.field(1, "flags = 1, control")
	d.number("objects")
	d.number("object: incarnation")
	d.number("sequence")
	d.number("bytes")
	d.number("index: place")
	d.number("stored bytes")
	d.number("raw bytes")
	d.field(8, "checksum of the stored bytes")
	d.number("streams")
	d.number("records")
	d.number("lowest timestamp")
	d.number("highest less lowest")
	d.field(1, "ranges present = 1")
	d.number("stream id less that before")
	d.number("first offset")
	d.number("records")
	d.number("first timestamp less lowest")
	d.number("last less first")
	d.number("doomed objects")
	d.field(8, "checksum")
}
