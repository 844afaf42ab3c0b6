// Package load measures a sidecar: it makes the load of `walsidecar bench`, in a
// process apart from the sidecar's, and beside it what the raw device and the door
// alone do, in turns, so that all of them meet the same machine.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// Cell is one measurement.
type Cell struct {
	SizeBytes     int                // payload of a record
	Producers     int                // goroutines that append
	InFlight      int                // records that a producer has unanswered; 1 is the closed loop
	RatePerSecond float64            // open loop: records of all producers together; 0: as many as go through
	Duration      time.Duration      // of the load
	Door          string             // a name of Doors
	Waiting       walsidecar.Waiting // of the client, in shared memory
}

// Doors are the doors that appends can go through, with that of the sessions. Over HTTP a
// session only makes and removes the stream.
var Doors = map[string]walsidecar.Door{"uds": walsidecar.DoorSocket, "shm": walsidecar.DoorShm, doorHTTP: walsidecar.DoorSocket}

const (
	// sessionBytes is how many bytes of appends one session keeps in flight; a cell
	// that has more takes several sessions. A sidecar reads no more of one session
	// than 4 MiB ahead.
	sessionBytes = 3 << 20
	// maxSessions bounds the sessions of a cell.
	maxSessions = 32
	// messageBytes is what a record takes in flight beside its payload.
	messageBytes = 64
	// payloadBytes is the size of the random bytes that payloads are cut from.
	payloadBytes = 8 << 20
)

// sessions is how many sessions a cell needs.
func (c *Cell) sessions() int {
	if c.Door == doorHTTP {
		return 1
	}
	requests := c.Producers * c.InFlight
	byBytes := (requests*(c.SizeBytes+messageBytes) + sessionBytes - 1) / sessionBytes
	byRequests := (requests + walsidecar.MaxInFlight - 1) / walsidecar.MaxInFlight
	return min(max(byBytes, byRequests, 1), c.Producers, maxSessions)
}

// generator appends to one sidecar. Its phases share the sessions.
type generator struct {
	cell     Cell
	sessions []*walsidecar.Client
	web      *web            // nil unless the door is HTTP
	streams  []string        // of the sessions, one each
	appended []atomic.Uint64 // the highest offset of each stream, plus 1
	payload  []byte
	counts   [countShards]shard
}

// countShards is how many histograms the producers of a phase share: one for each
// would not stay in the processor's caches.
const countShards = 8

// shard counts the records of some producers.
type shard struct {
	mu      sync.Mutex
	latency Histogram
	untimed uint64 // records beside those of latency
	onTime  uint64
}

// tally is what phases of load counted.
type tally struct {
	latency Histogram     // from the intended send time; of every record, or every timedOf-th
	onTime  uint64        // records acked before their phase's time was over
	acked   uint64        // records
	lasted  time.Duration // the phases, without what was in flight at their ends
}

// newGenerator connects the sessions of a cell.
func newGenerator(ctx context.Context, t Target, cell Cell) (*generator, error) {
	n := cell.sessions()
	g := &generator{cell: cell, appended: make([]atomic.Uint64, n), payload: make([]byte, payloadBytes)}
	random := rand.NewChaCha8([32]byte{'w', 'a', 'l'})
	_, _ = random.Read(g.payload) // never fails
	if cell.Door == doorHTTP {
		g.web = newWeb(t.HTTP, cell.Producers*cell.InFlight+1) // a ping needs one too
	}
	inFlight := min((cell.Producers*cell.InFlight+n-1)/n+cell.InFlight, walsidecar.MaxInFlight)
	for i := range n {
		c, err := walsidecar.Dial(ctx, t.Socket, walsidecar.WithName("walsidecar bench"), walsidecar.WithDoor(Doors[cell.Door]),
			walsidecar.WithInFlight(inFlight, 2*sessionBytes), walsidecar.WithWaitWhileFull(), walsidecar.WithWaiting(cell.Waiting))
		if err != nil {
			g.close()
			return nil, err
		}
		g.sessions = append(g.sessions, c)
		g.streams = append(g.streams, fmt.Sprintf("bench/%016x/%d", rand.Uint64(), i))
	}
	for i, c := range g.sessions {
		if _, err := c.CreateStream(ctx, g.streams[i]); err != nil {
			g.close()
			return nil, err
		}
	}
	return g, nil
}

func (g *generator) close() {
	if g.web != nil {
		g.web.client.CloseIdleConnections()
	}
	for _, c := range g.sessions {
		_ = c.Close() // never fails
	}
}

// remove deletes the streams of the load.
func (g *generator) remove(ctx context.Context) error {
	var errs []error
	for i, c := range g.sessions {
		errs = append(errs, c.DeleteStream(ctx, g.streams[i]))
	}
	return errors.Join(errs...)
}

