package ringwal_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
)

// TestFormatDocument compares the hex dump in docs/format.md with a log that was just
// written. WALSIDECAR_GOLDEN=write writes it into the document.
func TestFormatDocument(t *testing.T) {
	const path, begin, end = "../docs/format.md", "<!-- dump begins -->\n", "<!-- dump ends -->\n"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the dump", path)
	}
	is := "```text\n" + strings.TrimRight(dumpOf(smallLog(t)), "\n") + "\n```\n"
	if os.Getenv("WALSIDECAR_GOLDEN") == "write" {
		if err := os.WriteFile(path, []byte(before+begin+is+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if was != is {
		t.Fatalf("%s shows another log than the one that was written", path)
	}
}

// dump prints named fields of bytes.
type dump struct {
	out  strings.Builder
	b    []byte
	base int64
	at   int
}

// field prints the next n bytes with their name, and returns them.
func (d *dump) field(n int, name string) []byte {
	b := d.b[d.at : d.at+n]
	for i := 0; i < n; i += 16 {
		row := b[i:min(i+16, n)]
		line := fmt.Sprintf("%06x  %-47s  %s", d.base+int64(d.at+i), fmt.Sprintf("% x", row), name)
		fmt.Fprintln(&d.out, strings.TrimRight(line, " "))
		name = ""
	}
	d.at += n
	return b
}

func (d *dump) u32(name string) { d.number(4, name) }
func (d *dump) u64(name string) { d.number(8, name) }

func (d *dump) number(n int, name string) {
	var v uint64
	for i := n - 1; i >= 0; i-- {
		v = v<<8 | uint64(d.b[d.at+i])
	}
	if v >= 1<<40 {
		d.field(n, name)
		return
	}
	d.field(n, fmt.Sprintf("%s = %d", name, v))
}

// zeros skips n bytes, which are zero.
func (d *dump) zeros(n int) {
	for _, c := range d.b[d.at : d.at+n] {
		if c != 0 {
			panic("not zero")
		}
	}
	fmt.Fprintf(&d.out, "%06x  00 ... (%d bytes)\n", d.base+int64(d.at), n)
	d.at += n
}

func dumpOf(w *world) string {
	d := &dump{}
	d.superblock(w, 2)
	d.out.WriteString("\n")
	for p := uint64(0); p < w.log.Durable(); {
		p = d.frame(w, p)
	}
	return d.out.String()
}

func (d *dump) open(w *world, offset int64, n int) {
	d.b, d.base, d.at = make([]byte, n), offset, 0
	w.disk.Peek(d.b, offset)
}

func (d *dump) superblock(w *world, slot int64) {
	d.open(w, slot*ringwal.SlotBytes, ringwal.SlotBytes)
	fmt.Fprintf(&d.out, "superblock in slot %d, device offset %#x\n", slot, d.base)
	d.field(8, `magic "WALSDCR1"`)
	d.number(2, "major")
	d.number(2, "minor")
	d.u32("length")
	d.u64("compatible features")
	d.u64("read-only compatible features")
	d.u64("incompatible features")
	d.u64("sequence")
	d.field(16, "log UUID")
	n := int(d.b[d.at])
	d.field(1+n, `node name, a length and "orders-1"`)
	d.zeros(63 - n)
	d.u64("epoch")
	d.field(16, "incarnation")
	d.field(16, "boot id")
	d.u64("fence key")
	d.u32("block")
	d.u32("longest frame")
	for _, name := range []string{"capacity", "device size at format", "window W", "stall limit L in ms", "largest checkpoint", "origin",
		"durable", "trim", "sum of the frame before trim"} {
		d.u64(name)
	}
	d.u32("flags")
	d.u32("boundaries")
	d.u64("boundary 0: epoch")
	d.u64("incarnation hash")
	d.u64("end of the frame it follows")
	d.u64("sum of that frame")
	d.u64("start")
	d.u64("checksum of all before it")
}

// frame dumps the frame at position p and returns the position of the next one.
func (d *dump) frame(w *world, p uint64) uint64 {
	d.open(w, ringwal.RingStart+int64(p), 4096)
	kind := ringwal.FrameKind(d.b[5])
	fmt.Fprintf(&d.out, "%s frame at position %d, device offset %#x\n", kind, p, d.base)
	d.field(4, `magic "WSF1"`)
	d.number(1, "header version")
	d.field(1, fmt.Sprintf("kind = %d, %s", d.b[d.at], kind))
	d.number(2, "flags")
	d.u64("hash of the log UUID")
	d.u64("epoch")
	d.u64("incarnation hash")
	d.u64("position")
	length := int(binary.LittleEndian.Uint32(d.b[d.at:]))
	d.u32("length")
	body := int(binary.LittleEndian.Uint32(d.b[d.at:]))
	d.u32("body bytes")
	d.u32("records")
	d.u32("items")
	d.u64("sum of the frame before")
	d.u64("durable when issued")
	d.u64("checkpoint: position of its first part")
	d.u32("checkpoint: part")
	d.u32("checkpoint: parts")
	d.field(24, "zero")
	d.u64("frame sum")
	d.u64("header sum, the sum of this frame")
	switch kind {
	case ringwal.FrameData:
		d.items(body)
	case ringwal.FrameCheckpoint:
		d.field(body, "body: the encoded streams and producers, here none")
	}
	d.zeros(length - d.at)
	d.out.WriteString("\n")
	return p + uint64(length)
}

var flagsName = map[byte]string{0: "flags", 5: "flags, lone, a producer part follows", 6: "flags, lone, continued: the same producer, the next sequence"}

func (d *dump) items(body int) {
	end := d.at + body
	for d.at < end {
		start, length := d.at, int(binary.LittleEndian.Uint32(d.b[d.at:]))
		d.u32("item: length")
		kind, flags, count := d.b[d.at], d.b[d.at+1], int(binary.LittleEndian.Uint16(d.b[d.at+2:]))
		d.number(1, "kind")
		d.number(1, flagsName[flags])
		d.number(2, map[bool]string{false: "count", true: "offset, bits 32 to 47"}[flags&4 != 0])
		switch kind {
		case 3:
			d.u64("stream created: id")
			d.u64("timestamp, ns")
			d.field(start+length-d.at, "name")
		case 8:
			d.u64("session producer opened: id")
			d.u32("window")
			d.u32("zero")
		case 1:
			if flags&1 != 0 {
				d.u64("producer id")
				d.u64("sequence")
				d.u64("acked")
			}
			if flags&4 != 0 {
				d.lone(start + length)
				break
			}
			for range count {
				d.record()
			}
		}
		if pad := -length & 7; pad > 0 {
			d.field(pad, "padding to a multiple of 8")
		}
	}
}

func (d *dump) lone(end int) {
	d.u64("record: checksum")
	d.u32("stream id")
	d.u32("offset, bits 0 to 31")
	d.u64("timestamp, ns")
	d.field(end-d.at, fmt.Sprintf("payload %q", d.b[d.at:end]))
}

func (d *dump) record() {
	d.u64("record: checksum")
	d.u64("stream id")
	d.u64("offset")
	d.u64("timestamp, ns")
	headers := int(binary.LittleEndian.Uint32(d.b[d.at:]))
	d.u32("headers bytes")
	payload := int(binary.LittleEndian.Uint32(d.b[d.at:]))
	d.u32("payload bytes")
	if headers > 0 {
		d.number(2, "headers: count")
		key := int(binary.LittleEndian.Uint16(d.b[d.at:]))
		d.number(2, "key bytes")
		d.u32("value bytes")
		d.field(key, "key")
		d.field(headers-8-key, "value")
	}
	d.field(payload, fmt.Sprintf("payload %q", d.b[d.at:d.at+payload]))
	if pad := -(40 + headers + payload) & 7; pad > 0 {
		d.field(pad, "padding to a multiple of 8")
	}
}
