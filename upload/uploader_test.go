package upload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// bubble runs a test in a time of its own. Encoders and decoders wait by channels, which
// may not leave a bubble.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	fresh := func() { encoders, decoders = sync.Pool{New: encoders.New}, sync.Pool{New: decoders.New} }
	fresh()
	defer fresh()
	synctest.Test(t, f)
}

// running is a log with an uploader of it that runs.
type running struct {
	t      *testing.T
	log    *testWorld
	s      *simstore.Store
	o      Options
	u      *Uploader
	shown  int // frames that are durable for the uploader
	frames atomic.Pointer[[]testFrame]
	broken atomic.Bool
	fenced chan error
}

// newRunning starts an uploader of the log, which shows nothing yet.
func newRunning(t *testing.T, log *testWorld, s *simstore.Store, epoch uint64) *running {
	t.Helper()
	r := &running{t: t, log: log, s: s, fenced: make(chan error, 1)}
	incarnation := [16]byte{byte(epoch), 1}
	claimed, err := Claim(background, s, Claimant{Log: testLog, Node: "test", Epoch: epoch, Incarnation: incarnation, End: 1 << 40})
	must(t, err)
	r.o = Options{Store: s, Logger: slog.New(slog.DiscardHandler), Frames: r.frame, Fenced: func(err error) { r.fenced <- err },
		Settings: Settings{Node: "test", Log: testLog, Epoch: epoch, Incarnation: incarnation, Claimed: claimed, Seed: 1}}
	r.start()
	return r
}

// start starts an uploader, whose time is that of the test.
func (r *running) start() {
	r.u = NewUploader(r.o)
	r.u.now = func() Instant { return Instant{NS: time.Now().UnixNano(), WallNS: time.Now().UnixNano()} }
	r.u.Start()
}

func (r *running) frame(position uint64) (ringwal.FrameView, uint64, error) {
	if r.broken.Load() {
		return ringwal.FrameView{}, 0, errors.New("the device does not read")
	}
	frames := *r.frames.Load()
	f := frames[sort.Search(len(frames), func(i int) bool { return frames[i].Position >= position })].FrameView
	return f, f.End(), nil
}

// show makes all frames durable, and returns the end of the data.
func (r *running) show() (dataEnd uint64) {
	frames := r.log.frames
	r.frames.Store(&frames)
	for i := range r.log.frames {
		f := &r.log.frames[i]
		if f.Kind == ringwal.FrameData {
			dataEnd = f.End()
		}
		if i >= r.shown {
			r.u.Advance(f.End(), dataEnd)
		}
	}
	r.shown = len(r.log.frames)
	return dataEnd
}

// grow appends a record in a frame of its own.
func (r *running) grow(payload string) (dataEnd uint64) {
	r.log.append1(r.log.stream("s"), payload)
	r.log.readFramesAgain()
	return r.show()
}

// readFramesAgain is sync, with the bodies of checkpoints.
func (w *testWorld) readFramesAgain() {
	w.sync()
	w.readFrames()
}

func (r *running) close() {
	ctx, cancel := context.WithTimeout(background, time.Second)
	defer cancel()
	r.u.Close(ctx)
}

func TestRecordsAreInTheStoreWithinTheLinger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
		defer r.close()
		end := r.grow("first")
		time.Sleep(DefaultLinger - time.Millisecond)
		synctest.Wait()
		if n := r.s.Requests(simstore.Put); n != 0 {
			t.Errorf("%d puts before the linger is over", n)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if r.u.Uploaded() != end {
			t.Fatalf("uploaded %d, want %d", r.u.Uploaded(), end)
		}
		// From then on one object and one manifest per linger, however many frames.
		puts, commits := r.s.Requests(simstore.Put), r.s.Requests(simstore.Replace)
		for i := range 100 {
			end = r.grow(fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * DefaultLinger)
		synctest.Wait()
		puts, commits = r.s.Requests(simstore.Put)-puts, r.s.Requests(simstore.Replace)-commits
		if puts < 9 || puts > 11 || commits < 9 || commits > 11 || r.u.Uploaded() != end {
			t.Errorf("%d puts and %d commits in ten seconds; uploaded %d of %d", puts, commits, r.u.Uploaded(), end)
		}
	})
}

func TestIdleAndControlFramesCostNoRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
		defer r.close()
		r.grow("x")
		time.Sleep(time.Minute)
		synctest.Wait()
		before := requests(r.s)
		for range 3 {
			must(t, r.log.c.Checkpoint())
			r.log.readFramesAgain()
			r.show()
			r.u.Flush()
			time.Sleep(24 * time.Hour)
		}
		synctest.Wait()
		if n := requests(r.s) - before; n != 0 {
			t.Errorf("%d requests in three idle days", n)
		}
		if s := r.u.Stats(); s.LagBytes != 0 || s.LagAge != 0 {
			t.Errorf("lag %d bytes, %v", s.LagBytes, s.LagAge)
		}
	})
}

// Frames without data are uploaded where the log has to let go of them: once, as an object
// that holds nothing.
func TestControlFramesAreUploadedWhenTheyAreAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
		defer r.close()
		end := r.grow("x")
		time.Sleep(time.Minute)
		must(t, r.log.c.Checkpoint())
		r.log.readFramesAgain()
		r.show()
		durable := r.log.frames[len(r.log.frames)-1].End()
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.u.Uploaded() != end || durable == end {
			t.Fatalf("uploaded %d, want %d of %d", r.u.Uploaded(), end, durable)
		}
		before := requests(r.s)
		r.u.Advance(durable, durable)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := requests(r.s) - before; r.u.Uploaded() != durable || n != 2 {
			t.Errorf("uploaded %d of %d with %d requests", r.u.Uploaded(), durable, n)
		}
		r.u.Advance(durable, durable)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := requests(r.s) - before; n != 2 {
			t.Errorf("%d requests", n)
		}
		end = r.grow("y")
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.u.Uploaded() != end {
			t.Errorf("uploaded %d, want %d", r.u.Uploaded(), end)
		}
		if report, err := Verify(background, r.s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) }); err != nil {
			t.Errorf("verify: %+v, %v", report, err)
		}
		a, err := OpenArchive(background, r.s, "test", nil)
		must(t, err)
		compareState(t, r.log, a)
	})
}

func requests(s *simstore.Store) (n int) {
	for op := simstore.Put; op <= simstore.Delete; op++ {
		n += s.Requests(op)
	}
	return n
}

func TestFlushDoesNotWaitForTheLinger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
		defer r.close()
		for i := range 5 {
			end := r.grow(fmt.Sprint(i))
			r.u.Flush()
			synctest.Wait() // no time passes
			if r.u.Uploaded() != end {
				t.Fatalf("uploaded %d, want %d", r.u.Uploaded(), end)
			}
		}
	})
}

// An outage of an hour: it is told, the memory stays within its bound, and all is in the
// store soon after.
func TestP12_AnOutageHealsByItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		log := newTestWorld(t, 64<<20, 0)
		var down atomic.Bool
		s := &simstore.Store{Inject: func(c simstore.Call) simstore.Fault {
			if down.Load() {
				return []simstore.Fault{simstore.Unavailable, simstore.Denied}[c.N%2]
			}
			return simstore.None
		}}
		r := newRunning(t, log, s, 1)
		r.close()
		r.o.MemoryBytes = 2 << 20
		claimed, err := Claim(background, s, Claimant{Log: testLog, Node: "test", Epoch: 2, Incarnation: [16]byte{2}, End: 1 << 40})
		must(t, err)
		r.o.Epoch, r.o.Incarnation, r.o.Claimed = 2, [16]byte{2}, claimed
		r.start()
		defer r.close()
		r.grow("x")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		down.Store(true)
		id, random := log.stream("bulk"), rand.New(rand.NewPCG(1, 1))
		payload := randomPayload(random, 250_000)
		for range 30 {
			log.append(&stream.Batch{Entries: []stream.Entry{{Stream: id, Payload: payload}}})
			log.sync()
		}
		log.readFramesAgain()
		end := r.show()
		began := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		state, stats := r.u.State(), r.u.Stats()
		if state.Retrying == nil || state.Fenced != nil || state.Since.Sub(began) > time.Minute {
			t.Errorf("%+v", state)
		}
		if stats.HeldBytes > r.o.MemoryBytes || stats.LagAge < time.Hour || stats.LagBytes < 7_000_000 {
			t.Errorf("%+v", stats)
		}
		if n := requests(s); n > 3*3600/10+100 {
			t.Errorf("%d requests in an hour", n)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.u.Uploaded() != end || r.u.State().Retrying != nil {
			t.Errorf("uploaded %d of %d; %+v", r.u.Uploaded(), end, r.u.State())
		}
		_, err = Verify(background, s, "test", func(f Finding) { t.Errorf("%s: %v", f.Key, f.Err) })
		must(t, err)
	})
}

