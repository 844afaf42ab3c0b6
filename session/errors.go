package session

import (
	"context"
	"errors"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/wire"
)

// codes is the one table from the sentinels of the rooms below to the codes that
// clients see. The first match counts: what is more exact comes first.
var codes = [...]struct {
	err  error
	code wire.Code
}{
	{stream.ErrStreamNotFound, wire.CodeNotFound},
	{stream.ErrStreamDeleted, wire.CodeDeleted},
	{stream.ErrSealed, wire.CodeSealed},
	{stream.ErrOffsetMismatch, wire.CodePreconditionFailed},
	{stream.ErrTokenMismatch, wire.CodeTokenMismatch},
	{stream.ErrProducerExpired, wire.CodeProducerExpired},
	{stream.ErrProducerNotFound, wire.CodeNotFound},
	{stream.ErrSequenceExpired, wire.CodeSequenceExpired},
	{stream.ErrOutOfSequence, wire.CodeOutOfSequence},
	{stream.ErrWindowExceeded, wire.CodeWindowExceeded},
	{stream.ErrBadRequest, wire.CodeBadRequest},
	{stream.ErrBadName, wire.CodeBadRequest},
	{stream.ErrBadHeaders, wire.CodeBadRequest},
	{stream.ErrTooLarge, wire.CodeTooLarge},
	{stream.ErrTooManyStreams, wire.CodeTooManyStreams},
	{stream.ErrTooManyProducers, wire.CodeTooManyProducers},
	{stream.ErrCheckpointFull, wire.CodeCheckpointFull},

	{device.ErrReservationConflict, wire.CodeFenced},
	{device.ErrInUse, wire.CodeInUse},
	{reader.ErrStore, wire.CodeStoreUnavailable},
	{reader.ErrUnreadable, wire.CodeDataLost},
	{reader.ErrLost, wire.CodeDataLost},
	{stream.ErrDamaged, wire.CodeDamaged},
	{ringwal.ErrDamaged, wire.CodeDamaged},
	{ringwal.ErrFull, wire.CodeLogFull},
	{ringwal.ErrTooLarge, wire.CodeTooLarge},
	{ringwal.ErrWriteFailed, wire.CodeLogFailed},
	{ringwal.ErrStalled, wire.CodeLogFailed},
	{ringwal.ErrClosed, wire.CodeDraining},
	{reader.ErrClosed, wire.CodeDraining},
	{ringwal.ErrNotALog, wire.CodeNotOurDevice},
	{ringwal.ErrFormat, wire.CodeUnsupported},
	{ringwal.ErrGeometry, wire.CodeNotOurDevice},
	{device.ErrRead, wire.CodeLogFailed},
	{device.ErrWrite, wire.CodeLogFailed},
	{device.ErrFlush, wire.CodeLogFailed},
	{wire.ErrMalformed, wire.CodeBadRequest},
	{context.Canceled, wire.CodeCancelled},
	{context.DeadlineExceeded, wire.CodeOutcomeUnknown},
}

// CodeOf returns the code of err: that of a *wire.Error in it, else that of the
// table, else CodeInternal; CodeOK for nil.
func CodeOf(err error) wire.Code {
	if err == nil {
		return wire.CodeOK
	}
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	for i := range codes {
		if errors.Is(err, codes[i].err) {
			return codes[i].code
		}
	}
	return wire.CodeInternal
}

// FillError makes e what a client is told of err, with all that a stream.Refusal
// or a *wire.Error in it knows. It reuses e, which keeps nothing of before.
func FillError(e *wire.Error, err error) {
	var known *wire.Error
	if errors.As(err, &known) {
		*e = *known
		return
	}
	*e = wire.Error{Code: CodeOf(err), Message: err.Error()}
	var r *stream.Refusal
	if !errors.As(err, &r) {
		return
	}
	e.Message = r.Reason()
	e.Known = wire.FlagEntry | wire.FlagActual
	e.Entry, e.Actual = uint32(r.Entry), r.Actual
	if e.Logged = r.Logged; r.Logged {
		e.Known |= wire.FlagPosition
		e.Position = r.Position
	}
}
