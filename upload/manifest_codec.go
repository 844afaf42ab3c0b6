package upload

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

const (
	manifestMagic = "WALSMAN1"

	mMajor       = 8
	mMinor       = 10
	mLength      = 12
	mCompat      = 16
	mIncompat    = 24
	mLog         = 32
	mEpoch       = 48
	mIncarnation = 56
	mAttempt     = 72
	mOrigin      = 80
	mUploaded    = 88
	mUploadedAt  = 96
	mSequence    = 104
	mNode        = 112
	mBody        = 176

	sumBytes = 8
	// maxPosition is the highest position of any log.
	maxPosition = 3 << 62

	groupControl = 1
	groupPruned  = 2
)

// Encode is the manifest as it is put. Errors: ErrTooLarge, and ErrManifest where it
// says what no manifest may say.
func (m *Manifest) Encode() ([]byte, error) {
	le := binary.LittleEndian
	if len(m.Node) < 1 || len(m.Node) > ringwal.MaxNodeBytes {
		return nil, problem(ErrManifest, "node", mNode, "a name of %d bytes", len(m.Node))
	}
	b := make([]byte, mBody, 4096)
	copy(b, manifestMagic)
	le.PutUint16(b[mMajor:], majorVersion)
	le.PutUint16(b[mMinor:], minorVersion)
	copy(b[mLog:], m.Log[:])
	le.PutUint64(b[mEpoch:], m.Epoch)
	copy(b[mIncarnation:], m.Incarnation[:])
	le.PutUint64(b[mAttempt:], m.Attempt)
	le.PutUint64(b[mOrigin:], m.Origin)
	le.PutUint64(b[mUploaded:], m.Uploaded)
	le.PutUint64(b[mUploadedAt:], uint64(m.UploadedAtNS))
	le.PutUint64(b[mSequence:], m.NextSequence)
	b[mNode] = byte(len(m.Node))
	copy(b[mNode+1:], m.Node)

	e := newRefEncoder(m.ids())
	e.body(m)
	if len(e.b) > MaxManifestBytes-mBody-sumBytes {
		return nil, fmt.Errorf("%w: a manifest of %d bytes; its groups belong in an index object", ErrTooLarge, mBody+len(e.b)+sumBytes)
	}
	b = append(b, e.b...)
	le.PutUint32(b[mLength:], uint32(len(b)))
	b = le.AppendUint64(b, xxhash.Sum64(b))
	if _, err := DecodeManifest(b); err != nil {
		return nil, fmt.Errorf("not written: %w", err)
	}
	return b, nil
}

// ids calls visit with every object that the manifest names, in the order of its
// encoding.
func (m *Manifest) ids() func(visit func(*ObjectID)) {
	return func(visit func(*ObjectID)) {
		if m.State != nil {
			visit(&m.State.ID)
		}
		if m.Index != nil {
			visit(&m.Index.ID)
		}
		groupIDs(m.Groups, visit)
		for i := range m.Doomed {
			visit(&m.Doomed[i].ID)
		}
	}
}

func groupIDs(groups []Group, visit func(*ObjectID)) {
	for i := range groups {
		for j := range groups[i].Objects {
			visit(&groups[i].Objects[j].ID)
		}
	}
}

