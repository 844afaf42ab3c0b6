package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/faultproxy"
	"github.com/walsidecar/walsidecar/upload/store/s3test"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
	"github.com/walsidecar/walsidecar/upload/store/storetest"
)

func open(t testing.TB, where string, o store.Options) store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), where, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), store.Options{})
	storetest.Run(t, s, s)
}

func TestDirectoryThroughTwoHandles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	storetest.Run(t, open(t, dir, store.Options{}), open(t, dir, store.Options{}))
}

func TestSimulated(t *testing.T) {
	s := &simstore.Store{Now: time.Now}
	storetest.Run(t, s, s)
}

func TestS3(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	storetest.Run(t, open(t, server.URL("a/prefix"), s3test.Options()), open(t, server.URL("a/prefix"), s3test.Options()))
}

func TestS3WithoutPrefix(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	s := open(t, server.URL(""), s3test.Options())
	storetest.Run(t, s, s)
}

// Through a proxy that refuses, resets and slows, everything is as without it: what is safe
// to repeat is repeated, and nobody above notices.
func TestS3ThroughFaults(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	proxy := faultproxy.Start(t, server.Endpoint)
	seed := uint64(20261129)
	t.Logf("seed %d", seed)
	proxy.Randomly(seed, 0, map[faultproxy.Fault]float64{faultproxy.SlowDown: 0.05, faultproxy.Conflict: 0.05, faultproxy.Slow: 0.05})
	s := open(t, s3test.URLAt(proxy.Endpoint, "p"), s3test.Options())
	storetest.Run(t, s, s)
}
