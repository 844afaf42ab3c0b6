package simdev

import (
	"fmt"
	"slices"
)

// Odds weigh what chance decides; each group is relative weights, and a group
// of zeros means the group of DefaultOdds.
type Odds struct {
	// What a crash or a failure leaves of one write that was in flight. Most
	// writes end whole or not at all: only so is a frame whole behind a hole.
	Kept      int // all on the medium
	Dropped   int // none of it
	Cached    int // all in the cache
	Prefix    int // on the medium up to some sector, which may be torn
	OneSector int // all but one sector, which is dropped or torn
	Mixed     int // each sector kept, dropped, torn or cached

	// What a flush or a crash makes of one write's sectors in the cache.
	Reaches  int // all reach the medium
	Vanishes int // none
	Scatters int // each by itself, a torn one included
}

// DefaultOdds give every case a good share.
var DefaultOdds = Odds{
	Kept: 5, Dropped: 4, Cached: 3, Prefix: 2, OneSector: 3, Mixed: 3,
	Reaches: 3, Vanishes: 3, Scatters: 2,
}

// fate is the index into a group of Odds.
type fate int

const (
	kept fate = iota
	dropped
	inCache
	prefix
	oneSector
	mixed
)

// sectorFate is what becomes of one sector.
type sectorFate int

const (
	sectorKept sectorFate = iota
	sectorDropped
	sectorTorn
	sectorCached
	sectorFates
)

// SetOdds changes the odds from here on.
func (d *Disk) SetOdds(o Odds) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setOdds(o)
}

func (d *Disk) setOdds(o Odds) {
	def := DefaultOdds
	if o.Kept+o.Dropped+o.Cached+o.Prefix+o.OneSector+o.Mixed == 0 {
		o.Kept, o.Dropped, o.Cached, o.Prefix, o.OneSector, o.Mixed = def.Kept, def.Dropped, def.Cached, def.Prefix, def.OneSector, def.Mixed
	}
	if o.Reaches+o.Vanishes+o.Scatters == 0 {
		o.Reaches, o.Vanishes, o.Scatters = def.Reaches, def.Vanishes, def.Scatters
	}
	d.odds = o
}

func (o *Odds) crash() []int {
	return []int{o.Kept, o.Dropped, o.Cached, o.Prefix, o.OneSector, o.Mixed}
}

func (o *Odds) flush() []int {
	return []int{o.Reaches, o.Vanishes, 0, 0, 0, o.Scatters}
}

// Crash stops every host at once, as a power failure does: their views are dead,
// and the odds decide, write by write and in a random order, what becomes of all
// that is in flight and in the cache. The reservation stays.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crash()
}

func (d *Disk) crash() {
	var flight []*Write
	for _, v := range d.views {
		flight = append(flight, v.kill()...)
	}
	d.views = nil
	// What a write in flight has in the cache shares the write's own fate.
	for _, w := range flight {
		d.uncache(w)
	}
	d.note(nil, "crash", 0, 0, 0, d.settleCache(d.odds.flush()))
	d.settleAll(flight)
}

// Crash stops this host alone: the disk keeps its power, so that only the host's
// own writes in flight are left to chance.
func (v *View) Crash() {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.dead {
		return
	}
	d.note(v, "crash", 0, 0, 0, "")
	flight := v.kill()
	d.views = slices.DeleteFunc(d.views, func(other *View) bool { return other == v })
	d.settleAll(flight)
}

// kill marks the view dead and gives back what was in flight.
func (v *View) kill() []*Write {
	v.dead = true
	flight := v.inFlight
	v.inFlight = nil
	return flight
}

func (d *Disk) settleAll(flight []*Write) {
	d.rng.Shuffle(len(flight), func(i, j int) { flight[i], flight[j] = flight[j], flight[i] })
	for _, w := range flight {
		w.ended, w.err = true, w.failure(ErrDead, 0)
		d.uncache(w)
		d.note(w.view, "lands", w.number, w.offset, len(w.data), d.settle(w, d.odds.crash()))
	}
}

