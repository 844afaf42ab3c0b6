package simdev

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// View is one host's device. As a device.Device every call is done when it
// returns; Begin, Progress, Finish and Fail give a simulator the steps between.
// Memory needs no alignment: only a real device can know what its bus wants.
type View struct {
	disk     *Disk
	host     string
	size     int64
	inFlight []*Write
	dead     bool
	closed   bool
}

var _ device.Device = (*View)(nil)

// Write is a write in flight.
type Write struct {
	view   *View
	number uint64
	offset int64
	data   []byte // as it was at Begin
	source []byte // the caller's buffer
	fault  Fault  // Kind 0: none
	ended  bool
	err    error // decided before Finish: aborted
}

// Number counts the writes of a disk from 1; the trace names them by it.
func (w *Write) Number() uint64 { return w.number }

// Offset is where it writes, in bytes.
func (w *Write) Offset() int64 { return w.offset }

// Length is how many bytes it writes.
func (w *Write) Length() int { return len(w.data) }

// Stalled reports whether a Stall hit it: the simulator should finish it only
// after a long time, or never.
func (w *Write) Stalled() bool { return w.fault.Kind == Stall }

// Path is "sim:" and the host.
func (v *View) Path() string { return "sim:" + v.host }

// SizeBytes is the disk's size when the view was opened.
func (v *View) SizeBytes() int64 { return v.size }

// BlockBytes is the disk's block.
func (v *View) BlockBytes() int { return v.disk.config.BlockBytes }

// InFlight is the writes begun and not ended, in order of Begin.
func (v *View) InFlight() []*Write {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	return slices.Clone(v.inFlight)
}

// ReadAt is device.Device's. It sees medium and cache, not what is in flight.
func (v *View) ReadAt(p []byte, offset int64) (int, error) {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := device.CheckRange(v, device.OpRead, p, offset); err != nil {
		return 0, err
	}
	if err := v.unusable(device.OpRead, p, offset); err != nil {
		return 0, err
	}
	if f, hit := d.hit(device.OpRead, offset, len(p)); hit {
		d.note(v, "read", 0, offset, len(p), f.Kind.String())
		return 0, &device.Error{Op: device.OpRead, Path: v.Path(), Offset: offset, Length: len(p), Err: syscall.EIO}
	}
	d.read(p, offset)
	return len(p), nil
}

// WriteSync is device.Device's: Begin and Finish at once. A Stall calls what
// OnStall was given in between.
func (v *View) WriteSync(p []byte, offset int64) error {
	w, err := v.begin(p, offset, p)
	if err != nil {
		return err
	}
	if w.Stalled() {
		v.disk.mu.Lock()
		onStall := v.disk.onStall
		v.disk.mu.Unlock()
		if onStall != nil {
			onStall(v.host, offset, len(p))
		}
	}
	return v.Finish(w)
}

// Flush is device.Device's. What the cache holds reaches the medium, or turns
// out to be gone: a cache that lost its power before the flush has nothing left
// to write and answers that all is well.
func (v *View) Flush() error {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := v.unusable(device.OpFlush, nil, 0); err != nil {
		return err
	}
	if f, hit := d.hit(device.OpFlush, 0, 0); hit {
		d.note(v, "flush", 0, 0, 0, f.Kind.String())
		return &device.Error{Op: device.OpFlush, Path: v.Path(), Err: syscall.EIO}
	}
	d.note(v, "flush", 0, 0, 0, d.settleCache(d.odds.flush()))
	return nil
}

// Close is device.Device's. Writes in flight stay so.
func (v *View) Close() error {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	v.closed = true
	return nil
}

// Begin starts a write: nothing of it is seen or durable yet. The error is for
// what a real device finds out at once. p must stay as it is until the write
// ended; Finish panics if it did not.
func (v *View) Begin(p []byte, offset int64) (*Write, error) {
	return v.begin(p, offset, slices.Clone(p))
}

