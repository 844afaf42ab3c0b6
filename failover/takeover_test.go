package failover_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/failover"
	"github.com/walsidecar/walsidecar/fence"
	peernode "github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/sidecar"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

func TestP2_TakeoverDrainsWhatWasAcked(t *testing.T) {
	t.Parallel()
	p := dead(t)
	r, err := failover.Takeover(t.Context(), p.options())
	if err != nil {
		t.Fatal(err)
	}
	p.checkStored()
	if r.Node != node || r.FormerEpoch != 1 || r.Epoch != 2 || r.WasClean || r.RecoveredRecords != 2010 || r.UploadedRecords != 2010 || r.UploadedBytes == 0 ||
		r.Fence.Mode != fence.ModeLock {
		t.Errorf("%+v", r)
	}
	ends, _ := json.Marshal(r.Streams)
	if want := `[{"stream":"audit","stream_id":2,"first_offset":0,"next_offset":10},{"stream":"orders","stream_id":1,"first_offset":0,"next_offset":2000}]`; string(ends) != want {
		t.Errorf("streams %s", ends)
	}
	var steps []string
	for _, s := range r.Steps {
		steps = append(steps, s.Step)
	}
	if got, _ := json.Marshal(steps); string(got) != `["look","identify","fence","manifest","recover","superblock","claim","checkpoint","upload","close"]` {
		t.Errorf("steps %s", got)
	}
	id, err := peernode.Identify(p.wal, node)
	if err != nil || !id.Owner.Clean || id.Owner.Epoch != 2 {
		t.Errorf("the log is not marked drained: %+v, %v", id, err)
	}
	// Again: there is nothing left to do, and doing it harms nothing.
	again, err := failover.Takeover(t.Context(), p.options())
	if err != nil || again.UploadedRecords != 0 || !again.WasClean || again.Epoch != 3 {
		t.Errorf("again: %+v, %v", again, err)
	}
	p.checkStored()
	// Its own host goes on with it.
	p.serve()
	p.append("orders", 5)
	p.kill()
	if _, err := failover.Takeover(t.Context(), p.options()); err != nil {
		t.Fatal(err)
	}
	p.checkStored()
}

func TestADryRunForeseesAndWritesNothing(t *testing.T) {
	t.Parallel()
	p := dead(t)
	log, objects := digest(t, p.wal), digest(t, p.objects)
	f, err := failover.Foresee(t.Context(), p.options())
	if err != nil {
		t.Fatal(err)
	}
	if digest(t, p.wal) != log || digest(t, p.objects) != objects {
		t.Error("a dry run wrote something")
	}
	r, err := failover.Takeover(t.Context(), p.options())
	if err != nil {
		t.Fatal(err)
	}
	if f.Records != r.RecoveredRecords || f.UploadRecords != r.UploadedRecords || f.UploadBytes != r.UploadedBytes || f.Epoch != r.FormerEpoch || f.Node != r.Node ||
		f.Fence != r.Fence.Mode || len(f.Streams) != len(r.Streams) || f.Streams[1] != r.Streams[1] {
		t.Errorf("foreseen %+v\ncame     %+v", f, r)
	}
}

// P8: what is not the log that is meant is not written.
func TestP8_TheWrongLogIsRefused(t *testing.T) {
	t.Parallel()
	p := dead(t)
	log, objects := digest(t, p.wal), digest(t, p.objects)
	empty, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	nothing := filepath.Join(p.dir, "nothing")
	if err := device.CreateFile(nothing, 32<<20); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*failover.Options)
		err    error
		exit   int
	}{
		"another node":  {func(o *failover.Options) { o.Node = "peer-2" }, peernode.ErrNotOurs, 12},
		"no log":        {func(o *failover.Options) { o.Device = nothing }, peernode.ErrNoLog, 12},
		"no file":       {func(o *failover.Options) { o.Device = p.wal + "x" }, os.ErrNotExist, 1},
		"another store": {func(o *failover.Options) { o.Objects = empty }, failover.ErrOtherStore, 15},
	} {
		o := p.options()
		c.change(&o)
		for _, do := range []func() error{
			func() error { _, err := failover.Takeover(t.Context(), o); return err },
			func() error { _, err := failover.Foresee(t.Context(), o); return err },
		} {
			if err := do(); !errors.Is(err, c.err) || exitOf(err) != c.exit {
				t.Errorf("%s: exit %d, %v", name, exitOf(err), err)
			}
		}
	}
	if digest(t, p.wal) != log || digest(t, p.objects) != objects {
		t.Error("something was written")
	}
}

