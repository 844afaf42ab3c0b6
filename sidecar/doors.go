package sidecar

import (
	"fmt"

	"github.com/walsidecar/walsidecar/httpapi"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
)

// openDoors makes the sockets, that of control among them; clients can connect, and wait until serveDoors. budget is
// that of the sessions.
func (p *process) openDoors(budget *session.Budget) error {
	access, err := uds.OwnAccess()
	if err != nil {
		return err
	}
	mode := uds.DefaultMode
	allow := p.Settings.Allow
	if len(allow.UIDs)+len(allow.GIDs) > 0 {
		// Others than the file's owner and group must get as far as the check of who they are.
		mode = 0o666
		access.UIDs = append(access.UIDs, allow.UIDs...)
		access.GIDs = append(access.GIDs, allow.GIDs...)
	}
	p.door, err = uds.Listen(uds.Options{Path: string(p.Settings.Socket), Mode: mode, Access: access, Host: p.host, Logger: p.Log})
	if err != nil {
		return err
	}
	if err := p.openControl(); err != nil || p.Settings.HTTP.Off() {
		return err
	}
	p.http, err = httpapi.Listen(httpapi.Options{Path: string(p.Settings.HTTP), Mode: mode, Access: access, Host: p.host, Budget: budget, Logger: p.Log})
	return err
}

// serveDoors lets clients in. A door that ends before it is drained says so on doorDone.
func (p *process) serveDoors() {
	serve := func(path string, door func() error) {
		if err := door(); err != nil {
			p.doorDone <- fmt.Errorf("socket %s: %w", path, err)
		}
	}
	go serve(p.door.Path(), p.door.Serve)
	if p.http != nil {
		go serve(p.http.Path(), p.http.Serve)
	}
}

// drainDoors lets no new client in.
func (p *process) drainDoors() {
	p.door.Drain()
	if p.http != nil {
		p.http.Drain()
	}
}

// closeDoors ends the sessions and gives the sockets up, that of control among them. It may be called twice.
func (p *process) closeDoors() {
	p.control.close()
	p.doors.Do(func() {
		if p.http != nil {
			p.http.Drain() // ends what only waits for a request, which hears no goodbye
		}
		if p.host != nil {
			p.host.Close()
		}
		if p.http != nil {
			p.http.Close()
		}
		if p.door != nil {
			p.door.Close()
		}
	})
}
