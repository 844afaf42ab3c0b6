package ringwal

// For the tests that need package stream.

// MergeBoundaries merges what may be merged at that proven position.
func MergeBoundaries(sb *Superblock, proven uint64) { sb.mergeBoundaries(proven) }

// FixSums makes the sums of the frame at that offset of a device's bytes hold.
func FixSums(b []byte, at int64) { fixSums(b, at) }