func exitOf(err error) int {
	if code := sidecar.CodeOf(err); code != wire.CodeInternal {
		return code.Info().ExitCode
	}
	return 1
}

func TestALivingOwnerKeepsItsFile(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	p.append("orders", 10)
	for _, forced := range []bool{false, true} {
		o := p.options()
		o.Fencing.Forced = forced
		if _, err := failover.Takeover(t.Context(), o); !errors.Is(err, device.ErrInUse) || exitOf(err) != 14 {
			t.Errorf("forced %v: %v", forced, err)
		}
	}
	p.append("orders", 10)
}

// Two takeovers that saw the same owner: one takes the log from it, the other says who did.
func TestP6_TwoTakeoversAtOnce(t *testing.T) {
	t.Parallel()
	p := dead(t)
	// Both look at the owner before either has changed anything.
	var looked sync.WaitGroup
	looked.Add(2)
	type end struct {
		r   *failover.Report
		err error
	}
	ends := make(chan end, 2)
	for range 2 {
		o := p.options()
		var once sync.Once
		o.Objects = &watched{Store: o.Objects, asked: func() {
			once.Do(func() { looked.Done(); looked.Wait() })
		}}
		go func() {
			r, err := failover.Takeover(t.Context(), o)
			ends <- end{r, err}
		}()
	}
	won := 0
	for range 2 {
		e := <-ends
		switch {
		case e.err == nil:
			won++
		case exitOf(e.err) != 14:
			t.Errorf("the loser: exit %d, %v", exitOf(e.err), e.err)
		}
	}
	if won != 1 {
		t.Errorf("%d takeovers won", won)
	}
	p.checkStored()
}

// watched tells before each read of a manifest.
type watched struct {
	store.Store
	asked func()
}

func (s *watched) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	s.asked()
	return s.Store.Get(ctx, key)
}

// A store that is down is waited for, and the drain goes on by itself.
func TestP5_AStoreThatIsDownDuringTheDrain(t *testing.T) {
	t.Parallel()
	for from := int64(1); from <= 6; from += 2 {
		p := dead(t)
		o := p.options()
		s := &troubled{Store: o.Objects, from: from, to: from + 3}
		o.Objects = s
		if _, err := failover.Takeover(t.Context(), o); err != nil {
			t.Fatalf("down from request %d on: %v", from, err)
		}
		if s.requests.Load() < s.from {
			t.Errorf("only %d requests: the store was never down", s.requests.Load())
		}
		p.checkStored()
	}
}

// A takeover that is interrupted, at whatever request to the store, is repeated, and comes to
// the same end.
func TestP2_ATakeoverIsInterruptedAndRepeated(t *testing.T) {
	t.Parallel()
	p := dead(t)
	interrupted := 0
	for from := int64(1); ; from++ {
		ctx, cancel := context.WithCancel(t.Context())
		o := p.options()
		o.Objects = &troubled{Store: o.Objects, from: from, to: 1 << 62, failed: cancel}
		_, err := failover.Takeover(ctx, o)
		cancel()
		if err == nil {
			break
		}
		interrupted++
		if !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("interrupted at request %d: %v", from, err)
		}
		if id, err := peernode.Identify(p.wal, node); err != nil || id.Owner.Clean {
			t.Fatalf("interrupted at request %d, it is marked drained: %+v, %v", from, id, err)
		}
	}
	if interrupted < 4 {
		t.Errorf("interrupted %d times", interrupted)
	}
	p.checkStored()
}

