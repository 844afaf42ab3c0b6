package wire

import (
	"strconv"
	"unicode/utf8"
)

// Code is the number of an error, the same over every door and in every
// language. Numbers are never given a second meaning.
type Code uint16

// The codes. Their meaning is in the table below and in docs/protocol.md.
const (
	CodeOK             Code = 0
	CodeInternal       Code = 1
	CodeBadRequest     Code = 2
	CodeTooLarge       Code = 3
	CodeUnsupported    Code = 4
	CodeUnauthorized   Code = 5
	CodeWrongLog       Code = 6
	CodeReadOnly       Code = 7
	CodeUsage          Code = 8
	CodeCancelled      Code = 9
	CodeOutcomeUnknown Code = 10
	CodeDisconnected   Code = 11
	CodeLogWentBack    Code = 12

	CodeNotFound Code = 20
	CodeSealed   Code = 21
	CodeDeleted  Code = 22
	CodeTrimmed  Code = 23
	CodeDataLost Code = 24

	CodePreconditionFailed Code = 30
	CodeTokenMismatch      Code = 31
	CodeDuplicate          Code = 32
	CodeOutOfSequence      Code = 33
	CodeSequenceExpired    Code = 34
	CodeProducerExpired    Code = 35
	CodeWindowExceeded     Code = 36

	CodeTooManyStreams   Code = 40
	CodeTooManyProducers Code = 41
	CodeCheckpointFull   Code = 42
	CodeLogFull          Code = 43
	CodeStoreUnavailable Code = 44

	CodeBusy            Code = 50
	CodeTooManySessions Code = 51
	CodeOutOfMemory     Code = 52
	CodeSlowClient      Code = 53
	CodeIdleClient      Code = 54
	CodeDraining        Code = 55
	CodeNotReady        Code = 56

	CodeFenced       Code = 60
	CodeLogFailed    Code = 61
	CodeDamaged      Code = 62
	CodeNotOurDevice Code = 63
	CodeInUse        Code = 64
)

// ErrorInfo is one line of the table of errors.
type ErrorInfo struct {
	Code           Code
	Name           string // snake_case: JSON, metric label, C constant
	ExitCode       int    // of a command that ends with this error
	HTTPStatus     int    // of the HTTP door
	Retriable      bool   // the same request can succeed later, with nothing changed by the caller
	OutcomeUnknown bool   // the request may have taken effect
	Hint           string // what to do
}

// Exit codes of the commands.
const (
	ExitDone         = 0
	ExitFailed       = 1
	ExitUsage        = 2
	ExitFenced       = 10
	ExitDamaged      = 11
	ExitNotOurDevice = 12
	ExitDeviceFailed = 13
	ExitInUse        = 14
	ExitStore        = 15
	ExitFull         = 16
	ExitNotReady     = 17
	ExitPrecondition = 18
)

