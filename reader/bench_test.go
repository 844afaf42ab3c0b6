package reader_test

import (
	"context"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/upload"
)

// A cold scan and a cold replay against a loop of ranged GETs of 4 MiB, one after the
// other, of the same objects of the same store, in turns: MB/s of stored bytes, and how
// many percent the scan has of the loop's. "local" is the directory as it is (memory, in
// fact), "bucket" answers a request after 20 ms, and then at 100 MB/s.
func BenchmarkColdScan(b *testing.B) {
	const megabytes = 96
	w := newWorld(b, options{coldBytes: 32 << 20})
	id := w.stream("s")
	for range megabytes << 20 / 4000 {
		w.append(4000, id)
		if w.log.Durable()-w.manifest.Uploaded > 8<<20 {
			w.upload()
		}
	}
	w.sync()
	w.upload()
	w.setTrim(w.manifest.Uploaded)
	bucket := func(ctx context.Context, _ string) error {
		time.Sleep(20 * time.Millisecond)
		return nil
	}
	for _, c := range []struct {
		name      string
		before    *func(context.Context, string) error
		bandwidth int64
	}{{"local", nil, 0}, {"bucket", &bucket, 100e6}} {
		b.Run(c.name, func(b *testing.B) {
			w.store.before.Store(c.before)
			defer w.store.before.Store(nil)
			w.store.bandwidth = c.bandwidth
			var plain, scan, replay time.Duration
			var bytes int64
			for b.Loop() {
				n, took := plainGets(b, w)
				bytes, plain = bytes+n, plain+took
				began := time.Now()
				cursor, err := w.r.Open(reader.Query{Stream: id})
				must(b, err)
				pull(b, cursor)
				cursor.Close()
				scan += time.Since(began)
				began = time.Now()
				p, err := w.r.OpenReplay(reader.ReplayQuery{})
				must(b, err)
				pull(b, p)
				p.Close()
				replay += time.Since(began)
			}
			b.ReportMetric(float64(bytes)/1e6/plain.Seconds(), "get-MB/s")
			b.ReportMetric(float64(bytes)/1e6/scan.Seconds(), "scan-MB/s")
			b.ReportMetric(100*plain.Seconds()/scan.Seconds(), "scan-%")
			b.ReportMetric(100*plain.Seconds()/replay.Seconds(), "replay-%")
		})
	}
}

// plainGets reads all objects in ranges.
func plainGets(b *testing.B, w *world) (n int64, took time.Duration) {
	began := time.Now()
	buf := make([]byte, 4<<20)
	for i := range w.manifest.Groups {
		ref := &w.manifest.Groups[i].Objects[0]
		key := ref.ID.Key(testNode, upload.KindData)
		for from := int64(0); from < int64(ref.Bytes); from += int64(len(buf)) {
			part := buf[:min(int64(len(buf)), int64(ref.Bytes)-from)]
			must(b, w.store.GetRange(background, key, from, part))
			n += int64(len(part))
		}
	}
	return n, time.Since(began)
}

// pull reads to the end in messages as a session sends them.
func pull(b *testing.B, from source) {
	for {
		e, err := from.Next(background, session.ReadMessageBytes)
		must(b, err)
		if e.Kind == reader.End {
			return
		}
	}
}
