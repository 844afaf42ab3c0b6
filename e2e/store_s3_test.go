package e2e

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/faultproxy"
	"github.com/walsidecar/walsidecar/upload/store/s3test"
)

// s3Host is a host whose log is uploaded to a real S3 server, through a proxy that does what
// networks do.
type s3Host struct {
	*host
	server *s3test.Server
	proxy  *faultproxy.Proxy
}

// s3Prefix is where in the bucket the objects are, s3Node whose they are.
const (
	s3Prefix = "wal"
	s3Node   = "shop-1"
)

// newS3Host makes a host with a server and a proxy of its own.
func newS3Host(t *testing.T, settings ...string) *s3Host {
	t.Helper()
	server := s3test.Start(t)
	proxy := faultproxy.Start(t, server.Endpoint)
	h := &s3Host{host: newHost(t, append([]string{"NODE=" + s3Node, "LINGER=50ms"}, settings...)...), server: server, proxy: proxy}
	h.env = append(h.env, s3test.Env()...)
	h.set("STORE=" + s3test.URLAt(proxy.Endpoint, s3Prefix))
	return h
}

// direct adds the flags that read the store without a sidecar and without faults.
func (h *s3Host) direct(args ...string) []string {
	return append(args, "--store", h.server.URL(s3Prefix), "--node", s3Node)
}

// uploads is what `status` says of them.
type uploads struct {
	State       string  `json:"state"`
	Problem     string  `json:"problem"`
	Uploaded    uint64  `json:"uploaded_position"`
	LagBytes    uint64  `json:"lag_bytes"`
	LagRecords  uint64  `json:"lag_records"`
	LagSeconds  float64 `json:"lag_s"`
	Records     uint64  `json:"uploaded_records"`
	Objects     uint64  `json:"objects"`
	StoredBytes uint64  `json:"stored_bytes"`
	Commits     uint64  `json:"commits"`
	Retries     uint64  `json:"retries"`
	Compactions uint64  `json:"compactions"`
	Manifest    int     `json:"manifest_bytes"`
	ColdHits    uint64  `json:"cold_hits"`
	ColdMisses  uint64  `json:"cold_misses"`
}

// logStatus is a part of what `status` says.
type logStatus struct {
	State     string  `json:"state"`
	Epoch     uint64  `json:"epoch"`
	Trim      uint64  `json:"trim_position"`
	Durable   uint64  `json:"durable_position"`
	RoomBytes uint64  `json:"room_bytes"`
	ToFull    *uint64 `json:"time_to_full_s"`
	Uploads   uploads `json:"uploads"`
}

func (h *host) status() logStatus {
	h.t.Helper()
	return decode[logStatus](h.t, h.must("status", "--json"))[0]
}

// metrics are those of a sidecar with ADMIN=127.0.0.1:0, by name with labels.
func (h *s3Host) metrics(p *process) map[string]float64 {
	h.t.Helper()
	response, err := http.Get(adminURL(h.t, p) + "/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]float64{}
	for _, line := range lines(string(body)) {
		if name, value, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
			if all[name], err = strconv.ParseFloat(value, 64); err != nil {
				h.t.Fatalf("%v in %q", err, line)
			}
		}
	}
	return all
}

// keysOf are the keys of the node's objects that the server has, without the manifest.
func (h *s3Host) keysOf() []string {
	h.t.Helper()
	root := filepath.Join(h.server.Dir, s3test.Bucket, s3Prefix)
	own := upload.Prefix(s3Node)
	var keys []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) == "manifest" {
			return err
		}
		key, err := filepath.Rel(root, path)
		if key = filepath.ToSlash(key); strings.HasPrefix(key, own) {
			keys = append(keys, key)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

// manifestInForce reads the node's manifest.
func (h *s3Host) manifestInForce() *upload.Manifest {
	h.t.Helper()
	s, err := store.Open(context.Background(), h.server.URL(s3Prefix), s3test.Options())
	if err != nil {
		h.t.Fatal(err)
	}
	m, _, err := upload.ReadManifest(context.Background(), s, s3Node)
	if err != nil {
		h.t.Fatal(err)
	}
	return m
}

// named are the keys that a manifest without an index names, and those that it has doomed.
func named(m *upload.Manifest) map[string]bool {
	keys := map[string]bool{}
	for i := range m.Groups {
		for k := range m.Groups[i].Objects {
			keys[m.Groups[i].Objects[k].ID.Key(s3Node, upload.KindData)] = true
		}
	}
	if m.State != nil {
		keys[m.State.ID.Key(s3Node, upload.KindState)] = true
	}
	for _, d := range m.Doomed {
		keys[d.ID.Key(s3Node, d.Kind)] = true
	}
	return keys
}

// checkStore checks what is in the store once the sidecar has ended: verify finds nothing, no
// object is named and missing, and gc finds all that nothing names and nothing else.
func (h *s3Host) checkStore() {
	h.t.Helper()
	h.must(h.direct("verify")...)
	m := h.manifestInForce()
	if m.Index != nil { // after a long run: what is named is not in one place
		h.must(h.direct("gc", "--delete", "--grace", "1h")...)
		h.must(h.direct("verify")...)
		return
	}
	names := named(m)
	var orphans []string
	mine := "-" + hex.EncodeToString(m.Incarnation[:])
	for _, key := range h.keysOf() {
		if !names[key] && !strings.HasSuffix(key, mine) {
			orphans = append(orphans, key)
		}
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	for _, key := range orphans {
		if err := os.Chtimes(filepath.Join(h.server.Dir, s3test.Bucket, s3Prefix, key), time.Time{}, yesterday); err != nil {
			h.t.Fatal(err)
		}
	}
	type line struct {
		Orphan string `json:"orphan"`
	}
	var found []string
	for _, text := range lines(h.must(h.direct("gc", "--json", "--delete")...)) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			h.t.Fatal(err)
		}
		if l.Orphan != "" {
			found = append(found, l.Orphan)
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, orphans) {
		h.t.Errorf("gc finds %v, and nothing names %v", found, orphans)
	}
	h.must(h.direct("verify")...)
	h.t.Logf("%d objects named, %d orphans found, manifest of %d groups", len(names), len(orphans), len(m.Groups))
}
