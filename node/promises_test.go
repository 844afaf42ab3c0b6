package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/wire"
)

// quiet fails if an answer arrives although none may.
func (d *door) quiet(why string) {
	d.t.Helper()
	select {
	case m := <-d.messages:
		d.t.Fatalf("%v arrived %s", m.h.Type, why)
	case <-time.After(50 * time.Millisecond):
	}
}

func one(stream uint64, payload string) *wire.Append {
	return &wire.Append{Entries: []wire.Entry{{Stream: stream, Payload: []byte(payload)}}}
}

// awaitInFlight waits until n frames are on their way.
func (r *rig) awaitInFlight(n int) {
	r.t.Helper()
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if r.node.Status().FramesInFlight == n {
			return
		}
	}
	r.t.Fatalf("%d frames in flight never came", n)
}

// The second frame completes first; neither may be acked before the first is on the
// medium.
func TestP1_NoAckBeforeEveryEarlierFrameIsDurable(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("s")
	time.Sleep(2 * SealAfter) // the seal is out of the way
	r.dev.set(func(n int, _ int64) bool { return n == 1 }, nil)
	d.send(one(stream.ID, "first"))
	r.awaitInFlight(1)
	d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream.ID, Payload: make([]byte, 2*QuantumBytes)}}})
	r.awaitInFlight(1) // the second came back, the first did not
	d.quiet("while the first frame was not on the medium")
	if got := r.node.Reader().Durable(); got != r.node.Status().DurablePosition {
		t.Fatalf("reads show position %d, durable is %d", got, r.node.Status().DurablePosition)
	}
	r.dev.set(nil, nil)
	var ack wire.AppendAck
	d.decode(d.next(), &ack)
	if ack.Extents[0].Offset != 0 {
		t.Fatalf("acked %+v", ack.Extents)
	}
	r.close()
}

// A refusal tells the state that it was decided on, so it waits until that state is
// durable; so do a stat, a list and a read.
func TestP11_AnswersWaitForWhatTheyShow(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("s")
	time.Sleep(2 * SealAfter)
	r.dev.set(func(int, int64) bool { return true }, nil)
	d.send(one(stream.ID, "first"))
	d.send(&wire.Append{Entries: []wire.Entry{{Stream: stream.ID, HasExpect: true, Expect: 7}}})
	d.send(&wire.StreamStat{Stream: stream.ID})
	d.send(&wire.StreamList{})
	d.quiet("before the append that it shows was durable")
	if records, _ := r.dial().readAll(stream.ID, 0); len(records) != 0 {
		t.Fatalf("a read shows %d records that are not durable", len(records))
	}
	r.dev.set(nil, nil)
	d.decode(d.next(), &wire.AppendAck{})
	var refusal wire.Error
	if m := d.next(); refusal.Decode(m.h, m.body) != nil || refusal.Code != wire.CodePreconditionFailed || refusal.Actual != 1 {
		t.Fatalf("refusal %+v", refusal)
	}
	var info wire.StreamInfo
	d.decode(d.next(), &info)
	if info.NextOffset != 1 {
		t.Fatalf("stat shows %+v", info)
	}
	r.close()
}

