package node

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/session"
)

// volatile is a device that loses something at its second flush, which a start does behind
// its recovery: that was in a cache only.
type volatile struct {
	device.Device
	flushes int
	lose    func()
}

func (v *volatile) Flush() error {
	if v.flushes++; v.flushes == 2 {
		v.lose()
	}
	return v.Device.Flush()
}

// A start that has recovered, and flushed, reads what nothing proves again, superblocks and
// frames: what was only in a cache and is gone is not built on.
func TestP3_WhatAFlushLosesIsNotRecovered(t *testing.T) {
	t.Run("a frame", func(t *testing.T) {
		r, told := newRig(t), &toldLog{}
		frame := r.unprovenFrame()
		n := r.startLosing(told, func() { r.overwrite(make([]byte, ringwal.FrameHeaderBytes), frame) })
		if !told.told("recovering again") || n.start.recovery.Records != 1 {
			t.Errorf("%d records were recovered; it told %q", n.start.recovery.Records, told.messages)
		}
		d := r.dial()
		if s := d.create("s"); s.NextOffset != 1 {
			t.Fatalf("the stream goes on at %d", s.NextOffset)
		} else if offset, _ := d.append(s.ID, []byte("another")); offset != 1 {
			t.Errorf("appended at %d", offset)
		}
		r.reopen()
		d = r.dial()
		records, gaps := d.readAll(d.create("s").ID, 0)
		if len(records) != 2 || len(gaps) != 0 || !bytes.Equal(records[1].Payload, []byte("another")) {
			t.Errorf("%d records, gaps %v", len(records), gaps)
		}
		r.close()
	})
	t.Run("a superblock", func(t *testing.T) {
		r, told := newRig(t), &toldLog{}
		r.close()
		before, err := os.ReadFile(r.path)
		if err != nil {
			t.Fatal(err)
		}
		newest := *r.superblock()
		newest.Sequence++
		r.landSuperblock(&newest)
		r.startLosing(told, func() { r.overwrite(before[:ringwal.RingStart], 0) })
		if !told.told("recovering again") {
			t.Errorf("it told %q", told.messages)
		}
		r.close()
	})
}

// unprovenFrame appends two records, and ends the log with nothing behind the second one that
// would prove it. It returns where on the device that one's frame is.
func (r *rig) unprovenFrame() (offset int64) {
	r.t.Helper()
	d := r.dial()
	id := d.create("s").ID
	d.append(id, []byte("first"))
	eventually(r.t, "the log is sealed, and writes nothing", func() (sealed bool) {
		r.inLoop(func() { sealed = r.node.loop.sealed && r.node.wal.InFlight() == 0 && r.node.wal.SuperblockInForce() })
		return sealed
	})
	r.dev.set(func(n int, at int64) bool {
		if n == 1 {
			offset = at
		}
		return false
	}, func(n int) error {
		if n > 1 {
			return device.ErrWrite
		}
		return nil
	})
	d.append(id, []byte("second"))
	r.host.Close()
	if err := r.node.Abandon(); err != nil {
		r.t.Fatal(err)
	}
	return offset
}

func (r *rig) overwrite(b []byte, offset int64) {
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, offset); err != nil {
		r.t.Fatal(err)
	}
}

// startLosing starts the log on a device that loses something when it is flushed behind the
// recovery.
func (r *rig) startLosing(told *toldLog, lose func()) *Node {
	r.t.Helper()
	dev, err := device.Open(r.path, device.OpenOptions{Exclusive: true})
	if err != nil {
		r.t.Fatal(err)
	}
	c := r.cfg
	c.Log = slog.New(told)
	n, err := openOn(context.Background(), c, &volatile{Device: dev, lose: lose})
	if err != nil {
		r.t.Fatal(err)
	}
	r.node = n
	r.host = session.NewHost(session.Options{Log: func(string) session.Backend { return n }, Budget: session.NewBudget(64 << 20), Logger: r.cfg.Log})
	return n
}