// A device that does not read for a while is like a store that does not answer.
func TestFramesThatCannotBeReadAreReadLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
		defer r.close()
		r.broken.Store(true)
		end := r.grow("x")
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := r.u.State().Retrying; err == nil {
			t.Error("it is not told")
		}
		r.broken.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := r.u.State().Retrying; r.u.Uploaded() != end || err != nil {
			t.Errorf("uploaded %d of %d, %v", r.u.Uploaded(), end, err)
		}
	})
}

// A newer owner claims: the older one says once that it is fenced, and does nothing more.
func TestP6_AFencedUploaderSaysSoAndStops(t *testing.T) {
	bubble(t, func(t *testing.T) {
		log, s := newTestWorld(t, 64<<20, 0), &simstore.Store{}
		older := newRunning(t, log, s, 1)
		defer older.close()
		older.grow("x")
		time.Sleep(time.Minute)
		newer := newRunning(t, log, s, 2)
		defer newer.close()
		newer.grow("y")
		older.show()
		time.Sleep(time.Minute)
		select {
		case err := <-older.fenced:
			if !errors.Is(err, ErrFenced) || older.u.State().Fenced == nil {
				t.Error(err)
			}
		default:
			t.Fatal("the older one is not fenced")
		}
		if newer.u.Uploaded() != newer.show() || newer.u.State().Fenced != nil {
			t.Errorf("the newer one: %+v", newer.u.State())
		}
		before := requests(s)
		older.grow("z")
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := requests(s) - before; n != 0 {
			t.Errorf("the fenced one makes %d requests", n)
		}
	})
}

// A state object that rotted is told of, and does not keep records from the store.
func TestADamagedStateDoesNotStopUploads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		log, s := newTestWorld(t, 64<<20, 0), &simstore.Store{}
		r := newRunning(t, log, s, 1)
		r.grow("x")
		time.Sleep(time.Minute)
		r.close()
		m, _, err := ReadManifest(background, s, "test")
		must(t, err)
		s.Corrupt(m.State.ID.Key("test", KindState), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		r = newRunning(t, log, s, 2)
		defer r.close()
		end := r.grow("y")
		time.Sleep(time.Minute)
		synctest.Wait()
		if state := r.u.State(); r.u.Uploaded() != end || state.Retrying != nil || !errors.Is(state.Problem, ErrDamagedObject) {
			t.Errorf("uploaded %d of %d, %+v", r.u.Uploaded(), end, state)
		}
	})
}

func TestAdvanceAllocatesNothing(t *testing.T) {
	r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
	defer r.close()
	if n := testing.AllocsPerRun(1000, func() { r.u.Advance(0, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Close waits for requests on their way as long as it may, then cuts them off.
func TestCloseEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRunning(t, newTestWorld(t, 64<<20, 0), &simstore.Store{}, 1)
		r.grow("x")
		began := time.Now()
		r.close()
		if time.Since(began) > time.Second {
			t.Error("it took longer")
		}
	})
}

// BenchmarkUploader moves a log of 1 kB records, half of them text, to a store in memory.
func BenchmarkUploader(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 1))
	log := newTestWorld(b, 256<<20, 0)
	ids := []stream.ID{log.stream("a"), log.stream("b"), log.stream("c")}
	payloads := make([][]byte, 64)
	for i := range payloads {
		payloads[i] = randomPayload(random, 1000)
	}
	for range 100 {
		for range 600 {
			log.append(&stream.Batch{Entries: []stream.Entry{{Stream: ids[random.IntN(3)], Payload: payloads[random.IntN(64)]}}})
		}
		log.sync()
	}
	log.readFrames()
	last := log.frames[len(log.frames)-1].End()
	b.SetBytes(int64(last))
	for b.Loop() {
		s := &simstore.Store{}
		claimed, err := Claim(background, s, Claimant{Log: testLog, Node: "test", Epoch: 1, Incarnation: [16]byte{1}, End: last})
		must(b, err)
		done := make(chan struct{})
		u := NewUploader(Options{Store: s, Logger: slog.New(slog.DiscardHandler), Settings: Settings{Node: "test", Log: testLog, Epoch: 1,
			Incarnation: [16]byte{1}, Claimed: claimed, Committed: func(m *Manifest) {
				if m.Uploaded == last {
					close(done)
				}
			}},
			Frames: func(position uint64) (ringwal.FrameView, uint64, error) {
				f := log.frames[sort.Search(len(log.frames), func(i int) bool { return log.frames[i].Position >= position })].FrameView
				return f, f.End(), nil
			}})
		u.Start()
		u.Advance(last, last)
		u.Flush()
		<-done
		u.Close(background)
	}
}