// DecodeManifest reads a manifest. Any bytes are safe. Errors: ErrManifest,
// ErrNewerVersion.
func DecodeManifest(b []byte) (*Manifest, error) {
	le := binary.LittleEndian
	const part = "header"
	switch {
	case len(b) < mBody+sumBytes || len(b) > MaxManifestBytes:
		return nil, problem(ErrManifest, part, 0, "%d bytes", len(b))
	case string(b[:8]) != manifestMagic:
		return nil, problem(ErrManifest, part, 0, "not a manifest of this program")
	case uint64(le.Uint32(b[mLength:]))+sumBytes != uint64(len(b)):
		return nil, problem(ErrManifest, part, mLength, "%d bytes, it says %d", len(b), uint64(le.Uint32(b[mLength:]))+sumBytes)
	case xxhash.Sum64(b[:len(b)-sumBytes]) != le.Uint64(b[len(b)-sumBytes:]):
		return nil, problem(ErrManifest, part, 0, "the checksum does not hold")
	case le.Uint16(b[mMajor:]) != majorVersion:
		return nil, problem(ErrNewerVersion, part, mMajor, "major version %d, this program knows %d", le.Uint16(b[mMajor:]), majorVersion)
	case le.Uint64(b[mIncompat:]) != 0:
		return nil, problem(ErrNewerVersion, part, mIncompat, "incompatible features %#x", le.Uint64(b[mIncompat:]))
	}
	m := &Manifest{Epoch: le.Uint64(b[mEpoch:]), Attempt: le.Uint64(b[mAttempt:]), Origin: le.Uint64(b[mOrigin:]),
		Uploaded: le.Uint64(b[mUploaded:]), UploadedAtNS: int64(le.Uint64(b[mUploadedAt:])), NextSequence: le.Uint64(b[mSequence:])}
	copy(m.Log[:], b[mLog:])
	copy(m.Incarnation[:], b[mIncarnation:])
	n := int(b[mNode])
	if n < 1 || n > ringwal.MaxNodeBytes {
		return nil, problem(ErrManifest, part, mNode, "a node name of %d bytes", n)
	}
	m.Node = string(b[mNode+1:][:n])
	for _, c := range b[mNode+1+n : mBody] {
		if c != 0 {
			return nil, problem(ErrManifest, part, mNode, "bytes follow the node name")
		}
	}
	d := refDecoder{decoder: decoder{rest: b[mBody : len(b)-sumBytes]}}
	if reason := d.body(m); reason != "" {
		return nil, problem(ErrManifest, "body", len(b)-sumBytes-len(d.rest), "%s", reason)
	}
	return m, nil
}

// refEncoder encodes references to objects. Their incarnations stand in front, each
// once, in order of first appearance.
type refEncoder struct {
	b            []byte
	incarnations map[[16]byte]uint64
	to           uint64 // end of the group before
}

func newRefEncoder(ids func(func(*ObjectID))) *refEncoder {
	e := &refEncoder{incarnations: map[[16]byte]uint64{}}
	var all []byte
	ids(func(id *ObjectID) {
		if _, known := e.incarnations[id.Incarnation]; !known {
			e.incarnations[id.Incarnation] = uint64(len(e.incarnations))
			all = append(all, id.Incarnation[:]...)
		}
	})
	e.number(uint64(len(e.incarnations)))
	e.b = append(e.b, all...)
	return e
}

func (e *refEncoder) number(v uint64) { e.b = binary.AppendUvarint(e.b, v) }

