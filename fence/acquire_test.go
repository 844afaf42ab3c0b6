package fence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/fence/simfence"
)

const stall = 10 * time.Second

// world is a target, a superblock and a clock that moves only by sleeping.
type world struct {
	t      *testing.T
	target *simfence.Target
	owner  fence.Owner
	now    time.Duration
	during func(now time.Duration) // what happens while somebody sleeps
	writes uint64                  // progress of the owner
}

func newWorld(t *testing.T, c simfence.Config) *world {
	if c.Transport == "" {
		c.Transport = fence.NVMe
	}
	return &world{t: t, target: simfence.New(c), owner: fence.Owner{Node: "n", StallAfter: stall}}
}

func (w *world) Now() time.Duration { return w.now }

func (w *world) Sleep(ctx context.Context, d time.Duration) error {
	w.now += d
	if w.during != nil {
		w.during(w.now)
	}
	return ctx.Err()
}

// host is one process on a host: its kernel's boot, attachment and key.
type host struct {
	w    *world
	a    *simfence.Attachment
	f    *fence.Fence
	r    fence.Request
	boot byte
}

var keys byte

// start makes a new process on the named host, running under that boot.
func (w *world) start(name string, boot byte) *host {
	keys++
	a := w.target.Attach(name, nil)
	return &host{w: w, a: a, boot: boot, f: fence.New(a, w.target.Capabilities()), r: fence.Request{
		Key: fence.KeyOf("n", [16]byte{1, 1, 1, keys}), Boot: [16]byte{boot}, Exclusive: true, Abort: true, Take: fence.TakeQuiet, Clock: w,
		Newest:   func(context.Context) (fence.Owner, error) { return w.owner, nil },
		Progress: func(context.Context) (uint64, error) { return w.writes, nil },
	}}
}

func (h *host) acquire() (fence.Outcome, error) { return fence.Acquire(context.Background(), h.f, h.r) }

// own acquires and writes the superblock, as a start does.
func (h *host) own() fence.Outcome {
	h.w.t.Helper()
	out, err := h.acquire()
	if err != nil {
		h.w.t.Fatal(err)
	}
	h.w.owner = fence.Owner{Node: "n", Epoch: h.w.owner.Epoch + 1, Key: h.r.Key, Boot: h.r.Boot, StallAfter: stall}
	return out
}

func (h *host) status() fence.Status {
	h.w.t.Helper()
	st, err := h.f.Read()
	if err != nil {
		h.w.t.Fatal(err)
	}
	return st
}

func steps(out fence.Outcome) string {
	var s []string
	for _, x := range out.Steps {
		s = append(s, string(x.Action))
	}
	return strings.Join(s, " ")
}

// expect checks what a start did, how long it waited, and that it holds the device.
func (h *host) expect(out fence.Outcome, did string, waited time.Duration) {
	h.w.t.Helper()
	if steps(out) != did || out.Waited != waited || out.Jump != (waited > 0) {
		h.w.t.Errorf("it did %q, waited %s, jump %v (%s); want %q and %s", steps(out), out.Waited, out.Jump, out.Why, did, waited)
	}
	if st := h.status(); st.Holder != h.r.Key || st.Type != fence.WriteExclusive {
		h.w.t.Errorf("after it: %+v", st)
	}
}

const longWait = stall + fence.Margin

