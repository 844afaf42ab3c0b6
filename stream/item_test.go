package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

const session7 = sessionProducerBit | 7

// controlItems has one valid item of every kind but a batch, with its bytes.
var controlItems = []struct {
	item Item
	hex  string // blanks are for the reader
}{
	{Item{Kind: KindRefusal, Producer: session7, Sequence: 9, Acked: 4, Actual: 0x1122, Code: CodeOffsetMismatch, Entry: 3},
		"30000000 02 00 0000  0700000000000080 0900000000000000 0400000000000000 2211000000000000 0400 0300 00000000"},
	{Item{Kind: KindStreamCreate, Stream: 1, Timestamp: 0x0203, Name: []byte("abc")},
		"1b000000 03 00 0000  0100000000000000 0302000000000000 616263 0000000000"},
	{Item{Kind: KindStreamSeal, Stream: 2}, "10000000 04 00 0000  0200000000000000"},
	{Item{Kind: KindStreamTrim, Stream: 2, First: 5}, "18000000 05 00 0000  0200000000000000 0500000000000000"},
	{Item{Kind: KindStreamDelete, Stream: 2}, "10000000 06 00 0000  0200000000000000"},
	{Item{Kind: KindStreamToken, Stream: 2, Token: []byte("t")}, "11000000 07 00 0000  0200000000000000 74 00000000000000"},
	{Item{Kind: KindSessionOpen, Producer: session7, Window: 16}, "18000000 08 00 0000  0700000000000080 10000000 00000000"},
	{Item{Kind: KindNamedCreate, Producer: 3, Name: []byte("p")}, "11000000 09 00 0000  0300000000000000 70 00000000000000"},
	{Item{Kind: KindProducerRemove, Producer: 3}, "10000000 0a 00 0000  0300000000000000"},
	{Item{Kind: KindProducerExpired, Producer: session7}, "10000000 0b 00 0000  0700000000000080"},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// encodeControl encodes it over bytes that hold something else.
func encodeControl(it *Item) []byte {
	dst := bytes.Repeat([]byte{0xee}, align8(it.controlBytes()))
	it.putControl(dst)
	return dst
}

type placedEntry struct {
	Entry
	offset    uint64
	timestamp int64
}

// encodeBatch encodes a batch that continues no other.
func encodeBatch(b *Batch, entries ...placedEntry) []byte {
	if b.Producer != 0 {
		return encodeBatchAs(flagProducer, b, entries...)
	}
	return encodeBatchAs(0, b, entries...)
}

func encodeBatchAs(flags uint8, b *Batch, entries ...placedEntry) []byte {
	size := itemHeaderBytes
	if flags&flagLone != 0 {
		size -= recordFixedBytes - loneFixedBytes
	}
	if flags&flagProducer != 0 {
		size += producerBytes
	}
	b.Entries = nil
	for i := range entries {
		b.Entries = append(b.Entries, entries[i].Entry)
		size += recordBytes(&entries[i].Entry)
	}
	dst := bytes.Repeat([]byte{0xee}, size)
	if flags&flagLone != 0 {
		putLone(dst, b, flags, entries[0].offset, entries[0].timestamp)
		return dst
	}
	at := putBatchStart(dst, b, flags)
	for i := range entries {
		at += putRecord(dst[at:], &entries[i].Entry, entries[i].offset, entries[i].timestamp)
	}
	return dst
}

func decodeOne(t testing.TB, body []byte, framePosition uint64) *Item {
	t.Helper()
	var r ItemReader
	r.Reset(body, framePosition)
	it := r.Next()
	if it == nil {
		t.Fatalf("no item: %v", r.Err())
	}
	if r.Next() != nil || r.Err() != nil {
		t.Fatalf("more than one item, or %v", r.Err())
	}
	return it
}

func TestControlItemsHaveTheStatedBytes(t *testing.T) {
	for _, c := range controlItems {
		want := unhex(t, c.hex)
		if got := encodeControl(&c.item); !bytes.Equal(got, want) {
			t.Errorf("%v:\n got %x\nwant %x", c.item.Kind, got, want)
		}
		got := decodeOne(t, want, 4096)
		if got.Position != 4096+128 || got.Bytes != len(want) {
			t.Errorf("%v at %d, %d bytes, want 4224, %d", c.item.Kind, got.Position, got.Bytes, len(want))
		}
		if again := encodeControl(got); !bytes.Equal(again, want) {
			t.Errorf("%v decoded and encoded again: %x, want %x", c.item.Kind, again, want)
		}
	}
}

func TestBatchHasTheStatedBytes(t *testing.T) {
	headers := unhex(t, "0100 0100 01000000 6b 76") // k: v
	body := encodeBatch(&Batch{Producer: session7, Sequence: 2, Acked: 1},
		placedEntry{Entry: Entry{Stream: 5, Payload: []byte("hello"), Headers: headers}, offset: 8, timestamp: 1},
		placedEntry{Entry: Entry{Stream: 6}, offset: 0, timestamp: 2})
	first := unhex(t, "0500000000000000 0800000000000000 0100000000000000 0a000000 05000000"+
		"0100 0100 01000000 6b76 68656c6c6f")
	second := unhex(t, "0600000000000000 0000000000000000 0200000000000000 00000000 00000000")
	want := unhex(t, "80000000 01 01 0200  0700000000000080 0200000000000000 0100000000000000")
	want = binary.LittleEndian.AppendUint64(want, xxhash.Sum64(first))
	want = append(append(want, first...), 0)
	want = binary.LittleEndian.AppendUint64(want, xxhash.Sum64(second))
	want = append(want, second...)
	if !bytes.Equal(body, want) {
		t.Fatalf("batch:\n got %x\nwant %x", body, want)
	}

	it := decodeOne(t, body, 0)
	if it.Kind != KindBatch || it.Producer != session7 || it.Sequence != 2 || it.Acked != 1 || it.Count != 2 {
		t.Fatalf("batch decoded as %+v", it)
	}
	var r Record
	if !it.NextRecord(&r) || r.Stream != 5 || r.Offset != 8 || r.Timestamp != 1 ||
		!bytes.Equal(r.Headers, headers) || string(r.Payload) != "hello" || !r.Verify() {
		t.Errorf("record 0 decoded as %+v", r)
	}
	if !it.NextRecord(&r) || r.Stream != 6 || len(r.Payload) != 0 || !r.Verify() {
		t.Errorf("record 1 decoded as %+v", r)
	}
	if it.NextRecord(&r) {
		t.Error("a third record")
	}
	if it.Rewind(); !it.NextRecord(&r) || r.Stream != 5 {
		t.Error("Rewind does not lead back to record 0")
	}
}

func TestLoneBatchHasTheStatedBytes(t *testing.T) {
	record := placedEntry{Entry: Entry{Stream: 0x11223344, Payload: []byte("hello")}, offset: 0x8877_00000009, timestamp: 0x0203}
	inFull := unhex(t, "4433221100000000 0900000077880000 0302000000000000 00000000 05000000 68656c6c6f")
	sum := hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, xxhash.Sum64(inFull)))
	lone := sum + "44332211 09000000 0302000000000000 68656c6c6f 000000"
	of := Batch{Producer: session7, Sequence: 2, Acked: 1}
	whole := "3d000000 01 05 7788 0700000000000080 0200000000000000 0100000000000000" + lone
	for _, c := range []struct {
		flags uint8
		batch Batch
		part  producerPart
		hex   string
	}{
		{flagLone, Batch{}, producerPart{}, "25000000 01 04 7788" + lone},
		{flagLone | flagProducer, of, producerPart{session7, 2, 1}, whole},
		{flagLone | flagContinued, Batch{}, producerPart{session7, 3, 1}, "25000000 01 06 7788" + lone},
	} {
		want := unhex(t, c.hex)
		if got := encodeBatchAs(c.flags, &c.batch, record); !bytes.Equal(got, want) {
			t.Errorf("flags %d:\n got %x\nwant %x", c.flags, got, want)
		}
		var items ItemReader
		if items.Reset(want, 0); c.flags&flagContinued != 0 {
			items.Reset(append(unhex(t, whole), want...), 0)
			items.Next()
		}
		it := items.Next()
		if it == nil || it.Count != 1 || it.Bytes != len(want) || (producerPart{it.Producer, it.Sequence, it.Acked}) != c.part {
			t.Fatalf("flags %d decoded as %+v, %v", c.flags, it, items.Err())
		}
		for range 2 {
			var r Record
			if !it.NextRecord(&r) || r.Stream != record.Stream || r.Offset != record.offset || r.Timestamp != record.timestamp ||
				len(r.Headers) != 0 || string(r.Payload) != "hello" || !r.Verify() {
				t.Errorf("flags %d: its record decoded as %+v", c.flags, r)
			}
			if it.NextRecord(&r) {
				t.Errorf("flags %d: a second record", c.flags)
			}
			it.Rewind()
		}
	}
}