// P6: a takeover that is overtaken while it drains changes nothing any more.
func TestP6_ATakeoverIsOvertakenByTheManifest(t *testing.T) {
	t.Parallel()
	p := dead(t)
	o := p.options()
	other := [16]byte{1: 1}
	s := &troubled{Store: o.Objects}
	s.from, s.to = 5, 6 // after the claim
	s.failed = func() {
		m, version, err := upload.ReadManifest(t.Context(), s.Store, node)
		if err != nil {
			t.Error(err)
			return
		}
		m.Epoch, m.Incarnation, m.Attempt = m.Epoch+10, other, 1
		body, err := m.Encode()
		if err == nil {
			_, err = s.Store.PutIfMatch(t.Context(), upload.ManifestKey(node), body, version)
		}
		if err != nil {
			t.Error(err)
		}
	}
	o.Objects = s
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := failover.Takeover(ctx, o); !errors.Is(err, fence.ErrLostRace) || exitOf(err) != 14 {
		t.Errorf("exit %d, %v", exitOf(err), err)
	}
	if m, _, err := upload.ReadManifest(t.Context(), s.Store, node); err != nil || m.Incarnation != other {
		t.Errorf("the manifest was changed: %+v, %v", m, err)
	}
	// The device has never had that owner, so it served a copy of it: this one has lost its place.
	if r, err := failover.Takeover(t.Context(), p.options()); !errors.Is(err, upload.ErrOlderSnapshot) || exitOf(err) != 12 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// One damaged superblock copy is nothing; all of them, and nobody calls it a new log.
func TestP7_DamagedSuperblocks(t *testing.T) {
	t.Parallel()
	p := dead(t)
	damage := func(slots ...int) {
		f, err := os.OpenFile(p.wal, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, slot := range slots {
			if _, err := f.WriteAt([]byte("rot"), int64(slot)*ringwal.SlotBytes+100); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := peernode.Inspect(p.wal)
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(p.wal)
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, s := range found.Superblocks {
		all = append(all, s.Slot)
	}
	damage(all...)
	before := digest(t, p.wal)
	if _, err := failover.Takeover(t.Context(), p.options()); exitOf(err) != 11 {
		t.Errorf("all copies damaged: exit %d, %v", exitOf(err), err)
	}
	if digest(t, p.wal) != before {
		t.Error("the damaged log was written")
	}
	if err := os.WriteFile(p.wal, image, 0o600); err != nil {
		t.Fatal(err)
	}
	damage(found.Newest)
	if _, err := failover.Takeover(t.Context(), p.options()); err != nil {
		t.Fatalf("the newest copy damaged: %v", err)
	}
	p.checkStored()
}

// P12: a log that was full when its owner died has room for its takeover.
func TestP12_AFullLogIsDrained(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	p.append("orders", 1)
	p.breakStore()
	p.fill()
	p.kill()
	p.mendStore()
	if _, err := failover.Takeover(t.Context(), p.options()); err != nil {
		t.Fatal(err)
	}
	p.checkStored()
}

func TestStandbyTakesOverTheSilent(t *testing.T) {
	t.Parallel()
	p := dead(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var taken *failover.Report
	err := failover.Standby(ctx, failover.StandbyOptions{Options: p.options(), Devices: []string{p.wal}, SilentFor: time.Second,
		Taken: func(r *failover.Report) { taken = r; cancel() }})
	if err != nil || taken == nil || taken.UploadedRecords != 2010 {
		t.Fatalf("%+v, %v", taken, err)
	}
	p.checkStored()
}

// A takeover is not begun while the store takes no writes: it could only use up a window.
func TestNothingIsBegunWhileTheStoreTakesNoWrites(t *testing.T) {
	t.Parallel()
	p := dead(t)
	log := digest(t, p.wal)
	ctx, cancel := context.WithCancel(t.Context())
	o := p.options()
	o.Objects = &unwritable{Store: o.Objects, asked: cancel}
	if _, err := failover.Takeover(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if digest(t, p.wal) != log {
		t.Error("the log was written")
	}
}

// unwritable is a store that takes no writes.
type unwritable struct {
	store.Store
	asked func()
}

func (s *unwritable) PutIfAbsent(context.Context, string, []byte) (store.Version, error) {
	s.asked()
	return "", store.ErrUnavailable
}

// P6 rests on conditional writes: a store without them gets nothing.
func TestP6_AStoreWithoutConditionalWrites(t *testing.T) {
	t.Parallel()
	p := dead(t)
	o := p.options()
	o.Objects = &careless{o.Objects}
	if _, err := failover.Takeover(t.Context(), o); !errors.Is(err, store.ErrNoConditionalWrites) || exitOf(err) != 15 {
		t.Errorf("exit %d, %v", exitOf(err), err)
	}
	if _, err := failover.Takeover(t.Context(), p.options()); err != nil {
		t.Fatal(err)
	}
	p.checkStored()
}

// careless is a store that overwrites whatever there is.
type careless struct{ store.Store }

func (s *careless) PutIfAbsent(ctx context.Context, key string, body []byte) (store.Version, error) {
	if err := s.Store.Delete(ctx, []string{key}); err != nil {
		return "", err
	}
	return s.Store.PutIfAbsent(ctx, key, body)
}
