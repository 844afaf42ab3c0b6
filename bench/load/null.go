package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
)

// nullMemoryBytes is the budget for the sessions of a null log.
const nullMemoryBytes = 256 << 20

// ServeNull serves a log that keeps nothing at socket until ctx ends: the door
// alone, with nothing behind it.
func ServeNull(ctx context.Context, socket string) error {
	access, err := uds.OwnAccess()
	if err != nil {
		return err
	}
	null := session.NewNull()
	defer null.Close()
	host := session.NewHost(session.Options{
		Log: func(string) session.Backend { return null }, Budget: session.NewBudget(nullMemoryBytes), Server: "walsidecar bench --null",
	})
	defer host.Close()
	server, err := uds.Listen(uds.Options{Path: socket, Access: access, Host: host})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, server.Close)
	defer stop()
	return server.Serve()
}

// StartNull runs program with args, which has to call ServeNull for the socket that
// is added as the last argument.
func StartNull(ctx context.Context, program string, args ...string) (own *Own, err error) {
	o := &Own{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if o.dir, err = os.MkdirTemp("", "walsidecar-bench-"); err != nil {
		return nil, err
	}
	o.Socket = filepath.Join(o.dir, "s")
	if o.process, err = StartProcess(ctx, o.Socket, program, append(args, o.Socket)); err != nil {
		return nil, err
	}
	o.PID = o.process.cmd.Process.Pid
	return o, nil
}