// errorTable is the one table of errors: every door, command, client and metric
// takes its names and numbers from here.
var errorTable = [...]ErrorInfo{
	{CodeOK, "ok", ExitDone, 200, false, false, ""},
	{CodeInternal, "internal", ExitFailed, 500, false, true, "this is a bug in the sidecar: report it with its log"},
	{CodeBadRequest, "bad_request", ExitUsage, 400, false, false, "correct the request; docs/protocol.md has its layout"},
	{CodeTooLarge, "too_large", ExitFailed, 413, false, false, "split the batch or shorten the record"},
	{CodeUnsupported, "unsupported", ExitFailed, 501, false, false, "use a client and a sidecar of versions that go together"},
	{CodeUnauthorized, "unauthorized", ExitFailed, 403, false, false, "run the client as a user or group that the sidecar allows"},
	{CodeWrongLog, "wrong_log", ExitFailed, 404, false, false, "name a log that this sidecar hosts; status lists them"},
	{CodeReadOnly, "read_only", ExitFailed, 403, false, false, "this log takes no changes; append to its owner"},
	{CodeUsage, "usage", ExitUsage, 400, false, false, "see --help"},
	{CodeCancelled, "cancelled", ExitFailed, 499, false, true, "the caller gave up waiting; the request may take effect"},
	{CodeOutcomeUnknown, "outcome_unknown", ExitFailed, 504, false, true, "read the stream, or send it again under the same producer and sequence"},
	{CodeDisconnected, "disconnected", ExitFailed, 503, true, true, "is the sidecar running, and the socket path right?"},
	{CodeLogWentBack, "log_went_back", ExitFailed, 409, false, false, "the log is an older copy of itself, or has forgotten this client: compare its streams with what was answered before, then connect anew"},

	{CodeNotFound, "not_found", ExitFailed, 404, false, false, "create it first; names are exact"},
	{CodeSealed, "sealed", ExitFailed, 409, false, false, "a sealed stream takes no more records; use another stream"},
	{CodeDeleted, "deleted", ExitFailed, 410, false, false, "the stream is gone; create the name anew for a new stream"},
	{CodeTrimmed, "trimmed", ExitFailed, 410, false, false, "start from the first offset, or without one"},
	{CodeDataLost, "data_lost", ExitDamaged, 500, false, false, "run verify on the log, then salvage"},

	{CodePreconditionFailed, "precondition_failed", ExitPrecondition, 412, false, false, "another writer came first: read from the actual offset and decide again"},
	{CodeTokenMismatch, "token_mismatch", ExitPrecondition, 412, false, false, "another owner set the stream's token: stop, or take it over with the token that is in force"},
	{CodeDuplicate, "duplicate", ExitDone, 200, false, false, "the batch is in the log already; nothing to do"},
	{CodeOutOfSequence, "out_of_sequence", ExitFailed, 409, false, false, "send the sequence after the last one first"},
	{CodeSequenceExpired, "sequence_expired", ExitFailed, 409, false, true, "the log has forgotten this sequence's result: keep at most the window unacked"},
	{CodeProducerExpired, "producer_expired", ExitFailed, 410, false, true, "open a new producer; what was not answered may be in the log: read to find out"},
	{CodeWindowExceeded, "window_exceeded", ExitFailed, 429, true, false, "wait for answers before the next batch, or open the producer with a larger window"},

	{CodeTooManyStreams, "too_many_streams", ExitFull, 507, false, false, "delete streams that are no longer used"},
	{CodeTooManyProducers, "too_many_producers", ExitFull, 507, false, false, "remove named producers that are no longer used"},
	{CodeCheckpointFull, "checkpoint_full", ExitFull, 507, false, false, "delete streams or producers, or format a larger log: their state has to fit its checkpoint"},
	{CodeLogFull, "log_full", ExitFull, 507, true, false, "trim the stream that pins the log, or wait until the store has taken it over"},
	{CodeStoreUnavailable, "store_unavailable", ExitStore, 503, true, false, "check the object store and its credentials; status has the last error"},

	{CodeBusy, "busy", ExitNotReady, 503, true, false, "fewer requests or reads at once, or try again"},
	{CodeTooManySessions, "too_many_sessions", ExitNotReady, 503, true, false, "close idle clients, or raise WALSIDECAR_MEMORY"},
	{CodeOutOfMemory, "out_of_memory", ExitNotReady, 503, true, false, "raise WALSIDECAR_MEMORY, or use fewer clients"},
	{CodeSlowClient, "slow_client", ExitFailed, 408, true, true, "read the answers as they come"},
	{CodeIdleClient, "idle_client", ExitFailed, 408, true, false, "ping at a third of the idle time"},
	{CodeDraining, "draining", ExitNotReady, 503, true, false, "the sidecar is shutting down: connect again"},
	{CodeNotReady, "not_ready", ExitNotReady, 503, true, false, "the sidecar is starting: wait for it with wait-ready"},

	{CodeFenced, "fenced", ExitFenced, 503, false, true, "another host owns the log now: connect to its sidecar"},
	{CodeLogFailed, "log_failed", ExitDeviceFailed, 503, false, true, "a device write failed or stalled: check the device, restart the sidecar, then resolve what was not answered"},
	{CodeDamaged, "damaged", ExitDamaged, 500, false, false, "run verify on the log, then salvage"},
	{CodeNotOurDevice, "not_our_device", ExitNotOurDevice, 409, false, false, "check the path and the node name"},
	{CodeInUse, "in_use", ExitInUse, 409, true, false, "another process holds it: stop it first"},
}

