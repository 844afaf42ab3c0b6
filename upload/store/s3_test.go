package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/faultproxy"
	"github.com/walsidecar/walsidecar/upload/store/s3test"
)

// faulty is a bucket behind a proxy, and the same bucket without it.
type faulty struct {
	store.Store
	direct   store.Store
	proxy    *faultproxy.Proxy
	counters *store.Counters
}

func openFaulty(t *testing.T, change func(*store.Options)) faulty {
	t.Helper()
	server := s3test.Start(t)
	f := faulty{proxy: faultproxy.Start(t, server.Endpoint), counters: &store.Counters{}}
	o := s3test.Options()
	f.direct = open(t, server.URL("p"), o)
	o.Counters = f.counters
	if change != nil {
		change(&o)
	}
	f.Store = open(t, s3test.URLAt(f.proxy.Endpoint, "p"), o)
	return f
}

// there says whether the server holds the object with this body.
func (f faulty) there(t *testing.T, key, body string) bool {
	t.Helper()
	got, _, err := f.direct.Get(t.Context(), key)
	if errors.Is(err, store.ErrNotFound) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(got) == body
}

func (f faulty) waitThere(t *testing.T, key, body string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f.there(t, key, body); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is not there with %q", key, body)
		}
	}
}

// A conditional put whose answer was lost is not repeated: repeated, it would be told that
// the object exists, which is its own.
func TestLostAnswerOfAConditionalPutIsUnknownAtOnce(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, func(o *store.Options) { o.AttemptTimeout = 500 * time.Millisecond })
	for _, c := range []struct {
		fault faultproxy.Fault
		done  bool
	}{
		{faultproxy.DropResponse, true},
		{faultproxy.InternalErrorAfter, true},
		{faultproxy.BadGateway, true},
		{faultproxy.HangAfter, true},
		{faultproxy.InternalError, false},
		{faultproxy.Reset, false},
		{faultproxy.Hang, false},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			key := fmt.Sprintf("o/%d", c.fault)
			sent := f.proxy.Count(http.MethodPut, key)
			f.proxy.Inject(faultproxy.Rule{Method: http.MethodPut, Fault: c.fault})
			_, err := f.PutIfAbsent(t.Context(), key, []byte("first"))
			var e *store.Error
			if !errors.Is(err, store.ErrUnknownOutcome) || !errors.As(err, &e) || e.Attempts != 1 {
				t.Fatalf("put: %v", err)
			}
			if c.done {
				f.waitThere(t, key, "first")
			} else if f.there(t, key, "first") {
				t.Error("the object is there")
			}
			if n := f.proxy.Count(http.MethodPut, key) - sent; n != 1 {
				t.Errorf("%d puts were sent", n)
			}
			if !c.done {
				return
			}
			_, v, err := f.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			f.proxy.Inject(faultproxy.Rule{Method: http.MethodPut, Fault: c.fault})
			if _, err := f.PutIfMatch(t.Context(), key, []byte("second"), v); !errors.Is(err, store.ErrUnknownOutcome) {
				t.Errorf("replacement: %v", err)
			}
			f.waitThere(t, key, "second")
		})
	}
}

// A put may be carried out after its answer was given up.
func TestAPutMayBeCarriedOutLate(t *testing.T) {
	f := openFaulty(t, nil)
	f.proxy.Inject(faultproxy.Rule{Method: http.MethodPut, Fault: faultproxy.Late, Delay: 200 * time.Millisecond})
	if _, err := f.PutIfAbsent(t.Context(), "late", []byte("x")); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	if f.there(t, "late", "x") {
		t.Skip("the machine was slow: it is there already")
	}
	f.proxy.WaitLate()
	if !f.there(t, "late", "x") {
		t.Error("it never came")
	}
}

