// Package simdev is a simulated disk that fails in every way that the log must
// survive, deterministically from a seed and without goroutines or clocks.
//
// A Disk is the medium and the disk's own cache; it outlives crashes. Hosts see
// it through Views, which are device.Devices and also offer a write in two halves
// (Begin, then Finish or Fail), so that a simulator decides what overtakes what.
//
// Every sector of 512 bytes is in one of three places:
//
//	medium   on stable media: a finished write, or what a crash left there
//	cache    seen by reads, but the next flush or crash decides whether it
//	         reaches the medium: a write that had been on its way when its host
//	         crashed, failed, or made progress before it finished
//	flight   begun and not finished: not seen by reads
//
// What happened is in Trace, and the same seed and calls give the same bytes.
package simdev

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// SectorBytes is the unit that a crash keeps, drops or tears: what nearly every
// disk promises to write whole, and what none of them do under a fault.
const SectorBytes = 512

// ErrDead is an operation of a host that has crashed.
var ErrDead = errors.New("this host has crashed")

// Config describes a disk.
type Config struct {
	// Seed decides everything that is left to chance.
	Seed uint64

	// SizeBytes is a positive multiple of BlockBytes.
	SizeBytes int64

	// BlockBytes is a power of two, at least device.MinBlockBytes, which 0
	// means.
	BlockBytes int

	// WriteThrough takes the volatile cache away: a sector is on the medium
	// or it is not.
	WriteThrough bool

	// Odds weigh what chance decides; the zero value means DefaultOdds.
	Odds Odds
}

// Disk is a medium with a cache. Its methods and those of its views may be
// called from many goroutines, but only one at a time gives equal runs.
type Disk struct {
	mu     sync.Mutex
	config Config
	source *rand.PCG
	rng    *rand.Rand
	odds   Odds

	medium medium
	cache  map[int64]cached // by sector number
	views  []*View          // alive, in order of Open
	writes uint64           // number of the newest
	holder *View            // of the reservation; nil: nobody

	faults  []*fault
	onStall func(host string, offset int64, length int)
	trace   trace
}

// cached is a sector that only the disk's cache holds.
type cached struct {
	write uint64 // whose it is: the sectors of one write tend to share a fate
	data  [SectorBytes]byte
}

// New makes a blank disk. It panics where c breaks its own rules.
func New(c Config) *Disk {
	if c.BlockBytes == 0 {
		c.BlockBytes = device.MinBlockBytes
	}
	if c.BlockBytes < device.MinBlockBytes || c.BlockBytes&(c.BlockBytes-1) != 0 {
		panic(fmt.Sprintf("simdev: block of %d bytes", c.BlockBytes))
	}
	if c.SizeBytes <= 0 || c.SizeBytes%int64(c.BlockBytes) != 0 {
		panic(fmt.Sprintf("simdev: size of %d bytes with blocks of %d", c.SizeBytes, c.BlockBytes))
	}
	source := rand.NewPCG(c.Seed, c.Seed^0x9e3779b97f4a7c15)
	d := &Disk{
		config: c,
		source: source,
		rng:    rand.New(source),
		medium: newMedium(c.SizeBytes),
		cache:  map[int64]cached{},
	}
	d.setOdds(c.Odds)
	return d
}

// Seed is the seed that the disk was made with.
func (d *Disk) Seed() uint64 { return d.config.Seed }

// Open attaches a host. Any number may be attached at once, as with a shared
// volume: only a reservation keeps them apart.
func (d *Disk) Open(host string) *View {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := &View{disk: d, host: host, size: d.config.SizeBytes}
	d.views = append(d.views, v)
	d.note(v, "open", 0, 0, 0, "")
	return v
}

// Grow makes the disk larger, by blank space. Views that are open keep the size
// they saw.
func (d *Disk) Grow(sizeBytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if sizeBytes < d.config.SizeBytes || sizeBytes%int64(d.config.BlockBytes) != 0 {
		panic(fmt.Sprintf("simdev: grow from %d to %d bytes", d.config.SizeBytes, sizeBytes))
	}
	d.config.SizeBytes = sizeBytes
	d.medium.grow(sizeBytes)
	d.note(nil, "grow", 0, 0, int(sizeBytes), "")
}

// Peek reads what a host would see, at any offset and without faults.
func (d *Disk) Peek(p []byte, offset int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read(p, offset)
}

// PeekMedium reads what is on stable media, at any offset and without faults.
func (d *Disk) PeekMedium(p []byte, offset int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.medium.read(p, offset)
}

// Poke writes p to the medium at any offset, without faults, over whatever the
// cache holds there: to plant a state.
func (d *Disk) Poke(p []byte, offset int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(nil, "poke", 0, offset, len(p), "")
	d.medium.write(p, offset)
	for s := offset / SectorBytes; s*SectorBytes < offset+int64(len(p)); s++ {
		delete(d.cache, s)
	}
}

// Rot flips the bits of mask in the byte at offset of the medium.
func (d *Disk) Rot(offset int64, mask byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rot(offset, mask)
}

// RotIn flips one bit at random in [from, to) of the medium and returns the
// offset of its byte.
func (d *Disk) RotIn(from, to int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	offset := from + d.rng.Int64N(to-from)
	d.rot(offset, 1<<d.rng.IntN(8))
	return offset
}

func (d *Disk) rot(offset int64, mask byte) {
	var b [1]byte
	d.medium.read(b[:], offset)
	d.note(nil, "rot", 0, offset, 1, fmt.Sprintf("%#02x to %#02x", b[0], b[0]^mask))
	b[0] ^= mask
	d.medium.write(b[:], offset)
}

// read is what a host sees: the cache over the medium.
func (d *Disk) read(p []byte, offset int64) {
	d.medium.read(p, offset)
	if len(d.cache) == 0 {
		return
	}
	end := offset + int64(len(p))
	for s := offset / SectorBytes; s*SectorBytes < end; s++ {
		c, ok := d.cache[s]
		if !ok {
			continue
		}
		from := max(s*SectorBytes, offset)
		to := min((s+1)*SectorBytes, end)
		copy(p[from-offset:to-offset], c.data[from-s*SectorBytes:])
	}
}

// harden puts whole sectors on the medium; the cache no longer speaks for them.
func (d *Disk) harden(p []byte, offset int64) {
	d.medium.write(p, offset)
	if len(d.cache) == 0 {
		return
	}
	for s := offset / SectorBytes; s < (offset+int64(len(p)))/SectorBytes; s++ {
		delete(d.cache, s)
	}
}
