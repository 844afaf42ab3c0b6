// Package simdev is a simulated disk that fails in every way that the log must
// survive, deterministically from a seed and without goroutines.
package simdev

import (
	"errors"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

// SectorBytes is the unit that a crash keeps, drops or tears.
const SectorBytes = 512

// Config describes a disk.
type Config struct {
	Seed       uint64
	SizeBytes  int64 // a multiple of BlockBytes
	BlockBytes int   // power of two, at least device.MinBlockBytes; 0: device.MinBlockBytes
}

// Disk is the medium: it outlives crashes. Hosts see it through Views.
type Disk struct{}

// New makes a blank disk.
func New(c Config) *Disk { return &Disk{} }

// Open attaches a host to the disk.
func (d *Disk) Open(host string) *View { return &View{} }

// Crash cuts the power of every host: their views are dead. Each sector of what
// is not durable is kept, dropped, torn, or kept only in the disk's cache (seen
// by reads until the next flush or crash decides).
func (d *Disk) Crash() {}

// View is one host's device: a device.Device, and explicit halves of a write.
type View struct{}

var _ device.Device = (*View)(nil)

// Write is a write in flight.
type Write struct{}

// Begin starts a write; nothing of it is on the disk yet.
func (v *View) Begin(p []byte, offset int64) (*Write, error) { return nil, errors.New("skeleton") }

// Finish completes w: durable, unless a fault says otherwise.
func (v *View) Finish(w *Write) error { return errors.New("skeleton") }

// Fail completes w with err: each sector is on the medium or is not.
func (v *View) Fail(w *Write, err error) error { return errors.New("skeleton") }

func (v *View) Path() string                               { return "" }
func (v *View) SizeBytes() int64                           { return 0 }
func (v *View) BlockBytes() int                            { return 0 }
func (v *View) ReadAt(p []byte, offset int64) (int, error) { return 0, errors.New("skeleton") }
func (v *View) WriteSync(p []byte, offset int64) error     { return errors.New("skeleton") }
func (v *View) Flush() error                               { return errors.New("skeleton") }
func (v *View) Close() error                               { return nil }
