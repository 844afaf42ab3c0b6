package stream

import "fmt"

// Table is the state of one log: its streams and producers, as of the last item
// that was applied or committed. It grows with their number alone, never with the
// log. One owner; not safe for concurrent use.
type Table struct {
	streams   streamSet
	producers producerSet

	maxBytes     uint64 // what a checkpoint may take
	bound        uint64 // what one takes at most, whatever appends, seals, trims and tokens follow
	sessionBound uint64 // the part of bound that is session producers
}

// NewTable returns the state of an empty log. checkpointMaxBytes is the log's
// CheckpointMaxBytes: the encoded state may never outgrow it.
func NewTable(checkpointMaxBytes uint64) *Table {
	return &Table{streams: newStreamSet(), producers: newProducerSet(),
		maxBytes: checkpointMaxBytes, bound: checkpointHeaderBytes}
}

// EncodedBound returns an upper bound of the bytes that a checkpoint of the state
// takes, now and after any number of appends, seals, trims and tokens: only a new
// stream or producer raises it.
func (t *Table) EncodedBound() uint64 { return t.bound }

// Streams returns the number of streams.
func (t *Table) Streams() int { return len(t.streams.byName) }

// Producers returns the number of named and of session producers.
func (t *Table) Producers() (named, session int) {
	return len(t.producers.named), len(t.producers.sessions)
}

// List appends to dst, in byte order of their names, up to limit streams (at most
// [MaxListed]) whose names start with prefix and sort after cursor. With more, others
// follow, and the name of the last one is the cursor that goes on.
func (t *Table) List(prefix, cursor string, limit int, dst []StreamInfo) (_ []StreamInfo, more bool) {
	return t.streams.list(prefix, cursor, min(limit, MaxListed), dst)
}

// unknownProducer is what an id without a producer means.
func unknownProducer(id ProducerID) error {
	if id.IsSession() {
		return ErrProducerExpired
	}
	return ErrProducerNotFound
}

// Apply changes the state by an item that was read from the log, in log order. An
// item that contradicts the state is not applied; the error wraps [ErrDamaged].
func (t *Table) Apply(it *Item) error {
	if problem := t.check(it); problem != "" {
		return fmt.Errorf("%w: %v item at position %d: %s", ErrDamaged, it.Kind, it.Position, problem)
	}
	t.mutate(it)
	return nil
}

// check returns what in it contradicts the state, "" if nothing. A batch is staged.
func (t *Table) check(it *Item) string {
	switch it.Kind {
	case KindBatch:
		if problem := t.streams.stageItem(it); problem != "" || it.Producer == 0 {
			return problem
		}
		return t.producers.checkSequence(it, len(t.streams.touched))
	case KindRefusal:
		return t.producers.checkSequence(it, 1)
	case KindSessionOpen, KindNamedCreate, KindProducerRemove, KindProducerExpired:
		return t.producers.checkItem(it)
	}
	return t.streams.checkItem(it)
}

// mutate carries out an item that passed check. Recovery and commit share it.
func (t *Table) mutate(it *Item) {
	switch it.Kind {
	case KindBatch:
		t.commitStaged(t.producers.byID[it.Producer], it.Sequence, it.Acked, it.Position)
	case KindRefusal:
		t.producers.byID[it.Producer].commitRefusal(it)
	case KindStreamCreate:
		t.streams.mutate(it)
		t.bound += streamBound(len(it.Name))
	case KindStreamDelete:
		t.bound -= streamBound(len(t.streams.byID.get(it.Stream).name))
		t.streams.mutate(it)
	case KindSessionOpen:
		t.producers.mutate(it)
		t.addSessionBound(it.Window, 1)
	case KindProducerExpired:
		t.addSessionBound(t.producers.byID[it.Producer].window, -1)
		t.producers.mutate(it)
	case KindNamedCreate:
		t.producers.mutate(it)
		t.bound += namedBound(len(it.Name))
	case KindProducerRemove:
		t.bound -= namedBound(len(t.producers.byID[it.Producer].name))
		t.producers.mutate(it)
	default:
		t.streams.mutate(it)
	}
}

func (t *Table) addSessionBound(window uint32, sign int64) {
	change := uint64(sign * int64(sessionBound(window)))
	t.bound += change
	t.sessionBound += change
}

// commitStaged makes the staged batch the state; p is its producer or nil.
func (t *Table) commitStaged(p *producer, sequence, acked, position uint64) {
	if p != nil {
		p.commitBatch(sequence, acked, position, t.streams.touched)
	}
	t.streams.commit()
}