func TestEachWayToStartWaitsOrNot(t *testing.T) {
	for _, transport := range []fence.Transport{fence.NVMe, fence.SCSI} {
		t.Run(string(transport), func(t *testing.T) {
			begin := func() (*world, *host) {
				w := newWorld(t, simfence.Config{Transport: transport, Volatile: true})
				a := w.start("A", 1)
				a.expect(a.own(), "register reserve", 0)
				return w, a
			}
			t.Run("ordinary restart", func(t *testing.T) {
				w, _ := begin()
				again := w.start("A", 1)
				again.expect(again.own(), "replace", 0)
			})
			t.Run("reboot of the host", func(t *testing.T) {
				w, _ := begin()
				again := w.start("A", 2)
				again.expect(again.own(), "replace wait", longWait)
			})
			t.Run("takeover by abort", func(t *testing.T) {
				w, a := begin()
				b := w.start("B", 3)
				out := b.own()
				b.expect(out, "replace watch register preempt", 0)
				if out.Victim != a.r.Key || !out.Aborted {
					t.Errorf("victim %s, aborted %v", out.Victim, out.Aborted)
				}
				if err := fence.Check(a.f, a.r.Key); !errors.Is(err, fence.ErrFenced) || !strings.Contains(err.Error(), b.r.Key.String()) {
					t.Errorf("the victim learns: %v", err)
				}
			})
			t.Run("plain takeover", func(t *testing.T) {
				w, _ := begin()
				b := w.start("B", 3)
				b.r.Abort = false
				b.expect(b.own(), "replace watch register preempt wait", longWait)
			})
			t.Run("closed in order, started elsewhere", func(t *testing.T) {
				w, _ := begin()
				w.owner.Clean = true
				b := w.start("B", 3)
				b.expect(b.own(), "replace register preempt", 0)
			})
			t.Run("target reset", func(t *testing.T) {
				w, a := begin()
				w.target.Reset()
				if err := fence.Check(a.f, a.r.Key); !errors.Is(err, fence.ErrFenced) {
					t.Errorf("the owner learns: %v", err)
				}
				b := w.start("B", 3)
				b.expect(b.own(), "watch register reserve wait", fence.LateWrites)
			})
			t.Run("the taker died after its preempt", func(t *testing.T) {
				w, _ := begin()
				b := w.start("B", 3)
				if _, err := b.acquire(); err != nil { // and no superblock
					t.Fatal(err)
				}
				c := w.start("C", 4)
				c.expect(c.own(), "replace watch register preempt wait", fence.LateWrites)
			})
			t.Run("it takes over twice in a short time", func(t *testing.T) {
				w, _ := begin()
				b := w.start("B", 3)
				b.r.Abort = false
				b.expect(b.own(), "replace watch register preempt wait", longWait)
				w.owner.Unsettled = true
				c := w.start("C", 4)
				c.r.Abort, c.r.LateWrites = false, time.Minute
				c.expect(c.own(), "replace watch register preempt wait", time.Minute)
				w.owner.Unsettled = true
				again := w.start("C", 4)
				again.expect(again.own(), "replace", 0)
			})
			t.Run("a start that came to nothing hands its key back", func(t *testing.T) {
				w, a := begin()
				refused := w.start("A", 1)
				out, err := refused.acquire()
				if err != nil {
					t.Fatal(err)
				}
				if err := fence.HandBack(refused.f, out); err != nil || refused.status().Holder != a.r.Key {
					t.Fatalf("%v, %+v", err, refused.status())
				}
				again := w.start("A", 1)
				again.expect(again.own(), "replace", 0)
			})
			t.Run("one that ended while it waited, too", func(t *testing.T) {
				w, a := begin()
				stopped := w.start("A", 2)
				ctx, stop := context.WithCancel(context.Background())
				w.during = func(time.Duration) { stop() }
				if _, err := fence.Acquire(ctx, stopped.f, stopped.r); !errors.Is(err, context.Canceled) || a.status().Holder != a.r.Key {
					t.Fatalf("%v, %+v", err, a.status())
				}
				w.during = nil
				again := w.start("A", 2)
				again.expect(again.own(), "replace wait", longWait)
			})
			t.Run("a takeover that came to nothing keeps the device", func(t *testing.T) {
				w, _ := begin()
				b := w.start("B", 3)
				out, err := b.acquire()
				if err != nil {
					t.Fatal(err)
				}
				if err := fence.HandBack(b.f, out); err != nil || b.status().Holder != b.r.Key {
					t.Fatalf("%v, %+v", err, b.status())
				}
				again := w.start("B", 3)
				again.expect(again.own(), "replace wait", fence.LateWrites)
			})
			t.Run("it died and its host comes again", func(t *testing.T) {
				w, a := begin()
				b := w.start("B", 3)
				if _, err := b.acquire(); err != nil {
					t.Fatal(err)
				}
				again := w.start("A", 1) // the old owner's own host and boot
				again.expect(again.own(), "replace watch register preempt wait", fence.LateWrites)
				_ = a
				third := w.start("A", 1)
				third.expect(third.own(), "replace", 0)
			})
			t.Run("a registration is left from a start that died", func(t *testing.T) {
				w, a := begin()
				b := w.start("B", 3)
				b.r.Before = func(s fence.Step) error {
					if s.Action == fence.ActPreempt {
						b.a.Kill()
					}
					return nil
				}
				if _, err := b.acquire(); !errors.Is(err, simfence.ErrDead) || !a.status().Has(b.r.Key) {
					t.Fatalf("%v, %+v", err, a.status())
				}
				again := w.start("B", 3)
				again.expect(again.own(), "replace watch register preempt", 0)
			})
		})
	}
}

