package scenario

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// Memory is what a sidecar holds resident with so many of something.
type Memory struct {
	What  string `json:"what"`
	Count int    `json:"count"`
	// Bytes are resident, shared memory included; Each is what one takes of them beyond the
	// sidecar with none.
	Bytes int64   `json:"resident_bytes"`
	Each  float64 `json:"bytes_each"`
}

// settle is how long a sidecar is left alone before its memory is looked at.
const settle = 500 * time.Millisecond

// MeasureMemory connects idle clients and makes streams, and looks at the sidecar. Each
// kind has a sidecar of its own.
func (h *Host) MeasureMemory(ctx context.Context, clients, rings, streams []int) (rows []Memory, err error) {
	for _, kind := range []struct {
		what   string
		counts []int
		add    func(ctx context.Context, s *sidecar, from, to int) (func(), error)
	}{
		{"idle clients, socket", clients, connect(walsidecar.DoorSocket)},
		{"idle clients, shared memory, each with one append", rings, connect(walsidecar.DoorShm)},
		{"streams, each with one record", streams, appendToStreams},
	} {
		more, err := h.memory(ctx, kind.what, kind.counts, kind.add)
		rows = append(rows, more...)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", kind.what, err)
		}
	}
	return rows, nil
}

func (h *Host) memory(ctx context.Context, what string, counts []int, add func(ctx context.Context, s *sidecar, from, to int) (func(), error)) (rows []Memory, err error) {
	wal, err := h.format(ctx)
	if err != nil {
		return nil, err
	}
	s, err := h.serve(ctx, wal, "none")
	if err != nil {
		return nil, err
	}
	defer s.end(syscall.SIGKILL)
	if err := s.fill(ctx, "bench", 64<<20); err != nil { // its buffers are in use
		return nil, err
	}
	base, err := s.resident()
	if err != nil {
		return nil, err
	}
	rows = append(rows, Memory{What: what, Bytes: base})
	count := 0
	for _, to := range counts {
		remove, err := add(ctx, s, count, to)
		if remove != nil {
			defer remove()
		}
		if err != nil {
			return rows, err
		}
		count = to
		bytes, err := s.resident()
		if err != nil {
			return rows, err
		}
		r := Memory{What: what, Count: count, Bytes: bytes, Each: float64(bytes-base) / float64(count)}
		h.Say("%s: %d: %.1f MiB resident, %.1f KiB each", what, count, float64(bytes)/(1<<20), r.Each/1024)
		rows = append(rows, r)
	}
	return rows, nil
}

// connect opens clients, and uses each of those with a ring once.
func connect(door walsidecar.Door) func(ctx context.Context, s *sidecar, from, to int) (func(), error) {
	return func(ctx context.Context, s *sidecar, from, to int) (func(), error) {
		var all []*walsidecar.Client
		remove := func() {
			for _, c := range all {
				_ = c.Close() // never fails
			}
		}
		for range to - from {
			c, err := walsidecar.Dial(ctx, s.socket, walsidecar.WithDoor(door))
			if err != nil {
				return remove, fmt.Errorf("client %d: %w", from+len(all)+1, err)
			}
			all = append(all, c)
			if door == walsidecar.DoorShm {
				if _, err := c.Append(ctx, "bench", []byte("one")); err != nil {
					return remove, err
				}
			}
		}
		return remove, nil
	}
}

// appendToStreams makes streams, many at once.
func appendToStreams(ctx context.Context, s *sidecar, from, to int) (func(), error) {
	const atOnce = 64
	var making sync.WaitGroup
	errs := make([]error, atOnce)
	for first := range atOnce {
		making.Go(func() {
			for i := from + first; i < to && errs[first] == nil; i += atOnce {
				_, errs[first] = s.control.Append(ctx, fmt.Sprintf("stream-%07d", i), []byte("one"))
			}
		})
	}
	making.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// resident is what the sidecar holds in memory after a pause.
func (s *sidecar) resident() (int64, error) {
	time.Sleep(settle)
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no VmRSS", f.Name())
}
