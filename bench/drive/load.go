package drive

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/load"
)

// Phases of the load.
const (
	warming int32 = iota
	measuring
	stopped
)

const (
	// countShards is how many histograms the producers share: one for each would not
	// stay in the processor's caches.
	countShards = 8
	// payloadBytes is the size of the random bytes that records are cut from: enough
	// that no system finds a repetition to compress.
	payloadBytes = 64 << 20
	// timedOf: of a pipelined producer only each timedOf-th record is timed. A look at
	// the clock is a tenth of what the fastest appends take.
	timedOf = 8
)

// generator makes the load in this process.
type generator struct {
	cell    Cell
	payload []byte
	phase   atomic.Int32
	shards  [countShards]shard
	failing sync.Mutex
	failed  error
	running sync.WaitGroup
}

// shard counts the records of some producers.
type shard struct {
	mu      sync.Mutex
	latency load.Histogram
	untimed uint64 // records beside those of latency
}

func newGenerator(c Cell) *generator {
	g := &generator{cell: c, payload: make([]byte, payloadBytes)}
	random := rand.NewChaCha8([32]byte{'b', 'e', 'n', 'c', 'h'})
	_, _ = random.Read(g.payload) // never fails
	return g
}

// closed starts the producers of a closed loop.
func (g *generator) closed(to Appender) {
	for i := range g.cell.Producers {
		g.running.Go(func() { g.fail(g.closedLoop(i, to)) })
	}
}

// pipelined starts one producer that keeps InFlight records in flight.
func (g *generator) pipelined(to Pipeline) {
	g.running.Go(func() { g.fail(g.pipeline(to)) })
}

// closedLoop sends one record after each answer. It means to send the next one at the
// time of the answer: that is where its latency begins.
func (g *generator) closedLoop(producer int, to Appender) error {
	records := g.records(producer)
	due := time.Now()
	for g.phase.Load() != stopped {
		if err := to.Append(producer, records.next()); err != nil {
			return err
		}
		now := time.Now()
		if g.phase.Load() == measuring {
			g.count(producer, now.Sub(due))
		}
		due = now
	}
	return nil
}

// pipeline sends one record for each answer. A record is due when the answer came that
// made room for it.
func (g *generator) pipeline(to Pipeline) error {
	records := g.records(0)
	due := make([]time.Time, g.cell.InFlight)
	sent, untimed := 0, uint64(0)
	now := time.Now()
	for waited := 0; ; waited++ {
		for sent-waited < len(due) && g.phase.Load() != stopped {
			due[sent%len(due)] = now
			if err := to.Submit(records.next()); err != nil {
				return err
			}
			sent++
		}
		if waited == sent {
			break
		}
		if err := to.Wait(); err != nil {
			return err
		}
		timed := waited%timedOf == 0
		if timed {
			now = time.Now()
		}
		if g.phase.Load() != measuring {
			continue
		}
		if timed {
			g.count(0, now.Sub(due[waited%len(due)]))
		} else {
			untimed++
		}
	}
	s := &g.shards[0]
	s.mu.Lock()
	s.untimed += untimed
	s.mu.Unlock()
	return nil
}

func (g *generator) count(producer int, latency time.Duration) {
	s := &g.shards[producer%countShards]
	s.mu.Lock()
	s.latency.Record(latency)
	s.mu.Unlock()
}

// fail keeps the first error, and stops the load.
func (g *generator) fail(err error) {
	if err == nil {
		return
	}
	g.failing.Lock()
	defer g.failing.Unlock()
	g.failed = errors.Join(g.failed, err)
	g.phase.Store(stopped)
}

// stop ends the load and waits for what is in flight.
func (g *generator) stop() (Counted, error) {
	g.phase.Store(stopped)
	g.running.Wait()
	var all load.Histogram
	appends := uint64(0)
	for i := range g.shards {
		all.Add(&g.shards[i].latency)
		appends += g.shards[i].untimed
	}
	appends += all.Count()
	return Counted{
		Appends: appends, P50: micros(all.Quantile(0.5)), P99: micros(all.Quantile(0.99)), P999: micros(all.Quantile(0.999)), Max: micros(all.Max()),
	}, g.failed
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// cutter cuts one record after the other from the random bytes.
type cutter struct {
	from []byte
	at   int
	size int
}

func (g *generator) records(producer int) *cutter {
	spread := len(g.payload) - g.cell.Size
	return &cutter{from: g.payload, at: producer * 1_048_573 % spread, size: g.cell.Size}
}

func (c *cutter) next() []byte {
	if c.at+c.size > len(c.from) {
		c.at = (c.at + 37) % 4096
	}
	record := c.from[c.at : c.at+c.size : c.at+c.size]
	c.at += c.size
	return record
}
