package session_test

import (
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/session"
	"github.com/walsidecar/walsidecar/shm"
	"github.com/walsidecar/walsidecar/wire"
)

// belled is a Backend whose bells the test rings.
type belled struct {
	*held
	heard chan func() time.Duration
}

func (b *belled) Listen(_ *shm.Bell, heard func() time.Duration) func() {
	b.heard <- heard
	return func() {}
}

// A client that rings without having published anything is not heard for a while, whether
// the loop sleeps or not; it is when it has published, and silence is not taken for rings.
func TestP9_BellsForNothingAreNotHeard(t *testing.T) {
	b := &belled{newHeld(), make(chan func() time.Duration, 1)}
	h := newHost(t, b, testBudget, session.Times{})
	s, err := h.New(session.Peer{}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	s.OfferShm()
	take := func() []byte {
		first, _, err := s.NextWrite()
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	put(t, s, (&wire.Hello{VersionMin: 1, VersionMax: 1, Features: wire.FeatureShm}).AppendTo(nil, 0))
	take()
	s.Written(nil)
	put(t, s, (&wire.ShmOpen{RingBytes: shm.MinRingBytes}).AppendTo(nil, 1))
	var info wire.ShmInfo
	hd, body, _, _, err := wire.Message(take())
	if err != nil || hd.Type != wire.TypeShmInfo || info.Decode(hd, body) != nil {
		t.Fatalf("%v, %v", hd.Type, err)
	}
	files := s.Handover()
	client, err := shm.Attach(&info, files[:], shm.Block, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Detach()
	s.Written(nil)

	heard := <-b.heard
	ring := func() time.Duration {
		for s.PopChunk() != nil {
			t.Fatal("the ring is not empty") // and the loop sleeps
		}
		return heard()
	}
	deaf := 0
	for range 100 {
		if ring() > 0 {
			deaf++
			if ring() > 0 {
				t.Fatal("the end of the deafness is heard as a ring for nothing: it would never end")
			}
		}
	}
	if deaf < 80 {
		t.Errorf("100 rings for nothing: deaf after %d", deaf)
	}
	client.Reserve(64)
	client.Publish()
	if heard() > 0 {
		t.Error("deaf though something was published")
	}
	s.Finish()
	for c := s.PopChunk(); c != nil; c = s.PopChunk() { // gives the ring back
		for _, _, ok := c.Next(); ok; _, _, ok = c.Next() {
		}
		c.Release()
	}
}