// What says that nothing was done is repeated, puts included.
func TestRefusalsOfAnOverloadedStoreHeal(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, nil)
	f.proxy.Inject(
		faultproxy.Rule{Method: http.MethodPut, Fault: faultproxy.SlowDown, Times: 2},
		faultproxy.Rule{Method: http.MethodPut, Fault: faultproxy.Conflict, Times: 2})
	v, err := f.PutIfAbsent(t.Context(), "o", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if n := f.proxy.Count(http.MethodPut, "o"); n != 5 {
		t.Errorf("%d puts, must be 5", n)
	}
	if retries, throttles := f.counters.Retries[store.Upload].Load(), f.counters.Throttles[store.Upload].Load(); retries != 4 || throttles != 2 {
		t.Errorf("%d retries, %d throttles; must be 4, 2", retries, throttles)
	}
	if limit := f.counters.Limit[store.Upload].Load(); limit >= store.MaxConcurrency {
		t.Errorf("the limit is still %d", limit)
	}
	if limit := f.counters.Limit[store.Read].Load(); limit != store.MaxConcurrency {
		t.Errorf("the limit of reads is %d", limit)
	}
	if trouble := f.counters.LastTrouble(); trouble != nil {
		t.Errorf("trouble after success: %v", trouble)
	}
	for _, fault := range []faultproxy.Fault{faultproxy.SlowDown, faultproxy.InternalError, faultproxy.Reset, faultproxy.DropResponse, faultproxy.BadGateway} {
		f.proxy.Inject(faultproxy.Rule{Fault: fault, Times: 2})
		if _, got, err := f.Get(t.Context(), "o"); err != nil || got != v {
			t.Errorf("get after %v: %v", fault, err)
		}
		f.proxy.Inject(faultproxy.Rule{Fault: fault, Times: 2})
		if err := f.Delete(t.Context(), []string{"nothing"}); err != nil {
			t.Errorf("delete after %v: %v", fault, err)
		}
		f.proxy.Inject(faultproxy.Rule{Fault: fault, Times: 2})
		if found, err := f.List(t.Context(), "", "", 10); err != nil || len(found) != 1 {
			t.Errorf("list after %v: %v, %v", fault, found, err)
		}
	}
}

// The limit falls under a storm of refusals and rises again after it; everything gets done.
func TestStormOfRefusals(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, func(o *store.Options) { o.RetryFor = 2 * time.Minute })
	f.proxy.Inject(faultproxy.Rule{Fault: faultproxy.SlowDown, Times: 60})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if _, err := f.PutIfAbsent(t.Context(), fmt.Sprintf("storm/%d", i), []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	low := f.counters.Limit[store.Upload].Load()
	if low >= store.MaxConcurrency {
		t.Errorf("the limit never fell: %d", low)
	}
	for i := range 200 {
		if f.counters.Limit[store.Upload].Load() == store.MaxConcurrency {
			break
		}
		if _, err := f.PutIfAbsent(t.Context(), fmt.Sprintf("calm/%d", i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if high := f.counters.Limit[store.Upload].Load(); high <= low {
		t.Errorf("the limit stays at %d", high)
	}
}

// A server that says nothing, or stops in the middle, is given up and asked again. Part of
// an object is never returned.
func TestHangingAndTruncatedReads(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, func(o *store.Options) { o.AttemptTimeout = 500 * time.Millisecond })
	body := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if _, err := f.direct.PutIfAbsent(t.Context(), "o", body); err != nil {
		t.Fatal(err)
	}
	for _, fault := range []faultproxy.Fault{faultproxy.Hang, faultproxy.HangAfter, faultproxy.HangBody, faultproxy.Truncate} {
		f.proxy.Inject(faultproxy.Rule{Method: http.MethodGet, Fault: fault})
		got, _, err := f.Get(t.Context(), "o")
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("get after %v: %d bytes, %v", fault, len(got), err)
		}
		f.proxy.Inject(faultproxy.Rule{Method: http.MethodGet, Fault: fault})
		dst := make([]byte, 100_000)
		if err := f.GetRange(t.Context(), "o", 16, dst); err != nil || !bytes.Equal(dst, body[16:16+len(dst)]) {
			t.Errorf("range after %v: %v", fault, err)
		}
	}
}

// A store that is merely slow, beyond what a first attempt waits for, is read from.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, func(o *store.Options) { o.AttemptTimeout = 300 * time.Millisecond })
	if _, err := f.direct.PutIfAbsent(t.Context(), "o", []byte("x")); err != nil {
		t.Fatal(err)
	}
	f.proxy.Inject(faultproxy.Rule{Fault: faultproxy.Slow, Delay: 500 * time.Millisecond, Times: -1})
	if body, _, err := f.Get(t.Context(), "o"); err != nil || string(body) != "x" {
		t.Errorf("%q, %v", body, err)
	}
}

func TestOutageIsUnavailable(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, func(o *store.Options) { o.RetryFor, o.AttemptTimeout = 300*time.Millisecond, 300*time.Millisecond })
	if _, err := f.direct.PutIfAbsent(t.Context(), "o", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	for _, fault := range []faultproxy.Fault{faultproxy.SlowDown, faultproxy.Truncate, faultproxy.HangBody, faultproxy.Hang, faultproxy.Reset} {
		f.proxy.Inject(faultproxy.Rule{Fault: fault, Times: -1})
		if body, _, err := f.Get(t.Context(), "o"); !errors.Is(err, store.ErrUnavailable) || body != nil {
			t.Errorf("get during %v: %q, %v", fault, body, err)
		}
		if err := f.GetRange(t.Context(), "o", 0, make([]byte, 8)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("range during %v: %v", fault, err)
		}
		if f.counters.LastTrouble() == nil {
			t.Errorf("no trouble is told during %v", fault)
		}
		f.proxy.Heal()
	}
	for end := time.Now().Add(time.Minute); ; {
		_, _, err := f.Get(t.Context(), "o")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the outage: %v", err)
		}
	}
}

