// Package stream is the state machine of the commit loop: named streams with
// dense offsets, batches with preconditions, session and named producers,
// tokens, trim and delete, and the items that carry all of it through the log.
//
// The parts:
//
//   - [Table] is the state. It changes only by items, at commit and at recovery
//     by the same code, and goes into the log whole as a checkpoint.
//   - [Committer] decides requests against a Table and writes their items into
//     the open frame of a ringwal.Log.
//   - [ItemReader] and [Items] decode the items of a frame for recovery, reader,
//     replay and salvage.
//   - [Directory] and [Index] are what a reader derives from durable frames:
//     which streams exist, and where in the log their records lie.
//
// Nothing here reads a clock, draws a random number, starts a goroutine or does
// I/O: times and random numbers are arguments. No type is safe for concurrent
// use; each has one owner.
package stream

// ID names one life of a stream. Ids are issued from 1 in log order and never
// reused; 0 is no stream. A name that is deleted and created again has a new ID.
type ID uint64

// ProducerID names a producer; 0 is no producer. Ids of session producers have
// the top bit set and are otherwise random, so that a client cannot guess the
// producer of another one; ids of named producers are issued from 1.
type ProducerID uint64

const sessionProducerBit = ProducerID(1) << 63

// IsSession reports whether id belongs to a session producer.
func (id ProducerID) IsSession() bool { return id&sessionProducerBit != 0 }

// Entry is one record to append.
type Entry struct {
	Stream ID
	// Payload may lie in memory that the client can still change: it is read
	// once, into the frame, and checksummed there.
	Payload []byte
	// Headers is an encoded headers block (see [ValidateHeaders]) or empty. It
	// must lie in memory that the client cannot change.
	Headers []byte
	// Expect is the offset that this record must get; only with HasExpect.
	Expect    uint64
	HasExpect bool
	// Token must equal the stream's token where the stream has one. Where it has
	// none, Token must be empty.
	Token []byte
}

// Batch is appended whole or not at all: 1 to [MaxBatchRecords] entries that fit
// one frame, over any number of streams, in the order in which they are committed.
// The caller may reuse it, and what it refers to, after the call.
type Batch struct {
	Producer ProducerID // 0: without a producer
	Sequence uint64     // from 1; only with a producer
	// Acked is for session producers: every sequence below it was answered, so
	// that the log may forget those results. At most Sequence; 0 and 1 say nothing.
	Acked   uint64
	Entries []Entry
}

// Placed says where the records of one stream in a batch went:
// offsets [First, First+Count).
type Placed struct {
	Stream ID
	First  uint64
	Count  uint32
}

// Result is the answer to a batch that was committed, now or before. It may leave
// once the durable position reaches [Committer.DecidedAt].
type Result struct {
	// Position is the address of the batch in the log. It is 0 for a duplicate of
	// a named producer.
	Position uint64
	// Placed has one element per distinct stream, in order of first appearance.
	// Its array is reused by the next call that is given this Result. It is empty
	// for a duplicate of a named producer.
	Placed []Placed
	// Duplicate: nothing was appended, the batch was committed before.
	Duplicate bool
	// LastSequence is the last sequence of the batch's producer after the call.
	LastSequence uint64
}

// StreamInfo describes one stream as of the state it was taken from. Its records
// are [First, Next).
type StreamInfo struct {
	ID      ID
	Name    string
	First   uint64 // the first offset that is not trimmed
	Next    uint64 // the offset that the next record gets
	Created int64  // ns since the Unix epoch
	Last    int64  // timestamp of the newest record ever, ns since the Unix epoch; 0 before the first
	Sealed  bool
	Token   []byte // a copy; empty: none set
}

// ProducerInfo describes one producer.
type ProducerInfo struct {
	ID       ProducerID
	Name     string // empty for a session producer
	Window   uint32 // slots; 0 for a named producer
	Last     uint64 // the last sequence that was used; 0: none
	Position uint64 // address of the item that used it (or opened the producer)
}