func (v *View) begin(p []byte, offset int64, data []byte) (*Write, error) {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := device.CheckRange(v, device.OpWrite, p, offset); err != nil {
		return nil, err
	}
	if err := v.unusable(device.OpWrite, p, offset); err != nil {
		return nil, err
	}
	d.writes++
	w := &Write{view: v, number: d.writes, offset: offset, data: data, source: p}
	note := ""
	if d.holder != nil && d.holder != v {
		w.fault = Fault{Kind: Conflict}
	} else if f, hit := d.hit(device.OpWrite, offset, len(p)); hit {
		w.fault = f
	}
	if w.fault.Kind != 0 {
		note = w.fault.Kind.String()
	}
	v.inFlight = append(v.inFlight, w)
	d.note(v, "begin", w.number, offset, len(p), note)
	return w, nil
}

// Progress moves a random part of w's sectors into the disk's cache: reads see
// them, and a crash may take them back. On a disk without a cache it does nothing.
func (v *View) Progress(w *Write) {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	w.mustBeIn(v)
	if w.ended || d.config.WriteThrough || w.fault.Kind == Conflict || w.fault.Kind == LostWrite || w.fault.Kind == MisdirectedWrite {
		return
	}
	moved := 0
	for i := 0; i < len(w.data); i += SectorBytes {
		if d.rng.IntN(2) == 0 {
			d.toCache(w, i)
			moved++
		}
	}
	d.note(v, "progress", w.number, w.offset, len(w.data), fmt.Sprintf("%d sectors in the cache", moved))
}

// Finish ends w as the disk answers it: nil and all of it on the medium, unless
// a fault hit it. After a crash of the host it returns ErrDead.
func (v *View) Finish(w *Write) error {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := v.end(w); err != nil {
		return err
	}
	if !bytes.Equal(w.source, w.data) {
		panic(fmt.Sprintf("simdev: the buffer of write %d (offset %d, %d bytes) changed in flight", w.number, w.offset, len(w.data)))
	}
	d.uncache(w)
	note, err := d.apply(w)
	d.note(v, "finish", w.number, w.offset, len(w.data), note)
	return err
}

// Fail ends w with err, a syscall.Errno or a sentinel of package device: chance
// decides which sectors are on the medium. It returns the error as a device gives
// it. After a crash of the host that is ErrDead.
func (v *View) Fail(w *Write, err error) error {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if ended := v.end(w); ended != nil {
		return ended
	}
	d.uncache(w)
	d.note(v, "fail", w.number, w.offset, len(w.data), fmt.Sprintf("%v: %s", err, d.settle(w, d.odds.crash())))
	return w.failure(err, 0)
}

// end takes w out of flight.
func (v *View) end(w *Write) error {
	w.mustBeIn(v)
	if w.ended {
		if w.err == nil {
			panic(fmt.Sprintf("simdev: write %d ended twice", w.number))
		}
		err := w.err
		w.err = nil
		return err
	}
	w.ended = true
	v.inFlight = slices.DeleteFunc(v.inFlight, func(other *Write) bool { return other == w })
	return nil
}

func (w *Write) mustBeIn(v *View) {
	if w.view != v {
		panic(fmt.Sprintf("simdev: write %d belongs to %s, not %s", w.number, w.view.Path(), v.Path()))
	}
}

// failure is err in the form of a device.
func (w *Write) failure(err error, done int) error {
	return &device.Error{Op: device.OpWrite, Path: w.view.Path(), Offset: w.offset, Length: len(w.data), Done: done, Err: err}
}

// unusable is the error of a view that has crashed or was closed.
func (v *View) unusable(op device.Op, p []byte, offset int64) error {
	var err error
	switch {
	case v.dead:
		err = ErrDead
	case v.closed:
		err = device.ErrClosed
	default:
		return nil
	}
	return &device.Error{Op: op, Path: v.Path(), Offset: offset, Length: len(p), Err: err}
}