// Nobody listens: then a put was certainly not carried out.
func TestConnectionRefusedIsUnavailable(t *testing.T) {
	nobody := httptest.NewServer(nil)
	nobody.Close()
	o := s3test.Options()
	o.RetryFor = 200 * time.Millisecond
	s := open(t, s3test.URLAt(nobody.URL, "p"), o)
	_, err := s.PutIfAbsent(t.Context(), "o", []byte("x"))
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnknownOutcome) {
		t.Error(err)
	}
	if err := store.Probe(t.Context(), s); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNoConditionalWrites) {
		t.Errorf("probe: %v", err)
	}
}

func TestContextEndsAnOperation(t *testing.T) {
	f := openFaulty(t, func(o *store.Options) { o.AttemptTimeout = time.Minute })
	f.proxy.Inject(faultproxy.Rule{Fault: faultproxy.Hang, Times: -1})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() { errs <- f.GetRange(ctx, "o", 0, make([]byte, 1)) }()
	go func() {
		_, err := f.PutIfAbsent(ctx, "o", []byte("x"))
		errs <- err
	}()
	for f.proxy.Count("", "o") < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	unknown := 0
	for range 2 {
		err := <-errs
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if errors.Is(err, store.ErrUnknownOutcome) {
			unknown++
		}
	}
	if unknown != 1 {
		t.Errorf("%d outcomes are unknown, must be that of the put", unknown)
	}
}

// Reads that hang take nothing that uploads need.
func TestClassesHaveBudgetsOfTheirOwn(t *testing.T) {
	f := openFaulty(t, func(o *store.Options) { o.AttemptTimeout = time.Minute })
	f.proxy.Inject(faultproxy.Rule{Method: http.MethodGet, Fault: faultproxy.Hang, Times: -1})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 3 * store.MaxConcurrency {
		all.Go(func() { _ = f.GetRange(ctx, "o", 0, make([]byte, 1)) })
	}
	for f.proxy.Count(http.MethodGet, "o") < store.MaxConcurrency {
		time.Sleep(time.Millisecond)
	}
	if _, err := f.PutIfAbsent(t.Context(), "p", []byte("x")); err != nil {
		t.Error(err)
	}
	if err := f.Delete(t.Context(), []string{"p"}); err != nil {
		t.Error(err)
	}
	if n := f.proxy.Count(http.MethodGet, "o"); n != store.MaxConcurrency {
		t.Errorf("%d reads at once, must be %d", n, store.MaxConcurrency)
	}
	cancel()
	all.Wait()
}

// everything calls each method once.
func everything(ctx context.Context, s store.Store) map[string]error {
	errs := map[string]error{}
	_, errs["put if absent"] = s.PutIfAbsent(ctx, "o", []byte("x"))
	_, errs["put if match"] = s.PutIfMatch(ctx, "o", []byte("x"), `"0123456789abcdef0123456789abcdef"`)
	_, _, errs["get"] = s.Get(ctx, "o")
	errs["get range"] = s.GetRange(ctx, "o", 0, make([]byte, 1))
	_, errs["head"] = s.Head(ctx, "o")
	_, errs["list"] = s.List(ctx, "", "", 10)
	errs["delete"] = s.Delete(ctx, []string{"o"})
	return errs
}

func TestRefusalsAreNamedAtOnce(t *testing.T) {
	server := s3test.Start(t)
	proxy := faultproxy.Start(t, server.Endpoint)
	good := s3test.Options()
	for _, c := range []struct {
		name, where, said string
		o                 store.Options
	}{
		{"no such bucket", strings.Replace(s3test.URLAt(proxy.Endpoint, "p"), s3test.Bucket, "nobody-made-this", 1), "bucket", good},
		{"unknown key id", s3test.URLAt(proxy.Endpoint, "p"), "No user exists", store.Options{AccessKeyID: "nobody", SecretAccessKey: "x"}},
		{"wrong secret", s3test.URLAt(proxy.Endpoint, "p"), "SignatureDoesNotMatch", store.Options{AccessKeyID: s3test.AccessKeyID, SecretAccessKey: "x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, c.where, c.o)
			for op, err := range everything(t.Context(), s) {
				var e *store.Error
				if !errors.Is(err, store.ErrDenied) || !errors.As(err, &e) || e.Attempts != 1 {
					t.Errorf("%s: %v", op, err)
				} else if !strings.Contains(err.Error(), c.said) && op != "head" { // an answer to HEAD has no words
					t.Errorf("%s does not say %q: %v", op, c.said, err)
				}
			}
			if err := store.Probe(t.Context(), s); !errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrNoConditionalWrites) {
				t.Errorf("probe: %v", err)
			}
		})
	}
}

