package sidecar

import (
	"log/slog"
	"os"

	"golang.org/x/term"
)

// NewLogger logs to f: text where a person reads it, JSON where a machine does.
func NewLogger(f *os.File) *slog.Logger {
	if term.IsTerminal(int(f.Fd())) {
		return slog.New(slog.NewTextHandler(f, nil))
	}
	return slog.New(slog.NewJSONHandler(f, nil))
}
