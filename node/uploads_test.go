package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
	"github.com/walsidecar/walsidecar/wire"
)

const testNode = "shop-1"

// storeRig is a rig whose log is uploaded to a store in memory. faults, set before, decides
// what becomes of each request.
type storeRig struct {
	*rig
	store *simstore.Store
}

// newStoreRig opens it, after before has changed what it is made of.
func newStoreRig(t *testing.T, faults func(simstore.Call) simstore.Fault, before ...func(*storeRig)) *storeRig {
	t.Helper()
	s := &storeRig{store: &simstore.Store{Inject: faults, Now: time.Now}}
	s.rig = &rig{t: t, path: filepath.Join(t.TempDir(), "wal")}
	s.cfg = Config{Path: s.path, SizeBytes: testFileBytes, Node: testNode, Store: "sim", Objects: s.store, Linger: 50 * time.Millisecond,
		MemoryBytes: 128 << 20, Log: slog.New(slog.DiscardHandler)}
	for _, change := range before {
		change(s)
	}
	s.open()
	return s
}

// manifest is the one in the store.
func (s *storeRig) manifest() *upload.Manifest {
	s.t.Helper()
	body, found := s.store.Peek(upload.ManifestKey(testNode))
	if !found {
		s.t.Fatal("there is no manifest")
	}
	m, err := upload.DecodeManifest(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// eventually waits until it is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it never came that %s", what)
		}
	}
}

// stopsFenced waits until the log stops because it is another's, and sees an append to it
// refused for that.
func (s *storeRig) stopsFenced(d *door, stream uint64) {
	s.t.Helper()
	select {
	case err := <-s.node.Failed():
		if e := new(wire.Error); !errors.As(err, &e) || e.Code != wire.CodeFenced {
			s.t.Errorf("it stopped with %v", err)
		}
	case <-time.After(30 * time.Second):
		s.t.Fatal("it goes on")
	}
	if _, refused := d.appendOrRefused(stream, []byte("late")); refused == nil || refused.Code != wire.CodeFenced {
		s.t.Errorf("an append after that: %+v", refused)
	}
}

// appendOrRefused appends one record; refused is the answer that was not an ack.
func (d *door) appendOrRefused(stream uint64, payload []byte) (offset uint64, refused *wire.Error) {
	d.t.Helper()
	d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: payload}}})
	m := d.next()
	if m.h.Type == wire.TypeError {
		refused = new(wire.Error)
		if err := refused.Decode(m.h, m.body); err != nil {
			d.t.Fatal(err)
		}
		return 0, refused
	}
	var ack wire.AppendAck
	d.decode(m, &ack)
	return ack.Extents[0].Offset, nil
}

// The log is trimmed to what the manifest in the store says, and never further: not while
// objects are there that no manifest names yet.
func TestP5_TrimFollowsTheManifest(t *testing.T) {
	var frozen atomic.Bool
	s := newStoreRig(t, func(c simstore.Call) simstore.Fault {
		if c.Op == simstore.Replace && frozen.Load() {
			return simstore.Unavailable
		}
		return simstore.None
	})
	d := s.dial()
	id := d.create("s").ID
	payload := bytes.Repeat([]byte{7}, 64<<10)
	n := 0
	some := func() {
		for range 64 {
			d.append(id, payload)
			n++
		}
	}
	some()
	eventually(t, "the log is trimmed behind the first upload", func() bool {
		some()
		return s.node.Status().TrimPosition > 0
	})
	frozen.Store(true)
	before := s.manifest().Uploaded
	puts := s.store.Requests(simstore.Put)
	some()
	eventually(t, "objects are put that no manifest names", func() bool { return s.store.Requests(simstore.Put) > puts })
	for range 50 {
		if trim := s.node.Status().TrimPosition; trim > before {
			t.Fatalf("the log begins at %d, and the manifest names what lies below %d", trim, before)
		}
		time.Sleep(2 * time.Millisecond)
	}
	frozen.Store(false)
	eventually(t, "everything is in the manifest", func() bool { return s.node.Status().Uploads.LagRecords == 0 })
	if m := s.manifest(); m.Uploaded <= before {
		t.Errorf("the manifest says %d, as before", m.Uploaded)
	}
	records, gaps := d.readAll(id, 0)
	if len(records) != n || len(gaps) != 0 {
		t.Fatalf("%d records and gaps %v, %d were acked", len(records), gaps, n)
	}
	s.close()
}

