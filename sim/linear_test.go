package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// What a client does with one stream.
type streamOperation struct {
	stream    int // 0, 1, …
	kind      operationKind
	record    uint64 // of an append: hash of its payload
	hasExpect bool
	expect    uint64
}

type operationKind int

const (
	opAppend operationKind = iota
	opStat                 // the next offset, as the commit loop has it
	opRead                 // every record, as a reader sees them
)

// streamAnswer is what the client heard; the zero value is an outcome that it never
// heard of.
type streamAnswer struct {
	known    bool
	appended bool
	mismatch bool
	next     uint64 // offset of the append, or the next offset
	content  uint64 // of a read: hash over all records
}

// streamState is a stream with that many records.
type streamState struct{ next, content uint64 }

func (s streamState) append(record uint64) streamState {
	return streamState{s.next + 1, xxhash.Sum64(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, s.content), record))}
}

// step says which states an operation can lead to.
func step(state, input, output any) []any {
	s, in, out := state.(streamState), input.(streamOperation), output.(streamAnswer)
	refused := in.hasExpect && in.expect != s.next
	switch {
	case !out.known && in.kind == opAppend && !refused:
		return []any{s, s.append(in.record)}
	case !out.known:
		return []any{s}
	case in.kind == opStat && out.next == s.next, in.kind == opRead && out.next == s.next && out.content == s.content:
		return []any{s}
	case in.kind != opAppend:
		return nil
	case out.mismatch && refused && out.next == s.next:
		return []any{s}
	case out.appended && !refused && out.next == s.next:
		return []any{s.append(in.record)}
	case !out.mismatch && !out.appended: // the log was full
		return []any{s}
	}
	return nil
}

var streamModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, recordedStreams)
		for _, o := range history {
			s := o.Input.(streamOperation).stream
			parts[s] = append(parts[s], o)
		}
		return parts
	},
	Init:              func() []any { return []any{streamState{}} },
	Step:              step,
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}).ToModel()

const (
	recordedStreams = 2
	recordedClients = 6
	recordedMost    = 240 // operations of a history
)

// recorder is a set of clients with one operation each on its way, and the history of
// what they asked and heard. Its clock counts events.
type recorder struct {
	w       *World
	clock   int64
	history []porcupine.Operation
	busy    [recordedClients]bool
	open    []int // operations without an answer, of the host that is up
	host    int   // number of that host
	ids     [recordedStreams]stream.ID
}

// next is what some client asks next, nil when all of them wait.
func (r *recorder) next() *request {
	r.hostUp()
	for i, id := range r.ids {
		if id == 0 {
			return &request{kind: doCreate, name: fmt.Sprintf("recorded%d", i), probe: func(got outcome) { r.ids[i] = got.info.ID }}
		}
	}
	client := r.w.rng.IntN(recordedClients)
	if r.busy[client] || len(r.history) >= recordedMost {
		return nil
	}
	in := streamOperation{stream: r.w.rng.IntN(recordedStreams), kind: operationKind(r.w.pick(6, 2, 2))}
	if in.kind == opRead {
		r.read(client, in)
		return nil
	}
	q := &request{kind: doStat, stream: r.ids[in.stream]}
	if in.kind == opAppend {
		payload := newNoise(r.w.rng, 16+r.w.rng.IntN(3000))
		in.record, in.hasExpect = xxhash.Sum64(payload.bytes()), r.w.chance(0.5)
		if s := r.w.oracle.now.stream(r.ids[in.stream]); s != nil {
			in.expect = s.next() - min(s.next(), r.w.rng.Uint64N(2))
		}
		q = &request{kind: doAppend, entries: []write{{stream: q.stream, payload: payload, hasExpect: in.hasExpect, expect: in.expect}}}
	}
	place := r.call(client, in)
	q.probe = func(got outcome) { r.hears(place, got) }
	return q
}

func (r *recorder) call(client int, in streamOperation) (place int) {
	r.clock++
	r.busy[client] = true
	r.history = append(r.history, porcupine.Operation{ClientId: client, Input: in, Call: r.clock, Output: streamAnswer{}, Return: math.MaxInt64})
	r.open = append(r.open, len(r.history)-1)
	return len(r.history) - 1
}

func (r *recorder) returns(place int, out streamAnswer) {
	r.clock++
	o := &r.history[place]
	o.Output, o.Return = out, r.clock
	r.busy[o.ClientId] = false
}

func (r *recorder) hears(place int, got outcome) {
	out := streamAnswer{known: true}
	switch {
	case errors.Is(got.err, stream.ErrOffsetMismatch):
		out.mismatch, out.next = true, got.actual
	case errors.Is(got.err, ringwal.ErrFull):
	case got.err != nil:
		r.w.fail("P11", "a recorded operation got %v", got.err)
	case len(got.placed) == 1:
		out.appended, out.next = true, got.placed[0].First
	default:
		out.next = got.info.Next
	}
	r.returns(place, out)
}

