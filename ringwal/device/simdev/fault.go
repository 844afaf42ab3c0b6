package simdev

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// Kind is a way to fail.
type Kind int

// The faults that can be injected. Rot, Crash, Restore and Poke are methods of
// Disk.
const (
	LostWrite        Kind = iota + 1 // answered well, and nothing is written
	MisdirectedWrite                 // answered well, and written somewhere else
	ShortWrite                       // only whole blocks at its beginning; device.ErrShort
	WriteError                       // EIO; some of it may be written
	ReadError                        // EIO
	FlushError                       // EIO; the cache stays as it is
	NoSpace                          // ENOSPC; its beginning may be written
	Conflict                         // EBADE, a reservation conflict; nothing is written
	Stall                            // no answer for a long time: see Write.Stalled and OnStall
)

var kindNames = [...]string{"", "lost write", "misdirected write", "short write", "EIO on write", "EIO on read",
	"EIO on flush", "ENOSPC", "reservation conflict", "stall"}

// String names the fault as the trace does.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

func (k Kind) op() device.Op {
	switch k {
	case ReadError:
		return device.OpRead
	case FlushError:
		return device.OpFlush
	}
	return device.OpWrite
}

// Fault says what goes wrong, where and how often. A write is hit when it
// begins, and by one fault at most: the first that was injected.
type Fault struct {
	Kind Kind

	// From and To are the bytes [From, To) that an operation must touch to be
	// hit; both 0: anywhere. FlushError has no place.
	From, To int64

	// Skip is how many such operations pass before.
	Skip int

	// Times is how many it hits; 0: all, until it is healed.
	Times int

	// Chance is how likely each is hit; 0 means always.
	Chance float64

	// By is how far a MisdirectedWrite lands behind its place, in bytes, a
	// multiple of the block and modulo the disk; 0: anywhere else.
	By int64
}

type fault struct {
	Fault
	id   int
	seen int
	hits int
}

// Inject arms f and returns its number for Heal and Hits.
func (d *Disk) Inject(f Fault) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := 1
	if n := len(d.faults); n > 0 {
		id = d.faults[n-1].id + 1
	}
	d.faults = append(d.faults, &fault{Fault: f, id: id})
	d.note(nil, "inject", 0, f.From, int(f.To-f.From), f.Kind.String())
	return id
}

// Heal disarms a fault.
func (d *Disk) Heal(id int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.faults {
		if f.id == id {
			// It stays in the list for Hits, and so that numbers stay
			// unique.
			f.Times = -1
			d.note(nil, "heal", 0, 0, 0, f.Kind.String())
		}
	}
}

// HealAll disarms all faults.
func (d *Disk) HealAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.faults {
		f.Times = -1
	}
	d.note(nil, "heal", 0, 0, 0, "all")
}

// Hits is how many operations a fault has hit.
func (d *Disk) Hits(id int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.faults, func(f *fault) bool { return f.id == id })
	if i < 0 {
		return 0
	}
	return d.faults[i].hits
}

// OnStall sets what WriteSync calls, without holding a lock, when a Stall hits
// it: to wait, to move a simulated clock, or to crash the host.
func (d *Disk) OnStall(f func(host string, offset int64, length int)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onStall = f
}

// hit finds the fault that an operation meets.
func (d *Disk) hit(op device.Op, offset int64, length int) (Fault, bool) {
	for _, f := range d.faults {
		if f.op(op) && f.touches(offset, length) && f.strikes(d) {
			return f.Fault, true
		}
	}
	return Fault{}, false
}

func (f *fault) op(op device.Op) bool { return f.Kind.op() == op }

func (f *fault) touches(offset int64, length int) bool {
	if f.Kind == FlushError || (f.From == 0 && f.To == 0) {
		return true
	}
	return offset < f.To && offset+int64(length) > f.From
}

// strikes counts an operation that the fault could hit.
func (f *fault) strikes(d *Disk) bool {
	if f.Times < 0 || (f.Times > 0 && f.hits >= f.Times) {
		return false
	}
	f.seen++
	if f.seen <= f.Skip {
		return false
	}
	if f.Chance > 0 && d.rng.Float64() >= f.Chance {
		return false
	}
	f.hits++
	return true
}

// apply does what the disk does with a write at its end.
func (d *Disk) apply(w *Write) (note string, err error) {
	note = w.fault.Kind.String()
	switch w.fault.Kind {
	case LostWrite:
	case MisdirectedWrite:
		at := d.misdirected(w)
		d.harden(w.data, at)
		note = fmt.Sprintf("%s: at offset %d", note, at)
	case ShortWrite:
		blocks := len(w.data) / d.config.BlockBytes
		done := d.rng.IntN(max(blocks, 1)) * d.config.BlockBytes
		d.harden(w.data[:done], w.offset)
		note = fmt.Sprintf("%s: %d bytes", note, done)
		err = w.failure(device.ErrShort, done)
	case WriteError:
		note = fmt.Sprintf("%s: %s", note, d.settle(w, d.odds.crash()))
		err = w.failure(syscall.EIO, 0)
	case NoSpace:
		none := Odds{Dropped: 1, Prefix: 1}
		note = fmt.Sprintf("%s: %s", note, d.settle(w, none.crash()))
		err = w.failure(syscall.ENOSPC, 0)
	case Conflict:
		err = w.failure(syscall.EBADE, 0)
	default:
		d.harden(w.data, w.offset)
	}
	return note, err
}

// misdirected is where a misdirected write lands: a block inside the disk, not
// its own.
func (d *Disk) misdirected(w *Write) int64 {
	block := int64(d.config.BlockBytes)
	room := (d.config.SizeBytes-int64(len(w.data)))/block + 1 // places it fits
	if room < 2 {
		return w.offset
	}
	own := w.offset / block
	if w.fault.By != 0 {
		return (own + w.fault.By/block%room + room) % room * block
	}
	return (own + 1 + d.rng.Int64N(room-1)) % room * block
}
