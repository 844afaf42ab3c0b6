package session

// lookSessions is how many rings a commit loop looks at before it sleeps: those that it
// emptied last. A client among more than that is busy enough to be woken by its kicks.
const lookSessions = 4

// Look is how a commit loop looks at rings before it sleeps, as Options.Waiting says, so
// that their clients need not kick it. It is the loop's own; the zero Look is ready.
type Look struct {
	recent [lookSessions]*Session // with a ring that was emptied, the last one first
	held   [lookSessions]*Session
}

// Emptied notes that PopChunk of s returned nil.
func (l *Look) Emptied(s *Session) {
	if s.ring == nil || l.recent[0] == s {
		return
	}
	from := len(l.recent) - 1
	for i, other := range l.recent {
		if other == s {
			from = i
		}
	}
	copy(l.recent[1:from+1], l.recent[:from])
	l.recent[0] = s
}

// Before is called before the loop sleeps; rung tells whether something has come that
// keeps it from that. It returns when that is so, what it found having been told to
// Backend.Ready, or when it looked long enough. Rings whose client waits for a device
// write are not looked at: nothing comes from there, and the write's end may need this
// processor.
func (l *Look) Before(rung func() bool) {
	held := l.hold()
	if len(held) == 0 {
		return
	}
	held[0].ring.spinner.Look(func() bool {
		for _, s := range held {
			if s.ring.door.Tail() != s.ring.door.Taken() {
				return true
			}
		}
		return rung()
	})
	for i, s := range held {
		if s.ring.rearm() {
			s.backend.Ready(s)
		}
		held[i] = nil
	}
}

// hold disarms the rings to look at: while that lasts they need not kick.
func (l *Look) hold() []*Session {
	held := l.held[:0]
	for i, s := range l.recent {
		if s == nil {
			continue
		}
		r := s.ring
		if r == nil { // given back
			l.recent[i] = nil
			continue
		}
		if r.door.Unanswered() == 0 && r.spinner.Looks() && r.door.Disarm() {
			held = append(held, s)
		}
	}
	return held
}

// rearm says that the loop sleeps, and reports whether it must not, as something came
// before.
func (r *ring) rearm() bool {
	r.door.Arm(r.wakeAt())
	return r.door.Tail() != r.door.Taken() && r.door.Disarm()
}
