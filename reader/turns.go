package reader

import (
	"context"
	"sync"
	"time"
)

const (
	// MaxColdScans is how many reads of one stream may read ahead in the store at once, if
	// Config.ColdBytes has room for so many, and maxColdReplays how many replays may read
	// there. Further ones wait for a turn. The first request of a read waits for none: it
	// reads what was asked for, not ahead.
	MaxColdScans   = 4
	maxColdReplays = 1

	// coldScanBytes and coldReplayBytes are what one of them holds: see upload.Scan and
	// upload.Replay, which also say what else they may hold where blocks and indexes are
	// unusually large.
	coldScanBytes   = 24 << 20
	coldReplayBytes = 32 << 20

	// MinColdBytes is the least that reads of the store hold together: one scan and one
	// replay.
	MinColdBytes = coldScanBytes + maxColdReplays*coldReplayBytes

	// turnLasts is how long a read keeps its turn against others who wait: what it has
	// read ahead is lost with the turn, so it should be worth it.
	turnLasts = 2 * time.Second
)

// coldScans is how many scans there is room for.
func coldScans(bytes int64) int {
	return int(max(1, min((bytes-maxColdReplays*coldReplayBytes)/coldScanBytes, MaxColdScans)))
}

// readAhead is what a turn is taken for: an upload.Scan or upload.Replay.
type readAhead interface{ Close() }

// turns hands out the right to hold memory for reading ahead. Whoever has a turn keeps
// it between its calls, but loses it there, and what it holds, to one who waits, once it
// had it for turnLasts: a client that reads slowly, or for hours, keeps nobody out.
type turns struct {
	mu      sync.Mutex
	free    int
	lasts   time.Duration // turnLasts
	holders []*turn
	queue   []chan struct{} // who waits, in order; a signal says: look again
}

// turn is that of one read. Its owner is one goroutine.
type turn struct {
	of      *turns
	running bool // between enter and leave: not to be taken away
	since   time.Time
	holds   readAhead // nil: the read has no turn. Guarded by of.mu but while running
}

// enter waits for the turn, and returns what the read holds from before: nil where it
// lost the turn, or never had it. The error is ctx's.
func (t *turn) enter(ctx context.Context) (readAhead, error) {
	s := t.of
	s.mu.Lock()
	if t.holds != nil {
		t.running = true
		defer s.mu.Unlock()
		return t.holds, nil
	}
	look := make(chan struct{}, 1)
	s.queue = append(s.queue, look)
	for {
		next := s.queue[0] == look
		ok, after := false, s.lasts
		if next {
			ok, after = s.take()
		}
		if ok {
			s.leaveQueue(look)
			t.running, t.since = true, time.Now()
			s.holders = append(s.holders, t)
			s.mu.Unlock()
			return nil, nil
		}
		s.mu.Unlock()
		if err := await(ctx, look, next, after); err != nil {
			s.mu.Lock()
			s.leaveQueue(look)
			s.mu.Unlock()
			return nil, err
		}
		s.mu.Lock()
	}
}

// await waits for the signal; the first of the queue looks again after a while anyway.
func await(ctx context.Context, look chan struct{}, first bool, after time.Duration) error {
	var elapsed <-chan time.Time
	if first {
		timer := time.NewTimer(after)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-look:
	case <-elapsed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take takes a free turn, or one from a read that is not running and had it for long
// enough; if there is none, it tells when to look again. Called with mu held.
func (s *turns) take() (ok bool, after time.Duration) {
	if s.free > 0 {
		s.free--
		return true, 0
	}
	after = s.lasts
	now := time.Now()
	for i, t := range s.holders { // the oldest first
		if t.running {
			continue
		}
		left := s.lasts - now.Sub(t.since)
		if left <= 0 {
			t.holds.Close()
			t.holds = nil
			s.holders = append(s.holders[:i], s.holders[i+1:]...)
			return true, 0
		}
		after = min(after, left)
	}
	return false, after
}

// leave ends what enter began; the read holds what it says, with its turn, until that is
// taken away. nil gives the turn back.
func (t *turn) leave(holds readAhead) {
	s := t.of
	s.mu.Lock()
	defer s.mu.Unlock()
	t.running, t.holds = false, holds
	if holds == nil {
		s.giveBack(t)
	}
	s.signal()
}

// release closes what the read holds, if anything, and gives the turn back. The read is
// not running.
func (t *turn) release() {
	s := t.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.holds == nil {
		return
	}
	t.holds.Close()
	t.holds = nil
	s.giveBack(t)
	s.signal()
}

func (s *turns) giveBack(t *turn) {
	for i, h := range s.holders {
		if h == t {
			s.holders = append(s.holders[:i], s.holders[i+1:]...)
			s.free++
			return
		}
	}
}

func (s *turns) leaveQueue(look chan struct{}) {
	for i, c := range s.queue {
		if c == look {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			break
		}
	}
	s.signal() // somebody else may be the first now
}

// signal makes the first who waits look again.
func (s *turns) signal() {
	if len(s.queue) == 0 {
		return
	}
	select {
	case s.queue[0] <- struct{}{}:
	default:
	}
}
