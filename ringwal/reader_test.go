package ringwal_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// pythonReader runs docs/format_reader.py, which knows nothing but docs/format.md, on
// the bytes of a disk. It returns its lines and its exit code.
func pythonReader(t *testing.T, w *world) (lines []map[string]any, exit int) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: the reader in docs/ was not run")
	}
	image := make([]byte, w.view.SizeBytes())
	w.disk.Peek(image, 0)
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "../docs/format_reader.py", path)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) || stderr.Len() > 0 {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	scanner := bufio.NewScanner(bytes.NewReader(out))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		d := json.NewDecoder(bytes.NewReader(scanner.Bytes()))
		d.UseNumber()
		var line map[string]any
		if err := d.Decode(&line); err != nil {
			t.Fatalf("%v: %s", err, scanner.Text())
		}
		lines = append(lines, line)
	}
	return lines, cmd.ProcessState.ExitCode()
}

// goReader is what the reader in docs/ should print of frames, items and records.
func goReader(t *testing.T, w *world) (lines []string) {
	t.Helper()
	sbs, err := ringwal.ReadSuperblocks(w.view)
	w.must(err)
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	r, err := ringwal.Recover(w.view, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		add("frame %s %d %d epoch %d durable %d records %d sum %d", f.Kind, f.Position, f.LengthBytes, f.Epoch, f.Durable, f.Records, f.Sum)
		if f.Kind != ringwal.FrameData {
			return nil
		}
		return stream.Items(f.Body, f.Position, func(it *stream.Item) error {
			add("item %s %d of %d: %d, %d", it.Kind, it.Position, it.Producer, it.Sequence, it.Acked)
			var r stream.Record
			for it.Kind == stream.KindBatch && it.NextRecord(&r) {
				payload := string(r.Payload)
				if !utf8.ValidString(payload) {
					payload = base64.StdEncoding.EncodeToString(r.Payload)
				}
				add("record %d of %d at %d, %d ns, %d bytes of headers: %s", r.Offset, r.Stream, it.Position, r.Timestamp, len(r.Headers), payload)
			}
			return nil
		})
	}})
	w.must(err)
	add("end %d", r.End)
	return lines
}

// told is a line of the reader in docs/ in the words of goReader.
func told(line map[string]any) string {
	if kind, ok := line["frame"]; ok {
		return fmt.Sprintf("frame %s %v %v epoch %v durable %v records %v sum %v", kind, line["position"], line["length"],
			line["epoch"], line["durable"], line["records"], line["sum"])
	}
	if kind, ok := line["item"]; ok {
		number := func(names ...string) any {
			for _, name := range names {
				if v, ok := line[name]; ok {
					return v
				}
			}
			return 0
		}
		return fmt.Sprintf("item %s %v of %v: %v, %v", kind, line["position"], number("producer", "producer_id"), number("sequence"), number("acked"))
	}
	if offset, ok := line["record"]; ok {
		headers := 0
		for i, h := range line["headers"].([]any) {
			h := h.(map[string]any)
			value, text := h["value"].(string)
			if !text {
				b, _ := base64.StdEncoding.DecodeString(h["value_base64"].(string))
				value = string(b)
			}
			headers += 6 + len(h["key"].(string)) + len(value)
			if i == 0 {
				headers += 2
			}
		}
		payload, text := line["payload"]
		if !text {
			payload = line["payload_base64"]
		}
		return fmt.Sprintf("record %v of %v at %v, %v ns, %d bytes of headers: %s", offset, line["stream_id"], line["position"],
			line["timestamp_ns"], headers, payload)
	}
	if end, ok := line["end"]; ok {
		return fmt.Sprintf("end %v", end)
	}
	return ""
}

func TestReaderInDocsReadsRealLogs(t *testing.T) {
	for name, make := range map[string]func(testing.TB) *world{"small": smallLog, "rich": richLog} {
		t.Run(name, func(t *testing.T) {
			w := make(t)
			lines, exit := pythonReader(t, w)
			if exit != 0 {
				t.Fatalf("exit %d: %v", exit, lines[len(lines)-1])
			}
			var got []string
			kinds := map[string]bool{}
			for i, line := range lines {
				if i < ringwal.SlotCount {
					if line["state"] != "valid" || line["node"] != "orders-1" {
						t.Errorf("slot %d: %v", i, line)
					}
					continue
				}
				got = append(got, told(line))
				kinds[strings.Fields(told(line))[0]+" "+fmt.Sprint(line["frame"], line["item"])] = true
			}
			want := goReader(t, w)
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || got[i] != want[i] {
					t.Fatalf("line %d of %d and %d:\n%.300s\n%.300s", i, len(got), len(want), got[min(i, len(got)-1)], want[min(i, len(want)-1)])
				}
			}
			// All kinds of frames, all of items but an expired producer, records and the end.
			if name == "rich" && len(kinds) != 4+10+1+1 {
				t.Fatalf("the rich log has %d of them: %v", len(kinds), kinds)
			}
		})
	}
}

