package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walsidecar/walsidecar/bench/scenario"
)

// More writes the tables of what is not a cell: profiles, recovery, takeover, memory, and
// appends beside other work.
func (r *Results) More() string {
	var b strings.Builder
	r.writeAbout(&b)
	b.WriteString("Medians where there are several runs.\n")
	r.writeProfiles(&b)
	r.writeSteady(&b)
	r.writeRecovery(&b)
	r.writeTakeover(&b)
	r.writeMemory(&b)
	r.writeTogether(&b)
	return b.String()
}

// grouped puts rows with the same key together, in the order of their first.
func grouped[T any](rows []T, key func(*T) string) (groups [][]T) {
	var keys []string
	for i := range rows {
		k := key(&rows[i])
		at := slices.Index(keys, k)
		if at < 0 {
			at = len(keys)
			keys, groups = append(keys, k), append(groups, nil)
		}
		groups[at] = append(groups[at], rows[i])
	}
	return groups
}

// middle is the median of one number of the rows.
func middle[T any](rows []T, of func(*T) float64) float64 {
	values := make([]float64, len(rows))
	for i := range rows {
		values[i] = of(&rows[i])
	}
	return Median(values)
}

func (r *Results) writeProfiles(b *strings.Builder) {
	if len(r.Profiles) == 0 {
		return
	}
	b.WriteString("\n## Shaped like a volume\n\nThe device waits as such a volume does (`walsidecar bench --profile`), 1 KiB, shared memory:\n\n")
	t := newTable(b, "profile", "producers", "in flight each", "appends/s", "MB/s", "p50", "p99", "p99.9", "device bytes per payload byte", "raw p50", "raw MB/s")
	for _, rows := range grouped(r.Profiles, func(p *Profile) string { return fmt.Sprint(p.Store, p.Report.Profile, p.Producer, p.InFlight) }) {
		n := func(of func(*Profile) float64) string { return Number(middle(rows, of)) }
		ms := func(of func(*Profile) float64) string { return Number(middle(rows, of)/1000) + " ms" }
		t.row(rows[0].Report.Profile, fmt.Sprint(rows[0].Producer), fmt.Sprint(rows[0].InFlight), n(func(p *Profile) float64 { return p.AppendsPerSecond }),
			n(func(p *Profile) float64 { return p.MBPerSecond }), ms(func(p *Profile) float64 { return p.Report.P50 }), ms(func(p *Profile) float64 { return p.Report.P99 }),
			ms(func(p *Profile) float64 { return p.P999 }), n(func(p *Profile) float64 { return p.DeviceBytes }),
			ms(func(p *Profile) float64 { return p.RawReport.P50 }), n(func(p *Profile) float64 { return p.RawReport.MBPerSecond }))
	}
}

func (r *Results) writeSteady(b *strings.Builder) {
	if len(r.Steady) == 0 {
		return
	}
	b.WriteString("\n## An open loop at 70 % of the peak\n\n1 KiB, shared memory, each record sent at its time; `raw` is data-sync writes of the mean frame, as many a second, sent at their times, in turns with the load. To be reached: p99.9 ≤ 2 × raw p99.9 + 1 ms.\n\n")
	t := newTable(b, "store", "peak", "appends/s", "p50 µs", "p99 µs", "p99.9 µs", "frame", "raw p50 µs", "raw p99 µs", "raw p99.9 µs", "2 × raw + 1 ms", "")
	for _, rows := range grouped(r.Steady, func(x *scenario.Steady) string { return x.Store }) {
		m := func(of func(*scenario.Steady) float64) float64 { return middle(rows, of) }
		n := func(of func(*scenario.Steady) float64) string { return Number(m(of)) }
		p999, limit := m(func(x *scenario.Steady) float64 { return x.P999 }), 2*m(func(x *scenario.Steady) float64 { return x.RawReport.P999 })+1000
		met := "met"
		if p999 > limit {
			met = fmt.Sprintf("**missed**, %.2f ×", p999/limit)
		}
		t.row(rows[0].Store, n(func(x *scenario.Steady) float64 { return x.Peak }), n(func(x *scenario.Steady) float64 { return x.AppendsPerSecond }),
			n(func(x *scenario.Steady) float64 { return x.P50 }), n(func(x *scenario.Steady) float64 { return x.P99 }), Number(p999),
			fmt.Sprintf("%.0f KiB", m(func(x *scenario.Steady) float64 { return float64(x.FrameBytes) })/1024),
			n(func(x *scenario.Steady) float64 { return x.RawReport.P50 }), n(func(x *scenario.Steady) float64 { return x.RawReport.P99 }), n(func(x *scenario.Steady) float64 { return x.RawReport.P999 }),
			Number(limit), met)
	}
}

