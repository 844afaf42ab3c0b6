package report

import (
	"reflect"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/bench/scenario"
	"github.com/walsidecar/walsidecar/load"
)

func moreExample() *Results {
	appends := func(p999, rawP999 float64) load.Report {
		return load.Report{Profile: "gp3", Size: 1024, Producer: 256, InFlight: 16, Rate: 20_000, AppendsPerSecond: 19_000, MBPerSecond: 19.5, P50: 500, P99: 900, P999: p999,
			RawReport: &load.RawReport{FrameBytes: 8192, P50: 100, P99: 200, P999: rawP999, MBPerSecond: 125}}
	}
	return &Results{
		Profiles: []Profile{{Store: "ram", Report: appends(1000, 300)}},
		Steady:   []scenario.Steady{{Store: "ram", Peak: 27_000, Report: appends(1500, 300)}, {Store: "file", Peak: 27_000, Report: appends(1700, 300)}},
		Recovery: []scenario.Recovery{
			{Store: "ram", LogBytes: 64 << 20, Records: 65536, ReadySeconds: 0.2, RecoverySeconds: 0.1, MBPerSecond: 700, ReadMBPerSecond: 1000},
			{Store: "ram", LogBytes: 65 << 20, Records: 65536, ReadySeconds: 0.4, RecoverySeconds: 0.3, MBPerSecond: 900, ReadMBPerSecond: 1000},
		},
		Takeover: []scenario.Takeover{{Store: "ram", Bytes: 64 << 20, Records: 65536, Seconds: 2, MBPerSecond: 33.5}},
		Memory:   []scenario.Memory{{What: "streams", Bytes: 10 << 20}, {What: "streams", Count: 1024, Bytes: 11 << 20, Each: 1024}},
		Together: []scenario.Together{{Store: "ram", With: "uploads", Report: appends(2000, 300), FollowMBPerSecond: 40}},
	}
}

func TestTheTablesOfMore(t *testing.T) {
	text := moreExample().More()
	for _, want := range []string{
		"| gp3 | 256 | 16 | 19.0 k | 19.5 | 0.50 ms | 0.90 ms | 1.00 ms |",
		"| ram | 27.0 k | 19.0 k | 500 | 900 | 1500 | 8 KiB | 100 | 200 | 300 | 1600 | met |", "| 1600 | **missed**, 1.06 × |",
		"| ram | 64 MiB | 65536 | 0.300 s | 0.200 s | 800 | 1000 | 0.80 |",
		"| ram | 64 MiB | 65536 | 2.000 s | 33.5 |", "| streams | 1024 | 11.0 MiB | 1.0 KiB |", "| ram | uploads | 19.0 k | 0.50 ms | 0.90 ms | 2.00 ms | 40.0 | – |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q", want)
		}
	}
	width := 0
	for line := range strings.Lines(text) {
		switch fields := strings.Count(line, "|"); {
		case fields == 0:
			width = 0
		case width == 0:
			width = fields
		case fields != width:
			t.Errorf("%d fields, the head has %d: %s", fields-1, width-1, line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestWhatMoreMeasuredIsKept(t *testing.T) {
	path := t.TempDir() + "/more.json"
	want := moreExample()
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
