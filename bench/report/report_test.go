package report

import (
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/machine"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 9, 2}, 3}} {
		given := append([]float64(nil), tt.of...)
		if got := Median(tt.of); got != tt.want {
			t.Errorf("the median of %v is %v, not %v", tt.of, tt.want, got)
		}
		if !reflect.DeepEqual(given, tt.of) {
			t.Errorf("the values were put into another order: %v", tt.of)
		}
	}
}

func TestNumbersHaveThreeDigitsThatCount(t *testing.T) {
	for v, want := range map[float64]string{0: "–", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234: "1234", 12345: "12.3 k", 123456: "123 k", 1234567: "1.23 M"} {
		if got := Number(v); got != want {
			t.Errorf("%v is written %q, not %q", v, got, want)
		}
	}
}

func run(system string, c drive.Cell, repeat int, rate, p50 float64) drive.Result {
	return drive.Result{System: system, Store: "ram", Cell: c, Repeat: repeat, Seconds: 1, AppendsPerSecond: rate,
		Counted: drive.Counted{Appends: uint64(rate), P50: p50, P99: 2 * p50, P999: 3 * p50}, CPU: 1e6 / rate, DeviceBytes: 1.04}
}

// example has two repeats of three systems in two cells, one run failed.
func example() *Results {
	failed := run(uds, many, 2, 1, 1)
	failed.Error = "it took too long"
	return &Results{
		About: machine.About{CPU: "a processor", Cores: 2, Kernel: "6.18", Go: "go1.26", Date: "today", Command: "bench run", Commit: "abc", Versions: map[string]string{"tidwall/wal": "1.2.1"}},
		Runs: []drive.Result{
			run(shm, many, 1, 100_000, 900), run(simple, many, 1, 400_000, 200), run("raft-wal+gc", many, 1, 90_000, 1000), run("pebble", many, 1, 50_000, 2000), run("redis", many, 1, 20_000, 4000),
			run(shm, many, 2, 300_000, 500), run(simple, many, 2, 600_000, 100), run("raft-wal+gc", many, 2, 110_000, 900), run("pebble", many, 2, 70_000, 2000), run("redis", many, 2, 40_000, 4000),
			run(shm, alone, 1, 10_000, 100), run(simple, alone, 1, 20_000, 50), run("redis", alone, 1, 5_000, 200), run("door-shm", alone, 1, 50_000, 20), failed,
		},
		Fio: []Fio{{Store: "ram", Engine: "psync", Depth: 1, Bytes: 4096, WritesPerSecond: 20_000, P50: 40}},
	}
}

func TestTheTablesHoldMediansAndRatios(t *testing.T) {
	text := example().Markdown("plots")
	for _, want := range []string{
		"a processor, 2 cores", "tidwall/wal 1.2.1",
		"| system | 1 KiB, 1 producer | 1 KiB, 256 producers |",
		"| walsidecar-shm | 10.0 k | 200 k |", "| raft-wal+gc | – | 100 k |", "| best library |  | raft-wal+gc |",
		"| shm / best library | – | 2.00 |", "| shm / rawgo | 0.50 | 0.40 |",
		"| 256 producers, 1 KiB, shm | 200 k/s | 1.3 × raft-wal+gc 100 k = 130 k | met | 0.80 × rawgo 500 k = 400 k | **missed**, 0.50 × |",
		"3 × redis 30.0 k = 90.0 k | met | 6 × = 180 k | met |",
		"| 1 producer, 1 KiB, p50, against servers | 100 µs | redis 200 µs | met | half of its addition to rawgo's = 125 µs | met |",
		"| 1 producer, 1 KiB, p50, shm | 100 µs, rawgo's +50.0 | rawgo's 50.0 + the door's 20.0 + 10 µs = 80.0 | **missed**, 1.25 × |",
		"| device bytes per payload byte, 256 producers | 1.04 | ≤ 1.10 | met | ≤ 1.05 | met |",
		"100 k to 300 k", "![Throughput against latency", "(plots/ram-latency.svg)", "Failed: ram, walsidecar-uds, 1 KiB, 256 producers: it took too long",
		"| psync | 1 | 4096 | 20.0 k | 81.9 | 40.0 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Each line of a table has as many fields as its head.
func TestTablesAreWhole(t *testing.T) {
	width := 0
	for line := range strings.Lines(example().Markdown("plots")) {
		fields := strings.Count(line, "|")
		switch {
		case fields == 0:
			width = 0
		case width == 0:
			width = fields
		case fields != width:
			t.Errorf("%d fields, the head has %d: %s", fields-1, width-1, line)
		}
	}
}

// Where there are quiet runs, noisy ones do not count; where there are none, the numbers
// are marked.
func TestNoisyRunsCountOnlyWhereThereAreNoQuietOnes(t *testing.T) {
	r := example()
	if strings.Contains(r.Markdown("plots"), "little weight") {
		t.Error("a quiet machine is called busy")
	}
	for i := range r.Runs {
		if r.Runs[i].System != shm || r.Runs[i].System == shm && r.Runs[i].Repeat == 1 {
			r.Runs[i].ForeignCores = 1
		}
	}
	text := r.Markdown("plots")
	for _, want := range []string{"| walsidecar-shm | ~10.0 k | 300 k |", "| rawgo | ~20.0 k | ~500 k |", "1.00 in the noisiest", "Against the targets, on a machine that others kept busy"} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q\n%s", want, text)
		}
	}
}

