package stream

import (
	"bytes"
	"errors"

	"github.com/walsidecar/walsidecar/ringwal"
)

// CreateStream returns the stream of that name and makes it where there is none;
// created tells which. Refusals: ErrBadName, ErrTooManyStreams, ErrCheckpointFull.
func (c *Committer) CreateStream(nowNS int64, name string) (_ StreamInfo, created bool, err error) {
	streams := &c.table.streams
	if s := streams.findName(name); s != nil {
		return s.info(), false, nil
	}
	if problem := nameProblem(name); problem != "" {
		return StreamInfo{}, false, &Refusal{Err: ErrBadName, Actual: uint64(len(name)), Limit: MaxNameBytes, Detail: problem}
	}
	if n := len(streams.byName); n >= MaxStreams {
		return StreamInfo{}, false, &Refusal{Err: ErrTooManyStreams, Actual: uint64(n), Limit: MaxStreams}
	}
	if err := c.checkBound(streamBound(len(name))); err != nil {
		return StreamInfo{}, false, err
	}
	it := Item{Kind: KindStreamCreate, Stream: streams.nextID, Timestamp: nowNS, Name: []byte(name)}
	if err := c.write(ringwal.ClassControl, &it); err != nil {
		return StreamInfo{}, false, err
	}
	return streams.byID.get(it.Stream).info(), true, nil
}

// checkBound refuses what would make the state outgrow a checkpoint by n bytes.
func (c *Committer) checkBound(n uint64) error {
	if t := c.table; t.bound+n > t.maxBytes {
		return &Refusal{Err: ErrCheckpointFull, Actual: t.bound + n, Limit: t.maxBytes,
			Detail: "bytes of the state with what was asked for"}
	}
	return nil
}

// stream returns the stream or the refusal.
func (c *Committer) stream(id ID) (*streamState, error) {
	s, err := c.table.streams.find(id)
	if err != nil {
		return nil, &Refusal{Err: err, Actual: uint64(id)}
	}
	return s, nil
}

// Seal makes the stream take no more records. A sealed one stays as it is.
// Refusals: ErrStreamNotFound, ErrStreamDeleted.
func (c *Committer) Seal(id ID) (StreamInfo, error) {
	s, err := c.stream(id)
	if err != nil {
		return StreamInfo{}, err
	}
	if !s.sealed {
		if err := c.write(ringwal.ClassControl, &Item{Kind: KindStreamSeal, Stream: id}); err != nil {
			return StreamInfo{}, err
		}
	}
	return s.info(), nil
}

// SetToken sets the stream's token to token if it is old now; empty is none. From
// here on, in log order, every entry for the stream must carry it. Refusals:
// ErrStreamNotFound, ErrStreamDeleted, ErrTokenMismatch, ErrBadRequest.
func (c *Committer) SetToken(id ID, old, token []byte) (StreamInfo, error) {
	s, err := c.stream(id)
	if err != nil {
		return StreamInfo{}, err
	}
	if len(token) > MaxTokenBytes {
		return StreamInfo{}, &Refusal{Err: ErrBadRequest, Actual: uint64(len(token)), Limit: MaxTokenBytes, Detail: "length of a token"}
	}
	if !bytes.Equal(s.token, old) {
		return StreamInfo{}, &Refusal{Err: ErrTokenMismatch, Actual: tokenSum(s.token)}
	}
	if !bytes.Equal(old, token) {
		if err := c.write(ringwal.ClassControl, &Item{Kind: KindStreamToken, Stream: id, Token: token}); err != nil {
			return StreamInfo{}, err
		}
	}
	return s.info(), nil
}

// Trim lets go of the stream's records below offset before and returns the first
// offset that remains: min(before, next), or the present one where that is higher.
// Refusals: ErrStreamNotFound, ErrStreamDeleted.
//
// In a full log a trim may itself get ringwal.ErrFull. One that lets go of at least
// half of what the stream holds has room of its own; one that empties the stream, or
// Delete, has room that nothing else can take (see trimReserve).
func (c *Committer) Trim(id ID, before uint64) (first uint64, err error) {
	s, err := c.stream(id)
	if err != nil {
		return 0, err
	}
	first = min(before, s.next)
	if first <= s.first {
		return s.first, nil
	}
	it := Item{Kind: KindStreamTrim, Stream: id, First: first}
	if first < s.next {
		half := first-s.first >= s.next-first
		err = c.write(ringwal.ClassControl, &it)
		if !errors.Is(err, ringwal.ErrFull) || !half || c.log.Room(ringwal.ClassFree) < c.trimReserve()+freeingBlocks*uint64(c.geometry.BlockBytes) {
			return s.first, err
		}
	}
	if err := c.write(ringwal.ClassFree, &it); err != nil {
		return 0, err
	}
	return s.first, nil
}

// Delete removes the stream with its records; its id is never used again, its name
// may be. In a full log a stream without records has no room for it. Refusals:
// ErrStreamNotFound, ErrStreamDeleted.
func (c *Committer) Delete(id ID) error {
	s, err := c.stream(id)
	if err != nil {
		return err
	}
	class := ringwal.ClassFree
	if s.first == s.next {
		class = ringwal.ClassControl // frees nothing: not with the room of what does
	}
	return c.write(class, &Item{Kind: KindStreamDelete, Stream: id})
}

// freeingBlocks is what a trim or a delete takes at most: its frame, and the seal behind
// it where the log is idle then.
const freeingBlocks = 2

// trimReserve is what the log has to keep so that every stream that holds records
// can be emptied or deleted once, each by itself.
func (c *Committer) trimReserve() uint64 {
	need := uint64(c.table.streams.filled+1) * freeingBlocks * uint64(c.geometry.BlockBytes)
	return min(need, c.geometry.CapacityBytes/TrimReserveShare)
}

// leavesRoomToTrim reports whether n bytes of class leave enough to what frees
// space: the reserve for emptying every stream, and half as much again for trims of half
// a stream. The log itself keeps half of its control reserve for that, which is enough
// for a hundred streams or so; what more of them need is kept here.
func (c *Committer) leavesRoomToTrim(class ringwal.Class, n int) bool {
	extra := c.extraReserve()
	return extra == 0 || class == ringwal.ClassFree || c.log.Room(class) >= uint64(n)+extra
}

// extraReserve is what trims need beyond what the log keeps for them.
func (c *Committer) extraReserve() uint64 {
	need, kept := c.trimReserve()*3/2, c.geometry.ControlReserveBytes()/2
	return max(need, kept) - kept
}

// AppendRoom is how many more bytes of the log batches may take, frame headers and
// padding included.
func (c *Committer) AppendRoom() uint64 {
	room, extra := c.log.Room(ringwal.ClassAppend), c.extraReserve()
	return max(room, extra) - extra
}

// Stat returns the stream as the last decision left it. Refusals:
// ErrStreamNotFound, ErrStreamDeleted.
func (c *Committer) Stat(id ID) (StreamInfo, error) {
	s, err := c.stream(id)
	if err != nil {
		return StreamInfo{}, err
	}
	return s.info(), nil
}

// StatName is Stat by name. Refusal: ErrStreamNotFound.
func (c *Committer) StatName(name string) (StreamInfo, error) {
	s := c.table.streams.findName(name)
	if s == nil {
		return StreamInfo{}, &Refusal{Err: ErrStreamNotFound}
	}
	return s.info(), nil
}

// List is [Table.List].
func (c *Committer) List(prefix, cursor string, limit int, dst []StreamInfo) (_ []StreamInfo, more bool) {
	return c.table.List(prefix, cursor, limit, dst)
}
