package reader

import "time"

// SetTurns changes how long a turn lasts. No read is open.
func SetTurns(r *Reader, lasts time.Duration) {
	r.scans.lasts, r.replays.lasts = lasts, lasts
}
