package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// comparedBytes is how much is appended and compared, unless WALSIDECAR_TEST_BYTES says
// otherwise.
const comparedBytes = 50_000_000

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// mixed is a record of 1 byte to 48 KiB: text, repetition, or noise.
func mixed(r *rand.Rand) []byte {
	b := make([]byte, 1+r.IntN(1<<r.IntN(16)))
	switch r.IntN(3) {
	case 0:
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	case 1:
		for i := range b {
			b[i] = "the quick brown fox jumps over the lazy dog\n"[(i+len(b))%44]
		}
	default:
		for i := range b {
			b[i] = byte('0' + r.IntN(10))
		}
	}
	return b
}

// digested are records of one stream, as `read` prints them.
type digested struct {
	hash  hash.Hash
	count int
}

func (d *digested) add(payload []byte) {
	d.hash.Write(payload)
	d.hash.Write([]byte{'\n'})
	d.count++
}

func (d *digested) String() string { return hex.EncodeToString(d.hash.Sum(nil)) }

// What was appended is what followers get at once, what is read from memory and device, what
// is read after a restart, when memory is empty, and what is read without a sidecar: byte for
// byte.
func TestP2_AppendedIsReadHotColdAndByStore(t *testing.T) {
	total := number(t, "WALSIDECAR_TEST_BYTES", comparedBytes)
	h := newS3Host(t, "WAL_SIZE=64MiB", "LINGER=200ms")
	random := seeded(t)
	p := h.serve()
	const streams, theLast = 8, "the last one"
	ctx, cancel := context.WithTimeout(t.Context(), max(patience, time.Duration(total/1_000_000)*time.Second))
	defer cancel()
	var appended, followed [streams]digested
	began := time.Now()
	var writing, following sync.WaitGroup
	fail := make(chan error, 2*streams)
	client, reading := dial(t, h.host), dial(t, h.host)
	for i := range streams {
		name, salt := fmt.Sprintf("stream-%d", i), random.Uint64()
		appended[i].hash, followed[i].hash = sha256.New(), sha256.New()
		if _, err := client.CreateStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		writing.Go(func() {
			r := rand.New(rand.NewPCG(salt, 0))
			var flight []walsidecar.Ticket
			for bytes := 0; bytes < total/streams; {
				b := mixed(r)
				ticket, err := client.Submit(ctx, name, b)
				if err != nil {
					fail <- err
					return
				}
				bytes += len(b)
				appended[i].add(b)
				if flight = append(flight, ticket); len(flight) == 64 {
					if _, err := flight[0].Wait(ctx); err != nil {
						fail <- err
						return
					}
					flight = flight[1:]
				}
			}
			for _, ticket := range flight {
				if _, err := ticket.Wait(ctx); err != nil {
					fail <- err
					return
				}
			}
		})
		following.Go(func() {
			for record, err := range reading.Follow(ctx, name) {
				if err != nil {
					fail <- fmt.Errorf("follow %s: %w", name, err)
					return
				}
				if followed[i].add(record.Data); string(record.Data) == theLast {
					return
				}
			}
		})
	}
	writing.Wait()
	seconds := time.Since(began).Seconds()
	select {
	case err := <-fail:
		t.Fatal(err)
	default:
	}
	for i := range streams {
		if _, err := client.Append(ctx, fmt.Sprintf("stream-%d", i), []byte(theLast)); err != nil {
			t.Fatal(err)
		}
		appended[i].add([]byte(theLast))
	}
	following.Wait()
	compare := func(how string, got *[streams]digested) {
		t.Helper()
		for i := range streams {
			if got[i].String() != appended[i].String() {
				t.Errorf("stream-%d, %s: %d records that are not the %d appended", i, how, got[i].count, appended[i].count)
			}
		}
	}
	read := func() (got [streams]digested) {
		t.Helper()
		c := dial(t, h.host)
		defer c.Close()
		for i := range streams {
			got[i].hash = sha256.New()
			for record, err := range c.Read(t.Context(), fmt.Sprintf("stream-%d", i)) {
				if err != nil {
					t.Fatalf("stream-%d: record %d: %v", i, got[i].count, err)
				}
				if record.Offset != uint64(got[i].count) {
					t.Fatalf("stream-%d: offset %d, want %d", i, record.Offset, got[i].count)
				}
				got[i].add(record.Data)
			}
		}
		return got
	}
	compare("followed", &followed)
	hot := read()
	compare("hot", &hot)
	h.must("flush")
	status := h.status()
	p.kill()
	p = h.serve()
	cold := read()
	compare("cold", &cold)
	p.kill()
	var stored [streams]digested
	for i := range streams {
		stored[i].hash = sha256.New()
		reader := h.start(stored[i].hash, h.direct("read", fmt.Sprintf("stream-%d", i))...)
		<-reader.done
		if code := reader.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("read --store of stream-%d: exit %d: %s", i, code, reader.stderr)
		}
	}
	compare("by the store", &stored)
	h.must(h.direct("verify")...)
	t.Logf("%d bytes appended in %.1f s, %d stored; the log began at %d of %d", total, seconds, status.Uploads.StoredBytes, status.Trim, status.Durable)
}
