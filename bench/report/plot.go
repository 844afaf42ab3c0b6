package report

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// plotNames are the plots of each store.
var plotNames = []struct{ name, title string }{
	{"latency", "Throughput against latency, 1 KiB: 1, 16 and 256 producers, then one pipelined"},
	{"percentiles", "Latency percentiles, 1 KiB, 16 producers"},
	{"cost", "Processor time per append as producers grow, 1 KiB"},
}

func plotFile(store, name string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' {
			return '-'
		}
		return r
	}, store+"-"+name+".svg")
}

// Plots writes the plots of each store into a directory.
func (r *Results) Plots(dir string) error {
	x := r.index()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, store := range x.stores {
		for i, c := range []chart{x.latencyChart(store), x.percentileChart(store), x.costChart(store)} {
			c.title = plotNames[i].title + " (" + store + ")"
			if err := os.WriteFile(filepath.Join(dir, plotFile(store, plotNames[i].name)), []byte(c.svg()), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// line of a chart: one system.
type series struct {
	name   string
	points [][2]float64
}

// chart has logarithmic axes, but for x where ticks are given: those are its places from 1 on.
type chart struct {
	title, x, y string
	ticks       []string
	lines       []series
}

func (x *index) chartOf(c chart, points func(system string) [][2]float64) chart {
	for _, system := range x.systems {
		if strings.HasPrefix(system, "door-") || strings.HasSuffix(system, "-spin") {
			continue // of one producer alone
		}
		if p := points(system); len(p) > 0 {
			c.lines = append(c.lines, series{system, p})
		}
	}
	return c
}

func (x *index) latencyChart(store string) chart {
	return x.chartOf(chart{x: "durable appends per second", y: "p50, µs"}, func(system string) (points [][2]float64) {
		for _, c := range []drive.Cell{alone, some, many, pipe} {
			k := cellKey{store, c}
			if len(x.runs[k][system]) > 0 {
				points = append(points, [2]float64{x.median(k, system, rate), x.median(k, system, p50)})
			}
		}
		return points
	})
}

func (x *index) percentileChart(store string) chart {
	k := cellKey{store, some}
	return x.chartOf(chart{y: "µs", ticks: []string{"p50", "p99", "p99.9"}}, func(system string) (points [][2]float64) {
		for i, of := range []func(*drive.Result) float64{p50, p99, p999} {
			if len(x.runs[k][system]) > 0 {
				points = append(points, [2]float64{float64(i + 1), x.median(k, system, of)})
			}
		}
		return points
	})
}

func (x *index) costChart(store string) chart {
	return x.chartOf(chart{x: "producers", y: "processor time of all processes per append, µs"}, func(system string) (points [][2]float64) {
		for _, c := range []drive.Cell{alone, some, many} {
			k := cellKey{store, c}
			if len(x.runs[k][system]) > 0 {
				points = append(points, [2]float64{float64(c.Producers), x.median(k, system, cpu)})
			}
		}
		return points
	})
}

// Measures of a plot, in pixels.
const (
	plotWidth, plotHeight = 900, 460
	plotLeft, plotRight   = 70, 680
	plotTop, plotBottom   = 40, 400
	legendStep            = 20
)

var colors = []string{"#d62728", "#ff7f0e", "#1f77b4", "#17becf", "#e377c2", "#bcbd22", "#000000", "#2ca02c", "#8c564b", "#9467bd", "#7f7f7f", "#aec7e8", "#98df8a", "#c49c94", "#c5b0d5"}

// axis maps values to pixels.
type axis struct {
	low, high float64
	from, to  float64
	linear    bool
}

func (a axis) at(v float64) float64 {
	if !a.linear {
		v = math.Log10(v)
	}
	return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from)
}

// decades spans whole powers of ten around all values.
func (c *chart) decades(dimension int, from, to float64) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range c.lines {
		for _, p := range l.points {
			if v := p[dimension]; v > 0 {
				low, high = min(low, math.Floor(math.Log10(v))), max(high, math.Ceil(math.Log10(v)))
			}
		}
	}
	if low >= high {
		high = low + 1
	}
	if math.IsInf(low, 0) {
		low, high = 0, 1
	}
	return axis{low: low, high: high, from: from, to: to}
}

func (c *chart) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/><text x="%d" y="24" font-size="14">%s</text>`+"\n", plotWidth, plotHeight, plotLeft, c.title)
	x, y := axis{low: 0.5, high: float64(len(c.ticks)) + 0.5, from: plotLeft, to: plotRight, linear: true}, c.decades(1, plotBottom, plotTop)
	if c.ticks == nil {
		x = c.decades(0, plotLeft, plotRight)
		for d := x.low; d <= x.high; d++ {
			c.vertical(&b, x.at(math.Pow(10, d)), decade(d))
		}
	}
	for i, tick := range c.ticks {
		c.vertical(&b, x.at(float64(i+1)), tick)
	}
	for d := y.low; d <= y.high; d++ {
		at := y.at(math.Pow(10, d))
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft, plotRight, at, at, plotLeft-6, at+4, decade(d))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text><text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n",
		(plotLeft+plotRight)/2, plotBottom+40, c.x, (plotTop+plotBottom)/2, c.y)
	for i, l := range c.lines {
		l.draw(&b, i, x, y)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *chart) vertical(b *strings.Builder, at float64, label string) {
	fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", at, at, plotTop, plotBottom, at, plotBottom+18, label)
}

// decade names a power of ten.
func decade(d float64) string {
	switch {
	case d >= 6:
		return fmt.Sprintf("%g M", math.Pow(10, d-6))
	case d >= 4:
		return fmt.Sprintf("%g k", math.Pow(10, d-3))
	}
	return fmt.Sprintf("%g", math.Pow(10, d))
}

// draw writes a line with its points, and its place in the legend. Ours are thick.
func (l series) draw(b *strings.Builder, number int, x, y axis) {
	color, width := colors[number%len(colors)], 1.2
	if strings.HasPrefix(l.name, "walsidecar") || l.name == simple {
		width = 2.6
	}
	var path strings.Builder
	for _, p := range l.points {
		if p[0] <= 0 || p[1] <= 0 {
			continue
		}
		fmt.Fprintf(&path, "%.1f,%.1f ", x.at(p[0]), y.at(p[1]))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x.at(p[0]), y.at(p[1]), color)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"/>`+"\n", strings.TrimSpace(path.String()), color, width)
	at := plotTop + 10 + number*legendStep
	fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="%.1f"/><text x="%d" y="%d">%s</text>`+"\n",
		plotRight+16, plotRight+40, at, at, color, width, plotRight+46, at+4, l.name)
}