// The two readers agree about the flags of batches that nobody writes.
func TestReaderInDocsRefusesFlags(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: the reader in docs/ was not run")
	}
	const lone = "0000000000000000" + "0100000000000000" + "0000000000000000"
	const whole = "38000000" + "01" + "05" + "0000" + "0700000000000080" + "0200000000000000" + "0100000000000000" + lone
	const last = "38000000" + "01" + "05" + "0000" + "0700000000000080" + "ffffffffffffffff" + "0100000000000000" + lone
	const continued = "20000000" + "01" + "06" + "0000" + lone
	const without = "20000000" + "01" + "04" + "0000" + lone
	const seal = "10000000" + "04" + "00" + "0000" + "0100000000000000"
	bodies := []string{whole + continued + continued, without + whole, continued, without + continued, whole + seal + continued,
		whole + without + continued, last + continued, strings.Replace(whole, "0105", "0107", 1), strings.Replace(whole, "0105", "010d", 1)}
	cmd := exec.Command(python, append([]string{"-c", `
import sys
sys.path.insert(0, "../docs")
import format_reader as reader
reader.xxh64 = lambda data: 0  # flags are what this is about
for body in sys.argv[1:]:
    try:
        print(*(line["sequence"] for line in reader.items(bytes.fromhex(body), 128) if "sequence" in line))
    except reader.Damage:
        print("damage")
`}, bodies...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, text := range bodies {
		body, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		var sequences []string
		err = stream.Items(body, 0, func(it *stream.Item) error {
			if it.Producer != 0 {
				sequences = append(sequences, fmt.Sprint(it.Sequence))
			}
			return nil
		})
		want := strings.Join(sequences, " ")
		if err != nil {
			want = "damage"
		}
		if i >= len(got) || got[i] != want || (want == "damage") != (i >= 2) {
			t.Errorf("body %d: the reader in docs/ says %q, the other one %s (%v)", i, got, want, err)
		}
	}
}

// The two readers agree about damage too: whether there is any, and where.
func TestReaderInDocsFindsDamage(t *testing.T) {
	w := richLog(t)
	lines, exit := pythonReader(t, w)
	if exit != 0 {
		t.Fatal(lines)
	}
	sbs, err := ringwal.ReadSuperblocks(w.view)
	w.must(err)
	frames, checked := 0, 0
	for _, line := range lines {
		if line["frame"] == nil {
			continue
		}
		if frames++; frames%4 != 0 {
			continue
		}
		position, err := strconv.ParseUint(line["position"].(json.Number).String(), 10, 64)
		w.must(err)
		at := sbs.Newest.DeviceOffset(position) + 100
		w.disk.Rot(at, 8)
		_, err = ringwal.Recover(w.view, sbs, ringwal.Visitor{})
		var damage *ringwal.DamageError
		if !errors.As(err, &damage) {
			t.Fatalf("frame at %d: %v", position, err)
		}
		told, exit := pythonReader(t, w)
		last := told[len(told)-1]
		if exit != 11 || fmt.Sprint(last["from"], " ", last["to"]) != fmt.Sprint(damage.From, " ", damage.To) {
			t.Fatalf("exit %d, %v, want [%d, %d)", exit, last, damage.From, damage.To)
		}
		w.disk.Rot(at, 8)
		checked++
	}
	if checked < 5 {
		t.Fatalf("only %d frames", checked)
	}

	blank := &world{t: t, disk: w.disk, view: w.view}
	zero := make([]byte, ringwal.RingStart)
	w.disk.Poke(zero, 0)
	if lines, exit := pythonReader(t, blank); exit != 1 || lines[len(lines)-1]["refused"] != "not a walsidecar log" {
		t.Fatalf("exit %d: %v", exit, lines)
	}
}
