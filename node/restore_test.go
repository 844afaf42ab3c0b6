package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

// archiveFile puts the log in a file into a store, as an uploader would that got as far
// as the frame at or above position upTo. It returns the manifest.
func archiveFile(t *testing.T, path string, s store.Store, upTo uint64) *upload.Manifest {
	t.Helper()
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil {
		t.Fatal(err)
	}
	sb := sbs.Newest
	b := upload.NewBuilder(sb.Origin)
	if _, err := ringwal.Recover(dev, sbs, ringwal.Visitor{Frame: func(f *ringwal.FrameView) error {
		if f.Position >= upTo {
			return nil
		}
		return b.AddFrame(f)
	}}); err != nil {
		t.Fatal(err)
	}
	o, err := b.Build(sb.UUID, sb.Epoch, upload.ObjectID{Sequence: 1, Incarnation: sb.Incarnation}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := s.PutIfAbsent(ctx, o.Key(sb.Node), o.Body); err != nil {
		t.Fatal(err)
	}
	m := &upload.Manifest{Log: sb.UUID, Node: sb.Node, Epoch: sb.Epoch, Incarnation: sb.Incarnation, Attempt: 1, Origin: sb.Origin, Uploaded: o.To,
		UploadedAtNS: 1_800_000_000_000_000_000, NextSequence: 2,
		Groups: []upload.Group{{From: o.From, To: o.To, Control: o.Control, Objects: []upload.ObjectRef{o.Ref}}}}
	body, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutIfMatch(ctx, upload.ManifestKey(sb.Node), body, ""); err != nil {
		t.Fatal(err)
	}
	return m
}

func directoryStore(t *testing.T) store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lostLog is a log with streams of all kinds that is gone, but for what was uploaded.
type lostLog struct {
	rig      *rig
	store    store.Store
	manifest *upload.Manifest
	session  uint64
}

// loseLog makes one: "orders" has offsets 2 to 9, of which [0, 2) were trimmed, and 8 and 9
// never reached the store; "closed" is sealed; "empty" has no records.
func loseLog(t *testing.T) *lostLog {
	t.Helper()
	r := newRig(t)
	d := r.dial()
	orders, closed := d.create("orders"), d.create("closed")
	d.create("empty")
	d.send(&wire.ProducerOpen{Name: "upstream"})
	var named wire.ProducerInfo
	d.decode(d.next(), &named)
	d.send(&wire.ProducerOpen{Window: 8})
	var producer wire.ProducerInfo
	d.decode(d.next(), &producer)
	for i := range 4 {
		d.append(orders.ID, fmt.Appendf(nil, "order %d", i))
	}
	d.send(&wire.Append{HasProducer: true, Producer: named.ID, Sequence: 100, Entries: []wire.Entry{{Stream: closed.ID, Payload: []byte("from upstream")}}})
	d.decode(d.next(), &wire.AppendAck{})
	d.append(closed.ID, []byte("the last word"))
	d.send(&wire.StreamSeal{Stream: closed.ID})
	var info wire.StreamInfo
	d.decode(d.next(), &info)
	d.send(&wire.StreamToken{Stream: orders.ID, New: []byte("mine")})
	d.decode(d.next(), &info)
	for i := 4; i < 8; i++ {
		d.send(&wire.Append{Producer: producer.ID, HasProducer: true, Sequence: uint64(i - 3),
			Entries: []wire.Entry{{Stream: orders.ID, Payload: fmt.Appendf(nil, "order %d", i), Token: []byte("mine")}}})
		d.decode(d.next(), &wire.AppendAck{})
	}
	d.send(&wire.StreamTrim{Stream: orders.ID, Before: 2})
	d.decode(d.next(), &wire.Trimmed{})
	l := &lostLog{rig: r, store: directoryStore(t), session: producer.ID}
	uploaded := r.node.Status().DurablePosition
	for i := 8; i < 10; i++ {
		d.send(&wire.Append{Entries: []wire.Entry{{Stream: orders.ID, Payload: fmt.Appendf(nil, "order %d", i), Token: []byte("mine")}}})
		d.decode(d.next(), &wire.AppendAck{})
	}
	r.close()
	l.manifest = archiveFile(t, r.path, l.store, uploaded)
	return l
}

func (l *lostLog) options(path string) RestoreOptions {
	return RestoreOptions{Path: path, SizeBytes: testFileBytes, Store: l.store, Node: l.manifest.Node}
}

// restored reads what the store has of the log's stream.
func (l *lostLog) read(t *testing.T, name string) (records []string, gaps []string) {
	t.Helper()
	ctx := context.Background()
	a, err := upload.OpenArchive(ctx, l.store, l.manifest.Node, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, joins, err := a.Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	info, err := d.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	err = a.ReadParts(ctx, upload.Parts(joins, info.ID, info.First, info.Next), func(r *upload.Record) error {
		records = append(records, fmt.Sprintf("%d: %s", r.Offset, r.Payload))
		return nil
	}, func(lost bool, from, to uint64) error {
		gaps = append(gaps, fmt.Sprintf("lost %v [%d, %d)", lost, from, to))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, gaps
}

// verify checks the store.
func (l *lostLog) verify(t *testing.T) {
	t.Helper()
	if _, err := upload.Verify(context.Background(), l.store, l.manifest.Node, func(f upload.Finding) { t.Errorf("%s: %v", f.Key, f.Err) }); err != nil {
		t.Fatal(err)
	}
}

// A restored log has every uploaded record, goes on at the next offsets under new ids, and
// says where data was lost; tokens, seals, trims and producers are what they were.
func TestP4_RestoreGoesOnBehindAGap(t *testing.T) {
	l := loseLog(t)
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "new", "wal")
	done, err := Restore(ctx, l.options(path))
	if err != nil {
		t.Fatal(err)
	}
	if done.Already || done.LostLogUUID != uuid.UUID(l.manifest.Log).String() || done.LostFromPosition != l.manifest.Uploaded ||
		done.LostSince.UnixNano() != l.manifest.UploadedAtNS || done.Streams != 3 || done.NamedProducers != 1 || done.SessionProducers != 1 {
		t.Errorf("%+v", done)
	}
	if done.OriginPosition < l.manifest.Uploaded+upload.RestoreGapBytes {
		t.Errorf("the new log begins at position %d, the lost one was uploaded up to %d", done.OriginPosition, l.manifest.Uploaded)
	}
	want := []string{"2: order 2", "3: order 3", "4: order 4", "5: order 5", "6: order 6", "7: order 7"}
	if records, gaps := l.read(t, "orders"); fmt.Sprint(records) != fmt.Sprint(want) || fmt.Sprint(gaps) != "[lost true [8, 8)]" {
		t.Errorf("read %q with gaps %q", records, gaps)
	}
	if records, _ := l.read(t, "closed"); len(records) != 2 {
		t.Errorf("read %q", records)
	}
	l.verify(t)

	// The new log just works.
	r := &rig{t: t, path: path, cfg: l.rig.cfg}
	r.cfg.Path = path
	r.open()
	d := r.dial()
	orders := d.create("orders")
	if orders.FirstOffset != 2 || orders.NextOffset != 8 || orders.ID < 1<<32 || !orders.HasToken {
		t.Errorf("orders: %+v", orders)
	}
	if closed := d.create("closed"); !closed.Sealed || closed.NextOffset != 2 {
		t.Errorf("closed: %+v", closed)
	}
	d.send(&wire.ProducerOpen{Name: "upstream"})
	var named wire.ProducerInfo
	d.decode(d.next(), &named)
	if named.Created || named.LastSequence != 100 {
		t.Errorf("the named producer: %+v", named)
	}
	send := func(sequence uint64) {
		d.send(&wire.Append{HasProducer: true, Producer: l.session, Sequence: sequence,
			Entries: []wire.Entry{{Stream: orders.ID, Payload: fmt.Appendf(nil, "sequence %d", sequence), Token: []byte("mine")}}})
	}
	send(4)
	var again wire.AppendResult
	d.decode(d.next(), &again)
	if !again.Duplicate || len(again.Placed) != 1 || again.Placed[0].Offset != 7 {
		t.Errorf("a batch that is in the store already: %+v", again)
	}
	send(5)
	var ack wire.AppendAck
	d.decode(d.next(), &ack)
	if ack.Extents[0].Offset != 8 || ack.Extents[0].Position < done.OriginPosition {
		t.Errorf("a new batch: %+v", ack.Extents)
	}
	r.close()
}

// Restore can be repeated behind each of its steps: it ends in one log that the manifest
// names, whatever was left behind.
func TestRestoreIsRepeatedAfterACrashAnywhere(t *testing.T) {
	ctx := context.Background()
	for _, dies := range []string{"before the claim", "at the state object", "answer of the claim is lost", "nowhere"} {
		t.Run(dies, func(t *testing.T) {
			l := loseLog(t)
			path := filepath.Join(t.TempDir(), "wal")
			o := l.options(path)
			crash := &crashingStore{Store: l.store, dies: dies}
			o.Store = crash
			first, err := Restore(ctx, o)
			if (err == nil) != (dies == "nowhere" || dies == "answer of the claim is lost") {
				t.Fatal(err)
			}
			again, err := Restore(ctx, l.options(path))
			if err != nil {
				t.Fatal(err)
			}
			if again.Already != (first != nil) {
				t.Errorf("the second restore says already: %v", again.Already)
			}
			m, _, err := upload.ReadManifest(ctx, l.store, l.manifest.Node)
			if err != nil {
				t.Fatal(err)
			}
			found, err := Verify(path)
			if err != nil || found.LogUUID != uuid.UUID(m.Log).String() || len(m.Retired) != 1 || m.Retired[0].Log != l.manifest.Log {
				t.Errorf("log %+v, manifest %x, retired %+v, %v", found, m.Log, m.Retired, err)
			}
			if records, gaps := l.read(t, "orders"); len(records) != 6 || len(gaps) != 1 {
				t.Errorf("read %q, %q", records, gaps)
			}
			l.verify(t)
		})
	}
}

// Restore can be repeated whatever it has written of the device when it died.
func TestRestoreIsRepeatedOverAHalfWrittenLog(t *testing.T) {
	ctx := context.Background()
	l := loseLog(t)
	path := filepath.Join(t.TempDir(), "wal")
	o := l.options(path)
	o.Store = &crashingStore{Store: l.store, dies: "before the claim"}
	if _, err := Restore(ctx, o); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const slot = ringwal.SlotBytes
	for what, cut := range map[string][][2]int{
		"one superblock":           {{slot, len(whole)}},
		"two superblocks":          {{2 * slot, len(whole)}},
		"no epoch":                 {{2 * slot, 4 * slot}, {4 * slot, len(whole)}},
		"one copy of the epoch":    {{3 * slot, len(whole)}},
		"no checkpoint":            {{4 * slot, len(whole)}},
		"half of a superblock":     {{slot / 16, len(whole)}},
		"all":                      {},
		"nothing that is readable": {{0, len(whole)}},
	} {
		torn := []byte(string(whole))
		for _, c := range cut {
			clear(torn[c[0]:c[1]])
		}
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		o := l.options(path)
		o.SizeBytes = 0
		o.Store = &crashingStore{Store: l.store, dies: "before the claim"}
		if _, err := Restore(ctx, o); !errors.Is(err, errDied) {
			t.Errorf("%s: the restore does not reach its claim: %v", what, err)
		}
	}
	if _, err := Restore(ctx, l.options(path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(path); err != nil {
		t.Error(err)
	}
}

// A log that a sidecar has appended to is not taken for the rest of a restore.
func TestP8_RestoreKeepsALogWithRecords(t *testing.T) {
	ctx := context.Background()
	l := loseLog(t)
	path := filepath.Join(t.TempDir(), "wal")
	o := l.options(path)
	o.Store = &crashingStore{Store: l.store, dies: "before the claim"}
	if _, err := Restore(ctx, o); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	r := &rig{t: t, path: path, cfg: l.rig.cfg}
	r.cfg.Path = path
	r.open() // without its store
	d := r.dial()
	d.append(d.create("new").ID, []byte("precious"))
	r.close()
	if _, err := Restore(ctx, l.options(path)); !errors.Is(err, ErrNotOurs) {
		t.Errorf("restored over records: %v", err)
	}
	// Nor when its epoch tells nothing, since the lost log was started more often.
	m, version, err := upload.ReadManifest(ctx, l.store, l.manifest.Node)
	if err != nil {
		t.Fatal(err)
	}
	m.Epoch += 10
	body, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.PutIfMatch(ctx, upload.ManifestKey(m.Node), body, version); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(ctx, l.options(path)); !errors.Is(err, ErrNotOurs) || !strings.Contains(err.Error(), "which has records") {
		t.Errorf("restored over records: %v", err)
	}
}

// crashingStore ends a restore at one step.
type crashingStore struct {
	store.Store
	dies string
}

var errDied = errors.New("died")

func (s *crashingStore) PutIfAbsent(ctx context.Context, key string, body []byte) (store.Version, error) {
	if s.dies == "at the state object" {
		return "", errDied
	}
	return s.Store.PutIfAbsent(ctx, key, body)
}

func (s *crashingStore) PutIfMatch(ctx context.Context, key string, body []byte, old store.Version) (store.Version, error) {
	if s.dies == "before the claim" {
		return "", errDied
	}
	v, err := s.Store.PutIfMatch(ctx, key, body, old)
	if err == nil && s.dies == "answer of the claim is lost" {
		return "", store.ErrUnknownOutcome
	}
	return v, err
}

// A second restore goes on where the first one did, and the first one's log is retired
// like the lost one.
func TestRestoreTwice(t *testing.T) {
	ctx := context.Background()
	l := loseLog(t)
	first, err := Restore(ctx, l.options(filepath.Join(t.TempDir(), "first")))
	if err != nil {
		t.Fatal(err)
	}
	second, err := Restore(ctx, l.options(filepath.Join(t.TempDir(), "second")))
	if err != nil {
		t.Fatal(err)
	}
	if second.LostLogUUID != first.LogUUID || second.OriginPosition < first.OriginPosition+upload.RestoreGapBytes {
		t.Errorf("%+v behind %+v", second, first)
	}
	if records, gaps := l.read(t, "orders"); len(records) != 6 || len(gaps) != 1 {
		t.Errorf("read %q, %q", records, gaps)
	}
	l.verify(t)
	if _, err := Restore(ctx, l.options(first.Path)); !errors.Is(err, ErrNotOurs) || !strings.Contains(err.Error(), "given up") {
		t.Errorf("the first one's device: %v", err)
	}
}

// P8: what holds something is not written, the lost log itself least of all.
func TestP8_RestoreRefusesWhatHoldsSomething(t *testing.T) {
	ctx := context.Background()
	l := loseLog(t)
	dir := t.TempDir()
	other := newRig(t)
	other.close()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("somebody's data ", 1<<16)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{l.rig.path: "it is not lost", other.path: "it holds log", text: ""} {
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		o := l.options(path)
		o.SizeBytes = 0
		if _, err := Restore(ctx, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Errorf("%s was written", path)
		}
	}
	m, _, err := upload.ReadManifest(ctx, l.store, l.manifest.Node)
	if err != nil || m.Log != l.manifest.Log {
		t.Errorf("the manifest was changed: %+v, %v", m, err)
	}
}

// A sidecar that still serves the lost log commits between restore's look and its claim:
// nothing is restored.
func TestRestoreOfALogThatLives(t *testing.T) {
	ctx := context.Background()
	l := loseLog(t)
	r, err := upload.PrepareRestore(ctx, l.store, l.manifest.Node)
	if err != nil {
		t.Fatal(err)
	}
	m, version, err := upload.ReadManifest(ctx, l.store, l.manifest.Node)
	if err != nil {
		t.Fatal(err)
	}
	m.Attempt++
	body, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.PutIfMatch(ctx, upload.ManifestKey(m.Node), body, version); err != nil {
		t.Fatal(err)
	}
	by := upload.Successor{Log: uuid.New(), Incarnation: uuid.New(), Epoch: m.Epoch + 1}
	if _, err := r.Claim(ctx, l.store, by, 1); !errors.Is(err, upload.ErrNotGone) {
		t.Fatalf("the claim says %v", err)
	}
	// And once a restore has claimed it, the lost log has no way back.
	if r, err = upload.PrepareRestore(ctx, l.store, l.manifest.Node); err != nil {
		t.Fatal(err)
	}
	if m, err = r.Claim(ctx, l.store, by, 1); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(l.manifest.Log, 1<<62); !errors.Is(err, upload.ErrRetired) {
		t.Errorf("the lost log may start: %v", err)
	}
	back := upload.Claimant{Log: l.manifest.Log, Node: m.Node, Epoch: m.Epoch + 10, Incarnation: uuid.New(), End: 1 << 62}
	if _, err := upload.Claim(ctx, l.store, back); !errors.Is(err, upload.ErrRetired) {
		t.Errorf("the lost log claims the manifest: %v", err)
	}
}

// A log that is too small for the state is refused before anything is written.
func TestRestoreNeedsRoomForTheState(t *testing.T) {
	l := loseLog(t)
	table := stream.NewTable(1 << 30)
	for i := range uint64(50_000) {
		it := stream.Item{Kind: stream.KindStreamCreate, Stream: stream.ID(i + 1), Name: fmt.Appendf(nil, "%0200d", i)}
		if err := table.Apply(&it); err != nil {
			t.Fatal(err)
		}
	}
	o := l.options(filepath.Join(t.TempDir(), "wal"))
	if err := stateFits(&o, &upload.Restoration{State: table}); !errors.Is(err, ringwal.ErrTooSmall) {
		t.Errorf("%v", err)
	}
}
