package stream

import (
	"errors"
	"testing"
)

// TestP11_DirectoryShowsOnlyWhatIsDurable follows a stream from its creation to its
// deletion: each change shows once its frame is durable and not before.
func TestP11_DirectoryShowsOnlyWhatIsDurable(t *testing.T) {
	w := newWorld(t, smallRing)
	var id ID
	for _, c := range []struct {
		name   string
		change func()
		shows  func() bool
	}{
		{"create", func() { id = w.stream("a") }, func() bool { s, err := w.directory.ByName("a"); return err == nil && s.ID == id }},
		{"append", func() { _, err := w.append(&Batch{Entries: entries(id, 3)}); w.must(err) },
			func() bool { s, err := w.directory.Lookup(id); return err == nil && s.Next == 3 && s.Last == w.nowNS }},
		{"trim", func() { _, err := w.c.Trim(id, 2); w.must(err) },
			func() bool { s, _ := w.directory.Lookup(id); return s.First == 2 }},
		{"token", func() { _, err := w.c.SetToken(id, nil, []byte("t")); w.must(err) },
			func() bool { s, _ := w.directory.Lookup(id); return string(s.Token) == "t" }},
		{"seal", func() { _, err := w.c.Seal(id); w.must(err) },
			func() bool { s, _ := w.directory.Lookup(id); return s.Sealed }},
		{"delete", func() { w.must(w.c.Delete(id)) },
			func() bool { _, err := w.directory.Lookup(id); return errors.Is(err, ErrStreamDeleted) }},
	} {
		c.change()
		if c.shows() {
			t.Errorf("%s: shown before it was durable", c.name)
		}
		w.sync()
		if !c.shows() {
			t.Errorf("%s: not shown although it is durable", c.name)
		}
	}
	if _, err := w.directory.ByName("a"); !errors.Is(err, ErrStreamNotFound) {
		t.Errorf("a deleted name: %v", err)
	}
	if streams, more := w.directory.List("", "", 10, nil); len(streams) != 0 || more {
		t.Errorf("lists %v", streams)
	}
}

func TestDirectoryRefusesWhatContradictsIt(t *testing.T) {
	d := NewDirectory(sampleTable(t))
	for _, it := range []*Item{
		{Kind: KindStreamCreate, Stream: 9, Name: []byte("z")},
		{Kind: KindStreamTrim, Stream: 2, First: 9},
		decodeOne(t, encodeBatch(&Batch{}, placedEntry{Entry{Stream: 2}, 0, 30}), 0),
	} {
		if err := d.Apply(it); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v: %v", it.Kind, err)
		}
	}
	if !d.sameAs(sampleTable(t)) {
		t.Error("the directory changed")
	}
}
