package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// ErrNoStoreGiven says that a device was named without saying where its records go.
var ErrNoStoreGiven = errors.New("WALSIDECAR_STORE must be set for a block device: s3://bucket/prefix, a directory, or none")

// directoryMode is that of directories made for a log file or a socket: the owner's, and
// passable for its groups, who may connect.
const directoryMode = 0o750

// target is what a sidecar is to serve.
type target struct {
	path     string
	isDevice bool
	missing  bool // a file that is to be made
	store    settings.Store
}

// findTarget resolves the log's path and store. It opens block devices only to find one by
// its log's UUID, read-only.
func findTarget(s *settings.Settings) (*target, error) {
	path, err := ResolveWAL(s.WAL)
	if err != nil {
		return nil, err
	}
	t := &target{path: path, store: s.Store}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.missing = true
		t.isDevice = strings.HasPrefix(filepath.Clean(path), "/dev/")
	case err != nil:
		return nil, fmt.Errorf("WALSIDECAR_WAL: %w", err)
	default:
		t.isDevice = info.Mode()&fs.ModeDevice != 0
	}
	switch {
	case t.store != "":
	case t.isDevice:
		return nil, fmt.Errorf("%s: %w", path, ErrNoStoreGiven)
	default:
		t.store = settings.DefaultFileStore
	}
	return t, nil
}

// makeDirectories makes the directories of the sockets and of a log file that does not exist.
func (t *target) makeDirectories(s *settings.Settings) error {
	if err := os.MkdirAll(filepath.Dir(string(s.Socket)), directoryMode); err != nil {
		return fmt.Errorf("directory of the socket (WALSIDECAR_SOCKET): %w", err)
	}
	if !s.HTTP.Off() {
		if err := os.MkdirAll(filepath.Dir(string(s.HTTP)), directoryMode); err != nil {
			return fmt.Errorf("directory of the HTTP door's socket (WALSIDECAR_HTTP): %w", err)
		}
	}
	if t.missing && !t.isDevice {
		if err := os.MkdirAll(filepath.Dir(t.path), directoryMode); err != nil {
			return fmt.Errorf("directory of the log (WALSIDECAR_WAL): %w", err)
		}
	}
	return nil
}

func uuidText(id [16]byte) string { return uuid.UUID(id).String() }
