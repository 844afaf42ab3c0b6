package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/walsidecar/walsidecar/httpapi"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/uds"
)

// nullMemoryBytes is the budget for the sessions of a null log.
const nullMemoryBytes = 256 << 20

// ServeNull serves a log that keeps nothing at socket, and over HTTP beside it, until ctx
// ends: the doors alone, with nothing behind them. waiting is that of its loop for shared
// memory.
func ServeNull(ctx context.Context, socket string, waiting shm.Waiting) error {
	access, err := uds.OwnAccess()
	if err != nil {
		return err
	}
	null := session.NewNull()
	defer null.Close()
	budget := session.NewBudget(nullMemoryBytes)
	host := session.NewHost(session.Options{
		Log: func(string) session.Backend { return null }, Budget: budget, Server: "walsidecar bench --null", Waiting: waiting,
	})
	defer host.Close()
	server, err := uds.Listen(uds.Options{Path: socket, Access: access, Host: host})
	if err != nil {
		return err
	}
	web, err := httpapi.Listen(httpapi.Options{Path: socket + httpSuffix, Access: access, Host: host, Budget: budget})
	if err != nil {
		server.Close()
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		web.Close()
		server.Close()
	})
	defer stop()
	served := make(chan error, 1)
	go func() { served <- web.Serve() }()
	err = server.Serve()
	web.Drain()
	return errors.Join(err, <-served)
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
	o.HTTP = o.Socket + httpSuffix
	if o.process, err = StartProcess(ctx, o.Socket, program, append(args, o.Socket)); err != nil {
		return nil, err
	}
	o.PID = o.process.cmd.Process.Pid
	return o, nil
}
