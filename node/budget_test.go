package node

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/wire"
)

// A log that was told what its volume was bought with uses that and no more, superblocks
// included, and writes no frame that a volume counts as two operations.
func TestTheBudgetOfOperationsHolds(t *testing.T) {
	const iops, span = 50, 1600 * time.Millisecond
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "wal")}
	r.cfg = Config{Path: r.path, SizeBytes: testFileBytes, Store: "none", MemoryBytes: 128 << 20, IOPS: iops, Log: slog.New(slog.DiscardHandler)}
	r.open()
	var times []int64 // of writes, under the gate's lock
	r.dev.set(func(int, int64) bool {
		times = append(times, device.NowNS())
		return false
	}, nil)
	d := r.dial()
	stream := d.create("orders").ID
	for from := time.Now(); time.Since(from) < span; {
		d.append(stream, []byte("x"))
		r.node.inbox.addCall(r.node.wal.RecordDurable)
	}
	r.dev.mu.Lock()
	for i := iops; i < len(times); i++ {
		// A write reaches the device a little later than it was due.
		if gap := time.Duration(times[i] - times[i-iops]); gap < 980*time.Millisecond {
			t.Errorf("%d writes within %v, %d a second were bought", iops+1, gap, iops)
			break
		}
	}
	// How much of it is used is tested without a device, which may be slower than this.
	if least := iops * int(span/time.Millisecond) / 1000 / 5; len(times) < least {
		t.Errorf("%d writes in %v, want at least %d of %d a second", len(times), span, least, iops)
	}
	r.dev.mu.Unlock()
	r.close()
}

// Without the budget a frame takes all that waits.
func TestABudgetOfOperationsLimitsFrames(t *testing.T) {
	const records, payloadBytes = 40, 100 << 10
	for _, iops := range []int64{0, 1000} {
		r := &rig{t: t, path: filepath.Join(t.TempDir(), "wal")}
		r.cfg = Config{Path: r.path, SizeBytes: testFileBytes, Store: "none", MemoryBytes: 128 << 20, IOPS: iops, Log: slog.New(slog.DiscardHandler)}
		r.open()
		d := r.dial()
		stream := d.create("orders").ID
		var offsets []int64
		held := true
		r.dev.set(func(_ int, offset int64) bool {
			if offset >= ringwal.RingStart && !slices.Contains(offsets, offset) {
				offsets = append(offsets, offset)
			}
			return held
		}, nil)
		for range records {
			d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: make([]byte, payloadBytes)}}})
		}
		for deadline := time.Now().Add(10 * time.Second); r.node.Metrics().Records.Load() < records; {
			if time.Now().After(deadline) {
				t.Fatal("the log does not take the records")
			}
			time.Sleep(time.Millisecond)
		}
		r.dev.mu.Lock()
		held = false
		r.dev.mu.Unlock()
		r.dev.opened.Broadcast()
		for acked := 0; acked < records; {
			var ack wire.AppendAck
			d.decode(d.next(), &ack)
			for _, e := range ack.Extents {
				acked += int(e.Requests)
			}
		}
		r.close()
		slices.Sort(offsets)
		longest := int64(0)
		for i := range len(offsets) - 1 {
			longest = max(longest, offsets[i+1]-offsets[i])
		}
		if iops > 0 && longest > ringwal.PacerOpBytes || iops == 0 && longest <= ringwal.PacerOpBytes {
			t.Errorf("with a budget of %d operations the longest of %d frames has %d bytes", iops, len(offsets), longest)
		}
	}
}
