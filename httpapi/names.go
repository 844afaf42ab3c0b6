package httpapi

import "github.com/walsidecar/walsidecar/wire"

// maxKnownNames is how many names of streams, and of producers, a connection remembers
// the ids of. With one more it forgets all.
const maxKnownNames = 64

// streamID returns the id of a stream, for appends. fresh asks again for one that the
// connection remembers. The error is a *wire.Error.
func (l *link) streamID(name string, create, fresh bool) (uint64, error) {
	if id, ok := l.streams[name]; ok && !fresh {
		return id, nil
	}
	var info wire.StreamInfo
	if err := l.ask(&wire.StreamOpen{Name: name, Create: create}, wire.TypeStreamInfo, &info); err != nil {
		return 0, err
	}
	remember(l.streams, name, info.ID)
	return info.ID, nil
}

// producerID is streamID for a named producer, made if need be.
func (l *link) producerID(name string, fresh bool) (uint64, error) {
	if id, ok := l.producers[name]; ok && !fresh {
		return id, nil
	}
	var info wire.ProducerInfo
	if err := l.ask(&wire.ProducerOpen{Name: name}, wire.TypeProducerInfo, &info); err != nil {
		return 0, err
	}
	remember(l.producers, name, info.ID)
	return info.ID, nil
}

func remember(known map[string]uint64, name string, id uint64) {
	if len(known) >= maxKnownNames {
		clear(known)
	}
	known[name] = id
}

// outdated reports whether an append may have failed only because an id that the
// connection remembered is that of a stream or producer that is gone: its name may have
// been made anew.
func outdated(e *wire.Error) bool {
	return e != nil && (e.Code == wire.CodeDeleted || e.Code == wire.CodeNotFound || e.Code == wire.CodeProducerExpired)
}
