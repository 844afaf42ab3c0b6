package upload

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/walsidecar/walsidecar/stream"
)

const (
	// scanSpanBytes is the most that one request of a scan reads, but for a larger block.
	scanSpanBytes = 4 << 20
	// scanAhead is the most requests that a scan has on their way, and the most objects
	// whose indexes it reads ahead.
	scanAhead = 4
	// recordOverheadBytes is what a record counts for beside payload and headers.
	recordOverheadBytes = 64
	// maxReplans is how often a read looks for an object anew, that was deleted under it,
	// without getting anywhere.
	maxReplans = 3
)

// Scan reads the records of one stream. It begins with a request for what was asked,
// and reads the further ahead the longer it goes on: then it holds up to
// (scanAhead+3) × scanSpanBytes, 28 MiB, beside maxBytes, and scanAhead indexes of objects. One goroutine; Close
// frees its memory and ends its requests.
type Scan struct {
	a      *Archive
	id     stream.ID
	next   uint64
	to     uint64
	ctx    context.Context // of its own requests
	cancel context.CancelFunc

	v        *view // nil: to be planned
	group    int   // the next one to look at
	segments []*segment
	spans    []*span
	ahead    int // requests to have on their way
	bytes    int // of each
	replans  int

	current *span // of block
	at      int   // the next block of current
	block   Block
	record  int // the next one of block
	records []Record
	free    [][]byte // memory for blocks, not in use
	lent    [][]byte // memory that the records of the last call, or block, refer to
	bodies  [][]byte // memory for spans, not in use
	spent   [][]byte // memory of spans that the records of the last call refer to
}

// segment is an object that may hold records of the scan.
type segment struct {
	group *Group
	ref   *ObjectRef
	done  chan struct{}
	index *ObjectIndex
	err   error

	placed    bool
	block, to int // blocks that are yet to be planned
}

// span is a row of blocks that one request reads.
type span struct {
	ref    *ObjectRef
	blocks []BlockInfo
	done   chan struct{}
	body   []byte // as stored; of a single block uncompressed
	err    error
}

// Read returns the records [from, to) of a stream that are in the store.
func (a *Archive) Read(id stream.ID, from, to uint64) *Scan {
	ctx, cancel := context.WithCancel(context.Background())
	return &Scan{a: a, id: id, next: from, to: to, ctx: ctx, cancel: cancel, ahead: 1}
}

// Close ends the scan; what it returned is no longer valid.
func (s *Scan) Close() { s.cancel() }

// NextOffset is that of the record that Next would return next, or one before it.
func (s *Scan) NextOffset() uint64 { return s.next }

// Next returns the records that follow, in order, about maxBytes of them and at least
// one; io.EOF where the store has no more. The first one's offset may be above
// NextOffset: what lies between was trimmed, and is not in the store any more. They are
// valid until the next call. Errors: ErrDamagedObject, ErrMissingObject, those of the
// store and of ctx; the scan may be asked again after any.
func (s *Scan) Next(ctx context.Context, maxBytes int) ([]Record, error) {
	s.records = s.records[:0]
	s.reuse()
	bytes := 0
	for s.next < s.to {
		if s.record == s.block.Count {
			if len(s.records) > 0 && !s.ready() {
				return s.records, nil
			}
			if err := s.advance(ctx, maxBytes-bytes); err != nil {
				if len(s.records) > 0 {
					return s.records, nil // the error comes again
				}
				return nil, err
			}
		}
		var r Record
		if err := s.block.Record(s.record, &r); err != nil {
			if err = s.damaged(err); len(s.records) > 0 {
				return s.records, nil // the error comes again
			}
			return nil, err
		}
		size := recordOverheadBytes + len(r.Headers) + len(r.Payload)
		if len(s.records) > 0 && bytes+size > maxBytes || r.Offset >= s.to {
			break
		}
		s.records = append(s.records, r)
		s.record++
		s.next, s.replans = r.Offset+1, 0
		bytes += size
	}
	if len(s.records) == 0 {
		return nil, io.EOF
	}
	return s.records, nil
}

// damaged is err about the block at hand, which is to be read again if the scan goes on.
func (s *Scan) damaged(err error) error {
	key := s.current.ref.ID.Key(s.a.node, KindData)
	s.restart()
	return inObject(key, err)
}

