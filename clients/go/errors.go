package walsidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/walsidecar/walsidecar/wire"
)

// Errors of the client itself.
var (
	// ErrClosed: the client was closed; nothing was sent.
	ErrClosed = errors.New("the client is closed")
	// ErrWouldBlock: TrySubmit found no room in flight, or has to ask the sidecar
	// for the stream or producer first. Nothing was submitted.
	ErrWouldBlock = errors.New("submitting would block")
	// ErrTicketSpent: the ticket's answer was taken before.
	ErrTicketSpent = errors.New("the ticket is spent")
)

// One error for each code of the protocol's table (docs/protocol.md), to be
// tested with errors.Is. The error itself is an [*Error].
var (
	ErrInternal     error = sentinel(wire.CodeInternal)
	ErrBadRequest   error = sentinel(wire.CodeBadRequest)
	ErrTooLarge     error = sentinel(wire.CodeTooLarge)
	ErrUnsupported  error = sentinel(wire.CodeUnsupported)
	ErrUnauthorized error = sentinel(wire.CodeUnauthorized)
	ErrWrongLog     error = sentinel(wire.CodeWrongLog)
	ErrReadOnly     error = sentinel(wire.CodeReadOnly)
	ErrUsage        error = sentinel(wire.CodeUsage)
	ErrCancelled    error = sentinel(wire.CodeCancelled)
	// ErrOutcomeUnknown: the request may have taken effect, or may still. It is
	// matched by every error of which that is true, whatever its code. To resolve
	// it: wait for the same Ticket again; with a named producer, ask Producer how
	// far it got, or append again under the same sequence; with ExpectOffset,
	// append again (ErrPreconditionFailed tells that an append came first) and
	// read that offset; else read the stream's end.
	ErrOutcomeUnknown error = sentinel(wire.CodeOutcomeUnknown)
	// ErrDisconnected: there is no sidecar at the socket, and the client has given up.
	ErrDisconnected error = sentinel(wire.CodeDisconnected)
	// ErrLogWentBack: after a reconnect the log does not have what it had answered
	// before, as an older copy of its volume would not; or it no longer knows the
	// client's producer, so that nobody can tell. The client ends, since going on could
	// leave holes where acked records were. Compare the streams with what was acked, and
	// Dial anew.
	ErrLogWentBack error = sentinel(wire.CodeLogWentBack)

	ErrNotFound error = sentinel(wire.CodeNotFound)
	ErrSealed   error = sentinel(wire.CodeSealed)
	// ErrDeleted: the stream was deleted. The client forgets its id, so that the
	// next append of that name goes to a new stream.
	ErrDeleted  error = sentinel(wire.CodeDeleted)
	ErrTrimmed  error = sentinel(wire.CodeTrimmed)
	ErrDataLost error = sentinel(wire.CodeDataLost)

	// ErrPreconditionFailed: the stream's next offset, Error.Actual, is not the expected one.
	ErrPreconditionFailed error = sentinel(wire.CodePreconditionFailed)
	ErrTokenMismatch      error = sentinel(wire.CodeTokenMismatch)
	ErrDuplicate          error = sentinel(wire.CodeDuplicate)
	ErrOutOfSequence      error = sentinel(wire.CodeOutOfSequence)
	ErrSequenceExpired    error = sentinel(wire.CodeSequenceExpired)
	ErrProducerExpired    error = sentinel(wire.CodeProducerExpired)
	ErrWindowExceeded     error = sentinel(wire.CodeWindowExceeded)

	ErrTooManyStreams   error = sentinel(wire.CodeTooManyStreams)
	ErrTooManyProducers error = sentinel(wire.CodeTooManyProducers)
	ErrCheckpointFull   error = sentinel(wire.CodeCheckpointFull)
	// ErrLogFull: the log has no room. It ends every record that the client had in
	// flight behind the refused one too, so that none overtakes it: what ended with
	// ErrLogFull was not appended, and appending it again in order keeps the order.
	ErrLogFull          error = sentinel(wire.CodeLogFull)
	ErrStoreUnavailable error = sentinel(wire.CodeStoreUnavailable)

	ErrBusy            error = sentinel(wire.CodeBusy)
	ErrTooManySessions error = sentinel(wire.CodeTooManySessions)
	ErrOutOfMemory     error = sentinel(wire.CodeOutOfMemory)
	ErrSlowClient      error = sentinel(wire.CodeSlowClient)
	ErrIdleClient      error = sentinel(wire.CodeIdleClient)
	ErrDraining        error = sentinel(wire.CodeDraining)
	ErrNotReady        error = sentinel(wire.CodeNotReady)

	ErrFenced       error = sentinel(wire.CodeFenced)
	ErrLogFailed    error = sentinel(wire.CodeLogFailed)
	ErrDamaged      error = sentinel(wire.CodeDamaged)
	ErrNotOurDevice error = sentinel(wire.CodeNotOurDevice)
	ErrInUse        error = sentinel(wire.CodeInUse)
)

