package walsidecar

import (
	"log"
	"os"
	"path/filepath"
)

// StartExample starts a sidecar for an example, and returns its socket and what
// ends it.
func StartExample() (socket string, stop func()) {
	dir, err := os.MkdirTemp("", "walsidecar-example-")
	must(err)
	f := startFakeSidecar(filepath.Join(dir, "wal.sock"), log.Fatalf)
	return f.path, func() {
		f.stop()
		_ = os.RemoveAll(dir)
	}
}
