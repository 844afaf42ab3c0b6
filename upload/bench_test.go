package upload

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/stream"
)

// benchFrames are frames with so many bytes of payloads, of one size each: random bytes,
// or JSON as services log it.
func benchFrames(b *testing.B, total, size, streams int, text bool) *testWorld {
	random := rand.New(rand.NewPCG(1, 2))
	w := newTestWorld(b, 128<<20, 0)
	ids := make([]stream.ID, streams)
	for i := range ids {
		ids[i] = w.stream(fmt.Sprintf("stream %d", i))
	}
	for n := 0; n < total; n += size {
		payload := make([]byte, size)
		if text {
			line := []byte{}
			for len(line) < size {
				one, _ := json.Marshal(map[string]any{"level": "info", "order": random.Uint32(), "customer": random.IntN(1000), "msg": "order accepted", "took_us": random.IntN(5000)})
				line = append(line, one...)
			}
			copy(payload, line)
		} else {
			for i := range payload {
				payload[i] = byte(random.Uint32())
			}
		}
		w.nowNS += 20_000
		w.append(&stream.Batch{Entries: []stream.Entry{{Stream: ids[random.IntN(streams)], Payload: payload}}})
	}
	w.sync()
	return w
}

// reportCPU reports MB per second of processor time, which other load on the machine
// changes less than the time on the clock.
func reportCPU(b *testing.B, bytes int) func() {
	used := func() time.Duration {
		var u unix.Rusage
		must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ResetTimer()
	before := used()
	return func() {
		b.ReportMetric(float64(bytes)*float64(b.N)/(used()-before).Seconds()/1e6, "MB/cpu-s")
	}
}

var benchCases = []struct {
	name          string
	size, streams int
	text          bool
}{
	{"text100x10", 100, 10, true},
	{"random100x10", 100, 10, false},
	{"text1000x10", 1000, 10, true},
	{"random1000x10", 1000, 10, false},
	{"random16000x10", 16000, 10, false},
	{"text1000x5000", 1000, 5000, true},
}

// BenchmarkBuild makes objects of 8 MiB: MB/s of payload on one core, and what a record
// takes beside its payload.
func BenchmarkBuild(b *testing.B) {
	const total = 8 << 20
	for _, c := range benchCases {
		b.Run(c.name, func(b *testing.B) {
			w := benchFrames(b, total, c.size, c.streams, c.text)
			builder := NewBuilder(0)
			var body []byte
			b.SetBytes(total)
			b.ReportAllocs()
			defer reportCPU(b, total)()
			for b.Loop() {
				builder.Reset(0)
				for i := range w.frames {
					must(b, builder.AddFrame(&w.frames[i].FrameView))
				}
				o, err := builder.Build(testLog, 1, ObjectID{}, body)
				must(b, err)
				body = o.Body
			}
			b.ReportMetric(float64(len(body))/float64(total), "stored/payload")
			b.ReportMetric(float64(len(body)-total)/float64(builder.Records()), "overhead-B/record")
		})
	}
}

// BenchmarkScan reads all streams of a store in memory.
func BenchmarkScan(b *testing.B) {
	for _, c := range benchCases[:5] {
		b.Run(c.name, func(b *testing.B) {
			w := benchFrames(b, 32<<20, c.size, c.streams, c.text)
			s, _ := w.archive(8<<20, 256)
			a := openTest(b, s)
			b.SetBytes(32 << 20)
			b.ReportAllocs()
			defer reportCPU(b, 32<<20)()
			for b.Loop() {
				for id := range stream.ID(c.streams) {
					must(b, a.Records(background, id+1, 0, math.MaxUint64, func(*Record) error { return nil }))
				}
			}
		})
	}
}

// BenchmarkReplay replays a store in memory.
func BenchmarkReplay(b *testing.B) {
	w := benchFrames(b, 32<<20, 1000, 10, true)
	s, _ := w.archive(8<<20, 256)
	a := openTest(b, s)
	b.SetBytes(32 << 20)
	b.ReportAllocs()
	defer reportCPU(b, 32<<20)()
	for b.Loop() {
		r := a.Replay(0)
		for {
			if _, err := r.Next(background); err != nil {
				break
			}
		}
		r.Close()
	}
}
