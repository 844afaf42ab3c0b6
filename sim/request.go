package sim

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/walsidecar/walsidecar/stream"
)

type requestKind int

const (
	doAppend requestKind = iota
	doCreate
	doSeal
	doTrim
	doDelete
	doToken
	doStat
	doStatName
	doList
	doOpenSession
	doAttach
	doOpenNamed
	doGetNamed
	doRemoveNamed
)

var requestNames = [...]string{"append", "create", "seal", "trim", "delete", "token", "stat", "stat by name", "list",
	"open session producer", "attach", "open named producer", "get named producer", "remove named producer"}

// request is what a client asks.
type request struct {
	kind     requestKind
	stream   stream.ID
	name     string // of a stream, a producer, or a prefix
	cursor   string
	limit    int
	before   uint64
	old      []byte
	token    []byte
	producer stream.ProducerID
	sequence uint64
	acked    uint64
	window   uint32
	random   uint64
	entries  []write

	client *client       // whose session producer it uses
	probe  func(outcome) // told the answer when it leaves; may be nil
}

// write is one entry of a batch.
type write struct {
	stream    stream.ID
	payload   noise
	headers   []byte
	expect    uint64
	hasExpect bool
	token     []byte
}

func (q *request) String() string {
	switch q.kind {
	case doAppend:
		bytes := 0
		for _, e := range q.entries {
			bytes += int(e.payload.length)
		}
		return fmt.Sprintf("append of %d records, %d bytes, producer %x sequence %d acked %d", len(q.entries), bytes, uint64(q.producer), q.sequence, q.acked)
	case doTrim:
		return fmt.Sprintf("trim stream %d before %d", q.stream, q.before)
	case doSeal, doDelete, doToken, doStat:
		return fmt.Sprintf("%s, stream %d", requestNames[q.kind], q.stream)
	}
	name := q.name
	if len(name) > 20 {
		name = name[:20] + "…"
	}
	return fmt.Sprintf("%s %q", requestNames[q.kind], name)
}

// client is a session: it numbers the batches of its producer, and sends again what
// it has no answer for.
type client struct {
	producer stream.ProducerID   // 0: not open yet
	next     uint64              // sequence of its next batch
	sent     map[uint64]*request // by sequence, until answered and below acked
	answered map[uint64]bool
	acked    uint64 // everything below was answered
}

func newClient() *client {
	return &client{next: 1, acked: 1, sent: map[uint64]*request{}, answered: map[uint64]bool{}}
}

// hears that the batch with that sequence was answered.
func (c *client) hears(sequence uint64) {
	c.answered[sequence] = true
	for c.answered[c.acked] {
		delete(c.answered, c.acked)
		c.acked++
	}
}

// draw makes up the next request from the state as the model has it now.
func (w *World) draw() *request {
	p := w.profile
	switch w.pick(p.appends, p.creates, p.trims, p.seals, p.deletes, p.tokens, p.stats, p.producers, p.clients) {
	case 0:
		return w.drawAppend()
	case 1:
		return &request{kind: doCreate, name: w.drawName()}
	case 2:
		return w.drawTrim()
	case 3:
		return &request{kind: doSeal, stream: w.drawStream()}
	case 4:
		return &request{kind: doDelete, stream: w.drawStream()}
	case 5:
		return w.drawToken()
	case 6:
		return w.drawStat()
	case 7:
		return w.drawNamed()
	}
	return w.drawSession()
}

// drawStream is the id of a stream that there is, and now and then of one that is not.
func (w *World) drawStream() stream.ID {
	m := w.oracle.now
	if len(m.streams) == 0 || w.chance(0.03) {
		return stream.ID(w.rng.Uint64N(uint64(m.nextStream) + 2))
	}
	return m.streams[w.rng.IntN(len(m.streams))].id
}

func (w *World) drawName() string {
	if w.chance(0.02) {
		return []string{"", "/slash", " space", "two\nlines", strings.Repeat("x", 256)}[w.rng.IntN(5)]
	}
	if w.chance(0.05) {
		return fmt.Sprintf("%c%s", 'a'+rune(w.rng.IntN(4)), strings.Repeat("n", 254))
	}
	return fmt.Sprintf("%c", 'a'+rune(w.rng.IntN(w.profile.names)))
}

func (w *World) drawTrim() *request {
	id := w.drawStream()
	q := &request{kind: doTrim, stream: id, before: w.rng.Uint64N(4)}
	if s := w.oracle.now.stream(id); s != nil {
		switch w.rng.IntN(4) {
		case 0:
			q.before = s.next()
		case 1:
			q.before = s.next() + w.rng.Uint64N(3)
		default:
			q.before = s.first + w.rng.Uint64N(s.next()-s.first+1)
		}
	}
	return q
}

func (w *World) drawToken() *request {
	q := &request{kind: doToken, stream: w.drawStream()}
	if s := w.oracle.now.stream(q.stream); s != nil && !w.chance(0.1) {
		q.old = s.token
	} else {
		q.old = []byte("wrong")
	}
	if w.chance(0.5) {
		q.token = binary.LittleEndian.AppendUint32(make([]byte, w.rng.IntN(10)), w.rng.Uint32())
	}
	if w.chance(0.02) {
		q.token = make([]byte, stream.MaxTokenBytes+1)
	}
	return q
}

