package report

import (
	"fmt"
	"strings"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/peers"
)

// The systems that targets are about.
const (
	shm    = "walsidecar-shm"
	spin   = "walsidecar-shm-spin"
	uds    = "walsidecar-uds"
	simple = "rawgo"
)

// The cells that targets are about.
var (
	many      = drive.Cell{Size: 1024, Producers: 256, InFlight: 1}
	manySmall = drive.Cell{Size: 128, Producers: 256, InFlight: 1}
	some      = drive.Cell{Size: 1024, Producers: 16, InFlight: 1}
	someLarge = drive.Cell{Size: 16384, Producers: 16, InFlight: 1}
	alone     = drive.Cell{Size: 1024, Producers: 1, InFlight: 1}
	pipe      = drive.Cell{Size: 1024, Producers: 1, InFlight: 1024}
	pipeSmall = drive.Cell{Size: 128, Producers: 1, InFlight: 1024}
)

// targets writes what was to be reached against what was measured on one store.
type targets struct {
	*table
	x     *index
	store string
}

func writeTargets(b *strings.Builder, x *index, store string) {
	t := &targets{newTable(b, "what", "measured", "must", "", "aim", ""), x, store}
	t.against("256 producers, 1 KiB, shm", many, 1.3, 0.8)
	t.against("256 producers, 128 B, shm", manySmall, 1.3, 0.8)
	t.against("16 producers, 1 KiB, shm", some, 1.3, 1)
	t.against("16 producers, 16 KiB, shm", someLarge, 1.3, 0.9)
	t.against("pipelined, 1 KiB, shm", pipe, 1.3, 0.85)
	t.small()
	t.alone()
	t.servers("256 producers, 1 KiB, shm", many)
	t.servers("pipelined, 1 KiB, shm", pipe)
	t.aloneServers()
	for _, c := range []drive.Cell{many, pipe} {
		shmRate, udsRate := t.of(c, shm, rate), t.of(c, uds, rate)
		t.line(CellName(c)+", uds", fmt.Sprintf("%s/s, %s × shm", Number(udsRate), ratio(udsRate, shmRate)), fmt.Sprintf("0.6 × shm = %s", Number(0.6*shmRate)), udsRate, 0.6*shmRate, "", 0, true)
	}
	written := t.of(many, shm, deviceBytes)
	t.line("device bytes per payload byte, 256 producers", Number(written), "≤ 1.10", written, 1.10, "≤ 1.05", 1.05, false)
	used := t.of(many, shm, cpu)
	name, best := t.x.best(cellKey{t.store, many}, peers.Library, false, cpu)
	t.line("CPU per append, 256 producers", Number(used)+" µs", fmt.Sprintf("≤ %s %s µs", name, Number(best)), used, best, fmt.Sprintf("≤ 0.7 × = %s µs", Number(0.7*best)), 0.7*best, false)
}

func (t *targets) of(c drive.Cell, system string, what func(*drive.Result) float64) float64 {
	return t.x.median(cellKey{t.store, c}, system, what)
}

// line writes one target; nothing of it where it was not measured. An aim of 0 is none.
func (t *targets) line(what, measured, mustText string, value, must float64, aimText string, aim float64, atLeast bool) {
	if value == 0 || must == 0 {
		return
	}
	met := func(limit float64) string {
		switch {
		case limit == 0:
			return ""
		case (value >= limit) == atLeast || value == limit:
			return "met"
		}
		return fmt.Sprintf("**missed**, %.2f ×", value/limit)
	}
	t.row(what, measured, mustText, met(must), aimText, met(aim))
}

// against is a rate against the best library and the simple way.
func (t *targets) against(what string, c drive.Cell, must, aim float64) {
	value, simpleRate := t.of(c, shm, rate), t.of(c, simple, rate)
	name, best := t.x.best(cellKey{t.store, c}, peers.Library, true, rate)
	t.line(what, fmt.Sprintf("%s/s", Number(value)), fmt.Sprintf("%.1f × %s %s = %s", must, name, Number(best), Number(must*best)), value, must*best,
		fmt.Sprintf("%.2f × rawgo %s = %s", aim, Number(simpleRate), Number(aim*simpleRate)), aim*simpleRate, true)
}

func (t *targets) small() {
	const aim = 1e6
	value := t.of(pipeSmall, shm, rate)
	name, best := t.x.best(cellKey{t.store, pipeSmall}, peers.Library, true, rate)
	t.line("pipelined, 128 B, shm", Number(value)+"/s", fmt.Sprintf("%s %s", name, Number(best)), value, best, "1,000,000", aim, true)
}

// alone is the latency of one producer, against that of the simple way and of the door
// with nothing behind it.
func (t *targets) alone() {
	raw := t.of(alone, simple, p50)
	for _, system := range []string{shm, spin, uds} {
		name := strings.TrimPrefix(system, "walsidecar-")
		value, door := t.of(alone, system, p50), t.of(alone, "door-"+name, p50)
		if raw == 0 || door == 0 {
			continue
		}
		t.line("1 producer, 1 KiB, p50, "+name, fmt.Sprintf("%s µs, rawgo's %+.1f", Number(value), value-raw),
			fmt.Sprintf("rawgo's %s + the door's %s + 10 µs = %s", Number(raw), Number(door), Number(raw+door+10)), value, raw+door+10, fmt.Sprintf("rawgo's + 15 µs = %s", Number(raw+15)), raw+15, false)
	}
}

func (t *targets) servers(what string, c drive.Cell) {
	value := t.of(c, shm, rate)
	name, best := t.x.best(cellKey{t.store, c}, peers.Server, true, rate)
	t.line(what+", against servers", fmt.Sprintf("%s/s, %s ×", Number(value), ratio(value, best)), fmt.Sprintf("3 × %s %s = %s", name, Number(best), Number(3*best)), value, 3*best,
		fmt.Sprintf("6 × = %s", Number(6*best)), 6*best, true)
}

func (t *targets) aloneServers() {
	value, raw := t.of(alone, shm, p50), t.of(alone, simple, p50)
	name, best := t.x.best(cellKey{t.store, alone}, peers.Server, false, p50)
	t.line("1 producer, 1 KiB, p50, against servers", Number(value)+" µs", fmt.Sprintf("%s %s µs", name, Number(best)), value, best,
		fmt.Sprintf("half of its addition to rawgo's = %s µs", Number(raw+(best-raw)/2)), raw+(best-raw)/2, false)
}