func TestNoCredentials(t *testing.T) {
	server := s3test.Start(t)
	dir := t.TempDir()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "credentials"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "config"))
	s := open(t, server.URL("p"), store.Options{})
	for op, err := range everything(t.Context(), s) {
		if !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), "no credentials") {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// Credentials that somebody corrects in their file are found without a restart.
func TestCorrectedCredentialsAreFound(t *testing.T) {
	server := s3test.Start(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "credentials")
	write := func(secret string) {
		text := fmt.Sprintf("[wal]\naws_access_key_id = %s\naws_secret_access_key = %s\n", s3test.AccessKeyID, secret)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "config"))
	write("wrong")
	s := open(t, server.URL("p")+"&profile=wal", store.Options{})
	if _, err := s.PutIfAbsent(t.Context(), "o", []byte("x")); !errors.Is(err, store.ErrDenied) {
		t.Fatal(err)
	}
	write(s3test.SecretAccessKey)
	store.ForgetPause(s)
	if _, err := s.PutIfAbsent(t.Context(), "o", []byte("x")); err != nil {
		t.Error(err)
	}
}

// recorder answers every put and keeps what was sent.
type recorder struct {
	mu      sync.Mutex
	headers []http.Header
	bodies  [][]byte
	answer  func(n int, w http.ResponseWriter, r *http.Request)
}

func (k *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	k.headers, k.bodies = append(k.headers, r.Header.Clone()), append(k.bodies, body)
	n := len(k.headers)
	k.mu.Unlock()
	k.answer(n, w, r)
}

// What other stores than AWS trip over is not sent: no chunked signatures, no trailers.
func TestPutIsPlain(t *testing.T) {
	for _, secure := range []bool{false, true} {
		k := &recorder{answer: func(_ int, w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) }}
		server := httptest.NewUnstartedServer(k)
		if secure {
			server.StartTLS()
			dir := t.TempDir()
			bundle := filepath.Join(dir, "ca.pem")
			writeCertificate(t, bundle, server.Certificate().Raw)
			t.Setenv("AWS_CA_BUNDLE", bundle)
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		where := s3test.URLAt(server.URL, "p") + "&sse=aws:kms&sse_kms_key_id=some-key"
		s := open(t, where, s3test.Options())
		body := bytes.Repeat([]byte("x"), 3<<20)
		if v, err := s.PutIfAbsent(t.Context(), "o", body); err != nil || v != `"e"` {
			t.Fatal(v, err)
		}
		h := k.headers[0]
		if !bytes.Equal(k.bodies[0], body) {
			t.Errorf("%d bytes arrived, must be the body's %d", len(k.bodies[0]), len(body))
		}
		for name, want := range map[string]string{
			"If-None-Match": "*", "X-Amz-Checksum-Crc32c": "4LYPyw==", "Content-Encoding": "", "X-Amz-Trailer": "", "Expect": "",
			"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "some-key",
		} {
			if got := h.Get(name); got != want && name != "X-Amz-Checksum-Crc32c" {
				t.Errorf("secure %v: %s is %q, must be %q", secure, name, got, want)
			}
		}
		if got := h.Get("X-Amz-Checksum-Crc32c"); len(got) != 8 {
			t.Errorf("secure %v: checksum %q", secure, got)
		}
	}
}

// A clock that is an hour off is told, and the next request is signed by the server's.
func TestClockSkew(t *testing.T) {
	ahead := time.Now().Add(time.Hour).UTC()
	k := &recorder{answer: func(n int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", ahead.Format(http.TimeFormat))
		if n == 1 {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>`)
			return
		}
		w.Header().Set("ETag", `"e"`)
	}}
	server := httptest.NewServer(k)
	defer server.Close()
	o := s3test.Options()
	o.Counters = &store.Counters{}
	s := open(t, s3test.URLAt(server.URL, "p"), o)
	if _, err := s.PutIfAbsent(t.Context(), "o", []byte("x")); err != nil {
		t.Fatal(err)
	}
	signed, err := time.Parse("20060102T150405Z", k.headers[1].Get("X-Amz-Date"))
	if err != nil || signed.Sub(ahead).Abs() > 10*time.Minute {
		t.Errorf("the second request is signed for %v, the server's clock is at %v; %v", signed, ahead, err)
	}
	if skew := o.Counters.ClockSkew(); (skew - time.Hour).Abs() > 10*time.Minute {
		t.Errorf("skew %v", skew)
	}
}
