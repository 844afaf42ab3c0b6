package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
	"github.com/walsidecar/walsidecar/upload/store/faultproxy"
	"github.com/walsidecar/walsidecar/upload/store/s3test"
)

// filler appends records of 64 KiB to one stream, and knows how many were acked.
type filler struct {
	t      *testing.T
	client *walsidecar.Client
	acked  int
}

// payload is the n-th record; it does not compress.
func (f *filler) payload(n int) []byte {
	b := make([]byte, 0, 64<<10)
	x := uint64(n)*0x9e3779b97f4a7c15 + 1
	for len(b) < 64<<10 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56))
	}
	return b
}

// one appends a record; the error is that of a full log or nil.
func (f *filler) one() error {
	f.t.Helper()
	result, err := f.client.Append(f.t.Context(), "filler", f.payload(f.acked))
	switch {
	case errors.Is(err, walsidecar.ErrLogFull):
		return err
	case err != nil:
		f.t.Fatalf("record %d: %v", f.acked, err)
	case result.Offset != uint64(f.acked):
		f.t.Fatalf("record %d got offset %d", f.acked, result.Offset)
	}
	f.acked++
	return nil
}

// check reads everything back.
func (f *filler) check() {
	f.t.Helper()
	n := 0
	for r, err := range f.client.Read(f.t.Context(), "filler") {
		if err != nil {
			f.t.Fatalf("record %d: %v", n, err)
		}
		if r.Offset != uint64(n) || !bytes.Equal(r.Data, f.payload(n)) {
			f.t.Fatalf("record %d is not what was appended", n)
		}
		n++
	}
	if n != f.acked {
		f.t.Errorf("%d records are readable, %d were acked", n, f.acked)
	}
}

// An outage of more than the log holds: appends go on until it is full, are refused with what
// the store says, and go on by themselves. Nothing is lost, and reads of the past say what is
// the matter.
func TestP12_AnOutageFillsTheLogAndHeals(t *testing.T) {
	t.Parallel()
	h := newS3Host(t, "WAL_SIZE=32MiB", "ADMIN=127.0.0.1:0", "MEMORY=256MiB") // what has left the log is in no memory either
	p := h.serve()
	f := &filler{t: t, client: dial(t, h.host)}
	for range 1300 { // 85 MB, more than log and memory hold
		if err := f.one(); err != nil {
			t.Fatal(err)
		}
	}
	h.must("flush")
	type outage struct {
		fault faultproxy.Fault
		says  string
	}
	outages := []outage{{faultproxy.Denied, "AccessDenied"}} // says so at once
	if os.Getenv("WALSIDECAR_TEST_OUTAGES") != "" {          // of which nobody knows for how long they last
		outages = append(outages, outage{faultproxy.Reset, "unavailable"}, outage{faultproxy.SlowDown, "unavailable"})
	}
	for i, c := range outages {
		h.proxy.Inject(faultproxy.Rule{Fault: c.fault, Times: -1})
		before := f.acked
		var full error
		for full == nil {
			full = f.one()
			if f.acked-before > 1000 {
				t.Fatal("the log takes more than it can hold")
			}
		}
		if f.acked-before < 100 {
			t.Errorf("%s: only %d records of 64 KiB fit into the log", c.fault, f.acked-before)
		}
		var e *walsidecar.Error
		if !errors.As(full, &e) || !strings.Contains(e.Hint, c.says) || !strings.Contains(e.Hint, "by itself") {
			t.Errorf("%s: refused with %v", c.fault, full)
		}
		h.run("append", "other", strings.Repeat("x", 100_000)).fails(t, 16, c.says)
		h.run("flush", "--timeout", "1s").fails(t, 15, c.says)
		if s := h.status(); s.Uploads.State != "retrying" || !strings.Contains(s.Uploads.Problem, c.says) || s.Uploads.LagRecords < uint64(f.acked-before) || s.Uploads.LagSeconds < 1 {
			t.Errorf("%s: status is %+v", c.fault, s)
		}
		m := h.metrics(p)
		if m["walsidecar_upload_failing"] != 1 || m["walsidecar_upload_lag_bytes"] < 6<<20 || m[`walsidecar_store_failures_total{class="upload"}`]+m[`walsidecar_store_retries_total{class="upload"}`] == 0 {
			t.Errorf("%s: metrics: failing %v, lag %v", c.fault, m["walsidecar_upload_failing"], m["walsidecar_upload_lag_bytes"])
		}
		for record, err := range f.client.Read(t.Context(), "filler", walsidecar.FromOffset(uint64(before)), walsidecar.Limit(1)) { // is on the device
			if err != nil || !bytes.Equal(record.Data, f.payload(before)) {
				t.Errorf("%s: read during the outage: %v", c.fault, err)
			}
		}
		h.run("read", "filler", "--offset", strconv.Itoa(100*i), "--max", "1").fails(t, 15, c.says)
		h.proxy.Heal()
		await(t, "an append after the outage", func() bool { return f.one() == nil })
		h.must("flush")
		if s := h.status(); s.Uploads.State != "ok" || s.Uploads.LagRecords != 0 {
			t.Errorf("%s: status after the outage is %+v", c.fault, s)
		}
	}
	for range 500 {
		if err := f.one(); err != nil {
			t.Fatal(err)
		}
	}
	f.check()
	p.kill()
	h.serve()
	f.check()
	h.must("flush")
	h.must(h.direct("verify")...)
}