func TestTheLimitByFio(t *testing.T) {
	rows := []Fio{
		{Store: "ram", Engine: "psync", Depth: 1, Bytes: 4096, WritesPerSecond: 10_000},
		{Store: "ram", Engine: "psync", Depth: 1, Bytes: 16384, WritesPerSecond: 5_000},
		{Store: "ram", Engine: "io_uring", Depth: 4, Bytes: 4096, WritesPerSecond: 30_000},
		{Store: "file", Engine: "psync", Depth: 1, Bytes: 4096, WritesPerSecond: 1},
	}
	for _, tt := range []struct {
		cell drive.Cell
		want float64
	}{
		{alone, 10_000}, // one record, whatever fits into the write
		{drive.Cell{Size: 1024, Producers: 4, InFlight: 1}, 40_000},
		{drive.Cell{Size: 1024, Producers: 16, InFlight: 1}, 120_000}, // 16 KiB in flight: 4 × 4 KiB
		{drive.Cell{Size: 1024, Producers: 8, InFlight: 1}, 8 / (1/10_000.0 + (1/5_000.0-1/10_000.0)/3)},
	} {
		if got := fioLimit(rows, "ram", tt.cell); math.Abs(got-tt.want) > 1 {
			t.Errorf("%v: %.0f, it is %.0f", tt.cell, got, tt.want)
		}
	}
	if got := fioLimit(nil, "ram", alone); got != 0 {
		t.Errorf("%v without fio", got)
	}
}

func TestResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	want := example()
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nis not\n%+v", got, want)
	}
}

func TestOnlyWhatIsBetweenTheMarkersIsReplaced(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const before, after = "# A page\n<!-- bench cells begin -->\n", "<!-- bench cells end -->\nMore.\n"
	if err := os.WriteFile(page, []byte(before+"old\n\nold\n"+after), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteBetween(page, "cells", "\nnew\n"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(page); string(got) != before+"new\n"+after {
		t.Errorf("the page is\n%s", got)
	}
	if err := WriteBetween(page, "others", "new"); err == nil {
		t.Error("a page without the markers was written")
	}
}

func TestPlotsAreXMLAndHoldEverySystem(t *testing.T) {
	dir := t.TempDir()
	if err := example().Plots(dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range plotNames {
		text, err := os.ReadFile(filepath.Join(dir, plotFile("ram", p.name)))
		if err != nil {
			t.Fatal(err)
		}
		for decoder := xml.NewDecoder(strings.NewReader(string(text))); ; {
			if _, err := decoder.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
		}
		if strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
			t.Errorf("%s has a place that is no number", p.name)
		}
		if p.name != "percentiles" && !strings.Contains(string(text), ">redis<") {
			t.Errorf("%s lacks a system", p.name)
		}
	}
}