// A failed write stops the log: what waited has an unknown outcome, what comes later
// is refused, nothing is written any more; a restart has everything that was acked.
func TestP10_AFailedWriteIsFinal(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("s")
	d.append(stream.ID, []byte("acked"))
	time.Sleep(2 * SealAfter)
	broken := fmt.Errorf("made to fail: %w", device.ErrWrite)
	r.dev.set(nil, func(n int) error {
		if n == 1 {
			return broken
		}
		return nil
	})
	d.send(one(stream.ID, "unknown"))
	var e wire.Error
	m := d.next()
	if err := e.Decode(m.h, m.body); err != nil || e.Code != wire.CodeLogFailed || !e.Code.Info().OutcomeUnknown {
		t.Fatalf("answered with %v: %+v", m.h.Type, e)
	}
	select {
	case err := <-r.node.Failed():
		if !errors.Is(err, ringwal.ErrWriteFailed) || !errors.Is(err, device.ErrWrite) {
			t.Fatalf("failed with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the node does not say that it failed")
	}
	d.send(one(stream.ID, "refused"))
	if m := d.next(); m.h.Type != wire.TypeError {
		t.Fatalf("%v after the log had stopped", m.h.Type)
	}
	if got := r.node.Status(); got.State != "failed" {
		t.Fatalf("state %q", got.State)
	}
	r.dev.mu.Lock()
	writes := r.dev.writes
	r.dev.mu.Unlock()
	if writes != 1 {
		t.Fatalf("%d writes after the failed one", writes-1)
	}
	r.host.Close()
	_ = r.node.Close(context.Background())
	r.open()
	d = r.dial()
	records, _ := d.readAll(stream.ID, 0)
	if len(records) < 1 || len(records) > 2 || string(records[0].Payload) != "acked" {
		t.Fatalf("after the restart: %d records", len(records))
	}
	r.close()
}

// A write that does not come back within L stops the log although the device hangs.
func TestP10_AStalledWriteIsFinal(t *testing.T) {
	r := newRig(t)
	r.close()
	r.cfg.StallAfter = 300 * time.Millisecond
	r.open()
	d := r.dial()
	stream := d.create("s")
	time.Sleep(2 * SealAfter)
	r.dev.set(func(int, int64) bool { return true }, nil)
	d.send(one(stream.ID, "unknown"))
	m := d.next()
	var e wire.Error
	if err := e.Decode(m.h, m.body); err != nil || e.Code != wire.CodeLogFailed {
		t.Fatalf("answered with %v: %+v", m.h.Type, e)
	}
	if err := <-r.node.Failed(); !errors.Is(err, ringwal.ErrStalled) {
		t.Fatalf("failed with %v", err)
	}
	r.dev.set(nil, nil)
	r.host.Close()
	_ = r.node.Close(context.Background())
}

// A frame that the writers do not take is a hole: the log stops, as for a failed write.
func TestP10_AFrameThatNobodyWritesStopsTheLog(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("s")
	r.inLoop(func() { r.node.writers.Stop(time.Minute) })
	d.send(one(stream.ID, "unknown"))
	if e := d.refusal(); e.Code != wire.CodeLogFailed {
		t.Fatalf("answered with %v: %s", e.Code, e.Message)
	}
	if err := <-r.node.Failed(); !errors.Is(err, ringwal.ErrWriteFailed) {
		t.Fatalf("failed with %v", err)
	}
	r.host.Close()
	_ = r.node.Close(context.Background())
}

func sum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// What is not ours is refused by name and left as it is, byte for byte.
func TestP8_WhatIsNotOursIsNeverWritten(t *testing.T) {
	r := newRig(t)
	r.close()
	id := r.node.Status().LogUUID
	ext := filepath.Join(t.TempDir(), "ext4")
	blank := make([]byte, testFileBytes)
	blank[1080], blank[1081] = 0x53, 0xEF // the magic of ext2 to ext4
	if err := os.WriteFile(ext, blank, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(foreign, bytes.Repeat([]byte("somebody's data "), testFileBytes/16), 0o600); err != nil {
		t.Fatal(err)
	}
	other := r.cfg
	other.Node = "another-node"
	for name, c := range map[string]struct {
		path string
		do   func() error
		want error
	}{
		"serve another node's log": {r.path, func() error { _, err := Open(context.Background(), other); return err }, ErrNotOurs},
		"format a log":             {r.path, func() error { _, err := Format(FormatOptions{Path: r.path}); return err }, ErrNotOurs},
		"format with another log's id": {r.path, func() error {
			_, err := Format(FormatOptions{Path: r.path, Force: true, ExpectUUID: uuid.New()})
			return err
		}, ErrNotOurs},
		"format a filesystem": {ext, func() error { _, err := Format(FormatOptions{Path: ext, Force: true}); return err }, ErrNotOurs},
		"format data":         {foreign, func() error { _, err := Format(FormatOptions{Path: foreign}); return err }, ErrNotOurs},
		"serve a filesystem": {ext, func() error {
			c := r.cfg
			c.Path = ext
			_, err := Open(context.Background(), c)
			return err
		}, ErrNotOurs},
		"serve data": {foreign, func() error {
			c := r.cfg
			c.Path = foreign
			_, err := Open(context.Background(), c)
			return err
		}, ErrNotOurs},
	} {
		before := sum(t, c.path)
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if sum(t, c.path) != before {
			t.Errorf("%s: the device changed", name)
		}
	}
	if _, err := Format(FormatOptions{Path: r.path, Force: true, ExpectUUID: uuid.MustParse(id)}); err != nil {
		t.Errorf("format with the log's own id: %v", err)
	}
}

// A second sidecar on the same log is refused, and the first goes on.
func TestP6_ASecondOpenIsRefused(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	stream := d.create("s")
	if _, err := Open(context.Background(), r.cfg); !errors.Is(err, device.ErrInUse) {
		t.Fatalf("second open: %v", err)
	}
	d.append(stream.ID, []byte("unharmed"))
	r.close()
}

// A block device whose last owner ran under another kernel is started only after that
// owner's writes cannot be acked any more, and past where they could land.
func TestLateWritesAreWaitedFor(t *testing.T) {
	r := newRig(t)
	r.close()
	r.cfg.StallAfter = time.Second
	r.open()
	r.close()
	acquire := func(ctx context.Context, sameKernel bool) fence.Outcome {
		t.Helper()
		n := &Node{cfg: r.cfg, log: slog.New(slog.DiscardHandler)}
		var err error
		if n.dev, err = device.Open(r.path, device.OpenOptions{Exclusive: true, BusyFor: busyFor}); err != nil {
			t.Fatal(err)
		}
		defer n.dev.Close()
		sbs, err := n.identify()
		if err != nil {
			t.Fatal(err)
		}
		if n.boot = sbs.Newest.BootID; !sameKernel {
			n.boot[0]++
		}
		err = n.acquire(ctx, fence.Without(fence.ModeAttach, fence.Capabilities{}), sbs.Newest)
		if !errors.Is(err, ctx.Err()) {
			t.Fatal(err)
		}
		return n.hold.outcome
	}
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	acquire(short, false)
	if out := acquire(context.Background(), false); !out.Jump || out.Waited < time.Second+fence.Margin {
		t.Fatalf("waited %v, jump %v", out.Waited, out.Jump)
	}
	if out := acquire(context.Background(), true); out.Jump || out.Waited != 0 {
		t.Fatalf("the same kernel's owner is gone with its process: waited %v, jump %v", out.Waited, out.Jump)
	}
}

// A log whose last superblock cannot be written was not closed in order, and says so.
func TestP10_ACloseThatFailsSaysSo(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	d.append(d.create("s").ID, []byte("one"))
	time.Sleep(2 * SealAfter)
	if err := r.node.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	r.dev.set(nil, func(int) error { return fmt.Errorf("%w: %w", device.ErrWrite, broken) })
	r.host.Close()
	if err := r.node.Close(context.Background()); !errors.Is(err, broken) {
		t.Fatalf("closed with: %v", err)
	}
}
