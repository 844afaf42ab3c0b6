package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walsidecar/walsidecar/bench/drive"
	"github.com/walsidecar/walsidecar/bench/peers"
)

// cellKey is a cell of one store.
type cellKey struct {
	store string
	drive.Cell
}

// index finds the runs of a cell and system.
type index struct {
	stores  []string
	cells   []drive.Cell
	systems []string
	runs    map[cellKey]map[string][]drive.Result
}

func (r *Results) index() *index {
	x := &index{runs: map[cellKey]map[string][]drive.Result{}}
	measured := map[string]bool{}
	for _, run := range r.Runs {
		if !slices.Contains(x.stores, run.Store) {
			x.stores = append(x.stores, run.Store)
		}
		if !slices.Contains(x.cells, run.Cell) {
			x.cells = append(x.cells, run.Cell)
		}
		measured[run.System] = true
		if run.Error != "" {
			continue
		}
		k := cellKey{run.Store, run.Cell}
		if x.runs[k] == nil {
			x.runs[k] = map[string][]drive.Result{}
		}
		x.runs[k][run.System] = append(x.runs[k][run.System], run)
	}
	slices.SortFunc(x.cells, func(a, b drive.Cell) int {
		return cmp.Or(cmp.Compare(a.InFlight, b.InFlight), cmp.Compare(a.Producers, b.Producers), cmp.Compare(a.Size, b.Size))
	})
	x.keepQuiet()
	for _, p := range peers.All {
		if measured[p.Name] {
			x.systems = append(x.systems, p.Name)
		}
	}
	return x
}

// noisyCores is how much of the processors others may use before a run is called noisy.
const noisyCores = 0.25

func noisy(r drive.Result) bool { return r.ForeignCores > noisyCores }

// keepQuiet drops the noisy runs of each cell and system that has a quiet one.
func (x *index) keepQuiet() {
	for _, systems := range x.runs {
		for system, runs := range systems {
			if quiet := slices.DeleteFunc(slices.Clone(runs), noisy); len(quiet) > 0 {
				systems[system] = quiet
			}
		}
	}
}

// mark is put before numbers that only noisy runs gave.
func (x *index) mark(k cellKey, system string) string {
	if runs := x.runs[k][system]; len(runs) > 0 && noisy(runs[0]) {
		return "~"
	}
	return ""
}

// median is the median of one number over the runs of a cell and system; 0: none.
func (x *index) median(k cellKey, system string, of func(*drive.Result) float64) float64 {
	runs := x.runs[k][system]
	values := make([]float64, len(runs))
	for i := range runs {
		values[i] = of(&runs[i])
	}
	return Median(values)
}

// best is the system of a kind with the highest median, or the lowest that is not 0.
func (x *index) best(k cellKey, kind peers.Kind, highest bool, of func(*drive.Result) float64) (system string, value float64) {
	for _, name := range x.systems {
		p, err := peers.Named(name)
		if err != nil || p.Kind != kind {
			continue
		}
		v := x.median(k, name, of)
		if v != 0 && (value == 0 || (v > value) == highest) {
			system, value = name, v
		}
	}
	return system, value
}

// What is compared.
func rate(r *drive.Result) float64        { return r.AppendsPerSecond }
func p50(r *drive.Result) float64         { return r.P50 }
func p99(r *drive.Result) float64         { return r.P99 }
func p999(r *drive.Result) float64        { return r.P999 }
func cpu(r *drive.Result) float64         { return r.CPU }
func deviceBytes(r *drive.Result) float64 { return r.DeviceBytes }

