package walsidecar

import (
	"context"
	"iter"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

// StreamInfo is the state of a stream.
type StreamInfo struct {
	Name string
	// ID is never used again: a stream that is deleted and created anew has another.
	ID uint64
	// FirstOffset is that of the oldest record that can be read, NextOffset that of
	// the next one to be appended; equal when there is none.
	FirstOffset, NextOffset uint64
	Created                 time.Time
	Last                    time.Time // of the newest record; zero where there was none
	Sealed                  bool
	HasToken                bool
	New                     bool // CreateStream made it
}

func streamInfo(s *wire.Stream) StreamInfo {
	info := StreamInfo{
		Name: s.Name, ID: s.ID, FirstOffset: s.FirstOffset, NextOffset: s.NextOffset,
		Created: time.Unix(0, s.CreatedNS), Sealed: s.Sealed, HasToken: s.HasToken, New: s.Created,
	}
	if s.LastNS != 0 {
		info.Last = time.Unix(0, s.LastNS)
	}
	return info
}

// CreateStream makes the stream, or returns the one that has the name.
func (c *Client) CreateStream(ctx context.Context, name string) (StreamInfo, error) {
	return c.openStream(ctx, "create", name, true)
}

// Stat returns the state of the stream.
func (c *Client) Stat(ctx context.Context, name string) (StreamInfo, error) {
	return c.openStream(ctx, "stat", name, false)
}

func (c *Client) openStream(ctx context.Context, op, name string, create bool) (StreamInfo, error) {
	var info wire.StreamInfo
	k := call{question: &wire.StreamOpen{Name: name, Create: create}, op: op, stream: name, repeat: true}
	if err := c.ask(ctx, &k, wire.TypeStreamInfo, &info); err != nil {
		return StreamInfo{}, err
	}
	return streamInfo(&info.Stream), nil
}

// SealStream ends the stream: appends are refused with ErrSealed from here on.
// Sealing a sealed stream changes nothing.
func (c *Client) SealStream(ctx context.Context, name string) (StreamInfo, error) {
	at, err := c.openStream(ctx, "seal", name, false)
	if err != nil {
		return StreamInfo{}, err
	}
	var info wire.StreamInfo
	k := call{question: &wire.StreamSeal{Stream: at.ID}, op: "seal", stream: name, repeat: true}
	if err := c.ask(ctx, &k, wire.TypeStreamInfo, &info); err != nil {
		return StreamInfo{}, err
	}
	return streamInfo(&info.Stream), nil
}

// DeleteStream deletes the stream and its records. The name may be created anew:
// that is another stream.
func (c *Client) DeleteStream(ctx context.Context, name string) error {
	at, err := c.openStream(ctx, "delete", name, false)
	if err != nil {
		return err
	}
	var info wire.StreamInfo
	k := call{question: &wire.StreamDelete{Stream: at.ID}, op: "delete", stream: name}
	if err := c.ask(ctx, &k, wire.TypeStreamInfo, &info); err != nil {
		return err
	}
	c.mu.Lock()
	if ref := c.streams[name]; ref != nil && ref.id == at.ID {
		c.forgetStream(ref)
	}
	c.mu.Unlock()
	return nil
}

// SetToken sets the token of the stream to after if it is before; empty means
// none. Else the error matches ErrTokenMismatch. Appends that come later in the
// log must carry the token.
func (c *Client) SetToken(ctx context.Context, name string, before, after []byte) error {
	if n := max(len(before), len(after)); n > wire.MaxTokenBytes {
		return newError(wire.CodeTooLarge, "token", name, "a token has at most 64 bytes")
	}
	at, err := c.openStream(ctx, "token", name, false)
	if err != nil {
		return err
	}
	var info wire.StreamInfo
	k := call{question: &wire.StreamToken{Stream: at.ID, Old: before, New: after}, op: "token", stream: name}
	return c.ask(ctx, &k, wire.TypeStreamInfo, &info)
}

// Trim gives up the records of the stream below the offset before, and returns the
// effective first offset: no lower than it was, no higher than the stream's end.
func (c *Client) Trim(ctx context.Context, name string, before uint64) (first uint64, err error) {
	at, err := c.openStream(ctx, "trim", name, false)
	if err != nil {
		return 0, err
	}
	var trimmed wire.Trimmed
	k := call{question: &wire.StreamTrim{Stream: at.ID, Before: before}, op: "trim", stream: name, repeat: true}
	if err := c.ask(ctx, &k, wire.TypeTrimmed, &trimmed); err != nil {
		return 0, err
	}
	return trimmed.FirstOffset, nil
}

// Streams iterates over the streams whose names begin with prefix, in byte order
// of the names, page by page: a stream created or deleted meanwhile may be seen or
// not. An error ends the iteration.
func (c *Client) Streams(ctx context.Context, prefix string) iter.Seq2[StreamInfo, error] {
	return func(yield func(StreamInfo, error) bool) {
		after := ""
		for {
			var page wire.StreamPage
			k := call{question: &wire.StreamList{Prefix: prefix, After: after}, op: "list", repeat: true}
			if err := c.ask(ctx, &k, wire.TypeStreamPage, &page); err != nil {
				yield(StreamInfo{}, err)
				return
			}
			for i := range page.Streams {
				if !yield(streamInfo(&page.Streams[i]), nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			after = page.Next
		}
	}
}

// learn asks the sidecar for what an append needs to know.
func (c *Client) learn(ctx context.Context, m missing, mustExist bool) error {
	switch {
	case m.session:
		return c.openSessionProducer(ctx)
	case m.producer != "":
		_, err := c.OpenProducer(ctx, m.producer)
		return err
	}
	info, err := c.openStream(ctx, opAppend, m.stream, !mustExist)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.streams[m.stream] == nil {
		c.streams[m.stream] = &streamRef{name: m.stream, id: info.ID}
	}
	c.mu.Unlock()
	return nil
}
