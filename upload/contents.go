package upload

import (
	"encoding/binary"
	"fmt"

	"github.com/walsidecar/walsidecar/stream"
)

// State is what a state object holds.
type State struct {
	Position uint64 // the state is that before the item at this position
	// Checkpoint is what stream.DecodeCheckpoint reads.
	Checkpoint []byte
	// Joins, ascending by Stream, are the streams that go on where those of a log that was
	// lost ended.
	Joins []Join
}

// Join says that Stream goes on where Before ended: records of Before below At are in
// the store, what it held from At on is lost.
type Join struct {
	Stream, Before stream.ID
	At             uint64
}

// joinBytes is what a join takes: three u64.
const joinBytes = 24

// BuildState makes a state object. Errors: ErrTooLarge.
func BuildState(log [16]byte, epoch uint64, id ObjectID, s *State) (*Object, *StateRef, error) {
	le := binary.LittleEndian
	raw := make([]byte, 0, 8+joinBytes*len(s.Joins)+len(s.Checkpoint))
	raw = le.AppendUint64(raw, uint64(len(s.Joins)))
	for _, j := range s.Joins {
		raw = le.AppendUint64(raw, uint64(j.Stream))
		raw = le.AppendUint64(raw, uint64(j.Before))
		raw = le.AppendUint64(raw, j.At)
	}
	raw = append(raw, s.Checkpoint...)
	h := Header{Kind: KindState, Log: log, Epoch: epoch, ID: id, From: s.Position, To: s.Position}
	o, section, err := buildContents(&h, raw)
	if err != nil {
		return nil, nil, err
	}
	return o, &StateRef{ID: id, Position: s.Position, Bytes: uint64(len(o.Body)), Contents: section}, nil
}

// DecodeState reads a state object. The checkpoint itself is for
// stream.DecodeCheckpoint to judge. Any bytes are safe. Errors: ErrDamagedObject,
// ErrNewerVersion.
func DecodeState(body []byte) (*Header, *State, error) {
	h, _, raw, err := openContents(body, KindState)
	if err != nil {
		return nil, nil, err
	}
	le := binary.LittleEndian
	const part = "contents"
	if len(raw) < 8 || le.Uint64(raw) > uint64(len(raw)-8)/joinBytes {
		return nil, nil, problem(ErrDamagedObject, part, 0, "more joins than there are bytes")
	}
	s := &State{Position: h.From}
	n := int(le.Uint64(raw))
	for raw = raw[8:]; len(s.Joins) < n; raw = raw[joinBytes:] {
		j := Join{Stream: stream.ID(le.Uint64(raw)), Before: stream.ID(le.Uint64(raw[8:])), At: le.Uint64(raw[16:])}
		if j.Before == 0 || j.Stream <= j.Before || len(s.Joins) > 0 && s.Joins[len(s.Joins)-1].Stream >= j.Stream {
			return nil, nil, problem(ErrDamagedObject, part, 8+joinBytes*len(s.Joins), "a join is out of order")
		}
		s.Joins = append(s.Joins, j)
	}
	s.Checkpoint = raw
	return h, s, nil
}

// BuildIndex makes an index object of the groups of [from, to), which fill it without a
// gap. Their objects should have ranges. Errors: ErrTooLarge, ErrDamagedObject where
// they say what no groups may say.
func BuildIndex(log [16]byte, epoch uint64, id ObjectID, from, to uint64, groups []Group) (*Object, *IndexRef, error) {
	e := newRefEncoder(func(visit func(*ObjectID)) { groupIDs(groups, visit) })
	e.to = from
	e.groups(groups)
	h := Header{Kind: KindIndex, Log: log, Epoch: epoch, ID: id, From: from, To: to}
	if _, err := decodeGroups(&h, e.b); err != nil {
		return nil, nil, fmt.Errorf("not written: %w", err)
	}
	o, section, err := buildContents(&h, e.b)
	if err != nil {
		return nil, nil, err
	}
	return o, &IndexRef{ID: id, To: to, Bytes: uint64(len(o.Body)), Contents: section}, nil
}

// DecodeIndex reads an index object. Any bytes are safe. Errors: ErrDamagedObject,
// ErrNewerVersion.
func DecodeIndex(body []byte) (*Header, []Group, error) {
	h, _, raw, err := openContents(body, KindIndex)
	if err != nil {
		return nil, nil, err
	}
	groups, err := decodeGroups(h, raw)
	return h, groups, err
}

func decodeGroups(h *Header, raw []byte) ([]Group, error) {
	d := refDecoder{decoder: decoder{rest: raw}, to: h.From}
	reason := d.readIncarnations()
	var groups []Group
	if reason == "" {
		groups, reason = d.groups(h.To)
	}
	switch {
	case reason != "":
	case len(d.rest) != 0:
		reason = "bytes follow its end"
	case d.used != len(d.incarnations):
		reason = "an incarnation is not used"
	default:
		return groups, nil
	}
	return nil, problem(ErrDamagedObject, "contents", len(raw)-len(d.rest), "%s", reason)
}

func buildContents(h *Header, raw []byte) (*Object, Section, error) {
	if uint64(len(raw)) > uint64(h.Kind.sectionLimit()) {
		return nil, Section{}, fmt.Errorf("%w: %d bytes in one %s object", ErrTooLarge, len(raw), h.Kind)
	}
	body, section := appendSection(appendHeader(nil, h), raw)
	return &Object{Header: *h, Body: appendFooter(body, section)}, section, nil
}

func openContents(body []byte, want Kind) (*Header, Section, []byte, error) {
	h, section, err := openEnvelope(body)
	if err != nil {
		return nil, section, nil, err
	}
	if h.Kind != want || section.Place != headerBytes {
		return nil, section, nil, problem(ErrDamagedObject, "header", hKind, "kind %s, want %s", h.Kind, want)
	}
	raw, err := section.raw("contents", body[section.Place:section.End()], nil)
	return &h, section, raw, err
}