// sentinel is a code as an error to compare with.
type sentinel wire.Code

func (s sentinel) Error() string { return wire.Code(s).String() }

// Error is a request that was refused or failed.
type Error struct {
	Code wire.Code
	// OutcomeUnknown says that the request may have taken effect. Else it did not.
	OutcomeUnknown bool
	// Op is what was asked: "append", "trim", "dial".
	Op string
	// Stream is the name of the stream that the error is about, "" where there is
	// none. For ErrLogFull it is the stream that pins the log.
	Stream string
	// Entry is the index of the entry that failed of a batch, else -1.
	Entry int
	// Actual is what was found in place of what the request asked for: the next
	// offset of the stream, the last sequence of the producer.
	Actual *uint64
	// Offset and Position are where in the stream and in the log, nil where unknown.
	Offset, Position *uint64
	// Message says what failed, Hint what to do.
	Message, Hint string

	cause error
}

// Error says what failed, where, and what to do.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	b.WriteString(e.Code.String())
	if e.Message != "" {
		b.WriteString(": ")
		b.WriteString(e.Message)
	}
	separator := " ("
	detail := func(name string, value any) {
		fmt.Fprintf(&b, "%s%s %v", separator, name, value)
		separator = ", "
	}
	if e.Stream != "" {
		detail("stream", fmt.Sprintf("%q", e.Stream))
	}
	if e.Entry >= 0 {
		detail("entry", e.Entry)
	}
	for _, field := range []struct {
		name  string
		value *uint64
	}{{"actual", e.Actual}, {"offset", e.Offset}, {"position", e.Position}} {
		if field.value != nil {
			detail(field.name, *field.value)
		}
	}
	if e.OutcomeUnknown && e.Code != wire.CodeOutcomeUnknown {
		detail("outcome", "unknown")
	}
	if separator == ", " {
		b.WriteString(")")
	}
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Is matches the error of the same code, and ErrOutcomeUnknown where that holds.
func (e *Error) Is(target error) bool {
	code, ok := target.(sentinel)
	if !ok {
		return false
	}
	if wire.Code(code) == wire.CodeOutcomeUnknown {
		return e.OutcomeUnknown
	}
	return wire.Code(code) == e.Code
}

// Unwrap gives the cause: the context's error, or that of a system call.
func (e *Error) Unwrap() error { return e.cause }

// newError makes an error of the client's own.
func newError(code wire.Code, op, stream, message string) *Error {
	return &Error{Code: code, Op: op, Stream: stream, Entry: -1, Message: message, Hint: code.Info().Hint,
		OutcomeUnknown: code == wire.CodeOutcomeUnknown}
}

// outcomeUnknown is the error of a request that may have taken effect.
func outcomeUnknown(op, stream, message string, cause error) *Error {
	err := newError(wire.CodeOutcomeUnknown, op, stream, message)
	err.cause = cause
	return err
}

// brief is what an error says, without what the error that it becomes part of
// repeats.
func brief(err error) string {
	var own *Error
	if errors.As(err, &own) && own.Message != "" {
		return own.Message
	}
	var call *net.OpError
	if errors.As(err, &call) {
		return call.Err.Error()
	}
	return err.Error()
}

// gaveUp is the error of a wait that the context ended.
func gaveUp(ctx context.Context, op, stream string) *Error {
	cause := context.Cause(ctx)
	return outcomeUnknown(op, stream, "gave up waiting for the answer: "+cause.Error(), cause)
}

// fromWire makes the error of an answer. The stream is the one that was asked
// about, for errors that do not name one.
func fromWire(m *wire.Error, op, stream string) *Error {
	info := m.Code.Info()
	e := &Error{
		Code: m.Code, OutcomeUnknown: info.OutcomeUnknown, Op: op, Stream: stream, Entry: -1,
		Message: m.Message, Hint: m.Hint,
	}
	if m.Name != "" {
		e.Stream = m.Name
	}
	if e.Hint == "" {
		e.Hint = info.Hint
	}
	if m.Known&wire.FlagEntry != 0 {
		e.Entry = int(m.Entry)
	}
	if m.Known&wire.FlagActual != 0 {
		e.Actual = new(m.Actual)
	}
	if m.Known&wire.FlagOffset != 0 {
		e.Offset = new(m.Offset)
	}
	if m.Known&wire.FlagPosition != 0 {
		e.Position = new(m.Position)
	}
	return e
}
