package sim

import (
	"os"
	"testing"
)

// superblocksLate makes starts crash with their machines while they write superblocks,
// which then land late.
func superblocksLate(p *profile) {
	p.steps, p.store, p.upload = 1500, false, 0
	p.abort, p.abortHangs, p.volatile = false, false, false
	p.power, p.crash, p.startCrash, p.takeover, p.lateness = 1, 0.01, 0.03, 0.02, 3000
	p.superblock, p.record = 60, 20
}

// TestLateSuperblocks: takeovers of a device that can only preempt plainly, by starts
// that die while they write superblocks. It relies on late superblock writes having
// landed when a start begins to write to the same slots. The rules of docs/design.md
// do not give that: a start waits for L, and a write may take T. With
// WALSIDECAR_SIM_SUPERBLOCKS=unseen those of starts that nobody saw may land later, with
// =slots those of the owner before the last one too: both break P2 or P7 within some
// thousand histories (WALSIDECAR_SIM_HISTORIES=5000).
//
// The shortest: a start's first superblock copy, of epoch e, is on its way when its
// machine dies. The next one does not see it, takes the same epoch and slots, and acks.
// It writes a superblock anew: the copy in the slot of that late write is there, the
// other is torn when it dies too. Then the late write lands: the only readable copy of
// epoch e is that of the start that nobody saw, and what was acked behind it is void.
func TestLateSuperblocks(t *testing.T) {
	n := int(fromEnvironment(t, "WALSIDECAR_SIM_HISTORIES"))
	if n == 0 {
		n = 100
	}
	late := os.Getenv("WALSIDECAR_SIM_SUPERBLOCKS")
	fewWith(t, Peers, n, func(p *profile) {
		superblocksLate(p)
		p.unseenLate, p.slotsLate = late == "unseen" || late == "slots", late == "slots"
	})
}