// hostUp ends what the host before never answered: it happened or it did not, and
// what it did has been there since this host came up.
func (r *recorder) hostUp() {
	if r.host == r.w.hosts {
		return
	}
	r.host = r.w.hosts
	for _, place := range r.open {
		if r.history[place].Return == math.MaxInt64 {
			r.returns(place, streamAnswer{})
		}
	}
	r.open = nil
}

// read reads all of a stream's durable records at once.
func (r *recorder) read(client int, in streamOperation) {
	h := r.w.host
	place := r.call(client, in)
	info, err := h.lookup(r.ids[in.stream])
	if err != nil {
		r.w.fail("P11", "a reader lost stream %d: %v", in.stream, err)
	}
	var s streamState
	if info.Next > 0 {
		records, err := h.records(info.ID, 0, int(info.Next))
		if err != nil {
			h.unreadable(err)
			r.returns(place, streamAnswer{})
			return
		}
		if len(records) != int(info.Next) {
			r.w.fail("P2", "%d of %d records could be read", len(records), info.Next)
		}
		for _, rec := range records {
			s = s.append(xxhash.Sum64(rec.Payload))
		}
	}
	r.returns(place, streamAnswer{known: true, next: s.next, content: s.content})
}

// lookup is a stream as readers see it.
func (h *host) lookup(id stream.ID) (stream.StreamInfo, error) {
	if h.reader != nil {
		return h.reader.Lookup(id)
	}
	return h.directory.Lookup(id)
}

// recordHistory plays a history of concurrent clients over crashes.
func recordHistory(seed uint64) (history []porcupine.Operation, crashes int, failure *Failure) {
	w := newWorld(Options{Seed: seed, Kind: []Kind{Honest, Late, Failing}[seed%3], adjust: func(p *profile) { p.steps, p.store = 1500, false }}, false)
	defer w.close()
	defer func() {
		if f, ok := recover().(*Failure); ok {
			f.Seed, f.Kind, f.Step, failure = seed, w.profile.kind, w.step, f
		}
	}()
	r := &recorder{w: w}
	w.source = r.next
	w.play()
	return r.history, w.stats.Crashes, nil
}

// TestP11_AnswersAndReadsAreLinearizableOverCrashes: appends, conditions, stats and
// reads of several clients at once are, for each stream, as if done one after the
// other, each between its call and its answer. One without an answer happened or did
// not, and that is settled when the next host is up.
func TestP11_AnswersAndReadsAreLinearizableOverCrashes(t *testing.T) {
	first, n := uint64(1), uint64(300)
	if seed := oneSeed(t); seed != 0 {
		first, n = seed, 1
	}
	if testing.Short() {
		n = min(n, 50)
	}
	operations, crashes, unheard := 0, 0, 0
	for seed := first; seed < first+n; seed++ {
		history, crashed, failure := recordHistory(seed)
		if failure != nil {
			t.Fatalf("%v\nreplay with: go test ./sim -run '^%s$' -seed %d", failure, t.Name(), seed)
		}
		if got := porcupine.CheckOperationsTimeout(streamModel, history, time.Minute); got != porcupine.Ok {
			t.Fatalf("seed %d: the history is not linearizable: %s", seed, got)
		}
		operations, crashes = operations+len(history), crashes+crashed
		for _, o := range history {
			if !o.Output.(streamAnswer).known {
				unheard++
			}
		}
	}
	t.Logf("%d operations, %d crashes, %d operations without an answer", operations, crashes, unheard)
	if n > 1 && (crashes < 100 || unheard < 100) {
		t.Error("too little happened")
	}
}

// TestTheCheckOfLinearizabilityCanFail: a history with one wrong answer in it is
// refused.
func TestTheCheckOfLinearizabilityCanFail(t *testing.T) {
	history, _, failure := recordHistory(1)
	if failure != nil {
		t.Fatal(failure)
	}
	wrong := 0
	for i := range history {
		out := history[i].Output.(streamAnswer)
		if !out.known || !out.appended && !out.mismatch && history[i].Input.(streamOperation).kind == opAppend {
			continue
		}
		changed := append([]porcupine.Operation(nil), history...)
		out.next += 1000
		changed[i].Output = out
		if porcupine.CheckOperationsTimeout(streamModel, changed, time.Minute) == porcupine.Ok {
			t.Errorf("operation %d with an offset far too high was taken: %+v", i, changed[i])
		}
		wrong++
	}
	if wrong < 20 {
		t.Errorf("only %d answers to change", wrong)
	}
}