// While the store is away appends go on until the log is full; then they are refused with
// what the store says, and go on by themselves once it is back. Nothing is lost.
func TestP12_AnOutageFillsTheLogAndHeals(t *testing.T) {
	var away atomic.Bool
	s := newStoreRig(t, func(simstore.Call) simstore.Fault {
		if away.Load() {
			return simstore.Unavailable
		}
		return simstore.None
	})
	d := s.dial()
	id := d.create("s").ID
	payload := bytes.Repeat([]byte{7}, 256<<10)
	away.Store(true)
	n, full := uint64(0), (*wire.Error)(nil)
	for full == nil {
		var offset uint64
		if offset, full = d.appendOrRefused(id, payload); full == nil && offset != n {
			t.Fatalf("offset %d, want %d", offset, n)
		}
		if full == nil {
			n++
		}
		if n > testFileBytes/uint64(len(payload)) {
			t.Fatal("the log takes more than it can hold")
		}
	}
	if full.Code != wire.CodeLogFull || !strings.Contains(full.Hint, store.ErrUnavailable.Error()) {
		t.Errorf("refused with %s: %s; hint %q", full.Code, full.Message, full.Hint)
	}
	if st := s.node.Status(); st.Uploads.State != UploadsRetrying || st.Uploads.LagRecords != n || st.TrimPosition != 0 {
		t.Errorf("status of an outage: %+v, trim %d", st.Uploads, st.TrimPosition)
	}
	if got, _ := d.readAll(id, 0); uint64(len(got)) != n {
		t.Errorf("%d records are readable, %d were acked", len(got), n)
	}
	away.Store(false)
	eventually(t, "appends go on", func() bool {
		offset, refused := d.appendOrRefused(id, payload)
		if refused == nil && offset != n {
			t.Fatalf("offset %d, want %d", offset, n)
		}
		return refused == nil
	})
	n++
	for range 2 * testFileBytes / len(payload) { // twice the log: appends wait for uploads
		d.append(id, payload)
		n++
	}
	if got, gaps := d.readAll(id, 0); uint64(len(got)) != n || len(gaps) != 0 {
		t.Errorf("%d records are readable, gaps %v; %d were acked", len(got), gaps, n)
	}
	s.close()
}

// Another owner who claims the manifest fences this one by the store alone.
func TestP6_AnOwnerThatLostTheManifestStops(t *testing.T) {
	s := newStoreRig(t, nil)
	d := s.dial()
	id := d.create("s").ID
	d.append(id, []byte("mine"))
	eventually(t, "it is uploaded", func() bool { return s.node.Status().Uploads.LagRecords == 0 })
	m := s.manifest()
	if _, err := upload.Claim(context.Background(), s.store, upload.Claimant{Log: m.Log, Node: m.Node, Epoch: m.Epoch + 1,
		Incarnation: [16]byte{9}, End: s.node.Status().DurablePosition}); err != nil {
		t.Fatal(err)
	}
	d.append(id, []byte("not known to be lost yet"))
	s.stopsFenced(d, id)
	if after := s.manifest(); after.Incarnation != [16]byte{9} || after.Uploaded != m.Uploaded {
		t.Errorf("the fenced owner changed the manifest: %+v", after)
	}
	_ = s.node.Close(context.Background())
}

