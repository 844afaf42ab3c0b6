package sidecar

import (
	"runtime"
	"runtime/debug"
)

// Version is the version of this build; the Makefile and the Dockerfile set it.
var Version = "unknown"

// Build says what binary this is.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"` // of the source, "" when built without it
	Go       string `json:"go"`
	Platform string `json:"platform"` // GOOS/GOARCH
}

// ThisBuild describes the running binary.
func ThisBuild() Build {
	b := Build{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	if b.Version == "unknown" && info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	return b
}
