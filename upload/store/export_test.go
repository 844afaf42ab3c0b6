package store

import (
	"path/filepath"
	"time"
)

// ForgetPause lets credentials be looked for again at once.
func ForgetPause(s Store) {
	k := s.(*bucket).credentials
	k.mu.Lock()
	defer k.mu.Unlock()
	k.found, k.asked = time.Time{}, time.Time{}
}

// LinkGeneration does the second half of a PutIfMatch in a directory, as a writer that made
// the first half long ago.
func LinkGeneration(s Store, key string, body []byte, n uint64) error {
	d := s.(*directory)
	temporary, err := d.writeTemporary(body)
	if err != nil {
		return err
	}
	_, err = d.linkGeneration(filepath.Join(d.root, key), temporary, n)
	return err
}
