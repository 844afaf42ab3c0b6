package failover_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/sidecar"
	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

// asSidecar makes this test binary a sidecar, which can be killed as one.
const asSidecar = "FAILOVER_TEST_SIDECAR"

func TestMain(m *testing.M) {
	if os.Getenv(asSidecar) == "" {
		os.Exit(m.Run())
	}
	s, err := settings.Load(nil)
	if err == nil {
		_, err = sidecar.Run(context.Background(), sidecar.Options{Settings: s, Log: sidecar.NewLogger(os.Stderr)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(sidecar.CodeOf(err).Info().ExitCode)
	}
}

// patience is far above what anything here needs on a slow machine.
const patience = time.Minute

// peer is a host whose log is to be taken over.
type peer struct {
	t        *testing.T
	dir, wal string
	objects  string
	process  *exec.Cmd
	stderr   bytes.Buffer
	acked    map[string][]string // by stream, in order
	padding  string              // of records
}

const node = "peer-1"

// newPeer starts a sidecar on a new log; nothing is uploaded unless asked for.
func newPeer(t *testing.T, more ...string) *peer {
	t.Helper()
	p := &peer{t: t, dir: t.TempDir(), acked: map[string][]string{}}
	p.wal, p.objects = filepath.Join(p.dir, "wal"), filepath.Join(p.dir, "objects")
	p.serve(more...)
	return p
}

// serve starts the sidecar.
func (p *peer) serve(more ...string) {
	p.t.Helper()
	p.process = exec.Command(os.Args[0])
	p.process.Stderr = &p.stderr
	p.process.Env = append(os.Environ(), asSidecar+"=1", "WALSIDECAR_WAL="+p.wal, "WALSIDECAR_WAL_SIZE=64MiB", "WALSIDECAR_NODE="+node,
		"WALSIDECAR_STORE="+p.objects, "WALSIDECAR_LINGER=1m", "WALSIDECAR_SOCKET="+p.socket(), "WALSIDECAR_ADMIN=off")
	p.process.Env = append(p.process.Env, more...)
	if err := os.MkdirAll(p.objects, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := p.process.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(p.kill)
}

func (p *peer) socket() string { return filepath.Join(p.dir, "s") }

// kill is kill -9.
func (p *peer) kill() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
}

// append appends count records to the stream, and waits until they are acked.
func (p *peer) append(stream string, count int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var c *walsidecar.Client
	var err error
	for c == nil {
		if c, err = walsidecar.Dial(ctx, p.socket()); err != nil && ctx.Err() != nil {
			p.t.Fatalf("%v\n%s", err, p.stderr.String())
		}
	}
	defer c.Close()
	for range count {
		record := fmt.Sprintf("%s %d%s", stream, len(p.acked[stream]), p.padding)
		if _, err := c.Submit(ctx, stream, []byte(record)); err != nil {
			p.t.Fatal(err)
		}
		p.acked[stream] = append(p.acked[stream], record)
	}
	if err := c.Flush(ctx); err != nil {
		p.t.Fatal(err)
	}
}

// dead is a peer that acked records, uploaded none of them, and was killed.
func dead(t *testing.T) *peer {
	t.Helper()
	p := newPeer(t)
	p.append("orders", 2000)
	p.append("audit", 10)
	p.kill()
	return p
}

// open opens the peer's store.
func (p *peer) open() store.Store {
	p.t.Helper()
	s, err := store.Open(context.Background(), p.objects, store.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// options are those of a takeover.
func (p *peer) options() failover.Options {
	return failover.Options{Device: p.wal, Store: p.objects, Objects: p.open(), MemoryBytes: 64 << 20, Log: slog.New(slog.DiscardHandler)}
}

// checkStored compares the store with what was acked.
func (p *peer) checkStored() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	archive, err := upload.OpenArchive(ctx, p.open(), node, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	streams, _, err := archive.Streams(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	replay := archive.Replay(0)
	defer replay.Close()
	got := map[string][]string{}
	for {
		e, err := replay.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			p.t.Fatal(err)
		}
		for _, r := range e.Records {
			info, err := streams.Lookup(r.Stream)
			if err != nil {
				p.t.Fatal(err)
			}
			got[info.Name] = append(got[info.Name], string(r.Payload))
		}
	}
	for stream, want := range p.acked {
		if fmt.Sprint(got[stream]) != fmt.Sprint(want) {
			p.t.Errorf("the store holds %d records of %s, %d were acked, or others", len(got[stream]), stream, len(want))
		}
	}
}

// digest is of a file, or of all files below a directory.
func digest(t *testing.T, path string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(path, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// troubled is a store that fails from a request on, for so many of them.
type troubled struct {
	store.Store
	requests atomic.Int64
	from, to int64 // requests that fail: [from, to), 1 is the first
	failed   func()
}

// ask counts a request about the log; the probes are others.
func (s *troubled) ask(key string) error {
	if strings.HasPrefix(key, "probe/") {
		return nil
	}
	if n := s.requests.Add(1); n < s.from || n >= s.to {
		return nil
	}
	if s.failed != nil {
		s.failed()
	}
	return fmt.Errorf("%w: the test says so", store.ErrUnavailable)
}

func (s *troubled) PutIfAbsent(ctx context.Context, key string, body []byte) (store.Version, error) {
	if err := s.ask(key); err != nil {
		return "", err
	}
	return s.Store.PutIfAbsent(ctx, key, body)
}

func (s *troubled) PutIfMatch(ctx context.Context, key string, body []byte, old store.Version) (store.Version, error) {
	if err := s.ask(key); err != nil {
		return "", err
	}
	return s.Store.PutIfMatch(ctx, key, body, old)
}

func (s *troubled) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := s.ask(key); err != nil {
		return nil, "", err
	}
	return s.Store.Get(ctx, key)
}

// breakStore makes a directory store refuse everything, and mendStore ends that.
func (p *peer) breakStore() {
	if err := os.Rename(p.objects, p.objects+".away"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) mendStore() {
	if err := os.Rename(p.objects+".away", p.objects); err != nil {
		p.t.Fatal(err)
	}
}

// fill appends until the log is full.
func (p *peer) fill() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := walsidecar.Dial(ctx, p.socket())
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	for {
		record := fmt.Sprintf("%d %s", len(p.acked["full"]), bytes.Repeat([]byte{'x'}, 100_000))
		if _, err := c.Append(ctx, "full", []byte(record)); errors.Is(err, walsidecar.ErrLogFull) {
			return
		} else if err != nil {
			p.t.Fatal(err)
		}
		p.acked["full"] = append(p.acked["full"], record)
	}
}
