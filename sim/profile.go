package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
	"github.com/walsidecar/walsidecar/stream"
)

// Kind is what sort of disk a history is played on.
type Kind int

// The kinds of histories.
const (
	Any      Kind = iota // drawn from the seed
	Honest               // crashes, torn and lost unfinished writes, a cache: nothing that was answered is lost
	Late                 // as Honest, and writes of a crashed host may land at any later time
	Failing              // as Honest, and writes, reads and flushes fail or stall, and say so
	Lying                // writes that are answered well and lost or misplaced, bits that rot
	Restored             // as Honest, and the disk is put back to an older snapshot of itself
	Peers                // several machines share the disk: takeovers by the fence, writes in flight that land late
	kinds
)

var kindNames = [...]string{"any", "honest", "late", "failing", "lying", "restored", "peers"}

// String names the kind.
func (k Kind) String() string { return kindNames[k] }

// profile is what a history is like. Weights are relative, chances are per step.
type profile struct {
	kind     Kind
	steps    int
	geometry ringwal.Geometry
	origin   uint64
	through  bool // no volatile cache
	odds     simdev.Odds
	stall    time.Duration // L
	inFlight int           // most frames in flight
	reader   bool          // reads go through package reader and the hot tail
	starved  float64       // chance that no frame buffer is free
	trimmer  bool          // the application trims what it has, so that the log goes round

	// Weights of the requests and of the lengths of payloads.
	appends, creates, trims, seals, deletes, tokens, stats, producers, clients int
	small, medium, large                                                       int
	names                                                                      int    // of streams
	window                                                                     uint32 // largest of a session producer

	// Weights of the steps of a host.
	request, issue, finish, deliver, progress, publish, superblock, maintain, seal, record, read, tick int

	crash      float64 // per step
	startCrash float64 // per device operation of a start
	power      float64 // share of the crashes that hit the disk too
	shutdown   float64 // per step: a clean one
	fault      float64 // per step, of the kinds that have faults

	// With an object store:
	store         bool
	upload        int     // weight of a step of the uploader
	storeFault    float64 // per request
	outage        float64 // per step
	linger, grace time.Duration

	// With several machines:
	abort, abortHangs, volatile bool    // what the target can do
	takeover, pause, idle       float64 // per step; a long time without anything

	lateness int // a write of a crashed host is on its way for about so many steps
}

func (p *profile) String() string {
	g := p.geometry
	return fmt.Sprintf("%s, %d steps, block %d, longest frame %d, ring %d, window %d, checkpoint %d, origin %d, %d in flight, cache %t, reader %t, trimmer %t, store %t",
		p.kind, p.steps, g.BlockBytes, g.MaxFrameBytes, g.CapacityBytes, g.WindowBytes, g.CheckpointMaxBytes, p.origin, p.inFlight, !p.through, p.reader, p.trimmer, p.store)
}

func drawProfile(rng *rand.Rand, kind Kind) *profile {
	if kind == Any {
		// What an honest disk does is what matters most.
		kind = []Kind{Honest, Honest, Honest, Late, Late, Late, Failing, Lying, Lying, Restored}[rng.IntN(10)]
	}
	p := &profile{
		kind: kind, steps: 200 + rng.IntN(1200), through: kind == Lying || rng.IntN(3) == 0,
		stall: time.Second, inFlight: 1 + rng.IntN(12), reader: rng.IntN(4) == 0, trimmer: rng.IntN(4) > 0,
		appends: 40, creates: 4, trims: 4, seals: rng.IntN(2), deletes: rng.IntN(2), tokens: rng.IntN(3), stats: 4, producers: 3, clients: 20,
		small: 30, medium: rng.IntN(40), large: rng.IntN(10), names: 2 + rng.IntN(6), window: 4 + rng.Uint32N(60),
		request: 40, issue: 20, finish: 25, deliver: 30, progress: 3, publish: 20, superblock: 15, maintain: 10, seal: 1, record: 1, read: 3, tick: 6,
		crash: 0.001 + 0.02*rng.Float64()*rng.Float64(), startCrash: 0.06 * rng.Float64() * rng.Float64(), power: rng.Float64(),
		shutdown: 0.004 * rng.Float64(), fault: 0.005 + 0.02*rng.Float64(), lateness: 60,
	}
	if rng.IntN(4) == 0 {
		p.starved = 0.1 * rng.Float64()
	}
	if rng.IntN(3) == 0 { // superblocks take their time
		p.superblock = 1
	}
	if p.trimmer {
		p.trims = 12
	}
	p.geometry = drawGeometry(rng)
	if rng.IntN(2) == 0 { // few streams, and room to empty each
		p.names = 2 + rng.IntN(3)
		p.geometry.CapacityBytes = max(p.geometry.CapacityBytes, uint64(p.geometry.BlockBytes)*stream.TrimReserveShare*2*uint64(p.names+2))
		p.hoards(rng)
	}
	p.origin = drawOrigin(rng, p.geometry)
	if rng.IntN(2) == 0 {
		p.odds = simdev.Odds{Kept: rng.IntN(8), Dropped: rng.IntN(8), Cached: rng.IntN(8), Prefix: rng.IntN(4), OneSector: rng.IntN(4), Mixed: 1 + rng.IntN(3),
			Reaches: rng.IntN(4), Vanishes: rng.IntN(4), Scatters: 1 + rng.IntN(3)}
	}
	return p
}

