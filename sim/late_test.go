package sim

import "testing"

// TestLateSuperblocks: starts and owners die while they write superblocks, which land at any
// time within T. More histories with WALSIDECAR_SIM_HISTORIES.
//
// What the rules have to keep from happening, at its shortest: a start's first superblock
// copy, of epoch e, is on its way when its machine dies. The next one does not see it, takes
// the same epoch and slots, and acks. It writes a superblock anew: the copy in the slot of
// that late write is there, the other is torn when it dies too. Then the late write lands:
// the only readable copy of epoch e is that of the start that nobody saw, and what was acked
// behind it is void.
func TestLateSuperblocks(t *testing.T) {
	n := int(fromEnvironment(t, "WALSIDECAR_SIM_HISTORIES"))
	if n == 0 {
		n = 100
	}
	fewWith(t, Peers, n/2, func(p *profile) { p.superblocksLate(0.03) })
	fewWith(t, Peers, n/2, func(p *profile) { p.superblocksLate(0.002) })
}
