package peers

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	tidwallwal "github.com/tidwall/wal"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	etcdwal "go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// tidwall is github.com/tidwall/wal.
type tidwall struct {
	trimmer
	log   *tidwallwal.Log
	last  uint64
	batch tidwallwal.Batch
}

func (t *tidwall) Open(_ context.Context, s drive.Setup) (err error) {
	t.trimmer = trimmer{size: s.Size, first: 1}
	t.log, err = tidwallwal.Open(filepath.Join(s.Dir, "wal"), &tidwallwal.Options{SegmentSize: 64 << 20})
	return err
}

func (t *tidwall) AppendBatch(records [][]byte) error {
	t.batch.Clear()
	for _, record := range records {
		t.last++
		t.batch.Write(t.last, record)
	}
	if err := t.log.WriteBatch(&t.batch); err != nil {
		return err
	}
	if before, due := t.before(t.last); due {
		return t.log.TruncateFront(before)
	}
	return nil
}

func (t *tidwall) Close() error {
	if t.log == nil {
		return nil
	}
	return t.log.Close()
}

// etcdWAL is the log of etcd, trimmed as its server does: old segments are released, and
// removed from outside.
type etcdWAL struct {
	trimmer
	log     *etcdwal.WAL
	last    uint64
	term    uint64
	entries []*raftpb.Entry
	stop    chan struct{}
	purged  <-chan struct{}
}

const (
	etcdSegments   = 5 // kept, the server's default
	etcdPurgeEvery = 200 * time.Millisecond
)

func (e *etcdWAL) Open(_ context.Context, s drive.Setup) (err error) {
	e.trimmer, e.term = trimmer{size: s.Size, first: 1}, 1
	dir := filepath.Join(s.Dir, "wal")
	if e.log, err = etcdwal.Create(zap.NewNop(), dir, []byte("bench")); err != nil {
		return err
	}
	e.stop = make(chan struct{})
	e.purged, _ = fileutil.PurgeFileWithDoneNotify(zap.NewNop(), dir, "wal", etcdSegments, etcdPurgeEvery, e.stop)
	return nil
}

func (e *etcdWAL) AppendBatch(records [][]byte) error {
	e.entries = e.entries[:0]
	for _, record := range records {
		e.last++
		index := e.last
		e.entries = append(e.entries, &raftpb.Entry{Term: &e.term, Index: &index, Data: record})
	}
	if err := e.log.Save(&raftpb.HardState{Term: &e.term, Commit: &e.last}, e.entries); err != nil {
		return err
	}
	if before, due := e.before(e.last); due {
		return e.log.ReleaseLockTo(before)
	}
	return nil
}

func (e *etcdWAL) Close() error {
	if e.log == nil {
		return nil
	}
	close(e.stop)
	<-e.purged
	return e.log.Close()
}

// raftWAL is github.com/hashicorp/raft-wal.
type raftWAL struct {
	trimmer
	log  *raftwal.WAL
	last uint64
	logs []*raft.Log
}

func (r *raftWAL) Open(_ context.Context, s drive.Setup) (err error) {
	r.trimmer = trimmer{size: s.Size, first: 1}
	r.log, err = raftwal.Open(s.Dir)
	return err
}

func (r *raftWAL) AppendBatch(records [][]byte) error {
	r.logs = r.logs[:0]
	for _, record := range records {
		r.last++
		r.logs = append(r.logs, &raft.Log{Index: r.last, Term: 1, Data: record})
	}
	if err := r.log.StoreLogs(r.logs); err != nil {
		return err
	}
	first := r.first
	if before, due := r.before(r.last); due {
		return r.log.DeleteRange(first, before-1)
	}
	return nil
}

func (r *raftWAL) Close() error {
	if r.log == nil {
		return nil
	}
	return r.log.Close()
}

// pebbleDB is Pebble, with a sync commit for each record.
type pebbleDB struct {
	trimmer
	db       *pebble.DB
	last     atomic.Uint64
	trimming atomic.Bool
	flying   []*pebble.Batch
	waited   int
	sent     int
}

// silent keeps Pebble from logging.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, _ ...any) {
	panic(format)
}

func (p *pebbleDB) Open(_ context.Context, s drive.Setup) (err error) {
	p.trimmer = trimmer{size: s.Size}
	p.flying = make([]*pebble.Batch, s.InFlight)
	p.db, err = pebble.Open(filepath.Join(s.Dir, "db"), &pebble.Options{
		MemTableSize: 64 << 20, MemTableStopWritesThreshold: 4, L0CompactionThreshold: 4, L0StopWritesThreshold: 100, Logger: silent{},
	})
	return err
}

func key(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func (p *pebbleDB) Append(_ int, record []byte) error {
	n := p.last.Add(1)
	return errors.Join(p.db.Set(key(n), record, pebble.Sync), p.trim(n))
}

// trim deletes old keys; one producer at a time does.
func (p *pebbleDB) trim(n uint64) error {
	if !p.trimming.CompareAndSwap(false, true) {
		return nil
	}
	defer p.trimming.Store(false)
	first := p.first
	if before, due := p.before(max(n, first)); due {
		return p.db.DeleteRange(key(first), key(before), pebble.NoSync)
	}
	return nil
}

func (p *pebbleDB) Submit(record []byte) error {
	n := p.last.Add(1)
	b := p.db.NewBatch()
	if err := b.Set(key(n), record, nil); err != nil {
		return err
	}
	if err := p.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return err
	}
	p.flying[p.sent%len(p.flying)] = b
	p.sent++
	return p.trim(n)
}

func (p *pebbleDB) Wait() error {
	b := p.flying[p.waited%len(p.flying)]
	p.waited++
	return errors.Join(b.SyncWait(), b.Close())
}

func (p *pebbleDB) Close() error {
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}
