package stream

import (
	"errors"
	"fmt"
)

// Reasons of a [Refusal], to be tested with errors.Is. Those that can be logged for
// a session producer have a [Code].
var (
	// Preconditions: the state of the log decides. Logged for a session producer.

	ErrStreamNotFound = errors.New("no such stream")
	ErrStreamDeleted  = errors.New("the stream was deleted")
	ErrSealed         = errors.New("the stream is sealed")
	ErrOffsetMismatch = errors.New("the stream's next offset is not the expected one")
	ErrTokenMismatch  = errors.New("the token is not the stream's token")

	// Producers: the request does not fit the producer's state. Never logged.

	ErrProducerExpired  = errors.New("the session producer is unknown: it expired or never was")
	ErrProducerNotFound = errors.New("no such named producer")
	ErrSequenceExpired  = errors.New("the sequence is older than the results that the log keeps")
	ErrOutOfSequence    = errors.New("the sequence does not follow the producer's last one")
	ErrWindowExceeded   = errors.New("more sequences of the producer are unanswered than its window holds")

	// Requests that no state would accept. Never logged.

	ErrBadRequest = errors.New("bad request")
	ErrBadName    = errors.New("bad name")
	ErrBadHeaders = errors.New("bad headers block")
	ErrTooLarge   = errors.New("too large")

	// Limits of the state. Never logged.

	ErrTooManyStreams   = errors.New("too many streams")
	ErrTooManyProducers = errors.New("too many producers")
	ErrCheckpointFull   = errors.New("the log's checkpoint space is used up")
)

// ErrDamaged is wrapped by every error about items or checkpoints that cannot have
// been written by this package, or that contradict what the log said before.
var ErrDamaged = errors.New("damaged log contents")

// Code is the reason of a logged refusal as it is stored in the log. The numbers
// are part of the format.
type Code uint16

// The codes, each the number of the sentinel of the same name.
const (
	CodeStreamNotFound Code = 1
	CodeStreamDeleted  Code = 2
	CodeSealed         Code = 3
	CodeOffsetMismatch Code = 4
	CodeTokenMismatch  Code = 5

	maxCode = CodeTokenMismatch
)

// codeErrors is indexed by Code.
var codeErrors = [maxCode + 1]error{
	CodeStreamNotFound: ErrStreamNotFound,
	CodeStreamDeleted:  ErrStreamDeleted,
	CodeSealed:         ErrSealed,
	CodeOffsetMismatch: ErrOffsetMismatch,
	CodeTokenMismatch:  ErrTokenMismatch,
}

// Err returns the sentinel for c, nil for an unknown code.
func (c Code) Err() error {
	if c == 0 || c > maxCode {
		return nil
	}
	return codeErrors[c]
}

// Refusal says why a request was not carried out; nothing of it was. Like every
// answer it may leave only once the durable position reaches [Committer.DecidedAt].
type Refusal struct {
	Err error // one of the sentinels above
	// Entry is the index of the entry of the batch that failed; 0 where the
	// request has no entries.
	Entry int
	// Actual is the value that decided, by Err: the next offset (ErrOffsetMismatch,
	// ErrSealed), the xxhash64 of the token in force or 0 for none
	// (ErrTokenMismatch), the last sequence (ErrOutOfSequence), the oldest sequence
	// with a result (ErrSequenceExpired), the slots in use (ErrWindowExceeded), the
	// size or number that was refused (ErrTooLarge, ErrBadRequest), what there is
	// already (ErrTooMany…, ErrCheckpointFull).
	Actual uint64
	// Limit is what Actual exceeds, where a limit decided; else 0.
	Limit uint64
	// Detail says what was wrong where Err alone does not; may be empty.
	Detail string
	// Logged: a session producer's refusal that is in the log and has used up its
	// sequence. Every other refusal leaves the sequence free.
	Logged bool
	// Duplicate: this logged refusal is the answer to an earlier request, again.
	Duplicate bool
	// Position is the address of the logged refusal in the log; 0 where not Logged.
	Position uint64
}

// Reason says why, in words: without the entry and the actual value, which have fields
// of their own wherever a refusal is shown.
func (r *Refusal) Reason() string {
	s := r.Err.Error()
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	if r.Limit != 0 {
		s += fmt.Sprintf(" (limit %d)", r.Limit)
	}
	return s
}

// Error is Reason with the entry and the value that decided.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (entry %d, actual %d)", r.Reason(), r.Entry, r.Actual)
}

// Unwrap returns the sentinel.
func (r *Refusal) Unwrap() error { return r.Err }

// codeOf returns the code of a precondition's sentinel.
func codeOf(err error) Code {
	for c, sentinel := range codeErrors {
		if sentinel != nil && errors.Is(err, sentinel) {
			return Code(c)
		}
	}
	return 0
}
