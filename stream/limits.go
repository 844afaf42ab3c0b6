package stream

// Limits of the state and of requests. Each is part of the contract with clients;
// those that bound a checkpoint are also checked when one is decoded.
const (
	// MaxStreams is the number of streams that may exist at once in one log.
	MaxStreams = 65_536
	// MaxNameBytes bounds the name of a stream and of a named producer.
	MaxNameBytes = 255
	// MaxTokenBytes bounds the token of a stream.
	MaxTokenBytes = 64
	// MaxHeadersBytes bounds the encoded headers block of one record.
	MaxHeadersBytes = 16 << 10
	// MaxHeaders bounds the number of headers of one record.
	MaxHeaders = 64
	// MaxHeaderKeyBytes bounds the key of one header.
	MaxHeaderKeyBytes = 255
	// MaxBatchRecords bounds the entries of one batch.
	MaxBatchRecords = 4_096
	// MaxNamedProducers is the number of named producers that may exist at once.
	MaxNamedProducers = 16_384
	// MaxSessionProducers is the number of session producers that may exist at once.
	MaxSessionProducers = 8_192
	// MaxWindow is the largest window of a session producer, in slots. A batch in
	// flight takes one slot per distinct stream in it, a refused one takes one.
	MaxWindow = 8_192
	// DefaultWindow is the window of a session producer that asks for 0 slots.
	DefaultWindow = 1_024
	// MaxIndexEntries bounds the entries of an [Index] over all streams (24 bytes
	// each). It is 16 per stream when there are [MaxStreams] streams.
	MaxIndexEntries = 1 << 20
	// SessionShare: session producers take at most 1/SessionShare of what a
	// checkpoint may take, so that they cannot keep streams from being made.
	SessionShare = 2
	// TrimReserveShare: at most 1/TrimReserveShare of the ring is kept for emptying
	// streams one by one, and as much for trims of half a stream.
	TrimReserveShare = 16
	// CheckpointShare: appends are short of room when less than 1/CheckpointShare of
	// the ring is left to them; as much must be gained by a checkpoint before that.
	CheckpointShare = 8
	// MaxListed bounds the streams that one call of List returns.
	MaxListed = 1_000
)