// A store that throttles nearly everything, answers slowly, or thinks that it is another
// hour: nothing is fatal, and nothing has to be done.
func TestTheStoreMisbehavesAndNothingIsLost(t *testing.T) {
	t.Parallel()
	h := newS3Host(t, "WAL_SIZE=64MiB", "ADMIN=127.0.0.1:0")
	p := h.serve()
	f := &filler{t: t, client: dial(t, h.host)}
	some := func(n int) {
		t.Helper()
		for range n {
			if err := f.one(); err != nil {
				t.Fatal(err)
			}
		}
	}
	some(10)
	h.must("flush")
	throttled := func() float64 { return h.metrics(p)[`walsidecar_store_throttles_total{class="upload"}`] }
	h.proxy.Randomly(1, 0, map[faultproxy.Fault]float64{faultproxy.SlowDown: 0.9})
	some(100)
	await(t, "throttling is counted", func() bool { return throttled() >= 3 })
	h.proxy.Heal()
	h.must("flush")

	h.proxy.Randomly(1, 2*time.Second, map[faultproxy.Fault]float64{faultproxy.Slow: 1})
	some(100)
	h.must("flush")
	h.proxy.Heal()

	h.proxy.Inject(faultproxy.Rule{Fault: faultproxy.Skewed, Times: 20})
	some(100)
	await(t, "the clock of the store shows", func() bool {
		some(1)
		skew := h.metrics(p)["walsidecar_store_clock_skew_seconds"]
		return skew > 3500 && skew < 3700
	})
	h.must("flush")
	await(t, "the clock of the store is right again", func() bool {
		some(1)
		return h.metrics(p)["walsidecar_store_clock_skew_seconds"] < 10
	})
	h.must("flush")
	f.check()
	if s := h.status(); s.Uploads.State != "ok" || s.Uploads.LagRecords != 0 {
		t.Errorf("status: %+v", s.Uploads)
	}
	h.must(h.direct("verify")...)
}

// The bucket goes away, and comes back.
func TestTheBucketGoesAway(t *testing.T) {
	t.Parallel()
	h := newS3Host(t)
	h.serve()
	h.must("append", "orders", "one")
	h.must("flush")
	bucket, away := filepath.Join(h.server.Dir, s3test.Bucket), filepath.Join(h.server.Dir, "away")
	if err := os.Rename(bucket, away); err != nil {
		t.Fatal(err)
	}
	h.must("append", "orders", "two")
	await(t, "status names it", func() bool {
		s := h.status()
		return s.Uploads.State == "retrying" && strings.Contains(s.Uploads.Problem, "NoSuchBucket")
	})
	h.run("flush", "--timeout", "100ms").fails(t, 15, "NoSuchBucket")
	if err := os.Rename(away, bucket); err != nil {
		t.Fatal(err)
	}
	h.must("flush")
	if got := h.must(h.direct("read", "orders")...); got != "one\ntwo\n" {
		t.Errorf("the store says %q", got)
	}
}

// What is wrong with a store at the start ends it with exit code 15, by name, before a log is
// made; a store that does not answer is waited for.
func TestAStartNamesWhatIsWrongWithTheStore(t *testing.T) {
	t.Parallel()
	h := newS3Host(t)
	right := h.env
	for _, c := range []struct{ set, says string }{
		{"AWS_SECRET_ACCESS_KEY=wrong", "SignatureDoesNotMatch"},
		{"AWS_ACCESS_KEY_ID=nobody", "provided access key"},
		{"WALSIDECAR_STORE=" + strings.Replace(h.server.URL(s3Prefix), s3test.Bucket, "no-such-bucket", 1), "NoSuchBucket"},
		{"WALSIDECAR_STORE=" + s3test.URLAt("http://127.0.0.1:1", "x") + "&profile=nobody", "nobody"},
	} {
		h.env = append(append([]string(nil), right...), c.set)
		p := h.start(nil, "serve")
		if code := p.wait(); code != 15 || !strings.Contains(p.stderr.String(), c.says) {
			t.Errorf("%s: exit %d: %s", c.set, code, p.stderr)
		}
		if exists(h.path("wal")) {
			t.Errorf("%s: a log was made", c.set)
		}
	}
	h.env = right
	h.proxy.Inject(faultproxy.Rule{Fault: faultproxy.Reset, Times: 12})
	p := h.serve()
	h.must("append", "orders", "one")
	p.kill()
	// The log is there now.
	h.env = append(append([]string(nil), right...), "AWS_SECRET_ACCESS_KEY=wrong")
	p = h.start(nil, "serve")
	if code := p.wait(); code != 15 || !strings.Contains(p.stderr.String(), "SignatureDoesNotMatch") {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
	p = h.start(nil, "serve", "--without-store")
	h.awaitReady(p)
	if got := h.must("append", "orders", "two"); got != "1\n" {
		t.Errorf("append printed %q", got)
	}
	p.kill()
	h.env = right
	h.serve()
	h.must("flush")
	if got := h.must(h.direct("read", "orders")...); got != "one\ntwo\n" {
		t.Errorf("the store says %q", got)
	}
}
