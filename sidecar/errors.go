package sidecar

import (
	"errors"
	"syscall"

	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
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
	{node.ErrNotOurs, wire.CodeNotOurDevice},
	{node.ErrNoLog, wire.CodeNotOurDevice},
	{ringwal.ErrNotALog, wire.CodeNotOurDevice},
	{ringwal.ErrFormat, wire.CodeNotOurDevice},
	{ringwal.ErrGeometry, wire.CodeNotOurDevice},
	{ringwal.ErrTooSmall, wire.CodeNotOurDevice},
	{ringwal.ErrTailChanged, wire.CodeLogFailed},
	{device.ErrNotADevice, wire.CodeNotOurDevice},
	{device.ErrTooSmall, wire.CodeNotOurDevice},
	{uds.ErrInUse, wire.CodeInUse},
	{syscall.EADDRINUSE, wire.CodeInUse},
	{uds.ErrPathTooLong, wire.CodeUsage},
	{uds.ErrNotASocket, wire.CodeUsage},
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
