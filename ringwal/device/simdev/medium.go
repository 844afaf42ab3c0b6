package simdev

import "slices"

// pageBytes is the unit in which a medium is allocated and shared.
const pageBytes = 4096

// medium is a sparse array of bytes with copy-on-write snapshots.
type medium struct {
	pages []*page // nil: zeros
	owner *owner
}

// page belongs to the medium whose owner it names; any other copies it before it
// writes.
type page struct {
	owner *owner
	data  [pageBytes]byte
}

// owner has a size, so that two of them have two addresses.
type owner struct{ _ byte }

func newMedium(sizeBytes int64) medium {
	return medium{pages: make([]*page, sizeBytes/pageBytes), owner: new(owner)}
}

func (m *medium) grow(sizeBytes int64) {
	m.pages = append(m.pages, make([]*page, sizeBytes/pageBytes-int64(len(m.pages)))...)
}

// share returns a medium of equal content; neither sees the other's writes.
func (m *medium) share() medium {
	m.owner = new(owner) // what was ours is now everybody's
	return medium{pages: slices.Clone(m.pages), owner: new(owner)}
}

func (m *medium) read(p []byte, offset int64) {
	for len(p) > 0 {
		within := int(offset % pageBytes)
		n := min(len(p), pageBytes-within)
		if pg := m.pages[offset/pageBytes]; pg != nil {
			copy(p[:n], pg.data[within:])
		} else {
			clear(p[:n])
		}
		p, offset = p[n:], offset+int64(n)
	}
}

func (m *medium) write(p []byte, offset int64) {
	for len(p) > 0 {
		within := int(offset % pageBytes)
		n := copy(m.writable(offset / pageBytes)[within:], p)
		p, offset = p[n:], offset+int64(n)
	}
}

func (m *medium) writable(number int64) []byte {
	pg := m.pages[number]
	switch {
	case pg == nil:
		pg = &page{owner: m.owner}
	case pg.owner != m.owner:
		pg = &page{owner: m.owner, data: pg.data}
	}
	m.pages[number] = pg
	return pg.data[:]
}