// The wait counts from the first look as holder, not from the start, and shows life by a
// registration per heartbeat.
func TestTheWaitBeginsWhenItHolds(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	b := w.start("B", 3)
	b.r.Abort = false
	var heldAt time.Duration
	var generation uint32
	b.r.Before = func(s fence.Step) error {
		if s.Action == fence.ActWait && heldAt == 0 {
			heldAt, generation = w.now, b.status().Generation
		}
		return nil
	}
	b.own()
	if heldAt != fence.QuietBeats*fence.HeartbeatEvery || w.now-heldAt != longWait {
		t.Errorf("held after %s, waited %s", heldAt, w.now-heldAt)
	}
	if beats := time.Duration(b.status().Generation - generation); beats != longWait/fence.HeartbeatEvery {
		t.Errorf("%d heartbeats in %s", beats, longWait)
	}
}

// Whom the wait is about is read again once the device is held.
func TestTheOwnerIsReadAgainAfterTheFence(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	c := w.start("C", 2)
	if _, err := c.acquire(); err != nil { // its superblock is on its way
		t.Fatal(err)
	}
	land := func() {
		w.owner = fence.Owner{Node: "n", Epoch: 2, Key: c.r.Key, Boot: c.r.Boot, StallAfter: stall}
	}
	b := w.start("B", 3)
	b.r.Before = func(s fence.Step) error {
		if s.Action == fence.ActPreempt {
			land()
		}
		return nil
	}
	b.expect(b.own(), "replace watch register preempt", 0)

	// Once it must wait, a superblock that lands does not shorten the wait.
	w = newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	c = w.start("C", 2)
	if _, err := c.acquire(); err != nil {
		t.Fatal(err)
	}
	b = w.start("B", 3)
	w.during = func(time.Duration) {
		if w.target.Holder() == "B" {
			land()
		}
	}
	b.expect(b.own(), "replace watch register preempt wait", fence.LateWrites)
}

func TestAReservationIsNeverReleasedInPassing(t *testing.T) {
	gaveUp := errors.New("the operator gave up")
	for _, abort := range []bool{false, true} {
		for after, mayHold := range map[fence.Action]bool{fence.ActReplace: false, fence.ActRegister: false, fence.ActPreempt: false, fence.ActWait: true} {
			w := newWorld(t, simfence.Config{})
			a := w.start("A", 1)
			a.own()
			b := w.start("B", 3)
			b.r.Abort = abort
			b.r.Before = func(s fence.Step) error {
				if s.Action == after {
					return gaveUp
				}
				return nil
			}
			_, err := b.acquire()
			want := "A"
			if abort && after == fence.ActWait { // there is none
				if want = "B"; err != nil {
					t.Errorf("abort: %v", err)
				}
			} else if !errors.Is(err, gaveUp) {
				t.Errorf("given up before %s: %v", after, err)
			}
			if mayHold {
				want = "B"
			}
			if w.target.Holder() != want || want == "A" && a.status().Has(b.r.Key) {
				t.Errorf("abort %v, given up before %s: %q holds, %+v", abort, after, w.target.Holder(), a.status())
			}
		}
	}
	w := newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	b := w.start("B", 3)
	newest := b.r.Newest
	b.r.Newest = func(ctx context.Context) (fence.Owner, error) {
		if w.target.Holder() == "B" {
			return fence.Owner{}, gaveUp // the superblocks cannot be read any more
		}
		return newest(ctx)
	}
	if _, err := b.acquire(); !errors.Is(err, gaveUp) || w.target.Holder() != "B" {
		t.Errorf("%v, and %q holds", err, w.target.Holder())
	}
}

func TestALivingOwnerIsRefusedByName(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	a := w.start("A", 1)
	a.own()
	w.during = func(now time.Duration) {
		if now >= 3*time.Second {
			w.writes++
		}
	}
	b := w.start("B", 3)
	before := b.status()
	if _, err := b.acquire(); !errors.Is(err, fence.ErrHeld) || !strings.Contains(err.Error(), a.r.Key.String()) {
		t.Fatalf("got %v", err)
	}
	if after := b.status(); after.Generation != before.Generation || after.Has(b.r.Key) {
		t.Errorf("the device was changed: %+v", after)
	}
	b.r.Take = fence.TakeForced
	b.expect(b.own(), "replace register preempt", 0)
}

