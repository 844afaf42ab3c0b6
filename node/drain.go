package node

import (
	"context"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/stream"
)

// Times of an upload that is waited for.
const (
	uploadPoll = 5 * time.Millisecond
	tellEvery  = time.Second
)

// Lag is what is durable and not in the store yet.
type Lag struct {
	Bytes   uint64 // of the log
	Problem error  // why the store takes nothing, nil while it does
}

// Upload has everything that is durable uploaded and committed, without linger, and returns
// when it is. Without a store it returns at once. While the store fails it waits on; tell,
// unless nil, hears of it about once a second. The error is why the log has stopped
// (Failed may tell no more then), or ctx's.
func (n *Node) Upload(ctx context.Context, tell func(Lag)) error {
	if n.uploads == nil {
		return nil
	}
	u := n.uploads.uploader
	u.Flush()
	poll := time.NewTicker(uploadPoll)
	defer poll.Stop()
	told := time.Time{}
	for {
		lag := u.Stats().LagBytes
		if lag == 0 {
			return nil
		}
		if e := n.refusing.Load(); e != nil {
			return e // somebody else may have heard of it from Failed
		}
		if tell != nil && time.Since(told) >= tellEvery {
			told = time.Now()
			state := u.State()
			if state.Upkeep {
				state.Retrying = nil
			}
			tell(Lag{Bytes: lag, Problem: state.Retrying})
		}
		select {
		case <-poll.C:
		case err := <-n.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Missing is what the log had that the store had not.
type Missing struct {
	Records uint64
	Bytes   uint64 // of the log
}

// Missing is what the start found to be uploaded; zero without a store.
func (n *Node) Missing() Missing {
	if n.uploads == nil {
		return Missing{}
	}
	return n.uploads.missing
}

// RecoveredBytes is how long the log was that the start recovered.
func (n *Node) RecoveredBytes() uint64 { return n.start.recoveredBytes }

// Lap is a part of the start routine and how long it took.
type Lap struct {
	Step    string  `json:"step"` // identify, fence, manifest, recover, superblock, claim, room (where there was none), checkpoint
	Seconds float64 `json:"seconds"`
}

// Laps are the parts of the start, in their order; until the end of the last one nothing
// could be appended.
func (n *Node) Laps() []Lap { return n.start.laps }

func (n *Node) lap(step string) {
	now := time.Now()
	n.start.laps = append(n.start.laps, Lap{Step: step, Seconds: now.Sub(n.start.lapFrom).Seconds()})
	n.start.lapFrom = now
}

// Fenced is how the start acquired its fence.
func (n *Node) Fenced() fence.Outcome { return n.hold.outcome }

// StreamEnd is where a stream goes on.
type StreamEnd struct {
	Stream string `json:"stream"`
	ID     uint64 `json:"stream_id"`
	First  uint64 `json:"first_offset"` // that is not trimmed
	Next   uint64 `json:"next_offset"`
	Sealed bool   `json:"sealed,omitempty"`
}

// StreamEnds lists all streams by name; nil when the log has ended.
func (n *Node) StreamEnds() []StreamEnd {
	answer := make(chan []StreamEnd, 1)
	n.inbox.addCall(func() { answer <- streamEnds(n.committer.Table()) })
	select {
	case ends := <-answer:
		return ends
	case <-n.stopped:
		return nil
	}
}

// streamEnds is StreamEnds of a table.
func streamEnds(t *stream.Table) []StreamEnd {
	ends := make([]StreamEnd, 0, t.Streams())
	var page []stream.StreamInfo
	for cursor, more := "", true; more && len(ends) < cap(ends); {
		page, more = t.List("", cursor, stream.MaxListed, page[:0])
		for i := range page {
			s := &page[i]
			ends = append(ends, StreamEnd{Stream: s.Name, ID: uint64(s.ID), First: s.First, Next: s.Next, Sealed: s.Sealed})
			cursor = s.Name
		}
	}
	return ends
}
