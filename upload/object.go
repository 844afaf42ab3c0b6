package upload

import (
	"github.com/walsidecar/walsidecar/stream"
)

// DataObject is a whole data object in memory: for compaction, verify and tests.
// Archive reads parts of objects. It may be read from any goroutine.
type DataObject struct {
	Header
	Index   *ObjectIndex
	Section Section // where the index lies

	body []byte
}

// DecodeObject reads a data object and its index; blocks are checked when they are
// read. Body is kept. Any bytes are safe. Errors: ErrDamagedObject, ErrNewerVersion.
func DecodeObject(body []byte) (*DataObject, error) {
	h, section, err := openEnvelope(body)
	if err != nil {
		return nil, err
	}
	if h.Kind != KindData {
		return nil, problem(ErrDamagedObject, "header", hKind, "kind %s, want %s", h.Kind, KindData)
	}
	raw, err := section.raw("index", body[section.Place:section.End()], nil)
	if err != nil {
		return nil, err
	}
	x, err := decodeObjectIndex(&h, section, raw)
	if err != nil {
		return nil, err
	}
	return &DataObject{Header: h, Index: x, Section: section, body: body}, nil
}

// Ref is what a manifest says of the object.
func (o *DataObject) Ref() ObjectRef {
	ref := ObjectRef{ID: o.ID, Bytes: uint64(len(o.body)), Index: o.Section}
	var blocks []BlockInfo
	for i := range o.Index.streams {
		from, to := o.Index.of(i)
		for ; from < to && o.Index.id(i) != 0; from++ {
			b := o.Index.Block(from)
			b.Stream = o.Index.id(i)
			ref.Records += uint64(b.Count)
			blocks = append(blocks, b)
		}
	}
	ref.setRanges(blocks)
	return ref
}

// Records calls visit with the records of stream id from offset first on, in order,
// each checked. The record is valid until visit returns; what it points to as long as
// nothing changes the object's body. Errors: ErrDamagedObject, visit's own.
func (o *DataObject) Records(id stream.ID, first uint64, visit func(*Record) error) error {
	from, to := o.Index.Find(id)
	if id == 0 || from == to {
		return nil
	}
	var b Block
	var r Record
	for i := o.Index.seek(from, to, first); i < to; i++ {
		info := o.Index.Block(i)
		info.Stream = id
		if err := o.block(&info, &b); err != nil {
			return err
		}
		for n := range b.Count {
			if b.First+uint64(n) < first {
				continue
			}
			if err := b.Record(n, &r); err != nil {
				return err
			}
			if err := visit(&r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *DataObject) block(info *BlockInfo, b *Block) error {
	raw, err := info.raw("block", o.body[info.Place:info.End()], nil)
	if err != nil {
		return err
	}
	return b.decode(info, raw)
}

// Journal calls visit with the entries of the journal, in commit order. The entry is
// valid until visit returns. Errors: ErrDamagedObject, visit's own.
func (o *DataObject) Journal(visit func(*Entry) error) error {
	from, to := o.Index.Find(0)
	var r journalReader
	for i := from; i < to; i++ {
		info := o.Index.Block(i)
		raw, err := info.raw("journal block", o.body[info.Place:info.End()], nil)
		if err != nil {
			return err
		}
		if err := r.visit(&info, raw, o.To, visit); err != nil {
			return err
		}
	}
	return nil
}

// visit calls visit with every entry of a block.
func (r *journalReader) visit(info *BlockInfo, raw []byte, to uint64, visit func(*Entry) error) error {
	r.reset(info, raw, to)
	for e := r.next(); e != nil; e = r.next() {
		if err := visit(e); err != nil {
			return err
		}
	}
	return r.err
}
