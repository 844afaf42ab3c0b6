package sim

import (
	"testing"
)

// A start without room for its jump makes some, in every order of crashes, store faults and
// late writes, and the log keeps its promises.
func TestP5_AStartThatMakesRoomTrimsWhatTheManifestHolds(t *testing.T) { roomHistories(t, Late, 160) }
func TestP12_ATakeoverOfAFullLogMakesRoom(t *testing.T)                { roomHistories(t, Peers, 150) }

func roomHistories(t *testing.T, kind Kind, n int) {
	t.Helper()
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(1_000_000*n + i)
	}
	if seed := oneSeed(t); seed != 0 {
		seeds = []uint64{seed}
	}
	total := play(t, Options{Kind: kind, adjust: (*profile).fullOfJumps}, seeds)
	if len(seeds) > 1 && total.RoomMade+total.InPlace == 0 {
		t.Error("no start was without room")
	}
}
