package session

// Pending is how many bytes of answers wait for the door.
func (s *Session) Pending() int { return s.pending() }
