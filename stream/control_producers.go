package stream

import (
	"github.com/walsidecar/walsidecar/ringwal"
)

// OpenSessionProducer issues a session producer with a window of so many slots (0:
// DefaultWindow) that its caller uses, as after [Committer.Attach]. Its id is made
// of random, 64 random bits. Where there is no room for it, session producers that no
// session uses expire, the one used longest ago first; those that have expired when
// it returns ringwal.ErrWait stay so. Refusals: ErrBadRequest, ErrTooManyProducers,
// ErrCheckpointFull.
func (c *Committer) OpenSessionProducer(window uint32, random uint64) (ProducerInfo, error) {
	if window == 0 {
		window = DefaultWindow
	}
	if window > MaxWindow {
		return ProducerInfo{}, &Refusal{Err: ErrBadRequest, Actual: uint64(window), Limit: MaxWindow, Detail: "slots of a window"}
	}
	if err := c.expireFor(window); err != nil {
		return ProducerInfo{}, err
	}
	id := ProducerID(random) | sessionProducerBit
	for c.table.producers.byID[id] != nil {
		id = (id + 1) | sessionProducerBit
	}
	it := Item{Kind: KindSessionOpen, Producer: id, Window: window}
	if err := c.write(ringwal.ClassControl, &it); err != nil {
		return ProducerInfo{}, err
	}
	p := c.table.producers.byID[id]
	p.live = 1
	return p.info(), nil
}

// expireFor makes room for a session producer by expiring idle ones, or refuses
// without expiring any, ringwal.ErrFull included.
func (c *Committer) expireFor(window uint32) error {
	t, need := c.table, sessionBound(window)
	var idle, idleBound uint64
	for _, p := range t.producers.sessions {
		if p.live == 0 {
			idle++
			idleBound += sessionBound(p.window)
		}
	}
	share := t.maxBytes / SessionShare
	switch n := uint64(len(t.producers.sessions)); {
	case n-idle >= MaxSessionProducers:
		return &Refusal{Err: ErrTooManyProducers, Actual: n, Limit: MaxSessionProducers, Detail: "session producers in use"}
	case t.sessionBound-idleBound+need > share:
		return &Refusal{Err: ErrCheckpointFull, Actual: t.sessionBound - idleBound + need, Limit: share,
			Detail: "bytes of the state of session producers in use; smaller windows take less"}
	case t.bound-idleBound+need > t.maxBytes:
		return &Refusal{Err: ErrCheckpointFull, Actual: t.bound - idleBound + need, Limit: t.maxBytes,
			Detail: "bytes of the state with what was asked for"}
	}
	for first := true; len(t.producers.sessions) >= MaxSessionProducers || t.sessionBound+need > share || t.bound+need > t.maxBytes; first = false {
		if first && !c.hasRoomToExpire(idle) {
			return ringwal.ErrFull
		}
		it := Item{Kind: KindProducerExpired, Producer: t.producers.idle().id}
		if err := c.write(ringwal.ClassControl, &it); err != nil {
			return err
		}
	}
	return nil
}

// hasRoomToExpire reports whether the log has room for the expiry of n session
// producers and the opening of one, in however many frames.
func (c *Committer) hasRoomToExpire(n uint64) bool {
	const expiryBytes, openingBytes = itemHeaderBytes + idBytes, itemHeaderBytes + openBytes
	items := n*expiryBytes + openingBytes
	// Each frame takes up to a block beside its items: the open one, one that the
	// ring's end cuts short, and those that hold the rest.
	frames := 3 + items/uint64(c.geometry.MaxFrameBytes)
	return c.log.Room(ringwal.ClassControl) >= items+frames*uint64(c.geometry.BlockBytes)+c.extraReserve()
}

// Attach says that a session uses the session producer, which therefore does not
// expire until as many calls of Detach. Refusal: ErrProducerExpired.
func (c *Committer) Attach(id ProducerID) (ProducerInfo, error) {
	p := c.table.producers.byID[id]
	if p == nil || !id.IsSession() {
		return ProducerInfo{}, &Refusal{Err: unknownProducer(id)}
	}
	p.live++
	return p.info(), nil
}

// Detach says that a session that attached the session producer has ended. An
// unknown id does nothing.
func (c *Committer) Detach(id ProducerID) {
	if p := c.table.producers.byID[id]; p != nil && p.live > 0 {
		p.live--
	}
}

// OpenNamedProducer returns the producer of that name and makes it where there is
// none; created tells which. Refusals: ErrBadName, ErrTooManyProducers,
// ErrCheckpointFull.
func (c *Committer) OpenNamedProducer(name string) (_ ProducerInfo, created bool, err error) {
	producers := &c.table.producers
	if p := producers.findName(name); p != nil {
		return p.info(), false, nil
	}
	if problem := nameProblem(name); problem != "" {
		return ProducerInfo{}, false, &Refusal{Err: ErrBadName, Actual: uint64(len(name)), Limit: MaxNameBytes, Detail: problem}
	}
	if n := len(producers.named); n >= MaxNamedProducers {
		return ProducerInfo{}, false, &Refusal{Err: ErrTooManyProducers, Actual: uint64(n), Limit: MaxNamedProducers, Detail: "named producers"}
	}
	if err := c.checkBound(namedBound(len(name))); err != nil {
		return ProducerInfo{}, false, err
	}
	it := Item{Kind: KindNamedCreate, Producer: producers.nextID, Name: []byte(name)}
	if err := c.write(ringwal.ClassControl, &it); err != nil {
		return ProducerInfo{}, false, err
	}
	return producers.byID[it.Producer].info(), true, nil
}

// Producer returns the named producer as the last decision left it. Refusal:
// ErrProducerNotFound.
func (c *Committer) Producer(name string) (ProducerInfo, error) {
	p := c.table.producers.findName(name)
	if p == nil {
		return ProducerInfo{}, &Refusal{Err: ErrProducerNotFound}
	}
	return p.info(), nil
}

// ProducerByID returns the producer with this id. Refusals: ErrProducerExpired,
// ErrProducerNotFound, by the kind of the id.
func (c *Committer) ProducerByID(id ProducerID) (ProducerInfo, error) {
	p := c.table.producers.byID[id]
	if p == nil {
		return ProducerInfo{}, &Refusal{Err: unknownProducer(id)}
	}
	return p.info(), nil
}

// RemoveProducer forgets the named producer. A producer made under the name later
// starts anew. Refusal: ErrProducerNotFound.
func (c *Committer) RemoveProducer(name string) error {
	p := c.table.producers.findName(name)
	if p == nil {
		return &Refusal{Err: ErrProducerNotFound}
	}
	return c.write(ringwal.ClassControl, &Item{Kind: KindProducerRemove, Producer: p.id})
}
