package fence_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/fence/simfence"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: WALSIDECAR_SEED, else a new one")

// late is T of the histories.
const late = time.Minute

// seeds is how many random histories a test goes through.
const seeds = 3000

// write is a write on its way to the medium.
type write struct {
	w       *simdev.Write
	begun   time.Duration
	covered bool        // a later start jumped over where it can land
	super   fence.Owner // of a superblock; Epoch 0: a frame
	jump    bool        // of a superblock: its epoch jumped
	slots   int         // of a superblock: the set that it lands on
}

// process is one start on a host.
type process struct {
	host  string
	boot  byte
	key   fence.Key
	view  *simdev.View
	a     *simfence.Attachment
	alive bool
	owns  bool // Acquire returned to it
	since time.Duration
	out   []*write
}

// history is a random run of starts, writes, crashes and reboots over one target.
type history struct {
	*rand.Rand
	now       time.Duration
	target    *simfence.Target
	disk      *simdev.Disk
	owner     fence.Owner
	slots     int // that the newest superblock is on
	processes []*process
	boots     byte
	bootOf    map[string]byte
	log       []string
}

func (h *history) Now() time.Duration { return h.now }

func (h *history) Sleep(ctx context.Context, d time.Duration) error {
	h.pass(d)
	if h.IntN(3) == 0 {
		h.land()
	}
	return ctx.Err()
}

// pass lets time go by. No write is on its way for longer than T.
func (h *history) pass(d time.Duration) {
	h.now += d
	for _, p := range h.processes {
		for _, w := range p.out {
			if h.now-w.begun >= late && inFlight(p, w) {
				h.finish(p, w.w)
			}
		}
	}
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%8s ", h.now)+fmt.Sprintf(format, args...))
}

// land finishes one write that is on its way.
func (h *history) land() {
	for _, p := range h.processes {
		if writes := p.view.InFlight(); len(writes) > 0 && h.IntN(2) == 0 {
			h.finish(p, writes[0])
			return
		}
	}
}

func (h *history) finish(p *process, w *simdev.Write) {
	if p.view.Finish(w) != nil {
		return
	}
	for _, x := range p.out {
		if x.w == w && x.super.Epoch == h.owner.Epoch && x.super.Key == h.owner.Key {
			h.owner = x.super
		}
		if x.w == w && x.super.Epoch > h.owner.Epoch {
			h.owner, h.slots = x.super, x.slots
			h.note("%s: its superblock is on the medium, epoch %d, set %d", p.host, x.super.Epoch, x.slots)
			h.cover(p, x)
		}
	}
}

// cover marks what can only land in the window that the superblock's epoch jumped over.
func (h *history) cover(p *process, super *write) {
	for _, other := range h.processes {
		for _, w := range other.out {
			w.covered = w.covered || super.jump && other != p && w.begun <= super.begun
		}
	}
}

// begin starts a write of p; false where the reservation keeps it out.
func (h *history) begin(p *process, super fence.Owner, jump bool) *simdev.Write {
	w, err := p.view.Begin(make([]byte, 4096), 0)
	if holder := h.target.Holder(); err == nil && holder != "" && holder != p.host {
		err = p.view.Finish(w) // a conflict, which the disk answers at the end
	}
	if err != nil {
		p.alive = false // fenced
		return nil
	}
	p.out = append(p.out, &write{w: w, begun: h.now, super: super, jump: jump})
	return w
}

// start ends what ran on the host and starts anew there. A killed process's writes end
// with it, else the exclusive open would not succeed; those of a kernel that crashed do not.
func (h *history) start(host string) error {
	reboot := h.IntN(3) == 0
	for _, p := range h.processes {
		if p.host != host {
			continue
		}
		p.alive = false
		for !reboot && len(p.view.InFlight()) > 0 && p.boot == h.bootOf[host] {
			h.finish(p, p.view.InFlight()[0])
		}
	}
	if reboot || h.bootOf[host] == 0 {
		h.boots++
		h.bootOf[host] = h.boots
	}
	p := &process{host: host, boot: h.bootOf[host], view: h.disk.Open(host), alive: true}
	p.a = h.target.Attach(host, p.view)
	p.key = fence.KeyOf("n", [16]byte{1, 1, byte(len(h.processes) >> 8), byte(len(h.processes))})
	h.processes = append(h.processes, p)
	if h.IntN(3) == 0 {
		h.dieAt(p, 1+h.IntN(12), h.IntN(2) == 0)
	}
	request := fence.Request{Key: p.key, Boot: [16]byte{p.boot}, Exclusive: true, Abort: h.IntN(2) == 0, Take: fence.TakeForced, LateWrites: late,
		Clock: h, Newest: func(context.Context) (fence.Owner, error) { return h.owner, nil }}
	out, err := fence.Acquire(context.Background(), fence.New(p.a, h.target.Capabilities()), request)
	h.note("%s boot %d key %s abort %v: %s jump %v (%s) %v", host, p.boot, p.key, request.Abort, steps(out), out.Jump, out.Why, err)
	if err == nil && h.IntN(6) == 0 { // it comes to nothing
		err = fence.ErrHeld
		h.note("%s ends without having written: %v", host, fence.HandBack(fence.New(p.a, h.target.Capabilities()), out))
	}
	if p.alive = err == nil; p.alive {
		return h.serve(p, out)
	}
	return nil
}

