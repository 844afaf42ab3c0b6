package node

import (
	"errors"
	"math"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
)

// SalvageVisitor is told what survives of a log, in commit order.
type SalvageVisitor struct {
	// Record has the stream's name where it survived, else "".
	Record func(r *reader.Record, name string) error
	// Gap is a range of positions without a readable frame.
	Gap func(ringwal.Gap) error
	// StreamGap is a range of offsets that are missing between two records of a
	// stream.
	StreamGap func(id stream.ID, name string, from, to uint64) error
}

// Salvaged counts what Salvage found.
type Salvaged struct {
	Records     uint64 `json:"records"`
	Gaps        uint64 `json:"gaps"`
	LostBytes   uint64 `json:"lost_bytes"`
	EndPosition uint64 `json:"end_position"`
	// Problem is what is wrong with the superblocks; empty where they are sound. With
	// a problem the end of the log is only what the frames themselves tell.
	Problem string `json:"problem,omitempty"`
}

// Salvage reads what survives of a damaged log. It writes nothing and needs one
// readable superblock copy. It reads the log twice: names of streams first, which
// may stand in a later checkpoint.
func Salvage(path string, v SalvageVisitor) (*Salvaged, error) {
	dev, err := device.Open(path, device.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil && (sbs == nil || sbs.Newest == nil || errors.Is(err, ringwal.ErrGeometry)) {
		return nil, atPath(path, err)
	}
	problem := ""
	if err != nil {
		problem, sbs = err.Error(), anyEpoch(sbs)
	}
	names, err := salvageNames(dev, sbs)
	if err != nil {
		return nil, atPath(path, err)
	}
	s := salvage{visitor: v, names: names, next: map[stream.ID]uint64{}, found: Salvaged{Problem: problem}}
	s.found.EndPosition, err = ringwal.Salvage(dev, sbs, ringwal.SalvageVisitor{Frame: s.frame, Gap: s.gap})
	if err != nil {
		return nil, atPath(path, err)
	}
	return &s.found, nil
}

// anyEpoch is sbs for a log whose newest superblock may be lost: the epochs that only
// that one knew are taken by the chain of their sums, as in a range of merged
// boundaries. Where one of them jumped, the jump looks like a gap.
func anyEpoch(sbs *ringwal.Superblocks) *ringwal.Superblocks {
	sb := *sbs.Newest
	sb.Boundaries = []ringwal.Boundary{{Epoch: math.MaxUint64, FollowEnd: sb.Trim, FollowSum: sb.TrimPrevSum, Start: sb.Trim}}
	all := *sbs
	all.Newest = &sb
	return &all
}

type salvage struct {
	visitor SalvageVisitor
	names   map[stream.ID]string
	next    map[stream.ID]uint64
	found   Salvaged
}

func (s *salvage) gap(g ringwal.Gap) error {
	s.found.Gaps++
	if g.Kind == ringwal.GapLost {
		s.found.LostBytes += g.To - g.From
	}
	return s.visitor.Gap(g)
}

func (s *salvage) frame(f *ringwal.FrameView) error {
	if f.Kind != ringwal.FrameData {
		return nil
	}
	return stream.Items(f.Body, f.Position, func(it *stream.Item) error {
		if it.Kind != stream.KindBatch {
			return nil
		}
		var rec stream.Record
		for n := 1; it.NextRecord(&rec); n++ {
			if next, known := s.next[rec.Stream]; known && rec.Offset > next {
				if err := s.visitor.StreamGap(rec.Stream, s.names[rec.Stream], next, rec.Offset); err != nil {
					return err
				}
			}
			s.next[rec.Stream] = rec.Offset + 1
			s.found.Records++
			out := reader.Record{Stream: rec.Stream, Offset: rec.Offset, Position: it.Position, TimestampNS: rec.Timestamp,
				Headers: rec.Headers, Payload: rec.Payload, Checksum: rec.Checksum, BatchEnd: n == it.Count}
			if err := s.visitor.Record(&out, s.names[rec.Stream]); err != nil {
				return err
			}
		}
		return nil
	})
}

// salvageNames collects every stream name that survives, from create items and
// complete checkpoints.
func salvageNames(dev device.Device, sbs *ringwal.Superblocks) (map[stream.ID]string, error) {
	names := map[stream.ID]string{}
	var state []byte
	var parts uint32
	_, err := ringwal.Salvage(dev, sbs, ringwal.SalvageVisitor{
		Gap: func(ringwal.Gap) error { return nil },
		Frame: func(f *ringwal.FrameView) error {
			switch f.Kind {
			case ringwal.FrameData:
				return stream.Items(f.Body, f.Position, func(it *stream.Item) error {
					if it.Kind == stream.KindStreamCreate {
						names[it.Stream] = string(it.Name)
					}
					return nil
				})
			case ringwal.FrameCheckpoint:
				if f.Part == 0 {
					state, parts = state[:0], 0
				}
				if f.Part != parts {
					return nil // an earlier part is lost
				}
				state = append(state, f.Body...)
				if parts++; parts == f.Parts {
					addNames(names, state, sbs.Newest.Geometry.CheckpointMaxBytes)
				}
			}
			return nil
		},
	})
	return names, err
}

func addNames(names map[stream.ID]string, state []byte, maxBytes uint64) {
	table, err := stream.DecodeCheckpoint(state, maxBytes)
	if err != nil {
		return // parts of two checkpoints; another one will do
	}
	for cursor, more := "", true; more; {
		var page []stream.StreamInfo
		page, more = table.List("", cursor, stream.MaxListed, nil)
		for i := range page {
			names[page[i].ID] = page[i].Name
			cursor = page[i].Name
		}
	}
}
