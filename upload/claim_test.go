package upload

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

var (
	otherLog = [16]byte{0xc1}
	mine     = Claimant{Log: testLog, Node: "test", Epoch: 7, Incarnation: [16]byte{7}, Trim: 4096, End: 9 << 12}
)

// held is a store with a manifest of testLog, held by epoch 6, up to position 8 << 12.
func held(t *testing.T, change func(*Manifest)) *simstore.Store {
	t.Helper()
	s := &simstore.Store{}
	m := &Manifest{Log: testLog, Node: "test", Epoch: 6, Incarnation: [16]byte{6}, Attempt: 3, Origin: 8 << 12, Uploaded: 8 << 12, NextSequence: 5}
	if change != nil {
		change(m)
	}
	body, err := m.Encode()
	must(t, err)
	_, err = s.PutIfMatch(background, ManifestKey("test"), body, "")
	must(t, err)
	return s
}

func TestTheFirstClaimMakesTheManifest(t *testing.T) {
	s := &simstore.Store{}
	got, err := Claim(background, s, mine)
	must(t, err)
	m, version, err := ReadManifest(background, s, "test")
	must(t, err)
	if m.Log != testLog || m.Epoch != 7 || m.Incarnation != mine.Incarnation || m.Origin != 4096 || m.Uploaded != 4096 || m.State != nil {
		t.Errorf("%+v", m)
	}
	if version != got.Version {
		t.Errorf("version %s, want %s", got.Version, version)
	}
}

// A device that has not had the manifest's owner, or went on before what that uploaded, is
// another copy of the volume, though it may hold more.
func TestP4_ACopyOfTheVolumeIsNotTheLog(t *testing.T) {
	owner := [16]byte{6}
	m := &Manifest{Log: testLog, Node: "test", Epoch: 6, Incarnation: owner, Origin: 4096, Uploaded: 8 << 12}
	device := func(epochs ...ringwal.Boundary) *ringwal.Superblock {
		newest := epochs[len(epochs)-1]
		return &ringwal.Superblock{UUID: testLog, Epoch: newest.Epoch, Incarnation: [16]byte{byte(newest.Epoch)}, Boundaries: epochs}
	}
	epoch := func(number, followed uint64) ringwal.Boundary {
		hash := xxhash.Sum64(append([]byte{byte(number)}, make([]byte, 15)...))
		return ringwal.Boundary{Epoch: number, IncarnationHash: hash, FollowEnd: followed, Start: followed}
	}
	another := epoch(6, 5<<12)
	another.IncarnationHash++
	stranger := device(another)
	stranger.Incarnation = [16]byte{9}
	for _, c := range []struct {
		name string
		sb   *ringwal.Superblock
		want error
	}{
		{"its owner", device(epoch(5, 4096), epoch(6, 5<<12)), nil},
		{"an epoch behind it that claimed nothing", device(epoch(6, 5<<12), epoch(7, 8<<12)), nil},
		{"its owner's epoch is trimmed", device(epoch(7, 8<<12), epoch(8, 9<<12)), nil},
		{"an older snapshot", device(epoch(5, 4096)), ErrOlderSnapshot},
		{"another owner of that epoch", stranger, ErrOlderSnapshot},
		{"and of one behind it", device(another, epoch(7, 9<<12)), ErrOlderSnapshot},
		{"went on by itself too early", device(epoch(6, 5<<12), epoch(7, 7<<12)), ErrOlderSnapshot},
		{"and again", device(epoch(6, 5<<12), epoch(7, 7<<12), epoch(8, 10<<12)), ErrOlderSnapshot},
	} {
		if err := m.CheckOwners(c.sb); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestP6_AClaimRefusesByName(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Manifest)
		want   error
	}{
		{"another log of this node", func(m *Manifest) { m.Log = otherLog }, ErrOtherLog},
		{"another log took its place", func(m *Manifest) {
			m.Log = otherLog
			m.Retired = []Retired{{Log: testLog, Epoch: 5, Uploaded: 4096, Origin: 8 << 12}}
		}, ErrRetired},
		{"more in the store than on the device", func(m *Manifest) { m.Origin, m.Uploaded = 10<<12, 10<<12 }, ErrOlderSnapshot},
		{"an equal epoch", func(m *Manifest) { m.Epoch = 7 }, ErrFenced},
		{"a higher epoch", func(m *Manifest) { m.Epoch = 8 }, ErrFenced},
		{"all the log, and a lower epoch", func(m *Manifest) { m.Origin, m.Uploaded = 9<<12, 9<<12 }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := held(t, c.change)
			before, _ := s.Peek(ManifestKey("test"))
			_, err := Claim(background, s, mine)
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if after, _ := s.Peek(ManifestKey("test")); err != nil && string(after) != string(before) {
				t.Error("a claim that was refused changed the manifest")
			}
		})
	}
	s := &simstore.Store{}
	_, _ = s.PutIfMatch(background, ManifestKey("test"), []byte("rubbish"), "")
	if _, err := Claim(background, s, mine); !errors.Is(err, ErrManifest) {
		t.Errorf("of rubbish: %v", err)
	}
}

