package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

// survivor is a process that lives on after one of its logs has ended: what is not the log's
// own outlives it.
type survivor struct {
	*rig
	host   *session.Host
	budget *session.Budget
	socket string
	mapped int // rings in the process's memory before
}

func newSurvivor(t *testing.T) *survivor {
	t.Helper()
	s := &survivor{rig: newRigOf(t, 128<<20), budget: session.NewBudget(64 << 20), socket: filepath.Join(t.TempDir(), "s"), mapped: mappedRings(t)}
	quiet := slog.New(slog.DiscardHandler)
	s.host = session.NewHost(session.Options{Log: func(string) session.Backend { return s.node }, Budget: s.budget, Logger: quiet})
	access, err := uds.OwnAccess()
	if err != nil {
		t.Fatal(err)
	}
	server, err := uds.Listen(uds.Options{Path: s.socket, Access: access, Host: s.host, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve() }()
	t.Cleanup(func() {
		server.Close()
		s.host.Close()
	})
	return s
}

// mappedRings counts the rings in the process's memory, of both ends.
func mappedRings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(maps, []byte("memfd:walsidecar-submission"))
}

// hasAllBack waits until nothing of the sessions is left.
func (s *survivor) hasAllBack() {
	s.t.Helper()
	until := time.Now().Add(15 * time.Second)
	for ; ; time.Sleep(5 * time.Millisecond) {
		stats, mapped := s.host.Stats(), mappedRings(s.t)-s.mapped
		if stats.Sessions == 0 && stats.BudgetUsed == 0 && stats.RingBytes == 0 && mapped <= 0 {
			return
		}
		if time.Now().After(until) {
			s.t.Fatalf("%d sessions, %d bytes of the budget (%d of rings) and %d mapped rings are left", stats.Sessions, stats.BudgetUsed, stats.RingBytes, mapped)
		}
	}
}

// Clients that leave after their log has ended, however it has, take nothing of the process
// with them: it may host other logs.
func TestP12_ALogThatHasEndedKeepsNoMemoryOfItsClients(t *testing.T) {
	ends := map[string]func(s *survivor, clients []*walsidecar.Client){
		"by a failed write": func(s *survivor, clients []*walsidecar.Client) {
			s.dev.set(nil, func(int) error { return device.ErrWrite })
			_, _ = clients[0].Submit(context.Background(), "s", []byte("unknown"))
			<-s.node.Failed()
			_ = s.node.Close(context.Background())
		},
		"in order": func(s *survivor, _ []*walsidecar.Client) {
			if err := s.node.Close(context.Background()); err != nil {
				s.t.Error(err)
			}
		},
		"while requests wait for the device": func(s *survivor, clients []*walsidecar.Client) {
			s.dev.set(func(int, int64) bool { return true }, nil)
			s.submitUntilTheLogWaits(clients)
			go func() {
				<-s.node.stopped
				s.dev.set(nil, nil)
			}()
			_ = s.node.Abandon()
		},
	}
	for how, end := range ends {
		for name, door := range map[string]walsidecar.Door{"shm": walsidecar.DoorShm, "socket": walsidecar.DoorSocket} {
			t.Run(how+"/"+name, func(t *testing.T) {
				s := newSurvivor(t)
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				clients := make([]*walsidecar.Client, 3) // together they may send more than a window
				for i := range clients {
					clients[i] = connected(ctx, t, s.socket, door)
					if _, err := clients[i].Append(ctx, "s", []byte("first")); err != nil {
						t.Fatal(err)
					}
				}
				hot := s.node.reader.Durable() - 1
				if !s.node.tail.Holds(hot, 1) {
					t.Fatal("the log's memory holds nothing")
				}
				end(s, clients)
				if s.node.tail.Holds(hot, 1) {
					t.Error("the log's own memory is still there")
				}
				for _, c := range clients {
					_ = c.Close()
				}
				s.hasAllBack()
			})
		}
	}
}

// submitUntilTheLogWaits sends more than the log takes while no write ends.
func (s *survivor) submitUntilTheLogWaits(clients []*walsidecar.Client) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	for _, c := range clients {
		sending.Go(func() {
			for payload := make([]byte, 64<<10); ; {
				if _, err := c.Submit(ctx, "s", payload); err != nil {
					return
				}
			}
		})
	}
	eventually(s.t, "the log waits for the device", func() bool {
		waits := make(chan bool, 1)
		s.node.inbox.addCall(func() { waits <- s.node.loop.chunk != nil })
		return <-waits
	})
	cancel()
	sending.Wait()
}

// Who comes to a log that ends meanwhile is told so: nobody would answer any more.
func TestAClientOfALogThatHasEndedIsToldSo(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("s")
	if err := r.node.Abandon(); err != nil {
		t.Fatal(err)
	}
	d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream.ID, Payload: []byte("too late")}}})
	m := d.next()
	var bye wire.Goodbye
	if err := bye.Decode(m.h, m.body); m.h.Type != wire.TypeGoodbye || err != nil {
		t.Fatalf("%v: %v", m.h.Type, err)
	}
	if bye.Code != wire.CodeDraining {
		t.Errorf("goodbye with %v: %s", bye.Code, bye.Message)
	}
	var refused *wire.Error
	if err := r.node.Opened(d.s); !errors.As(err, &refused) || refused.Code != wire.CodeDraining {
		t.Errorf("the next one is admitted with %v", err)
	}
	for range d.messages { // closed when the door has finished with the session
	}
	if used := r.host.Stats().BudgetUsed; used != 0 {
		t.Errorf("%d bytes of the budget are left", used)
	}
	r.host.Close()
}
