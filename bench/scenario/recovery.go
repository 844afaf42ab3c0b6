package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Recovery is one start after a kill.
type Recovery struct {
	Store           string  `json:"store"`
	Repeat          int     `json:"repeat"`
	LogBytes        int64   `json:"log_bytes"` // that recovery read
	Records         uint64  `json:"records"`
	ReadySeconds    float64 `json:"ready_s"`    // from the start of the process to the first session
	RecoverySeconds float64 `json:"recovery_s"` // of it reading the log
	MBPerSecond     float64 `json:"mb_per_s"`
	ReadMBPerSecond float64 `json:"read_mb_per_s"` // plain sequential reads of the same bytes
}

// randomBytes are bytes that do not compress, always the same.
var randomBytes = sync.OnceValue(func() []byte {
	payload := make([]byte, 64<<20)
	_, _ = rand.NewChaCha8([32]byte{'f', 'i', 'l', 'l'}).Read(payload) // never fails
	return payload
})

// MeasureRecovery fills logs with so many bytes, kills the sidecar, and starts it again. The
// plain read is measured before and after, and the mean is taken: the machine may change.
func (h *Host) MeasureRecovery(ctx context.Context, sizes []int64, repeats int) (rows []Recovery, err error) {
	for repeat := 1; repeat <= repeats; repeat++ {
		for _, size := range sizes {
			r, err := h.recovery(ctx, size)
			if err != nil {
				return rows, fmt.Errorf("recovery of %d bytes: %w", size, err)
			}
			r.Repeat = repeat
			h.Say("%s, recovery %d: %d MiB, %d records: ready after %.3f s, %.3f s of it recovery: %.0f MB/s; plain read %.0f MB/s",
				h.Store.Label, repeat, r.LogBytes>>20, r.Records, r.ReadySeconds, r.RecoverySeconds, r.MBPerSecond, r.ReadMBPerSecond)
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (h *Host) recovery(ctx context.Context, size int64) (r Recovery, err error) {
	wal, err := h.format(ctx)
	if err != nil {
		return r, err
	}
	first, err := h.serve(ctx, wal, "none")
	if err != nil {
		return r, err
	}
	err = first.fill(ctx, "bench", size)
	first.end(syscall.SIGKILL)
	if err != nil {
		return r, err
	}
	before, err := readRate(wal, size)
	if err != nil {
		return r, err
	}
	second, err := h.serve(ctx, wal, "none")
	if err != nil {
		return r, err
	}
	var s struct {
		Start struct {
			RecoverySeconds float64 `json:"recovery_s"`
			Records         uint64  `json:"records"`
			ReadBytes       int64   `json:"read_bytes"`
		} `json:"start"`
	}
	err = second.status(ctx, &s)
	ready := second.ready
	second.end(syscall.SIGKILL)
	if err != nil {
		return r, err
	}
	after, err := readRate(wal, size)
	if err != nil {
		return r, err
	}
	return Recovery{
		Store: h.Store.Label, LogBytes: s.Start.ReadBytes, Records: s.Start.Records, ReadySeconds: ready.Seconds(), RecoverySeconds: s.Start.RecoverySeconds,
		MBPerSecond: float64(s.Start.ReadBytes) / 1e6 / s.Start.RecoverySeconds, ReadMBPerSecond: (before + after) / 2,
	}, nil
}

// readBytes is the size of one plain read.
const readBytes = 4 << 20

// readRate reads the beginning of a log with direct I/O, one read after the other, and
// returns 10^6 bytes per second.
func readRate(path string, bytes int64) (float64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buffer, err := unix.Mmap(-1, 0, readBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Munmap(buffer) }() // it is ours
	read, began := int64(0), time.Now()
	for read < bytes {
		n, err := f.ReadAt(buffer, read)
		read += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	return float64(read) / 1e6 / time.Since(began).Seconds(), nil
}

// Takeover is one takeover of a log whose owner was killed.
type Takeover struct {
	Store       string  `json:"store"`
	Repeat      int     `json:"repeat"`
	Bytes       int64   `json:"not_uploaded_bytes"`
	Records     uint64  `json:"records"`
	Seconds     float64 `json:"seconds"`
	MBPerSecond float64 `json:"mb_per_s"`
	Steps       []struct {
		Step    string  `json:"step"`
		Seconds float64 `json:"seconds"`
	} `json:"steps"`
}

// MeasureTakeover kills owners whose store was away since so many bytes, and takes their logs
// over. The logs are files: their lock says that the owner is gone, and nothing is waited for.
func (h *Host) MeasureTakeover(ctx context.Context, sizes []int64, repeats int) (rows []Takeover, err error) {
	for repeat := 1; repeat <= repeats; repeat++ {
		for _, size := range sizes {
			r, err := h.takeover(ctx, size)
			if err != nil {
				return rows, fmt.Errorf("takeover with %d bytes: %w", size, err)
			}
			r.Repeat = repeat
			h.Say("%s, takeover %d: %d MiB not uploaded, %d records: %.2f s, %.0f MB/s %v", h.Store.Label, repeat, r.Bytes>>20, r.Records, r.Seconds, r.MBPerSecond, r.Steps)
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (h *Host) takeover(ctx context.Context, size int64) (r Takeover, err error) {
	dir, err := h.Store.Fresh(false)
	if err != nil {
		return r, err
	}
	objects, err := h.objects()
	if err != nil {
		return r, err
	}
	wal := filepath.Join(dir, "wal")
	owner, err := h.serve(ctx, wal, objects, fmt.Sprintf("WALSIDECAR_WAL_SIZE=%dMiB", size>>20+size>>22+256))
	if err != nil {
		return r, err
	}
	away := objects + "-away"
	err = os.RemoveAll(away)
	if err == nil {
		err = os.Rename(objects, away)
	}
	if err == nil && size > 0 {
		err = owner.fill(ctx, "bench", size)
	}
	owner.end(syscall.SIGKILL)
	if err != nil {
		return r, err
	}
	if err := os.RemoveAll(objects); err != nil { // in case it was made again
		return r, err
	}
	if err := os.Rename(away, objects); err != nil {
		return r, err
	}
	out, err := h.run(ctx, "takeover", wal, "--store", objects, "--json")
	if err != nil {
		return r, err
	}
	var report struct {
		Takeover
		Bytes   int64  `json:"uploaded_bytes"`
		Records uint64 `json:"uploaded_records"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return r, err
	}
	r = report.Takeover
	r.Store, r.Bytes, r.Records = h.Store.Label, report.Bytes, report.Records
	r.MBPerSecond = float64(r.Bytes) / 1e6 / r.Seconds
	return r, os.RemoveAll(objects)
}
