package walsidecar

import "time"

// Limits of a client, each the default or the ceiling of an option.
const (
	// DefaultInFlight is how many appends may be unanswered at once.
	DefaultInFlight = 1024
	// DefaultInFlightBytes is how many bytes of appends may be unanswered at once.
	// They are the memory from which they would be sent again.
	DefaultInFlightBytes = 16 << 20
	// MaxInFlight is the largest window of a session producer.
	MaxInFlight = 8192
	// DefaultReadAhead is how many bytes of a read may wait in the client.
	DefaultReadAhead = 1 << 20
)

// Option changes how Dial connects.
type Option func(*options)

type options struct {
	log           string
	name          string
	inFlight      int
	inFlightBytes int
	giveUpAfter   time.Duration
	waitWhileFull bool
	door          Door
	waiting       Waiting
}

// WithLog selects the log: a log UUID or the name of its node. Without it, the
// sidecar's own.
func WithLog(selector string) Option { return func(o *options) { o.log = selector } }

// WithName tells the sidecar who this is, for its logs: "payments/1.4".
// Without it, the name of the program.
func WithName(name string) Option { return func(o *options) { o.name = name } }

// WithInFlight bounds what may be unanswered at once: appends (1 to MaxInFlight)
// and their bytes. Beyond it Submit blocks and TrySubmit returns ErrWouldBlock.
// A sidecar that allows less wins. A single append may exceed the bytes when
// nothing else is in flight.
func WithInFlight(appends, bytes int) Option {
	return func(o *options) { o.inFlight, o.inFlightBytes = appends, bytes }
}

// WithGiveUpAfter ends the client once it has been without a sidecar for so
// long: what was sent and not answered ends with ErrOutcomeUnknown, everything
// else with ErrDisconnected. Without it the client tries for ever, and contexts
// bound the waits.
func WithGiveUpAfter(d time.Duration) Option { return func(o *options) { o.giveUpAfter = d } }

// WithWaitWhileFull makes appends wait while the log is full and go on in order
// when it has room, where they would return ErrLogFull.
func WithWaitWhileFull() Option { return func(o *options) { o.waitWhileFull = true } }

// WithDoor says by which way appends go. Without it, DoorAuto. Everything else goes
// over the socket.
func WithDoor(door Door) Option { return func(o *options) { o.door = door } }

// WithWaiting says how the client waits for acks in shared memory. Without it,
// WaitAdaptive.
func WithWaiting(w Waiting) Option { return func(o *options) { o.waiting = w } }

// AppendOption adds a condition, a header or a producer to an append.
type AppendOption struct {
	kind   appendOptionKind
	number uint64
	text   string
	value  []byte
}

type appendOptionKind uint8

const (
	appendExpect appendOptionKind = iota + 1
	appendToken
	appendHeader
	appendProducer
	appendMustExist
)

// ExpectOffset makes the append conditional: the record gets the offset next, or
// the append is refused with ErrPreconditionFailed and Error.Actual is the
// stream's next offset. In a batch it is the first entry's; the others have
// Entry.Expect.
func ExpectOffset(next uint64) AppendOption { return AppendOption{kind: appendExpect, number: next} }

// WithToken carries the token of the stream; once a stream has one, appends
// without it are refused with ErrTokenMismatch. In a batch it goes with every
// entry that has no Token of its own.
func WithToken(token []byte) AppendOption { return AppendOption{kind: appendToken, value: token} }

// WithHeader adds a header to the record; it may be given several times, and
// keys may repeat. In a batch it goes with every entry, before the entry's own.
func WithHeader(key string, value []byte) AppendOption {
	return AppendOption{kind: appendHeader, text: key, value: value}
}

// WithProducer appends under a named producer, which is created if need be. The
// sequence must grow from append to append, in whatever steps (an upstream log
// position); at or below the last one nothing is appended and the Result is a
// Duplicate. See Producer for how to resume.
//
// With several in flight, one that the full log refused (ErrLogFull) may be
// overtaken by a later one, and then counts as done. A source that must lose
// nothing keeps one append in flight per producer, and puts what belongs together
// into one AppendBatch. With WithWaitWhileFull one that was overtaken ends with
// ErrOutOfSequence.
func WithProducer(name string, sequence uint64) AppendOption {
	return AppendOption{kind: appendProducer, text: name, number: sequence}
}

// MustExist refuses to create the stream: an append to a missing one returns ErrNotFound.
func MustExist() AppendOption { return AppendOption{kind: appendMustExist} }

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// ReadOption changes where a read starts, how far it goes, and what it tells.
type ReadOption func(*readOptions)

// FromOffset starts at the record with this offset. If that was trimmed, the
// first thing read is a *Gap.
func FromOffset(offset uint64) ReadOption {
	return func(o *readOptions) { o.setStart(startOffset, offset) }
}

// FromTime starts at the first record whose timestamp is not before t.
func FromTime(t time.Time) ReadOption {
	return func(o *readOptions) { o.setStart(startTime, uint64(max(t.UnixNano(), 0))) }
}

// FromLast starts n records before the stream's end.
func FromLast(n uint64) ReadOption { return func(o *readOptions) { o.setStart(startLast, n) } }

// Limit ends the iteration after n records; a replay, with the batch that
// reaches n. 0 is no limit.
func Limit(n uint64) ReadOption { return func(o *readOptions) { o.limit = n } }

// ReadAhead bounds the bytes that wait in the client for a slow iteration; one
// large record may exceed it.
func ReadAhead(bytes int) ReadOption { return func(o *readOptions) { o.readAhead = bytes } }

// OnCaughtUp has f called, between two records of the iteration and by its
// goroutine, each time that everything durable was delivered. The argument is
// the offset, or for the whole log the position, at which it goes on.
func OnCaughtUp(f func(next uint64)) ReadOption { return func(o *readOptions) { o.onCaughtUp = f } }
