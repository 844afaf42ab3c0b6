package report

import "github.com/walsidecar/walsidecar/bench/drive"

// Fio is what fio reached on the raw device with one way of writing.
type Fio struct {
	Store           string  `json:"store"`
	Engine          string  `json:"engine"`
	Depth           int     `json:"depth"` // writes in flight
	Bytes           int     `json:"bytes"` // of a write
	Repeat          int     `json:"repeat"`
	WritesPerSecond float64 `json:"writes_per_s"`
	P50             float64 `json:"p50_us"`
	P99             float64 `json:"p99_us"`
	P999            float64 `json:"p999_us"`
	Flushes         float64 `json:"device_flushes_per_write"`
	ForeignCores    float64 `json:"foreign_cores"`
}

// fioWay is one way of writing.
type fioWay struct {
	engine       string
	depth, bytes int
}

// fioMedians are the medians of one store, by way, of one number.
func fioMedians(rows []Fio, store string, of func(Fio) float64) map[fioWay]float64 {
	all := map[fioWay][]float64{}
	for _, r := range rows {
		if r.Store == store {
			w := fioWay{r.Engine, r.Depth, r.Bytes}
			all[w] = append(all[w], of(r))
		}
	}
	medians := map[fioWay]float64{}
	for w, values := range all {
		medians[w] = Median(values)
	}
	return medians
}

// fioLimit is how many records a second the raw device could take in a cell: the best way
// of writing whose writes in flight hold no more than the payload that the cell has in
// flight, packed without gaps or headers. At depth 1 the time of a write between two
// measured sizes is interpolated. 0: fio was not measured.
func fioLimit(rows []Fio, store string, c drive.Cell) float64 {
	const leastBytes = 4096
	records := c.Producers * c.InFlight
	inFlight := max(records*c.Size, leastBytes)
	medians := fioMedians(rows, store, func(r Fio) float64 { return r.WritesPerSecond })
	best := 0.0
	for w, rate := range medians {
		if w.bytes*w.depth <= inFlight {
			best = max(best, rate*min(float64(w.bytes)/float64(c.Size), float64(records)))
		}
		larger, ok := medians[fioWay{w.engine, 1, w.bytes * 4}]
		if w.depth != 1 || !ok || w.bytes > inFlight || inFlight >= w.bytes*4 {
			continue
		}
		share := float64(inFlight-w.bytes) / float64(3*w.bytes)
		best = max(best, float64(records)/(1/rate+(1/larger-1/rate)*share))
	}
	return best
}
