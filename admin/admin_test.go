package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// start serves with o's functions on a port of the kernel's choice, and returns the URL.
func start(t *testing.T, o Options) string {
	t.Helper()
	o.Address = "127.0.0.1:0"
	if o.Parked == nil {
		o.Parked = func() error { return nil }
	}
	if o.Ready == nil {
		o.Ready = func() error { return nil }
	}
	if o.Gatherer == nil {
		o.Gatherer = prometheus.NewRegistry()
	}
	o.Log = slog.New(slog.DiscardHandler)
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return "http://" + s.Addr().String()
}

// get answers status and body of one request. Its connection ends with it, as a probe's.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	return request(t, http.MethodGet, url)
}

func request(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestReadinessFollowsTheSidecarAndHealthDoesNot(t *testing.T) {
	var cause atomic.Value
	url := start(t, Options{Ready: func() error { err, _ := cause.Load().(error); return err }})
	if code, body := get(t, url+"/readyz"); code != 200 || body != "ready\n" {
		t.Fatalf("%d %q", code, body)
	}
	cause.Store(errors.New("recovering the log"))
	if code, body := get(t, url+"/readyz"); code != 503 || body != "not ready: recovering the log\n" {
		t.Fatalf("%d %q", code, body)
	}
	if code, body := get(t, url+"/healthz"); code != 200 || body != "ok\n" {
		t.Fatalf("a sidecar that is not ready is still healthy: %d %q", code, body)
	}
}

func TestAParkedSidecarIsNotKilled(t *testing.T) {
	url := start(t, Options{Parked: func() error { return errors.New("write failed") }})
	if code, body := get(t, url+"/healthz"); code != 200 || body != "parked: write failed\n" {
		t.Fatalf("%d %q", code, body)
	}
}

func TestStatusIsOneJSONObject(t *testing.T) {
	url := start(t, Options{Status: func() any { return map[string]any{"used_bytes": 4096} }})
	code, body := get(t, url+"/status")
	var got map[string]int
	if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil || got["used_bytes"] != 4096 {
		t.Fatalf("%d %q %v", code, body, err)
	}
}

func TestMetricsComeFromTheRegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "walsidecar_test_total"})
	reg.MustRegister(c)
	c.Add(3)
	url := start(t, Options{Gatherer: reg})
	if code, body := get(t, url+"/metrics"); code != 200 || !strings.Contains(body, "walsidecar_test_total 3\n") {
		t.Fatalf("%d %q", code, body)
	}
}

func TestProfilesOnlyWhenAskedFor(t *testing.T) {
	if code, _ := get(t, start(t, Options{})+"/debug/pprof/goroutine?debug=1"); code != 404 {
		t.Fatalf("got %d without the setting", code)
	}
	code, body := get(t, start(t, Options{PProf: true})+"/debug/pprof/goroutine?debug=1")
	if code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Fatalf("%d %q", code, body)
	}
}

func TestNothingIsChangedThroughIt(t *testing.T) {
	url := start(t, Options{})
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		if code, _ := request(t, method, url+"/readyz"); code != 405 {
			t.Errorf("%s is answered with %d", method, code)
		}
	}
	if code, _ := request(t, "HEAD", url+"/readyz"); code != 200 {
		t.Errorf("HEAD is answered with %d", code)
	}
	if code, _ := get(t, url+"/"); code != 404 {
		t.Errorf("/ is answered with %d", code)
	}
}

func TestP9_APanicInAHandlerIsAnAnswer(t *testing.T) {
	url := start(t, Options{Status: func() any { panic("bug") }})
	if code, body := get(t, url+"/status"); code != 500 || body != "internal error\n" {
		t.Fatalf("%d %q", code, body)
	}
	if code, _ := get(t, url+"/healthz"); code != 200 {
		t.Fatalf("it must go on serving, got %d", code)
	}
}

func TestP9_GarbageAndSilenceDoNotHoldTheListener(t *testing.T) {
	url := start(t, Options{})
	for _, garbage := range []string{"", "\x00\x01\x02\r\n\r\n", "GET /" + strings.Repeat("a", maxRequestBytes*2), "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, garbage)
	}
	if code, _ := get(t, url+"/healthz"); code != 200 {
		t.Fatalf("got %d", code)
	}
}

func TestAnAddressInUseIsReportedWithItsSetting(t *testing.T) {
	url := start(t, Options{})
	_, err := Listen(Options{Address: strings.TrimPrefix(url, "http://"), Gatherer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "WALSIDECAR_ADMIN") {
		t.Fatalf("got %v", err)
	}
}