// A start that waits or recovers registers its key every heartbeat, so that another does
// not take it for dead.
func TestAStartThatWaitsShowsLife(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	b, c := w.start("B", 3), w.start("C", 4)
	b.r.Abort = false
	var refused error
	b.r.Before = func(s fence.Step) error {
		if s.Action == fence.ActWait && refused == nil {
			inner := &interleaved{world: w, beat: func() { _ = fence.Beat(b.f, b.r.Key) }}
			c.r.Clock = inner
			_, refused = c.acquire()
		}
		return nil
	}
	b.expect(b.own(), "replace watch register preempt wait", longWait)
	if !errors.Is(refused, fence.ErrHeld) || !strings.Contains(refused.Error(), b.r.Key.String()) {
		t.Errorf("the second standby got %v", refused)
	}
}

// interleaved is a clock under which another host's heartbeats go on.
type interleaved struct {
	*world
	beat func()
}

func (i *interleaved) Sleep(ctx context.Context, d time.Duration) error {
	i.beat()
	return i.world.Sleep(ctx, d)
}

func TestOfTwoTakersOneWins(t *testing.T) {
	for _, at := range []fence.Action{fence.ActReplace, fence.ActWatch, fence.ActRegister, fence.ActPreempt} {
		t.Run("overtaken before "+string(at), func(t *testing.T) {
			w := newWorld(t, simfence.Config{})
			w.start("A", 1).own()
			b, c := w.start("B", 3), w.start("C", 4)
			overtaken := false
			b.r.Before = func(s fence.Step) error {
				if s.Action == at && !overtaken {
					overtaken = true
					c.own()
					w.during = func(time.Duration) { w.writes++ } // C serves
				}
				return nil
			}
			_, err := b.acquire()
			if !errors.Is(err, fence.ErrLostRace) && !errors.Is(err, fence.ErrHeld) || !strings.Contains(err.Error(), c.r.Key.String()) {
				t.Errorf("the loser got %v", err)
			}
			if st := c.status(); st.Holder != c.r.Key || st.Has(b.r.Key) {
				t.Errorf("after it: %+v, the loser's key is %s", st, b.r.Key)
			}
		})
	}
}

func TestAnAnswerThatIsLostIsReadBack(t *testing.T) {
	w := newWorld(t, simfence.Config{AbortHangs: true})
	w.start("A", 1).own()
	b := w.start("B", 3)
	if _, err := b.acquire(); !errors.Is(err, fence.ErrUnanswered) || !strings.Contains(err.Error(), "WALSIDECAR_PREEMPT=plain") {
		t.Fatalf("got %v", err)
	}
	if w.target.Holder() != "B" {
		t.Fatalf("%q holds: a reservation was released in passing", w.target.Holder())
	}
	again := w.start("B", 3) // the abort may still be waiting: it waits too
	again.expect(again.own(), "replace wait", fence.LateWrites)
}

func TestPreemptThatWasCarriedOutAndReportedAsConflictMeansWaiting(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	b := w.start("B", 3)
	b.a.After = func(command string) error {
		if command == "preempt" {
			return fmt.Errorf("%w: the kernel sent it twice", fence.ErrConflict)
		}
		return nil
	}
	b.expect(b.own(), "replace watch register preempt wait", longWait)
}

func TestPreemptedWhileItWaits(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	w.start("A", 1).own()
	b, c := w.start("B", 3), w.start("C", 4)
	b.r.Abort = false
	b.r.Before = func(s fence.Step) error {
		if s.Action == fence.ActWait && w.target.Holder() == "B" {
			c.r.Take = fence.TakeForced
			c.own()
		}
		return nil
	}
	if _, err := b.acquire(); !errors.Is(err, fence.ErrLostRace) || !strings.Contains(err.Error(), c.r.Key.String()) {
		t.Fatalf("got %v", err)
	}
	if w.target.Holder() != "C" {
		t.Errorf("%q holds", w.target.Holder())
	}
}