// A record has one checksum, whichever form it has.
func TestBothFormsOfARecordHaveOneChecksum(t *testing.T) {
	for n := range 100 {
		record := placedEntry{Entry: Entry{Stream: ID(n * n * n * 1000), Payload: bytes.Repeat([]byte{byte(n)}, n)}, offset: uint64(n) << 41, timestamp: int64(n) << 50}
		var r [2]Record
		for i, flags := range []uint8{0, flagLone} {
			body := encodeBatchAs(flags, &Batch{}, record)
			if it := decodeOne(t, body, 0); !it.NextRecord(&r[i]) || !r[i].Verify() {
				t.Fatalf("flags %d: %+v", flags, r[i])
			}
			r[i].covered, r[i].Headers = nil, nil
		}
		if !reflect.DeepEqual(r[0], r[1]) {
			t.Fatalf("in the first form %+v, lone %+v", r[0], r[1])
		}
	}
}

func TestEveryFlippedBitOfARecordFailsItsChecksum(t *testing.T) {
	record := placedEntry{Entry: Entry{Stream: 5, Payload: []byte("payload of 19 bytes")}, offset: 8, timestamp: 1}
	flips(t, encodeBatch(&Batch{}, record), itemHeaderBytes, itemHeaderBytes+recordFixedBytes+19)
	flips(t, encodeBatchAs(flagLone, &Batch{}, record), itemHeaderBytes-2, itemHeaderBytes+loneFixedBytes+19)
}

