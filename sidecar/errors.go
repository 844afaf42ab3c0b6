package sidecar

import (
	"errors"
	"syscall"

	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

// startCodes are the codes of errors that clients never see: those of a start, and of the
// commands that look at a log without a sidecar. Others have the code that a client would
// be told.
var startCodes = [...]struct {
	err  error
	code wire.Code
}{
	{ErrNoStoreGiven, wire.CodeUsage},
	{ErrNoSuchDevice, wire.CodeNotOurDevice},
	{failover.ErrNotDetached, wire.CodeUsage},
	{failover.ErrOtherStore, wire.CodeStoreUnavailable},
	{node.ErrNotOurs, wire.CodeNotOurDevice},
	{node.ErrNoLog, wire.CodeNotOurDevice},
	{ringwal.ErrNotALog, wire.CodeNotOurDevice},
	{ringwal.ErrFormat, wire.CodeNotOurDevice},
	{ringwal.ErrGeometry, wire.CodeNotOurDevice},
	{ringwal.ErrTooSmall, wire.CodeNotOurDevice},
	{ringwal.ErrTailChanged, wire.CodeLogFailed},
	{device.ErrNotADevice, wire.CodeNotOurDevice},
	{device.ErrTooSmall, wire.CodeNotOurDevice},
	{fence.ErrForeign, wire.CodeNotOurDevice},
	{fence.ErrFenced, wire.CodeFenced},
	{fence.ErrHeld, wire.CodeInUse},
	{fence.ErrLostRace, wire.CodeInUse},
	{fence.ErrConflict, wire.CodeInUse},
	{fence.ErrNotExclusive, wire.CodeInUse},
	{fence.ErrUnanswered, wire.CodeLogFailed},
	{fence.ErrFailed, wire.CodeLogFailed},
	{fence.ErrNotVerified, wire.CodeLogFailed},
	{uds.ErrInUse, wire.CodeInUse},
	{syscall.EADDRINUSE, wire.CodeInUse},
	{uds.ErrPathTooLong, wire.CodeUsage},
	{uds.ErrNotASocket, wire.CodeUsage},

	{fence.ErrPermission, wire.CodeUnauthorized},
	{fence.ErrUnsupported, wire.CodeUnsupported},
	{fence.ErrVolatile, wire.CodeUnsupported},
	{fence.ErrMalformed, wire.CodeLogFailed},

	{upload.ErrRetired, wire.CodeNotOurDevice},
	{upload.ErrOtherLog, wire.CodeNotOurDevice},
	{upload.ErrOlderSnapshot, wire.CodeNotOurDevice},
	{upload.ErrFenced, wire.CodeFenced},
	{upload.ErrNotGone, wire.CodeInUse},
	{upload.ErrDamagedObject, wire.CodeDamaged},
	{upload.ErrMissingObject, wire.CodeDamaged},
	{upload.ErrManifest, wire.CodeDamaged},
	{upload.ErrNewerVersion, wire.CodeUnsupported},
	{upload.ErrNoManifest, wire.CodeNotFound},
	{upload.ErrNotArchived, wire.CodeNotFound},
	{store.ErrURL, wire.CodeUsage},
	{store.ErrNoConditionalWrites, wire.CodeStoreUnavailable},
	{store.ErrDenied, wire.CodeStoreUnavailable},
	{store.ErrUnavailable, wire.CodeStoreUnavailable},
	{store.ErrUnknownOutcome, wire.CodeStoreUnavailable},
}

// CodeOf is the code of an error of Run or of the node package's offline calls;
// CodeInternal for one that has none of its own.
func CodeOf(err error) wire.Code {
	for _, c := range startCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return session.CodeOf(err)
}
