package simdev

import (
	"fmt"
	"maps"
	"math/rand/v2"
)

// Snapshot is what was on stable media at one time.
type Snapshot struct {
	medium    medium
	sizeBytes int64
}

// Snapshot keeps what is on stable media now. It costs little: pages are shared
// until one side writes them.
func (d *Disk) Snapshot() *Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(nil, "snapshot", 0, 0, 0, "")
	return &Snapshot{medium: d.medium.share(), sizeBytes: d.config.SizeBytes}
}

// Restore makes the disk an old snapshot, of itself or of another: every host
// crashes, and medium and size are those of s, nothing else. s can be restored
// again.
func (d *Disk) Restore(s *Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crash()
	clear(d.cache)
	d.medium = s.medium.share()
	d.config.SizeBytes = s.sizeBytes
	d.note(nil, "restore", 0, 0, 0, "")
}

// Clone is a disk with equal medium, cache, odds and future, that shares nothing
// with this one; hosts, reservation and faults stay behind. Equal calls do equal
// things to both.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	state, err := d.source.MarshalBinary()
	source := new(rand.PCG)
	if err == nil {
		err = source.UnmarshalBinary(state)
	}
	if err != nil {
		panic(fmt.Sprintf("simdev: copy the random source: %v", err))
	}
	return &Disk{
		config: d.config,
		source: source,
		rng:    rand.New(source),
		odds:   d.odds,
		medium: d.medium.share(),
		cache:  maps.Clone(d.cache),
		writes: d.writes,
		trace:  d.trace.clone(),
	}
}
