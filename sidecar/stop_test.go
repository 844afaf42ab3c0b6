package sidecar

import (
	"context"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/sidecar/settings"
)

// A signal that comes while the log is being opened ends the sidecar, whatever the start
// was doing, and the log is closed in order.
func TestASignalDuringTheStartIsNotLost(t *testing.T) {
	dir := t.TempDir()
	s, err := settings.LoadFlags(map[string]string{
		"wal": filepath.Join(dir, "wal"), "wal-size": "32MiB", "store": "none",
		"socket": filepath.Join(dir, "s"), "admin": "off", "memory": "128MiB",
	})
	if err != nil {
		t.Fatal(err)
	}
	said := &signalling{Handler: slog.DiscardHandler, at: "log is open"}
	ended := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), Options{Settings: s, Log: slog.New(said)})
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it serves on")
	}
}

// signalling sends this process SIGTERM when a message is logged, and lets it arrive.
type signalling struct {
	slog.Handler
	at string
}

func (h *signalling) Enabled(context.Context, slog.Level) bool { return true }

func (h *signalling) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.at {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}
