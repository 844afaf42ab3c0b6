package upload

// Limits of the format. What exceeds one is refused when it is written, and counts as
// damaged when it is read: no length is believed beyond them.
const (
	// BlockBytes is the raw size that a block is filled to. One with a single record
	// may be larger, and one of a journal by its last entry.
	BlockBytes = 256 << 10
	// MaxBlockBytes bounds the raw size of a block: the longest frame is 16 MiB.
	MaxBlockBytes = 17 << 20
	// MaxObjectBytes bounds an object.
	MaxObjectBytes = 1 << 30
	// MaxIndexBytes bounds the raw index of a data object: 56 bytes per block and 16
	// per stream.
	MaxIndexBytes = 64 << 20
	// MaxGroupsBytes bounds the raw contents of an index object.
	MaxGroupsBytes = 256 << 20
	// MaxStateBytes bounds the raw contents of a state object: a checkpoint (at most
	// 64 MiB) and its joins.
	MaxStateBytes = 80 << 20
	// MaxManifestBytes bounds a manifest.
	MaxManifestBytes = 16 << 20
	// compressFrom is the raw size below which nothing is compressed: it would cost
	// more than it saves.
	compressFrom = 128
)
