package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// What an idle client and a stream with a record take of the sidecar's memory, measured from
// outside. WALSIDECAR_TEST_GROWTH asks for it: it judges little and takes a while.
func TestMemoryOfClientsAndStreams(t *testing.T) {
	if os.Getenv("WALSIDECAR_TEST_GROWTH") == "" {
		t.Skip("WALSIDECAR_TEST_GROWTH is not set: `make growth` does that")
	}
	const clients, streams, mostPerClient, mostPerStream = 200, 20_000, 256 << 10, 4 << 10
	for _, door := range []walsidecar.Door{walsidecar.DoorSocket, walsidecar.DoorShm} {
		h := newHost(t, "MEMORY=4GiB", "WAL_SIZE=256MiB")
		p := h.serve()
		before := p.settled()
		for i := range clients {
			c, err := walsidecar.Dial(t.Context(), h.path("s"), walsidecar.WithDoor(door), walsidecar.WithInFlight(64, 128<<10))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Append(t.Context(), "visited", fmt.Appendf(nil, "by client %d", i)); err != nil {
				t.Fatal(err)
			}
		}
		after := p.settled()
		each := (after.resident - before.resident) / clients
		t.Logf("door %v: an idle client takes %d KiB, shared memory %d KiB of it", door, each>>10, (after.shared-before.shared)/clients>>10)
		if door == walsidecar.DoorSocket && each > mostPerClient {
			t.Errorf("an idle client takes %d bytes", each)
		}
		p.kill()
	}
	h := newHost(t, "MEMORY=128MiB", "WAL_SIZE=1GiB")
	p := h.serve()
	c := dial(t, h)
	for range 40 { // the hot tail is full from now on
		if _, err := c.Append(t.Context(), "first", make([]byte, 1<<20-1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	before := p.settled()
	for i := range streams {
		if _, err := c.Submit(t.Context(), fmt.Sprintf("tenant-%05d/orders", i), []byte("one record")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	each := (p.settled().resident - before.resident) / streams
	t.Logf("a stream with one record takes %d B", each)
	if each > mostPerStream {
		t.Errorf("a stream takes %d bytes", each)
	}
}

// settled is the process's memory once it does not change any more.
func (p *process) settled() memory {
	p.t.Helper()
	m := p.memory()
	for range 20 {
		time.Sleep(200 * time.Millisecond)
		next := p.memory()
		if next.resident-m.resident < 64<<10 && m.resident-next.resident < 64<<10 {
			return next
		}
		m = next
	}
	return m
}
