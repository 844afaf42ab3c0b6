package ringwal

import "github.com/cespare/xxhash/v2"

// mergeAbove is the number of boundaries above which a start merges neighbours: well
// below MaxBoundaries, so that a merge never comes too late, and far above what a
// log that is trimmed ever has.
const mergeAbove = 512

// Merged boundaries
//
// Every start after a run that wrote frames leaves a boundary, and only a trim removes
// them. A process that crashes in a loop, with a log that nobody trims, would run
// out of places. So a start that would leave more than mergeAbove makes one boundary
// of each run of neighbours that may be merged: follow end, follow sum and start of the
// oldest, the epoch of the newest, and 0 for the incarnation hash (which no
// incarnation has). In the *merged range*, from its start to the follow end of the
// boundary behind it, frames of any epoch above that of the boundary before it and
// up to its own belong to the log; as everywhere, epochs never fall along the chain
// and one epoch has one incarnation.
//
// A boundary is merged only if
//
//   - it did not jump: what a jump left void has to stay void, for a late write may lie
//     there;
//   - it lies at or above trim, so that this very recovery crossed it and read the first
//     frame of its epoch, and every other one up to the next boundary (had one been
//     missing, judgeEnd would have called it damage);
//   - the frame that the next boundary follows lies at or below the proven durable
//     position, and so does all of its epoch.
//
// The newest boundary follows the end of the log, has nothing behind it, and is never
// merged: behind every merged range there is a boundary.
//
// What a boundary does is to void older frames at or beyond its follow end, to prove
// that the log reached it, and to tell what frame lay before it. Here is why a merged
// one does as much.
//
// P3, no ghosts. A frame that a merged boundary voided is an older one at a place in
// the merged range. That place holds a newer frame now, which was durable when it was
// read: there is no older one left to come back, but in the gap that a pad
// jumps over, where no chain ever looks. And if one were there, it would not be
// taken for the log: the range is pinned at both ends. Its first frame carries the follow
// sum (or, after a trim into the range, the sum before trim), and the last one's sum
// has to be the follow sum of the boundary behind it. A sum covers the sum of the frame
// before, so that one sum at the end stands for every frame in between: another
// frame anywhere makes a walk end in damage, at the frame that does not follow it
// or at the boundary. That is why the exact epochs may be forgotten. The end of the log
// lies beyond the newest boundary, where one epoch and incarnation are in force
// and nothing changed: neither what is a torn tail there, nor which frames behind
// the hole prove otherwise.
//
// P7, rot is no torn tail. The follow ends that are given up lie below the newest one,
// which proves all that they proved: a hole in a merged range is damage up to there. A
// follow sum that is given up would have told a wrong chain a few frames earlier.
//
// P9, hostile payloads. Without an incarnation the header of a frame can be forged in a
// payload, by who guesses its position. A chain does not meet it. The scan behind a hole
// looks beyond the newest boundary only. What Salvage learns there from a header, that
// its durable position was durable, the boundary behind the range says anyway. Only
// where Salvage goes on behind a gap would it be met: there it takes nothing that
// is not part of something longer than a frame (salvage.anchored).

// merged reports whether b stands for several epochs.
func (b *Boundary) merged() bool { return b.IncarnationHash == 0 }

// incarnationHash is never 0, which a merged boundary carries.
func incarnationHash(incarnation [16]byte) uint64 {
	return max(1, xxhash.Sum64(incarnation[:]))
}

// mergeBoundaries merges what may be merged when a recovery that began at Trim has proven
// so much.
func (sb *Superblock) mergeBoundaries(proven uint64) {
	all := sb.Boundaries
	kept := all[:0:0]
	open := false // the last that was kept takes the next one in, if that may be
	for i, b := range all {
		may := i+1 < len(all) && b.Start == b.FollowEnd && b.FollowEnd >= sb.Trim && all[i+1].FollowEnd <= proven
		if open && may {
			run := &kept[len(kept)-1]
			run.Epoch, run.IncarnationHash = b.Epoch, 0
		} else {
			kept = append(kept, b)
		}
		open = may
	}
	sb.Boundaries = kept
}