// hoards makes some applications keep nearly everything, so that the log is full, and
// crashes come often.
func (p *profile) hoards(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		return
	}
	p.trimmer, p.trims, p.deletes, p.seals = false, 3, 0, 0
	p.appends, p.medium, p.large = 60, 30, 60
	p.crash, p.startCrash = 0.01+0.02*rng.Float64(), 0.02*rng.Float64()
}

// drawGeometry is a log of 16 to 1024 blocks: small, so that it is full and wraps soon.
func drawGeometry(rng *rand.Rand) ringwal.Geometry {
	block := uint32(4096)
	if rng.IntN(8) == 0 {
		block <<= 1 + rng.IntN(2)
	}
	frame := block * uint32(1+rng.IntN(4))
	g := ringwal.Geometry{BlockBytes: block, MaxFrameBytes: frame, CheckpointMaxBytes: uint64(frame) / 2 * uint64(1+rng.IntN(5))}
	g.WindowBytes = uint64(frame) + uint64(block)*rng.Uint64N(12)
	// Room for items: as much as the reserves take, or up to eight times that.
	g.CapacityBytes = 1 << 40
	least := g.SystemReserveBytes() * 16 / 15
	g.CapacityBytes = (least + uint64(frame)*(2+rng.Uint64N(6)) + rng.Uint64N(least*(1+rng.Uint64N(6)))) / uint64(block) * uint64(block)
	return g
}

// drawOrigin is 0, the ring's end or so, or near 2^63.
func drawOrigin(rng *rand.Rand, g ringwal.Geometry) uint64 {
	block := uint64(g.BlockBytes)
	switch rng.IntN(5) {
	case 0:
		return ringwal.MaxOrigin - block*rng.Uint64N(2*g.CapacityBytes/block)
	case 1:
		return g.CapacityBytes - block*rng.Uint64N(4)
	}
	return 0
}

// drawStore gives half of the histories an object store. It draws from chances of its
// own, so that the others are what they were before there was one.
func (p *profile) drawStore(rng *rand.Rand) {
	if p.kind == Lying || rng.IntN(2) == 0 {
		return // an uploader cannot go on behind damage: that is what salvage is for
	}
	p.store, p.upload = true, 30+rng.IntN(60)
	p.linger, p.read = time.Duration(50+rng.IntN(5000))*time.Microsecond, 8
	p.grace = time.Duration(1+rng.IntN(3000)) * time.Millisecond
	switch rng.IntN(5) {
	case 0: // many small objects, so that they are compacted, and the old ones deleted
		p.linger, p.upload, p.finish, p.publish, p.tick = 1, 150, 40, 40, 20
		p.steps, p.crash, p.appends, p.creates, p.large = 3*p.steps, p.crash/4, 80, 8, 1
		p.storeFault = 0.1 * rng.Float64() * float64(rng.IntN(2))
		return
	case 1:
		return
	}
	if rng.IntN(3) > 0 {
		p.storeFault = 0.3 * rng.Float64() * rng.Float64()
	}
	if rng.IntN(3) == 0 {
		p.outage = 0.01 * rng.Float64()
	}
}

