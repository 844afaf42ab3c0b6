package sim

import (
	"bytes"
	"context"
	"errors"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// indexes takes a durable frame into directory and index, as a reader does.
func (h *host) indexes(position uint64, body []byte) {
	err := stream.Items(body, position, func(it *stream.Item) error {
		if err := h.directory.Apply(it); err != nil {
			return err
		}
		h.index.Apply(it, position)
		return nil
	})
	if err != nil {
		h.w.fail("P2", "the directory refused a durable frame: %v", err)
	}
}

func (h *host) planTrim(checkpointStart uint64) stream.TrimPlan {
	if u := h.uploads; u != nil {
		from := h.heldBack(min(ringwal.NewFrameChecker(h.log.Superblock()).Next(u.core.Uploaded()), h.log.Durable()))
		return stream.TrimPlan{Records: from, Target: min(from, checkpointStart)}
	}
	if h.reader != nil {
		return h.reader.PlanTrim(checkpointStart)
	}
	plan := stream.PlanTrim(h.directory, h.index, checkpointStart, h.published)
	plan.Records, plan.Target = h.heldBack(plan.Records), h.heldBack(plan.Target)
	return plan
}

// frameAt reads the header of a durable frame.
func (h *host) frameAt(position uint64) (ringwal.FrameHeader, error) {
	if h.reader != nil {
		return h.reader.FrameAt(position)
	}
	view, err := h.frame(position)
	return view.FrameHeader, err
}

// frame reads the durable frame at position from the device.
func (h *host) frame(position uint64) (ringwal.FrameView, error) {
	g, check := h.log.Geometry(), ringwal.NewFrameChecker(h.log.Superblock())
	b := make([]byte, g.BlockBytes)
	if _, err := h.view.ReadAt(b, g.DeviceOffset(position)); err != nil {
		return ringwal.FrameView{}, err
	}
	header, ok := check.Header(b, position)
	if !ok {
		return ringwal.FrameView{}, ringwal.ErrDamaged
	}
	b = make([]byte, check.StoredBytes(&header))
	if _, err := h.view.ReadAt(b, g.DeviceOffset(position)); err != nil {
		return ringwal.FrameView{}, err
	}
	if !check.Whole(&header, b) {
		return ringwal.FrameView{}, ringwal.ErrDamaged
	}
	return ringwal.FrameView{FrameHeader: header, Body: b[ringwal.FrameHeaderBytes:][:header.BodyBytes]}, nil
}

// read reads some records of a stream, as they are durable, and compares them.
func (h *host) read() {
	w := h.w
	if h.log.Err() != nil || len(w.oracle.durable.streams) == 0 {
		return
	}
	if h.reader != nil && w.chance(0.3) {
		h.replay()
		return
	}
	s := w.oracle.durable.streams[w.rng.IntN(len(w.oracle.durable.streams))]
	if s.first == s.next() {
		return
	}
	from := s.first + w.rng.Uint64N(s.next()-s.first)
	n := int(min(s.next()-from, 1+w.rng.Uint64N(20)))
	read := h.records
	if w.bucket != nil {
		if in := w.bucket.archive.inStore(s.id); from < in && (h.reader == nil || w.chance(0.5)) {
			if h.archive.Manifest().Uploaded < w.bucket.archive.uploaded() {
				return // the host has not heard of the newest manifest yet
			}
			read, n = h.cold, int(min(uint64(n), in-from))
		}
	}
	records, err := read(s.id, from, n)
	if err != nil {
		h.unreadable(err)
		return
	}
	if len(records) != n {
		w.fail("P2", "stream %d was read from %d: %d records, not %d", s.id, from, len(records), n)
	}
	for i, got := range records {
		want := s.records[from+uint64(i)]
		if got.Offset != want.offset || got.Timestamp != want.timestamp || !bytes.Equal(got.Payload, want.payload.bytes()) || !bytes.Equal(got.Headers, want.headers) {
			w.fail("P2", "stream %d offset %d reads back differently", s.id, want.offset)
		}
	}
}

// replay reads the log of all streams in commit order, from anywhere, and compares.
func (h *host) replay() {
	w, o := h.w, h.w.oracle
	from := h.log.Trim() + w.rng.Uint64N(h.published-h.log.Trim()+1)
	var want []*record
	var ends []*record // last records of their batches
	for _, e := range o.entries[:o.durableCount-o.baseCount] {
		if e.position >= from && e.kind == stream.KindBatch {
			want = append(want, e.records...)
			ends = append(ends, e.records[len(e.records)-1])
		}
	}
	p, err := h.reader.OpenReplay(reader.ReplayQuery{Position: from})
	if err != nil {
		w.fail("P2", "a replay from %d: %v", from, err)
	}
	defer p.Close()
	for {
		e, err := p.Next(context.Background(), 64<<10)
		if err != nil {
			h.unreadable(err)
			return
		}
		if e.Kind != reader.Records {
			break
		}
		for _, got := range e.Records {
			if len(want) == 0 || got.Stream != want[0].stream || got.Offset != want[0].offset || !bytes.Equal(got.Payload, want[0].payload.bytes()) {
				w.fail("P2", "a replay from %d returned stream %d offset %d, which does not come next", from, got.Stream, got.Offset)
			}
			if got.BatchEnd != (want[0] == ends[0]) {
				w.fail("P2", "a replay from %d: a batch ends at the wrong record", from)
			}
			if got.BatchEnd {
				ends = ends[1:]
			}
			want = want[1:]
		}
	}
	if len(want) > 0 {
		w.fail("P2", "a replay from %d ends %d records before the durable end", from, len(want))
	}
}

// records reads n durable records of a stream.
func (h *host) records(id stream.ID, from uint64, n int) ([]stream.Record, error) {
	if h.reader != nil {
		return h.readRecords(id, from, n)
	}
	var records []stream.Record
	position, found := h.index.Find(id, from)
	if !found {
		return nil, errors.New("the index does not know the record")
	}
	check := ringwal.NewFrameChecker(h.log.Superblock())
	for position < h.log.Durable() && len(records) < n {
		f, err := h.frame(position)
		if err != nil {
			return nil, err
		}
		if f.Kind == ringwal.FrameData {
			err = stream.Items(f.Body, f.Position, func(it *stream.Item) error {
				var r stream.Record
				for it.Kind == stream.KindBatch && it.NextRecord(&r) {
					if r.Stream == id && r.Offset >= from && len(records) < n {
						records = append(records, r)
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		position = check.Next(f.End())
	}
	return records, nil
}

// readRecords reads through package reader.
func (h *host) readRecords(id stream.ID, from uint64, n int) ([]stream.Record, error) {
	c, err := h.reader.Open(reader.Query{Stream: id, From: reader.From{Kind: reader.FromOffset, Value: from}, MaxRecords: uint64(n)})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var records []stream.Record
	for {
		e, err := c.Next(context.Background(), 64<<10)
		if err != nil {
			return nil, err
		}
		if e.Kind != reader.Records {
			return records, nil
		}
		for _, r := range e.Records {
			records = append(records, stream.Record{Stream: r.Stream, Offset: r.Offset, Timestamp: r.TimestampNS,
				Headers: bytes.Clone(r.Headers), Payload: bytes.Clone(r.Payload)})
		}
	}
}
