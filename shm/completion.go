package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/walsidecar/walsidecar/wire"
)

// Completer is the sidecar's end of a completion area, and the place where it says
// that it sleeps. Publish and Arm are for one goroutine; Disarm may race with it.
type Completer struct {
	memory   Memory
	acks     uint64
	wanted   *atomic.Uint32 // in the submission area: written by the client
	sleep    *atomic.Uint32
	wakeAt   *atomic.Uint64
	wake     *atomic.Uint32
	woken    uint32 // the client's sleep that it was woken from last
	released uint64
	durable  uint64
}

// NewCompleter returns the completer of a fresh pair of areas.
func NewCompleter(submission, completion Memory) *Completer {
	return &Completer{memory: completion, wanted: submission.u32(offAckWanted), sleep: completion.u32(offSleep), wakeAt: completion.u64(offWakeAt), wake: completion.u32(offWake)}
}

// Publish shows the client what is durable, and up to where its messages have their
// outcome. It reports whether the client sleeps and has to be woken; the extents are
// copied. The client has room for all of them: one entry per unanswered request.
func (c *Completer) Publish(extents []wire.AckExtent, released, durable uint64) (wake bool) {
	for i := range extents {
		e := &extents[i]
		b := c.memory[headBytes+int((c.acks+uint64(i))%QueueEntries)*entryBytes:]
		binary.LittleEndian.PutUint64(b, e.Request)
		binary.LittleEndian.PutUint64(b[8:], e.Stream)
		binary.LittleEndian.PutUint64(b[16:], e.Offset)
		binary.LittleEndian.PutUint64(b[24:], e.Position)
		binary.LittleEndian.PutUint32(b[32:], e.Requests)
		binary.LittleEndian.PutUint32(b[36:], e.Records)
		binary.LittleEndian.PutUint32(b[40:], e.Step)
	}
	if released != c.released {
		c.released = released
		c.memory.u64(offReleased).Store(released)
	}
	if durable > c.durable {
		c.durable = durable
		c.memory.u64(offDurable).Store(durable)
	}
	if len(extents) == 0 {
		return false // what else was answered goes over the socket, which wakes by itself
	}
	c.acks += uint64(len(extents))
	c.memory.u64(offAcks).Store(c.acks)
	// The store above is a full barrier: either this load sees that the client wants
	// to be woken, or the client's look after its own store sees the acks.
	g := c.wanted.Load()
	if g&1 == 0 || g == c.woken {
		return false
	}
	c.woken = g
	c.wake.Add(1)
	return true
}

// End tells the client with which code its session ended.
func (c *Completer) End(code wire.Code) { c.memory.u32(offState).Store(uint32(code)) }

// Arm says that the sidecar sleeps until something beyond position is published. The
// caller then looks at the ring once more, and disarms if that is so. When it sleeps
// already, this changes the position.
func (c *Completer) Arm(position uint64) {
	c.wakeAt.Store(position)
	if g := c.sleep.Load(); g&1 == 0 {
		c.sleep.Store(g + 1)
	}
}

// Armed reports whether the sidecar sleeps.
func (c *Completer) Armed() bool { return c.sleep.Load()&1 == 1 }

// Disarm ends the sleep, and reports whether this call did.
func (c *Completer) Disarm() bool {
	g := c.sleep.Load()
	return g&1 == 1 && c.sleep.CompareAndSwap(g, g+1)
}

// Reaper is the client's end of a completion area. Take, Want and Unwant are for one
// goroutine at a time, Kick for the one that publishes, the others for any.
type Reaper struct {
	memory Memory
	taken  atomic.Uint64
	acks   *atomic.Uint64
	wanted *atomic.Uint32
	sleep  *atomic.Uint32
	wakeAt *atomic.Uint64
	wake   *atomic.Uint32
	kicked uint32 // the sidecar's sleep that it was kicked out of last
	want   uint32 // generation of the wish to be woken; odd while there is one
	word   uint32 // the futex word before that wish
}

// NewReaper returns the reaper of a fresh pair of areas.
func NewReaper(submission, completion Memory) (*Reaper, error) {
	if err := completion.check(magicCompletion, CompletionBytes-headBytes); err != nil {
		return nil, err
	}
	return &Reaper{memory: completion, acks: completion.u64(offAcks), wanted: submission.u32(offAckWanted),
		sleep: completion.u32(offSleep), wakeAt: completion.u64(offWakeAt), wake: completion.u32(offWake)}, nil
}

// Any reports whether there are acks to take.
func (r *Reaper) Any() bool { return r.acks.Load() != r.taken.Load() }

// Take appends the acks that are there to extents.
func (r *Reaper) Take(extents []wire.AckExtent) ([]wire.AckExtent, error) {
	acks, taken := r.acks.Load(), r.taken.Load()
	if acks-taken > QueueEntries {
		return extents, fmt.Errorf("%w: %d acks at once", ErrViolation, acks-taken)
	}
	for ; taken != acks; taken++ {
		b := r.memory[headBytes+int(taken%QueueEntries)*entryBytes:]
		extents = append(extents, wire.AckExtent{
			Request: binary.LittleEndian.Uint64(b), Stream: binary.LittleEndian.Uint64(b[8:]),
			Offset: binary.LittleEndian.Uint64(b[16:]), Position: binary.LittleEndian.Uint64(b[24:]),
			Requests: binary.LittleEndian.Uint32(b[32:]), Records: binary.LittleEndian.Uint32(b[36:]), Step: binary.LittleEndian.Uint32(b[40:]),
		})
	}
	r.taken.Store(taken)
	return extents, nil
}

// Word is the futex word that a wake-up changes. Who sleeps looks at it first, then
// whether there are acks.
func (r *Reaper) Word() uint32 { return r.wake.Load() }

// Want says that the next acks are to wake this client, once. When Any is true
// afterwards it may be that they do not.
func (r *Reaper) Want() {
	word := r.wake.Load()
	if r.want&1 == 1 && word == r.word {
		return // it was said, and is not fulfilled
	}
	r.word = word
	r.want += 1 + r.want&1
	r.wanted.Store(r.want)
}

// Unwant takes Want back; one wake-up may be on its way.
func (r *Reaper) Unwant() {
	if r.want&1 == 1 {
		r.want++
		r.wanted.Store(r.want)
	}
}

// Kick reports whether the sidecar sleeps and has to be kicked for what was just
// published, up to tail: once per sleep.
func (r *Reaper) Kick(tail uint64) bool {
	g := r.sleep.Load()
	if g&1 == 0 || g == r.kicked || tail <= r.wakeAt.Load() {
		return false
	}
	r.kicked = g
	return true
}

// Released is the ring position below which everything has its outcome.
func (r *Reaper) Released() uint64 { return r.memory.u64(offReleased).Load() }

// Durable is the highest log position that was acked to this client.
func (r *Reaper) Durable() uint64 { return r.memory.u64(offDurable).Load() }

// State is the code with which the sidecar ended the session, CodeOK before.
func (r *Reaper) State() wire.Code { return wire.Code(r.memory.u32(offState).Load()) }