// Number writes a number with three digits that count.
func Number(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 1e6:
		return fmt.Sprintf("%.2f M", v/1e6)
	case v >= 1e5:
		return fmt.Sprintf("%.0f k", v/1e3)
	case v >= 1e4:
		return fmt.Sprintf("%.1f k", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// table is a Markdown table.
type table struct {
	b     *strings.Builder
	width int
}

func newTable(b *strings.Builder, head ...string) *table {
	t := &table{b, len(head)}
	t.row(head...)
	b.WriteString(strings.Repeat("| --- ", t.width) + "|\n")
	return t
}

func (t *table) row(fields ...string) {
	for _, f := range fields {
		t.b.WriteString("| " + f + " ")
	}
	t.b.WriteString("|\n")
}

// Markdown writes all tables; plots is the directory of the plots, as a link from the page; "": there are none.
func (r *Results) Markdown(plots string) string {
	x := r.index()
	var b strings.Builder
	r.writeAbout(&b)
	for _, store := range x.stores {
		fmt.Fprintf(&b, "\n## Store: %s\n\nDurable appends per second:\n\n", store)
		r.writeRates(&b, x, store)
		fmt.Fprintf(&b, "\nAgainst the targets%s:\n\n", r.caveat())
		writeTargets(&b, x, store)
		for _, p := range plotNames {
			if plots == "" {
				break
			}
			fmt.Fprintf(&b, "\n![%s](%s/%s)\n", p.title, plots, plotFile(store, p.name))
		}
		fmt.Fprintf(&b, "\n<details><summary>All numbers: %s</summary>\n", store)
		for _, c := range x.cells {
			writeCell(&b, x, cellKey{store, c})
		}
		r.writeFio(&b, store)
		b.WriteString("\n</details>\n")
	}
	r.writeFailures(&b)
	return b.String()
}

func (r *Results) writeAbout(b *strings.Builder) {
	a := r.About
	fmt.Fprintf(b, "%s, %d cores, Linux %s, %s; %s; commit %s; load average at the begin %s; `%s`.\n", a.CPU, a.Cores, a.Kernel, a.Go, a.Date, a.Commit, a.Load, a.Command)
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(a.Versions)) {
		versions = append(versions, name+" "+a.Versions[name])
	}
	fmt.Fprintf(b, "%s.\n", strings.Join(versions, ", "))
	r.writeNoise(b)
}

func (r *Results) writeNoise(b *strings.Builder) {
	a := r.About
	repeats := 0
	for _, run := range r.Runs {
		repeats = max(repeats, run.Repeat)
	}
	seconds, foreign := middle(r.Runs, func(x *drive.Result) float64 { return x.Seconds }), r.foreign()
	if len(foreign) == 0 {
		return
	}
	fmt.Fprintf(b, "Medians of %d interleaved runs of %.0f s. Other processes used %.2f of the %d cores in the median run, %.2f in the quietest, %.2f in the noisiest. Where a cell of a system has runs with less than %.2f, only those count; ~ marks what has none.\n",
		repeats, seconds, Median(foreign), a.Cores, foreign[0], foreign[len(foreign)-1], noisyCores)
}

// foreign is what other processes used in each run, sorted.
func (r *Results) foreign() (cores []float64) {
	for _, run := range r.Runs {
		cores = append(cores, run.ForeignCores)
	}
	slices.Sort(cores)
	return cores
}

// caveat is what is said of comparisons on a busy machine.
func (r *Results) caveat() string {
	if Median(r.foreign()) > noisyCores {
		return ", on a machine that others kept busy, so with little weight"
	}
	return ""
}

func (r *Results) writeRates(b *strings.Builder, x *index, store string) {
	head := []string{"system"}
	for _, c := range x.cells {
		head = append(head, CellName(c))
	}
	t := newTable(b, head...)
	row := func(name string, value func(k cellKey) string) {
		fields := []string{name}
		for _, c := range x.cells {
			fields = append(fields, value(cellKey{store, c}))
		}
		t.row(fields...)
	}
	for _, system := range x.systems {
		row(system, func(k cellKey) string { return x.mark(k, system) + Number(x.median(k, system, rate)) })
	}
	if len(r.Fio) > 0 {
		row("limit by fio", func(k cellKey) string { return Number(fioLimit(r.Fio, store, k.Cell)) })
	}
	row("best library", func(k cellKey) string { name, _ := x.best(k, peers.Library, true, rate); return name })
	row("shm / best library", func(k cellKey) string {
		_, best := x.best(k, peers.Library, true, rate)
		return ratio(x.median(k, shm, rate), best)
	})
	row("shm / rawgo", func(k cellKey) string { return ratio(x.median(k, shm, rate), x.median(k, simple, rate)) })
	row("uds / shm", func(k cellKey) string { return ratio(x.median(k, uds, rate), x.median(k, shm, rate)) })
}

// ratio divides two numbers; unknown where one is.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

func writeCell(b *strings.Builder, x *index, k cellKey) {
	fmt.Fprintf(b, "\n%s:\n\n", CellName(k.Cell))
	t := newTable(b, "system", "appends/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs per append", "of it kernel threads", "device bytes per payload byte", "device writes per append", "flushes per append", "records per batch", "least to most appends/s", "other processes, cores")
	for _, system := range x.systems {
		runs := x.runs[k][system]
		if len(runs) == 0 {
			continue
		}
		least, most := runs[0].AppendsPerSecond, runs[0].AppendsPerSecond
		for _, r := range runs {
			least, most = min(least, r.AppendsPerSecond), max(most, r.AppendsPerSecond)
		}
		n := func(of func(*drive.Result) float64) string { return Number(x.median(k, system, of)) }
		t.row(system, x.mark(k, system)+n(rate), n(func(r *drive.Result) float64 { return r.MBPerSecond }), n(p50), n(p99), n(p999), n(cpu),
			n(func(r *drive.Result) float64 { return r.KernelCPU }), n(deviceBytes),
			fmt.Sprintf("%.4f", x.median(k, system, func(r *drive.Result) float64 { return r.DeviceWrites })),
			fmt.Sprintf("%.4f", x.median(k, system, func(r *drive.Result) float64 { return r.Flushes })),
			n(func(r *drive.Result) float64 { return r.MeanBatch }), Number(least)+" to "+Number(most),
			fmt.Sprintf("%.2f", x.median(k, system, func(r *drive.Result) float64 { return r.ForeignCores })))
	}
}

func (r *Results) writeFio(b *strings.Builder, store string) {
	rates := fioMedians(r.Fio, store, func(f Fio) float64 { return f.WritesPerSecond })
	if len(rates) == 0 {
		return
	}
	medians := map[string]map[fioWay]float64{
		"p50": fioMedians(r.Fio, store, func(f Fio) float64 { return f.P50 }), "p99": fioMedians(r.Fio, store, func(f Fio) float64 { return f.P99 }),
		"p999": fioMedians(r.Fio, store, func(f Fio) float64 { return f.P999 }), "flushes": fioMedians(r.Fio, store, func(f Fio) float64 { return f.Flushes }),
	}
	b.WriteString("\nThe raw device, by fio (sequential, `direct=1`, `sync=dsync`):\n\n")
	t := newTable(b, "engine", "writes in flight", "bytes", "writes/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "flushes per write")
	ways := slices.Collect(maps.Keys(rates))
	slices.SortFunc(ways, func(a, b fioWay) int {
		return cmp.Or(-cmp.Compare(a.engine, b.engine), cmp.Compare(a.depth, b.depth), cmp.Compare(a.bytes, b.bytes))
	})
	for _, w := range ways {
		t.row(w.engine, fmt.Sprint(w.depth), fmt.Sprint(w.bytes), Number(rates[w]), Number(rates[w]*float64(w.bytes)/1e6),
			Number(medians["p50"][w]), Number(medians["p99"][w]), Number(medians["p999"][w]), fmt.Sprintf("%.2f", medians["flushes"][w]))
	}
}

func (r *Results) writeFailures(b *strings.Builder) {
	for _, run := range r.Runs {
		if run.Error != "" {
			fmt.Fprintf(b, "\nFailed: %s, %s, %s: %s\n", run.Store, run.System, CellName(run.Cell), run.Error)
		}
	}
}