// dieAt crashes p at its n-th command: before it, or after it with the answer lost.
func (h *history) dieAt(p *process, n int, after bool) {
	count := func(string) error {
		if n--; n > 0 {
			return nil
		}
		p.a.Kill()
		return simfence.ErrDead
	}
	if p.a.Before = count; after {
		p.a.Before, p.a.After = nil, count
	}
}

// serve checks what Acquire promised to p, and lets it write its superblock.
func (h *history) serve(p *process, out fence.Outcome) error {
	slots := 1 - h.slots
	if !out.Jump && h.owner.Unsettled {
		slots = h.slots
	}
	for _, other := range h.processes {
		for _, w := range other.out {
			if other == p || !inFlight(other, w) {
				continue
			}
			if w.super.Epoch > 0 && w.slots == slots {
				return fmt.Errorf("%s writes its superblocks (jump %v, after epoch %d) where one of %s with key %s, epoch %d, may land", p.host, out.Jump, h.owner.Epoch, other.host, other.key, w.super.Epoch)
			}
			if w.covered {
				continue
			}
			if age := h.now - w.begun; !out.Jump || age < stall {
				return fmt.Errorf("%s may write (jump %v), and a write of %s with key %s is on its way since %s", p.host, out.Jump, other.host, other.key, age)
			}
		}
	}
	p.owns, p.since = true, h.now
	w := h.begin(p, fence.Owner{Node: "n", Epoch: h.owner.Epoch + 1, Key: p.key, Boot: [16]byte{p.boot}, StallAfter: stall, Unsettled: out.Jump || h.owner.Unsettled}, out.Jump)
	if w == nil {
		return fmt.Errorf("%s with key %s cannot write", p.host, p.key)
	}
	p.out[len(p.out)-1].slots = slots
	if h.IntN(4) == 0 {
		p.alive = false // dies with its superblock on the way
		h.note("%s dies before its superblock", p.host)
		return nil
	}
	h.finish(p, w)
	return nil
}

// update begins to write the owner's superblock anew. Once T has passed it trims beyond the
// window that was jumped over.
func (h *history) update(p *process) {
	super := h.owner
	super.Unsettled = super.Unsettled && h.now-p.since < late
	if h.begin(p, super, false) == nil {
		return
	}
	w := p.out[len(p.out)-1]
	w.slots = h.slots
	if h.IntN(2) == 0 {
		h.finish(p, w.w)
	}
}

func inFlight(p *process, w *write) bool {
	for _, x := range p.view.InFlight() {
		if x == w.w {
			return true
		}
	}
	return false
}

// run goes through one history.
func (h *history) run(steps int) error {
	for range steps {
		switch h.IntN(7) {
		case 0, 1:
			if err := h.start(string(rune('A' + h.IntN(3)))); err != nil {
				return err
			}
		case 2, 3:
			for _, p := range h.processes {
				switch {
				case !p.alive || !p.owns || h.IntN(2) == 0:
				case h.owner.Key == p.key && h.IntN(3) == 0:
					h.update(p)
				default:
					h.begin(p, fence.Owner{}, false)
				}
			}
		case 4:
			h.land()
		case 5:
			h.pass(time.Duration(h.IntN(4000)) * time.Millisecond)
		case 6:
			h.pass(time.Duration(h.Int64N(int64(2 * late))))
		}
	}
	return nil
}

// TestP6_WhoMayWriteHasNoWriteOfAnEarlierOwnerToFear goes through random histories of three
// hosts on one target: whenever Acquire returns, every write of another process that is
// still on its way is older than L and lies in a window that is jumped over, and no
// superblock on its way lands where that one writes its own.
func TestP6_WhoMayWriteHasNoWriteOfAnEarlierOwnerToFear(t *testing.T) {
	first := *seedFlag
	if first == 0 {
		first, _ = strconv.ParseUint(os.Getenv("WALSIDECAR_SEED"), 10, 64)
	}
	replay := first != 0
	if !replay {
		first = uint64(time.Now().UnixNano())
	}
	count := uint64(seeds)
	if testing.Short() {
		count /= 10
	}
	for seed := first; seed < first+count; seed++ {
		transport := fence.NVMe
		if seed%2 == 0 {
			transport = fence.SCSI
		}
		h := &history{Rand: rand.New(rand.NewPCG(seed, 1)), bootOf: map[string]byte{}, owner: fence.Owner{Node: "n", StallAfter: stall}}
		h.disk = simdev.New(simdev.Config{Seed: seed, SizeBytes: 1 << 20, WriteThrough: true})
		h.target = simfence.New(simfence.Config{Transport: transport, Disk: h.disk})
		if err := h.run(60); err != nil {
			t.Fatalf("%v\nreplay with WALSIDECAR_SEED=%d\n%s", err, seed, strings.Join(h.log, "\n"))
		}
		if replay {
			t.Log(strings.Join(h.log, "\n"))
			break
		}
	}
}