// restart makes the next call plan anew.
func (s *Scan) restart() {
	s.v, s.group, s.segments, s.spans = nil, 0, nil, nil
	s.current, s.at, s.block, s.record = nil, 0, Block{heaps: s.block.heaps}, 0
}

// reuse takes back the memory of records that are no longer valid.
func (s *Scan) reuse() {
	s.bodies, s.spent = append(s.bodies, s.spent...), s.spent[:0]
	s.bodies = s.bodies[max(0, len(s.bodies)-scanAhead):]
	keep := s.lent[:0]
	for i, b := range s.lent {
		if i == len(s.lent)-1 && s.record < s.block.Count {
			keep = append(keep, b)
			break
		}
		if len(s.free) < scanSpanBytes/BlockBytes {
			s.free = append(s.free, b)
		}
	}
	s.lent = keep
}

// ready reports whether the next block is in memory.
func (s *Scan) ready() bool {
	if s.current != nil && s.at < len(s.current.blocks) {
		return true
	}
	if len(s.spans) == 0 {
		return false
	}
	select {
	case <-s.spans[0].done:
		return true
	default:
		return false
	}
}

// advance makes block the next one, with record at next. io.EOF: there is none.
func (s *Scan) advance(ctx context.Context, maxBytes int) error {
	for {
		err := s.step(ctx, maxBytes)
		if !errors.Is(err, ErrMissingObject) {
			return err
		}
		// Deleted under the scan, or missing: the newest manifest tells.
		s.restart()
		if s.replans++; s.replans > maxReplans {
			return err
		}
		if err := s.a.refresh(ctx); err != nil {
			return err
		}
	}
}

func (s *Scan) step(ctx context.Context, maxBytes int) error {
	for {
		if s.current == nil || s.at == len(s.current.blocks) {
			if err := s.nextSpan(ctx, maxBytes); err != nil {
				return err
			}
		}
		info := &s.current.blocks[s.at]
		raw := s.current.body
		if len(s.current.blocks) > 1 {
			var err error
			from := info.Place - s.current.blocks[0].Place
			if raw, err = s.unpack(info, raw[from:][:info.StoredBytes:info.StoredBytes]); err != nil {
				return s.damaged(err)
			}
		}
		if err := s.block.decode(info, raw); err != nil {
			return s.damaged(err)
		}
		s.at++
		s.record = int(max(s.next, s.block.First) - s.block.First)
		if s.record < s.block.Count {
			return nil
		}
		s.record = s.block.Count
	}
}

// unpack checks and uncompresses a block.
func (s *Scan) unpack(info *BlockInfo, stored []byte) ([]byte, error) {
	if info.StoredBytes == info.RawBytes {
		return info.raw("block", stored, nil)
	}
	raw, err := info.raw("block", stored, s.memory(info))
	if err == nil {
		s.lent = append(s.lent, raw)
	}
	return raw, err
}

// memory is what a block may be uncompressed into.
func (s *Scan) memory(info *BlockInfo) []byte {
	for i, b := range s.free {
		if cap(b) >= int(info.RawBytes) {
			s.free[i] = s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
			return b[:0]
		}
	}
	return make([]byte, 0, max(BlockBytes, int(info.RawBytes)))
}

