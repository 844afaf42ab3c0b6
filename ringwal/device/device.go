// Package device gives the log its disk: block devices and files behind one
// interface, with direct I/O, data-sync writes and exclusive opening.
//
// Nothing in this package knows what a log is. It runs on Linux only.
package device

import "time"

// MinBlockBytes is the smallest unit of I/O. Devices with 512-byte sectors are
// driven in 4 KiB blocks too: nearly all of them are 4 KiB inside, and a log
// must not depend on which one it was formatted on.
const MinBlockBytes = 4096

// Device is a range of bytes on stable media: a block device, a file, a
// simulated disk or a shaped one.
//
// Offset, length and the address of every buffer are multiples of BlockBytes,
// else ErrNotAligned; the range lies inside [0, SizeBytes), else ErrOutOfRange.
// Both are found out before the kernel is asked. All methods may be called from
// many goroutines at once; overlapping reads and writes at the same time give
// either's bytes per sector.
type Device interface {
	// Path is the name it was opened by, for messages.
	Path() string

	// SizeBytes is the usable size, a multiple of BlockBytes. It does not
	// change while the device is open, even where the medium grows.
	SizeBytes() int64

	// BlockBytes is max(MinBlockBytes, logical block): the unit of offset,
	// length and memory alignment.
	BlockBytes() int

	// ReadAt fills p from offset and returns len(p), or an error that is an
	// *Error and matches ErrRead. A short read is an error.
	ReadAt(p []byte, offset int64) (int, error)

	// WriteSync writes p at offset and returns once it is on stable media. An
	// error matches ErrWrite and leaves the range in an unknown state: each
	// 512-byte sector old, new, or torn. A short write is an error. It is
	// never to be retried in place.
	WriteSync(p []byte, offset int64) error

	// Flush makes the device put everything in its volatile cache on stable
	// media. An error matches ErrFlush.
	Flush() error

	// Close gives the device back. It does not wait for I/O in flight on other
	// goroutines: the descriptor, and with it the exclusive claim, goes when
	// the last of them returned. Calls after Close fail with ErrClosed.
	Close() error
}

// OpenOptions say how to open; the zero value opens for writing without a claim.
type OpenOptions struct {
	// ReadOnly opens without write access and without a claim: safe on a
	// device that another process is writing. WriteSync fails with
	// ErrReadOnly.
	ReadOnly bool

	// Exclusive claims the device: O_EXCL for a block device (the kernel then
	// refuses mounts and other exclusive openers), an exclusive flock for a
	// file. A second opener gets ErrInUse. Not together with ReadOnly.
	Exclusive bool

	// BusyFor is how long to try again while another holds the claim: a
	// process that was just killed keeps it until its last I/O is done.
	BusyFor time.Duration
}

// Open opens the block device or regular file at path with direct I/O, as
// stat says which it is. It fails with ErrInUse (claimed, mounted or held by
// another), ErrNotADevice (neither a block device nor a file), ErrNoDirectIO
// (the filesystem has none), ErrReadOnly (a write-protected device), ErrTooSmall
// (not one block), or the operating system's own error, each with path and what
// to do.
func Open(path string, o OpenOptions) (Device, error) {
	return openRaw(path, o)
}