func flips(t *testing.T, body []byte, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		for bit := range 8 {
			body[i] ^= 1 << bit
			var r ItemReader
			r.Reset(body, 0)
			if it := r.Next(); it != nil {
				var rec Record
				it.NextRecord(&rec)
				if rec.Verify() {
					t.Errorf("byte %d bit %d flipped and the checksum still holds", i, bit)
				}
			}
			body[i] ^= 1 << bit
		}
	}
}

func TestItemsRefusesWhatIsNotWellFormed(t *testing.T) {
	batch := "38000000 01 00 0100  0000000000000000 0100000000000000 0000000000000000 0000000000000000 00000000 01000000 61 00000000000000"
	continued := strings.Replace(batch, "01 00 0100", "01 02 0100", 1)
	ofProducer := strings.Replace("50"+batch[2:], "01 00 0100", "01 01 0100 0700000000000080 0200000000000000 0100000000000000", 1)
	for _, c := range []struct{ name, hex, says string }{
		{"short header", "10000000 04 00 00", "shorter than an item header"},
		{"length below the header", "07000000 04 00 0000", "length out of range"},
		{"length beyond the body", "11000000 04 00 0000 0200000000000000", "length out of range"},
		{"length beyond everything", "ffffffff 04 00 0000 0200000000000000", "length out of range"},
		{"padding cut off", "11000000 07 00 0000 0200000000000000 74", "length out of range"},
		{"padding not zero", "11000000 07 00 0000 0200000000000000 74 00000000000001", "padding is not zero"},
		{"kind 0", "10000000 00 00 0000 0200000000000000", "unknown kind"},
		{"kind 12", "10000000 0c 00 0000 0200000000000000", "unknown kind"},
		{"flags on a seal", "10000000 04 01 0000 0200000000000000", "flags or count"},
		{"count on a seal", "10000000 04 00 0100 0200000000000000", "flags or count"},
		{"seal of stream 0", "10000000 04 00 0000 0000000000000000", "stream id 0"},
		{"seal without an id", "08000000 04 00 0000", "wrong length"},
		{"seal with more", "18000000 04 00 0000 0200000000000000 0000000000000000", "wrong length"},
		{"create without a name", "18000000 03 00 0000 0200000000000000 0000000000000000", "name length"},
		{"create without a time", "10000000 03 00 0000 0200000000000000", "wrong length"},
		{"trim without first", "10000000 05 00 0000 0200000000000000", "wrong length"},
		{"token of 65 bytes", "51000000 07 00 0000 0200000000000000" + strings.Repeat("61", 65) + "00000000000000", "token longer"},
		{"session open of a named id", "18000000 08 00 0000 0700000000000000 10000000 00000000", "producer id"},
		{"window 0", "18000000 08 00 0000 0700000000000080 00000000 00000000", "window"},
		{"window 8193", "18000000 08 00 0000 0700000000000080 01200000 00000000", "window"},
		{"named create of a session id", "11000000 09 00 0000 0300000000000080 70 00000000000000", "producer id"},
		{"remove of producer 0", "10000000 0a 00 0000 0000000000000000", "producer id"},
		{"refusal of a named producer", "30000000 02 00 0000 0700000000000000 0900000000000000 0400000000000000 0000000000000000 0400 0300 00000000", "producer part"},
		{"refusal acked beyond itself", "30000000 02 00 0000 0700000000000080 0900000000000000 0a00000000000000 0000000000000000 0400 0300 00000000", "producer part"},
		{"refusal of code 0", "30000000 02 00 0000 0700000000000080 0900000000000000 0400000000000000 0000000000000000 0000 0300 00000000", "code or entry"},
		{"refusal of code 6", "30000000 02 00 0000 0700000000000080 0900000000000000 0400000000000000 0000000000000000 0600 0300 00000000", "code or entry"},
		{"refusal of entry 4096", "30000000 02 00 0000 0700000000000080 0900000000000000 0400000000000000 0000000000000000 0400 0010 00000000", "code or entry"},
		{"batch of no record", "08000000 01 00 0000", "record count"},
		{"batch of 4097 records", strings.Replace(batch, "0100 ", "0110 ", 1), "record count"},
		{"batch with flag 8", strings.Replace(batch, "01 00 0100", "01 08 0100", 1), "unknown flags"},
		{"batch with flags 1, 2 and 4", strings.Replace(batch, "01 00 0100", "01 07 0100", 1), "unknown flags"},
		{"lone without its record", "08000000 01 04 0000", "inside a record"},
		{"lone and cut off", "1f000000 01 04 0000 0000000000000000 0100000000000000 00000000000000 00", "inside a record"},
		{"lone and cut off, with its producer", "2b000000 01 05 0000 0100000000000000 0100000000000000 0000000000000000 0000000000000000 0000000000000000", "inside a record"},
		{"lone, its producer cut off", "20000000 01 05 0000 0000000000000000 0100000000000000 0000000000000000", "producer part"},
		{"lone, padding not zero", "21000000 01 04 0000 0000000000000000 0100000000000000 0000000000000000 61 00000000000001", "padding is not zero"},
		{"lone and continued as the first of its frame", "20000000 01 06 0000 0000000000000000 0100000000000000 0000000000000000", "continues no batch"},
		{"batch with flags 1 and 2", strings.Replace(batch, "01 00 0100", "01 03 0100", 1), "unknown flags"},
		{"continued as the first of its frame", continued, "continues no batch"},
		{"continued behind a batch without a producer", batch + continued, "continues no batch"},
		{"continued behind another item", ofProducer + "10000000 04 00 0000 0200000000000000" + continued, "continues no batch"},
		{"continued behind the opening of its producer", "18000000 08 00 0000 0700000000000080 10000000 00000000" + continued, "continues no batch"},
		{"continued behind a refusal", controlItems[0].hex + continued, "continues no batch"},
		{"continued behind the last sequence", strings.Replace(ofProducer, "0200000000000000", "ffffffffffffffff", 1) + continued, "continues no batch"},
		{"continued behind one that continues nothing", batch + continued + continued, "byte 56 of 168"},
		{"batch of one record more", strings.Replace(batch, "01 00 0100", "01 00 0200", 1), "inside a record"},
		{"batch with its producer cut off", "08000000 01 01 0100", "inside its producer part"},
		{"batch with producer 0", "20000000 01 01 0100 0000000000000000 0100000000000000 0000000000000000", "producer part"},
		{"batch with sequence 0", "20000000 01 01 0100 0100000000000000 0000000000000000 0000000000000000", "producer part"},
		{"record longer than its batch", strings.Replace(batch, "01000000 61", "09000000 61", 1), "inside a record"},
		{"record of 4 GiB twice", strings.Replace(batch, "00000000 01000000 61", "ffffffff ffffffff 61", 1), "inside a record"},
		{"record padding not zero", strings.Replace(batch, "61 00", "61 01", 1), "padding of a record"},
		{"record padding outside of its batch", "31" + batch[2:], "inside a record"},
		{"bytes after the last record", "40" + batch[2:] + "0000000000000000", "follow the last record"},
	} {
		err := Items(unhex(t, c.hex), 0, func(*Item) error { return nil })
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
	lone := "20000000 01 04 0000 0000000000000000 0100000000000000 0000000000000000"
	for _, sound := range []string{batch, ofProducer + continued + continued + batch, lone, ofProducer + strings.Replace(lone, "01 04", "01 06", 1) + continued} {
		if err := Items(unhex(t, sound), 0, func(*Item) error { return nil }); err != nil {
			t.Errorf("batches that the cases are made of: %v", err)
		}
	}
}

// A frame does not continue the one before it, although the same reader reads both.
func TestItemReaderForgetsTheFrameBefore(t *testing.T) {
	record := placedEntry{Entry: Entry{Stream: 1}}
	frame := encodeBatch(&Batch{Producer: session7, Sequence: 2}, record)
	next := encodeBatchAs(flagContinued, &Batch{}, record)
	var r ItemReader
	r.Reset(frame, 0)
	for range 3 { // with the end of the frame seen, or not yet
		if it := r.Next(); it != nil && it.Producer != session7 {
			t.Fatalf("%+v", it)
		}
		before := r
		r.Reset(next, 4096)
		if it := r.Next(); it != nil || !errors.Is(r.Err(), ErrDamaged) {
			t.Fatalf("%+v, %v", it, r.Err())
		}
		r = before
	}
}

func TestItemsStopsAtTheVisitorsError(t *testing.T) {
	body := append(encodeControl(&Item{Kind: KindStreamSeal, Stream: 1}), encodeControl(&Item{Kind: KindStreamSeal, Stream: 2})...)
	stop, seen := errors.New("stop"), 0
	err := Items(body, 0, func(it *Item) error { seen++; return stop })
	if !errors.Is(err, stop) || seen != 1 {
		t.Errorf("visited %d items and got %v", seen, err)
	}
}

func TestItemReaderDoesNotAllocate(t *testing.T) {
	body := encodeBatch(&Batch{}, placedEntry{Entry: Entry{Stream: 1, Payload: []byte("a")}}, placedEntry{Entry: Entry{Stream: 2}})
	for i := range controlItems {
		body = append(body, encodeControl(&controlItems[i].item)...)
	}
	var r ItemReader
	var rec Record
	if n := testing.AllocsPerRun(100, func() {
		r.Reset(body, 0)
		for it := r.Next(); it != nil; it = r.Next() {
			for it.NextRecord(&rec) {
				rec.Verify()
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations per frame", n)
	}
}

// FuzzItems decodes any bytes. What is accepted must be exactly what the encoder
// writes for it, and lie inside the body.
func FuzzItems(f *testing.F) {
	var all []byte
	for _, c := range controlItems {
		f.Add(unhex(f, c.hex))
		all = append(all, unhex(f, c.hex)...)
	}
	f.Add(all)
	f.Add(encodeBatch(&Batch{Producer: session7, Sequence: 2}, placedEntry{Entry: Entry{Stream: 1, Payload: []byte("abc"), Headers: []byte{1}}}, placedEntry{Entry: Entry{Stream: 2}}))
	record := placedEntry{Entry: Entry{Stream: 1, Payload: []byte("abc")}}
	row := encodeBatch(&Batch{Producer: session7, Sequence: 2, Acked: 1}, record)
	row = append(row, encodeBatchAs(flagContinued, &Batch{}, record)...)
	row = append(row, encodeBatchAs(flagContinued, &Batch{}, record, record)...)
	f.Add(row)
	f.Add(append(encodeBatchAs(flagLone|flagProducer, &Batch{Producer: session7, Sequence: 2}, record), encodeBatchAs(flagLone|flagContinued, &Batch{}, record)...))
	f.Add(append(encodeBatchAs(flagLone, &Batch{}, record), row...))
	f.Add(append(append(slices.Clone(row), encodeBatch(&Batch{}, record)...), row...))
	f.Fuzz(func(t *testing.T, body []byte) {
		position := uint64(ringHeader)
		var before *Item // a batch of a producer
		err := Items(body, 0, func(it *Item) error {
			if it.Position != position {
				t.Fatalf("item at %d, want %d", it.Position, position)
			}
			position += uint64(it.Bytes)
			original := body[it.Position-ringHeader:][:it.Bytes]
			if it.Kind != KindBatch {
				if again := encodeControl(it); !bytes.Equal(again, original) {
					t.Fatalf("%v encoded again:\n got %x\nfrom %x", it.Kind, again, original)
				}
				before = nil
				return nil
			}
			checkBatchAgain(t, it, before, original)
			if before = nil; it.Producer != 0 {
				kept := *it
				before = &kept
			}
			return nil
		})
		if err == nil && position-ringHeader != uint64(len(body)) {
			t.Fatalf("%d of %d bytes decoded without an error", position-ringHeader, len(body))
		}
	})
}

const ringHeader = 128

func checkBatchAgain(t *testing.T, it, before *Item, original []byte) {
	t.Helper()
	flags := original[5]
	if part := flags &^ flagLone; part == flagContinued && (before == nil || it.Producer != before.Producer || it.Sequence != before.Sequence+1 || it.Acked != before.Acked) ||
		(it.Producer == 0) != (part == 0) {
		t.Fatalf("a batch with flags %d behind %+v has the producer part of %+v", flags, before, it)
	}
	b := Batch{Producer: it.Producer, Sequence: it.Sequence, Acked: it.Acked}
	var entries []placedEntry
	var r Record
	intact := true
	for it.NextRecord(&r) {
		intact = intact && r.Verify()
		entries = append(entries, placedEntry{Entry{Stream: r.Stream, Payload: r.Payload, Headers: r.Headers}, r.Offset, r.Timestamp})
	}
	if len(entries) != it.Count {
		t.Fatalf("%d records of %d", len(entries), it.Count)
	}
	if again := encodeBatchAs(flags, &b, entries...); intact && !bytes.Equal(again, original) {
		t.Fatalf("batch encoded again:\n got %x\nfrom %x", again, original)
	}
}
