package stream

import (
	"bytes"
	"math"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
)

// Committer decides requests against a [Table] and writes what they change into a
// ringwal.Log. It owns both: nobody else changes the Table or reserves from the
// Log. Not safe for concurrent use.
//
// Every operation either changes the state and the log or neither, but for
// OpenSessionProducer, which may have made others expire when it returns
// ringwal.ErrWait: the same call goes on from there. Besides a [*Refusal] it returns
// the log's own errors: ringwal.ErrWait (drive the log on and ask again),
// ringwal.ErrFull (there is no room; nothing was used up), or the sticky error of a
// log that has stopped.
type Committer struct {
	table *Table
	log   *ringwal.Log

	geometry ringwal.Geometry
	decided  uint64
	staged   []*streamState // of the entries of the batch being checked
	last     lastBatch      // of a producer

	checkpoint   []byte // the newest encoded checkpoint; the log reads it while it writes it
	checkpointAt uint64 // head when it was handed over
	asked        bool   // a checkpoint was handed over in this run
}

// lastBatch is the newest batch of a producer that was written, and where it ends: the
// next one continues it where it lies there, in the same frame.
type lastBatch struct {
	producerPart
	end uint64
}

// NewCommitter goes on with the state that recovery left, on a started log.
func NewCommitter(t *Table, l *ringwal.Log) *Committer {
	return &Committer{table: t, log: l, geometry: l.Geometry(),
		staged: make([]*streamState, 0, MaxBatchRecords)}
}

// Table returns the state that requests are decided on. It is ahead of what is
// durable, and is to be read only.
func (c *Committer) Table() *Table { return c.table }

// DecidedAt returns the position that the durable position must have reached before
// an answer that was decided just now may leave: a success, a refusal, a stat, a
// list. What was recovered is durable, so it is 0 until something was committed.
func (c *Committer) DecidedAt() uint64 { return c.decided }

// Append commits a batch or refuses it whole, and answers one that was committed
// before from the producer's state. nowNS is the wall clock in ns since the Unix
// epoch. It does not allocate when it commits.
//
// Nothing is written before everything is checked: a refusal, ringwal.ErrWait and
// ringwal.ErrFull leave no trace, but for the logged refusal of a session producer
// (Refusal.Logged), which uses up the sequence.
func (c *Committer) Append(nowNS int64, b *Batch, r *Result) error {
	*r = Result{Placed: r.Placed[:0]}
	size, refused := c.checkRequest(b)
	if refused != nil {
		return refused
	}
	var p *producer
	if b.Producer != 0 {
		if p = c.table.producers.byID[b.Producer]; p == nil {
			return &Refusal{Err: unknownProducer(b.Producer)}
		}
		if answered, err := p.answer(b, r); answered {
			return err
		}
	}
	if refused := c.stage(b, nowNS); refused != nil {
		if p == nil || !p.id.IsSession() {
			return refused
		}
		return c.logRefusal(p, b, refused)
	}
	if p != nil {
		if refused := p.checkWindow(b.Acked, len(c.table.streams.touched)); refused != nil {
			return refused
		}
	}
	return c.commit(p, b, r, size)
}

// commit writes the staged batch, of size bytes in its longest form, and makes it the
// state.
func (c *Committer) commit(p *producer, b *Batch, r *Result, size int) error {
	flags, size := c.form(b, size)
	if !c.leavesRoomToTrim(ringwal.ClassAppend, size) {
		return ringwal.ErrFull
	}
	dst, position, err := c.log.Reserve(ringwal.ClassAppend, size, len(b.Entries))
	if err != nil {
		return err
	}
	touched := c.table.streams.touched
	for _, s := range touched {
		s.encodeNext = s.next
		r.Placed = append(r.Placed, Placed{Stream: s.id, First: s.next, Count: uint32(s.stagedNext - s.next)})
	}
	c.encode(dst, b, flags)
	c.table.commitStaged(p, b.Sequence, b.Acked, position)
	r.Position = position
	c.decided = position + uint64(size)
	if p != nil {
		r.LastSequence = p.last
		c.last = lastBatch{producerPart{b.Producer, b.Sequence, b.Acked}, c.decided}
	}
	return nil
}