// drawPeers makes some of the histories of any kind ones of several machines.
func (p *profile) drawPeers(rng *rand.Rand, kind Kind) {
	if kind != Peers && (kind != Any || rng.IntN(4) > 0) {
		return
	}
	g := &p.geometry
	p.kind, p.stall = Peers, time.Second
	p.abort, p.volatile = rng.IntN(2) == 0, rng.IntN(3) == 0
	p.abortHangs = p.abort && rng.IntN(5) == 0
	p.takeover, p.pause = 0.02*rng.Float64(), 0.01*rng.Float64()
	p.crash = 0.004 * rng.Float64()
	p.startCrash = 0.04 * rng.Float64() * rng.Float64()
	p.shutdown = 0.001 * rng.Float64()
	p.lateness, p.idle = 60<<rng.IntN(6), 0.005
	p.steps, p.appends, p.creates, p.request = 2*p.steps, 60, 8, 60
	// Room for the windows that are jumped over, and held back.
	g.CapacityBytes = max(g.CapacityBytes, 16*g.WindowBytes+16*(g.CheckpointMaxBytes+uint64(g.MaxFrameBytes)))
	g.CapacityBytes = g.CapacityBytes / uint64(g.BlockBytes) * uint64(g.BlockBytes)
	if rng.IntN(4) == 0 { // the log goes round, and late writes take their time
		g.BlockBytes, g.MaxFrameBytes = 4096, 8192
		g.WindowBytes, g.CheckpointMaxBytes = uint64(2+rng.IntN(4))*8192, 8192
		g.CapacityBytes = (g.SystemReserveBytes()*16/15 + 2*g.WindowBytes + 8192*(8+rng.Uint64N(16))) / 4096 * 4096
		p.inFlight, p.superblock, p.maintain, p.names, p.power = 8, 30, 30, 2, 1
		p.trimmer, p.trims, p.small, p.medium, p.large, p.creates = true, 20, 10, 20, 60, 10
		p.takeover, p.crash, p.startCrash, p.lateness, p.idle = 0.001, 0.0015, 0.002, 2000, 0.0005
	}
	if rng.IntN(6) == 0 {
		p.superblocksLate(0.03 / float64(1+15*rng.IntN(2)))
	}
	p.origin = drawOrigin(rng, *g)
	p.reader = false
}

// superblocksLate makes hosts of a device that can only preempt plainly crash, most often with
// their machines, while they write superblocks, which then land late: those of starts, where
// these often crash, else those of owners.
func (p *profile) superblocksLate(startCrash float64) {
	p.steps, p.store, p.upload = 1500, false, 0
	p.abort, p.abortHangs, p.volatile = false, false, false
	p.power, p.crash, p.startCrash, p.takeover, p.lateness = 0.7, 0.01, startCrash, 0.02, 3000
	p.superblock, p.record = 60, 20
}

// drawFull makes some of the histories with late writes ones of full logs.
func (p *profile) drawFull(rng *rand.Rand) {
	if (p.kind == Late || p.kind == Peers) && rng.IntN(12) == 0 {
		p.fullOfJumps()
	}
}

// fullOfJumps makes logs so small, uploads so slow and crashes so frequent that the log is full
// and its starts have no room for their jumps.
func (p *profile) fullOfJumps() {
	p.steps, p.reader, p.starved = 600, false, 0
	p.geometry = ringwal.Geometry{BlockBytes: 4096, MaxFrameBytes: 8192, WindowBytes: 24 << 10, CheckpointMaxBytes: 4096}
	p.geometry.CapacityBytes = 1 << 40
	p.geometry.CapacityBytes = (p.geometry.SystemReserveBytes()*16/15 + 80<<10) / 4096 * 4096
	p.store, p.upload, p.storeFault, p.outage, p.linger, p.grace = true, 1, 0.03, 0, time.Millisecond, 100*time.Millisecond
	p.appends, p.creates, p.trims, p.seals, p.deletes, p.tokens, p.producers, p.names = 90, 2, 1, 0, 0, 0, 1, 2
	p.small, p.medium, p.large, p.trimmer, p.inFlight = 10, 40, 50, false, 8
	p.crash, p.startCrash, p.power, p.shutdown, p.lateness = 0.02, 0.02, 0, 0, 5000
	if p.kind == Peers {
		p.steps, p.power, p.takeover, p.pause, p.lateness = 2500, 1, 0.003, 0.001, 2000
		p.crash, p.startCrash, p.request, p.idle = 0.003, 0.01, 100, 0
		p.abort, p.abortHangs, p.volatile = false, false, false
	}
	p.origin = 0
}
