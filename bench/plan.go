package main

import (
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/peers"
)

// plan is what is measured of each system.
type plan struct {
	cells   []drive.Cell
	repeats int
	times   drive.Times
	// skips is whether a cell of a system is left out of the plan; nil: none is.
	skips func(p peers.Peer, c drive.Cell) bool
}

const (
	kib      = 1 << 10
	pipeline = 1024 // records that the pipelined producer has in flight
)

// plans by name.
var plans = map[string]plan{
	// The cells that matter, in ten minutes for what is usually installed.
	"quick": {
		cells: []drive.Cell{
			{Size: kib, Producers: 1, InFlight: 1}, {Size: kib, Producers: 16, InFlight: 1}, {Size: kib, Producers: 256, InFlight: 1},
			{Size: kib, Producers: 1, InFlight: pipeline}, {Size: 128, Producers: 256, InFlight: 1}, {Size: 128, Producers: 1, InFlight: pipeline},
			{Size: 16 * kib, Producers: 16, InFlight: 1},
		},
		repeats: 3, times: drive.Times{WarmUp: 300 * time.Millisecond, Measure: time.Second},
		// Servers take seconds to start.
		skips: func(p peers.Peer, c drive.Cell) bool { return p.Kind == peers.Server && c.Size != kib },
	},
	"full": {cells: everyCell(), repeats: 5, times: drive.Times{WarmUp: time.Second, Measure: 4 * time.Second}},
	// One short cell, to see that everything works.
	"smoke": {cells: []drive.Cell{{Size: kib, Producers: 16, InFlight: 1}}, repeats: 1, times: drive.Times{WarmUp: 100 * time.Millisecond, Measure: time.Second}},
}

func everyCell() (cells []drive.Cell) {
	for _, size := range []int{128, kib, 16 * kib} {
		for _, producers := range []int{1, 16, 256} {
			cells = append(cells, drive.Cell{Size: size, Producers: producers, InFlight: 1})
		}
		cells = append(cells, drive.Cell{Size: size, Producers: 1, InFlight: pipeline})
	}
	return cells
}

// parseCells reads cells such as 1024x16 (bytes × producers) and 128xpipe.
func parseCell(text string) (drive.Cell, error) {
	var c drive.Cell
	if n, _ := fmt.Sscanf(text, "%dx%d", &c.Size, &c.Producers); n == 2 && c.Size > 0 && c.Producers > 0 {
		c.InFlight = 1
		return c, nil
	}
	var pipe string
	if n, _ := fmt.Sscanf(text, "%dx%s", &c.Size, &pipe); n == 2 && c.Size > 0 && pipe == "pipe" {
		return drive.Cell{Size: c.Size, Producers: 1, InFlight: pipeline}, nil
	}
	return c, fmt.Errorf("cell %q: legal is BYTESxPRODUCERS, such as 1024x16, or BYTESxpipe", text)
}
