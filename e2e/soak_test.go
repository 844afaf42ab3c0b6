package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// soakSlacks are what TestNothingGrowsWithTime looks at. Latencies are those of a machine
// that may do other things too.
var soakSlacks = map[string]slack{
	"resident bytes beside the cold cache": {0.05, 16 << 20},
	"heap bytes beside the cold cache":     {0.2, 8 << 20},
	"cold bytes":                           {0, soakMemory * 5 / 32},
	"descriptors":                          {0, 6},
	"goroutines":                           {0, 12},
	"threads":                              {0.1, 4},
	"sessions":                             {0, 4},
	"session bytes":                        {0.1, 4 << 20},
	"upload bytes":                         {0.2, 16 << 20},
	"streams":                              {0, 8},
	"log bytes":                            {0.3, 16 << 20},
	"p50 seconds":                          {1, 0.005},
	"p99 seconds":                          {2, 0.050},
	"the client's goroutines":              {0, 24},
	"the client's heap bytes":              {0.2, 16 << 20},
	"the client's descriptors":             {0, 12},
}

const (
	soakMemory      = 256 << 20
	soakAppenders   = 4
	soakPerSecond   = 50 // records of each
	soakRecordBytes = 4 << 10
)

// soak is a sidecar under a load that is the same all the time.
type soak struct {
	t       *testing.T
	h       *host
	p       *process
	url     string
	seen    series
	workers sync.WaitGroup

	mu        sync.Mutex
	latencies []float64 // seconds, since the last sample
}

// Memory, descriptors, goroutines and latency of a sidecar stay what they are, whatever
// comes and goes: clients of all doors, orderly or not, streams, producers, reads of the past,
// uploads, retention. WALSIDECAR_TEST_SOAK says for how long, an hour or more to be of use.
func TestNothingGrowsWithTime(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("WALSIDECAR_TEST_SOAK"))
	if err != nil {
		t.Skip("WALSIDECAR_TEST_SOAK is not set to a duration: `make soak-hour` does that")
	}
	s := &soak{t: t, seen: series{}}
	s.h = newStoreHost(t, "ADMIN=127.0.0.1:0", "WAL_SIZE=64MiB", fmt.Sprintf("MEMORY=%dB", soakMemory), "LINGER=1s", "RETENTION_AGE=1m")
	s.h.set("HTTP=" + s.h.path("h"))
	s.p = s.h.serve()
	s.url = adminURL(t, s.p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.start(ctx)
	every := max(duration/180, time.Second)
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		time.Sleep(every)
		s.sample()
	}
	cancel()
	s.workers.Wait()
	for _, complaint := range s.seen.grown(soakSlacks) {
		t.Error(complaint)
	}
	for _, name := range slices.Sorted(maps.Keys(soakSlacks)) {
		values := s.seen[name]
		third := len(values) / 3
		if third > 0 {
			t.Logf("%-36s medians of the thirds %.6g, %.6g, %.6g; from %.6g to %.6g", name, median(values[:third]), median(values[third:2*third]),
				median(values[2*third:]), slices.Min(values), slices.Max(values))
		}
	}
	if code := s.p.signal(sigterm); code != 0 {
		t.Errorf("the sidecar ended with %d:\n%s", code, s.p.stderr)
	}
}

// start starts the load.
func (s *soak) start(ctx context.Context) {
	for i := range soakAppenders {
		c := s.dial(ctx, i)
		name := fmt.Sprintf("steady-%d", i)
		if _, err := c.CreateStream(ctx, name); err != nil {
			s.t.Fatal(err)
		}
		s.workers.Go(func() { defer c.Close(); s.appendSteadily(ctx, c, name) })
		follower := s.dial(ctx, i)
		s.workers.Go(func() { defer follower.Close(); s.follow(ctx, follower, name) })
	}
	n := 0
	s.repeat(ctx, 200*time.Millisecond, func() error { n++; return s.comeAndGo(ctx, n) })
	s.repeat(ctx, 300*time.Millisecond, func() error { return s.leaveAtOnce(ctx) })
	s.repeat(ctx, 400*time.Millisecond, func() error { return s.overHTTP(ctx) })
	reader, churner := s.dial(ctx, 0), s.dial(ctx, 1)
	s.repeat(ctx, 3*time.Second, func() error { return s.readThePast(ctx, reader) })
	k := 0
	s.repeat(ctx, 100*time.Millisecond, func() error { k++; return s.streamForAWhile(ctx, churner, k) })
	s.workers.Go(func() { <-ctx.Done(); reader.Close(); churner.Close() })
}

// dial connects a client that lasts; shared memory and socket take turns.
func (s *soak) dial(ctx context.Context, i int) *walsidecar.Client {
	c, err := walsidecar.Dial(ctx, s.h.path("s"), walsidecar.WithDoor([]walsidecar.Door{walsidecar.DoorShm, walsidecar.DoorSocket}[i%2]), walsidecar.WithWaitWhileFull())
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// repeat does something again and again until ctx ends.
func (s *soak) repeat(ctx context.Context, every time.Duration, what func() error) {
	s.workers.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(every) {
			if err := what(); err != nil && ctx.Err() == nil {
				s.t.Error(err)
				return
			}
		}
	})
}

// appendSteadily appends at the times that the rate gives, and counts latency from those.
func (s *soak) appendSteadily(ctx context.Context, c *walsidecar.Client, name string) {
	payload := soakPayload()
	for due := time.Now(); ctx.Err() == nil; due = due.Add(time.Second / soakPerSecond) {
		time.Sleep(time.Until(due))
		if _, err := c.Append(ctx, name, payload); err != nil {
			if ctx.Err() == nil {
				s.t.Error(err)
			}
			return
		}
		s.mu.Lock()
		s.latencies = append(s.latencies, time.Since(due).Seconds())
		s.mu.Unlock()
	}
}