func TestAttachAndLock(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	h := w.start("A", 1)
	h.f = fence.Without(fence.ModeAttach, fence.Capabilities{})
	if out, err := h.acquire(); err != nil || out.Jump || steps(out) != "" {
		t.Errorf("a new log: %+v, %v", out, err)
	}
	w.owner = fence.Owner{Node: "n", Epoch: 1, Boot: [16]byte{7}, StallAfter: stall}
	out, err := h.acquire()
	if err != nil || !out.Jump || out.Waited != longWait || steps(out) != "watch wait" {
		t.Errorf("another host's log: %+v, %v", out, err)
	}
	w.during = func(time.Duration) { w.writes++ }
	if _, err := h.acquire(); !errors.Is(err, fence.ErrHeld) {
		t.Errorf("a volume that is attached twice, with a living owner: %v", err)
	}
	h.f = fence.Without(fence.ModeLock, fence.Capabilities{})
	if out, err := h.acquire(); err != nil || out.Jump {
		t.Errorf("a file: %+v, %v", out, err)
	}
	if err := h.f.Reserve(1); !errors.Is(err, fence.ErrUnsupported) {
		t.Errorf("reserve on a file: %v", err)
	}
	if err := fence.Watch(context.Background(), h.f, 1, w, false); err != nil {
		t.Errorf("watch on a file: %v", err)
	}
}

func TestWatchEndsWhenTheFenceIsLost(t *testing.T) {
	w := newWorld(t, simfence.Config{Volatile: true})
	a := w.start("A", 1)
	a.own()
	generation := a.status().Generation
	w.during = func(now time.Duration) {
		if now == 4*time.Second {
			w.target.Reset()
		}
	}
	if err := fence.Watch(context.Background(), a.f, a.r.Key, w, false); !errors.Is(err, fence.ErrFenced) || w.now != 4*time.Second {
		t.Errorf("after %s: %v", w.now, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b := w.start("A", 1)
	b.own()
	before := b.status().Generation
	end := w.now + 3*time.Second
	w.during = func(now time.Duration) {
		if now == end {
			stop()
		}
	}
	if err := fence.Watch(ctx, b.f, b.r.Key, w, true); err != nil {
		t.Errorf("told to end: %v", err)
	}
	if beats := b.status().Generation - before; beats != 2 {
		t.Errorf("%d heartbeats in 3 s, the last of which was not waited out (generation was %d)", beats, generation)
	}
}

func TestWatchOutlivesAStatusThatCannotBeReadTwice(t *testing.T) {
	w := newWorld(t, simfence.Config{})
	a := w.start("A", 1)
	a.own()
	broken, fails := errors.New("I/O error"), 0
	a.a.Before = func(string) error {
		if fails++; slices.Contains([]int{1, 2, 4, 5, 6}, fails) {
			return broken
		}
		return nil
	}
	if err := fence.Watch(context.Background(), a.f, a.r.Key, w, false); !errors.Is(err, broken) || fails != 6 {
		t.Errorf("after %d reads: %v", fails, err)
	}
}

func TestClearTakesOnlyFromTheOneThatWasNamed(t *testing.T) {
	for _, transport := range []fence.Transport{fence.NVMe, fence.SCSI} {
		w := newWorld(t, simfence.Config{Transport: transport})
		a := w.start("A", 1)
		a.own()
		b := w.start("B", 2)
		if err := b.f.Clear(b.r.Key, 0x1234); !errors.Is(err, fence.ErrConflict) || w.target.Holder() != "A" {
			t.Errorf("wrong expectation: %v, %q holds", err, w.target.Holder())
		}
		// Another takes it between the look and the clear.
		c := w.start("C", 3)
		b.a.Before = func(command string) error {
			if command == "preempt" {
				c.own()
			}
			return nil
		}
		if err := b.f.Clear(b.r.Key, a.r.Key); !errors.Is(err, fence.ErrConflict) || w.target.Holder() != "C" {
			t.Errorf("overtaken: %v, %q holds", err, w.target.Holder())
		}
		b.a.Before = nil
		if err := b.f.Clear(b.r.Key, c.r.Key); err != nil {
			t.Error(err)
		}
		if st := a.status(); len(st.Keys) != 0 || st.Type != fence.NoReservation {
			t.Errorf("after clear: %+v", st)
		}
		// The holder's own host.
		a2 := w.start("A", 1)
		a2.own()
		b2 := w.start("A", 1)
		if err := b2.f.Clear(b2.r.Key, a2.r.Key); err != nil || len(a2.status().Keys) != 0 {
			t.Errorf("by the holder's host: %v, %+v", err, a2.status())
		}
	}
}