func (r *Results) writeRecovery(b *strings.Builder) {
	if len(r.Recovery) == 0 {
		return
	}
	b.WriteString("\n## Recovery\n\nA start after `kill -9`; `read` is a plain sequential read of the same bytes with direct I/O, before and after:\n\n")
	t := newTable(b, "store", "log", "records", "ready after", "of it recovery", "MB/s", "read MB/s", "ratio")
	for _, rows := range grouped(r.Recovery, func(x *scenario.Recovery) string { return fmt.Sprint(x.Store, x.Records) }) {
		m := func(of func(*scenario.Recovery) float64) float64 { return middle(rows, of) }
		t.row(rows[0].Store, mib(rows[0].LogBytes), fmt.Sprint(rows[0].Records), seconds(m(func(x *scenario.Recovery) float64 { return x.ReadySeconds })),
			seconds(m(func(x *scenario.Recovery) float64 { return x.RecoverySeconds })), Number(m(func(x *scenario.Recovery) float64 { return x.MBPerSecond })),
			Number(m(func(x *scenario.Recovery) float64 { return x.ReadMBPerSecond })),
			ratio(m(func(x *scenario.Recovery) float64 { return x.MBPerSecond / x.ReadMBPerSecond }), 1))
	}
}

func (r *Results) writeTakeover(b *strings.Builder) {
	if len(r.Takeover) == 0 {
		return
	}
	b.WriteString("\n## Takeover\n\nOf a file whose owner was killed with so much not yet in the object store, a directory on the machine's disk:\n\n")
	t := newTable(b, "store of the log", "not uploaded", "records", "in all", "MB/s", "longest step")
	for _, rows := range grouped(r.Takeover, func(x *scenario.Takeover) string { return fmt.Sprint(x.Store, x.Records) }) {
		longest, took := "", 0.0
		for _, s := range rows[0].Steps {
			if s.Seconds > took {
				longest, took = s.Step, s.Seconds
			}
		}
		t.row(rows[0].Store, mib(rows[0].Bytes), fmt.Sprint(rows[0].Records), seconds(middle(rows, func(x *scenario.Takeover) float64 { return x.Seconds })),
			Number(middle(rows, func(x *scenario.Takeover) float64 { return x.MBPerSecond })), longest+", "+seconds(took))
	}
}

func (r *Results) writeMemory(b *strings.Builder) {
	if len(r.Memory) == 0 {
		return
	}
	b.WriteString("\n## Memory\n\nResident memory of the sidecar, shared memory included, beyond what it has with none:\n\n")
	t := newTable(b, "what", "how many", "resident", "each")
	for _, m := range r.Memory {
		each := "–"
		if m.Count > 0 {
			each = fmt.Sprintf("%.1f KiB", m.Each/1024)
		}
		t.row(m.What, fmt.Sprint(m.Count), fmt.Sprintf("%.1f MiB", float64(m.Bytes)/(1<<20)), each)
	}
}

func (r *Results) writeTogether(b *strings.Builder) {
	if len(r.Together) == 0 {
		return
	}
	first := r.Together[0]
	fmt.Fprintf(b, "\n## Appends beside other work\n\n%s records of %d B per second, sent at their times whatever happens, shared memory. The object store is a directory on the machine's disk, the readers are in the process of the load: all share the cores.\n\n", Number(first.Rate), first.Size)
	t := newTable(b, "store of the log", "beside", "appends/s", "p50", "p99", "p99.9", "followed MB/s", "cold reads MB/s")
	for _, rows := range grouped(r.Together, func(x *scenario.Together) string { return x.Store + x.With }) {
		m := func(of func(*scenario.Together) float64) float64 { return middle(rows, of) }
		ms := func(of func(*scenario.Together) float64) string { return fmt.Sprintf("%.2f ms", m(of)/1000) }
		t.row(rows[0].Store, rows[0].With, Number(m(func(x *scenario.Together) float64 { return x.AppendsPerSecond })), ms(func(x *scenario.Together) float64 { return x.P50 }),
			ms(func(x *scenario.Together) float64 { return x.P99 }), ms(func(x *scenario.Together) float64 { return x.P999 }),
			Number(m(func(x *scenario.Together) float64 { return x.FollowMBPerSecond })), Number(m(func(x *scenario.Together) float64 { return x.ReadMBPerSecond })))
	}
}

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

func seconds(s float64) string { return fmt.Sprintf("%.3f s", s) }