// settle decides what is left of a write in flight, and says so.
func (d *Disk) settle(w *Write, weights []int) string {
	switch w.fault.Kind {
	case Conflict, LostWrite:
		return "nothing: " + w.fault.Kind.String()
	case MisdirectedWrite:
		w.offset = d.misdirected(w)
	}
	sectors := len(w.data) / SectorBytes
	if sectors == 0 {
		return "nothing to settle"
	}
	f := d.draw(weights)
	cut := d.rng.IntN(sectors)
	var count [sectorFates]int
	for i := range sectors {
		s := d.sectorFate(f, i, cut)
		if s == sectorCached && d.config.WriteThrough {
			s = sectorFate(d.rng.IntN(2)) // kept or dropped
		}
		count[s]++
		switch s {
		case sectorKept:
			d.harden(w.sector(i), w.offset+int64(i*SectorBytes))
		case sectorTorn:
			d.tear(w.sector(i), w.offset+int64(i*SectorBytes))
		case sectorCached:
			d.toCache(w, i*SectorBytes)
		}
	}
	return tally(count)
}

// sectorFate is what becomes of sector i of a write whose fate is f; cut is the
// sector where Prefix ends or that OneSector hits.
func (d *Disk) sectorFate(f fate, i, cut int) sectorFate {
	switch f {
	case kept:
		return sectorKept
	case inCache:
		return sectorCached
	case prefix:
		if i < cut {
			return sectorKept
		}
		if i == cut && d.rng.IntN(2) == 0 {
			return sectorTorn
		}
	case oneSector:
		if i != cut {
			return sectorKept
		}
		if d.rng.IntN(2) == 0 {
			return sectorTorn
		}
	case mixed:
		return sectorFate(d.rng.IntN(int(sectorFates)))
	}
	return sectorDropped
}

// settleCache decides, write by write, which cached sectors reach the medium.
// The cache is empty afterwards.
func (d *Disk) settleCache(weights []int) string {
	if len(d.cache) == 0 {
		return "the cache was empty"
	}
	sectors := make([]int64, 0, len(d.cache))
	for s := range d.cache {
		sectors = append(sectors, s)
	}
	slices.Sort(sectors) // a map has no order, and chance must have one
	fates := map[uint64]fate{}
	var count [sectorFates]int
	for _, s := range sectors {
		c := d.cache[s]
		f, known := fates[c.write]
		if !known {
			f = d.draw(weights)
			fates[c.write] = f
		}
		sf := sectorDropped
		switch f {
		case kept:
			sf = sectorKept
		case mixed:
			sf = sectorFate(d.rng.IntN(int(sectorCached))) // all but cached
		}
		count[sf]++
		switch sf {
		case sectorKept:
			d.medium.write(c.data[:], s*SectorBytes)
		case sectorTorn:
			d.tear(c.data[:], s*SectorBytes)
		}
	}
	clear(d.cache)
	return tally(count)
}

// tear writes a part of a sector: its beginning, its end, or a piece of garbage
// between new and old.
func (d *Disk) tear(sector []byte, offset int64) {
	delete(d.cache, offset/SectorBytes)
	cut := 1 + d.rng.IntN(SectorBytes-1)
	switch d.rng.IntN(3) {
	case 0:
		d.medium.write(sector[:cut], offset)
	case 1:
		d.medium.write(sector[cut:], offset+int64(cut))
	default:
		garbage := make([]byte, SectorBytes-cut)
		for i := range garbage {
			garbage[i] = byte(d.rng.Uint32())
		}
		d.medium.write(sector[:cut/2], offset)
		d.medium.write(garbage, offset+int64(cut/2))
	}
}

// toCache puts the sector at byte i of w into the cache.
func (d *Disk) toCache(w *Write, i int) {
	c := cached{write: w.number}
	copy(c.data[:], w.data[i:])
	d.cache[(w.offset+int64(i))/SectorBytes] = c
}

// uncache takes back what progress w made.
func (d *Disk) uncache(w *Write) {
	if len(d.cache) == 0 {
		return
	}
	for i := 0; i < len(w.data); i += SectorBytes {
		s := (w.offset + int64(i)) / SectorBytes
		if c, ok := d.cache[s]; ok && c.write == w.number {
			delete(d.cache, s)
		}
	}
}

func (w *Write) sector(i int) []byte { return w.data[i*SectorBytes:][:SectorBytes] }

// draw picks an index with the chance of its weight.
func (d *Disk) draw(weights []int) fate {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := d.rng.IntN(sum)
	for i, w := range weights {
		if n < w {
			return fate(i)
		}
		n -= w
	}
	panic("simdev: no weight drawn")
}

func tally(count [sectorFates]int) string {
	return fmt.Sprintf("sectors: %d kept, %d dropped, %d torn, %d cached",
		count[sectorKept], count[sectorDropped], count[sectorTorn], count[sectorCached])
}