// What a log gave up while it ran without its store is a group without objects.
func TestAClaimSaysWhatWasNeverUploaded(t *testing.T) {
	w := newTestWorld(t, 64<<20, 0)
	w.append1(w.stream("s"), "x")
	w.sync()
	_, m := w.archive(1, 256)
	s := held(t, func(x *Manifest) { m.Attempt++; *x = *m; x.Epoch, x.NextSequence = 6, 50 })
	c := mine
	c.Trim, c.End = m.Uploaded+8192, m.Uploaded+8192
	got, err := Claim(background, s, c)
	must(t, err)
	groups := got.Manifest.Groups
	if last := groups[len(groups)-1]; len(last.Objects) != 0 || last.From != m.Uploaded || last.To != c.Trim || got.Manifest.Uploaded != c.Trim {
		t.Errorf("%+v", groups)
	}
	if !NewCore(Settings{Claimed: got}).hold {
		t.Error("what follows may be committed without a state")
	}
}

// Lost answers, lost requests, requests that arrive late, and a store that is not there
// for a while: in the end this claim has the manifest, with a version that is its own.
func TestP6_AClaimIsSettledByReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fault := range []simstore.Fault{simstore.Unavailable, simstore.Denied, simstore.Lost, simstore.Unanswered, simstore.Late} {
			for first := 2; first <= 4; first++ { // the read, the put, or what settles it; request 1 is of held
				for _, times := range []int{1, 2, 20} {
					s := held(t, nil)
					s.Inject = func(c simstore.Call) simstore.Fault {
						if c.N >= first && c.N < first+times {
							return fault
						}
						return simstore.None
					}
					got, err := Claim(background, s, mine)
					must(t, err)
					for s.OnTheirWay() > 0 {
						s.Land(0)
					}
					s.Inject = nil
					m, version, err := ReadManifest(background, s, "test")
					must(t, err)
					if m.Incarnation != mine.Incarnation || m.Epoch != 7 || version != got.Version || m.Attempt > got.Attempts || m.NextSequence != 5 {
						t.Fatalf("fault %d at request %d: %+v, claimed %+v", fault, first, m, got)
					}
				}
			}
		}
	})
}

// Somebody else claims between the read and the put of this claim: it claims again if its
// epoch is higher, and is fenced if not.
func TestP6_OfTwoClaimsTheHigherEpochHasTheManifest(t *testing.T) {
	for _, c := range []struct {
		other uint64
		want  error
	}{{6, nil}, {7, ErrFenced}, {9, ErrFenced}} {
		s := held(t, func(m *Manifest) { m.Epoch = 5 })
		_, err := Claim(background, overtaken{s, func() {
			other := mine
			other.Epoch, other.Incarnation = c.other, [16]byte{99}
			_, err := Claim(background, s, other)
			must(t, err)
		}, new(bool)}, mine)
		if !errors.Is(err, c.want) {
			t.Errorf("overtaken by epoch %d: %v", c.other, err)
		}
		m, _, err := ReadManifest(background, s, "test")
		must(t, err)
		if m.Epoch != max(c.other, 7) || c.want != nil && m.Incarnation != [16]byte{99} {
			t.Errorf("overtaken by epoch %d: %+v", c.other, m)
		}
	}
}

// overtaken lets somebody else in before the first conditional put.
type overtaken struct {
	*simstore.Store
	before func()
	done   *bool
}

func (s overtaken) PutIfMatch(ctx context.Context, key string, body []byte, old store.Version) (store.Version, error) {
	if !*s.done {
		*s.done = true
		s.before()
	}
	return s.Store.PutIfMatch(ctx, key, body, old)
}

func TestAClaimEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := held(t, nil)
		s.Inject = func(simstore.Call) simstore.Fault { return simstore.Denied }
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		_, err := Claim(ctx, s, mine)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrDenied) {
			t.Error(err)
		}
		if n := s.Requests(simstore.Get); n < 10 || n > 60 {
			t.Errorf("%d requests in a minute", n)
		}
	})
}