// phase makes the load for so long and waits for what is in flight; collect then
// has its numbers, apart so that it does not count as the load's processor time.
func (g *generator) phase(ctx context.Context, d time.Duration, into *tally) error {
	open := g.web == nil && g.cell.RatePerSecond > 0
	producers := make([]producer, g.cell.Producers)
	if open {
		producers = producers[:len(g.sessions)] // one sends for all that share a session
	}
	start := time.Now()
	var group sync.WaitGroup
	for i := range producers {
		p := &producers[i]
		*p = producer{g: g, number: i, of: len(producers), session: i % len(g.sessions), start: start, until: start.Add(d)}
		group.Go(func() {
			switch {
			case g.web != nil:
				p.overHTTP(ctx)
			case open:
				p.openLoop(ctx, max(g.cell.Producers*g.cell.InFlight/len(producers), 1))
			default:
				p.closedLoop(ctx)
			}
		})
	}
	group.Wait()
	for i := range producers {
		if err := producers[i].err; err != nil {
			return err
		}
	}
	into.lasted += d
	return nil
}

// collect moves what the shards counted to into.
func (g *generator) collect(into *tally) {
	for i := range g.counts {
		c := &g.counts[i]
		into.latency.Add(&c.latency)
		into.onTime += c.onTime
		into.acked += c.latency.Count() + c.untimed
		c.latency, c.untimed, c.onTime = Histogram{}, 0, 0
	}
}

// trim gives up what all sessions have appended so far.
func (g *generator) trim(ctx context.Context, through *walsidecar.Client) error {
	for i := range g.streams {
		if before := g.appended[i].Load(); before > 0 {
			if _, err := through.Trim(ctx, g.streams[i], before); err != nil {
				return err
			}
		}
	}
	return nil
}

// producer appends records in one phase.
type producer struct {
	g       *generator
	number  int // of so many
	of      int
	session int
	start   time.Time
	until   time.Time
	sent    int
	untimed uint64
	onTime  uint64 // of those
	err     error
}

const (
	// With timedFrom records of a producer in flight, only each timedOf-th is timed: a
	// look at the clock costs as much as an eighth of an append through shared memory.
	timedFrom = 64
	timedOf   = 8
)

// flying is a record in flight.
type flying struct {
	ticket walsidecar.Ticket
	due    time.Time // when it was sent, or should have been
}

// closedLoop keeps InFlight records in flight, and sends one for each answer. Where each
// is timed, one that is sent right after an answer counts from the time of that.
func (p *producer) closedLoop(ctx context.Context) {
	ring := make([]flying, p.g.cell.InFlight)
	every := 1
	if len(ring) >= timedFrom {
		every = timedOf
	}
	now := time.Now()
	defer p.countUntimed()
	for waited := 0; ; waited++ {
		for first := every == 1; p.sent-waited < len(ring) && now.Before(p.until); first = false {
			if !first && p.sent%every == 0 {
				now = time.Now()
			}
			ticket, err := p.submit(ctx)
			if err != nil {
				p.err = err
				return
			}
			ring[p.sent%len(ring)] = flying{ticket, now}
			p.sent++
		}
		if waited == p.sent {
			return
		}
		f := &ring[waited%len(ring)]
		if waited%every == 0 {
			now = p.wait(ctx, f)
		} else if _, p.err = f.ticket.Wait(ctx); p.err == nil {
			p.untimed++
			if now.Before(p.until) {
				p.onTime++
			}
		}
		if p.err != nil {
			return
		}
	}
}

// countUntimed counts the records that were not timed.
func (p *producer) countUntimed() {
	c := &p.g.counts[p.number%countShards]
	c.mu.Lock()
	c.untimed += p.untimed
	c.onTime += p.onTime
	c.mu.Unlock()
}

// due is when the producer's n-th record is to be sent in an open loop.
func (p *producer) due(n int) time.Time {
	interval := float64(time.Second) / p.g.cell.RatePerSecond
	return p.start.Add(time.Duration(float64(n*p.of+p.number) * interval))
}

// record is the producer's n-th record.
func (p *producer) record(n int) []byte {
	size := p.g.cell.SizeBytes
	at := 0
	if spare := len(p.g.payload) - size; spare > 0 {
		at = (p.number*7919 + n*size) % spare
	}
	return p.g.payload[at : at+size]
}

func (p *producer) submit(ctx context.Context) (walsidecar.Ticket, error) {
	return p.g.sessions[p.session].Submit(ctx, p.g.streams[p.session], p.record(p.sent))
}

// wait waits for one record, counts it, and returns the time.
func (p *producer) wait(ctx context.Context, f *flying) time.Time {
	result, err := f.ticket.Wait(ctx)
	now := time.Now()
	if err != nil {
		p.err = err
		return now
	}
	p.count(f.due, now, result.Offset)
	return now
}

// count counts a record that was due then and acked now.
func (p *producer) count(due, now time.Time, offset uint64) {
	c := &p.g.counts[p.number%countShards]
	c.mu.Lock()
	if p.g.cell.RatePerSecond > 0 && due.Sub(p.start) < openSettle && p.until.Sub(p.start) > openSettle {
		c.untimed++
	} else {
		c.latency.Record(now.Sub(due))
	}
	if now.Before(p.until) {
		c.onTime++
	}
	c.mu.Unlock()
	raise(&p.g.appended[p.session], offset+1)
}

// raise sets a to v unless it is higher.
func raise(a *atomic.Uint64, v uint64) {
	for {
		old := a.Load()
		if v <= old || a.CompareAndSwap(old, v) {
			return
		}
	}
}