// nextSpan makes current the next span, and asks for those behind it.
func (s *Scan) nextSpan(ctx context.Context, maxBytes int) error {
	if s.v == nil {
		if err := s.plan(ctx, maxBytes); err != nil {
			return err
		}
	}
	if s.current != nil && len(s.current.blocks) > 1 {
		s.spent = append(s.spent, s.current.body)
	}
	if s.current != nil { // a second one: it is a scan, which reads ahead, twice as far each time
		s.bytes = min(2*s.bytes, scanSpanBytes)
		s.ahead = min(s.ahead+1, scanAhead)
	}
	s.current, s.block.Count, s.record = nil, 0, 0
	if err := s.request(ctx); err != nil {
		return err
	}
	if len(s.spans) == 0 {
		s.restart()
		return io.EOF
	}
	first := s.spans[0]
	select {
	case <-first.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.spans = s.spans[1:]
	if first.err != nil {
		s.restart()
		return first.err
	}
	s.current, s.at = first, 0
	if s.ahead > 1 {
		return s.request(ctx)
	}
	return nil
}

// plan finds where the scan begins.
func (s *Scan) plan(ctx context.Context, maxBytes int) error {
	v, err := s.a.look(ctx)
	if err != nil {
		return err
	}
	s.group, err = s.a.seek(ctx, v, s.id, func(r *Range) bool { return r.End() > s.next })
	if err != nil {
		return err
	}
	s.v, s.bytes, s.ahead = v, max(1, min(maxBytes, scanSpanBytes)), 1
	return nil
}

// request asks for spans until enough are on their way. It waits for an index only
// where no span is.
func (s *Scan) request(ctx context.Context) error {
	for len(s.spans) < s.ahead {
		s.lookAhead()
		if len(s.segments) == 0 {
			return nil
		}
		g := s.segments[0]
		select {
		case <-g.done:
		default:
			if len(s.spans) > 0 {
				return nil
			}
			select {
			case <-g.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if g.err != nil {
			if len(s.spans) > 0 {
				return nil // first what comes before it
			}
			err := g.err
			s.restart()
			return err
		}
		if !s.cut(g) {
			s.segments = s.segments[1:]
		}
	}
	return nil
}

// lookAhead begins to read the indexes of the objects that come next.
func (s *Scan) lookAhead() {
	for ; len(s.segments) < s.ahead && s.group < s.v.groups(); s.group++ {
		g := s.v.group(s.group)
		for i := range g.Objects {
			ref := &g.Objects[i]
			if r, found := ref.Find(s.id); ref.Streams == 0 || ref.Ranges != nil && (!found || r.End() <= s.next || r.First >= s.to) {
				continue
			}
			seg := &segment{group: g, ref: ref, done: make(chan struct{})}
			s.segments = append(s.segments, seg)
			go func() {
				defer close(seg.done)
				seg.index, seg.err = s.a.index(s.ctx, seg.group, seg.ref)
			}()
		}
	}
}

// cut asks for the next span of a segment; false: it has no more.
func (s *Scan) cut(g *segment) bool {
	if !g.placed {
		g.placed = true
		g.block, g.to = g.index.Find(s.id)
		g.block = g.index.seek(g.block, g.to, s.next)
	}
	p := &span{ref: g.ref, done: make(chan struct{})}
	for n := 0; g.block < g.to && (n == 0 || n < s.bytes); g.block++ {
		info := g.index.Block(g.block)
		if info.First >= s.to || n > 0 && n+int(info.StoredBytes) > scanSpanBytes {
			break
		}
		info.Stream = s.id
		p.blocks = append(p.blocks, info)
		n += int(info.StoredBytes)
	}
	if len(p.blocks) == 0 {
		return false
	}
	s.spans = append(s.spans, p)
	var memory []byte
	if n := len(s.bodies); n > 0 && len(p.blocks) > 1 {
		memory, s.bodies = s.bodies[n-1], s.bodies[:n-1]
	}
	go func() {
		defer close(p.done)
		p.body, p.err = s.a.span(s.ctx, p, memory)
	}()
	return true
}

// span reads a row of blocks: one through the cache, more past it, as they are stored,
// into memory where they fit.
func (a *Archive) span(ctx context.Context, p *span, memory []byte) ([]byte, error) {
	if len(p.blocks) == 1 {
		return a.block(ctx, p.ref.ID, &p.blocks[0])
	}
	from, to := p.blocks[0].Place, p.blocks[len(p.blocks)-1].End()
	if uint64(cap(memory)) < to-from {
		memory = make([]byte, to-from)
	}
	memory = memory[:to-from]
	return memory, a.fetchInto(ctx, p.ref.ID.Key(a.node, KindData), from, memory)
}

// Records calls visit with the records [from, to) of a stream that are in the store,
// each valid during the call. Errors: those of Scan.Next, visit's.
func (a *Archive) Records(ctx context.Context, id stream.ID, from, to uint64, visit func(*Record) error) error {
	s := a.Read(id, from, to)
	defer s.Close()
	for {
		records, err := s.Next(ctx, scanSpanBytes)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stream %d, offset %d: %w", id, s.NextOffset(), err)
		}
		for i := range records {
			if err := visit(&records[i]); err != nil {
				return err
			}
		}
	}
}
