package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/uds"
	"github.com/walsidecar/walsidecar/wire"
)

// recorder is a node that knows its sessions.
type recorder struct {
	*Node
	mu       sync.Mutex
	sessions []*session.Session
}

func (r *recorder) Opened(s *session.Session) error {
	r.mu.Lock()
	r.sessions = append(r.sessions, s)
	r.mu.Unlock()
	return r.Node.Opened(s)
}

// sendAway ends every session as if its client were slow.
func (r *recorder) sendAway() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		s.Goodbye(wire.CodeSlowClient, "sent away by the test")
	}
	r.sessions = nil
}

// A sidecar that sends its client away takes the client's ring back; what the client
// has in flight there is sent again all the same, and every record is there once.
func TestP2_AClientThatIsSentAwayResends(t *testing.T) {
	for name, door := range map[string]walsidecar.Door{"shm": walsidecar.DoorShm, "socket": walsidecar.DoorSocket} {
		t.Run(name, func(t *testing.T) {
			r := newRigOf(t, 128<<20)
			back := &recorder{Node: r.node}
			host := session.NewHost(session.Options{Log: func(string) session.Backend { return back }, Budget: session.NewBudget(64 << 20),
				Logger: slog.New(slog.DiscardHandler)})
			access, err := uds.OwnAccess()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "s")
			server, err := uds.Listen(uds.Options{Path: path, Access: access, Host: host, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve() }()
			defer r.close()
			defer host.Close()
			defer server.Close()
			appendWhileSentAway(t, back, path, door)
		})
	}
}

func appendWhileSentAway(t *testing.T, back *recorder, path string, door walsidecar.Door) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c, err := walsidecar.Dial(ctx, path, walsidecar.WithDoor(door))
	if errors.Is(err, walsidecar.ErrUnsupported) {
		t.Skip(err) // an emulator, or a kernel that is too old
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stop := make(chan struct{})
	var tickets []walsidecar.Ticket
	go func() {
		defer close(stop)
		for range 20 {
			time.Sleep(50 * time.Millisecond)
			back.sendAway()
		}
	}()
	for sending := true; sending && len(tickets) < 100_000; {
		select {
		case <-stop:
			sending = false
		default:
		}
		ticket, err := c.Submit(ctx, "s", payloadOf(1, uint64(len(tickets)))[:16])
		if err != nil {
			t.Fatalf("door %v: record %d: %v", door, len(tickets), err)
		}
		tickets = append(tickets, ticket)
	}
	<-stop
	for i, ticket := range tickets {
		if result, err := ticket.Wait(ctx); err != nil || result.Offset != uint64(i) {
			t.Fatalf("door %v: record %d: %+v, %v", door, i, result, err)
		}
	}
	next := uint64(0)
	for rec, err := range c.Read(ctx, "s") {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Offset != next || string(rec.Data) != string(payloadOf(1, next)[:16]) {
			t.Fatalf("door %v: offset %d reads as another record", door, next)
		}
		next++
	}
	if next != uint64(len(tickets)) {
		t.Fatalf("door %v: %d records of %d", door, next, len(tickets))
	}
	if len(tickets) == 0 || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatal("nothing was tested")
	}
	t.Logf("door %v: %d records", door, len(tickets))
}