func (e *refEncoder) flag(set bool) {
	if set {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func (e *refEncoder) id(id *ObjectID) {
	e.number(e.incarnations[id.Incarnation])
	e.number(id.Sequence)
}

func (e *refEncoder) section(s *Section) {
	e.number(s.Place)
	e.number(uint64(s.StoredBytes))
	e.number(uint64(s.RawBytes))
	e.b = binary.LittleEndian.AppendUint64(e.b, s.Sum)
}

func (e *refEncoder) body(m *Manifest) {
	e.number(uint64(len(m.Retired)))
	for i := range m.Retired {
		r := &m.Retired[i]
		e.b = append(e.b, r.Log[:]...)
		e.number(r.Epoch)
		e.number(r.Uploaded)
		e.number(r.Origin)
		e.b = binary.LittleEndian.AppendUint64(e.b, uint64(r.AtNS))
	}
	e.flag(m.State != nil)
	if s := m.State; s != nil {
		e.id(&s.ID)
		e.number(s.Position)
		e.number(s.Bytes)
		e.section(&s.Contents)
	}
	e.flag(m.Index != nil)
	e.to = m.Origin
	if x := m.Index; x != nil {
		e.id(&x.ID)
		e.number(x.To)
		e.number(x.Bytes)
		e.section(&x.Contents)
		e.to = x.To
	}
	e.groups(m.Groups)
	e.number(uint64(len(m.Doomed)))
	for i := range m.Doomed {
		d := &m.Doomed[i]
		e.b = append(e.b, byte(d.Kind))
		e.id(&d.ID)
		e.b = binary.LittleEndian.AppendUint64(e.b, uint64(d.SinceNS))
	}
}

// groups encodes groups that begin at e.to, one behind the other.
func (e *refEncoder) groups(groups []Group) {
	e.number(uint64(len(groups)))
	for i := range groups {
		g := &groups[i]
		e.number(g.To - e.to)
		e.to = g.To
		flags := byte(0)
		if g.Control {
			flags |= groupControl
		}
		if g.Pruned {
			flags |= groupPruned
		}
		e.b = append(e.b, g.Level, flags)
		e.number(uint64(len(g.Objects)))
		for j := range g.Objects {
			e.object(&g.Objects[j])
		}
	}
}

func (e *refEncoder) object(o *ObjectRef) {
	e.id(&o.ID)
	e.number(o.Bytes)
	e.section(&o.Index)
	e.number(uint64(o.Streams))
	e.number(o.Records)
	e.number(uint64(o.FirstNS))
	e.number(uint64(o.LastNS - o.FirstNS))
	e.flag(o.Ranges != nil)
	before := stream.ID(0)
	for i := range o.Ranges {
		r := &o.Ranges[i]
		e.number(uint64(r.Stream - before))
		e.number(r.First)
		e.number(r.Count)
		e.number(uint64(r.FirstNS - o.FirstNS))
		e.number(uint64(r.LastNS - r.FirstNS))
		before = r.Stream
	}
}

// refDecoder decodes what a refEncoder wrote. Each step returns what is wrong, "" if
// nothing.
type refDecoder struct {
	decoder
	incarnations [][16]byte
	used         int // of incarnations, by ids so far
	to           uint64
	bad          string // of an id or a section
}

// count reads a number of things that take at least size bytes each.
func (d *refDecoder) count(size int) (int, bool) {
	n := d.number()
	if d.short || n > uint64(len(d.rest)/size) {
		return 0, false
	}
	return int(n), true
}

func (d *refDecoder) readIncarnations() string {
	n, ok := d.count(16)
	if !ok {
		return "more incarnations than there are bytes"
	}
	d.incarnations = make([][16]byte, n)
	seen := make(map[[16]byte]bool, n)
	for i := range d.incarnations {
		copy(d.incarnations[i][:], d.bytes(16))
		if seen[d.incarnations[i]] {
			return "an incarnation stands twice"
		}
		seen[d.incarnations[i]] = true
	}
	return ""
}

func (d *refDecoder) id() (id ObjectID) {
	i := d.number()
	switch {
	case i >= uint64(len(d.incarnations)) || i > uint64(d.used):
		d.bad = "an object's incarnation is out of range"
	default:
		d.used = max(d.used, int(i)+1)
		id.Incarnation = d.incarnations[i]
	}
	id.Sequence = d.number()
	return id
}

func (d *refDecoder) flag() bool {
	v := d.u8()
	if v > 1 {
		d.bad = "a flag is neither 0 nor 1"
	}
	return v == 1
}

// section reads one of an object of total bytes, of at most limit raw bytes.
func (d *refDecoder) section(total uint64, limit uint32) (s Section) {
	place, stored, raw := d.number(), d.number(), d.number()
	s = Section{Place: place, StoredBytes: uint32(stored), RawBytes: uint32(raw), Sum: d.u64()}
	if total < headerBytes+footerBytes || total > MaxObjectBytes || place < headerBytes || place > total || stored > raw || raw > uint64(limit) ||
		place+stored != total-footerBytes {
		d.bad = "a place in an object is out of range"
	}
	return s
}

func (d *refDecoder) failed() string {
	if d.short {
		return "it ends too early, or a number is not in its shortest form"
	}
	return d.bad
}

func (d *refDecoder) body(m *Manifest) string {
	if reason := d.readIncarnations(); reason != "" {
		return reason
	}
	if reason := d.retired(m); reason != "" {
		return reason
	}
	if d.flag() {
		m.State = &StateRef{ID: d.id(), Position: d.number(), Bytes: d.number()}
		m.State.Contents = d.section(m.State.Bytes, MaxStateBytes)
		if m.State.Position < m.Origin || m.State.Position > m.Uploaded {
			return "the state's position is not one of the log that is in the store"
		}
	}
	d.to = m.Origin
	if d.flag() {
		m.Index = &IndexRef{ID: d.id(), To: d.number(), Bytes: d.number()}
		m.Index.Contents = d.section(m.Index.Bytes, MaxGroupsBytes)
		if d.to = m.Index.To; d.to < m.Origin {
			return "the index ends before the origin"
		}
	}
	if m.Origin > m.Uploaded || m.Uploaded > maxPosition || m.Index != nil && m.Index.To > m.Uploaded {
		return "origin, index and uploaded position are out of order"
	}
	var reason string
	if m.Groups, reason = d.groups(m.Uploaded); reason != "" {
		return reason
	}
	if reason := d.doomed(m); reason != "" {
		return reason
	}
	switch {
	case d.failed() != "":
		return d.failed()
	case len(d.rest) != 0:
		return "bytes follow its end"
	case d.used != len(d.incarnations):
		return "an incarnation is not used"
	}
	return m.sequences()
}

// sequences checks that no object has a sequence that is still to come.
func (m *Manifest) sequences() (reason string) {
	m.ids()(func(id *ObjectID) {
		if id.Sequence >= m.NextSequence {
			reason = "an object's sequence is not below the next one"
		}
	})
	return reason
}

func (d *refDecoder) retired(m *Manifest) string {
	n, ok := d.count(27)
	if !ok {
		return "more retired logs than there are bytes"
	}
	for range n {
		var r Retired
		copy(r.Log[:], d.bytes(16))
		r.Epoch, r.Uploaded, r.Origin, r.AtNS = d.number(), d.number(), d.number(), int64(d.u64())
		if r.Uploaded > r.Origin || r.Log == m.Log {
			return "a retired log is out of range, or not retired"
		}
		m.Retired = append(m.Retired, r)
	}
	return d.failed()
}

func (d *refDecoder) doomed(m *Manifest) string {
	n, ok := d.count(11)
	if !ok {
		return "more doomed objects than there are bytes"
	}
	for range n {
		x := Doomed{Kind: Kind(d.u8()), ID: d.id(), SinceNS: int64(d.u64())}
		if x.Kind < KindData || x.Kind > KindIndex {
			return "a doomed object of an unknown kind"
		}
		m.Doomed = append(m.Doomed, x)
	}
	return d.failed()
}

// groups decodes the groups that begin at d.to and end at end.
func (d *refDecoder) groups(end uint64) ([]Group, string) {
	n, ok := d.count(4)
	if !ok {
		return nil, "more groups than there are bytes"
	}
	var groups []Group
	for range n {
		g := Group{From: d.to}
		length := d.number()
		if length == 0 || length > end-d.to {
			return nil, "a group's positions are out of range"
		}
		g.To = d.to + length
		d.to = g.To
		g.Level = d.u8()
		flags := d.u8()
		g.Control, g.Pruned = flags&groupControl != 0, flags&groupPruned != 0
		objects, ok := d.count(20)
		if !ok || flags&^(groupControl|groupPruned) != 0 {
			return nil, "a group's flags or objects are out of range"
		}
		for range objects {
			o, reason := d.object()
			if reason != "" {
				return nil, reason
			}
			g.Objects = append(g.Objects, o)
		}
		groups = append(groups, g)
	}
	if reason := d.failed(); reason != "" {
		return nil, reason
	}
	if d.to != end {
		return nil, "the groups do not reach the position that they should"
	}
	return groups, ""
}

func (d *refDecoder) object() (o ObjectRef, reason string) {
	o.ID = d.id()
	o.Bytes = d.number()
	o.Index = d.section(o.Bytes, MaxIndexBytes)
	streams := d.number()
	o.Records = d.number()
	first, span := d.number(), d.number()
	o.Streams, o.FirstNS, o.LastNS = uint32(streams), int64(first), int64(first+span)
	if streams > MaxIndexBytes/indexStreamBytes || o.Records < streams || o.FirstNS < 0 || o.LastNS < o.FirstNS {
		return o, "an object's counts or timestamps are out of range"
	}
	if !d.flag() {
		return o, d.failed()
	}
	if streams > uint64(len(d.rest)/5) {
		return o, "more ranges than there are bytes"
	}
	o.Ranges = make([]Range, streams)
	before, records := stream.ID(0), uint64(0)
	for i := range o.Ranges {
		r := &o.Ranges[i]
		id := d.number()
		r.First, r.Count = d.number(), d.number()
		after, span := d.number(), d.number()
		r.Stream, r.FirstNS, r.LastNS = before+stream.ID(id), o.FirstNS+int64(after), o.FirstNS+int64(after)+int64(span)
		if id == 0 || r.Stream < before || r.Count == 0 || r.End() < r.First || r.Count > o.Records-records ||
			r.FirstNS < o.FirstNS || r.LastNS < r.FirstNS || r.LastNS > o.LastNS {
			return o, "a range is out of range or out of order"
		}
		before, records = r.Stream, records+r.Count
	}
	if records != o.Records {
		return o, "the ranges do not sum up to the object's records"
	}
	return o, d.failed()
}
