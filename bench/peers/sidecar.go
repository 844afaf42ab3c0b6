package peers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/load"
	"github.com/walsidecar/walsidecar/shm"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// Programs that bench/build builds.
const (
	sidecarProgram = "walsidecar"
	cLoadProgram   = "cload"
	rocksProgram   = "rocksload"
)

const (
	// benchStream is the stream of the load.
	benchStream = "bench"
	// trimEvery is how often is looked whether to trim, trimShare the part of the log
	// that is appended in between.
	trimEvery = 10 * time.Millisecond
	trimShare = 8
	// sidecarBytes bounds what one pipelined producer has in flight: 1,024 records of 16 KiB.
	sidecarBytes = 24 << 20
)

// sidecarProcess is a sidecar on a new log, with somebody who trims it.
type sidecarProcess struct {
	wait    string // in shared memory
	null    bool   // keep nothing: the door alone
	door    *load.Own
	process *load.Process
	socket  string
	control *walsidecar.Client
	end     context.CancelFunc
	trimmed chan error
}

// start formats the log, runs the sidecar and creates the stream.
func (p *sidecarProcess) start(ctx context.Context, s drive.Setup) (err error) {
	program := filepath.Join(s.Programs, sidecarProgram)
	if p.null {
		if p.door, err = load.StartNull(ctx, program, "bench-null", p.wait); err == nil {
			p.socket = p.door.Socket
		}
		return err
	}
	wal := s.Device
	args := []string{"format", wal, "--node", "bench"}
	if wal == "" {
		wal = filepath.Join(s.Dir, "wal")
		args = []string{"format", wal, "--node", "bench", "--size", strconv.FormatInt(s.StoreBytes, 10) + "B"}
	}
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w: %s", err, out)
	}
	p.socket = filepath.Join(s.Scratch, "s")
	p.process, err = load.StartProcess(ctx, p.socket, program, []string{"serve"},
		"WALSIDECAR_WAL="+wal, "WALSIDECAR_SOCKET="+p.socket, "WALSIDECAR_STORE=none", "WALSIDECAR_ADMIN=off", "WALSIDECAR_DRAIN=1s", "WALSIDECAR_SHM_WAIT="+p.wait)
	if err != nil {
		return err
	}
	if p.control, err = walsidecar.Dial(ctx, p.socket, walsidecar.WithDoor(walsidecar.DoorSocket)); err != nil {
		return err
	}
	if _, err := p.control.CreateStream(ctx, benchStream); err != nil {
		return err
	}
	ctx, p.end = context.WithCancel(context.WithoutCancel(ctx))
	p.trimmed = make(chan error, 1)
	go func() { p.trimmed <- p.trim(ctx, uint64(s.StoreBytes/trimShare/int64(s.Size))) }()
	return nil
}

// trim gives up old records each time that so many more were appended.
func (p *sidecarProcess) trim(ctx context.Context, every uint64) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(trimEvery):
		}
		stream, err := p.control.Stat(ctx, benchStream)
		if err == nil && stream.NextOffset-stream.FirstOffset >= every {
			_, err = p.control.Trim(ctx, benchStream, stream.NextOffset)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("trim as the load goes: %w", err)
		}
	}
}

func (p *sidecarProcess) Close() error {
	var err error
	if p.end != nil {
		p.end()
		err = <-p.trimmed
	}
	if p.control != nil {
		err = errors.Join(err, p.control.Close())
	}
	if p.process != nil {
		p.process.Stop()
	}
	if p.door != nil {
		err = errors.Join(err, p.door.Close())
	}
	return err
}

// goSidecar is walsidecar with the Go client. All producers share one client.
type goSidecar struct {
	sidecarProcess
	door   string
	client *walsidecar.Client
	flying []walsidecar.Ticket
	waited int
	sent   int
}

func (g *goSidecar) Open(ctx context.Context, s drive.Setup) (err error) {
	if err := g.start(ctx, s); err != nil {
		return err
	}
	g.flying = make([]walsidecar.Ticket, s.InFlight)
	g.client, err = walsidecar.Dial(ctx, g.socket, walsidecar.WithDoor(load.Doors[g.door]), walsidecar.WithWaiting(shm.Waitings[g.wait]),
		walsidecar.WithInFlight(max(s.Producers, s.InFlight), sidecarBytes), walsidecar.WithWaitWhileFull())
	return err
}

func (g *goSidecar) Append(_ int, record []byte) error {
	_, err := g.client.Append(context.Background(), benchStream, record)
	return err
}

func (g *goSidecar) Submit(record []byte) (err error) {
	g.flying[g.sent%len(g.flying)], err = g.client.Submit(context.Background(), benchStream, record)
	g.sent++
	return err
}

func (g *goSidecar) Wait() error {
	ticket := g.flying[g.waited%len(g.flying)]
	g.waited++
	_, err := ticket.Wait(context.Background())
	return err
}

func (g *goSidecar) Close() error {
	if g.client != nil {
		_ = g.client.Close() // never fails
	}
	return g.sidecarProcess.Close()
}

// cSidecar is walsidecar with the C client: one thread, whose producers are callbacks
// that send the next record.
type cSidecar struct {
	sidecarProcess
	door  string
	setup drive.Setup
}

func (c *cSidecar) Open(ctx context.Context, s drive.Setup) error {
	c.setup = s
	return c.start(ctx, s)
}

func (c *cSidecar) LoadCommand() *exec.Cmd {
	return exec.Command(filepath.Join(c.setup.Programs, cLoadProgram), c.socket, c.door, c.wait, benchStream, strconv.Itoa(c.setup.Size), strconv.Itoa(c.setup.Producers*c.setup.InFlight))
}
