package walsidecar

import (
	"github.com/walsidecar/walsidecar/wire"
)

// fakeRead is an open read of a fakeSidecar: at most batch records a message, as
// far as the credit goes.
type fakeRead struct {
	stream uint64 // 0: a replay
	at     int    // index into the stream's records, or the log's
	left   uint64 // records; 0: no limit
	follow bool
	credit int64
	caught bool // up, and said so
	named  map[uint64]bool
}

// fakeReadRecords is how many records a message has at most.
const fakeReadRecords = 3

func (c *fakeConn) serveRead(h wire.Header, body []byte) {
	switch h.Type {
	case wire.TypeRead:
		var m wire.Read
		must(m.Decode(h, body))
		r := &fakeRead{stream: m.Stream, left: m.MaxRecords, follow: m.Follow, credit: int64(m.Credit)}
		s := c.f.log.stream(m.Stream)
		switch m.From {
		case wire.FromOffset:
			r.at = int(m.Value)
		case wire.FromTime:
			for r.at < len(s.records) && s.records[r.at].TimestampNS < int64(m.Value) {
				r.at++
			}
		case wire.FromLast:
			r.at = max(0, len(s.records)-int(m.Value))
		}
		if first := int(s.FirstOffset); r.at < first {
			c.out = (&wire.Gap{Kind: wire.GapTrimmed, Stream: m.Stream, From: uint64(r.at), To: uint64(first)}).AppendTo(c.out, h.Request)
			r.at = first
		}
		c.reads[h.Request] = r
	case wire.TypeReplay:
		var m wire.Replay
		must(m.Decode(h, body))
		r := &fakeRead{left: m.MaxRecords, follow: m.Follow, credit: int64(m.Credit), named: map[uint64]bool{}}
		for r.at < len(c.f.log.records) && c.f.log.records[r.at].Position < m.Position {
			r.at++
		}
		c.reads[h.Request] = r
	case wire.TypeCredit:
		var m wire.Credit
		must(m.Decode(h, body))
		if r := c.reads[h.Request]; r != nil {
			r.credit += int64(m.Bytes)
		}
	case wire.TypeCancel:
		if c.reads[h.Request] != nil {
			c.endRead(h.Request)
		}
	}
}

func (c *fakeConn) endRead(request uint64) {
	delete(c.reads, request)
	c.out = (&wire.End{Durable: c.f.log.position}).AppendTo(c.out, request)
}

// serveReads sends what the open reads may have.
func (c *fakeConn) serveReads() {
	c.f.log.mu.Lock()
	defer c.f.log.mu.Unlock()
	for _, request := range sortedKeys(c.reads) {
		if c.f.onRead != nil && c.f.onRead(c, request) {
			continue
		}
		c.advance(request, c.reads[request])
	}
}

func (c *fakeConn) advance(request uint64, r *fakeRead) {
	source := c.f.log.records
	s := c.f.log.stream(r.stream)
	if s != nil {
		source = s.records
	}
	for r.at < len(source) {
		if r.credit <= 0 {
			return
		}
		end := min(len(source), r.at+fakeReadRecords)
		if r.left > 0 {
			end = min(end, r.at+int(r.left))
		}
		before := len(c.out)
		c.out = c.records(request, r, source[r.at:end])
		r.credit -= int64(len(c.out) - before)
		r.caught = false
		if r.left > 0 {
			if r.left -= uint64(end - r.at); r.left == 0 {
				c.endRead(request)
				return
			}
		}
		r.at = end
	}
	switch {
	case s != nil && s.Sealed:
		c.out = (&wire.Gap{Kind: wire.GapSealed, Stream: r.stream, From: s.NextOffset, To: s.NextOffset}).AppendTo(c.out, request)
		c.endRead(request)
	case s != nil && s.Deleted:
		c.out = (&wire.Gap{Kind: wire.GapDeleted, Stream: r.stream, From: s.FirstOffset, To: s.NextOffset}).AppendTo(c.out, request)
		c.endRead(request)
	case !r.follow:
		c.endRead(request)
	case !r.caught:
		r.caught = true
		c.out = (&wire.CaughtUp{Durable: c.f.log.position, Next: uint64(r.at)}).AppendTo(c.out, request)
	}
}

func (c *fakeConn) records(request uint64, r *fakeRead, records []wire.Record) []byte {
	if r.stream != 0 {
		return (&wire.Records{Records: records}).AppendTo(c.out, request)
	}
	m := wire.ReplayBatches{Records: records}
	for i := range records {
		if id := records[i].Stream; !r.named[id] {
			r.named[id] = true
			m.Names = append(m.Names, wire.StreamName{Stream: id, Name: c.f.log.stream(id).Name})
		}
	}
	return m.AppendTo(c.out, request)
}
