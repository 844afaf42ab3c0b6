package stream

import "fmt"

// Directory is the stream half of a [Table]: which streams there are, under which
// names, with which records. A reader keeps one of its own and applies the items of
// durable frames to it, so that no read shows what a crash could take back. One
// owner; not safe for concurrent use.
type Directory struct {
	streams streamSet
}

// NewDirectory returns a directory that shows the streams of t as they are now.
func NewDirectory(t *Table) *Directory {
	d := &Directory{streams: newStreamSet()}
	d.streams.nextID, d.streams.filled = t.streams.nextID, t.streams.filled
	for _, s := range t.streams.byName {
		c := *s
		c.stamp = 0
		d.streams.byName = append(d.streams.byName, &c)
		d.streams.byID.put(c.id, &c)
	}
	return d
}

// Apply changes the directory by an item of a durable frame, in log order; items
// about producers change nothing. An item that contradicts the directory is not
// applied; the error wraps [ErrDamaged].
func (d *Directory) Apply(it *Item) error {
	problem := ""
	switch it.Kind {
	case KindBatch:
		if problem = d.streams.stageItem(it); problem == "" {
			d.streams.commit()
		}
	case KindStreamCreate, KindStreamSeal, KindStreamTrim, KindStreamDelete, KindStreamToken:
		if problem = d.streams.checkItem(it); problem == "" {
			d.streams.mutate(it)
		}
	}
	if problem != "" {
		return fmt.Errorf("%w: %v item at position %d: %s", ErrDamaged, it.Kind, it.Position, problem)
	}
	return nil
}

// Lookup returns the stream with this id. The error is [ErrStreamDeleted] or
// [ErrStreamNotFound].
func (d *Directory) Lookup(id ID) (StreamInfo, error) {
	s, err := d.streams.find(id)
	if err != nil {
		return StreamInfo{}, err
	}
	return s.info(), nil
}

// ByName returns the stream with this name. The error is [ErrStreamNotFound].
func (d *Directory) ByName(name string) (StreamInfo, error) {
	s := d.streams.findName(name)
	if s == nil {
		return StreamInfo{}, ErrStreamNotFound
	}
	return s.info(), nil
}

// List is as [Table.List].
func (d *Directory) List(prefix, cursor string, limit int, dst []StreamInfo) (_ []StreamInfo, more bool) {
	return d.streams.list(prefix, cursor, min(limit, MaxListed), dst)
}