// encode writes the staged batch.
func (c *Committer) encode(dst []byte, b *Batch, flags uint8) {
	if flags&flagLone != 0 {
		s := c.staged[0]
		putLone(dst, b, flags, s.next, s.stagedLast)
		return
	}
	at := putBatchStart(dst, b, flags)
	for i := range b.Entries {
		s := c.staged[i]
		at += putRecord(dst[at:], &b.Entries[i], s.encodeNext, s.stagedLast)
		s.encodeNext++
	}
}

// form returns the flags that the batch, of size bytes in its longest form, is written
// with, and the bytes that it then takes. Its record is a lone one, and it continues the
// last batch, wherever that can be.
func (c *Committer) form(b *Batch, size int) (flags uint8, bytes int) {
	if len(b.Entries) == 1 && len(b.Entries[0].Headers) == 0 && b.Entries[0].Stream <= math.MaxUint32 && c.staged[0].next < loneOffsets {
		flags, size = flagLone, size-(recordFixedBytes-loneFixedBytes)
	}
	if b.Producer == 0 {
		return flags, size
	}
	// No other item lies between, and no new frame begins: the position is the proof.
	end, left := c.log.OpenEnd()
	next := producerPart{b.Producer, b.Sequence - 1, b.Acked}
	if size-producerBytes <= left && end == c.last.end && next == c.last.producerPart {
		return flags | flagContinued, size - producerBytes
	}
	return flags | flagProducer, size
}

// checkRequest checks what no state decides and returns the size of the batch's item in
// its longest form, which decides alone whether it is too large.
func (c *Committer) checkRequest(b *Batch) (int, *Refusal) {
	switch {
	case len(b.Entries) == 0:
		return 0, &Refusal{Err: ErrBadRequest, Detail: "a batch without entries"}
	case len(b.Entries) > MaxBatchRecords:
		return 0, &Refusal{Err: ErrTooLarge, Actual: uint64(len(b.Entries)), Limit: MaxBatchRecords,
			Detail: "entries of a batch"}
	case b.Producer == 0 && (b.Sequence != 0 || b.Acked != 0):
		return 0, &Refusal{Err: ErrBadRequest, Actual: b.Sequence, Detail: "a sequence without a producer"}
	case b.Producer != 0 && b.Sequence == 0:
		return 0, &Refusal{Err: ErrBadRequest, Detail: "sequences start at 1"}
	case b.Acked > b.Sequence:
		return 0, &Refusal{Err: ErrBadRequest, Actual: b.Acked, Limit: b.Sequence,
			Detail: "acked lies beyond the sequence that carries it"}
	}
	size, limit := itemHeaderBytes, c.geometry.MaxItemBytes()
	if b.Producer != 0 {
		size += producerBytes
	}
	for i := range b.Entries {
		e := &b.Entries[i]
		if problem := headersProblem(e.Headers); problem != "" {
			return 0, &Refusal{Err: ErrBadHeaders, Entry: i, Actual: uint64(len(e.Headers)), Detail: problem}
		}
		if len(e.Token) > MaxTokenBytes {
			return 0, &Refusal{Err: ErrBadRequest, Entry: i, Actual: uint64(len(e.Token)), Limit: MaxTokenBytes,
				Detail: "length of a token"}
		}
		if size += recordBytes(e); size > limit {
			return 0, &Refusal{Err: ErrTooLarge, Entry: i, Actual: uint64(size), Limit: uint64(limit),
				Detail: "bytes of a batch, which has to fit one frame, up to this entry"}
		}
	}
	return size, nil
}