func (w *World) drawStat() *request {
	switch w.rng.IntN(3) {
	case 0:
		return &request{kind: doStat, stream: w.drawStream()}
	case 1:
		return &request{kind: doStatName, name: w.drawName()}
	}
	q := &request{kind: doList, limit: 1 + w.rng.IntN(6)}
	if w.chance(0.5) {
		q.name = string('a' + rune(w.rng.IntN(w.profile.names)))
	}
	if w.chance(0.5) {
		q.cursor = string('a' + rune(w.rng.IntN(w.profile.names)))
	}
	return q
}

func (w *World) drawNamed() *request {
	q := &request{kind: doOpenNamed, name: fmt.Sprintf("p%d", w.rng.IntN(4))}
	switch w.rng.IntN(8) {
	case 0:
		q.kind = doRemoveNamed
	case 1:
		q.name = w.drawName()
	case 2, 3:
		q.kind = doGetNamed
	}
	return q
}

// drawAppend is a batch without a producer or of a named one.
func (w *World) drawAppend() *request {
	q := &request{kind: doAppend}
	w.drawEntries(q)
	if named := w.oracle.now.named; len(named) > 0 && w.chance(0.3) {
		p := named[w.rng.IntN(len(named))]
		q.producer, q.sequence = p.id, p.last+w.rng.Uint64N(100)
		if w.chance(0.1) {
			q.producer = stream.ProducerID(w.rng.Uint64N(uint64(w.oracle.now.nextNamed) + 1))
		}
	}
	if w.chance(0.01) {
		q.sequence, q.acked = w.rng.Uint64N(3), w.rng.Uint64N(3)
	}
	return q
}

// drawSession is a request of one of the clients.
func (w *World) drawSession() *request {
	c := w.clients[w.rng.IntN(len(w.clients))]
	if c.producer == 0 || w.oracle.now.session(c.producer) == nil && w.chance(0.5) {
		*c = *newClient()
		q := &request{kind: doOpenSession, window: 1 + w.rng.Uint32N(w.profile.window), random: w.rng.Uint64(), client: c}
		if w.chance(0.02) {
			q.window = stream.MaxWindow + 1
		}
		return q
	}
	if w.chance(0.05) {
		return &request{kind: doAttach, producer: c.producer, client: c}
	}
	q := &request{kind: doAppend, producer: c.producer, acked: c.acked, client: c}
	p := w.oracle.now.session(c.producer)
	switch n := w.rng.IntN(10); {
	case n < 2: // again what it has no answer for, or even what it has one for
		q.sequence = 1 + w.rng.Uint64N(c.next)
	case n == 2: // one too far
		q.sequence = c.next + 1
	case n < 7 && p != nil && p.last() < c.next: // the oldest that the log does not know
		q.sequence = p.last() + 1
	default:
		q.sequence = c.next
	}
	if old := c.sent[q.sequence]; old != nil {
		q.entries = old.entries
	} else {
		w.drawEntries(q)
		c.sent[q.sequence] = q
	}
	q.acked = min(q.acked, q.sequence)
	if w.chance(0.2) {
		q.acked = 0
	}
	if q.sequence == c.next {
		c.next++
	}
	return q
}

// drawEntries fills a batch: mostly a few small records, now and then one that ends
// exactly where a frame or the ring does, or is a byte too long.
func (w *World) drawEntries(q *request) {
	n := 1
	if w.chance(0.3) {
		n += w.rng.IntN(8)
	}
	if w.chance(0.002) {
		n = 0
	}
	room := w.profile.geometry.MaxItemBytes() - 8 - 24
	for range n {
		e := write{stream: w.drawStream()}
		if s := w.oracle.now.stream(e.stream); s != nil {
			e.token = s.token
			e.hasExpect = w.chance(0.2)
			e.expect = s.next()
			for _, before := range q.entries {
				if before.stream == e.stream {
					e.expect++
				}
			}
		}
		if w.chance(0.02) {
			e.hasExpect, e.expect = true, e.expect+1
		}
		if w.chance(0.01) {
			e.token = []byte("wrong")
		}
		if w.chance(0.1) {
			e.headers = []byte{1, 0, 1, 0, byte(w.rng.IntN(5)), 0, 0, 0, 'k'}
			e.headers = append(e.headers, "value"[:e.headers[4]]...)
		}
		bytes := w.drawSize(room - 40 - len(e.headers))
		room -= align(40 + len(e.headers) + bytes)
		e.payload = newNoise(w.rng, bytes)
		q.entries = append(q.entries, e)
		if room < 64 {
			break
		}
	}
}

// drawSize is the length of a payload that may have at most room bytes.
func (w *World) drawSize(room int) int {
	size := 0
	switch w.pick(w.profile.small, w.profile.medium, w.profile.large, 1, 2) {
	case 0:
		size = w.rng.IntN(200)
	case 1:
		size = w.rng.IntN(6000)
	case 2:
		size = w.rng.IntN(room + 1)
	case 3:
		size = room + w.rng.IntN(3) - 1 // the producer part may not be there
	case 4:
		size = w.toRingEnd() - w.rng.IntN(2)*8
	}
	return max(0, min(size, room+1))
}

// toRingEnd is the payload that would make the open frame, or the next one, end
// exactly at the ring's end.
func (w *World) toRingEnd() int {
	log := w.host.log
	g := log.Geometry()
	head := log.Head()
	gap := int(g.CapacityBytes - head%g.CapacityBytes)
	return gap - 128 - 8 - 40
}