// Errors returns the table of errors, by number. The caller must not change it.
func Errors() []ErrorInfo { return errorTable[:] }

// Info returns the line of the code; for an unknown one that of CodeInternal
// with the number as the name, so that an old client can show it.
func (c Code) Info() ErrorInfo {
	for i := range errorTable {
		if errorTable[i].Code == c {
			return errorTable[i]
		}
	}
	unknown := errorTable[CodeInternal]
	unknown.Code, unknown.Name = c, "code_"+strconv.Itoa(int(c))
	unknown.Hint = "this client does not know the code: use a newer one"
	return unknown
}

// String returns the snake_case name of the code.
func (c Code) String() string { return c.Info().Name }

// Flags in the header of an [Error]: which fields are known.
const (
	FlagEntry    uint16 = 1
	FlagActual   uint16 = 2
	FlagStream   uint16 = 4
	FlagOffset   uint16 = 8
	FlagPosition uint16 = 16

	flagLogged = 32

	errorFlags = FlagEntry | FlagActual | FlagStream | FlagOffset | FlagPosition
)

// Error answers a request that was refused or failed.
type Error struct {
	Code     Code
	Known    uint16 // FlagEntry and so on: which of the next five fields are given
	Entry    uint32 // index of the entry of the batch that failed
	Actual   uint64 // what was found: next offset, last sequence
	Stream   uint64 // stream id: the entry's; for log_full the stream that pins the log
	Offset   uint64 // of the stream: where it is trimmed or lost; for log_full where the pinning stream begins
	Position uint64 // in the log
	Logged   bool   // the refusal is in the log and has used up the sequence of its session producer
	Name     string // name of the stream, where it is known
	Message  string // what failed
	Hint     string // what to do; empty: the hint of the table
}

// Error returns the message, or the name of the code.
func (m *Error) Error() string {
	if m.Message == "" {
		return m.Code.String()
	}
	return m.Message
}

// AppendTo encodes m as the answer to request.
func (m *Error) AppendTo(dst []byte, request uint64) []byte {
	dst, start := begin(dst, TypeError, m.Known&errorFlags|bit(m.Logged, flagLogged), request)
	name, text, hint := cut16(m.Name), cutText(m.Message), cutText(m.Hint)
	dst = put16(dst, uint16(m.Code))
	dst = put16(dst, uint16(len(name)))
	dst = put32(dst, m.Entry)
	dst = put64(dst, m.Actual)
	dst = put64(dst, m.Stream)
	dst = put64(dst, m.Offset)
	dst = put64(dst, m.Position)
	dst = put16(dst, uint16(len(text)))
	dst = put16(dst, uint16(len(hint)))
	dst = put32(dst, 0)
	dst = append(dst, name...)
	dst = append(dst, text...)
	dst = append(dst, hint...)
	return finish(dst, start)
}

// Decode decodes an Error.
func (m *Error) Decode(h Header, body []byte) error {
	s := scanner{b: body}
	m.Known, m.Logged = h.Flags&errorFlags, h.Flags&flagLogged != 0
	m.Code = Code(s.u16())
	name := s.u16()
	m.Entry = s.u32()
	m.Actual, m.Stream, m.Offset, m.Position = s.u64(), s.u64(), s.u64(), s.u64()
	text, hint := s.u16(), s.u16()
	s.zero(4)
	m.Name, m.Message, m.Hint = string(s.take(int(name))), string(s.take(int(text))), string(s.take(int(hint)))
	if !s.done() || h.Flags&^(errorFlags|flagLogged) != 0 {
		return malformed("error")
	}
	return nil
}

// cutText cuts s to MaxErrorTextBytes without splitting a character.
func cutText(s string) string {
	if len(s) <= MaxErrorTextBytes {
		return s
	}
	n := MaxErrorTextBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