// stage checks every entry against the state as the entries before it leave it.
func (c *Committer) stage(b *Batch, nowNS int64) *Refusal {
	streams := &c.table.streams
	streams.begin()
	c.staged = c.staged[:0]
	var s *streamState
	for i := range b.Entries {
		e := &b.Entries[i]
		if s == nil || s.id != e.Stream {
			var err error
			if s, err = streams.find(e.Stream); err != nil {
				return &Refusal{Err: err, Entry: i, Actual: uint64(e.Stream)}
			}
			if s.stamp != streams.stamp {
				streams.touch(s)
				s.stagedLast = max(s.last, nowNS)
			}
		}
		switch {
		case s.sealed:
			return &Refusal{Err: ErrSealed, Entry: i, Actual: s.stagedNext}
		case !bytes.Equal(s.token, e.Token):
			return &Refusal{Err: ErrTokenMismatch, Entry: i, Actual: tokenSum(s.token)}
		case e.HasExpect && e.Expect != s.stagedNext:
			return &Refusal{Err: ErrOffsetMismatch, Entry: i, Actual: s.stagedNext}
		}
		s.stagedNext++
		c.staged = append(c.staged, s)
	}
	return nil
}

// tokenSum is what a refusal says about a token: its xxhash64, 0 for none.
func tokenSum(token []byte) uint64 {
	if len(token) == 0 {
		return 0
	}
	return xxhash.Sum64(token)
}

// answer decides what the producer's state alone decides; answered is false when the
// batch is a new one whose turn it is.
func (p *producer) answer(b *Batch, r *Result) (answered bool, err error) {
	switch {
	case !p.id.IsSession():
		if b.Sequence > p.last {
			return false, nil
		}
		r.Duplicate, r.LastSequence = true, p.last
		return true, nil
	case b.Sequence == p.last+1:
		return false, nil
	case b.Sequence > p.last:
		return true, &Refusal{Err: ErrOutOfSequence, Actual: p.last}
	case b.Sequence < p.base:
		return true, &Refusal{Err: ErrSequenceExpired, Actual: p.base}
	}
	return true, p.again(b.Sequence, r)
}

// checkWindow refuses what would need more slots than p's window has.
func (p *producer) checkWindow(acked uint64, slots int) *Refusal {
	if !p.id.IsSession() {
		return nil
	}
	if slots > int(p.window) {
		return &Refusal{Err: ErrTooLarge, Actual: uint64(slots), Limit: uint64(p.window),
			Detail: "streams of a batch, each of which takes a slot of its producer's window"}
	}
	if used := p.slotsAfter(acked); used+slots > int(p.window) {
		return &Refusal{Err: ErrWindowExceeded, Actual: uint64(used), Limit: uint64(p.window)}
	}
	return nil
}

// logRefusal writes the failed precondition of a session producer's batch to the
// log, so that the same answer is given again and the sequence is used up.
func (c *Committer) logRefusal(p *producer, b *Batch, refused *Refusal) error {
	if full := p.checkWindow(b.Acked, 1); full != nil {
		return full
	}
	it := Item{Kind: KindRefusal, Producer: b.Producer, Sequence: b.Sequence, Acked: b.Acked,
		Code: codeOf(refused.Err), Entry: refused.Entry, Actual: refused.Actual}
	if err := c.write(ringwal.ClassAppend, &it); err != nil {
		return err
	}
	refused.Logged, refused.Position = true, it.Position
	return refused
}

// write logs an item other than a batch, all of whose preconditions hold, and
// carries it out.
func (c *Committer) write(class ringwal.Class, it *Item) error {
	it.Bytes = align8(it.controlBytes())
	if !c.leavesRoomToTrim(class, it.Bytes) {
		return ringwal.ErrFull
	}
	dst, position, err := c.log.Reserve(class, it.Bytes, 0)
	if err != nil {
		return err
	}
	it.Position = position
	it.putControl(dst)
	c.table.mutate(it)
	c.decided = position + uint64(it.Bytes)
	return nil
}