// A store that is about something else refuses the start by name, before any write.
func TestP8_TheStoreRefusesTheWrongLog(t *testing.T) {
	s := newStoreRig(t, nil)
	d := s.dial()
	id := d.create("s").ID
	d.append(id, []byte("first"))
	s.close()
	older, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	s.open()
	d = s.dial()
	for i := range 100 {
		d.append(id, fmt.Append(nil, i))
	}
	eventually(t, "it is uploaded", func() bool { return s.node.Status().Uploads.LagRecords == 0 })
	s.close()

	refused := func(want error) {
		t.Helper()
		before, _ := os.ReadFile(s.path)
		_, err := Open(context.Background(), s.cfg)
		if !errors.Is(err, want) {
			t.Errorf("opened with %v, want %v", err, want)
		}
		if after, _ := os.ReadFile(s.path); !bytes.Equal(before, after) {
			t.Error("the log was written to")
		}
	}
	if err := os.WriteFile(s.path, older, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(upload.ErrOlderSnapshot)
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	refused(ErrNoLog)
	unnamed := s.cfg
	unnamed.Node = ""
	if _, err := Open(context.Background(), unnamed); !errors.Is(err, ErrNoLog) || !strings.Contains(err.Error(), testNode) {
		t.Errorf("a new log beside one in the store: %v", err)
	}
	if _, err := Format(FormatOptions{Path: s.path, Node: testNode, SizeBytes: testFileBytes}); err != nil {
		t.Fatal(err)
	}
	refused(upload.ErrOtherLog)
}

// The epoch that a start draws is above the manifest's, or there is no start: a manifest whose
// owner this device never had is that of a copy which went on, however much this one holds.
func TestP6_AManifestOfALaterOwnerRefusesTheStart(t *testing.T) {
	s := newStoreRig(t, nil)
	d := s.dial()
	d.append(d.create("s").ID, []byte("first"))
	s.close()
	before, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	own := s.superblock().Epoch
	incarnation := [16]byte{9}
	for _, later := range []uint64{own, own + 1, own + 7} {
		m, version, err := upload.ReadManifest(t.Context(), s.store, testNode)
		if err != nil {
			t.Fatal(err)
		}
		m.Epoch, m.Incarnation = later, incarnation
		body, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.PutIfMatch(t.Context(), upload.ManifestKey(testNode), body, version); err != nil {
			t.Fatal(err)
		}
		if n, err := Open(context.Background(), s.cfg); !errors.Is(err, upload.ErrOlderSnapshot) {
			t.Errorf("epoch %d, and the manifest's is %d: started with %v", own, later, err)
			if err == nil {
				_ = n.Abandon()
			}
		}
		if left := s.manifest(); left.Epoch != later || left.Incarnation != incarnation {
			t.Errorf("the manifest of epoch %d was changed", later)
		}
	}
	if after, _ := os.ReadFile(s.path); !bytes.Equal(before, after) {
		t.Error("the log was written to")
	}
}

// Without its store a log keeps everything, whatever is trimmed, and the next start
// uploads it.
func TestP5_WithoutTheStoreNothingLeaves(t *testing.T) {
	s := newStoreRig(t, nil)
	s.close()
	s.cfg.Objects = nil
	s.open()
	d := s.dial()
	id := d.create("s").ID
	payload := bytes.Repeat([]byte{7}, 256<<10)
	n := 0
	for {
		_, refused := d.appendOrRefused(id, payload)
		if refused != nil {
			if refused.Code != wire.CodeLogFull || !strings.Contains(refused.Hint, "--without-store") {
				t.Errorf("refused with %s, hint %q", refused.Code, refused.Hint)
			}
			break
		}
		n++
	}
	d.send(&wire.StreamTrim{Stream: id, Before: uint64(n)})
	d.decode(d.next(), &wire.Trimmed{})
	if _, refused := d.appendOrRefused(id, payload); refused == nil {
		t.Error("a trim let go what is in no store")
	}
	if trim := s.node.Status().TrimPosition; trim != 0 {
		t.Errorf("the log begins at %d", trim)
	}
	s.close()
	s.cfg.Objects = s.store
	s.open()
	eventually(t, "everything is uploaded", func() bool { return s.node.Status().Uploads.LagRecords == 0 })
	if m := s.manifest(); m.Uploaded < uint64(n*len(payload)) || s.node.Status().Failure != "" {
		t.Errorf("uploaded up to %d, %+v", m.Uploaded, s.node.Status())
	}
	s.close()
}

// A start while the store is away ends with the store's error once its patience is over.
func TestStartWithoutAnAnswer(t *testing.T) {
	s := newStoreRig(t, nil)
	s.close()
	s.store.Inject = func(simstore.Call) simstore.Fault { return simstore.Denied }
	if _, err := Open(context.Background(), s.cfg); !errors.Is(err, store.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	s.store.Inject = func(simstore.Call) simstore.Fault { return simstore.Unavailable }
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, s.cfg); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("unavailable: %v", err)
	}
	var n int
	s.store.Inject = func(c simstore.Call) simstore.Fault { // the claim's answers are lost, twice
		if n++; c.Op == simstore.Replace && n < 6 {
			return simstore.Unanswered
		}
		return simstore.None
	}
	s.open()
	if m := s.manifest(); m.Epoch != s.node.start.epoch || m.Incarnation != s.node.hold.incarnation {
		t.Errorf("the manifest is not claimed: %+v", m)
	}
	s.close()
}

// A store that lacks what the log has let go (the wrong one, or one that is not mounted)
// refuses the start, until the operator says that it is right.
func TestP5_AnotherStoreIsRefused(t *testing.T) {
	s := newStoreRig(t, nil)
	d := s.dial()
	id := d.create("s").ID
	eventually(t, "the log is trimmed", func() bool {
		d.append(id, bytes.Repeat([]byte{7}, 256<<10))
		return s.node.Status().TrimPosition > 0
	})
	s.close()
	s.open() // its own
	s.close()
	own, other := s.cfg.Objects, &simstore.Store{Now: time.Now}
	s.cfg.Objects = other
	before, _ := os.ReadFile(s.path)
	if _, err := Open(context.Background(), s.cfg); !errors.Is(err, ErrOtherStore) {
		t.Errorf("an empty store: %v", err)
	}
	if after, _ := os.ReadFile(s.path); !bytes.Equal(before, after) || len(other.Keys()) > 0 {
		t.Errorf("something was written: to the store %v", other.Keys())
	}
	s.cfg.Objects = own
	s.open()
	s.close()
	s.cfg.Objects, s.cfg.StoreStartsHere = other, true
	s.open()
	s.close()
}

// No conditional write is made before the store has proved that it honours them.
func TestTheProofComesBeforeTheClaim(t *testing.T) {
	s := newStoreRig(t, nil)
	s.close()
	before := s.manifest()
	s.cfg.Proved = func() error { return store.ErrNoConditionalWrites }
	if _, err := Open(context.Background(), s.cfg); !errors.Is(err, store.ErrNoConditionalWrites) {
		t.Errorf("opened with %v", err)
	}
	if after := s.manifest(); after.Epoch != before.Epoch {
		t.Error("the manifest was claimed all the same")
	}
	s.cfg.Proved = nil
	s.open()
	s.close()
}