// soakPayload is a record of which a third does not compress.
func soakPayload() []byte {
	payload := bytes.Repeat([]byte("steady "), soakRecordBytes/7+1)[:soakRecordBytes]
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(payload[:soakRecordBytes/3]) // never fails
	return payload
}

func (s *soak) follow(ctx context.Context, c *walsidecar.Client, name string) {
	for _, err := range c.Follow(ctx, name) {
		var gap *walsidecar.Gap
		if err != nil && !errors.As(err, &gap) {
			if ctx.Err() == nil {
				s.t.Error(err)
			}
			return
		}
	}
}

// comeAndGo is a client that connects, appends under a producer, reads, and leaves.
func (s *soak) comeAndGo(ctx context.Context, n int) error {
	c, err := walsidecar.Dial(ctx, s.h.path("s"), walsidecar.WithDoor([]walsidecar.Door{walsidecar.DoorShm, walsidecar.DoorSocket}[n%2]), walsidecar.WithWaitWhileFull())
	if err != nil {
		return err
	}
	defer c.Close()
	name := fmt.Sprintf("producer-%d", n)
	for i := range uint64(10) {
		if _, err := c.Append(ctx, "visited", []byte("by a client"), walsidecar.WithProducer(name, i+1)); err != nil {
			return err
		}
	}
	for _, err := range c.Read(ctx, "steady-0", walsidecar.FromLast(20)) {
		if err != nil {
			return err
		}
	}
	return c.RemoveProducer(ctx, name)
}

// leaveAtOnce is whoever connects and says nothing, or nonsense.
func (s *soak) leaveAtOnce(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.h.path("s"))
	if err != nil {
		return err
	}
	_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")[:rand.IntN(18)]) // the sidecar may have closed it
	return conn.Close()
}

func (s *soak) overHTTP(ctx context.Context) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.h.path("h"))
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://walsidecar/v1/streams/visited/records", strings.NewReader("over HTTP"))
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("over HTTP: %s", answer.Status)
	}
	return nil
}

// readThePast reads a stream from its beginning, from the store for the most part.
func (s *soak) readThePast(ctx context.Context, c *walsidecar.Client) error {
	for _, err := range c.Read(ctx, "steady-1") {
		var gap *walsidecar.Gap
		if err != nil && !errors.As(err, &gap) {
			return err
		}
	}
	return nil
}

// streamForAWhile is a stream that is made, used and deleted.
func (s *soak) streamForAWhile(ctx context.Context, c *walsidecar.Client, n int) error {
	name := fmt.Sprintf("temporary-%d", n)
	if _, err := c.CreateStream(ctx, name); err != nil {
		return err
	}
	for range 3 {
		if _, err := c.Append(ctx, name, []byte("for a while")); err != nil {
			return err
		}
	}
	return c.DeleteStream(ctx, name)
}

// sample adds a value to each series.
func (s *soak) sample() {
	s.t.Helper()
	add := func(name string, value float64) { s.seen[name] = append(s.seen[name], value) }
	_, text := fetch(s.t, s.url+"/metrics")
	metrics := map[string]float64{}
	for _, line := range lines(text) {
		name, value, _ := strings.Cut(line, " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil {
			metrics[name] = number
		}
	}
	for name, metric := range map[string]string{
		"heap bytes": "go_memstats_next_gc_bytes", "cold bytes": "walsidecar_cold_cache_bytes", "goroutines": "go_goroutines", "threads": "go_threads", "sessions": "walsidecar_sessions",
		"session bytes": "walsidecar_session_memory_bytes", "upload bytes": "walsidecar_upload_memory_bytes", "streams": "walsidecar_streams",
		"log bytes": "walsidecar_log_used_bytes",
	} {
		value, found := metrics[metric]
		if !found {
			s.t.Fatalf("no metric %s in:\n%s", metric, text)
		}
		add(name, value)
	}
	add("resident bytes", float64(s.p.memory().resident))
	// The heap is what the collector lets it become, twice what is in use: what it has at the moment
	// is mostly what nobody needs any more. The cache of what was read from the store fills
	// slowly, up to its bound.
	for _, name := range []string{"heap bytes", "resident bytes"} {
		values := s.seen[name]
		add(name+" beside the cold cache", max(0, values[len(values)-1]-2*s.seen["cold bytes"][len(values)-1]))
	}
	add("descriptors", float64(descriptors(s.t, s.p.cmd.Process.Pid)))
	add("the client's descriptors", float64(descriptors(s.t, os.Getpid())))
	add("the client's goroutines", float64(runtime.NumGoroutine()))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	add("the client's heap bytes", float64(m.HeapInuse))
	s.mu.Lock()
	latencies := s.latencies
	s.latencies = nil
	s.mu.Unlock()
	if len(latencies) > 0 {
		slices.Sort(latencies)
		add("p50 seconds", latencies[len(latencies)/2])
		add("p99 seconds", latencies[len(latencies)*99/100])
	}
	last, _ := json.Marshal(lastOf(s.seen)) // strings and numbers
	s.t.Logf("%s", last)
}

// lastOf is the newest sample.
func lastOf(s series) map[string]float64 {
	newest := map[string]float64{}
	for name, values := range s {
		newest[name] = values[len(values)-1]
	}
	return newest
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
