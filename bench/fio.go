package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/walsidecar/walsidecar/bench/machine"
	"github.com/walsidecar/walsidecar/bench/report"
)

// fioWays are the ways of writing that fio measures.
var fioWays = []struct {
	engine string
	depth  int
	sizes  []int // bytes of a write
}{
	{"psync", 1, []int{4 * kib, 16 * kib, 64 * kib, 256 * kib}},
	{"io_uring", 1, []int{4 * kib, 16 * kib, 64 * kib, 256 * kib, 1024 * kib}},
	{"io_uring", 4, []int{4 * kib, 16 * kib, 64 * kib, 256 * kib}},
	{"io_uring", 16, []int{4 * kib, 16 * kib, 64 * kib}},
}

// fioArea is the part of the store that is written over and over.
const fioArea = 512 << 20

// runFio measures the raw store: sequential data-sync writes with direct I/O.
func runFio(ctx context.Context, store *machine.Store, d time.Duration) ([]report.Fio, error) {
	if _, err := exec.LookPath("fio"); err != nil {
		return nil, errSkipped
	}
	dir, err := store.Fresh(true)
	if err != nil {
		return nil, err
	}
	target := store.Device
	if target == "" {
		target = filepath.Join(dir, "fio")
	}
	var rows []report.Fio
	for _, w := range fioWays {
		for _, size := range w.sizes {
			row := report.Fio{Store: store.Label, Engine: w.engine, Depth: w.depth, Bytes: size}
			if err := fioOnce(ctx, store.Device, target, d, &row); err != nil {
				return rows, err
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// errSkipped is where fio is not installed.
var errSkipped = errors.New("fio is not installed (apt-get install fio)")

func fioOnce(ctx context.Context, device, target string, d time.Duration, row *report.Fio) error {
	before := machine.Look(device)
	out, err := exec.CommandContext(ctx, "fio", "--name=raw", "--filename="+target, "--rw=write", "--bs="+strconv.Itoa(row.Bytes), "--direct=1", "--sync=dsync",
		"--ioengine="+row.Engine, "--iodepth="+strconv.Itoa(row.Depth), fmt.Sprintf("--runtime=%dms", d.Milliseconds()), "--time_based", fmt.Sprintf("--size=%d", fioArea),
		"--randrepeat=0", "--percentile_list=50:99:99.9", "--output-format=json").Output()
	if err != nil {
		return fmt.Errorf("fio: %w: %s", err, out)
	}
	used := machine.Between(before, machine.Look(device))
	var parsed struct {
		Jobs []struct {
			Write struct {
				IOPS    float64 `json:"iops"`
				Writes  float64 `json:"total_ios"`
				Latency struct {
					Percentile map[string]float64 `json:"percentile"`
				} `json:"clat_ns"`
			} `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(out, &parsed); err != nil || len(parsed.Jobs) == 0 {
		return fmt.Errorf("fio printed %q: %w", out, err)
	}
	w := parsed.Jobs[0].Write
	percentile := func(p string) float64 { return w.Latency.Percentile[p] / 1000 }
	row.WritesPerSecond = w.IOPS
	row.P50, row.P99, row.P999 = percentile("50.000000"), percentile("99.000000"), percentile("99.900000")
	row.Flushes = float64(used.Device.Flushes) / max(w.Writes, 1)
	row.ForeignCores = used.Foreign.Seconds() / used.Lasted.Seconds()
	return nil
}
